"""Iceberg tables with all kinds of deletes, made with pyiceberg's own writers."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.avro.file import AvroOutputFile
from pyiceberg.catalog.rest.scan_planning import PlanTableScanRequest, ScanTasks
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.expressions import AlwaysTrue, BooleanExpression
from pyiceberg.expressions.literals import literal
from pyiceberg.io.pyarrow import ArrowScan, PyArrowFileIO, schema_to_pyarrow
from pyiceberg.manifest import (
    DataFile,
    DataFileContent,
    FileFormat,
    ManifestContent,
    ManifestEntry,
    ManifestEntryStatus,
    ManifestWriterV2,
    write_manifest_list,
)
from pyiceberg.table import FileScanTask, Table
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Operation, Snapshot, Summary
from pyiceberg.typedef import Record
from pyiceberg.types import NestedField

from lancehouse.catalog.scans.scan_requests import ScanRequest
from lancehouse.catalog.warehouse_files import WarehouseFiles
from lancehouse.catalog.warehouses import Warehouse

IO = PyArrowFileIO()
READ = WarehouseFiles(Warehouse(1, "main", "/")).read
"""Reads any file, as the server reads those of a warehouse."""
ALL = AlwaysTrue()
_NUMBERS = itertools.count(1)


def sql_catalog(folder: Path) -> SqlCatalog:
    """pyiceberg's own catalog, to make tables with."""
    folder.mkdir(exist_ok=True)
    made = SqlCatalog("local", uri=f"sqlite:///{folder / 'tables.db'}", warehouse=f"file://{folder}")
    made.create_namespace("db")
    return made


def append(table: Table, rows: pa.Table) -> None:
    """Append rows, a file for each partition. pyiceberg's own way needs a library for most transforms."""
    spec, schema = table.spec(), table.schema()
    groups: dict[tuple[Any, ...], list[int]] = {}
    for place, row in enumerate(rows.to_pylist()):
        key = tuple(_value(schema.find_field(field.source_id), field.transform, row) for field in spec.fields)
        groups.setdefault(key, []).append(place)
    with table.transaction() as transaction, transaction.update_snapshot().fast_append() as snapshot:
        for key, places in groups.items():
            snapshot.append_data_file(_data_file(table, rows.take(places), Record(*key)))


def _value(field: NestedField, transform: Any, row: dict[str, Any]) -> Any:
    value = row[field.name]
    if value is not None and not isinstance(value, (int, str, Decimal)):
        value = literal(value).to(field.field_type).value
    return transform.transform(field.field_type)(value)


def _data_file(table: Table, rows: pa.Table, partition: Record) -> DataFile:
    path = f"{table.location()}/data/{next(_NUMBERS)}.parquet".removeprefix("file://")
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    wanted = schema_to_pyarrow(table.schema())
    pq.write_table(rows.select(wanted.names).cast(wanted), path)
    file = DataFile.from_args(
        content=DataFileContent.DATA,
        file_path=f"file://{path}",
        file_format=FileFormat.PARQUET,
        partition=partition,
        record_count=rows.num_rows,
        file_size_in_bytes=Path(path).stat().st_size,
    )
    file.spec_id = table.spec().spec_id
    return file


class _DeleteWriter(ManifestWriterV2):
    """Writes delete files, with what version 3 knows of them."""

    def content(self) -> ManifestContent:
        return ManifestContent.DELETES

    def new_writer(self) -> AvroOutputFile[ManifestEntry]:
        schema = self._with_partition(3)
        return AvroOutputFile(
            output_file=self._output_file,
            file_schema=schema,
            record_schema=schema,
            schema_name="manifest_entry",
            metadata=self._meta,
        )


def position_deletes(folder: Path, path: str, positions: Sequence[int], **more: Any) -> DataFile:
    """A file that deletes rows of a data file by their positions."""
    file = folder / f"deletes-{next(_NUMBERS)}.parquet"
    fields: list[pa.Field[Any]] = [
        pa.field("file_path", pa.string(), nullable=False, metadata={"PARQUET:field_id": "2147483546"}),
        pa.field("pos", pa.int64(), nullable=False, metadata={"PARQUET:field_id": "2147483545"}),
    ]
    columns: list[Any] = [pa.array([path] * len(positions)), pa.array(positions, pa.int64())]
    pq.write_table(pa.Table.from_arrays(columns, schema=pa.schema(fields)), file)
    return delete_file(file, DataFileContent.POSITION_DELETES, len(positions), **more)


def delete_file(
    file: Path, content: DataFileContent, count: int, *, partition: Record | None = None, **more: Any
) -> DataFile:
    """A delete file as a manifest has it."""
    return DataFile.from_args(
        3,
        content=content,
        file_path=f"file://{file}",
        file_format=more.pop("file_format", FileFormat.PARQUET),
        partition=partition or Record(),
        record_count=count,
        file_size_in_bytes=file.stat().st_size if file.exists() else 1,
        **more,
    )


def with_deletes(
    table: Table, deletes: Sequence[DataFile], *, folder: str | None = None, spec_id: int | None = None
) -> TableMetadata:
    """The table with one snapshot more, which adds delete files; their manifest lies in `folder`."""
    metadata: Any = table.metadata
    current = metadata.current_snapshot()
    assert current is not None
    number = next(_NUMBERS)
    snapshot_id, sequence = 1_000_000 + number, metadata.last_sequence_number + 1
    spec = metadata.specs()[metadata.default_spec_id if spec_id is None else spec_id]
    folder = folder or f"{metadata.location}/metadata"
    manifest = IO.new_output(f"{folder}/deletes-{number}.avro")
    with _DeleteWriter(spec, metadata.schema(), manifest, snapshot_id, "null") as writer:
        for delete in deletes:
            writer.add_entry(
                ManifestEntry.from_args(
                    3, status=ManifestEntryStatus.ADDED, snapshot_id=snapshot_id, sequence_number=None, data_file=delete
                )
            )
    listed = f"{metadata.location}/metadata/list-{number}.avro"
    with write_manifest_list(2, IO.new_output(listed), snapshot_id, current.snapshot_id, sequence, "null") as lists:
        lists.add_manifests([*current.manifests(IO), writer.to_manifest_file()])
    make: Any = Snapshot
    snapshot = make(
        snapshot_id=snapshot_id,
        parent_snapshot_id=current.snapshot_id,
        sequence_number=sequence,
        timestamp_ms=current.timestamp_ms + 1,
        manifest_list=listed,
        summary=Summary(Operation.DELETE),
        schema_id=metadata.current_schema_id,
    )
    changed: TableMetadata = metadata.model_copy(
        update={
            "snapshots": [*metadata.snapshots, snapshot],
            "current_snapshot_id": snapshot_id,
            "last_sequence_number": sequence,
        }
    )
    return changed


def read(metadata: TableMetadata, answer: dict[str, Any], where: BooleanExpression = ALL, **more: Any) -> pa.Table:
    """What pyiceberg reads when it is told to read the files of a plan."""
    tasks = ScanTasks.model_validate(answer)
    found = [FileScanTask.from_rest_response(task, tasks.delete_files) for task in tasks.file_scan_tasks]
    return ArrowScan(metadata, IO, metadata.schema(), where, **more).to_table(found)


def request(where: BooleanExpression | None = None, **more: Any) -> ScanRequest:
    """A request as pyiceberg writes it."""
    sent = PlanTableScanRequest(filter=where, **more)
    return ScanRequest.from_json(sent.model_dump(by_alias=True, exclude_none=True, mode="json"))
