"""Blobs in a real S3, by references and with credentials that the catalog vends: what is read, in how many requests."""

from __future__ import annotations

from pathlib import Path

import lance
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from bench.store import join_background
from lancehouse.jobs import LocalEngine, TableJobs
from lancehouse.jobs.address import PinnedVersion, TableAddress
from lancehouse.jobs.blob_references import ReferencedBlobs
from lancehouse.lake.dataset import VersionSelector
from lancehouse.lake.scans import FragmentRange, Scan
from tests.live.object_store import House, Store
from tests.servers.moto import SECRET_KEY
from tests.servers.versitygw import find_program

pytestmark = [
    pytest.mark.engines,
    pytest.mark.skipif(find_program() is None, reason="versitygw was not built, which takes Go"),
    pytest.mark.timeout(300),
]

BLOBS = [bytes([number]) * (100_000 + number) for number in range(64)]


def count(store: Store) -> int:
    """Requests that read, so far."""
    join_background()
    return store.gateway.count_requests()["GET"]


def test_requests(house: House, store: Store, tmp_path: Path) -> None:
    schema = pa.schema([pa.field("id", pa.int64()), lance.blob_field("image")])
    rows = pa.table({"id": range(64), "image": lance.blob_array(BLOBS)}, schema)
    table = house.table([rows.slice(0, 32), rows.slice(32)])
    pinned = PinnedVersion.resolve(TableAddress.parse(house.connection, table), VersionSelector())
    opened, dataset = pinned.open()
    scan, parts = Scan(blobs="reference"), [FragmentRange(each.fragment_id) for each in dataset.get_fragments()]
    before = count(store)
    references = pa.Table.from_batches(scan.batches(opened, dataset, parts))
    assert count(store) - before <= 2  # a file of each fragment
    assert house.bucket.name not in str(references.to_pylist())
    assert SECRET_KEY not in str(references.to_pylist())

    blobs = ReferencedBlobs(house.connection)
    shuffled = references["image"].combine_chunks().take(pa.array([*range(1, 64, 2), *range(0, 64, 2)]))
    before = count(store)
    assert blobs.read(shuffled).to_pylist() == [*BLOBS[1::2], *BLOBS[::2]]
    assert count(store) - before <= 5  # the manifest; for each fragment descriptions, and 3 MB of blobs at once
    before = count(store)
    file = blobs.open(references["image"][5])
    assert file is not None
    assert file.read_range(10, 5) == bytes([5]) * 5
    assert count(store) - before <= 2

    pq.write_table(references, tmp_path / "rows.parquet")
    copy = [*table[:-1], f"{table[-1]}_copy"]
    TableJobs(house.connection, LocalEngine(2)).ingest(str(tmp_path / "rows.parquet"), copy)
    copied = house.open(copy).scanner(blob_handling="all_binary", scan_in_order=True).to_table()
    assert copied["image"].to_pylist() == BLOBS
