"""Metadata files, on local disk and in object stores.

A location means here what it means to Iceberg's clients, in Python and in Java: they take a `file:` URI as it stands,
so `%20` in it is three characters of a name. `file:/x`, `file:///x` and `/x` are one file.
"""

from __future__ import annotations

import errno
import os
import re
from functools import lru_cache
from pathlib import Path
from uuid import uuid4

from lance_namespace.errors import InvalidInputError, ServiceUnavailableError
from pyiceberg.io import FileIO
from pyiceberg.io.pyarrow import PyArrowFileIO

from lancehouse.catalog import locations
from lancehouse.catalog.errors import MetadataNotFoundError
from lancehouse.catalog.warehouses import Warehouse
from lancehouse.credentials import to_iceberg_config

MAX_BYTES = 256 << 20
"""Of a metadata file, as it is stored and unpacked."""

_LOCAL = re.compile(r"(?:file:(?://)?)?(?P<path>/(?!/).*)", re.DOTALL)
_REMOTE = re.compile(r"(?!file:)[a-z][a-z0-9+.-]*://[^/?#]+/[^?#]+")
_MISTAKES = frozenset({errno.ENAMETOOLONG, errno.ENOTDIR, errno.EISDIR, errno.ELOOP, errno.EINVAL})
"""What only another location mends."""


class WarehouseFiles:
    """The files of a warehouse; cheap to make, and its connections are shared."""

    def __init__(self, warehouse: Warehouse) -> None:
        self._warehouse = warehouse

    def file_io(self) -> FileIO:
        """What pyiceberg reads and writes with."""
        return _cached_file_io(tuple(sorted(self._warehouse.storage.items())))

    def write(self, path: str, data: bytes) -> None:
        """Make a file; it is whole and durable when this returns, and otherwise not there.

        Raises:
            InvalidInputError: no file can have this path, or it would be too large to be read again.
            ServiceUnavailableError: the storage cannot be written now.
        """
        if len(data) > MAX_BYTES:
            raise _too_large_error(path)
        local = _local_path(path)
        try:
            if local is not None:
                _write_local(local, data)
            else:
                with self.file_io().new_output(_remote_uri(path)).create(overwrite=True) as stream:
                    stream.write(data)
        except (OSError, ValueError) as error:
            raise _to_lance_error("written", path, error) from error

    def read(self, path: str) -> bytes:
        """All of a file.

        Raises:
            MetadataNotFoundError: there is none.
            InvalidInputError: no file can have this path, or it is larger than a metadata file may be.
            ServiceUnavailableError: the storage cannot be read now.
        """
        locations.require_no_link(self._warehouse, path, "iceberg")
        local = _local_path(path)
        try:
            if local is not None:
                if local.stat().st_size > MAX_BYTES:
                    raise _too_large_error(path)
                return local.read_bytes()
            with self.file_io().new_input(_remote_uri(path)).open() as stream:
                if stream.seek(0, os.SEEK_END) > MAX_BYTES:
                    raise _too_large_error(path)
                stream.seek(0)
                return stream.read()
        except FileNotFoundError as error:
            raise MetadataNotFoundError(f"Failed to open input stream for file: {path}") from error
        except (OSError, ValueError) as error:
            raise _to_lance_error("read", path, error) from error

    def exists(self, path: str) -> bool:
        """Whether there is such a file."""
        local = _local_path(path)
        try:
            return local.is_file() if local is not None else bool(self.file_io().new_input(_remote_uri(path)).exists())
        except (OSError, ValueError) as error:
            raise _to_lance_error("read", path, error) from error

    def may_exist(self, path: str) -> bool:
        """Whether a file that was there before still is, as far as that is cheap to tell: not in an object store."""
        local = _local_path(path)
        return local is None or os.access(local, os.F_OK)

    def delete(self, path: str) -> None:
        """Remove a file; one that is not there is no error.

        Raises:
            InvalidInputError: no file can have this path.
            ServiceUnavailableError: the storage cannot be written now.
        """
        local = _local_path(path)
        try:
            if local is not None:
                local.unlink(missing_ok=True)
            else:
                self.file_io().delete(_remote_uri(path))
        except FileNotFoundError:
            return
        except (OSError, ValueError) as error:
            raise _to_lance_error("deleted", path, error) from error


@lru_cache(maxsize=64)
def _cached_file_io(storage: tuple[tuple[str, str], ...]) -> FileIO:
    return PyArrowFileIO(to_iceberg_config(dict(storage)))


def _local_path(path: str) -> Path | None:
    match = _LOCAL.fullmatch(path)
    if not match:
        return None
    if path.startswith("file:") and re.search(r"[?#]", path):
        raise InvalidInputError(f"{path!r}: clients do not agree on ? and # in a file URI; write a plain path")
    return Path(match["path"])


def _remote_uri(path: str) -> str:
    if not _REMOTE.fullmatch(path):
        raise InvalidInputError(f"{path!r} is neither an absolute path nor the URI of a file in an object store")
    return path


def _write_local(path: Path, data: bytes) -> None:
    _create_folder(path.parent)
    temporary = path.with_name(f".{uuid4()}.tmp")
    try:
        with temporary.open("xb") as stream:
            stream.write(data)
            stream.flush()
            os.fsync(stream.fileno())
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    _sync_folder(path.parent)


def _create_folder(path: Path) -> None:
    """Make a folder and those above it; what is new is durable."""
    if path.is_dir():
        return
    _create_folder(path.parent)
    path.mkdir(exist_ok=True)
    _sync_folder(path.parent)


def _sync_folder(path: Path) -> None:
    folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def _too_large_error(path: str) -> InvalidInputError:
    return InvalidInputError(f"{path} has more than {MAX_BYTES} bytes, which is the most that a metadata file may have")


def _to_lance_error(verb: str, path: str, error: OSError | ValueError) -> InvalidInputError | ServiceUnavailableError:
    reason = " ".join(str(getattr(error, "strerror", None) or error).split())[:300]
    code = getattr(error, "errno", None)
    is_invalid = not isinstance(error, OSError) or isinstance(error, FileExistsError) or code in _MISTAKES
    kind = InvalidInputError if is_invalid else ServiceUnavailableError
    return kind(f"{path} cannot be {verb}: {reason}")
