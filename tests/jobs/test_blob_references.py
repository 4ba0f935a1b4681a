"""References to blobs without Spark: a scan makes them, `ReferencedBlobs` reads them, `ingest` stores the bytes."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from shutil import rmtree
from typing import Any

import lance
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from lance.blob import Blob, blob_array, blob_field
from lance_namespace.errors import (
    ConcurrentModificationError,
    InvalidInputError,
    LanceNamespaceError,
    PermissionDeniedError,
    TableNotFoundError,
    TableVersionNotFoundError,
)

from lancehouse.connection import Connection
from lancehouse.jobs import LocalEngine, TableJobs, blob_references
from lancehouse.jobs.address import PinnedVersion, TableAddress
from lancehouse.jobs.blob_references import ReferencedBlobs
from lancehouse.lake.dataset import TableRef, VersionSelector
from lancehouse.lake.scans import FragmentRange, Scan
from lancehouse.schema.blob_references import REFERENCE, is_reference, with_blobs, with_bytes
from lancehouse.schema.spark_rows import from_spark_rows, to_spark_rows

BLOBS = [b"first", None, b"", b"x" * 100_000, b"y" * 300_000, b"deleted", b"last"]
"""Kept in the data file, packed with others; null, empty, and of a row that is deleted."""
LEFT = {number: blob for number, blob in enumerate(BLOBS) if number != 5}
OLD: pa.Field[Any] = pa.field("image", pa.large_binary(), metadata={"lance-encoding:blob": "true"})


def write(path: Path, storage: str = "2.2", blobs: list[bytes | None] = BLOBS) -> lance.LanceDataset:
    """Blobs alone and in a struct, in several fragments, of which a row is deleted."""
    inside = pa.struct([pa.field("n", pa.int64()), OLD])
    schema = pa.schema([pa.field("id", pa.int64()), OLD, pa.field("more", inside)])
    rows = [{"id": at, "image": blob, "more": {"n": at, "image": blob}} for at, blob in enumerate(blobs)]
    dataset = lance.write_dataset(
        pa.Table.from_pylist(rows, schema), path, max_rows_per_file=3, data_storage_version=storage
    )
    dataset.delete("id = 5")
    return lance.dataset(path)


@pytest.fixture
def connection(tmp_path: Path) -> Connection:
    return Connection("dir", {"root": str(tmp_path)})


def refer(connection: Connection, table: str = "t", **scan: Any) -> pa.Table:
    opened, dataset = PinnedVersion.resolve(TableAddress.parse(connection, table), VersionSelector()).open()
    wanted = Scan(**scan, blobs="reference")
    parts = [FragmentRange(each.fragment_id) for each in dataset.get_fragments()]
    return pa.Table.from_batches(wanted.batches(opened, dataset, parts), wanted.schema(opened, dataset))


def good_reference(connection: Connection) -> dict[str, Any]:
    [row] = refer(connection, columns=("image",), filter="id = 4").to_pylist()
    found: dict[str, Any] = row["image"]
    return found


@pytest.mark.parametrize("storage", ["2.1", "2.2"])
def test_scans_and_reads(connection: Connection, tmp_path: Path, storage: str) -> None:
    dataset = write(tmp_path / "t.lance", storage)
    rows = refer(connection)
    assert rows.schema.names == ["id", "image", "more"]
    assert rows.schema.field("image").type == REFERENCE
    assert is_reference(rows.schema.field("more").type.field("image").type)
    found = dict(zip(rows["id"].to_pylist(), rows["image"].to_pylist(), strict=True))
    assert found[1] is None
    commit = dataset.read_transaction(dataset.version).uuid
    expected = {"table": "t", "branch": None, "version": dataset.version, "commit": commit, "column": "image"}
    assert found[4] == {**expected, "row": (1 << 32) + 1, "size": 300_000}

    blobs = pickle.loads(pickle.dumps(ReferencedBlobs(connection)))
    whole = list(LEFT.values())
    assert blobs.read(rows["image"].combine_chunks()).to_pylist() == whole
    inside: Any = rows["more"].combine_chunks()
    assert blobs.read(inside.field("image")).to_pylist() == whole
    shuffled = rows.take([4, 0, 4, 3, 2, 1, 4])["image"].combine_chunks()
    assert blobs.read(shuffled).to_pylist() == [whole[at] for at in (4, 0, 4, 3, 2, 1, 4)]
    flat = refer(connection, columns=("more.image", "id"), filter="id > 3")
    assert blobs.read(flat["more.image"].combine_chunks()).to_pylist() == whole[4:]
    assert refer(connection, columns=("id",)).schema.names == ["id"]
    assert refer(connection, columns=("image",), with_row_address=True, with_row_id=True).schema.names == [
        *("image", "_rowid", "_rowaddr")
    ]


def test_no_secret_travels_with_a_reference(tmp_path: Path) -> None:
    connection = Connection("dir", {"root": str(tmp_path), "storage.secret_access_key": "hidden"})
    write(tmp_path / "t.lance")
    text = json.dumps(refer(connection)["image"].to_pylist())
    assert "hidden" not in text
    assert str(tmp_path) not in text
    assert "hidden" not in repr(ReferencedBlobs(connection))


def test_few_bytes_are_held_at_once(connection: Connection, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "t.lance")
    rows = refer(connection, columns=("id", "image")).combine_chunks()
    monkeypatch.setattr(blob_references, "WINDOW_BYTES", 200_000)
    parts = list(ReferencedBlobs(connection).fill(iter(rows.to_batches()), [(1,)]))
    assert [part.column(0).to_pylist() for part in parts] == [[0, 1, 2, 3], [4], [6]]
    assert [blob for part in parts for blob in part.column(1).to_pylist()] == list(LEFT.values())
    monkeypatch.setattr(blob_references, "WINDOW_ROWS", 2)
    parts = list(ReferencedBlobs(connection).fill(iter(rows.to_batches()), [(1,)]))
    assert [part.num_rows for part in parts] == [2, 2, 1, 1]


def test_files(connection: Connection, tmp_path: Path) -> None:
    write(tmp_path / "t.lance")
    blobs, reference = ReferencedBlobs(connection), good_reference(connection)
    with blobs.open(reference) as file:  # type: ignore[union-attr]
        assert file.size() == 300_000
        assert file.read_range(299_998, 2) == b"yy"
    assert blobs.open(None) is None
    assert blobs.open(pa.scalar(None, REFERENCE)) is None
    assert blobs.open(pa.scalar(reference, REFERENCE)) is not None


def test_external_blobs_whose_size_lance_does_not_know(connection: Connection, tmp_path: Path) -> None:
    (tmp_path / "outside").write_bytes(b"0123456789")
    place = (tmp_path / "outside").as_uri()
    lance.write_dataset(
        pa.table({"b": blob_array([place, Blob(uri=place, position=2, size=3)])}, pa.schema([blob_field("b")])),
        tmp_path / "t.lance",
        data_storage_version="2.2",
        allow_external_blob_outside_bases=True,
    )
    rows: Any = refer(connection)["b"].combine_chunks()
    assert rows.field("size").to_pylist() == [None, 3]
    assert ReferencedBlobs(connection).read(rows).to_pylist() == [b"0123456789", b"234"]


FORGED: list[tuple[dict[str, Any], type[LanceNamespaceError], str]] = [
    ({"table": "secret"}, TableNotFoundError, "secret"),
    ({"table": "`../t`"}, TableNotFoundError, "not found"),
    ({"table": "../t"}, InvalidInputError, "is no id"),
    ({"table": ""}, InvalidInputError, "a reference to a blob has no table"),
    ({"version": 99}, TableVersionNotFoundError, "table t has no version 99 any more.*cleaned up.*a tag keeps"),
    ({"version": 1}, ConcurrentModificationError, "version 1 of table t is not the one that a reference .* another"),
    ({"commit": "0"}, ConcurrentModificationError, "version 2 of table t is not the one that a reference"),
    ({"branch": "../x"}, InvalidInputError, "branch"),
    ({"branch": "side"}, LanceNamespaceError, "side"),
    ({"column": "id"}, InvalidInputError, "has no column of blobs called 'id'"),
    ({"column": "image.data"}, InvalidInputError, "has no column of blobs called 'image.data'"),
    ({"column": "more"}, InvalidInputError, "has no column of blobs called 'more'"),
    ({"column": "gone"}, InvalidInputError, "has no column of blobs called 'gone'"),
    ({"row": (1 << 32) + 2}, InvalidInputError, "has no blob in column image as a reference names it"),
    ({"row": 99 << 32}, InvalidInputError, "has no blob in column image as a reference names it"),
    ({"row": -1}, InvalidInputError, "a reference to a blob has row -1"),
    ({"row": None}, InvalidInputError, "a reference to a blob has row None"),
    ({"size": 1 << 40}, InvalidInputError, "as a reference names it: .*exceeds blob size"),
    ({"size": -1}, InvalidInputError, "a reference to a blob has size -1"),
]


@pytest.mark.parametrize(("change", "kind", "says"), FORGED, ids=[str(change) for change, _, _ in FORGED])
def test_a_forged_reference(
    connection: Connection, tmp_path: Path, change: dict[str, Any], kind: type[LanceNamespaceError], says: str
) -> None:
    write(tmp_path / "t.lance")
    good = good_reference(connection)
    with pytest.raises(kind, match=says):
        ReferencedBlobs(connection).read(pa.array([good, {**good, **change}], REFERENCE))


def test_tables_that_may_be_read(connection: Connection, tmp_path: Path) -> None:
    write(tmp_path / "t.lance")
    good = good_reference(connection)
    assert ReferencedBlobs(connection, frozenset({("t",)})).read([good])[0].as_py() == BLOBS[4]
    with pytest.raises(PermissionDeniedError, match=r"names table t, and only those of a.b, c may be read"):
        ReferencedBlobs(connection, frozenset({("c",), ("a", "b")})).open(good)
    with pytest.raises(InvalidInputError, match="is read through one"):
        ReferencedBlobs(None).open(good)
    with pytest.raises(InvalidInputError, match="this is no reference to a blob"):
        ReferencedBlobs(connection).open({"table": "t"})
    dataset = lance.dataset(tmp_path / "t.lance")
    with pytest.raises(InvalidInputError, match="is named by its location"):
        Scan(blobs="reference").schema(TableRef(str(tmp_path / "t.lance")), dataset)


def test_a_version_that_was_cleaned_up_and_a_table_made_anew(connection: Connection, tmp_path: Path) -> None:
    dataset = write(tmp_path / "t.lance")
    good = good_reference(connection)
    dataset.delete("id = 4")
    assert ReferencedBlobs(connection).read([good])[0].as_py() == BLOBS[4]
    lance.dataset(dataset.uri).cleanup_old_versions(retain_versions=1)
    with pytest.raises(TableVersionNotFoundError, match="a tag keeps a version"):
        ReferencedBlobs(connection).read([good])
    rmtree(tmp_path / "t.lance")
    write(tmp_path / "t.lance")
    with pytest.raises(ConcurrentModificationError, match="dropped and made anew, or the reference is of another"):
        ReferencedBlobs(connection).read([good])


def test_rows_of_spark_with_references_in_structs(connection: Connection, tmp_path: Path) -> None:
    dataset, rows = write(tmp_path / "t.lance"), refer(connection).combine_chunks()
    struct = to_spark_rows(rows.schema).struct
    incoming = from_spark_rows(struct, dataset.schema)
    assert incoming.references == [(1,), (2, 1)]
    filled = ReferencedBlobs(connection).fill(iter(rows.to_batches()), incoming.references)
    batches = [incoming.convert_batch(batch) for batch in filled]
    schema = with_blobs(rows.schema)
    assert with_bytes(rows.schema, schema).field("more").type.field("image").type == pa.large_binary()
    assert with_blobs(rows.schema, dataset.schema) == dataset.schema
    made = lance.write_dataset(pa.Table.from_batches(batches), tmp_path / "copy.lance", data_storage_version="2.2")
    expected = dataset.scanner(blob_handling="all_binary").to_table().to_pylist()
    assert made.scanner(blob_handling="all_binary").to_table().to_pylist() == expected


def test_ingest_stores_the_bytes(connection: Connection, tmp_path: Path) -> None:
    write(tmp_path / "t.lance")
    pq.write_table(refer(connection, columns=("id", "image")), tmp_path / "rows.parquet")
    jobs = TableJobs(connection, LocalEngine(threads=2))
    jobs.ingest(str(tmp_path / "rows.parquet"), "made")
    made = lance.dataset(tmp_path / "made.lance")
    assert made.schema.field("image").type.extension_name == "lance.blob.v2"
    jobs.ingest(str(tmp_path / "rows.parquet"), "made", run="again")
    jobs.ingest(str(tmp_path / "rows.parquet"), "made", run="evolved", schema_mode="evolve")
    rows = made.checkout_version(3).scanner(blob_handling="all_binary").to_table().to_pylist()
    expected = [{"id": number, "image": blob} for number, blob in LEFT.items()]
    assert rows == expected * 3
