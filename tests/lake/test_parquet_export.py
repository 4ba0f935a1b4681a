from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Sequence
from io import BytesIO
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import lance
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from lance.blob import blob_array, blob_field
from lance_namespace.errors import InvalidInputError

from lancehouse.lake import chunked_scan, parquet_export
from lancehouse.lake.confinement import Confinement
from lancehouse.lake.dataset import TableRef
from lancehouse.lake.parquet_export import VersionExporter
from tests.lake.icebergs import iceberg_values, sample, scan
from tests.schema.storable import LEGACY_BLOB, STORABLE, label


class Nowhere:
    """A confinement that opens nothing but the table itself."""

    reads_rows = True

    def require_table(self, location: str, announced: Sequence[str] = ()) -> None:
        raise AssertionError(location)

    def require_choice(self, location: str, announced: Sequence[str] = ()) -> None:
        raise AssertionError(location)

    def require_base(self, base: str) -> None:
        raise AssertionError(base)

    def require_blob(self, uri: str) -> None:
        raise AssertionError(uri)


def export(
    folder: Path, dataset: Any, ids: set[int] | None = None, confinement: Confinement | None = None
) -> tuple[VersionExporter, list[str]]:
    version = VersionExporter.open(TableRef(dataset.uri, version=dataset.version, confinement=confinement))
    paths = []
    for fragment in version.fragments:
        path = folder / f"{fragment.id}.parquet"
        with path.open("wb") as sink:
            version.write(fragment, set(version.columns) if ids is None else ids, range(fragment.rows), sink)
        paths.append(path.as_uri())
    return version, paths


BROKEN = [
    field
    for field in STORABLE
    if "`" in field.name
    or field.type in (pa.list_(pa.string(), 4), pa.struct([]))
    or (isinstance(field.type, pa.FixedSizeListType) and isinstance(field.type.value_type, pa.StructType))
]
"""What Lance takes as a schema, and does not write or read back itself."""


FIELDS = [*(field for field in STORABLE if field not in BROKEN), LEGACY_BLOB]

MISREAD = [field for field in FIELDS if "deep" in str(field.type)]
"""Null lists in a struct: pyiceberg shows them as empty ones."""


def write_table(folder: Path, field: pa.Field[Any]) -> lance.LanceDataset:
    """Three fragments of a field beside a number; two rows are deleted."""
    columns: list[Any] = [pa.array(range(50)), sample(field, 50, seed=1)]
    rows = pa.Table.from_arrays(columns, schema=pa.schema([pa.field("id", pa.int64()), field]))
    storage = "2.1" if field == LEGACY_BLOB else "2.2"
    dataset = lance.write_dataset(rows, folder / "t", max_rows_per_file=20, data_storage_version=storage)
    dataset.delete("id in (3, 25)")
    return dataset


@pytest.mark.parametrize("field", FIELDS, ids=label)
def test_rows_are_those_of_lance_after_the_mapping(tmp_path: Path, field: pa.Field[Any]) -> None:
    dataset = write_table(tmp_path, field)
    own = dataset.scanner(blob_handling="all_binary").to_table()
    version, paths = export(tmp_path, dataset)
    files = pa.concat_tables(pq.read_table(unquote(path.removeprefix("file://"))) for path in paths)
    assert len(paths) == 3
    assert files["id"].to_pylist() == own["id"].to_pylist()
    assert repr(files[field.name].to_pylist()) == repr(iceberg_values(own[field.name]))
    if field not in MISREAD:
        read = scan(version.schema, paths)
        assert read["id"].to_pylist() == own["id"].to_pylist()
        assert repr(read[field.name].to_pylist()) == repr(iceberg_values(own[field.name]))


