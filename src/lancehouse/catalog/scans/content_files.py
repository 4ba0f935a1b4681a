"""Encode data and delete files in JSON for scan plans, as Iceberg's Java library reads them."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from pyiceberg.conversions import to_json
from pyiceberg.manifest import DataFile, DataFileContent
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.types import NestedField, PrimitiveType

Json = dict[str, Any]

_CONTENT: Mapping[DataFileContent, str] = {
    DataFileContent.DATA: "data",
    DataFileContent.POSITION_DELETES: "position-deletes",
    DataFileContent.EQUALITY_DELETES: "equality-deletes",
}
_FIRST_ROW_ID, _REFERENCED, _OFFSET, _SIZE = 16, 17, 18, 19
"""Positions of fields that format version 3 adds to a file; pyiceberg reads them but has no names for them."""


def first_row_id(file: DataFile) -> int | None:
    """Return the row id of a file's first row, or None."""
    number: int | None = _version_3_field(file, _FIRST_ROW_ID)
    return number


def referenced_file(file: DataFile) -> str | None:
    """Return the only data file that a delete file applies to, or None."""
    path = _version_3_field(file, _REFERENCED)
    return None if path is None else str(path)


def content_offset(file: DataFile) -> int | None:
    """Return the offset of a deletion vector in its file; None for other files."""
    offset: int | None = _version_3_field(file, _OFFSET)
    return offset


def content_file_json(
    file: DataFile, partition: list[Any], *, row_id: int | None = None, stats: Collection[int] = ()
) -> Json:
    """Return a file as JSON.

    Args:
        file: a file from a manifest that was read with the schema of version 3.
        partition: its partition values, from `partition_json`.
        row_id: the row id of its first row, if it is a data file that has one.
        stats: ids of the fields whose statistics are included.
    """
    json: Json = {
        "spec-id": file.spec_id,
        "content": _CONTENT[file.content],
        "file-path": file.file_path,
        "file-format": file.file_format.lower(),
        "partition": partition,
        "file-size-in-bytes": file.file_size_in_bytes,
        "record-count": file.record_count,
        "split-offsets": file.split_offsets,
        "equality-ids": file.equality_ids if file.content == DataFileContent.EQUALITY_DELETES else None,
        "sort-order-id": file.sort_order_id,
        "key-metadata": None if file.key_metadata is None else file.key_metadata.hex().upper(),
        "first-row-id": row_id,
    }
    if file.content == DataFileContent.POSITION_DELETES:
        json |= {
            "referenced-data-file": referenced_file(file),
            "content-offset": content_offset(file),
            "content-size-in-bytes": _version_3_field(file, _SIZE),
        }
    if stats:
        json |= _stats_json(file, stats)
    return {key: value for key, value in json.items() if value is not None}


def partition_json(spec: PartitionSpec, file: DataFile, schemas: Collection[Schema]) -> list[Any]:
    """Return the partition values of a file, in the order of the spec's fields."""
    values: list[Any] = []
    for position, field in enumerate(spec.fields):
        value = file.partition[position]
        source = next(
            (candidate for schema in schemas if (candidate := _find_source(schema, field.source_id)) is not None), None
        )
        dtype = None if source is None else field.transform.result_type(source.field_type)
        values.append(to_json(dtype, value) if value is not None and isinstance(dtype, PrimitiveType) else None)
    return values


def _find_source(schema: Schema, field_id: int) -> NestedField | None:
    try:
        return schema.find_field(field_id)
    except ValueError:
        return None


def _version_3_field(file: DataFile, position: int) -> Any:
    return file._data[position] if len(file._data) > position else None


def _stats_json(file: DataFile, ids: Collection[int]) -> Json:
    counts = {
        "column-sizes": file.column_sizes,
        "value-counts": file.value_counts,
        "null-value-counts": file.null_value_counts,
        "nan-value-counts": file.nan_value_counts,
    }
    bounds = {"lower-bounds": file.lower_bounds, "upper-bounds": file.upper_bounds}
    stats: Json = {name: _key_value_lists(values, ids) for name, values in counts.items() if values is not None}
    for name, values in bounds.items():
        if values is not None:
            stats[name] = _key_value_lists({key: value.hex().upper() for key, value in values.items()}, ids)
    return stats


def _key_value_lists(values: Mapping[int, Any], ids: Collection[int]) -> Json:
    selected = {key: value for key, value in values.items() if key in ids}
    return {"keys": list(selected), "values": list(selected.values())}
