from __future__ import annotations

import os
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path
from threading import Event
from typing import Any
from unittest.mock import patch

import lance
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from lance_namespace.errors import ServiceUnavailableError

from lancehouse.catalog.catalog import Catalog
from lancehouse.catalog.entries import now_ms
from lancehouse.catalog.scans import exports as module
from lancehouse.catalog.scans.exports import KEPT_MS, ExportFiles, ExportRequest, Exports
from lancehouse.catalog.warehouses import Warehouse
from lancehouse.lake.dataset import TableRef
from lancehouse.lake.parquet_export import VersionExporter
from lancehouse.store import exports as export_rows
from lancehouse.store.model import ExportRow

TABLE = "5e3f9a52-0000-4000-8000-000000000001"
ALL = frozenset({1, 2})


@pytest.fixture
def version(tmp_path: Path) -> VersionExporter:
    """Three fragments of two columns."""
    rows = pa.table({"a": range(30), "b": [str(i) for i in range(30)]})
    return VersionExporter.open(TableRef(lance.write_dataset(rows, tmp_path / "data", max_rows_per_file=10).uri))


@pytest.fixture
def exports(catalog: Catalog) -> Exports:
    return Exports(catalog.database, cache_bytes=1 << 30)


def export_requests(version: VersionExporter, columns: frozenset[int] = ALL) -> list[ExportRequest]:
    return [ExportRequest(fragment, columns, range(fragment.rows)) for fragment in version.fragments]


def rows_of(catalog: Catalog) -> list[ExportRow]:
    return catalog.database.read(lambda tx: export_rows.list_exports(tx, TABLE))


def local(row: ExportRow) -> Path:
    return Path(row.path.removeprefix("file://"))


def age(catalog: Catalog, rows: list[ExportRow], by_ms: int) -> None:
    """Make it look as if plans had named copies long ago."""
    for row in rows:
        catalog.database.write(lambda tx, row=row: export_rows.touch_exports(tx, [row.id], now_ms() - by_ms))  # type: ignore[misc]


def test_what_was_made_is_found(catalog: Catalog, main: Warehouse, exports: Exports, version: VersionExporter) -> None:
    assert exports.find(main, TABLE, export_requests(version)) == export_requests(version)
    made = exports.create(main, TABLE, version, export_requests(version))
    assert [row.rows for row in made] == [10, 10, 10]
    assert [row.bytes for row in made] == [local(row).stat().st_size for row in made]
    assert all(str(local(row)).startswith(f"{main.location}/.lancehouse/{TABLE}/") for row in made)
    assert pq.read_table(local(made[1]))["a"].to_pylist() == [*range(10, 20)]
    assert exports.find(main, TABLE, export_requests(version)) == made
    assert exports.find(main, TABLE, export_requests(version, frozenset({2}))) == made
    more = export_requests(version, frozenset({2, 3}))
    assert exports.find(main, TABLE, more) == more
    assert exports.find(main, "another table", export_requests(version)) == export_requests(version)


def test_copies_of_some_rows_are_put_together(main: Warehouse, exports: Exports, version: VersionExporter) -> None:
    whole = export_requests(version)[0]
    (middle,) = exports.create(main, TABLE, version, [whole.with_rows(range(3, 6))])
    assert pq.read_table(local(middle))["a"].to_pylist() == [3, 4, 5]
    expected = [whole.with_rows(range(3)), middle, whole.with_rows(range(6, 10))]
    assert exports.find(main, TABLE, [whole]) == expected
    assert exports.find(main, TABLE, [whole.with_rows(range(4, 6))]) == [whole.with_rows(range(4, 6))]
    few = ExportRequest(whole.fragment, frozenset({1}), whole.rows)
    (start,) = exports.create(main, TABLE, version, [few.with_rows(range(3))])
    assert exports.find(main, TABLE, [whole]) == expected
    assert exports.find(main, TABLE, [few]) == [start, middle, few.with_rows(range(6, 10))]
    (all_rows,) = exports.create(main, TABLE, version, [whole])
    assert exports.find(main, TABLE, [whole]) == [all_rows]


def test_a_copy_of_an_earlier_program_has_the_whole_fragment(
    catalog: Catalog, main: Warehouse, exports: Exports, version: VersionExporter
) -> None:
    (made,) = exports.create(main, TABLE, version, export_requests(version)[:1])
    values = {**asdict(made), "version": version.fragments[0].digest, "bytes": made.bytes - 1}
    values.pop("id")
    early = catalog.database.write(lambda tx: export_rows.insert_export(tx, ExportRow(0, **values)))
    assert exports.find(main, TABLE, export_requests(version)[:1]) == [early]


