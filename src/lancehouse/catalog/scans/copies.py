"""Files of the scan cache: in a local folder or in an object store, one folder for each table."""

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
    """A file that is complete."""

    path: str
    bytes: int
    rows: int


class ExportFiles:
    """The files of one warehouse's cache; cheap to make."""

    def __init__(self, warehouse: Warehouse) -> None:
        self._files = WarehouseFiles(warehouse)
        self._root = locations.cache_location(warehouse).rstrip("/")
        self._folder = local_folder(self._root)

    def table_folder(self, table_uuid: str) -> str:
        """Where the copies of a table lie."""
        return f"{self._root}/{table_uuid}"

    def write(self, table_uuid: str, name: str, rows: Callable[[IO[bytes]], int]) -> ExportFile:
        """Make a file under a name that was never there before; if that fails, there is none.

        Args:
            table_uuid: of the table.
            name: how the file's name begins.
            rows: writes the file and says how many rows it has.

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
            # What was written until now may have become an object.
            with suppress(OSError, ServiceUnavailableError):
                self._files.delete(path)
            raise
        return ExportFile(path, size, count)

    def may_exist(self, path: str) -> bool:
        """False for a file that somebody else has removed, where that is cheap to tell: not in an object store."""
        return self._folder is None or Path(path.removeprefix("file://")).exists()

    def delete(self, path: str) -> None:
        """Remove a file, if it is still there.

        Raises:
            ServiceUnavailableError: it cannot be removed.
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
        """Tables and paths of all files that were last written so long ago, those included that were never finished."""
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
    """A path as clients of Iceberg read it: they take a `file:` URI as it stands, but for what ends a path in a URI."""
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
