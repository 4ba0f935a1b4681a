"""`Job`: work on one table in pieces, with the records of its progress, by which it is resumed and cleaned up.

A job plans, has an `Engine` run its pieces, and makes one commit. Its records are small files below the table's
location: what each piece has written, so that the same call can go on after a crash, or all can be removed.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, TypeVar
from urllib.parse import unquote
from uuid import uuid4

import pyarrow as pa
from lance_namespace import DeclareTableRequest, DeregisterTableRequest, DescribeTableRequest
from lance_namespace.errors import (
    InternalError,
    InvalidInputError,
    LanceNamespaceError,
    TableAlreadyExistsError,
    TableNotFoundError,
    TableSchemaValidationError,
)

from lancehouse.jobs.address import TableAddress
from lancehouse.lake.commits import (
    RUN,
    ColumnsChangedError,
    FileLayout,
    NewFragment,
    TableLocation,
    discard_fragments,
    find_version_of_run,
    is_refusal,
    list_fragment_files,
    locate_table,
    try_discard_fragments,
    write_uncommitted,
)
from lancehouse.lake.dataset import TableRef
from lancehouse.lake.dataset_files import is_empty_location, remove_dataset
from lancehouse.lake.foreign_tables import is_directory
from lancehouse.lake.job_records import JobProgress
from lancehouse.lake.row_changes import ATTEMPTS

logger = logging.getLogger(__name__)

T = TypeVar("T")

RUNNING = "running"
"""Key of a job's record: it is not over yet."""


@dataclass(frozen=True, slots=True)
class Job:
    """One job that writes to a table; can be sent to other processes.

    Args:
        address: the table.
        id: names its records. A job that can be resumed has the same id when it is started again.
        is_watched: whether pieces check that the job still runs. Not for data sources: Spark itself drives them, and
            may stop calling before the end.
        call: distinguishes calls of the same job in the cache of locations.
    """

    address: TableAddress
    id: str = field(default_factory=lambda: uuid4().hex)
    is_watched: bool = True
    call: str = field(default_factory=lambda: uuid4().hex)

    def to_ref(self) -> TableRef:
        """Return a reference to the table for a piece of the job."""
        return self.address.to_ref(self.call)

    def write_location(self) -> TableLocation:
        """Return the location that the job writes to."""
        return self.address.write_location(self.call)

    def progress(self) -> JobProgress:
        """Return the records of the job."""
        at = self.write_location()
        return JobProgress(at.location, at.storage_options, self.id)

    def write(self, rows: pa.RecordBatchReader, mode: str, layout: FileLayout) -> list[NewFragment]:
        """Write rows, and record what was written: an engine does not return the results of a run that fails."""
        pieces = write_uncommitted(self.to_ref(), self.write_location(), rows, mode=mode, layout=layout)
        self.record_written(pieces)
        return pieces

    def record_written(self, written: Sequence[NewFragment]) -> None:
        """Record what a piece of the job has written, and remove it if the job is over already, as nobody else would.

        Args:
            written: fragments, or paths of other files and folders below the table's location.

        Raises:
            InternalError: the job is over, and what was written is removed.
        """
        progress = self.progress()
        # First record, then look whether the job still runs. In the other order the job could end in between, and
        # nobody would remove these files.
        self.record_or_discard(uuid4().hex, list(written), written)
        if self.is_watched and not progress.has_record(RUNNING):
            discard_fragments(written, self.write_location())
            progress.clear()
            raise InternalError(f"{self.address}: the job {self.id} was over before this task")

    def record_or_discard(self, key: str, value: Any, written: Sequence[NewFragment]) -> None:
        """Record a step; if that fails, remove what the step has written, of which nobody else would know."""
        try:
            self.progress().record(key, value)
        except LanceNamespaceError:
            try_discard_fragments(written, self.write_location())
            raise

    @contextmanager
    def clean_up_after(self, used: list[NewFragment]) -> Iterator[None]:
        """Delete, at the end of the block, files that were written and that `used` lacks; all if the commit is refused.

        The caller fills `used` when the commit begins: from then on, only an explicit refusal shows that the commit was
        not made, and after any other error the files stay.
        """
        if self.is_watched:
            self.progress().record(RUNNING, [])
        try:
            yield
        except BaseException as error:
            if not used or (isinstance(error, LanceNamespaceError) and is_refusal(error)):
                self._delete_unused(())
            raise
        self._delete_unused(used)

    def _delete_unused(self, used: Sequence[NewFragment]) -> None:
        try:
            progress = self.progress()
            # First of all: a task that is still at work, and records its files after they are read here, finds in
            # `record_written` that the job is over, and removes them itself.
            progress.forget(RUNNING)
            records = progress.read_records()
            written = [piece for pieces in records.values() for piece in pieces]
            discard_fragments(written, self.write_location(), keep=set(list_fragment_files(used)))
            progress.clear(records)
        except LanceNamespaceError as left:
            logger.warning(
                "%s: files of job %s may be left over; remove_orphans removes them: %s", self.address, self.id, left
            )


