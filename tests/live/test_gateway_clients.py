"""Lance's own clients on the gateway, unmodified: pylance, LanceDB in Python, sync and async, and in Node; Java's."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

import lance
import lancedb
import pyarrow as pa
import pytest
from lance_namespace import (
    CreateNamespaceRequest,
    DeclareTableRequest,
    DescribeTableRequest,
    DropNamespaceRequest,
    DropTableRequest,
    LanceNamespace,
    ListTablesRequest,
    RenameTableRequest,
)
from lance_namespace.errors import TableNotFoundError
from lancedb.index import FTS, BTree

from lancehouse.catalog.callers import Role
from tests.live.engines import BACKENDS, above, is_managed, principal, start_engines_gateway
from tests.live.gateways import Heard, ask, client, stream
from tests.servers import java_client, npm
from tests.servers.lancehouse import Served, start_lancehouse
from tests.servers.reference import Reference

VECTORS = pa.table(
    {
        "id": pa.array(range(100), pa.int64()),
        "word": [f"w{number}" for number in range(100)],
        "vector": pa.array([[float(number), 1.0] for number in range(100)], pa.list_(pa.float32(), 2)),
    }
)


@dataclass(frozen=True)
class GatewayNamespace:
    """A namespace behind the gateway."""

    uri: str
    namespace: LanceNamespace
    levels: list[str]
    is_managed: bool

    def check(self, name: str, version: int) -> None:
        """The table is at a version, in the catalog and in storage, and says who decides on that."""
        described = self.namespace.describe_table(DescribeTableRequest(id=[*self.levels, name]))
        assert bool(described.managed_versioning) is self.is_managed
        by_name = lance.dataset(namespace_client=self.namespace, table_id=[*self.levels, name])
        assert by_name.version == lance.dataset(described.location).version == version


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, reference_server: Reference) -> Iterator[Served]:
    with start_engines_gateway(tmp_path_factory.mktemp("gateway"), reference_server) as served:
        yield served


@pytest.fixture(params=BACKENDS)
def home(request: pytest.FixtureRequest, server: Served) -> GatewayNamespace:
    backend: str = request.param
    levels = [*above(backend), f"db_{uuid4().hex[:8]}"]
    namespace = client(server, backend)
    namespace.create_namespace(CreateNamespaceRequest(id=levels))
    return GatewayNamespace(f"{server.uri}/lance/{backend}", namespace, levels, is_managed(backend))


def test_pylance(home: GatewayNamespace) -> None:
    named: dict[str, Any] = {"namespace_client": home.namespace, "table_id": [*home.levels, "t"]}
    lance.write_dataset(VECTORS.slice(0, 50), **named, mode="create")
    lance.write_dataset(VECTORS.slice(50), **named, mode="append")
    table = lance.dataset(**named)
    table.update({"word": "'new'"}, where="id = 1")
    table.delete("id >= 90")
    table.merge_insert("id").when_matched_update_all().when_not_matched_insert_all().execute(VECTORS.slice(90, 2))
    table.add_columns({"twice": "id * 2"})
    table.create_scalar_index("id", "BTREE")
    table.create_index("vector", "IVF_FLAT", num_partitions=2)
    table.optimize.compact_files()
    home.check("t", table.version)
    found = table.to_table(filter="word = 'new'", columns=["twice"])
    assert (table.count_rows(), found.to_pylist()) == (92, [{"twice": 2}])
    assert table.to_table(nearest={"column": "vector", "q": [41.2, 1.0], "k": 1})["id"].to_pylist() == [41]
    assert {index["name"] for index in table.list_indices()} == {"id_idx", "vector_idx"}
    table.tags.create("whole", 2)
    assert [lance.dataset(**named, version=at).count_rows() for at in (1, "whole")] == [50, 100]
    lance.write_dataset(VECTORS.slice(0, 5), **named, mode="overwrite")
    assert lance.dataset(**named).count_rows() == 5


def test_entries(home: GatewayNamespace) -> None:
    names = home.namespace
    for name in ("a", "my table"):
        lance.write_dataset(VECTORS, namespace_client=names, table_id=[*home.levels, name], mode="create")
    names.rename_table(RenameTableRequest(id=[*home.levels, "a"], new_table_name="b"))
    assert names.list_tables(ListTablesRequest(id=home.levels)).tables == ["b", "my table"]
    for name in ("b", "my table"):
        names.drop_table(DropTableRequest(id=[*home.levels, name]))
    with pytest.raises(TableNotFoundError):
        names.describe_table(DescribeTableRequest(id=[*home.levels, "b"]))
    names.drop_namespace(DropNamespaceRequest(id=home.levels))


def test_lancedb(home: GatewayNamespace) -> None:
    db = lancedb.connect_namespace("rest", {"uri": home.uri})
    table = db.create_table("docs", VECTORS.slice(0, 90), namespace_path=home.levels)
    table.add(VECTORS.slice(90))
    table.update(where="id = 1", values={"word": "new"})
    table.delete("id >= 95")
    table.merge_insert("id").when_matched_update_all().when_not_matched_insert_all().execute(VECTORS.slice(94, 2))
    table.create_index("id", config=BTree())
    table.create_index("word", config=FTS())
    home.check("docs", table.version)
    again = db.open_table("docs", namespace_path=home.levels)
    assert (again.count_rows(), again.count_rows("word = 'new'")) == (96, 1)
    assert [hit["id"] for hit in again.search([41.2, 1.0]).where("id != 41").limit(1).to_list()] == [42]
    assert [hit["id"] for hit in again.search("w7", query_type="fts").limit(1).to_list()] == [7]
    assert {index.name for index in again.list_indices()} == {"id_idx", "word_idx"}
    again.tags.create("first", 1)
    again.checkout("first")
    assert again.count_rows() == 90
    again.checkout_latest()
    again.optimize()
    home.check("docs", again.version)
    again.restore(1)
    assert again.count_rows() == 90
    with pytest.raises(ValueError, match="Table 'docs' already exists"):
        db.create_table("docs", VECTORS, namespace_path=home.levels)
    assert db.create_table("docs", VECTORS, mode="overwrite", namespace_path=home.levels).count_rows() == 100
    db.drop_table("docs", namespace_path=home.levels)
    assert db.list_tables(namespace_path=home.levels).tables == []


def test_lancedb_asynchronous(home: GatewayNamespace) -> None:
    async def work() -> tuple[int, list[int], list[str], list[str], int]:
        db = lancedb.connect_namespace_async("rest", {"uri": home.uri})
        created = await db.create_table("docs", VECTORS, namespace_path=home.levels)
        await created.add(VECTORS.slice(0, 10))
        await created.create_index("id", config=BTree())
        table = await db.open_table("docs", namespace_path=home.levels)
        nearest = await (await table.search([41.2, 1.0])).limit(1).to_arrow()
        count, version = await table.count_rows(), await table.version()
        home.check("docs", version)
        before = await db.list_tables(namespace_path=home.levels)
        await table.checkout(1)
        old = await table.count_rows()
        await db.drop_table("docs", namespace_path=home.levels)
        after = await db.list_tables(namespace_path=home.levels)
        return count, nearest["id"].to_pylist(), before.tables, after.tables, old

    assert asyncio.run(work()) == (110, [41], ["docs"], [], 100)


def test_a_first_version_in_storage_alone_is_accepted_from_who_may_write(tmp_path: Path) -> None:
    """As Lance 4 creates a table: it writes to the place that it was told, and asks for the version afterwards."""
    db = f"sqlite:///{tmp_path / 'catalog.db'}"
    reader, writer = (principal(db, name, role) for name, role in (("ada", Role.READER), ("bob", Role.WRITER)))
    with start_lancehouse(tmp_path) as server:
        bob = client(server, **{"header.authorization": f"Bearer {writer}"})
        bob.create_namespace(CreateNamespaceRequest(id=["db"]))
        declared = bob.declare_table(DeclareTableRequest(id=["db", "t"], properties={"managed_by": "impl"}))
        lance.write_dataset(VECTORS, declared.location)
        path, latest = "/lance/main/v1/table/db$t/version/list?limit=1&descending=true", b"{}"

        def list_latest(token: str) -> Heard:
            return ask(server, "POST", path, latest, {"authorization": f"Bearer {token}"})

        assert list_latest(reader).refused == (409, 19)
        assert list_latest(reader).refused == (409, 19)  # and nothing was done
        assert [each["version"] for each in list_latest(writer).json["versions"]] == [1]
        assert list_latest(reader).status == 200
        lance.write_dataset(VECTORS, declared.location, mode="append")
        assert [each["version"] for each in list_latest(writer).json["versions"]] == [1]  # no other is


def test_the_examples_of_the_page(server: Served) -> None:
    page = (Path(__file__).parents[2] / "docs" / "gateway.md").read_text().replace("http://127.0.0.1:8181", server.uri)
    found: dict[str, Any] = {}
    blocks = re.findall(r"```python\n(.*?)```", page, re.S)
    assert len(blocks) == 3
    for block in blocks:
        exec(block, found)
    assert found["db"].open_table("docs", namespace_path=["books"]).count_rows() == 3
    shown = dict(re.findall(r"--conf (\S+?)=(\S+)", page))
    assert shown.items() <= found["settings"].items()


@pytest.fixture(scope="module")
def node() -> None:
    try:
        npm.packages()
    except npm.NpmNotFoundError as error:
        pytest.skip(str(error))


@pytest.mark.usefixtures("node")
def test_lancedb_in_node(home: GatewayNamespace) -> None:
    home.namespace.drop_namespace(DropNamespaceRequest(id=home.levels))
    found = npm.run("tour.cjs", {"uri": home.uri, "headers": {"x-tenant": "tests"}, "home": home.levels})
    assert "was not found" in found.pop("missing")
    assert found == {
        "properties": "red",
        "namespaces": True,
        "nearest": [7],
        "filtered": ["w298", "w299"],
        "indices": ["id_idx", "word_idx"],
        "words": [42],
        "counts": [282, 1],
        "versions": [7, 7],
        "old": 20,
        "tagged": 300,
        "optimised": [282, 9],
        "names": ["docs", "other"],
        "exists": "Table 'other' already exists",
        "left": ["docs"],
    }
    home.check("docs", 9)


def test_the_client_in_java(home: GatewayNamespace, tmp_path: Path) -> None:
    home.namespace.drop_namespace(DropNamespaceRequest(id=home.levels))
    rows = tmp_path / "rows.arrow"
    rows.write_bytes(stream(VECTORS))
    found = java_client.run([home.uri, "$".join(home.levels), str(rows)])
    assert Path(found.pop("location").removeprefix("file://")).is_absolute()
    assert found.pop("without") == "400"  # its models send an empty id where none is set, which is that of the root
    assert found == {"properties": "red", "count": "200", "tables": "[my table]", "versions": "2", "missing": "404"}
