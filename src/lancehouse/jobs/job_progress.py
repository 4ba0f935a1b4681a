"""What a job has done so far: small records below a table's location, so that one that died goes on where it was."""

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
"""Ours, below a table's location: Lance does not look there."""

_JOBS = f"{FOLDER}/jobs"
_JOB = re.compile(r"[\w-][\w.-]{0,199}", re.ASCII)
_AT_ONCE = 16
_ATTEMPTS = 10


@dataclass(frozen=True, slots=True)
class JobProgress:
    """The records of one job. Each is there as a whole or not at all; it can be sent to other processes.

    Args:
        location: of the table, which need not exist yet.
        storage_options: to reach it.
        job: a name for the job, the same when it is started again: letters, digits, `.`, `_` and `-`.
    """

    location: str
    storage_options: StorageOptions = field(default_factory=dict, repr=False)
    job: str = ""

    def __post_init__(self) -> None:
        if not _JOB.fullmatch(self.job):
            raise InvalidInputError(f"{self.job!r} is no name of a job: it has letters, digits, '.', '_' and '-'")

    @property
    def folder(self) -> str:
        """Where the records lie, below the table's location."""
        return f"{_JOBS}/{self.job}"

    def record(self, key: str, value: Any) -> None:
        """Record that something is done, and what came of it; a second record of the same key takes the first's place.

        Args:
            key: what was done.
            value: anything that JSON can hold.
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
        """What is done, by key. A record that is torn is not counted, nor is one that goes meanwhile."""
        with translate_errors(f"{self.location}/{self.folder}", self.storage_options):
            records = self._list_records()
            with ThreadPoolExecutor(_AT_ONCE) as readers:
                contents = readers.map(self._read_record, records)
                return dict(
                    entry for name, data in zip(records, contents, strict=True) for entry in _parse_record(name, data)
                )

    def has_record(self, key: str) -> bool:
        """Whether something is recorded as done."""
        with translate_errors(f"{self.location}/{self.folder}", self.storage_options):
            if place := local_folder(self.location):
                return (place / self.folder / _file_name(key)).exists()
            return bool(self._open_session().contains(f"{self.folder}/{_file_name(key)}"))

    def forget(self, key: str) -> None:
        """Take a record back; nothing there is no error."""
        with translate_errors(f"{self.location}/{self.folder}", self.storage_options):
            delete_file(self.location, dict(self.storage_options), f"{self.folder}/{_file_name(key)}")

    def clear(self) -> None:
        """Forget the job; nothing there is no error."""
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
        """Other jobs of the same table that have records, and whose names begin in the same way."""
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
                if self._open_session().contains(f"{self.folder}/{name}"):
                    raise
                return None
            return copy.read_bytes()

    def _open_session(self) -> LanceFileSession:
        return LanceFileSession(self.location, storage_options=dict(self.storage_options) or None)


def _file_name(key: str) -> str:
    return f"{blake2b(key.encode(errors='surrogatepass'), digest_size=16).hexdigest()}.json"


def _parse_record(name: str, data: bytes | None) -> Iterator[tuple[str, Any]]:
    """The key and the value of a record, if it is whole and under its own name."""
    with suppress(ValueError):
        match json.loads(data or b""):
            case {"key": str(key), "value": value} if _file_name(key) == name:
                yield key, value


def _write_atomically(folder: Path, name: str, data: bytes) -> None:
    """Write a file in one step: nobody sees half of it."""
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
    """Remove the files of a folder, then it and the folders above that are empty by now."""
    if folder.is_dir():
        for path in folder.iterdir():
            path.unlink(missing_ok=True)
    with suppress(OSError):
        for empty in (folder, *folder.parents):
            if not empty.is_relative_to(up_to):
                return
            empty.rmdir()
