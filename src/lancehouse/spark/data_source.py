"""Lance tables for `spark.read.format("lance")` and its kin; Spark finds them by the module `pyspark_lance`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from lance_namespace.errors import UnsupportedOperationError
from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    InputPartition,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from lancehouse.lake.fragments import Piece
from lancehouse.lake.scans import FragmentRange, Scan, VersionSelector, split_fragments
from lancehouse.schema.lance_to_spark import to_spark_rows
from lancehouse.spark.data_source_options import SourceOptions, TableUse
from lancehouse.spark.session import to_struct
from lancehouse.spark.sink import Sink
from lancehouse.spark.streams import LanceStreamReader, LanceStreamWriter, add_version_column
from lancehouse.spark.table_reader import PinnedVersion, TaskShare, read_following_batches, to_shares
from lancehouse.spark.table_writer import find_version_of_same_run
from lancehouse.spark.tasks import Batches


class LanceSource(DataSource):  # type: ignore[misc]
    """A Lance table, by its name in a catalog (`impl`, `table` and the client's properties) or by its `path`.

    Each query of a DataFrame or view reads one version: the one that is named, else the latest as of the query's start.
    The columns are those of the time when the DataFrame or view was made. Spark does not tell which columns and rows a
    query needs, so say it by `columns` and `filter`. Filters are never taken from Spark itself: it would apply those of
    one use of a DataFrame to all.
    """

    _pinned: PinnedVersion | None = None
    _schema: pa.Schema | None = None

    @classmethod
    def name(cls) -> str:
        """What `format` calls it."""
        return "lance"

    def schema(self) -> StructType:
        """Choose the columns, and the version if one is named; this object goes to all that follow."""
        options = SourceOptions(self.options, TableUse.READ, TableUse.READ_STREAM)
        self._pinned = PinnedVersion.resolve(options.address(), options.version_selector())
        self._schema = options.scan().schema(*self._pinned.open())
        if options.follow_options().with_version:
            self._schema = add_version_column(self._pinned.address, self._schema)
        return to_struct(to_spark_rows(self._schema).struct)

    def reader(self, schema: StructType) -> LanceReader:  # noqa: ARG002
        """Reads the version that was named, or follows the table. Spark keeps this for all queries of a view."""
        options = SourceOptions(self.options, TableUse.READ)
        follows = options.version_selector() == VersionSelector()
        return LanceReader(*self._require_schema(), options.scan(), options.tasks(), follows)

    def streamReader(self, schema: StructType) -> LanceStreamReader:  # noqa: ARG002, N802
        """Reads what the table holds, then what comes to it."""
        return LanceStreamReader(*self._require_schema(), SourceOptions(self.options, TableUse.READ_STREAM))

    def writer(self, schema: StructType, overwrite: bool) -> LanceWriter:
        """Writes to the table as it is now."""
        options = SourceOptions(self.options, TableUse.WRITE)
        address, how = options.address(), options.write_options()
        is_done = find_version_of_same_run(address.to_ref(), how) is not None
        return LanceWriter(None if is_done else Sink.begin(address, schema.jsonValue(), how, replaces=overwrite))

    def streamWriter(self, schema: StructType, overwrite: bool) -> LanceStreamWriter:  # noqa: N802
        """Writes each batch once."""
        return LanceStreamWriter(
            SourceOptions(self.options, TableUse.WRITE_STREAM), schema.jsonValue(), replaces=overwrite
        )

    def _require_schema(self) -> tuple[PinnedVersion, pa.Schema]:
        if self._pinned is None or self._schema is None:
            SourceOptions(
                self.options, *TableUse
            ).address()  # raises where there is none: in a table of Spark's own catalog
            raise UnsupportedOperationError(
                "a Lance table has a schema of its own: choose columns by the option columns, not by schema()"
            )
        return self._pinned, self._schema


@dataclass(frozen=True, slots=True)
class LanceReader(DataSourceReader):  # type: ignore[misc]
    """Reads one version of a table, or in each query the latest."""

    pinned: PinnedVersion
    schema: pa.Schema
    scan: Scan
    tasks: int
    follows: bool

    def partitions(self) -> list[InputPartition]:
        """The parts of the table, for as many tasks; one task where a limit counts the rows of all."""
        # The version that was the latest when a view was made may be cleaned up before its first query.
        _, dataset = (
            PinnedVersion.resolve(self.pinned.address, VersionSelector()) if self.follows else self.pinned
        ).open()
        tasks = self.tasks if self.scan.limit is None else 1
        parts = split_fragments(dataset, tasks, split=self.scan.filter is None)
        return [InputPartition(part) for part in (to_shares(parts) if self.follows else parts)]

    def read(self, partition: InputPartition) -> Batches:
        """The rows of a part; Spark asks for a part that is None where there are none."""
        rows = to_spark_rows(self.schema)
        for batch in self._batches(partition.value):
            yield from rows.convert_batches(batch)

    def _batches(self, part: TaskShare | Sequence[FragmentRange] | None) -> Iterator[pa.RecordBatch]:
        if isinstance(part, TaskShare):
            return read_following_batches(self.pinned, part, self.scan, self.schema)
        return self.scan.batches(*self.pinned.open(), part or ())


@dataclass(frozen=True, slots=True)
class WrittenPieces(WriterCommitMessage):  # type: ignore[misc]
    """What a task has written."""

    pieces: Sequence[Piece]


@dataclass(frozen=True, slots=True)
class LanceWriter(DataSourceArrowWriter):  # type: ignore[misc]
    """Writes rows and makes one version of them; nothing, if the run was there before."""

    sink: Sink | None

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WrittenPieces:
        """Write the rows of a task."""
        return WrittenPieces(self.sink.write(iterator) if self.sink is not None else ())

    def commit(self, messages: list[Any]) -> None:
        """Make the version."""
        if self.sink is not None:
            pieces = [piece for message in messages if message is not None for piece in message.pieces]
            self.sink.commit(pieces, self.sink.how.properties)

    def abort(self, messages: list[Any]) -> None:  # noqa: ARG002
        """Remove what was written, also by tasks of which Spark has no message."""
        if self.sink is not None:
            self.sink.abort()
