"""`readStream` and `writeStream` with `format("lance")`: in Spark, and each of their calls as Spark makes them."""

from __future__ import annotations

import pickle
import shutil
from collections.abc import Iterator
from datetime import timedelta
from itertools import chain
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest
from lance_namespace import DropTableRequest
from lance_namespace.errors import (
    InvalidInputError,
    InvalidTableStateError,
    TableColumnNotFoundError,
    TableSchemaValidationError,
    TableVersionNotFoundError,
    UnsupportedOperationError,
)
from pyspark.sql.functions import col
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows
from pyspark.sql.types import StructType

from lancehouse.connection import Connection
from lancehouse.jobs import LocalEngine, TableJobs
from lancehouse.spark import LanceCatalog
from lancehouse.spark.data_source import LanceSource
from lancehouse.spark.data_source_options import SourceOptions, TableUse
from lancehouse.spark.streams import CHECKPOINT
from lancehouse.spark.table_writer import BATCH, QUERY
from tests.clients.managed import managed_by_lancehouse

IDS = StructType().add("id", "long", nullable=False)
NONE = {"version": 0}
ALL = ReadAllAvailable()


def rows(*ids: int) -> pa.Table:
    return pa.table({"id": ids}, pa.schema([pa.field("id", pa.int64(), nullable=False)]))


def put(table: str | Path, *ids: int, mode: str = "append", **how: Any) -> None:
    lance.write_dataset(rows(*ids), table, mode=mode, **how)


def send(value: Any) -> Any:
    return pickle.loads(pickle.dumps(value))


@pytest.fixture
def table(tmp_path: Path) -> str:
    """Three versions: of the rows 0 and 1, of 2, and of 3 to 6 in two fragments."""
    put(tmp_path / "t", 0, 1, mode="create")
    put(tmp_path / "t", 2)
    put(tmp_path / "t", 3, 4, 5, 6, max_rows_per_file=2)
    return str(tmp_path / "t")


# Reading, call by call


class Stream:
    """A streaming query over a table, without Spark."""

    def __init__(self, table: str, start: dict[str, Any] = NONE, **options: Any) -> None:
        source = LanceSource({"path": table, **{name: str(value) for name, value in options.items()}})
        source.schema()
        self.reader = send(source).streamReader(IDS)
        self.at = start

    @property
    def place(self) -> dict[str, Any]:
        """Where it is, without the commit that made the version."""
        return {name: value for name, value in self.at.items() if name != "made"}

    def next(self, limit: Any = None) -> list[Any]:
        """The ids of the next batch."""
        end = self.reader.latestOffset(self.at, limit or self.reader.getDefaultReadLimit())
        found = self.between(self.at, end)
        self.reader.commit(end)
        self.at = end
        return found

    def between(self, start: dict[str, Any], end: dict[str, Any]) -> list[Any]:
        """Planned in one process, read in others."""
        parts = self.reader.partitions(start, end)
        reader = send(self.reader)
        batches = [batch for part in parts for batch in reader.read(send(part))]
        return sorted(value for batch in batches for value in batch.column("id").to_pylist())


@pytest.mark.parametrize(
    ("options", "first", "end"),
    [
        ({}, [0, 1, 2, 3, 4, 5, 6], {"version": 3, "snapshot": 3}),
        ({"startingVersion": "earliest"}, [0, 1, 2, 3, 4, 5, 6], {"version": 3, "snapshot": 1}),
        ({"startingVersion": "latest"}, [], {"version": 3, "after": 3}),
        ({"startingVersion": 2}, [2, 3, 4, 5, 6], {"version": 3, "after": 1}),
        ({"startingVersion": 4}, [], {"version": 3, "after": 3}),
    ],
    ids=["whole", "earliest", "latest", "number", "next"],
)
def test_where_a_stream_begins(table: str, options: dict[str, Any], first: list[int], end: dict[str, int]) -> None:
    stream = Stream(table, **options)
    assert stream.next() == first
    assert stream.place == end
    put(table, 7)
    assert stream.next() == [7]
    assert stream.next() == []
    assert stream.place == {"version": 4}


