"""Lance tables as sources and sinks of streaming queries."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from itertools import groupby
from operator import itemgetter
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
from pyspark.sql.datasource import (
    DataSourceStreamArrowWriter,
    DataSourceStreamReader,
    InputPartition,
    WriterCommitMessage,
)
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow

from lancehouse.lake.commits import find_version
from lancehouse.lake.dataset import TableRef, local_folder
from lancehouse.lake.errors import redact
from lancehouse.lake.fragments import Piece
from lancehouse.lake.increments import (
    AddedFragment,
    Increment,
    latest_version,
    oldest_version,
    read_increments,
    whole_version,
)
from lancehouse.lake.manifests import read_transaction_uuid
from lancehouse.lake.scans import MIN_TASK_ROWS, FragmentRange
from lancehouse.schema.lance_to_spark import to_spark_rows
from lancehouse.spark.data_source_options import LATEST, SourceOptions, StreamQuery
from lancehouse.spark.sink import Sink
from lancehouse.spark.table_reader import MAX_OPENED, STREAM, VERSION, PinnedVersion, read_fitting_batches
from lancehouse.spark.tasks import Batches

QUERY = "lancehouse.query"
BATCH = "lancehouse.batch"
CHECKPOINT = "lancehouse.checkpoint"
"""Keys of a transaction's properties: the streaming query, the batch of it that made a version, and the id that Spark
keeps in the checkpoint, where the query was given another."""

CHECKPOINT_PROPERTY = "sql.streaming.queryId"
"""What Spark calls the id of the checkpoint, in the tasks of a query."""

UNLIMITED = (1 << 63) - 1

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Offset:
    """How far a stream has read: everything up to a version, or some fragments of it. Version 0: nothing.

    What begins at 0 does not tell where: that is said by where it ends, so that a batch that is run again has the same
    rows.
    """

    version: int
    fragments: int | None = None
    """How many fragments of the version are read; None: all."""
    snapshot: int | None = None
    """The version whose rows came first, all of them; said while they are being read, and where a first batch ends."""
    after: int | None = None
    """The version after which the stream began, said where a first batch ends."""
    made: str | None = None
    """The uuid of the commit that made the version, by which it is known again; None: it does not tell."""

    @classmethod
    def from_json(cls, json_offset: Json) -> Self:
        """From what Spark keeps."""
        return cls(**json_offset)

    def to_json(self) -> Json:
        """For Spark to keep."""
        return {name: value for name, value in asdict(self).items() if value is not None}

    @property
    def is_start(self) -> bool:
        """Whether nothing is read yet."""
        return self.version == 0

    @property
    def origin(self) -> Offset:
        """Where the first batch began, of its end."""
        if self.after is not None:
            return Offset(self.after)
        assert self.snapshot is not None
        return _snapshot_start(self.snapshot)

    def with_begin(self, begin: Offset) -> Offset:
        """The end of a first batch that began here, as it is kept."""
        return replace(self, snapshot=begin.snapshot, after=None if begin.snapshot else begin.version)


def _snapshot_start(version: int) -> Offset:
    return Offset(version, 0, version)


class LanceStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):  # type: ignore[misc]
    """Yields the rows of a table, then those that new versions add.

    A row is as the version has it that added it. Updated rows come again, as they are then; deletions, compactions and
    new indices yield nothing; an overwrite yields all its rows.

    Args:
        pinned: a version, of which the columns are.
        schema: of what is read.
        options: what, from where, and how much at once.
    """

    def __init__(self, pinned: PinnedVersion, schema: pa.Schema, options: SourceOptions) -> None:
        self._pinned, self._schema, self._scan = pinned, schema, options.scan()
        self._tasks, self._follow = options.tasks(), options.follow_options()
        self._columns = schema.remove(len(schema) - 1) if self._follow.with_version else schema
        self._target: int | None = None
        self._increments: dict[int, Increment] = {}
        self._planned: Json | None = None

    # What there is

    def initialOffset(self) -> Json:  # noqa: N802
        """Nothing is read yet."""
        return Offset(0).to_json()

    def latestOffset(self, start: Json, limit: ReadLimit) -> Json:  # noqa: N802
        """How far the next batch goes; it has at least a fragment, if there is one."""
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
        """What the options say. Spark has no limit of versions, but passes on that there is one."""
        if self._follow.max_rows is None and self._follow.max_versions is None:
            return ReadAllAvailable()
        return ReadMaxRows(self._follow.max_rows or UNLIMITED)

    def reportLatestOffset(self) -> Json:  # noqa: N802
        """Where the table is."""
        return Offset(self._latest_version()).to_json()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Leave alone what comes later."""
        self._target = self._latest_version()

    def _find_origin(self, now: int) -> Offset:
        """Where a new query begins."""
        start = self._follow.start
        if isinstance(start, int):
            if start > now + 1:
                raise TableVersionNotFoundError(f"startingVersion is {start}: {self._table_ref()} is at version {now}")
            return Offset(start - 1)
        return {None: _snapshot_start(now), LATEST: Offset(now)}.get(start) or _snapshot_start(
            oldest_version(self._table_ref())
        )

    def _find_end(self, origin: Offset, upto: int, max_rows: int, max_versions: int) -> Offset:
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
        """Each fragment from a place on and how far the stream is after it; None where a version ends."""
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
        """All rows of a version; none if it is gone and the stream goes on without them."""
        try:
            return whole_version(self._table_ref(), version)
        except TableVersionNotFoundError:
            if self._follow.is_lossless:
                raise
            return Increment(version)

    def _read_increments(self, after: int, upto: int) -> Iterator[Increment]:
        """What each version added. Spark asks for it twice, so it is kept until a batch is done."""
        while after < upto and (known := self._increments.get(after + 1)) is not None:
            after += 1
            yield known
        for increment in read_increments(self._table_ref(), after, upto, lossless=self._follow.is_lossless):
            self._increments[increment.version] = increment
            yield increment

    def _require_same_table(self, read: Offset, dataset: Any) -> None:
        """Refuse a table that was made anew, as far as it can be told: by the version that was read."""
        if read.made is not None and self._find_transaction_uuid(dataset, read.version) not in (read.made, None):
            raise InvalidTableStateError(
                f"{self._pinned.address} has another version {read.version} than the one that was read: "
                "it was made anew; start again with a new checkpoint"
            )

    def _find_transaction_uuid(self, dataset: Any, version: int) -> str | None:
        """The uuid of the commit that made a version; None if it was cleaned up, or does not tell."""
        try:
            at = dataset if version == dataset.version else replace(self._table_ref(), version=version).open()
        except TableVersionNotFoundError:
            return None
        return read_transaction_uuid(at) or None

    def _latest_version(self) -> int:
        return latest_version(self._table_ref())

    def _table_ref(self) -> TableRef:
        return self._pinned.address.to_ref()

    # A batch

    def partitions(self, start: Json, end: Json) -> list[InputPartition]:
        """The parts of a batch, for as many tasks."""
        begin, stop = Offset.from_json(start), Offset.from_json(end)
        if begin == stop:
            return []
        if end != self._planned:
            self._require_same_table(stop, self._table_ref().open())
        fragments: list[tuple[int, AddedFragment]] = []
        for position, fragment in self._walk_fragments(stop.origin if begin.is_start else begin, stop.version):
            if fragment is not None:
                fragments.append((position.version, fragment))
            if (position.version, position.fragments) == (stop.version, stop.fragments):
                break
        return [InputPartition(parts) for parts in _split_for_tasks(fragments, self._tasks)]

    def read(self, partition: InputPartition) -> Batches:
        """The rows of some parts, with the columns that the stream began with."""
        rows = to_spark_rows(self._schema)
        for version, parts in _group_by_version(partition.value):
            table, dataset = _open_cached(replace(self._pinned, version=version))
            for batch in read_fitting_batches(self._scan, self._columns, table, dataset, parts, STREAM):
                yield from rows.convert_batches(self._add_version(batch, version))

    def _add_version(self, batch: pa.RecordBatch, version: int) -> pa.RecordBatch:
        """A batch with the version that added its rows, if that is wanted."""
        if not self._follow.with_version:
            return batch
        versions = pa.repeat(pa.scalar(version, pa.int64()), batch.num_rows)
        return pa.RecordBatch.from_arrays([*batch.columns, versions], schema=self._schema)

    def commit(self, end: Json) -> None:
        """Forget what is read."""
        done = Offset.from_json(end).version
        self._increments = {version: known for version, known in self._increments.items() if version >= done}