# What writing jobs share


@dataclass(frozen=True, slots=True)
class WriteOptions:
    """Options for writing rows."""

    vector_columns: Mapping[str, int] = field(default_factory=dict)
    """Arrays that become vectors, with their dimensions; not needed for columns that the table has already."""
    layout: FileLayout = field(default_factory=FileLayout)
    run: str | None = None
    """Name of the run; a run that has made a version already makes no other."""
    is_new: bool = False
    """Whether the run is known to be new, so that no version of it is searched for."""
    nullable: bool = True
    """Whether all columns of a new table are nullable; if not, they are as nullable as those of the rows."""
    notes: Mapping[str, str] = field(default_factory=dict)
    """Further transaction properties of the version."""
    evolves: bool = False
    """Whether the columns of the table change so that the rows fit."""

    @property
    def properties(self) -> dict[str, str]:
        """Transaction properties of the version."""
        return {**self.notes, **({RUN: self.run} if self.run is not None else {})}


@dataclass(frozen=True, slots=True)
class ChangeResult:
    """Version and numbers of rows of a change."""

    version: int
    """The version that the change made, or the latest one if there was nothing to do."""
    inserted: int = 0
    updated: int = 0
    deleted: int = 0


def find_version_of_same_run(table: TableRef, how: WriteOptions) -> int | None:
    """Return the version that the same run has made already, or None."""
    return None if how.run is None or how.is_new else find_version_of_run(table, how.run)


OTHER_COLUMNS = "Append with different schema"
"""Part of Lance's message about rows that were written for other types than the table has by now."""


def retry_changed_columns(how: WriteOptions, attempt: Callable[[], T]) -> T:
    """Write rows again, where columns may evolve, if somebody else has changed a type meanwhile."""
    for _ in range(ATTEMPTS - 1 if how.evolves else 0):
        try:
            return attempt()
        except (ColumnsChangedError, TableSchemaValidationError) as error:
            if isinstance(error, TableSchemaValidationError) and OTHER_COLUMNS not in str(error):
                raise
            logger.info("the rows are written again: %s", error)
    return attempt()


def declare_table(table: TableRef, properties: Mapping[str, str] | None = None) -> bool:
    """Declare a table in the catalog if it is missing, with some properties; return whether this call declared it."""
    if table.namespace is None:
        return False
    _require_folder_name(table)
    try:
        table.namespace.describe_table(DescribeTableRequest(id=list(table.id)))
    except TableNotFoundError:
        with suppress(TableAlreadyExistsError):  # another writer was faster
            table.namespace.declare_table(
                DeclareTableRequest(id=list(table.id), properties=dict(properties or {}) or None)
            )
            return True
    return False


