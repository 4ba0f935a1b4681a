"""Read, write and delete metadata files, on local disk and in object stores.

Locations are interpreted as Iceberg's clients in Python and Java do: they do not decode a `file:` URI, so `%20` in it
stands for three characters of a name. `file:/x`, `file:///x` and `/x` are the same file.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Callable
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import IO, TypeVar, cast
from uuid import uuid4

import pyarrow.fs as pafs
from lance_namespace.errors import InvalidInputError, ServiceUnavailableError
from pyiceberg.io import FileIO
from pyiceberg.io.pyarrow import PyArrowFileIO
from pyiceberg.typedef import EMPTY_DICT, Properties

from lancehouse import measures, tracing
from lancehouse.catalog import location_access
from lancehouse.catalog.errors import MetadataNotFoundError
from lancehouse.catalog.temporary_credentials import own_google_token
from lancehouse.catalog.warehouses import Warehouse
from lancehouse.credentials import azure_account, canonical_options, to_iceberg_config
from lancehouse.secrets import redact

T = TypeVar("T")

MAX_BYTES = 256 << 20
"""Largest metadata file in bytes, both as stored and decompressed."""

_LOCAL = re.compile(r"(?:file:(?://)?)?(?P<path>/(?!/).*)", re.DOTALL)
_REMOTE = re.compile(r"(?!file:)[a-z][a-z0-9+.-]*://[^/?#]+/[^?#]+")
_MISTAKES = frozenset({errno.ENAMETOOLONG, errno.ENOTDIR, errno.EISDIR, errno.ELOOP, errno.EINVAL})
"""Error numbers that mean that the location itself is wrong, so that a retry cannot help."""


class WarehouseFiles:
    """The files of a warehouse. Instances are cheap, connections are shared."""

    def __init__(self, warehouse: Warehouse) -> None:
        self._warehouse = warehouse

    def file_io(self) -> FileIO:
        """Return pyiceberg's FileIO for this warehouse.

        Raises:
            ServiceUnavailableError: the warehouse is at Google, which gives the server no token.
        """
        options = canonical_options(self._warehouse.storage)
        account, _ = azure_account(options, self._warehouse.location)
        if account:
            options["azure_storage_account_name"] = account
        return _cached_file_io(tuple(sorted((options | own_google_token(options)).items())))

    def find_system(self, location: str) -> tuple[pafs.FileSystem, str]:
        """Return Arrow's file system of a location in an object store, and the path in it."""
        file_io = cast(PyArrowFileIO, self.file_io())
        scheme, bucket, path = file_io.parse_location(location)
        return file_io.fs_by_scheme(scheme, bucket), path

    @tracing.trace_calls("store write")
    def write(self, path: str, data: bytes) -> None:
        """Write a file atomically; it is durable when this returns, and does not exist if it raises.

        Raises:
            InvalidInputError: the path is not valid, or it would be too large to be read again.
            ServiceUnavailableError: the storage cannot be written now.
        """
        if len(data) > MAX_BYTES:
            raise _too_large_error(path, MAX_BYTES)
        local = _local_path(path)
        try:
            if local is not None:
                write_file(local, lambda stream: stream.write(data))
            else:
                with self.file_io().new_output(_remote_uri(path)).create(overwrite=True) as stream:
                    stream.write(data)
        except (OSError, ValueError) as error:
            raise _to_lance_error("written", path, error) from error

    @tracing.trace_calls("store read")
    def read(self, path: str, most: int | None = None) -> bytes:
        """Return the content of a file.

        Raises:
            MetadataNotFoundError: the file does not exist.
            InvalidInputError: the path is not valid, or the file is larger than `most` bytes, by default `MAX_BYTES`.
            ServiceUnavailableError: the storage cannot be read now.
        """
        location_access.require_no_link(self._warehouse, path, "iceberg")
        local, most = _local_path(path), MAX_BYTES if most is None else most
        try:
            if local is not None:
                if local.stat().st_size > most:
                    raise _too_large_error(path, most)
                return local.read_bytes()
            with self.file_io().new_input(_remote_uri(path)).open() as stream:
                if stream.seek(0, os.SEEK_END) > most:
                    raise _too_large_error(path, most)
                stream.seek(0)
                return stream.read()
        except FileNotFoundError as error:
            raise MetadataNotFoundError(f"Failed to open input stream for file: {path}") from error
        except (OSError, ValueError) as error:
            raise _to_lance_error("read", path, error) from error

    @tracing.trace_calls("store exists")
    def exists(self, path: str) -> bool:
        """Return whether a file exists."""
        local = _local_path(path)
        try:
            return local.is_file() if local is not None else bool(self.file_io().new_input(_remote_uri(path)).exists())
        except (OSError, ValueError) as error:
            raise _to_lance_error("read", path, error) from error

    def list_names(self, folder: str) -> list[str]:
        """Return the names of the files directly in a folder; none if it does not exist.

        Raises:
            InvalidInputError: the path is not valid.
            ServiceUnavailableError: the storage cannot be read now.
        """
        local = _local_path(folder)
        try:
            if local is not None:
                return [path.name for path in local.iterdir() if path.is_file()] if local.is_dir() else []
            system, path = self.find_system(_remote_uri(folder))
            infos = system.get_file_info(pafs.FileSelector(path, allow_not_found=True))
            return [info.base_name for info in infos if info.is_file]
        except (OSError, ValueError) as error:
            raise _to_lance_error("read", folder, error) from error

    def require_reachable(self) -> None:
        """Look at the warehouse's location, by one or two requests.

        Raises:
            ServiceUnavailableError: it cannot be read now, or there is no such folder or bucket.
        """
        location = self._warehouse.location
        local = _local_path(location)
        if local is not None:
            if not os.access(local, os.R_OK | os.W_OK | os.X_OK):
                raise ServiceUnavailableError(f"{location} is not there, or cannot be read and written")
            return
        try:
            system, path = self.find_system(location)
            if system.get_file_info(path).type != pafs.FileType.NotFound:
                return
        except (OSError, ValueError) as error:
            raise ServiceUnavailableError(str(_to_lance_error("read", location, error))) from error
        # A warehouse without tables has no folder yet. Whoever may see only a part of the bucket may not ask for it.
        with suppress(OSError):
            if system.get_file_info(path.partition("/")[0]).type == pafs.FileType.NotFound:
                raise ServiceUnavailableError(f"{location}: there is no such bucket")

    def may_exist(self, path: str) -> bool:
        """Return whether a file still exists, on local disk; True for an object store, where asking is slow."""
        local = _local_path(path)
        return local is None or os.access(local, os.F_OK)

    @tracing.trace_calls("store delete")
    def delete(self, path: str) -> None:
        """Delete a file; a missing one is not an error.

        Raises:
            InvalidInputError: the path is not valid.
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


class _FileIO(PyArrowFileIO):
    """Names files in Azure as Arrow does, `container/path`: pyiceberg leaves the account in it."""

    @staticmethod
    def parse_location(location: str, properties: Properties = EMPTY_DICT) -> tuple[str, str, str]:
        scheme, netloc, path = PyArrowFileIO.parse_location(location, properties)
        if "@" not in netloc:
            return scheme, netloc, path
        return scheme, netloc, netloc.partition("@")[0] + path.removeprefix(netloc)


@lru_cache(maxsize=64)
def _cached_file_io(storage: tuple[tuple[str, str], ...]) -> FileIO:
    return _FileIO(to_iceberg_config(dict(storage)))


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


def write_file(path: Path, write: Callable[[IO[bytes]], T]) -> T:
    """Have a local file written, which appears whole and durable or not at all; return what `write` returns."""
    _create_folder(path.parent)
    # Written under another name, synced and renamed: after a crash the file is either complete or absent. The folder is
    # synced too, because the rename itself is durable only then.
    temporary = path.with_name(f".{uuid4()}.tmp")
    try:
        with temporary.open("xb") as stream:
            result = write(stream)
            stream.flush()
            os.fsync(stream.fileno())
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    _sync_folder(path.parent)
    return result


def _create_folder(path: Path) -> None:
    """Create a folder and its parents, durably."""
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


def _too_large_error(path: str, most: int) -> InvalidInputError:
    return InvalidInputError(f"{path} has more than {most} bytes, which is the most that a metadata file may have")


def _to_lance_error(verb: str, path: str, error: OSError | ValueError) -> InvalidInputError | ServiceUnavailableError:
    # Arrow shows the URLs of requests, which have a SAS token in them.
    reason = redact(" ".join(str(getattr(error, "strerror", None) or error).split()), {})[:300]
    code = getattr(error, "errno", None)
    is_invalid = not isinstance(error, OSError) or isinstance(error, FileExistsError) or code in _MISTAKES
    kind = InvalidInputError if is_invalid else ServiceUnavailableError
    measures.report_storage_error(kind)
    return kind(f"{path} cannot be {verb}: {reason}")