def test_columns_are_found_by_id_whatever_their_name_was(tmp_path: Path) -> None:
    dataset = lance.write_dataset(pa.table({"id": [1, 2], "a": ["x", "y"], "b": [0, 0]}), tmp_path / "t")
    before = VersionExporter.open(TableRef(dataset.uri, version=1))
    dataset.alter_columns({"path": "a", "name": "c"})
    dataset.drop_columns(["b"])
    now = VersionExporter.open(TableRef(dataset.uri))
    assert [column["id"] for column in now.schema["fields"]] == [1, 2]
    path = tmp_path / "old.parquet"
    with path.open("wb") as sink:
        before.write(before.fragments[0], {2, 3}, range(2), sink)
    assert scan(now.schema, [path.as_uri()], select=("c",)).to_pydict() == {"c": ["x", "y"]}


def test_a_fragment_has_another_digest_when_its_rows_are_others(tmp_path: Path) -> None:
    dataset = lance.write_dataset(pa.table({"id": [1, 2]}), tmp_path / "t")
    (first,) = VersionExporter.open(TableRef(dataset.uri)).fragments
    lance.write_dataset(pa.table({"id": [3]}), tmp_path / "t", mode="append")
    same, added = VersionExporter.open(TableRef(dataset.uri)).fragments
    dataset = lance.dataset(tmp_path / "t")
    dataset.delete("id = 1")
    fewer, _ = VersionExporter.open(TableRef(dataset.uri)).fragments
    assert same == first
    assert len({first.digest, added.digest, fewer.digest}) == 3


@pytest.mark.parametrize(
    ("condition", "expected"), [("id > 15", [False, True]), ("id = 1", [False, False]), ("id < 100", [True, True])]
)
def test_whether_a_fragment_holds_a_row(tmp_path: Path, condition: str, expected: list[bool]) -> None:
    dataset = lance.write_dataset(pa.table({"id": range(20)}), tmp_path / "t", max_rows_per_file=10)
    dataset.delete("id = 1")
    version = VersionExporter.open(TableRef(dataset.uri))
    assert [version.has_matching_row(fragment.id, condition) for fragment in version.fragments] == expected


@pytest.mark.parametrize(
    ("dtype", "value"), [(pa.timestamp("s"), 2**60), (pa.timestamp("ms", "UTC"), -(2**62)), (pa.date64(), 2**62)]
)
def test_values_that_iceberg_cannot_hold_are_named(tmp_path: Path, dtype: pa.DataType, value: int) -> None:
    rows = pa.table({"id": [1], "far": pa.array([value]).view(dtype)})
    dataset = lance.write_dataset(rows, tmp_path / "t", data_storage_version="2.2")
    with pytest.raises(InvalidInputError, match=r"column far: a value is out of the range"):
        export(tmp_path, dataset)
    assert export(tmp_path, dataset, {1})[1]


@pytest.mark.parametrize("storage", ["legacy", "2.0", "2.1", "2.2"])
@pytest.mark.parametrize("window", [1, 1000, 1 << 30])
def test_rows_in_windows_are_those_of_one_scan(
    tmp_path: Path, storage: str, window: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chunked_scan, "WINDOW_BYTES", window)
    rows = pa.table({"id": range(60), "s": ["x" * (i % 7 * 20) for i in range(60)]})
    dataset = lance.write_dataset(rows, tmp_path / "t", data_storage_version=storage)
    dataset.delete("id % 5 = 0 or (id > 20 and id < 40)")
    version, _ = export(tmp_path, dataset)
    (fragment,) = version.fragments
    own = dataset.to_table()["id"].to_pylist()
    assert fragment.rows == len(own)
    for part in (range(fragment.rows), range(3, 17), range(fragment.rows - 1, fragment.rows)):
        assert part_of(version, part)["id"].to_pylist() == own[part.start : part.stop]


def part_of(version: VersionExporter, rows: range) -> pa.Table:
    sink = BytesIO()
    assert version.write(version.fragments[0], {1, 2}, rows, sink) == len(rows)
    return pq.read_table(BytesIO(sink.getvalue()))


