"""`Job`: work on one table in pieces, with the records of its progress, by which it is resumed and cleaned up.

A job plans, has an `Engine` run its pieces, and makes one commit. Its records are small files below the table's
location: what each piece has written, so that the same call can go on after a crash, or all can be removed.
"""

from __future__ import annotations

import json
import logging
import re
import tempfile
from collections.abc import Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from pathlib import Path
from typing import Any
from uuid import uuid4

import pyarrow as pa
from lance.file import LanceFileSession
from lance_namespace import DeclareTableRequest, DeregisterTableRequest, DescribeTableRequest
from lance_namespace.errors import (
    InternalError,
    InvalidInputError,
    LanceNamespaceError,
    TableAlreadyExistsError,
    TableNotFoundError,
)

from lancehouse.jobs.address import TableAddress
from lancehouse.lake.commits import (
    RUN,
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
from lancehouse.lake.dataset import StorageOptions, TableRef, delete_file, local_folder
from lancehouse.lake.errors import translate_errors
from lancehouse.lake.removal import is_empty_location, remove_dataset

logger = logging.getLogger(__name__)

FOLDER = "_lancehouse"
"""Folder below a table's location that belongs to Lancehouse; Lance does not look there."""

RUNNING = "running"
"""Key of a job's record: it is not over yet."""

JOBS = "jobs"
"""Folder of the records of jobs, which are over some day; others stay with the table."""
_JOB = re.compile(r"[\w-][\w.-]{0,199}", re.ASCII)
_AT_ONCE = 16
_ATTEMPTS = 10


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
            progress.forget(RUNNING)
            records = progress.read_records()
            written = [piece for pieces in records.values() for piece in pieces]
            discard_fragments(written, self.write_location(), keep=set(list_fragment_files(used)))
            progress.clear(records)
        except LanceNamespaceError as left:
            logger.warning(
                "%s: files of job %s may be left, which remove_orphans names: %s", self.address, self.id, left
            )


@dataclass(frozen=True, slots=True)
class JobProgress:
    """The records of one job. A record exists completely or not at all; this object can be sent to other processes.

    Args:
        location: location of the table, which need not exist yet.
        storage_options: storage options to reach it.
        job: name of the job, the same when it is started again: letters, digits, `.`, `_` and `-`.
        kind: folder of such records.
    """

    location: str
    storage_options: StorageOptions = field(default_factory=dict, repr=False)
    job: str = ""
    kind: str = JOBS
    """Folder of records of this kind."""

    def __post_init__(self) -> None:
        if not _JOB.fullmatch(self.job):
            raise InvalidInputError(f"{self.job!r} is no name of a job: it has letters, digits, '.', '_' and '-'")

    @property
    def folder(self) -> str:
        """Folder of the records, relative to the table's location."""
        return f"{FOLDER}/{self.kind}/{self.job}"

    def record(self, key: str, value: Any) -> None:
        """Record that a step is done, and its result. A second record of the same key replaces the first.

        Args:
            key: identifies the step.
            value: the result; anything that JSON can hold.
        """
        data = json.dumps({"key": key, "value": value}, allow_nan=False).encode()
        with translate_errors(f"{self.location}/{self.folder}", self.storage_options):
            if place := local_folder(self.location):
                _write_atomically(place / self.folder, _file_name(key), data)
                return
            with tempfile.TemporaryDirectory() as scratch:
                copy = Path(scratch) / "record"
                copy.write_bytes(data)
                self._open_session().upload_file(copy, f"{self.folder}/{_file_name(key)}")

    def read_records(self, known: Collection[str] = ()) -> dict[str, Any]:
        """Return the results of the steps that are done, by key.

        Records that are incomplete, or are removed meanwhile, are left out.

        Args:
            known: keys of records that the caller has, and that are not read again.
        """
        with translate_errors(f"{self.location}/{self.folder}", self.storage_options):
            names = set(map(_file_name, known))
            records = [name for name in self._list_records() if name not in names]
            with ThreadPoolExecutor(_AT_ONCE) as readers:
                contents = readers.map(self._read_record, records)
                return dict(
                    entry for name, data in zip(records, contents, strict=True) for entry in _parse_record(name, data)
                )

    def has_record(self, key: str) -> bool:
        """Return whether a step is recorded as done."""
        with translate_errors(f"{self.location}/{self.folder}", self.storage_options):
            if place := local_folder(self.location):
                return (place / self.folder / _file_name(key)).exists()
            return bool(self._open_session().contains(f"{self.folder}/{_file_name(key)}"))

    def forget(self, key: str) -> None:
        """Remove the record of a step; it is no error if there is none."""
        with translate_errors(f"{self.location}/{self.folder}", self.storage_options):
            delete_file(self.location, dict(self.storage_options), f"{self.folder}/{_file_name(key)}")

    def forget_all(self, keys: Collection[str]) -> None:
        """Remove the records of some steps; those that others add meanwhile stay."""
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            list(pool.map(self.forget, keys))
        if place := local_folder(self.location):
            _remove_empty_folders(place / self.folder, up_to=place / FOLDER)

    def clear(self, known: Collection[str] | None = None, last: str = "") -> None:
        """Remove all records of the job; it is no error if there are none.

        Args:
            known: the keys of the records, if the caller has just read them: an object store is not asked again.
            last: key of the record that is removed after all others, so that it is still there if this is interrupted.
        """
        last_name = _file_name(last)
        with translate_errors(f"{self.location}/{self.folder}", self.storage_options):
            if place := local_folder(self.location):
                _remove_folder(place / self.folder, up_to=place / FOLDER, last=last_name)
                return
            options = dict(self.storage_options)
            names = set(self._list_records() if known is None else map(_file_name, known))
            with ThreadPoolExecutor(_AT_ONCE) as pool:
                for some in (names - {last_name}, names & {last_name}):
                    list(pool.map(lambda name: delete_file(self.location, options, f"{self.folder}/{name}"), some))

    def list_other_jobs(self, prefix: str) -> list[JobProgress]:
        """Return other jobs of the same table that have records and whose names start with a prefix."""
        with translate_errors(f"{self.location}/{FOLDER}", self.storage_options):
            if place := local_folder(self.location):
                folder = place / FOLDER / self.kind
                names = {path.name for path in folder.iterdir()} if folder.is_dir() else set()
            else:
                names = {
                    path.rpartition("/")[0].rpartition("/")[2]
                    for path in self._open_session().list(f"{FOLDER}/{self.kind}")
                }
        return [replace(self, job=name) for name in sorted(names - {self.job}) if name.startswith(prefix)]

    def _list_records(self) -> list[str]:
        if place := local_folder(self.location):
            folder = place / self.folder
            names = [path.name for path in folder.iterdir()] if folder.is_dir() else []
        else:
            names = [path.rpartition("/")[2] for path in self._open_session().list(self.folder)]
        return sorted(names)

    def _read_record(self, name: str) -> bytes | None:
        if place := local_folder(self.location):
            with suppress(FileNotFoundError):
                return (place / self.folder / name).read_bytes()
            return None
        with tempfile.TemporaryDirectory() as scratch:
            copy = Path(scratch) / "record"
            try:
                self._open_session().download_file(f"{self.folder}/{name}", copy)
            except (OSError, ValueError):
                # Only a record that was removed since it was listed may be missing.
                if self._open_session().contains(f"{self.folder}/{name}"):
                    raise
                return None
            return copy.read_bytes()

    def _open_session(self) -> LanceFileSession:
        return LanceFileSession(self.location, storage_options=dict(self.storage_options) or None)


def _file_name(key: str) -> str:
    return f"{blake2b(key.encode(errors='surrogatepass'), digest_size=16).hexdigest()}.json"


def _parse_record(name: str, data: bytes | None) -> Iterator[tuple[str, Any]]:
    """Yield the key and the value of a record, if it is complete and stored under the right name."""
    with suppress(ValueError):
        match json.loads(data or b""):
            case {"key": str(key), "value": value} if _file_name(key) == name:
                yield key, value


def _write_atomically(folder: Path, name: str, data: bytes) -> None:
    """Write a file in one step, so that no reader sees half of it."""
    part = folder / f".{uuid4().hex}.part"
    for attempt in range(_ATTEMPTS):
        try:
            folder.mkdir(parents=True, exist_ok=True)
            part.write_bytes(data)
            part.replace(folder / name)
            return
        except FileNotFoundError:  # another job has just ended, and removed the folder above, which was empty
            if attempt == _ATTEMPTS - 1:
                raise
        finally:
            part.unlink(missing_ok=True)


def _remove_folder(folder: Path, *, up_to: Path, last: str) -> None:
    """Remove the files of a folder, `last` after the others; then it, and folders above up to `up_to`, if empty."""
    if folder.is_dir():
        for path in sorted(folder.iterdir(), key=lambda path: path.name == last):
            path.unlink(missing_ok=True)
    _remove_empty_folders(folder, up_to=up_to)


def _remove_empty_folders(folder: Path, *, up_to: Path) -> None:
    with suppress(OSError):
        for empty in (folder, *folder.parents):
            if not empty.is_relative_to(up_to):
                return
            empty.rmdir()


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


def declare_table(table: TableRef, properties: Mapping[str, str] | None = None) -> bool:
    """Declare a table in the catalog if it is missing, with some properties; return whether this call declared it."""
    if table.namespace is None:
        return False
    try:
        table.namespace.describe_table(DescribeTableRequest(id=list(table.id)))
    except TableNotFoundError:
        with suppress(TableAlreadyExistsError):  # another writer was faster
            table.namespace.declare_table(
                DeclareTableRequest(id=list(table.id), properties=dict(properties or {}) or None)
            )
            return True
    return False


def undo_declaration(table: TableRef) -> None:
    """Remove the catalog entry of a table that was declared for a job that failed, after its files were removed.

    The entry stays if the table has a version by now, or if another writer has begun to write files there.
    """
    if table.namespace is not None and not table.exists():
        at = locate_table(table)
        if is_empty_location(at.location, at.storage_options):
            table.namespace.deregister_table(DeregisterTableRequest(id=list(table.id)))
            remove_dataset(at.location, at.storage_options)
