from __future__ import annotations

from pathlib import Path
from typing import Any
from urllib.parse import unquote

import lance
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from lance_namespace.errors import InvalidInputError

from lancehouse.lake.dataset import TableRef
from lancehouse.lake.parquet import Version
from tests.lake.icebergs import sample, scan, seen
from tests.schema.storable import LEGACY_BLOB, STORABLE, label


def export(folder: Path, dataset: Any, ids: set[int] | None = None) -> tuple[Version, list[str]]:
    version = Version.open(TableRef(dataset.uri, version=dataset.version))
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


def written(folder: Path, field: pa.Field[Any]) -> lance.LanceDataset:
    """Three fragments of a field beside a number; two rows are deleted."""
    columns: list[Any] = [pa.array(range(50)), sample(field, 50, seed=1)]
    rows = pa.Table.from_arrays(columns, schema=pa.schema([pa.field("id", pa.int64()), field]))
    storage = "2.1" if field == LEGACY_BLOB else "2.2"
    dataset = lance.write_dataset(rows, folder / "t", max_rows_per_file=20, data_storage_version=storage)
    dataset.delete("id in (3, 25)")
    return dataset


@pytest.mark.parametrize("field", FIELDS, ids=label)
def test_rows_are_those_of_lance_after_the_mapping(tmp_path: Path, field: pa.Field[Any]) -> None:
    dataset = written(tmp_path, field)
    own = dataset.scanner(blob_handling="all_binary").to_table()
    version, paths = export(tmp_path, dataset)
    files = pa.concat_tables(pq.read_table(unquote(path.removeprefix("file://"))) for path in paths)
    assert len(paths) == 3
    assert files["id"].to_pylist() == own["id"].to_pylist()
    assert repr(files[field.name].to_pylist()) == repr(seen(own[field.name]))
    if field not in MISREAD:
        read = scan(version.schema, paths)
        assert read["id"].to_pylist() == own["id"].to_pylist()
        assert repr(read[field.name].to_pylist()) == repr(seen(own[field.name]))


def test_columns_are_found_by_id_whatever_their_name_was(tmp_path: Path) -> None:
    dataset = lance.write_dataset(pa.table({"id": [1, 2], "a": ["x", "y"], "b": [0, 0]}), tmp_path / "t")
    before = Version.open(TableRef(dataset.uri, version=1))
    dataset.alter_columns({"path": "a", "name": "c"})
    dataset.drop_columns(["b"])
    now = Version.open(TableRef(dataset.uri))
    assert [column["id"] for column in now.schema["fields"]] == [1, 2]
    path = tmp_path / "old.parquet"
    with path.open("wb") as sink:
        before.write(before.fragments[0], {2, 3}, range(2), sink)
    assert scan(now.schema, [path.as_uri()], select=("c",)).to_pydict() == {"c": ["x", "y"]}


def test_a_fragment_has_another_digest_when_its_rows_are_others(tmp_path: Path) -> None:
    dataset = lance.write_dataset(pa.table({"id": [1, 2]}), tmp_path / "t")
    (first,) = Version.open(TableRef(dataset.uri)).fragments
    lance.write_dataset(pa.table({"id": [3]}), tmp_path / "t", mode="append")
    same, added = Version.open(TableRef(dataset.uri)).fragments
    dataset = lance.dataset(tmp_path / "t")
    dataset.delete("id = 1")
    fewer, _ = Version.open(TableRef(dataset.uri)).fragments
    assert same == first
    assert len({first.digest, added.digest, fewer.digest}) == 3


@pytest.mark.parametrize(
    ("condition", "expected"), [("id > 15", [False, True]), ("id = 1", [False, False]), ("id < 100", [True, True])]
)
def test_whether_a_fragment_holds_a_row(tmp_path: Path, condition: str, expected: list[bool]) -> None:
    dataset = lance.write_dataset(pa.table({"id": range(20)}), tmp_path / "t", max_rows_per_file=10)
    dataset.delete("id = 1")
    version = Version.open(TableRef(dataset.uri))
    assert [version.holds(fragment.id, condition) for fragment in version.fragments] == expected


@pytest.mark.parametrize(
    ("dtype", "value"), [(pa.timestamp("s"), 2**60), (pa.timestamp("ms", "UTC"), -(2**62)), (pa.date64(), 2**62)]
)
def test_values_that_iceberg_cannot_hold_are_named(tmp_path: Path, dtype: pa.DataType, value: int) -> None:
    rows = pa.table({"id": [1], "far": pa.array([value]).view(dtype)})
    dataset = lance.write_dataset(rows, tmp_path / "t", data_storage_version="2.2")
    with pytest.raises(InvalidInputError, match=r"column far: a value is out of the range"):
        export(tmp_path, dataset)
    assert export(tmp_path, dataset, {1})[1]


def test_memory_is_bounded_by_the_row_group(tmp_path: Path) -> None:
    vectors = pa.FixedSizeListArray.from_arrays(pa.array(np.zeros(768 * 40_000, np.float32)), 768)
    dataset = lance.write_dataset(pa.table({"v": vectors}), tmp_path / "t")
    _, (path,) = export(tmp_path, dataset)
    groups = pq.ParquetFile(unquote(path.removeprefix("file://"))).metadata
    assert groups.num_rows == 40_000
    assert groups.num_row_groups > 2
    assert all(groups.row_group(group).num_rows * 768 * 4 < 64 << 20 for group in range(groups.num_row_groups))