@pytest.mark.parametrize("confinement", [None, Nowhere()], ids=["free", "confined"])
@pytest.mark.parametrize("shape", ["plain", "nested", "legacy"])
def test_blobs_are_read_a_few_at_a_time(
    tmp_path: Path, shape: str, confinement: Confinement | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chunked_scan, "WINDOW_BYTES", 250)
    scans: list[range] = []
    scan = chunked_scan.scan_rows

    def note_scan(fragment: Any, names: list[str], rows: range, *more: Any) -> Iterator[pa.RecordBatch]:
        scans.append(rows)
        return scan(fragment, names, rows, *more)

    monkeypatch.setattr(chunked_scan, "scan_rows", note_scan)
    values = [bytes([i]) * size for i, size in enumerate([100, 100, 100, 900, 0, 100])]
    blobs: Any = pa.array(values, pa.large_binary()) if shape == "legacy" else blob_array(values)
    field: Any = LEGACY_BLOB if shape == "legacy" else blob_field("b")
    if shape == "nested":
        blobs, field = pa.StructArray.from_arrays([blobs], fields=[field]), pa.field("n", pa.struct([field]))
    table = pa.Table.from_arrays([pa.array(range(6)), blobs], schema=pa.schema([pa.field("id", pa.int64()), field]))
    dataset = lance.write_dataset(
        table, tmp_path / "t", data_storage_version="2.1" if shape == "legacy" else "2.2", max_rows_per_file=6
    )
    monkeypatch.setattr(VersionExporter, "row_bytes", lambda *_: 1)
    dataset.delete("id = 1")
    _, (path,) = export(tmp_path, dataset, confinement=confinement)
    read = pq.read_table(unquote(path.removeprefix("file://")))[field.name].to_pylist()
    assert [row["b"] if shape == "nested" else row for row in read] == values[:1] + values[2:]
    assert scans == [range(2), range(2, 3), range(3, 5)]


def test_a_file_ends_early_where_there_is_much_in_its_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parquet_export, "ROW_GROUP_BYTES", 1000)
    monkeypatch.setattr(parquet_export, "FILE_BYTES", 5000)
    monkeypatch.setattr(chunked_scan, "BATCH_ROWS", 10)
    dataset = lance.write_dataset(pa.table({"id": range(2000)}), tmp_path / "t")
    version = VersionExporter.open(TableRef(dataset.uri))
    sink = BytesIO()
    written = version.write(version.fragments[0], {1}, range(100, 2000), sink)
    assert 5000 / 8 <= written < 1900
    assert pq.read_table(BytesIO(sink.getvalue()))["id"].to_pylist() == [*range(100, 100 + written)]


MEASURE = """
import re, sys
from pathlib import Path
from lancehouse.lake.confinement import Confinement
from lancehouse.lake.dataset import TableRef
from lancehouse.lake.parquet_export import VersionExporter

def used(which):
    return int(re.search(which + r":\\s+(\\d+)", Path("/proc/self/status").read_text())[1]) / 1024

def copy(location):
    version = VersionExporter.open(TableRef(location))
    (fragment,) = version.fragments
    with open("/dev/null", "wb") as sink:
        assert version.write(fragment, set(version.columns), range(fragment.rows), sink)

small, *large = sys.argv[1:]
copy(small)
for location in large:
    Path("/proc/self/clear_refs").write_text("5")  # the peak starts anew
    before = used("VmRSS")
    copy(location)
    print(used("VmHWM") - before)
"""


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="the system does not tell peaks of memory")
def test_memory_is_bounded_whatever_a_fragment_holds(tmp_path: Path) -> None:
    noise = np.random.default_rng(1)
    vectors = pa.FixedSizeListArray.from_arrays(pa.array(noise.random(96 << 18, "f4")), 1 << 10)
    values = [noise.bytes(2 << 20) for _ in range(48)]
    columns: list[Any] = [[1], vectors, blob_array(values), pa.array(values, pa.large_binary())]
    places = [str(tmp_path / str(number)) for number in range(4)]
    for place, column in zip(places, columns, strict=True):
        lance.write_dataset(pa.table({"x": column}), place, data_storage_version="2.2")
    ran = subprocess.run([sys.executable, "-c", MEASURE, *places], capture_output=True, text=True, check=True)
    peaks = [float(line) for line in ran.stdout.split()]
    assert len(peaks) == 3
    assert max(peaks) < 100, peaks
