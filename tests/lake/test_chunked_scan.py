"""A scan in pieces finds what one scan finds, in the same order, and holds little of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import lance
import numpy as np
import pyarrow as pa
import pytest

from lancehouse.lake import chunked_scan
from lancehouse.lake.chunked_scan import PlainScan, read_batches


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pieces of a kilobyte or so."""
    monkeypatch.setattr(chunked_scan, "PIECE_BYTES", 1 << 10)
    monkeypatch.setattr(chunked_scan, "STORED_BYTES", 4 << 10)
    monkeypatch.setattr(chunked_scan, "FIRST_ROWS", 8)


def rows(first: int, count: int) -> pa.Table:
    ids = np.arange(first, first + count)
    return pa.table({"id": ids, "word": [f"word {number % 7}" for number in ids]})


def write(path: Path, *, kind: str) -> lance.LanceDataset:
    """Fragments of all sizes, one of them without rows."""
    options: dict[str, dict[str, Any]] = {
        "stable": {"enable_stable_row_ids": True},
        "old": {"data_storage_version": "legacy"},
    }
    first = 0
    for count in (300, 2, 1, 3, 50, 1, 1000):
        lance.write_dataset(rows(first, count), path, mode="append" if first else "create", **options.get(kind, {}))
        first += count
    dataset = lance.dataset(path)
    if kind != "plain":
        dataset.delete("id % 10 = 3 OR (id >= 300 AND id < 303) OR (id > 400 AND id < 700)")
    if kind == "stable":
        dataset.optimize.compact_files(target_rows_per_fragment=500)
    if kind == "indexed":
        dataset.create_scalar_index("word", "BITMAP")
        lance.write_dataset(rows(first, 20), path, mode="append")
    return lance.dataset(path)


@pytest.fixture(scope="module", params=["plain", "deleted", "indexed", "stable", "old"])
def dataset(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> lance.LanceDataset:
    return write(tmp_path_factory.mktemp(request.param) / "t.lance", kind=request.param)


SCANS = {
    "all": PlainScan(),
    "limit": PlainScan(limit=400),
    "limit of one": PlainScan(limit=1),
    "offset": PlainScan(offset=299),
    "offset and limit": PlainScan(limit=20, offset=295),
    "offset beyond the end": PlainScan(offset=5000),
    "filter": PlainScan("word = 'word 3'"),
    "filter, limit and offset": PlainScan("word = 'word 3'", 25, 7),
    "filter, offset beyond the end": PlainScan("word = 'word 3'", offset=5000),
    "filter of nothing": PlainScan("word = 'missing'"),
    "filter of most": PlainScan("id > 5"),
    "filter of two columns": PlainScan("id > 305 AND word = 'word 1'"),
}
COLUMNS: dict[str, dict[str, Any]] = {
    "all": {"columns": None},
    "one": {"columns": ["word"]},
    "expression": {"columns": {"next": "id + 1", "word": "word"}},
    "row ids": {"columns": ["id"], "with_row_id": True},
}


@pytest.mark.parametrize("arguments", COLUMNS.values(), ids=COLUMNS)
@pytest.mark.parametrize("scan", SCANS.values(), ids=SCANS)
def test_pieces_are_the_whole(dataset: lance.LanceDataset, scan: PlainScan, arguments: dict[str, Any]) -> None:
    whole = dataset.scanner(filter=scan.filter, limit=scan.limit, offset=scan.offset or None, **arguments)
    found = list(read_batches(dataset, scan, arguments))
    assert pa.Table.from_batches(found, whole.projected_schema).to_pylist() == whole.to_table().to_pylist()


def test_an_empty_table(tmp_path: Path) -> None:
    dataset = lance.write_dataset(rows(0, 3).slice(0, 0), tmp_path / "t.lance")
    assert list(read_batches(dataset, PlainScan(), {"columns": None})) == []
    assert list(read_batches(dataset, PlainScan("id > 1"), {"columns": None})) == []


def test_pieces_are_as_large_as_rows_allow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Few rows at first; then as many as fit, by what was seen."""
    monkeypatch.setattr(chunked_scan, "STORED_BYTES", 1 << 30)
    texts = pa.table({"id": range(2000), "text": ["x" * 100] * 2000})
    dataset = lance.write_dataset(texts, tmp_path / "t.lance")
    seen = []
    scanner = dataset.scanner

    def note_limit(**arguments: Any) -> lance.LanceScanner:
        seen.append(arguments["limit"])
        return scanner(**arguments)

    monkeypatch.setattr(dataset, "scanner", note_limit)
    found = list(read_batches(dataset, PlainScan(), {"columns": None}))
    assert sum(batch.num_rows for batch in found) == sum(seen) == 2000
    assert max(seen[1:]) == min(seen[1:-1]) == 1024 // 112  # of an id, an offset and a text
    assert max(batch.nbytes for batch in found) < 2048
