"""Unmodified clients on our server: pyiceberg, and the peer's Lance namespace."""

from __future__ import annotations

import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import uuid4

import lance
import pyarrow as pa
import pytest
from lance_namespace import DeclareTableRequest, DropTableRequest, connect
from lance_namespace.errors import PermissionDeniedError
from pyiceberg.catalog.rest import RestCatalog
from pyiceberg.exceptions import (
    CommitFailedException,
    ForbiddenError,
    NamespaceAlreadyExistsError,
    NamespaceNotEmptyError,
    NoSuchNamespaceError,
    NoSuchTableError,
    TableAlreadyExistsError,
)

from tests.servers.lancehouse import Served

ROWS = pa.table(
    {
        "id": pa.array(range(10), pa.int64()),
        "word": pa.array([None if n == 3 else f"w{n}" for n in range(10)]),
        "when": pa.array([datetime(2026, 1, n + 1, tzinfo=UTC) for n in range(10)], pa.timestamp("ns", "UTC")),
        "vector": pa.array([[float(n)] * 4 for n in range(10)], pa.list_(pa.float32(), 4)),
    }
)


@pytest.fixture
def catalog(lancehouse_server: Served) -> RestCatalog:
    """pyiceberg, as a user has it."""
    return RestCatalog("ours", uri=lancehouse_server.iceberg, warehouse=lancehouse_server.warehouse)


@pytest.fixture
def level(catalog: RestCatalog) -> str:
    """A namespace of the test's own."""
    name = f"db_{uuid4().hex[:8]}"
    catalog.create_namespace(name, {"owner": "me"})
    return name


def test_namespaces(catalog: RestCatalog, level: str) -> None:
    catalog.create_namespace((level, "a b", "c/d"))
    assert catalog.list_namespaces((level,)) == [(level, "a b")]
    assert catalog.list_namespaces((level, "a b")) == [(level, "a b", "c/d")]
    catalog.update_namespace_properties(level, removals={"owner"}, updates={"x": "1"})
    assert catalog.load_namespace_properties(level) == {"x": "1"}
    with pytest.raises(NamespaceAlreadyExistsError):
        catalog.create_namespace(level)
    with pytest.raises(NamespaceNotEmptyError):
        catalog.drop_namespace(level)
    with pytest.raises(NoSuchNamespaceError):
        catalog.list_tables((level, "nope"))
    assert not catalog.namespace_exists((level, "nope"))


def test_an_iceberg_table(catalog: RestCatalog, level: str) -> None:
    rows = ROWS.select(["id", "word"])
    table = catalog.create_table((level, "t"), schema=rows.schema)
    table.append(rows)
    table.append(rows)
    first = table.snapshots()[0].snapshot_id
    table.delete("id < 5")
    again = catalog.load_table((level, "t"))
    assert again.scan(row_filter="word = 'w7'").to_arrow().num_rows == 2
    assert again.scan().to_arrow().num_rows == 10
    assert again.scan(snapshot_id=first).to_arrow().num_rows == 10
    with table.update_schema() as update:
        update.add_column("more", update._apply().fields[0].field_type)
    assert [field.name for field in catalog.load_table((level, "t")).schema().fields] == ["id", "word", "more"]
    with pytest.raises(TableAlreadyExistsError):
        catalog.create_table((level, "t"), schema=rows.schema)
    catalog.rename_table((level, "t"), (level, "u"))
    with pytest.raises(NoSuchTableError):
        catalog.load_table((level, "t"))
    catalog.purge_table((level, "u"))
    assert catalog.list_tables(level) == []


def test_two_writers_of_an_iceberg_table(catalog: RestCatalog, level: str) -> None:
    rows = ROWS.select(["id"])
    catalog.create_table((level, "t"), schema=rows.schema)
    one, other = catalog.load_table((level, "t")), catalog.load_table((level, "t"))
    one.append(rows)
    other.append(rows)  # told that it was not first, pyiceberg reads the table again and repeats the commit
    assert catalog.load_table((level, "t")).scan().to_arrow().num_rows == 20
    one, other = catalog.load_table((level, "t")), catalog.load_table((level, "t"))
    with one.update_schema() as update:
        update.rename_column("id", "number")
    with pytest.raises(CommitFailedException), other.update_schema() as update:
        update.rename_column("id", "key")


@pytest.mark.parametrize(
    ("rows_wanted", "expected"),
    [
        ("id >= 0", list(range(10))),
        ("id > 6", [7, 8, 9]),
        ("word like 'w1%'", [1]),
        ("word is null", [3]),
        ("id > 2 and word = 'w5'", [5]),
        ("id > 100", []),
    ],
)
def test_rows_of_a_lance_table(
    catalog: RestCatalog, lancehouse_server: Served, level: str, rows_wanted: str, expected: list[int]
) -> None:
    ours = connect("iceberg", {"endpoint": lancehouse_server.iceberg})
    name = [lancehouse_server.warehouse, level, "docs"]
    lance.write_dataset(ROWS, namespace_client=ours, table_id=name, mode="create", max_rows_per_file=4)
    table = catalog.load_table((level, "docs"))
    found = table.scan(row_filter=rows_wanted).to_arrow()
    assert sorted(found["id"].to_pylist()) == expected
    assert found.schema.names == ROWS.schema.names
    assert table.scan(row_filter=rows_wanted, selected_fields=("vector",)).to_arrow().column_names == ["vector"]
    assert table.scan(row_filter=rows_wanted).count() == len(expected)