def test_which_version_added_a_row(table: str) -> None:
    stream = Stream(table, startingVersion=1, withVersion="true")
    lance.dataset(table).update({"id": "id + 100"}, where="id < 2")
    end = stream.reader.latestOffset(NONE, ALL)
    parts = stream.reader.partitions(NONE, end)
    found = [row for part in parts for batch in send(stream.reader).read(part) for row in batch.to_pylist()]
    added = {1: [0, 1], 2: [2], 3: [3, 4, 5, 6], 4: [100, 101]}
    assert sorted((row["_version"], row["id"]) for row in found) == [(at, id_) for at in added for id_ in added[at]]
    whole = Stream(table, withVersion="true", columns="id", filter="id > 4")
    parts = whole.reader.partitions(NONE, whole.reader.latestOffset(NONE, ALL))
    assert {row["_version"] for part in parts for batch in whole.reader.read(part) for row in batch.to_pylist()} == {4}


def test_a_table_that_has_the_column_of_versions(tmp_path: Path) -> None:
    lance.write_dataset(pa.table({"_version": [1]}), tmp_path / "t")
    with pytest.raises(InvalidInputError, match="has a column _version, so withVersion cannot add it"):
        Stream(str(tmp_path / "t"), withVersion="true")


def test_the_whole_is_as_of_the_start_and_increments_as_of_their_version(table: str) -> None:
    lance.dataset(table).delete("id = 2")
    whole, earliest = Stream(table), Stream(table, startingVersion="earliest")
    assert whole.next() == [0, 1, 3, 4, 5, 6]
    assert earliest.next() == [0, 1, 2, 3, 4, 5, 6]
    lance.dataset(table).update({"id": "id + 100"}, where="id < 2")
    assert whole.next() == earliest.next() == [100, 101]


def test_a_batch_that_is_run_again_has_the_same_rows(table: str) -> None:
    for options in ({}, {"startingVersion": "latest"}, {"startingVersion": "earliest", "maxRowsPerTrigger": 3}):
        stream = Stream(table, **options)
        rows_of_first = stream.next()
        end = stream.at
        put(table, 50)
        again = Stream(table, **options)
        assert again.between(again.reader.initialOffset(), end) == rows_of_first


@pytest.mark.parametrize(
    ("options", "batches"),
    [
        ({"maxRowsPerTrigger": 3}, [[0, 1, 2], [3, 4], [5, 6]]),
        ({"maxRowsPerTrigger": 1}, [[0, 1], [2], [3, 4], [5, 6]]),
        ({"maxVersionsPerTrigger": 1, "startingVersion": "earliest"}, [[0, 1], [2], [3, 4, 5, 6]]),
        ({"maxVersionsPerTrigger": 2, "startingVersion": "earliest"}, [[0, 1, 2], [3, 4, 5, 6]]),
        ({"maxVersionsPerTrigger": 2, "maxRowsPerTrigger": 2, "startingVersion": 2}, [[2], [3, 4], [5, 6]]),
    ],
)
def test_admission_control(table: str, options: dict[str, Any], batches: list[list[int]]) -> None:
    stream = Stream(table, **options)
    found = []
    while batch := stream.next():
        found.append(batch)
        stream = Stream(table, send(stream.at), **options)
    assert found == batches
    assert stream.place == {"version": 3}
    assert Stream(table, **options).next(ALL) == sorted(chain.from_iterable(batches))


def test_what_is_available_now(table: str) -> None:
    stream = Stream(table, maxRowsPerTrigger=4)
    stream.reader.prepareForTriggerAvailableNow()
    put(table, 7)
    assert stream.next() + stream.next() + stream.next() == list(range(7))
    assert stream.reader.reportLatestOffset() == {"version": 4}


def test_versions_without_rows_are_passed(table: str) -> None:
    stream = Stream(table)
    stream.next()
    dataset = lance.dataset(table)
    dataset.create_scalar_index("id", "BTREE")
    dataset.optimize.compact_files()
    dataset.delete("id = 0")
    assert stream.next() == []
    assert stream.place == {"version": lance.dataset(table).version}


