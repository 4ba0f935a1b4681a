"""Blob columns, and blob references: small values that stand for blobs of a table's version, until somebody reads them.

A reference names a table of the catalog, never a location, and holds no credentials: whoever reads it does so through a
connection of their own.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pyarrow as pa

from lancehouse.schema.array_conversion import build_struct
from lancehouse.schema.walk import BLOB, EXTENSION

REFERENCE = pa.struct(
    [
        ("table", pa.string()),
        ("branch", pa.string()),
        ("version", pa.int64()),
        ("commit", pa.string()),
        ("column", pa.string()),
        ("row", pa.int64()),
        ("size", pa.int64()),
    ]
)
"""Arrow type of references.

`commit` is the uuid of the version's transaction, which tells it from versions of other tables with the same name and
number; `row` is the address of the row in that version; `size` is null where Lance does not tell it, as for an external
blob that is a whole file.
"""
BLOB_TYPE = pa.struct(
    [("data", pa.large_binary()), ("uri", pa.string()), ("position", pa.uint64()), ("size", pa.uint64())]
)
"""Arrow type of the values of a blob column, as Lance expects them on write."""
ENCODING = "lance-encoding:blob"
"""Key of field metadata by which Lance stores binaries as blobs."""

Place = tuple[int, ...]
"""Position of a column, and of fields of structs in it."""

_SPARK = {field.name: "string" if field.type == pa.string() else "long" for field in REFERENCE}


def is_reference(dtype: Any) -> bool:
    """Return whether a type, of Arrow or in the JSON of Spark, is that of references.

    They are known by their fields alone: metadata of columns do not survive all of Spark's operators.
    """
    if isinstance(dtype, Mapping):
        return dtype["type"] == "struct" and {field["name"]: field["type"] for field in dtype["fields"]} == _SPARK
    if not isinstance(dtype, pa.StructType):
        return False
    kinds = {field.name: "string" if _is_text(field.type) else str(field.type) for field in dtype}
    return kinds == {field.name: str(field.type) for field in REFERENCE}


def _is_text(dtype: pa.DataType) -> bool:
    return pa.types.is_string(dtype) or pa.types.is_large_string(dtype) or pa.types.is_string_view(dtype)


def blob_field(name: str) -> pa.Field[Any]:
    """Return a blob column, which Lance stores outside its pages, so that scans do not read it."""
    return pa.field(name, BLOB_TYPE, metadata={EXTENSION: BLOB})


def to_blobs(values: Any, dtype: Any = BLOB_TYPE) -> Any:
    """Convert an array of binaries to the values of a blob column, whose storage type is `dtype`."""
    data = values.cast(pa.large_binary())
    elsewhere = [pa.nulls(len(data), field.type) for field in list(dtype)[1:]]
    return build_struct(data, list(dtype), [data, *elsewhere])


def has_blob_type(column: pa.Field[Any]) -> bool:
    """Return whether a column has Lance's type of blobs, whose values are structs."""
    name = column.type.extension_name if isinstance(column.type, pa.BaseExtensionType) else None
    return BLOB in (name, (column.metadata or {}).get(EXTENSION.encode(), b"").decode())


def is_blob(column: pa.Field[Any]) -> bool:
    """Return whether the values of a column are stored as blobs: by its type, or as marked binaries."""
    return has_blob_type(column) or (column.metadata or {}).get(ENCODING.encode()) == b"true"


def takes_references(column: pa.Field[Any]) -> bool:
    """Return whether references that are written into a column are replaced by the bytes of their blobs."""
    return is_blob(column) or pa.types.is_binary(column.type) or pa.types.is_large_binary(column.type)


def find_references(fields: Iterable[Any], target: Iterable[pa.Field[Any]]) -> list[Place]:
    """Return where references are that are replaced by bytes when rows are written to a table, also in structs.

    Args:
        fields: of the rows, in Arrow or in the JSON of Spark.
        target: columns of the table.
    """
    columns = {column.name: column for column in target}
    places: list[Place] = []
    for at, field in enumerate(fields):
        name, dtype = (field["name"], field["type"]) if isinstance(field, Mapping) else (field.name, field.type)
        column = columns.get(name)
        if column is None:
            continue
        if is_reference(dtype):
            places += [(at,)] if takes_references(column) else []
        elif isinstance(column.type, pa.StructType) and not is_blob(column):
            inside = dtype if isinstance(dtype, pa.StructType) else isinstance(dtype, Mapping) and dtype.get("fields")
            places += [(at, *place) for place in find_references(inside or (), column.type)]
    return places


def with_bytes(schema: pa.Schema, target: pa.Schema) -> pa.Schema:
    """Return the columns of rows after their references to blobs were replaced by bytes, see `find_references`."""
    return pa.schema(_with_bytes(schema, find_references(schema, target)))


def _with_bytes(fields: Iterable[pa.Field[Any]], places: Sequence[Place]) -> list[pa.Field[Any]]:
    new_fields: list[pa.Field[Any]] = []
    for at, field in enumerate(fields):
        inside = [place[1:] for place in places if place[0] == at]
        if () in inside:
            new_fields.append(pa.field(field.name, pa.large_binary(), field.nullable))
        elif inside and isinstance(field.type, pa.StructType):
            new_fields.append(field.with_type(pa.struct(_with_bytes(field.type, inside))))
        else:
            new_fields.append(field)
    return new_fields


def with_blobs(schema: pa.Schema, before: pa.Schema | None = None) -> pa.Schema:
    """Return the columns of a new table: blobs in place of references, as the table had them before, if it had."""
    return pa.schema(_with_blobs(schema, before or ()))


def _with_blobs(fields: Iterable[pa.Field[Any]], before: Iterable[pa.Field[Any]]) -> list[pa.Field[Any]]:
    old_fields = {field.name: field for field in before}
    new_fields = []
    for field in fields:
        old = old_fields.get(field.name)
        if is_reference(field.type):
            new_fields.append(old if old is not None and takes_references(old) else blob_field(field.name))
        elif isinstance(field.type, pa.StructType) and not is_blob(field):
            within = old.type if old is not None and isinstance(old.type, pa.StructType) else ()
            new_fields.append(field.with_type(pa.struct(_with_blobs(field.type, within))))
        else:
            new_fields.append(field)
    return new_fields