def test_versions_of_a_lance_table(catalog: RestCatalog, lancehouse_server: Served, level: str) -> None:
    ours = connect("iceberg", {"endpoint": lancehouse_server.iceberg})
    name = [lancehouse_server.warehouse, level, "docs"]
    dataset = lance.write_dataset(ROWS, namespace_client=ours, table_id=name, mode="create")
    plain = lance.dataset(dataset.uri)
    plain.delete("id < 8")
    plain.tags.create("small", 2)
    plain.add_columns({"twice": "id * 2"})
    table = catalog.load_table((level, "docs"))
    assert [snapshot.snapshot_id for snapshot in table.snapshots()] == [1, 2, 3]
    assert [len(table.scan(snapshot_id=version).to_arrow()) for version in (1, 2, 3)] == [10, 2, 2]
    assert table.scan().use_ref("small").to_arrow()["id"].to_pylist() == [8, 9]
    assert table.scan().to_arrow()["twice"].to_pylist() == [16, 18]
    assert table.metadata.current_schema_id == 1
    assert [field.field_id for field in table.schema().fields][:3] == [1, 2, 3]


def test_a_lance_table_that_was_written_over(catalog: RestCatalog, lancehouse_server: Served, level: str) -> None:
    """Lance counts the columns of an overwrite from 0 again: an old column is not taken for a new one."""
    location = str(lancehouse_server.location / level / "docs")
    lance.write_dataset(pa.table({"price": [10, 20], "kept": ["a", "b"]}), location)
    lance.dataset(location).alter_columns({"path": "price", "name": "cost"})
    lance.write_dataset(pa.table({"id": [1, 2, 3], "kept": ["c", "d", "e"]}), location, mode="overwrite")
    table = catalog.register_table((level, "docs"), location)
    assert table.scan().to_arrow().to_pydict() == {"id": [1, 2, 3], "kept": ["c", "d", "e"]}
    for version in (1, 2):
        assert table.scan(snapshot_id=version).to_arrow().to_pydict() == {"id": [None, None], "kept": ["a", "b"]}
    assert table.scan(snapshot_id=1, selected_fields=("id",)).to_arrow().to_pydict() == {"id": [None, None]}
    assert table.scan(snapshot_id=1, row_filter="id = 10").to_arrow().num_rows == 0


def test_a_lance_table_is_made_with_pyiceberg(catalog: RestCatalog, lancehouse_server: Served, level: str) -> None:
    schema = ROWS.select(["id", "word"]).schema
    table = catalog.create_table((level, "docs"), schema=schema, properties={"table_type": "LANCE"})
    assert table.scan().to_arrow().num_rows == 0
    assert Path(table.location()) == lancehouse_server.location / level / "docs"
    lance.write_dataset(ROWS, table.location())
    assert catalog.load_table((level, "docs")).scan().to_arrow().num_rows == 10
    with table.transaction() as transaction:
        transaction.set_properties(team="ml")
    assert catalog.load_table((level, "docs")).properties["team"] == "ml"
    catalog.drop_table((level, "docs"))
    registered = catalog.register_table((level, "again"), table.location())
    assert registered.scan().to_arrow().num_rows == 10


def test_a_protected_table_is_not_lost(catalog: RestCatalog, lancehouse_server: Served, level: str) -> None:
    """The catalog refuses the commit that overwrites it, and a drop before any file is deleted."""
    ours = connect("iceberg", {"endpoint": lancehouse_server.iceberg})
    table_id = [lancehouse_server.warehouse, level, "docs"]
    name: dict[str, Any] = {"namespace_client": ours, "table_id": table_id}
    ours.declare_table(DeclareTableRequest(id=table_id, properties={"managed_by": "impl", "protected": "true"}))
    lance.write_dataset(ROWS, **name, mode="overwrite")  # the first version overwrites nothing
    lance.write_dataset(ROWS, **name, mode="append")
    # pylance logs the refusal as it came, and says itself only that it did not find the version afterwards.
    with pytest.raises(OSError, match=r"Cannot overwrite table|Commit result for version 3 is unknown"):
        lance.write_dataset(ROWS, **name, mode="overwrite")
    with pytest.raises(PermissionDeniedError, match="Cannot drop table"):
        ours.drop_table(DropTableRequest(id=table_id))
    with pytest.raises(ForbiddenError, match="Cannot drop table"):
        catalog.drop_table((level, "docs"))
    assert lance.dataset(**name).count_rows() == 20


PEER = """
import sys
import lance, pyarrow as pa
from lance_namespace import CreateNamespaceRequest, DeclareTableRequest, DeregisterTableRequest
from lance_namespace import DescribeTableRequest, ListTablesRequest, connect
endpoint, root, warehouse, level = sys.argv[1:]
peer = connect("lance_namespace_impls.iceberg.IcebergNamespace", {"endpoint": endpoint, "root": root})
home = [warehouse, level]
peer.create_namespace(CreateNamespaceRequest(id=home))
location = peer.declare_table(DeclareTableRequest(id=[*home, "docs"])).location
lance.write_dataset(pa.table({"id": [1, 2, 3]}), location)
assert peer.list_tables(ListTablesRequest(id=home)).tables == ["docs"]
assert peer.describe_table(DescribeTableRequest(id=[*home, "docs"])).location == location
assert lance.dataset(location).count_rows() == 3
peer.deregister_table(DeregisterTableRequest(id=[*home, "docs"]))
assert not peer.list_tables(ListTablesRequest(id=home)).tables
print("done")
"""


def test_the_peer(lancehouse_server: Served) -> None:
    """lance-namespace-impls: what it does at all, it does here. It takes our aliases: it has a process of its own."""
    arguments = [
        lancehouse_server.iceberg,
        str(lancehouse_server.location),
        lancehouse_server.warehouse,
        f"peer_{uuid4().hex[:8]}",
    ]
    run = subprocess.run([sys.executable, "-c", PEER, *arguments], capture_output=True, text=True, timeout=120)
    assert run.stdout.split() == ["done"], run.stderr
