"""Blob references: small values that stand for blobs of a table's version, until somebody reads them.

A reference names a table of the catalog, never a location, and holds no credentials: whoever reads it does so through a
connection of their own.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pyarrow as pa

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
ENCODING = "lance-encoding:blob"
"""Key of field metadata by which Lance stores binaries as blobs."""

_SPARK = {field.name: "string" if field.type == pa.string() else "long" for field in REFERENCE}


def is_reference(dtype: Any) -> bool:
    """Return whether a type, of Arrow or in the JSON of Spark, is that of references.

    They are known by their fields alone: metadata of columns do not survive all of Spark's operators.
    """
    if isinstance(dtype, Mapping):
        return dtype["type"] == "struct" and {each["name"]: each["type"] for each in dtype["fields"]} == _SPARK
    if not isinstance(dtype, pa.StructType):
        return False
    kinds = {each.name: "string" if _is_text(each.type) else str(each.type) for each in dtype}
    return kinds == {each.name: str(each.type) for each in REFERENCE}


def _is_text(dtype: pa.DataType) -> bool:
    return pa.types.is_string(dtype) or pa.types.is_large_string(dtype) or pa.types.is_string_view(dtype)


def is_blob(column: pa.Field[Any]) -> bool:
    """Return whether the values of a column are stored as blobs."""
    if isinstance(column.type, pa.BaseExtensionType):
        return column.type.extension_name == BLOB
    metadata = column.metadata or {}
    return metadata.get(ENCODING.encode()) == b"true" or metadata.get(EXTENSION.encode()) == BLOB.encode()


def takes_references(column: pa.Field[Any]) -> bool:
    """Return whether references that are written into a column are replaced by the bytes of their blobs."""
    return is_blob(column) or pa.types.is_binary(column.type) or pa.types.is_large_binary(column.type)


def find_references(incoming: pa.Schema, target: pa.Schema) -> list[str]:
    """Return the columns whose references are replaced by bytes when rows are written to a table."""
    known = [each.name for each in incoming if is_reference(each.type) and each.name in target.names]
    return [name for name in known if takes_references(target.field(name))]
