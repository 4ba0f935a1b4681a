"""Files of the scan cache: write, list and delete Parquet copies, in a local folder or an object store."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, cast
from uuid import uuid4

import pyarrow as pa
import pyarrow.fs as pafs
from lance_namespace.errors import ServiceUnavailableError
from pyiceberg.io.pyarrow import PyArrowFileIO

from lancehouse.catalog import locations
from lancehouse.catalog.warehouse_files import WarehouseFiles
from lancehouse.catalog.warehouses import Warehouse
from lancehouse.lake.dataset import local_folder

SUFFIX = ".parquet"


@dataclass(frozen=True, slots=True)
class ExportFile:
    """A complete file of the cache."""

    path: str
    bytes: int
    rows: int


class ExportFiles:
    """The files of one warehouse's scan cache. Instances are cheap."""

    def __init__(self, warehouse: Warehouse) -> None:
        self._files = WarehouseFiles(warehouse)
        self._root = locations.cache_location(warehouse).rstrip("/")
        self._folder = local_folder(self._root)

    def table_folder(self, table_uuid: str) -> str:
        """Return the folder of a table's copies."""
        return f"{self._root}/{table_uuid}"

    def write(self, table_uuid: str, name: str, rows: Callable[[IO[bytes]], int]) -> ExportFile:
        """Write a file under a name that never existed before; if that fails, no file is left.

        Args:
            table_uuid: UUID of the table.
            name: prefix of the file's name.
            rows: writes the file and returns its number of rows.

        Raises:
            ServiceUnavailableError: the cache cannot be written.
        """
        file = f"{name}-{uuid4().hex}{SUFFIX}"
        try:
            if self._folder is not None:
                return _write_local(self._folder / table_uuid / file, rows)
            return self._write_remote(f"{self.table_folder(table_uuid)}/{file}", rows)
        except (OSError, pa.ArrowException) as error:
            reason = getattr(error, "strerror", None) or str(error).partition("\n")[0][:300]
            raise ServiceUnavailableError(f"the scan cache at {self._root} cannot be written: {reason}") from error

    def _write_remote(self, path: str, rows: Callable[[IO[bytes]], int]) -> ExportFile:
        sink = cast(Any, self._files.file_io().new_output(path).create(overwrite=True))
        try:
            with sink:
                count, size = rows(sink), sink.tell()
        except BaseException:
            # Closing the stream may have turned what was written so far into an object.
            with suppress(OSError, ServiceUnavailableError):
                self._files.delete(path)
            raise
        return ExportFile(path, size, count)

    def may_exist(self, path: str) -> bool:
        """Return False for a local file that no longer exists; True for an object store, where asking is slow."""
        return self._folder is None or Path(path.removeprefix("file://")).exists()

    def delete(self, path: str) -> None:
        """Delete a file; a missing one is not an error.

        Raises:
            ServiceUnavailableError: it cannot be deleted.
        """
        if self._folder is None:
            self._files.delete(path)
            return
        local = Path(path.removeprefix("file://"))
        try:
            local.unlink(missing_ok=True)
        except OSError as error:
            raise ServiceUnavailableError(f"{path} cannot be removed: {error.strerror}") from error

    def list_older_than(self, seconds: float) -> list[tuple[str, str]]:
        """Return table UUID and path of all files last written that many seconds ago, including incomplete ones."""
        limit = time.time() - seconds
        if self._folder is not None:
            files = [file for file in self._folder.glob("*/*") if file.is_file() and file.stat().st_mtime < limit]
            return [(file.parent.name, _to_iceberg_path(file)) for file in files]
        scheme, bucket, path = PyArrowFileIO.parse_location(self._root)
        system = cast(PyArrowFileIO, self._files.file_io()).fs_by_scheme(scheme, bucket)
        infos = system.get_file_info(pafs.FileSelector(path, recursive=True, allow_not_found=True))
        return [
            (info.path.split("/")[-2], f"{self._root}{info.path.removeprefix(path)}")
            for info in infos
            if info.type == pafs.FileType.File and (info.mtime_ns or 0) / 1e9 < limit
        ]


def _to_iceberg_path(file: Path) -> str:
    """Return a path as Iceberg's clients read it: they do not decode a `file:` URI, but split it at `?` and `#`."""
    return str(file) if set("?#") & set(str(file)) else f"file://{file}"


def _write_local(file: Path, rows: Callable[[IO[bytes]], int]) -> ExportFile:
    file.parent.mkdir(parents=True, exist_ok=True)
    temporary = file.with_name(f".{file.name}.tmp")
    try:
        with temporary.open("xb") as sink:
            count = rows(sink)
            sink.flush()
            os.fsync(sink.fileno())
            size = sink.tell()
        temporary.rename(file)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    return ExportFile(_to_iceberg_path(file), size, count)