def test_values_of_computed_columns_are_no_rows(table: str, tmp_path: Path) -> None:
    stream = Stream(table, columns="id")
    stream.next()
    shutil.copytree(table, tmp_path / "d" / "t.lance")
    jobs = TableJobs(Connection("dir", {"root": str(tmp_path / "d")}), LocalEngine(threads=1))
    jobs.define_columns("t", {"twice": "id * 2"})
    put(tmp_path / "d" / "t.lance", 7)
    jobs.backfill("t")
    assert Stream(str(tmp_path / "d" / "t.lance"), stream.at, columns="id").next() == [7]


def test_columns_and_filter_hold_for_streams(table: str) -> None:
    stream = Stream(table, filter="id % 2 = 0", columns="id")
    assert stream.next() == [0, 2, 4, 6]
    put(table, 7, 8)
    assert stream.next() == [8]


def test_columns_that_came_later_are_null_before(table: str) -> None:
    lance.dataset(table).add_columns(pa.field("twice", pa.int64()))
    lance.write_dataset(rows(9).append_column("twice", pa.array([18])), table, mode="append")
    reader = Stream(table, startingVersion="earliest").reader
    end = reader.latestOffset(NONE, ALL)
    found = pa.Table.from_batches(batch for part in reader.partitions(NONE, end) for batch in reader.read(part))
    assert sorted(found.to_pylist(), key=lambda row: row["id"])[-2:] == [
        {"id": 6, "twice": None},
        {"id": 9, "twice": 18},
    ]


def test_a_column_of_another_type(table: str) -> None:
    stream = Stream(table)
    stream.next()
    put(table, 9)
    lance.dataset(table).alter_columns({"path": "id", "data_type": pa.int32()})
    lance.write_dataset(rows(10).cast(lance.dataset(table).schema), table, mode="append")
    with pytest.raises(TableSchemaValidationError, match=r"column id is not as the stream has it \(int64\)"):
        stream.next()


def test_versions_that_are_gone(table: str) -> None:
    stream = Stream(table, startingVersion=1)
    lossy = Stream(table, startingVersion=1, failOnDataLoss="false")
    lance.dataset(table).cleanup_old_versions(timedelta(0))
    with pytest.raises(TableVersionNotFoundError, match=r"version 1 .* cleaned up.*; start again .* failOnDataLoss"):
        stream.next()
    assert lossy.next() == [3, 4, 5, 6]


def test_a_snapshot_that_is_gone_while_it_is_read(table: str) -> None:
    stream = Stream(table, maxRowsPerTrigger=2)
    assert stream.next() == [0, 1]
    begin = stream.at
    assert stream.next() == [2]
    put(table, 7)
    lance.dataset(table).optimize.compact_files()
    lance.dataset(table).cleanup_old_versions(timedelta(0))
    put(table, 8)
    with pytest.raises(TableVersionNotFoundError, match=r"version 3 .* cleaned up; start again .* failOnDataLoss"):
        Stream(table, begin, maxRowsPerTrigger=2).next()
    lossy = Stream(table, stream.at, maxRowsPerTrigger=2, failOnDataLoss="false")
    assert lossy.between(begin, stream.at) == []
    assert lossy.next() == [8]
    assert lossy.place == {"version": lance.dataset(table).version}


def test_a_restored_version(table: str) -> None:
    stream = Stream(table)
    stream.next()
    lance.dataset(table, version=1).restore()
    with pytest.raises(UnsupportedOperationError, match=r"restored .*; start again with a new checkpoint"):
        stream.next()


def test_a_table_made_anew(table: str, tmp_path: Path) -> None:
    put(tmp_path / "other", 1, mode="create")
    with pytest.raises(InvalidTableStateError, match="made anew; start again with a new checkpoint"):
        Stream(str(tmp_path / "other"), {"version": 3}).next()
    with pytest.raises(TableVersionNotFoundError, match="startingVersion is 9"):
        Stream(table, startingVersion=9).next()


def made_anew(table: str, versions: int) -> None:
    shutil.rmtree(table)
    for number in range(versions):
        put(table, 100 + number, mode="append" if number else "create")


