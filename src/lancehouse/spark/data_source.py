"""The Spark data source `format("lance")`: batch and streaming, read and write.

Spark finds it by the module `pyspark_lance`.
"""

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

from lancehouse.jobs.address import PinnedVersion
from lancehouse.jobs.job import find_version_of_same_run
from lancehouse.lake.changes import require_stable_row_ids
from lancehouse.lake.commits import NewFragment
from lancehouse.lake.dataset import VersionSelector
from lancehouse.lake.scans import FragmentRange, Scan, split_fragments
from lancehouse.schema.spark_rows import to_spark_rows
from lancehouse.spark.changes import add_change_columns
from lancehouse.spark.data_source_options import SourceOptions, TableUse
from lancehouse.spark.engine import Batches
from lancehouse.spark.session import to_struct
from lancehouse.spark.streams import LanceStreamReader, LanceStreamWriter, add_version_column
from lancehouse.spark.table_reader import TaskShare, read_following_batches, to_shares
from lancehouse.spark.table_writer import Sink


class LanceSource(DataSource):  # type: ignore[misc]
    """A Lance table, by its name in a catalog (`impl`, `table` and the client's properties) or by its `path`.

    Each query of a DataFrame or view reads one version: the one that is named, or the latest when the query starts. The
    columns are fixed when the DataFrame or view is created. Spark does not tell a Python source which columns and rows
    a query needs, so the user gives them with the options `columns` and `filter`. Filter pushdown is not implemented on
    purpose: Spark would apply the filters of one use of a DataFrame to all its uses.
    """

    _pinned: PinnedVersion | None = None
    _schema: pa.Schema | None = None

    @classmethod
    def name(cls) -> str:
        """Return the name for `format`."""
        return "lance"

    def schema(self) -> StructType:
        """Return the columns, and pin the version if one is named; Spark passes this object on to readers."""
        options = SourceOptions(self.options, TableUse.READ, TableUse.READ_STREAM)
        self._pinned = PinnedVersion.resolve(options.address(), options.version_selector())
        self._schema = options.scan().schema(*self._pinned.open())
        if options.follow_options().with_version:
            self._schema = add_version_column(self._pinned.address, self._schema)
        if options.follow_options().with_changes:
            table, dataset = self._pinned.open()
            require_stable_row_ids(table, has_them=dataset.has_stable_row_ids)
            self._schema = add_change_columns(self._pinned.address, self._schema)
        return to_struct(to_spark_rows(self._schema).struct)

    def reader(self, schema: StructType) -> LanceReader:  # noqa: ARG002
        """Return a reader of the version that was named, or of the latest. Spark keeps it for all queries of a view."""
        options = SourceOptions(self.options, TableUse.READ)
        follows = options.version_selector() == VersionSelector()
        return LanceReader(*self._require_schema(), options.scan(), options.tasks(), follows)

    def streamReader(self, schema: StructType) -> LanceStreamReader:  # noqa: ARG002, N802
        """Return a reader of what the table holds, and then of what is added to it."""
        return LanceStreamReader(*self._require_schema(), SourceOptions(self.options, TableUse.READ_STREAM))

    def writer(self, schema: StructType, overwrite: bool) -> LanceWriter:
        """Return a writer to the table as it is now."""
        options = SourceOptions(self.options, TableUse.WRITE)
        address, how = options.address(), options.write_options()
        is_done = find_version_of_same_run(address.to_ref(), how) is not None
        return LanceWriter(None if is_done else Sink.begin(address, schema.jsonValue(), how, replaces=overwrite))

    def streamWriter(self, schema: StructType, overwrite: bool) -> LanceStreamWriter:  # noqa: N802
        """Return a writer that writes each batch once."""
        return LanceStreamWriter(
            SourceOptions(self.options, TableUse.WRITE_STREAM), schema.jsonValue(), replaces=overwrite
        )

    def _require_schema(self) -> tuple[PinnedVersion, pa.Schema]:
        if self._pinned is None or self._schema is None:
            SourceOptions(
                self.options, *TableUse
            ).address()  # raises if there is none, as for a table of Spark's own catalog
            raise UnsupportedOperationError(
                "a Lance table has a schema of its own: choose columns by the option columns, not by schema()"
            )
        return self._pinned, self._schema


@dataclass(frozen=True, slots=True)
class LanceReader(DataSourceReader):  # type: ignore[misc]
    """Reads one version of a table, or the latest version at each query."""

    pinned: PinnedVersion
    schema: pa.Schema
    scan: Scan
    tasks: int
    follows: bool

    def partitions(self) -> list[InputPartition]:
        """Split the table into partitions, one for each task; a single one if there is a limit, which counts all
        rows.
        """
        # The version that was the latest when a view was created may be cleaned up before its first query.
        _, dataset = (PinnedVersion.resolve(self.pinned.address) if self.follows else self.pinned).open()
        tasks = self.tasks if self.scan.limit is None else 1
        parts = split_fragments(dataset, tasks, split=self.scan.filter is None)
        return [InputPartition(part) for part in (to_shares(parts) if self.follows else parts)]

    def read(self, partition: InputPartition) -> Batches:
        """Yield the rows of a partition; where there is none, Spark passes one whose value is None."""
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

    pieces: Sequence[NewFragment]


@dataclass(frozen=True, slots=True)
class LanceWriter(DataSourceArrowWriter):  # type: ignore[misc]
    """Writes rows and commits them as one version; writes nothing if the run was committed before."""

    sink: Sink | None

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WrittenPieces:
        """Write the rows of a task."""
        return WrittenPieces(self.sink.write(iterator) if self.sink is not None else ())

    def commit(self, messages: list[Any]) -> None:
        """Commit what the tasks wrote."""
        if self.sink is not None:
            pieces = [piece for message in messages if message is not None for piece in message.pieces]
            self.sink.commit(pieces, self.sink.how.properties)

    def abort(self, messages: list[Any]) -> None:  # noqa: ARG002
        """Remove what was written, including files of tasks that did not report to Spark."""
        if self.sink is not None:
            self.sink.abort()
