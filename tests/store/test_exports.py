from __future__ import annotations

from lancehouse.store import exports as export_rows
from lancehouse.store.database import Database
from lancehouse.store.model import ExportRow
from tests.store.rows import NOW


def export(database: Database, **values: object) -> ExportRow:
    given = {
        "warehouse": "main",
        "table_uuid": "u",
        "version": "1",
        "fragment": 0,
        "columns": "1,2",
        "path": "/cache/x.parquet",
        "bytes": 10,
        "rows": 3,
        "planned_ms": NOW,
        **values,
    }
    return database.write(lambda tx: export_rows.insert_export(tx, ExportRow(0, **given)))  # type: ignore[arg-type]


def test_find(database: Database) -> None:
    first, second = export(database), export(database, fragment=1, columns=",".join(map(str, range(5000))))
    third = export(database, version="dev:1")
    export(database, table_uuid="another")
    assert first.id != second.id
    assert database.read(lambda tx: export_rows.list_exports(tx, "u")) == [first, second, third]
    assert database.read(lambda tx: export_rows.list_exports(tx, "missing")) == []


def test_size(database: Database) -> None:
    assert database.read(lambda tx: export_rows.count_export_bytes(tx, "main")) == 0
    export(database, bytes=2**40)
    export(database, bytes=5)
    export(database, bytes=7, warehouse="other")
    assert database.read(lambda tx: export_rows.count_export_bytes(tx, "main")) == 2**40 + 5


def test_touched_ones_are_kept(database: Database) -> None:
    rows = [export(database, planned_ms=NOW + number % 7, fragment=number) for number in range(150)]
    oldest = database.read(lambda tx: export_rows.list_oldest_exports(tx, "main", NOW + 1, 5))
    assert oldest == [row for row in rows if row.planned_ms == NOW][:5]
    named = {row.id for row in rows if row.fragment % 2}
    assert database.write(lambda tx: export_rows.touch_exports(tx, named | {-1}, NOW + 100)) == named
    assert database.write(lambda tx: export_rows.touch_exports(tx, [], NOW + 100)) == set()
    deleted = {
        row.id
        for row in rows
        if database.write(lambda tx, row=row: export_rows.delete_export(tx, row.id, NOW + 50))  # type: ignore[misc]
    }
    assert deleted == {row.id for row in rows} - named
    assert database.write(lambda tx: export_rows.touch_exports(tx, named | deleted, NOW + 200)) == named
    assert database.read(lambda tx: export_rows.list_oldest_exports(tx, "main", NOW + 200, 5)) == []