@pytest.mark.parametrize("versions", [3, 5], ids=["as-many", "more"])
def test_a_table_made_anew_with_no_fewer_versions(table: str, versions: int) -> None:
    stream = Stream(table, startingVersion="latest")
    stream.next()
    begin = stream.at
    made_anew(table, versions)
    sentence = "another version 3 than the one that was read: it was made anew; start again with a new checkpoint"
    for at in (stream, Stream(table, begin), Stream(table, begin, failOnDataLoss="false")):
        with pytest.raises(InvalidTableStateError, match=sentence):
            at.next()
    with pytest.raises(InvalidTableStateError, match=sentence):
        Stream(table).between(NONE, begin)
    # A checkpoint from before offsets knew the commit.
    assert Stream(table, stream.place).next() == [100 + number for number in range(3, versions)]


def test_a_version_that_was_read_may_go(table: str) -> None:
    stream = Stream(table)
    stream.next()
    put(table, 7)
    lance.dataset(table).cleanup_old_versions(timedelta(0))
    assert Stream(table, stream.at).next() == stream.next() == [7]
    assert stream.next() == []


def test_the_limit_that_spark_keeps(table: str) -> None:
    assert Stream(table).reader.getDefaultReadLimit() == ALL
    assert Stream(table, maxRowsPerTrigger=5).reader.getDefaultReadLimit() == ReadMaxRows(5)


# Writing, call by call


def batch(table: str, number: int, *ids: int, overwrite: bool = False, **options: str) -> None:
    """What Spark does for a batch: the writer that commits is not the one that writes."""
    given = {"path": table, "queryId": "q", **options}
    writer = send(LanceSource(given).streamWriter(schema=IDS, overwrite=overwrite))
    message = send(writer.write(iter(rows(*ids).to_batches())))
    LanceSource(given).streamWriter(schema=IDS, overwrite=overwrite).commit([message, None], number)


def stored_ids(table: str) -> list[Any]:
    found: list[Any] = lance.dataset(table).to_table()["id"].to_pylist()
    return sorted(found)


def test_a_batch_is_written_once(tmp_path: Path) -> None:
    table = str(tmp_path / "t")
    batch(table, 0, 0, 1)
    batch(table, 1, 2, 3)
    batch(table, 1, 2, 3)
    assert stored_ids(table) == [0, 1, 2, 3]
    assert lance.dataset(table).read_transaction(2).transaction_properties == {QUERY: "q", BATCH: "1"}
    assert len(list(Path(table, "data").iterdir())) == 2
    batch(table, 1, 4, queryId="other")
    assert stored_ids(table) == [0, 1, 2, 3, 4]


def test_a_new_checkpoint_needs_a_new_id(tmp_path: Path) -> None:
    table = str(tmp_path / "t")
    batch(table, 1, 2)
    with pytest.raises(InvalidInputError, match="has batch 1 of the query 'q', and this is batch 0"):
        batch(table, 0, 0)
    (tmp_path / "metadata").write_text('{"id": "kept"}')
    for number in (1, 0):
        batch(table, number, 7, queryId="", checkpointLocation=str(tmp_path))
    assert stored_ids(table) == [2, 7]


def test_an_id_is_of_one_checkpoint(tmp_path: Path) -> None:
    table, places = str(tmp_path / "t"), [tmp_path / "first", tmp_path / "second"]
    for place in places:
        place.mkdir()
        (place / "metadata").write_text(f'{{"id": "of-{place.name}"}}')
    first, second = map(str, places)
    batch(table, 0, 1)
    batch(table, 0, 1, checkpointLocation=first)
    batch(table, 1, 2, checkpointLocation=first)
    batch(table, 1, 2, checkpointLocation=first)
    batch(table, 1, 2)
    assert stored_ids(table) == [1, 2]
    made = lance.dataset(table).read_transaction(2).transaction_properties
    assert made == {QUERY: "q", BATCH: "1", CHECKPOINT: "of-first"}
    for number in (0, 1, 2):
        with pytest.raises(InvalidInputError, match=f"batch {number} of another checkpoint: .* needs another queryId"):
            batch(table, number, 777, checkpointLocation=second)
    batch(table, 0, 777, queryId="other", checkpointLocation=second)
    assert stored_ids(table) == [1, 2, 777]


def test_a_batch_is_known_after_other_versions(tmp_path: Path) -> None:
    table = str(tmp_path / "t")
    batch(table, 0, 0, 1)
    batch(table, 1, 2)
    dataset = lance.dataset(table)
    dataset.create_scalar_index("id", "BTREE")
    dataset.optimize.compact_files()
    put(table, 9)
    batch(table, 1, 2)
    assert stored_ids(table) == [0, 1, 2, 9]


