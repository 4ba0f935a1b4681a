"""Records of jobs: small files below a table's location, each of which exists completely or not at all."""

from __future__ import annotations

import json
import os
import re
import stat
import tempfile
from collections.abc import Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from pathlib import Path
from typing import Any
from uuid import uuid4

from lance.file import LanceFileSession
from lance_namespace.errors import InvalidInputError

from lancehouse.lake.dataset import StorageOptions, delete_file, open_files
from lancehouse.lake.errors import translate_errors
from lancehouse.locations import local_folder

FOLDER = "_lancehouse"
"""Folder below a table's location that belongs to Lancehouse; Lance does not look there."""
JOBS = "jobs"
"""Folder of the records of jobs, which are over some day; others stay with the table."""
_JOB = re.compile(r"[\w-][\w.-]{0,199}", re.ASCII)
_AT_ONCE = 16
_ATTEMPTS = 10


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

    def read_records(
        self, known_keys: Collection[str] = (), limit: int | None = None, max_bytes: int | None = None
    ) -> dict[str, Any]:
        """Return the results of the steps that are done, by key.

        Records that are incomplete, or are removed meanwhile, are left out.

        Args:
            known: keys of records that the caller has, and that are not read again.
            limit: most records to read, for a server: others may have put anything there.
            max_bytes: size of a record up to which it is read; then no link is followed either.
        """
        with translate_errors(f"{self.location}/{self.folder}", self.storage_options):
            names = set(map(_file_name, known_keys))
            records = [name for name in self._list_records() if name not in names][:limit]
            with ThreadPoolExecutor(_AT_ONCE) as readers:
                contents = readers.map(lambda name: self._read_record(name, max_bytes), records)
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

    def clear(self, known_keys: Collection[str] | None = None, last: str = "") -> None:
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
            names = set(self._list_records() if known_keys is None else map(_file_name, known_keys))
            with ThreadPoolExecutor(_AT_ONCE) as pool:
                for some in (names - {last_name}, names & {last_name}):
                    list(pool.map(lambda name: delete_file(self.location, options, f"{self.folder}/{name}"), some))

    def list_other_jobs(self, prefix: str) -> list[JobProgress]:
        """Return other jobs of the same table that have records and whose names start with a prefix."""
        with translate_errors(f"{self.location}/{FOLDER}", self.storage_options):
            if place := local_folder(self.location):
                names = set(_list_folder(place / FOLDER / self.kind))
            else:
                names = {
                    path.rpartition("/")[0].rpartition("/")[2]
                    for path in self._open_session().list(f"{FOLDER}/{self.kind}")
                }
        return [replace(self, job=name) for name in sorted(names - {self.job}) if name.startswith(prefix)]

    def _list_records(self) -> list[str]:
        if place := local_folder(self.location):
            names = _list_folder(place / self.folder)
        else:
            names = [path.rpartition("/")[2] for path in self._open_session().list(self.folder)]
        return sorted(names)

    def _read_record(self, name: str, max_bytes: int | None) -> bytes | None:
        if place := local_folder(self.location):
            with suppress(FileNotFoundError):
                path = place / self.folder / name
                return path.read_bytes() if max_bytes is None or _is_small_file(path, max_bytes) else None
            return None
        if max_bytes is not None and self._is_longer(name, max_bytes):
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

    def _is_longer(self, name: str, size: int) -> bool:
        """Return whether a record in an object store has more bytes, of which pylance does not return the size."""
        try:
            return bool(self._open_session().read_range(f"{self.folder}/{name}", size, 1))
        except (OSError, ValueError):
            return False

    def _open_session(self) -> LanceFileSession:
        return open_files(self.location, self.storage_options)


def _list_folder(folder: Path) -> list[str]:
    """Return the names in a folder; none if it does not exist, as after a job that removed it just now."""
    with suppress(FileNotFoundError):
        return os.listdir(folder)  # noqa: PTH208 - in one step: another job may remove the folder at any time
    return []


def _is_small_file(path: Path, max_bytes: int) -> bool:
    state = path.lstat()
    return stat.S_ISREG(state.st_mode) and state.st_size <= max_bytes


def _file_name(key: str) -> str:
    """Return a name that every file system and store takes: keys are any text, such as addresses of files."""
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
    for name in sorted(_list_folder(folder), key=lambda name: name == last):
        (folder / name).unlink(missing_ok=True)
    _remove_empty_folders(folder, up_to=up_to)


def _remove_empty_folders(folder: Path, *, up_to: Path) -> None:
    with suppress(OSError):
        for empty in (folder, *folder.parents):
            if not empty.is_relative_to(up_to):
                return
            empty.rmdir()
