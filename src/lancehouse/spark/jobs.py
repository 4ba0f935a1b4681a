"""Jobs that write files in Spark tasks: record what tasks write, and delete what is not committed."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import chain
from uuid import uuid4

import pyarrow as pa
from lance_namespace.errors import InternalError, LanceNamespaceError
from pyspark import TaskContext
from pyspark.sql import DataFrame

from lancehouse.jobs.job_progress import JobProgress
from lancehouse.lake.commits import is_refusal
from lancehouse.lake.fragments import FileLayout, Piece, TableLocation, discard_pieces, write_pieces
from lancehouse.schema.spark_to_lance import SparkToLance, from_spark_rows
from lancehouse.spark.address import TableAddress
from lancehouse.spark.errors import translate_task_errors
from lancehouse.spark.tasks import RESULT_STRUCT, Batches, collect_texts, to_result_batches

logger = logging.getLogger(__name__)

RUNNING = "running"
"""Key of a job's record: it is not over yet."""


@dataclass(frozen=True, slots=True)
class Job:
    """One job that writes to a table; can be sent to executors."""

    address: TableAddress
    id: str = field(default_factory=lambda: uuid4().hex)
    is_watched: bool = True
    """Whether tasks check that the job is still running. Not for data sources: Spark itself drives them, and may stop
    calling before the end."""

    def write(self, rows: pa.RecordBatchReader, mode: str, layout: FileLayout) -> list[Piece]:
        """Write rows in a task, and record what was written: Spark does not return the results of a job that fails."""
        pieces = write_pieces(self.address.to_ref(), self.write_location(), rows, mode=mode, layout=layout)
        self.record_pieces(pieces)
        return pieces

    def write_rows(self, batches: Batches, incoming: SparkToLance, mode: str, layout: FileLayout) -> list[Piece]:
        """Convert and write rows as Spark passes them to a task; nothing is written if there are none."""
        rows = (batch for batch in batches if batch.num_rows)
        first = next(rows, None)
        if first is None:
            return []
        converted = map(incoming.convert_batch, chain([first], rows))
        return self.write(pa.RecordBatchReader.from_batches(incoming.schema, converted), mode, layout)

    def write_location(self) -> TableLocation:
        """Return the location that the job writes to."""
        return self.address.write_location(self.id)

    def record_pieces(self, pieces: Sequence[Piece]) -> None:
        """Record what a task has written, and remove it if the job is over already, as nobody else would.

        Raises:
            InternalError: the job is over, and what the task has written is removed.
        """
        context, progress = TaskContext.get(), self._progress()
        attempt = f"{context.partitionId()}-{context.taskAttemptId()}" if context else "driver"
        # First record, then look whether the job still runs. In the other order the driver could end the job in
        # between, and nobody would remove these files.
        progress.record(attempt, list(pieces))
        if self.is_watched and not progress.has_record(RUNNING):
            discard_pieces(pieces, self.write_location())
            progress.clear()
            raise InternalError(f"{self.address}: the job {self.id} was over before this task")

    @contextmanager
    def clean_up_after(self, used: list[Piece]) -> Iterator[None]:
        """Delete, at the end of the block, files of tasks that `used` does not contain; all if the commit is refused.

        The caller fills `used` when the commit begins: from then on, only an explicit refusal shows that the commit was
        not made, and after any other error the files stay.
        """
        if self.is_watched:
            self._progress().record(RUNNING, [])
        try:
            yield
        except BaseException as error:
            if not used or (isinstance(error, LanceNamespaceError) and is_refusal(error)):
                self._delete_unused(())
            raise
        self._delete_unused(used)

    def _delete_unused(self, used: Sequence[Piece]) -> None:
        try:
            progress, used_pieces = self._progress(), set(used)
            progress.forget(RUNNING)
            written = [piece for pieces in progress.read_records().values() for piece in pieces]
            discard_pieces((piece for piece in written if piece not in used_pieces), self.write_location())
            progress.clear()
        except LanceNamespaceError as left:
            logger.warning(
                "%s: files of job %s may be left, which remove_orphans names: %s", self.address, self.id, left
            )

    def _progress(self) -> JobProgress:
        at = self.write_location()
        return JobProgress(at.location, at.storage_options, self.id)


def write_frame(frame: DataFrame, job: Job, target: pa.Schema, mode: str, layout: FileLayout) -> list[Piece]:
    """Write the rows of a DataFrame in its own tasks, without a commit.

    Args:
        frame: the rows.
        job: the job that they belong to.
        target: the columns of the table.
        mode: mode of `lake.fragments.write_pieces`.
        layout: sizes and format of files.

    Raises:
        TableSchemaValidationError: the columns do not fit; nothing is written.
    """
    incoming = from_spark_rows(frame.schema.jsonValue(), target)
    plain = frame.toDF(*(f"c{number}" for number in range(len(frame.columns))))  # mapInArrow does not quote names
    with translate_task_errors():
        return collect_texts(
            plain.mapInArrow(
                lambda batches: to_result_batches(job.write_rows(batches, incoming, mode, layout)), RESULT_STRUCT
            )
        )