def test_a_batch_without_rows_makes_no_version(table: str) -> None:
    batch(table, 0)
    assert lance.dataset(table).version == 3


def test_complete_output_replaces_all(table: str) -> None:
    batch(table, 0, 1, 2, overwrite=True)
    assert stored_ids(table) == [1, 2]
    batch(table, 1, overwrite=True)
    assert stored_ids(table) == []


PAIRS = StructType().add("id", "long").add("v", "string").add("at", "double")


def merge_batch(table: str, number: int, *pairs: tuple[Any, ...], **options: str) -> None:
    """What Spark does for a batch of two tasks that is merged."""
    given = {"path": table, "queryId": "q", "mode": "merge", "on": "id", "latestBy": "at", **options}
    writer, committer = (LanceSource(given).streamWriter(schema=PAIRS, overwrite=False) for _ in range(2))
    names = PAIRS.names
    fields: dict[str, pa.DataType] = {"id": pa.int64(), "v": pa.string(), "at": pa.float64()}
    rows = [dict(zip(names, pair, strict=True)) for pair in pairs]
    parts = [pa.RecordBatch.from_pylist(part, pa.schema(fields)) for part in (rows[::2], rows[1::2])]
    messages = [send(send(writer).write(iter([part]))) for part in parts]
    committer.commit([*messages, None], number)


def stored_pairs(table: str) -> list[tuple[Any, ...]]:
    found = lance.dataset(table).to_table(columns=["id", "v"]).to_pylist()
    return sorted((row["id"], row["v"]) for row in found)


@pytest.mark.parametrize("kind", ["new", "without", "with"])
def test_a_batch_is_merged_once(tmp_path: Path, kind: str) -> None:
    """The table is made by the first batch, or has no column to tell the latest, or has it."""
    table = str(tmp_path / "t")
    if kind != "new":
        first = {"id": pa.array([0, 9]), "v": ["old", "z"], **({"at": [0.0, 0.0]} if kind == "with" else {})}
        lance.write_dataset(pa.table(first), table, enable_stable_row_ids=True)
    before = [] if kind == "new" else [(9, "z")]
    merge_batch(table, 0, (0, "a", 1), (1, "b", 1), (0, "c", 2), (0, "d", None))
    assert stored_pairs(table) == [(0, "c"), (1, "b"), *before]
    merge_batch(table, 1, (1, "e", 0), (2, "f", 0))
    merge_batch(table, 1, (1, "g", 0), (2, "g", 0))
    assert stored_pairs(table) == [(0, "c"), (1, "e"), (2, "f"), *before]
    merge_batch(table, 2)
    assert not Path(table, "_lancehouse").exists()
    assert lance.dataset(table).version == (2 if kind == "new" else 3)
    assert lance.dataset(table).read_transaction(lance.dataset(table).version).transaction_properties[BATCH] == "1"
    files = {Path(file.path).name for each in lance.dataset(table).get_fragments() for file in each.data_files()}
    versions = 2 if kind == "new" else 3
    assert len(list(Path(table, "data").iterdir())) <= len(files) + versions, "what tasks wrote is removed"
    with pytest.raises(
        InvalidInputError, match="two rows of the batch have the same key, id=5, and both are the last by at"
    ):
        merge_batch(table, 2, (5, "x", 1), (5, "y", 1))
    with pytest.raises(InvalidInputError, match="needs another queryId"):
        merge_batch(table, 0, (5, "x", 1))
    merge_batch(table, 2, (0, "x", 1), whenMatched="delete", whenNotMatched="ignore")
    assert stored_pairs(table) == [(1, "e"), (2, "f"), *before]


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"on": ""}, "the option on.* is not what it has to be"),
        ({"mode": "append"}, "on is an option of mode merge only"),
        ({"mode": "upsert"}, "the option mode, 'upsert', is not what it has to be: append or merge"),
        ({"on": "nope"}, "no column nope"),
        ({"latestBy": "v,nope"}, "no column nope for latest_by"),
        ({"latestBy": "id"}, "latest_by names id, which is in the key"),
        ({"whenMatched": "replace"}, "when_matched 'replace' is not known"),
        ({"latest_by": "at"}, "did you mean latestBy"),
    ],
)
def test_a_merge_that_cannot_be(tmp_path: Path, options: dict[str, str], says: str) -> None:
    table = str(tmp_path / "t")
    lance.write_dataset(pa.table({"id": pa.array([0]), "v": ["a"], "at": [0.0]}), table)
    with pytest.raises((InvalidInputError, TableColumnNotFoundError), match=says):
        merge_batch(table, 0, (0, "b", 1), (1, "c", 1), **options)
    assert stored_pairs(table) == [(0, "a")]


