"""Iceberg tables, with deletes, as pyiceberg plans and reads them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from lance_namespace.errors import (
    InvalidInputError,
    NamespaceNotFoundError,
    ServiceUnavailableError,
    TableColumnNotFoundError,
    TableNotFoundError,
)
from pyiceberg.catalog.rest import RestCatalog
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.table import Table

from lancehouse.jobs.sources.ingest_source import open_source
from tests.catalog.scans.icebergs import position_deletes, sql_catalog, with_deletes
from tests.jobs.sources.reading import read, rows
from tests.servers.lancehouse import Served

ROWS = pa.table(
    {
        "id": pa.array(range(10), pa.int64()),
        "text": pa.array([None if number == 3 else f"t{number}" for number in range(10)]),
        "list": pa.array([[number, None] for number in range(10)], pa.list_(pa.int32())),
        "struct": pa.array([{"x": number / 2} for number in range(10)]),
        "when": pa.array(range(10), pa.timestamp("us", "UTC")),
    }
)


@pytest.fixture
def catalog(tmp_path: Path) -> SqlCatalog:
    return sql_catalog(tmp_path / "warehouse")


@pytest.fixture
def table(catalog: SqlCatalog) -> Table:
    """Two files of ten rows."""
    made = catalog.create_table("db.t", schema=ROWS.schema)
    made.append(ROWS)
    made.append(ROWS.set_column(0, "id", pa.array(range(10, 20), pa.int64())))
    return made


def ids(source: Any, **arguments: Any) -> list[int]:
    return sorted(row["id"] for row in rows(source, **arguments))


def test_a_table(table: Table) -> None:
    source = open_source(table)
    assert source.schema == ROWS.schema
    expected = pa.concat_tables([ROWS, ROWS.set_column(0, "id", pa.array(range(10, 20), pa.int64()))])
    assert read(source).sort_by("id").equals(expected)
    assert [list(row) for row in rows(table, columns=["text", "id"])] == [["text", "id"]] * 20


def test_every_way_to_name_it(catalog: SqlCatalog, table: Table, tmp_path: Path) -> None:
    properties = {"type": "sql", "uri": catalog.properties["uri"], "warehouse": f"file://{tmp_path}/warehouse"}
    everything = list(range(20))
    assert ids(table) == ids(table.scan()) == ids(table, format="iceberg") == everything
    assert ids("local.db.t", format="iceberg", options=properties) == everything
    assert ids("local.`db`.t", format="iceberg", options=properties) == everything


def test_rows_that_are_deleted(table: Table, tmp_path: Path) -> None:
    """By files of positions, and by files written anew."""
    first, second = sorted(str(task.file.file_path) for task in table.scan().plan_files())
    deletes = [position_deletes(tmp_path, first, [0, 9]), position_deletes(tmp_path, second, [5])]
    merged = Table(("db", "t"), with_deletes(table, deletes), "", table.io, table.catalog)
    gone = {row["id"] for row in rows(table)} - set(ids(merged))
    assert len(gone) == 3
    assert ids(merged) == merged.scan().to_arrow().sort_by("id")["id"].to_pylist()
    assert [unit.key for unit in open_source(merged).units] != [unit.key for unit in open_source(table).units]
    table.delete("id < 3")
    assert ids(table) == list(range(3, 20))


def test_a_scan(table: Table) -> None:
    """Its filter, columns and snapshot count."""
    scan = table.scan(row_filter="id >= 15", selected_fields=("text", "id"))
    assert rows(scan)[0].keys() == {"text", "id"}
    assert ids(scan) == [15, 16, 17, 18, 19]
    assert ids(scan, columns=["id"]) == [15, 16, 17, 18, 19]
    first = table.history()[0].snapshot_id
    assert ids(table.scan(snapshot_id=first)) == list(range(10))
    other = table.scan(row_filter="id >= 16", selected_fields=("text", "id"))
    scans = [table, scan, other, table.scan(snapshot_id=first)]
    assert len({tuple(unit.key for unit in open_source(each).units) for each in scans}) == 4


def test_a_table_that_changed_its_columns(table: Table) -> None:
    with table.update_schema() as update:
        update.rename_column("text", "words").add_column("new", update._schema.find_type("id")).delete_column("list")
    table.refresh()
    table.append(pa.table({"id": [20], "words": ["w"], "struct": [{"x": 1.0}], "when": ROWS["when"][:1], "new": [7]}))
    found = sorted(rows(table), key=lambda row: int(row["id"]))
    assert list(found[0]) == ["id", "words", "struct", "when", "new"]
    assert [(row["id"], row["words"], row["new"]) for row in found[-2:]] == [(19, "t9", None), (20, "w", 7)]


def test_files_become_units(catalog: SqlCatalog) -> None:
    """Small ones share a unit, batches come one by one."""
    many = catalog.create_table("db.many", schema=pa.schema([("id", pa.int64())]))
    for number in range(3):
        many.append(pa.table({"id": range(number * 300_000, (number + 1) * 300_000)}))
    source = open_source(many)
    assert len(source.units) == 1
    batches = list(source.units[0].batches(source.schema))
    assert len(batches) > 3
    assert pa.Table.from_batches(batches).sort_by("id")["id"].to_pylist() == list(range(900_000))
    assert [unit.key for unit in open_source(many).units] == [unit.key for unit in source.units]
    assert len(open_source(many, parallelism=3).units) == 3


def test_an_empty_table(catalog: SqlCatalog) -> None:
    source = open_source(catalog.create_table("db.empty", schema=ROWS.schema))
    assert (source.schema, source.units) == (ROWS.schema, [])


def test_a_table_of_our_server(lancehouse_server: Served) -> None:
    """Which plans the scan itself."""
    rest = RestCatalog("ours", uri=lancehouse_server.iceberg, warehouse=lancehouse_server.warehouse)
    rest.create_namespace("sources")
    made = rest.create_table("sources.t", schema=ROWS.schema)
    made.append(ROWS)
    made.delete("id = 4")
    options = {
        "type": "rest",
        "uri": lancehouse_server.iceberg,
        "warehouse": lancehouse_server.warehouse,
        "rest-scan-planning-enabled": "true",
    }
    expected = [number for number in range(10) if number != 4]
    assert ids("ours.sources.t", format="iceberg", options=options) == expected
    assert (
        ids("ours.sources.t", format="iceberg", options={**options, "rest-scan-planning-enabled": "false"}) == expected
    )


def test_what_cannot_be_read(table: Table, catalog: SqlCatalog) -> None:
    properties = {"type": "sql", "uri": catalog.properties["uri"], "secret-token": "s3cret"}
    with pytest.raises(TableColumnNotFoundError, match="has no column nope; it has id, text, list, struct, when"):
        open_source(table, columns=["nope"])
    with pytest.raises(InvalidInputError, match="a scan with a limit cannot be read in parts"):
        open_source(table.scan(limit=3))
    for name, kind in {
        "c.db.none": TableNotFoundError,
        "c.none.t": (TableNotFoundError, NamespaceNotFoundError),
        "c.t": InvalidInputError,
        "c..t": InvalidInputError,
    }.items():
        with pytest.raises(kind) as caught:  # type: ignore[call-overload]
            open_source(name, "iceberg", options=properties)
        assert "s3cret" not in str(caught.value)
    with pytest.raises(InvalidInputError, match=r"^'' is no Iceberg table"):
        open_source("", "iceberg")
    with pytest.raises(InvalidInputError, match="an Iceberg source is a table, a scan or"):
        open_source(["a"], "iceberg")
    with pytest.raises(InvalidInputError, match="iceberg has no option 'delimiter'"):
        open_source("c.db.t", "iceberg", options={**properties, "delimiter": ";"})
    with pytest.raises(InvalidInputError, match="'uri' is no option of a table of pyiceberg"):
        open_source(table, options={"uri": "x"})
    with pytest.raises(ServiceUnavailableError, match=r"^c\.db\.t: "):
        open_source("c.db.t", "iceberg", options={"type": "rest", "uri": "http://127.0.0.1:9"})
    with pytest.raises(ServiceUnavailableError, match=r"^c\.db\.t: .*unable to open database") as caught:
        open_source("c.db.t", "iceberg", options={"type": "sql", "uri": "sqlite:////nowhere/s3cret/x.db"})


def test_a_file_that_is_gone(table: Table) -> None:
    source = open_source(table)
    gone = next(iter(table.scan().plan_files())).file.file_path
    Path(gone.removeprefix("file://")).unlink()
    with pytest.raises(InvalidInputError, match=gone):
        read(source)
