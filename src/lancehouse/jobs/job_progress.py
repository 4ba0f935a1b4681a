"""Record the progress of a job in small files below a table's location, so that it can be resumed after a crash."""

from __future__ import annotations

import json
import re
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from pathlib import Path
from typing import Any
from uuid import uuid4

from lance.file import LanceFileSession
from lance_namespace.errors import InvalidInputError

from lancehouse.lake.dataset import StorageOptions, delete_file, local_folder
from lancehouse.lake.errors import translate_errors

FOLDER = "_lancehouse"
"""Folder below a table's location that belongs to Lancehouse; Lance does not look there."""

_JOBS = f"{FOLDER}/jobs"
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
    """

    location: str
    storage_options: StorageOptions = field(default_factory=dict, repr=False)
    job: str = ""

    def __post_init__(self) -> None:
        if not _JOB.fullmatch(self.job):
            raise InvalidInputError(f"{self.job!r} is no name of a job: it has letters, digits, '.', '_' and '-'")

    @property
    def folder(self) -> str:
        """Folder of the records, relative to the table's location."""
        return f"{_JOBS}/{self.job}"

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

    def read_records(self) -> dict[str, Any]:
        """Return the results of the steps that are done, by key.

        Records that are incomplete, or are removed meanwhile, are left out.
        """
        with translate_errors(f"{self.location}/{self.folder}", self.storage_options):
            records = self._list_records()
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

    def clear(self) -> None:
        """Remove all records of the job; it is no error if there are none."""
        with translate_errors(f"{self.location}/{self.folder}", self.storage_options):
            if place := local_folder(self.location):
                _remove_folder(place / self.folder, up_to=place / FOLDER)
                return
            options = dict(self.storage_options)
            with ThreadPoolExecutor(_AT_ONCE) as pool:
                list(
                    pool.map(
                        lambda name: delete_file(self.location, options, f"{self.folder}/{name}"), self._list_records()
                    )
                )

    def list_other_jobs(self, prefix: str) -> list[JobProgress]:
        """Return other jobs of the same table that have records and whose names start with a prefix."""
        with translate_errors(f"{self.location}/{FOLDER}", self.storage_options):
            if place := local_folder(self.location):
                folder = place / _JOBS
                names = {path.name for path in folder.iterdir()} if folder.is_dir() else set()
            else:
                names = {path.rpartition("/")[0].rpartition("/")[2] for path in self._open_session().list(_JOBS)}
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


def _remove_folder(folder: Path, *, up_to: Path) -> None:
    """Remove the files of a folder, then the folder and those above it that are empty, up to `up_to`."""
    if folder.is_dir():
        for path in folder.iterdir():
            path.unlink(missing_ok=True)
    with suppress(OSError):
        for empty in (folder, *folder.parents):
            if not empty.is_relative_to(up_to):
                return
            empty.rmdir()