def test_abort_removes_what_was_written(table: str) -> None:
    given = {"path": table, "queryId": "q"}
    writer = LanceSource(given).streamWriter(IDS, False)
    message = writer.write(iter(rows(7).to_batches()))
    before = len(list(Path(table, "data").iterdir()))
    LanceSource(given).streamWriter(IDS, False).abort([None, message], 0)
    assert len(list(Path(table, "data").iterdir())) == before - 1


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({}, "needs the option checkpointLocation, or queryId"),
        ({"checkpointLocation": "{folder}/none"}, "none/metadata; give it as the option queryId"),
        ({"checkpointLocation": "{folder}/empty"}, "empty/metadata; give it"),
        ({"checkpointLocation": "ftp://user:hidden@host/x"}, "ftp://host/x/metadata; give it"),
    ],
    ids=["none", "missing", "not-json", "unknown-store"],
)
def test_a_query_that_is_not_known(tmp_path: Path, options: dict[str, str], sentence: str) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty" / "metadata").touch()
    given = {name: value.format(folder=tmp_path) for name, value in options.items()}
    with pytest.raises(InvalidInputError, match=sentence) as caught:
        LanceSource({"path": str(tmp_path / "t"), **given}).streamWriter(IDS, False)
    assert "hidden" not in str(caught.value)


@pytest.mark.parametrize("prefix", ["", "file:", "file://"])
def test_the_id_is_read_from_the_checkpoint(tmp_path: Path, prefix: str) -> None:
    (tmp_path / "metadata").write_text('{"id": "the-query"}')
    batch(str(tmp_path / "t"), 3, 1, queryId="", checkpointLocation=f"{prefix}{tmp_path}")
    assert lance.dataset(tmp_path / "t").read_transaction(1).transaction_properties[QUERY] == "the-query"


# Spark


