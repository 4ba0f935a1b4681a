"""lancedb works on tables in a catalog; the warehouse or catalog is the first part of each `namespace_path`.

lancedb calls the namespace from Rust, with dicts, and gets its errors back as text: only those that it looks for in
that text keep their class.
"""

from __future__ import annotations

import asyncio
from typing import Any

import lance
import lancedb
import pyarrow as pa
import pytest
from lance_namespace import DeclareTableRequest, LanceNamespace
from lance_namespace.errors import NamespaceNotEmptyError, TableNotFoundError

from tests.catalogs import LiveCatalog


@pytest.fixture
def db(catalog: LiveCatalog) -> Any:
    return lancedb.connect_namespace(catalog.impl, dict(catalog.properties))


def test_create_open_and_search(db: Any, home: list[str], vectors: pa.Table) -> None:
    assert db.create_table("docs", vectors, namespace_path=home).count_rows() == 100
    table = db.open_table("docs", namespace_path=home)
    table.add(vectors.slice(0, 10))
    assert (table.count_rows(), table.version) == (110, 2)
    assert table.search([41.0] * 4).where("id < 41").limit(2).to_arrow()["id"].to_pylist() == [40, 39]
    assert [hit["id"] for hit in table.search().where("id > 97").to_list()] == [98, 99]


def test_change(db: Any, home: list[str], vectors: pa.Table) -> None:
    table = db.create_table("docs", vectors, namespace_path=home)
    table.delete("id >= 50")
    table.update(where="id = 1", values={"id": 1000})
    table.merge_insert("id").when_matched_update_all().when_not_matched_insert_all().execute(vectors)
    assert (table.count_rows(), table.count_rows("id = 1000")) == (101, 1)
    table.checkout(1)
    assert table.count_rows("id = 1000") == 0
    assert db.open_table("docs", namespace_path=home, version=2).count_rows() == 50


def test_create_modes(db: Any, home: list[str], vectors: pa.Table) -> None:
    db.create_table("docs", vectors, namespace_path=home)
    with pytest.raises(RuntimeError, match="TableAlreadyExistsError"):
        db.create_table("docs", vectors.slice(0, 1), namespace_path=home)
    assert db.create_table("docs", schema=vectors.schema, exist_ok=True, namespace_path=home).count_rows() == 100
    assert db.create_table("docs", vectors.slice(0, 5), mode="overwrite", namespace_path=home).count_rows() == 5
    assert db.create_table("empty", schema=vectors.schema, namespace_path=home).count_rows() == 0


def test_write_what_was_declared(db: Any, namespace: LanceNamespace, home: list[str], vectors: pa.Table) -> None:
    """`mode="create"` takes the entry for a table, so say `overwrite`."""
    namespace.declare_table(DeclareTableRequest(id=[*home, "docs"]))
    with pytest.raises(RuntimeError, match="TableAlreadyExistsError"):
        db.create_table("docs", vectors, namespace_path=home)
    assert db.create_table("docs", vectors, mode="overwrite", namespace_path=home).count_rows() == 100


@pytest.mark.filterwarnings("ignore:table_names.. is deprecated")  # it is what most of lancedb's users call
def test_list_and_drop(db: Any, home: list[str], vectors: pa.Table) -> None:
    for name in ("c", "a", "b"):
        db.create_table(name, vectors, namespace_path=home)
    assert db.list_tables(namespace_path=home).tables == ["a", "b", "c"]
    assert list(db.table_names(namespace_path=home)) == ["a", "b", "c"]
    first = db.list_tables(namespace_path=home, limit=2)
    assert (
        first.tables,
        db.list_tables(namespace_path=home, limit=2, page_token=first.page_token).tables,
    ) == (["a", "b"], ["c"])
    assert (db.table_exists([*home, "a"]), db.table_exists([*home, "z"])) == (True, False)
    db.drop_table("a", namespace_path=home)
    assert db.list_tables(namespace_path=home).tables == ["b", "c"]
    db.drop_all_tables(namespace_path=home)
    assert db.list_tables(namespace_path=home).tables == []


def test_missing(db: Any, home: list[str]) -> None:
    with pytest.raises(TableNotFoundError):
        db.open_table("nope", namespace_path=home)
    with pytest.raises(RuntimeError, match="TableNotFoundError"):
        db.drop_table("nope", namespace_path=home)
    with pytest.raises(RuntimeError, match="NamespaceNotFoundError"):
        db.list_tables(namespace_path=[*home[:-1], "nowhere"])
    assert (db.namespace_exists(home), db.namespace_exists([*home[:-1], "nowhere"])) == (True, False)


def test_the_root_holds_no_tables(db: Any, vectors: pa.Table) -> None:
    """lancedb's root is `[]`, which no catalog has: without `namespace_path` the id has a single level."""
    with pytest.raises(RuntimeError, match="InvalidInputError: a table id is"):
        db.create_table("docs", vectors)
    with pytest.raises(RuntimeError, match="InvalidInputError"):
        db.list_tables()


def test_namespaces(catalog: LiveCatalog, db: Any, home: list[str], vectors: pa.Table) -> None:
    inner = [*home, "deep"] if catalog.nests else [*catalog.parent, f"{home[-1]}_beside"]
    db.create_namespace(inner, properties={"owner": "me"})
    assert db.create_namespace(inner, mode="exist_ok").properties["owner"] == "me"
    assert db.describe_namespace(inner).properties["owner"] == "me"
    shown = ".".join(inner) if catalog.nests else inner[-1]
    assert shown in db.list_namespaces(namespace_path=inner[:-1]).namespaces
    assert db.create_table("docs", vectors, namespace_path=inner).count_rows() == 100
    with pytest.raises(NamespaceNotEmptyError):
        db.drop_namespace(inner)
    db.drop_table("docs", namespace_path=inner)
    db.drop_namespace(inner)
    assert not db.namespace_exists(inner)


def test_same_table_in_pylance(db: Any, namespace: LanceNamespace, home: list[str], vectors: pa.Table) -> None:
    db.create_table("docs", vectors, namespace_path=home)
    lance.write_dataset(vectors, namespace_client=namespace, table_id=[*home, "docs"], mode="append")
    assert db.open_table("docs", namespace_path=home).count_rows() == 200


def test_connection_goes_to_another_process(db: Any, home: list[str], vectors: pa.Table) -> None:
    db.create_table("docs", vectors, namespace_path=home)
    assert lancedb.deserialize_conn(db.serialize()).open_table("docs", namespace_path=home).count_rows() == 100


def test_asynchronous(catalog: LiveCatalog, home: list[str], vectors: pa.Table) -> None:
    async def work() -> tuple[int, list[int], list[str], list[str]]:
        db = lancedb.connect_namespace_async(catalog.impl, dict(catalog.properties))
        created = await db.create_table("docs", vectors, namespace_path=home)
        await created.add(vectors.slice(0, 10))
        table = await db.open_table("docs", namespace_path=home)
        nearest = await (await table.search([41.0] * 4)).limit(1).to_arrow()
        count = await table.count_rows()
        before = await db.list_tables(namespace_path=home)
        await db.drop_table("docs", namespace_path=home)
        after = await db.list_tables(namespace_path=home)
        return count, nearest["id"].to_pylist(), before.tables, after.tables

    assert asyncio.run(work()) == (110, [41], ["docs"], [])