def test_threads_that_want_the_same_share_one_copy(
    catalog: Catalog, main: Warehouse, exports: Exports, version: VersionExporter, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = VersionExporter.write

    def write(self: VersionExporter, *args: Any) -> int:
        time.sleep(0.3)
        return slow(self, *args)

    monkeypatch.setattr(VersionExporter, "write", write)
    with ThreadPoolExecutor(4) as pool:
        made = list(pool.map(lambda _: exports.create(main, TABLE, version, export_requests(version)[:1]), range(2)))
    assert made[0] == made[1]
    assert len(rows_of(catalog)) == 1


def test_the_cache_keeps_to_its_limit_but_keeps_what_was_planned_within_the_hour(
    catalog: Catalog, main: Warehouse, exports: Exports, version: VersionExporter
) -> None:
    made = exports.create(main, TABLE, version, export_requests(version))
    small = Exports(catalog.database, cache_bytes=made[0].bytes + 1)
    small.trim(main)
    assert len(rows_of(catalog)) == 3
    age(catalog, made[:1], KEPT_MS + 5000)
    age(catalog, made[1:2], KEPT_MS + 9000)
    small.trim(main)
    assert [row.id for row in rows_of(catalog)] == [made[2].id]
    assert [local(row).exists() for row in made] == [False, False, True]


def test_the_one_unused_for_longest_goes_first(
    catalog: Catalog, main: Warehouse, exports: Exports, version: VersionExporter
) -> None:
    made = exports.create(main, TABLE, version, export_requests(version))
    for place, row in enumerate(made):
        age(catalog, [row], KEPT_MS + 1000 * (place + 1))
    Exports(catalog.database, cache_bytes=sum(row.bytes for row in made) - 1).trim(main)
    assert {row.id for row in rows_of(catalog)} == {made[0].id, made[1].id}


def test_a_copy_that_a_plan_names_anew_is_kept(
    catalog: Catalog, main: Warehouse, exports: Exports, version: VersionExporter
) -> None:
    made = exports.create(main, TABLE, version, export_requests(version))
    age(catalog, made, KEPT_MS + 5000)
    exports.find(main, TABLE, export_requests(version)[:1])
    Exports(catalog.database, cache_bytes=0).trim(main)
    assert [row.id for row in rows_of(catalog)] == [made[0].id]


def test_copies_that_somebody_removed_are_made_again(
    catalog: Catalog, main: Warehouse, exports: Exports, version: VersionExporter
) -> None:
    made = exports.create(main, TABLE, version, export_requests(version))
    local(made[1]).unlink()
    assert exports.find(main, TABLE, export_requests(version)) == [made[0], export_requests(version)[1], made[2]]
    assert len(rows_of(catalog)) == 2


def test_files_that_nobody_knows_are_swept(
    catalog: Catalog, main: Warehouse, exports: Exports, version: VersionExporter
) -> None:
    (made,) = exports.create(main, TABLE, version, export_requests(version)[:1])
    folder = local(made).parent
    old, young, unfinished = folder / "9-old.parquet", folder / "9-young.parquet", folder / ".9-x.parquet.tmp"
    for file in (old, young, unfinished):
        file.write_bytes(b"x")
    long_ago = time.time() - 2 * KEPT_MS / 1000
    for file in (old, unfinished, local(made)):
        os.utime(file, (long_ago, long_ago))
    exports.sweep(main)
    assert sorted(folder.iterdir()) == sorted([young, local(made)])


def test_nothing_is_at_work_after_an_error(main: Warehouse, exports: Exports, version: VersionExporter) -> None:
    """Whoever asks again would join it, and get an error from before."""
    begun, ended = Event(), list[int]()

    def create(_warehouse: Any, _uuid: str, _version: Any, request: ExportRequest) -> Any:
        if request.fragment.id == 0:
            begun.wait()
            raise ServiceUnavailableError("no answer")
        begun.set()
        time.sleep(0.2)
        ended.append(request.fragment.id)

    with patch.object(exports, "_create", create), pytest.raises(ServiceUnavailableError, match="no answer"):
        exports.create(main, TABLE, version, export_requests(version)[:2])
    assert ended == [1]


def test_a_copy_that_fails_leaves_nothing(
    catalog: Catalog, main: Warehouse, exports: Exports, version: VersionExporter
) -> None:
    def fails(_: Any) -> int:
        raise OSError(28, "No space left on device")

    with pytest.raises(ServiceUnavailableError, match="cannot be written: No space left on device"):
        ExportFiles(main).write(TABLE, "0", fails)
    assert [file for file in Path(main.location).rglob("*") if file.is_file()] == []


def test_the_cache_may_be_elsewhere(
    tmp_path: Path, main: Warehouse, exports: Exports, version: VersionExporter
) -> None:
    place = tmp_path / "elsewhere with a space" / "a#b"
    moved = Warehouse(main.id, main.name, main.location, cache=str(place))
    (made,) = exports.create(moved, TABLE, version, export_requests(version)[:1])
    assert made.path.startswith(str(place))
    assert pq.read_table(made.path).num_rows == 10


def test_tidying_follows_each_copy(
    catalog: Catalog, main: Warehouse, version: VersionExporter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "KEPT_MS", -1)
    exports = Exports(catalog.database, cache_bytes=0)
    exports.create(main, TABLE, version, export_requests(version))
    exports.close()
    exports.trim(main)
    assert rows_of(catalog) == []