def _require_folder_name(table: TableRef) -> None:
    """Check that a table of Lance's `dir` has the name of a folder: `dir` would write `../t` beside its root.

    Raises:
        InvalidInputError: it has not.
    """
    if not is_directory(table.namespace):
        return
    for level in table.id:
        decoded = unquote(unquote(level))  # `dir` makes an URL of it
        if decoded in ("", ".", "..") or any(character in decoded for character in "/\\\0"):
            raise InvalidInputError(f"{level!r} cannot be a name in a catalog of folders: it is no name of one")


def undo_declaration(table: TableRef) -> None:
    """Remove the catalog entry of a table that was declared for a job that failed, after its files were removed.

    The entry stays if the table has a version by now, or if another writer has begun to write files there.
    """
    if table.namespace is not None and not table.exists():
        at = locate_table(table)
        if is_empty_location(at.location, at.storage_options):
            table.namespace.deregister_table(DeregisterTableRequest(id=list(table.id)))
            # What the catalog has put there, such as `.lance-reserved` and `.lance-deregistered` of Lance's `dir`.
            remove_dataset(at.location, at.storage_options)


# Reports of progress


INTERVAL_S = 2.0
"""Seconds between two looks at the records; a fast function leaves one each second."""


@dataclass(frozen=True, slots=True)
class FillProgress:
    """How far a fill is; its text is for people."""

    name: str
    """The column, or the view."""
    rows: int
    """Rows that are done since the call began; what an earlier call has computed counts when it is taken over."""
    total: int
    errors: int
    """Rows for which the function has failed, so far."""
    seconds: float

    @property
    def rows_per_s(self) -> float:
        """Rows a second."""
        return self.rows / self.seconds if self.seconds else 0.0

    @property
    def seconds_left(self) -> float | None:
        """About how long the rest takes; None as long as nothing is done."""
        return (self.total - self.rows) / self.rows_per_s if self.rows else None

    def __str__(self) -> str:
        failed = f", {self.errors:,} failed" if self.errors else ""
        estimate = (
            "" if self.seconds_left is None else f", {self.rows_per_s:,.0f} a second, {self.seconds_left:,.0f} s left"
        )
        return f"{self.name}: {self.rows:,} of {self.total:,} rows{failed}{estimate}"


ReportFill = Callable[[FillProgress], None]
"""Called with the progress of a fill, in another thread; it must not raise."""


@contextmanager
def watch_fill(
    report: ReportFill | None,
    name: str,
    records: JobProgress,
    known_keys: Collection[str],
    count_all: Callable[[], int],
    count_done: Callable[[Mapping[str, Any]], tuple[int, int]],
) -> Iterator[None]:
    """Report progress when the block begins, while it runs, and when it has ended well.

    Args:
        report: is called with every change; None: do not watch.
        name: of the column or view.
        records: the records of the job.
        known: keys of records that an earlier call has left.
        count_all: returns how many rows there are to do.
        count_done: returns how many rows the records of this call have done, and how many of them failed.
    """
    if report is None:
        yield
        return
    total, start_time, ended = count_all(), time.monotonic(), threading.Event()
    new_records: dict[str, Any] = {}
    last = FillProgress(name, 0, total, 0, 0.0)
    report(last)

    def look() -> None:
        nonlocal last
        new_records.update(records.read_records({*known_keys, *new_records}))
        rows, errors = count_done(new_records)
        # Rows that came after all were counted are filled too.
        now = FillProgress(name, min(rows, total), total, errors, time.monotonic() - start_time)
        if (now.rows, now.errors) != (last.rows, last.errors):
            last = now
            report(now)

    def watch() -> None:
        try:
            while not ended.wait(INTERVAL_S):
                look()
        except LanceNamespaceError as error:
            logger.info("%s: no more progress is reported, as its records cannot be read: %s", name, error)

    thread = threading.Thread(target=watch, name="lancehouse-progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
    report(FillProgress(name, total, total, last.errors, time.monotonic() - start_time))