@pytest.fixture(params=["dir", "managed"])
def places(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[dict[str, str], dict[str, str]]:
    """Options of a table `a` and of a table `b`, neither of which is there yet."""
    if request.param == "dir":
        common, home = {"impl": "dir", "root": str(tmp_path)}, ""
    else:
        catalog = managed_by_lancehouse(request.getfixturevalue("lancehouse_server"))
        common, home = {"impl": "iceberg", **catalog.properties}, f"{'.'.join(catalog.levels)}."
    return {**common, "table": f"{home}a"}, {**common, "table": f"{home}b"}


def run(frame: Any, options: dict[str, str], checkpoint: Path, mode: str = "append") -> list[Any]:
    """Run a query until it has done all there is; its batches and how many rows they had."""
    writer = frame.writeStream.format("lance").options(**options).outputMode(mode)
    query = writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start()
    query.awaitTermination()
    return [(each["batchId"], each["numInputRows"]) for each in query.recentProgress if each["numInputRows"]]


def table_ids(options: dict[str, str]) -> list[Any]:
    dataset = SourceOptions(options, *TableUse).address().to_ref().open()
    return sorted(dataset.to_table()["id"].to_pylist())


def test_from_table_to_table(spark: Any, places: tuple[dict[str, str], dict[str, str]], tmp_path: Path) -> None:
    source, sink = places
    checkpoint = tmp_path / "checkpoint"
    spark.range(0, 10, 1, 2).write.format("lance").options(**source).mode("append").save()
    stream = spark.readStream.format("lance").options(**source, startingVersion="earliest", maxVersionsPerTrigger="1")
    assert run(stream.load(), sink, checkpoint) == [(0, 10)]
    for first in (10, 20):
        spark.range(first, first + 5).write.format("lance").options(**source).mode("append").save()
    assert run(stream.load(), sink, checkpoint) == [(1, 5), (2, 5)]
    assert table_ids(sink) == [*range(15), *range(20, 25)]
    # As when the driver dies after the commit and before Spark has noted it.
    for file in (checkpoint / "commits").glob("*2*"):
        file.unlink()
    assert run(stream.load(), sink, checkpoint) == [(2, 5)]
    assert table_ids(sink) == [*range(15), *range(20, 25)]


def test_a_source_that_is_dropped_and_made_anew(
    spark: Any, places: tuple[dict[str, str], dict[str, str]], tmp_path: Path
) -> None:
    source, sink = places

    def add(*ids: int) -> None:
        for each in ids:
            spark.range(each, each + 1, 1, 1).write.format("lance").options(**source).mode("append").save()

    add(0, 1)
    run(spark.readStream.format("lance").options(**source).load(), sink, tmp_path / "checkpoint")
    table = SourceOptions(source, *TableUse).address().to_ref()
    assert table.namespace is not None
    table.namespace.drop_table(DropTableRequest(id=list(table.id)))
    add(10, 11, 12)
    with pytest.raises(Exception, match="it was made anew; start again with a new checkpoint"):
        run(spark.readStream.format("lance").options(**source).load(), sink, tmp_path / "checkpoint")
    assert table_ids(sink) == [0, 1]


def forget(checkpoint: Path, batch: int) -> None:
    """As if the query had been stopped in a batch."""
    for file in chain((checkpoint / "offsets").iterdir(), (checkpoint / "commits").iterdir()):
        number = int("".join(filter(str.isdecimal, file.name)))
        if number > batch or (number == batch and file.parent.name == "commits"):
            file.unlink()


def test_an_upsert_of_rows_that_changed_twice(spark: Any, tmp_path: Path) -> None:
    """Between two batches a row is updated twice: both come, and the last one is merged."""
    source, copy = str(tmp_path / "source"), str(tmp_path / "copy.lance")
    lance.write_dataset(pa.table({"id": [1, 2], "text": ["a", "b"]}), source)
    catalog = LanceCatalog(spark, "dir", {"root": str(tmp_path)})
    lance.write_dataset(pa.table({"id": [0], "text": ["old"]}), copy)

    def upsert(batch: Any, number: int) -> None:
        catalog.merge(batch, "copy", on="id", latest_by="_version", run=f"upsert-{number}")

    def follow() -> None:
        stream = spark.readStream.format("lance").options(path=source, withVersion="true").load()
        sink = stream.writeStream.foreachBatch(upsert).option("checkpointLocation", str(tmp_path / "checkpoint"))
        query = sink.trigger(availableNow=True).start()
        assert query.awaitTermination(600)

    follow()
    for text in ("'once'", "'twice'"):
        lance.dataset(source).update({"text": text}, where="id = 1")
    follow()
    found = lance.dataset(copy).to_table().sort_by("id").to_pylist()
    assert [(row["id"], row["text"]) for row in found] == [(0, "old"), (1, "twice"), (2, "b")]


def test_a_stream_is_merged(spark: Any, table: str, tmp_path: Path) -> None:
    """Rows that are updated twice between two batches come twice; the later one counts."""
    source = {"path": table, "withVersion": "true"}
    rows = spark.readStream.format("lance").options(**source).load().selectExpr("id % 10 AS id", "id AS v", "_version")
    to = {"path": str(tmp_path / "copy"), "mode": "merge", "on": "id", "latestBy": "_version,v"}

    def run() -> dict[int, int]:
        query = rows.writeStream.format("lance").options(**to).option("checkpointLocation", str(tmp_path / "c"))
        query.trigger(availableNow=True).start().awaitTermination()
        return {row["id"]: row["v"] for row in lance.dataset(to["path"]).to_table().to_pylist()}

    assert run() == {number: number for number in range(7)}
    for numbers in ((10, 17), (20, 11)):
        put(table, *numbers)
    assert run() == {**{number: number for number in range(7)}, 0: 20, 1: 11, 7: 17}
    assert lance.dataset(to["path"]).schema.names == ["id", "v"]
    assert lance.dataset(to["path"]).version == 2


def test_a_first_snapshot_that_is_gone(spark: Any, table: str, tmp_path: Path) -> None:
    checkpoint = tmp_path / "checkpoint"
    stream = spark.readStream.format("lance").option("maxRowsPerTrigger", "2")
    assert run(stream.load(table), {"path": str(tmp_path / "first")}, checkpoint) == [(0, 2), (1, 1), (2, 2), (3, 2)]
    forget(checkpoint, 1)
    put(table, 7)
    lance.dataset(table).optimize.compact_files()
    lance.dataset(table).cleanup_old_versions(timedelta(0))
    put(table, 8)
    sink = {"path": str(tmp_path / "second")}
    with pytest.raises(Exception, match="set failOnDataLoss to false"):
        run(stream.load(table), sink, checkpoint)
    run(stream.option("failOnDataLoss", "false").load(table), sink, checkpoint)
    assert stored_ids(sink["path"]) == [8]


def test_a_query_id_with_a_new_checkpoint(spark: Any, table: str, tmp_path: Path) -> None:
    sink = {"path": str(tmp_path / "sink"), "queryId": "Q"}
    stream = spark.readStream.format("lance").load(table)
    run(stream, sink, tmp_path / "first")
    forget(tmp_path / "first", 0)
    assert run(stream, sink, tmp_path / "first") == [(0, 7)]
    put(table, 777)
    with pytest.raises(Exception, match="batch 0 of another checkpoint: a new checkpoint needs another queryId"):
        run(stream, sink, tmp_path / "second")
    assert stored_ids(sink["path"]) == list(range(7))
    assert len(list(Path(sink["path"], "data").iterdir())) == len(lance.dataset(sink["path"]).get_fragments())
    run(stream, sink, tmp_path / "first")
    assert stored_ids(sink["path"]) == [*range(7), 777]


def test_a_commit_that_is_refused(spark: Any, table: str, tmp_path: Path) -> None:
    """Somebody overwrites the table while the tasks write; the query fails, and goes on when it is started again."""
    sink, flag = str(tmp_path / "sink"), tmp_path / "flag"
    put(sink, -1, mode="create")

    def overwrite(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for each in batches:
            if not flag.exists():
                flag.touch()
                lance.write_dataset(pa.table({"id": [-2]}), sink, mode="overwrite")
            yield each

    stream = spark.readStream.format("lance").load(table).mapInArrow(overwrite, "id long")
    with pytest.raises(Exception, match="ConcurrentModificationError"):
        run(stream, {"path": sink}, tmp_path / "checkpoint")
    assert stored_ids(sink) == [-2]
    assert not list(Path(sink).glob("_lancehouse/jobs/*"))
    assert run(stream, {"path": sink}, tmp_path / "checkpoint") == [(0, 7)]
    assert stored_ids(sink) == [-2, *range(7)]


def test_complete_mode(spark: Any, table: str, tmp_path: Path) -> None:
    sink = {"path": str(tmp_path / "sink")}
    stream = spark.readStream.format("lance").load(table).groupBy((col("id") % 2).alias("id")).count()
    run(stream, sink, tmp_path / "checkpoint", "complete")
    put(table, 8)
    run(stream, sink, tmp_path / "checkpoint", "complete")
    assert sorted(map(tuple, spark.read.format("lance").load(sink["path"]).collect())) == [(0, 5), (1, 3)]


def test_a_query_without_an_id_does_not_start(spark: Any, table: str, tmp_path: Path) -> None:
    session = spark.newSession()
    session.conf.set("spark.sql.streaming.checkpointLocation", str(tmp_path / "checkpoints"))
    writer = session.readStream.format("lance").load(table).writeStream.format("lance").trigger(availableNow=True)
    with pytest.raises(
        Exception, match="InvalidInputError: writeStream needs the option checkpointLocation, or queryId"
    ):
        writer.start(str(tmp_path / "sink")).awaitTermination()
    assert not (tmp_path / "sink").exists()
    writer.option("queryId", "mine").start(str(tmp_path / "sink")).awaitTermination()
    assert stored_ids(str(tmp_path / "sink")) == list(range(7))
    # Each start has a checkpoint of its own here, which Spark tells to tasks alone.
    with pytest.raises(Exception, match="of another checkpoint: a new checkpoint needs another queryId"):
        writer.option("queryId", "mine").start(str(tmp_path / "sink")).awaitTermination()
