"""Lance tables as sources and sinks of Spark Structured Streaming queries."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from typing import Any, Self

import pyarrow as pa
from lance_namespace.errors import (
    InvalidInputError,
    InvalidTableStateError,
    TableVersionNotFoundError,
    UnsupportedOperationError,
)
from pyarrow import fs
from pyspark import TaskContext
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import (
    DataSourceStreamArrowWriter,
    DataSourceStreamReader,
    InputPartition,
    WriterCommitMessage,
)
from pyspark.sql.streaming import StreamingQuery
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow

from lancehouse.connection import Connection
from lancehouse.identifiers import format_levels
from lancehouse.jobs.address import PinnedVersion, TableAddress
from lancehouse.jobs.table_jobs import TableJobs
from lancehouse.lake.changes import (
    AddedFragment,
    Increment,
    latest_version,
    oldest_version,
    read_changes,
    read_increments,
    whole_version,
)
from lancehouse.lake.commits import NewFragment, find_version
from lancehouse.lake.dataset import TableRef
from lancehouse.lake.manifests import read_transaction_uuid
from lancehouse.locations import local_folder
from lancehouse.schema.spark_rows import to_spark_rows
from lancehouse.secrets import redact
from lancehouse.spark.changes import COLUMNS as CHANGE_COLUMNS
from lancehouse.spark.changes import read_versions, split_for_tasks
from lancehouse.spark.data_source_options import LATEST, SECRET_PREFIX, SourceOptions, StreamQuery
from lancehouse.spark.engine import Batches, SparkEngine
from lancehouse.spark.table_reader import VERSION
from lancehouse.spark.table_writer import BATCH, QUERY, MergeSink, Sink

CHECKPOINT = "lancehouse.checkpoint"
"""Key of a transaction's properties: the id that Spark keeps in the checkpoint, where the user gave the query another
one."""

CHECKPOINT_PROPERTY = "sql.streaming.queryId"
"""Local property of a query's tasks in which Spark passes the id of the checkpoint."""

UNLIMITED = (1 << 63) - 1

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Offset:
    """Position of a stream: everything up to a version is read, or some fragments of it. Version 0: nothing is read.

    The start offset 0 does not say where the stream began; the end offset of the first batch does, so that a batch that
    is run again has the same rows.
    """

    version: int
    fragments: int | None = None
    """Number of fragments of the version that are read; None for all."""
    snapshot: int | None = None
    """The version whose rows were all read first; set while they are being read, and at the end of a first batch."""
    after: int | None = None
    """The version after which the stream began; set at the end of a first batch."""
    made: str | None = None
    """Uuid of the commit that made the version, to recognize a table that was recreated; None if it is not known."""

    @classmethod
    def from_json(cls, json_offset: Json) -> Self:
        """Parse an offset that Spark has stored."""
        return cls(**json_offset)

    def to_json(self) -> Json:
        """Return the offset as JSON for Spark to store."""
        return {name: value for name, value in asdict(self).items() if value is not None}

    @property
    def is_start(self) -> bool:
        """Whether nothing is read yet."""
        return self.version == 0

    @property
    def origin(self) -> Offset:
        """Where the first batch began; only for the end offset of a first batch."""
        if self.after is not None:
            return Offset(self.after)
        assert self.snapshot is not None
        return _snapshot_start(self.snapshot)

    def with_begin(self, begin: Offset) -> Offset:
        """Return this end offset of a first batch with the position where the batch began."""
        return replace(self, snapshot=begin.snapshot, after=None if begin.snapshot else begin.version)


def _snapshot_start(version: int) -> Offset:
    return Offset(version, 0, version)


class LanceStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):  # type: ignore[misc]
    """Reads the rows of a table, then those that new versions add.

    A row is read as it is in the version that added it. Updated rows come again with their new values; deletions,
    compactions and new indices yield nothing; an overwrite yields all its rows. With `readChanges`, deleted rows come
    too, and each row says what happened to it.

    Args:
        pinned: the version that defines the columns.
        schema: Arrow schema of the rows that are read.
        options: what to read, from where, and how much per batch.
    """

    def __init__(self, pinned: PinnedVersion, schema: pa.Schema, options: SourceOptions) -> None:
        self._pinned, self._schema, self._scan = pinned, schema, options.scan()
        self._tasks, self._follow = options.tasks(), options.follow_options()
        added = len(CHANGE_COLUMNS) if self._follow.with_changes else int(self._follow.with_version)
        self._columns = pa.schema(list(schema)[: len(schema) - added])
        self._target: int | None = None
        self._increments: dict[int, Increment] = {}
        self._planned: Json | None = None

    # Offsets

    def initialOffset(self) -> Json:  # noqa: N802
        """Return the offset at which nothing is read yet."""
        return Offset(0).to_json()

    def latestOffset(self, start: Json, limit: ReadLimit) -> Json:  # noqa: N802
        """Return the end of the next batch, which has at least one fragment, if there is one."""
        begin, dataset = Offset.from_json(start), self._table_ref().open()
        self._require_same_table(begin, dataset)
        now = self._target or int(dataset.version)
        origin = self._find_origin(now) if begin.is_start else begin
        is_free = isinstance(limit, ReadAllAvailable)
        max_rows = UNLIMITED if is_free else limit.max_rows
        max_versions = UNLIMITED if is_free else self._follow.max_versions or UNLIMITED
        end = self._find_end(origin, now, max_rows, max_versions)
        if end != begin:
            transaction_uuid = begin.made if end.version == begin.version else None
            end = replace(end, made=transaction_uuid or self._find_transaction_uuid(dataset, end.version))
        self._planned = (end.with_begin(origin) if begin.is_start else end).to_json()
        return self._planned

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """Return the limit of the options.

        Spark has no limit of versions: this only tells it that there is some limit.
        """
        if self._follow.max_rows is None and self._follow.max_versions is None:
            return ReadAllAvailable()
        return ReadMaxRows(self._follow.max_rows or UNLIMITED)

    def reportLatestOffset(self) -> Json:  # noqa: N802
        """Return the latest version of the table, for Spark's metrics."""
        return Offset(self._latest_version()).to_json()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Read no version later than the current one."""
        self._target = self._latest_version()

    def _find_origin(self, now: int) -> Offset:
        """Return the position where a new query begins."""
        start = self._follow.start
        if isinstance(start, int):
            if start > now + 1:
                raise TableVersionNotFoundError(f"startingVersion is {start}: {self._table_ref()} is at version {now}")
            return Offset(start - 1)
        return {None: _snapshot_start(now), LATEST: Offset(now)}.get(start) or _snapshot_start(
            oldest_version(self._table_ref())
        )

    def _find_end(self, origin: Offset, upto: int, max_rows: int, max_versions: int) -> Offset:
        """Return where a batch ends: before the fragment that is too much, or after the last version that it may read.

        Only versions that add rows count; a batch has one fragment at least, however large.
        """
        end, rows, rows_before, grown = origin, 0, 0, 0
        for position, fragment in self._walk_fragments(origin, upto):
            if fragment is None:
                grown += rows > rows_before
                rows_before = rows
            elif rows and rows + fragment.rows > max_rows:
                return end
            else:
                rows += fragment.rows
            end = position
            if grown >= max_versions:
                break
        return end

    def _walk_fragments(self, origin: Offset, upto: int) -> Iterator[tuple[Offset, AddedFragment | None]]:
        """Yield each fragment from a position on, with the position after it; None where a version ends."""
        with _advise_restart():
            if upto < origin.version:
                raise InvalidTableStateError(
                    f"{self._pinned.address} is at version {upto}, and {origin.version} was read: it was made anew"
                )
            if origin.fragments is not None and origin.snapshot == origin.version:
                yield from _positions(self._read_snapshot(origin.version), origin)
            elif origin.fragments is not None:
                for increment in self._read_increments(origin.version - 1, origin.version):
                    yield from _positions(increment, origin)
            for increment in self._read_increments(origin.version, upto):
                yield from _positions(increment, Offset(increment.version, 0))

    def _read_snapshot(self, version: int) -> Increment:
        """Return all rows of a version; none if it was cleaned up and `failOnDataLoss` is false."""
        try:
            return whole_version(self._table_ref(), version)
        except TableVersionNotFoundError:
            if self._follow.is_lossless:
                raise
            return Increment(version)

    def _read_increments(self, after: int, upto: int) -> Iterator[Increment]:
        """Yield what each version added.

        Spark asks twice (offset, then partitions), so it is cached until a batch is done.
        """
        while after < upto and (increment := self._increments.get(after + 1)) is not None:
            after += 1
            yield increment
        read = read_changes if self._follow.with_changes else read_increments
        for increment in read(self._table_ref(), after, upto, lossless=self._follow.is_lossless):
            self._increments[increment.version] = increment
            yield increment

    def _require_same_table(self, read: Offset, dataset: Any) -> None:
        """Refuse a table that was dropped and recreated, as far as the uuid of the version that was read shows it."""
        if read.made is not None and self._find_transaction_uuid(dataset, read.version) not in (read.made, None):
            raise InvalidTableStateError(
                f"{self._pinned.address} has another version {read.version} than the one that was read: "
                "it was made anew; start again with a new checkpoint"
            )

    def _find_transaction_uuid(self, dataset: Any, version: int) -> str | None:
        """Return the uuid of the commit that made a version; None if the version was cleaned up, or has no uuid."""
        try:
            at = dataset if version == dataset.version else replace(self._table_ref(), version=version).open()
        except TableVersionNotFoundError:
            return None
        return read_transaction_uuid(at) or None

    def _latest_version(self) -> int:
        return latest_version(self._table_ref())

    def _table_ref(self) -> TableRef:
        return self._pinned.address.to_ref()

    # Batches

    def partitions(self, start: Json, end: Json) -> list[InputPartition]:
        """Split a batch into partitions, one for each task."""
        begin, stop = Offset.from_json(start), Offset.from_json(end)
        if begin == stop:
            return []
        # An end that this reader did not plan comes from the checkpoint: the table may have been recreated since.
        if end != self._planned:
            self._require_same_table(stop, self._table_ref().open())
        fragments: list[tuple[int, AddedFragment]] = []
        for position, fragment in self._walk_fragments(stop.origin if begin.is_start else begin, stop.version):
            if fragment is not None:
                fragments.append((position.version, fragment))
            if (position.version, position.fragments) == (stop.version, stop.fragments):
                break
        return [InputPartition(parts) for parts in split_for_tasks(fragments, self._tasks)]

    def read(self, partition: InputPartition) -> Batches:
        """Yield the rows of a partition, with the columns that the stream began with."""
        rows = to_spark_rows(self._schema)
        changes = self._follow.with_changes
        batches = read_versions(self._pinned, self._scan, self._columns, partition.value, with_changes=changes)
        for version, batch in batches:
            yield from rows.convert_batches(self._add_version(batch, version))

    def _add_version(self, batch: pa.RecordBatch, version: int) -> pa.RecordBatch:
        """Return a batch with the column of the version that added its rows, if it is requested."""
        if not self._follow.with_version:
            return batch
        versions = pa.repeat(pa.scalar(version, pa.int64()), batch.num_rows)
        return pa.RecordBatch.from_arrays([*batch.columns, versions], schema=self._schema)

    def commit(self, end: Json) -> None:
        """Drop cached increments of versions that are read."""
        version = Offset.from_json(end).version
        self._increments = {number: increment for number, increment in self._increments.items() if number >= version}


def add_version_column(table: object, schema: pa.Schema) -> pa.Schema:
    """Return the schema of a stream with a column for the version that added the row.

    Raises:
        InvalidInputError: the table has a column of that name.
    """
    if VERSION in schema.names:
        raise InvalidInputError(f"{table} has a column {VERSION}, so withVersion cannot add it: choose other columns")
    return schema.append(pa.field(VERSION, pa.int64(), nullable=False))


def _positions(increment: Increment, at: Offset) -> Iterator[tuple[Offset, AddedFragment | None]]:
    first = at.fragments or 0
    for place, fragment in enumerate(increment.fragments[first:], first + 1):
        yield Offset(increment.version, place, at.snapshot), fragment
    yield Offset(increment.version), None


@contextmanager
def _advise_restart() -> Iterator[None]:
    """Add to the error of a stream that cannot continue what the user can do."""
    try:
        yield
    except (TableVersionNotFoundError, UnsupportedOperationError) as error:
        raise type(error)(
            f"{error}; start again with a new checkpoint, or set failOnDataLoss to false to go on without its rows"
        ) from error
    except InvalidTableStateError as error:
        raise type(error)(f"{error}; start again with a new checkpoint") from error


def keep_filled(
    spark: SparkSession,
    address: TableAddress,
    columns: Any,
    how: Mapping[str, Any],
    trigger: Mapping[str, Any],
    checkpoint: str,
    allowed: Sequence[str] | None,
) -> StreamingQuery:
    """Start a query that fills computed columns whenever a table has a new version. See `LanceCatalog.keep_filled`."""
    connection = address.connection
    assert isinstance(connection, Connection)

    def fill(batch: DataFrame, _: int) -> None:
        # Which rows lack a value, the table knows better than the batch, and a batch that is repeated finds none.
        jobs = TableJobs(connection, SparkEngine(batch.sparkSession), functions=allowed)
        jobs.backfill(address.id, columns, **how)

    options = {
        "impl": connection.impl,
        "table": format_levels(address.id),
        f"{SECRET_PREFIX}properties": json.dumps(dict(connection.properties)),
        "startingVersion": LATEST,
        "failOnDataLoss": "false",  # nothing is lost: the rows to fill are those of the table, not of the stream
    }
    rows = spark.readStream.format("lance").options(**options).load()
    query = rows.writeStream.foreachBatch(fill).option("checkpointLocation", checkpoint).trigger(**trigger)
    return query.queryName(f"fill {address}").start()


@dataclass(frozen=True, slots=True)
class WrittenBatch(WriterCommitMessage):  # type: ignore[misc]
    """What a task has written, and the sink of its job, which the committing process gets in no other way."""

    sink: Sink
    pieces: Sequence[NewFragment]
    checkpoint: str | None
    """The id that Spark keeps in the checkpoint, if Spark passed it to the task."""


class LanceStreamWriter(DataSourceStreamArrowWriter):  # type: ignore[misc]
    """Writes each batch of a query exactly once: a version stores the query and the batch that made it.

    Args:
        options: the table, and the query that writes.
        struct: the JSON of the rows' StructType.
        replaces: whether each batch replaces all rows, which is the output mode `complete`.

    Raises:
        InvalidInputError: the id of the query is not known.
    """

    def __init__(self, options: SourceOptions, struct: Mapping[str, Any], *, replaces: bool) -> None:
        query = options.stream_query()
        self._query, self._is_given, self._checkpoint = _query_id(query), bool(query.id), query.checkpoint
        merge = options.merge_options()
        if merge is None:
            self._sink = Sink.begin(options.address(), struct, options.write_options(), replaces=replaces)
        elif replaces:
            raise InvalidInputError("the output mode complete replaces all rows, and mode merge does not: choose one")
        else:
            self._sink = MergeSink.begin_merge(
                options.address(), struct, options.write_options(), merge.on, merge.rules, merge.latest_by
            )

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WrittenBatch:
        """Write the rows of a task."""
        task = TaskContext.get()
        return WrittenBatch(self._sink, self._sink.write(iterator), task and task.getLocalProperty(CHECKPOINT_PROPERTY))

    def commit(self, messages: list[WrittenBatch | None], batchId: int) -> None:  # noqa: N803
        """Commit a batch as one version, unless it was committed before. A batch without rows makes no version."""
        written = [message for message in messages if message is not None]
        if not written:
            return
        sink, pieces = written[0].sink, [piece for message in written for piece in message.pieces]
        properties = {QUERY: self._query, BATCH: str(batchId)}
        if self._is_given and (checkpoint := written[0].checkpoint or _find_checkpoint_id(self._checkpoint)):
            properties[CHECKPOINT] = checkpoint
        if (pieces or sink.replaces) and not self._is_done(sink.job.address.to_ref(), batchId, properties):
            sink.commit(pieces, properties)
        else:
            sink.discard()

    def _is_done(self, table: TableRef, batch: int, properties: Mapping[str, str]) -> bool:
        last_properties = _last_batch_properties(table, self._query)
        last = int(last_properties.get(BATCH, -1))
        checkpoints = {last_properties.get(CHECKPOINT), properties.get(CHECKPOINT)} - {None}
        if self._is_given and (last > batch or len(checkpoints) > 1):
            # With a new checkpoint Spark numbers batches from 0 again. Taking them for batches that are committed
            # already would silently lose their rows.
            raise InvalidInputError(
                f"{table} has batch {last} of the query {self._query!r}, and this is batch {batch}"
                f"{' of another checkpoint' if len(checkpoints) > 1 else ''}: a new checkpoint needs another queryId"
            )
        return last >= batch

    def abort(self, messages: list[WrittenBatch | None], batchId: int) -> None:  # noqa: ARG002, N803
        """Remove what was written, including files of tasks that did not report to Spark."""
        written = [message for message in messages if message is not None]
        if written:
            written[0].sink.abort()


def _last_batch_properties(table: TableRef, query: str) -> Mapping[str, str]:
    """Return the properties of the last version that a query made, or an empty mapping."""
    last_properties: Mapping[str, str] = {}

    def is_ours(version: Any) -> bool:
        nonlocal last_properties
        properties: Mapping[str, str] = version.transaction_properties or {}
        if properties.get(QUERY) == query:
            last_properties = properties
        return bool(last_properties)

    find_version(table, is_ours)
    return last_properties


def _query_id(query: StreamQuery) -> str:
    """Return the id of the streaming query: Spark keeps it in a file of the checkpoint, the same for every run.

    Raises:
        InvalidInputError: it is not given, and there is no such file.
    """
    if query.id:
        return query.id
    if not query.checkpoint:
        raise InvalidInputError(
            "writeStream needs the option checkpointLocation, or queryId: batches are known by the id of their query"
        )
    try:
        return str(json.loads(_read_metadata(query.checkpoint))["id"])
    except (OSError, ValueError, LookupError, TypeError) as error:
        place, reason = redact(query.checkpoint, {}), redact(str(error), {})
        raise InvalidInputError(
            f"the id of the query cannot be read from {place}/metadata; give it as the option queryId: {reason}"
        ) from None


def _find_checkpoint_id(checkpoint: str | None) -> str | None:
    """Return the id in the metadata file of a checkpoint, or None if it cannot be read."""
    with suppress(InvalidInputError):
        return _query_id(StreamQuery(checkpoint=checkpoint))
    return None


def _read_metadata(checkpoint: str) -> bytes:
    if (folder := local_folder(checkpoint)) is not None:
        return (folder / "metadata").read_bytes()
    # Hadoop has several schemes for S3 (s3, s3a, s3n), of which Arrow knows one.
    store, path = fs.FileSystem.from_uri(re.sub("^s3[an]:", "s3:", checkpoint))
    with store.open_input_stream(f"{path}/metadata") as file:
        return bytes(file.read())