def add_version_column(table: object, schema: pa.Schema) -> pa.Schema:
    """The columns of a stream whose rows say which version added them.

    Raises:
        InvalidInputError: the table has a column of that name.
    """
    if VERSION in schema.names:
        raise InvalidInputError(f"{table} has a column {VERSION}, so withVersion cannot add it: choose other columns")
    return schema.append(pa.field(VERSION, pa.int64(), nullable=False))


@lru_cache(MAX_OPENED)
def _open_cached(at: PinnedVersion) -> tuple[TableRef, Any]:
    """Another version than the one that was pinned, opened once for all tasks of the stream in this process."""
    table = at.address.to_ref(version=at.version, branch=at.branch)
    return table, table.open()


def _positions(increment: Increment, at: Offset) -> Iterator[tuple[Offset, AddedFragment | None]]:
    first = at.fragments or 0
    for place, fragment in enumerate(increment.fragments[first:], first + 1):
        yield Offset(increment.version, place, at.snapshot), fragment
    yield Offset(increment.version), None


def _split_for_tasks(fragments: Sequence[tuple[int, AddedFragment]], tasks: int) -> Iterator[list[tuple[int, int]]]:
    """Fragments for each task, of about as many rows: versions and ids."""
    share = max(-(-sum(fragment.rows for _, fragment in fragments) // tasks), MIN_TASK_ROWS)
    task_fragments: list[tuple[int, int]] = []
    rows = 0
    for version, fragment in fragments:
        task_fragments.append((version, fragment.id))
        rows += fragment.rows
        if rows >= share:
            yield task_fragments
            task_fragments, rows = [], 0
    if task_fragments:
        yield task_fragments


def _group_by_version(fragments: Iterable[tuple[int, int]]) -> Iterator[tuple[int, list[FragmentRange]]]:
    for version, group in groupby(fragments, key=itemgetter(0)):
        yield version, [FragmentRange(fragment) for _, fragment in group]


@contextmanager
def _advise_restart() -> Iterator[None]:
    """Say how to go on where a stream cannot."""
    try:
        yield
    except (TableVersionNotFoundError, UnsupportedOperationError) as error:
        raise type(error)(
            f"{error}; start again with a new checkpoint, or set failOnDataLoss to false to go on without its rows"
        ) from error
    except InvalidTableStateError as error:
        raise type(error)(f"{error}; start again with a new checkpoint") from error


@dataclass(frozen=True, slots=True)
class WrittenBatch(WriterCommitMessage):  # type: ignore[misc]
    """What a task has written, and for which job: the process that commits knows no other way."""

    sink: Sink
    pieces: Sequence[Piece]
    checkpoint: str | None
    """The id that Spark keeps in the checkpoint, if the task was told."""


class LanceStreamWriter(DataSourceStreamArrowWriter):  # type: ignore[misc]
    """Writes the batches of a query, each of them once: a version keeps the query and the batch that made it.

    Args:
        options: where to, and whose batches they are.
        struct: the JSON of the rows' StructType.
        replaces: whether each batch takes the place of all rows, which is the output mode `complete`.

    Raises:
        InvalidInputError: the id of the query is not known.
    """

    def __init__(self, options: SourceOptions, struct: Mapping[str, Any], *, replaces: bool) -> None:
        query = options.stream_query()
        self._query, self._is_given, self._checkpoint = _query_id(query), bool(query.id), query.checkpoint
        self._sink = Sink.begin(options.address(), struct, options.write_options(), replaces=replaces)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WrittenBatch:
        """Write the rows of a task."""
        task = TaskContext.get()
        return WrittenBatch(self._sink, self._sink.write(iterator), task and task.getLocalProperty(CHECKPOINT_PROPERTY))

    def commit(self, messages: list[WrittenBatch | None], batchId: int) -> None:  # noqa: N803
        """Make a version of the batch, unless there is one. A batch without rows makes none."""
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
        checkpoints = {each[CHECKPOINT] for each in (last_properties, properties) if CHECKPOINT in each}
        if self._is_given and (last > batch or len(checkpoints) > 1):
            # Spark counts from 0 with a new checkpoint. To take its batches for the old ones would lose their rows.
            raise InvalidInputError(
                f"{table} has batch {last} of the query {self._query!r}, and this is batch {batch}"
                f"{' of another checkpoint' if len(checkpoints) > 1 else ''}: a new checkpoint needs another queryId"
            )
        return last >= batch

    def abort(self, messages: list[WrittenBatch | None], batchId: int) -> None:  # noqa: ARG002, N803
        """Remove what was written, also by tasks of which Spark has no message."""
        written = [message for message in messages if message is not None]
        if written:
            written[0].sink.abort()


def _last_batch_properties(table: TableRef, query: str) -> Mapping[str, str]:
    """The properties of the last version that a query made, if one is there. Only versions after it are looked at."""
    found: Mapping[str, str] = {}

    def is_ours(made: Any) -> bool:
        nonlocal found
        properties: Mapping[str, str] = made.transaction_properties or {}
        if properties.get(QUERY) == query:
            found = properties
        return bool(found)

    find_version(table, is_ours)
    return found


def _query_id(query: StreamQuery) -> str:
    """The id of the streaming query: Spark keeps it in a file of the checkpoint, the same for every run.

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
    """The id in the file of a checkpoint, as far as it can be read."""
    with suppress(InvalidInputError):
        return _query_id(StreamQuery(checkpoint=checkpoint))
    return None


def _read_metadata(checkpoint: str) -> bytes:
    if (folder := local_folder(checkpoint)) is not None:
        return (folder / "metadata").read_bytes()
    # Hadoop has several names for one store, of which Arrow knows one.
    store, path = fs.FileSystem.from_uri(re.sub("^s3[an]:", "s3:", checkpoint))
    with store.open_input_stream(f"{path}/metadata") as file:
        return bytes(file.read())
