"""Open Iceberg tables as the source of an ingest: planned and read with pyiceberg, deletes included."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
from lance_namespace.errors import (
    InvalidInputError,
    LanceNamespaceError,
    NamespaceNotFoundError,
    PermissionDeniedError,
    ServiceUnavailableError,
    TableNotFoundError,
    UnauthenticatedError,
    UnsupportedOperationError,
)
from pyiceberg import exceptions
from pyiceberg.catalog import load_catalog
from pyiceberg.expressions import BooleanExpression
from pyiceberg.io import FileIO
from pyiceberg.io.pyarrow import ArrowScan, _read_all_delete_files
from pyiceberg.schema import Schema
from pyiceberg.table import DataScan, FileScanTask, Table
from pyiceberg.table.metadata import TableMetadata

from lancehouse.identifiers import parse_levels
from lancehouse.jobs.sources.file_listing import check_columns, translate_read_errors
from lancehouse.jobs.sources.formats import ALL_OPTIONS
from lancehouse.jobs.sources.ingest_source import IngestSource, Unit, group_by_size, joint_key, target_bytes
from lancehouse.jobs.sources.schemas import conform
from lancehouse.schema.iceberg import from_iceberg
from lancehouse.secrets import redact

_KINDS: Mapping[type[Exception], type[LanceNamespaceError]] = {
    exceptions.NoSuchTableError: TableNotFoundError,
    exceptions.NoSuchIcebergTableError: TableNotFoundError,
    exceptions.NoSuchNamespaceError: NamespaceNotFoundError,
    exceptions.UnauthorizedError: UnauthenticatedError,
    exceptions.OAuthError: UnauthenticatedError,
    exceptions.ForbiddenError: PermissionDeniedError,
    exceptions.ServerError: ServiceUnavailableError,
    exceptions.ServiceUnavailableError: ServiceUnavailableError,
    exceptions.RESTError: InvalidInputError,
    exceptions.NotInstalledError: UnsupportedOperationError,
    NotImplementedError: UnsupportedOperationError,
    OSError: ServiceUnavailableError,
    ValueError: InvalidInputError,
}
"""Lance errors by pyiceberg's errors; the first class in an error's MRO that is listed here decides."""


@dataclass(frozen=True, slots=True)
class IcebergScan:
    """What all units of a scan share."""

    metadata: TableMetadata = field(repr=False)
    io: FileIO = field(repr=False)
    projection: Schema
    row_filter: BooleanExpression
    case_sensitive: bool

    def batches(self, task: FileScanTask) -> Iterator[pa.RecordBatch]:
        """Yield the live rows of a file that match the filter.

        This calls a private method, because pyiceberg's public one first reads the whole file into memory.
        """
        scan = ArrowScan(self.metadata, self.io, self.projection, self.row_filter, self.case_sensitive)
        return scan._record_batches_from_scan_tasks_and_deletes([task], _read_all_delete_files(self.io, [task]))


@dataclass(frozen=True, slots=True)
class IcebergUnit(Unit):
    """A file of an Iceberg table with its deletes, or several small files."""

    scan: IcebergScan
    tasks: tuple[FileScanTask, ...] = field(repr=False)
    key: str
    bytes: int

    def batches(self, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        """Yield the rows in a schema."""
        for task in self.tasks:
            name = task.file.file_path
            with translate_read_errors(name, self.scan.io.properties):
                for batch in self.scan.batches(task):
                    yield conform(batch, schema, (), name)


def open_iceberg(
    source: Table | DataScan | str, columns: Sequence[str] | None, options: Mapping[str, str], parallelism: int
) -> IngestSource:
    """Open a table, at its current snapshot or as a scan says, as a source; see `open_source`."""
    _require_properties(source, options)
    with _translate_errors(source if isinstance(source, str) else "the Iceberg table", options):
        data_scan = _to_data_scan(source, options)
        available = [column.name for column in data_scan.projection().fields]
        if columns is not None:
            check_columns(list(columns), available, "the Iceberg table")
            data_scan = data_scan.select(*columns)
        tasks = sorted(data_scan.plan_files(), key=lambda task: task.file.file_path)
        projection = data_scan.projection()
        schema = from_iceberg(json.loads(projection.model_dump_json()))
    scan = IcebergScan(
        # It is sent with each unit, and the history of a table may be long.
        metadata=data_scan.table_metadata.model_copy(update={"snapshots": [], "snapshot_log": [], "metadata_log": []}),
        io=data_scan.io,
        projection=projection,
        row_filter=data_scan.row_filter,
        case_sensitive=data_scan.case_sensitive,
    )
    target = target_bytes([_file_bytes(task) for task in tasks], parallelism)
    units: list[Unit] = [_to_unit(scan, group) for group in group_by_size(tasks, _file_bytes, target)]
    return IngestSource(schema if columns is None else pa.schema([schema.field(name) for name in columns]), units)


def _require_properties(source: Table | DataScan | str, options: Mapping[str, str]) -> None:
    """Refuse options that would be ignored.

    pyiceberg accepts any property, and a table that is open takes none.
    """
    for name in options:
        if name in ALL_OPTIONS:
            raise InvalidInputError(f"iceberg has no option {name!r}: its options are properties of the catalog")
        if not isinstance(source, str):
            raise InvalidInputError(f"{name!r} is no option of a table of pyiceberg: give it to the table's catalog")


def _to_data_scan(source: Table | DataScan | str, options: Mapping[str, str]) -> DataScan:
    if isinstance(source, str):
        levels = parse_levels(source)
        if len(levels) < 3:
            raise InvalidInputError(f"{source!r} is no Iceberg table: it is catalog.namespace.table")
        source = load_catalog(levels[0], **options).load_table(levels[1:])
    scan = source.scan() if isinstance(source, Table) else source
    if not isinstance(scan, DataScan):
        raise InvalidInputError(f"an Iceberg source is a table, a scan or catalog.namespace.table, not {type(scan)!r}")
    if scan.limit is not None:
        raise InvalidInputError("a scan with a limit cannot be read in parts: leave the limit out")
    return scan


def _file_bytes(task: FileScanTask) -> int:
    return task.file.file_size_in_bytes


def _to_unit(scan: IcebergScan, tasks: Sequence[FileScanTask]) -> IcebergUnit:
    about = f"{scan.row_filter} {sorted(file.file_path for task in tasks for file in task.delete_files)}"
    return IcebergUnit(
        scan=scan,
        tasks=tuple(tasks),
        key=joint_key([f"{task.file.file_path} {_file_bytes(task)}" for task in tasks], about),
        bytes=sum(map(_file_bytes, tasks)),
    )


def _database_errors() -> tuple[type[Exception], ...]:
    """Return the base class of errors of pyiceberg's SQL catalog, if SQLAlchemy is loaded."""
    errors = sys.modules.get("sqlalchemy.exc")
    return () if errors is None else (errors.SQLAlchemyError,)


@contextmanager
def _translate_errors(about: str, options: Mapping[str, str]) -> Iterator[None]:
    """Turn what pyiceberg raises inside into a Lance error; its errors have no common base class."""
    try:
        yield
    except LanceNamespaceError:
        raise
    except (*_KINDS, *_database_errors()) as error:
        kind: Any = next((_KINDS[cls] for cls in type(error).__mro__ if cls in _KINDS), ServiceUnavailableError)
        text = str(error)
        message = redact(text, options)
        raise kind(f"{about}: {message}") from (error if message == text else None)
