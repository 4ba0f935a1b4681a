"""Convert Arrow schemas to columns of Unity Catalog, whose types are Spark's, and back."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import pyarrow as pa

from lancehouse.schema.spark import SparkType, from_ddl, from_spark, to_ddl, to_spark
from lancehouse.schema.walk import schema_error

_COMMENT = "comment"

_TYPE_NAMES = MappingProxyType(
    {
        "void": "NULL",
        "boolean": "BOOLEAN",
        "byte": "BYTE",
        "short": "SHORT",
        "integer": "INT",
        "long": "LONG",
        "float": "FLOAT",
        "double": "DOUBLE",
        "string": "STRING",
        "binary": "BINARY",
        "date": "DATE",
        "timestamp": "TIMESTAMP",
        "timestamp_ntz": "TIMESTAMP_NTZ",
        "interval day to second": "INTERVAL",
        "array": "ARRAY",
        "map": "MAP",
        "struct": "STRUCT",
    }
)
_DECIMAL = re.compile(r"decimal\((\d+),(\d+)\)")


def to_unity(schema: pa.Schema) -> list[dict[str, Any]]:
    """Return the columns of a CreateTable request.

    Raises:
        TableSchemaValidationError: Lance cannot store a type.
    """
    return [_to_column(position, field) for position, field in enumerate(to_spark(schema)["fields"])]


def from_unity(columns: Sequence[Mapping[str, Any]]) -> pa.Schema:
    """Return the Arrow schema of a table's columns, ordered by position.

    `type_json` has all details. Where it is missing or no StructField, as other clients write it differently,
    `type_text` is used.

    Raises:
        TableSchemaValidationError: a column has neither, or Arrow or Lance has no such type.
    """
    ordered = sorted(columns, key=lambda column: column.get("position") or 0)
    return from_spark({"fields": [_to_struct_field(column) for column in ordered]})


def _to_column(position: int, field: Mapping[str, Any]) -> dict[str, Any]:
    column = {
        "name": field["name"],
        "type_text": to_ddl(field["type"]),
        "type_json": json.dumps(field, separators=(",", ":")),
        "position": position,
        "nullable": field["nullable"],
        **_type_name(field["type"]),
    }
    return column | ({_COMMENT: field["metadata"][_COMMENT]} if _COMMENT in field["metadata"] else {})


def _type_name(spark: SparkType) -> dict[str, Any]:
    name = spark if isinstance(spark, str) else spark["type"]
    if match := _DECIMAL.fullmatch(name):
        return {"type_name": "DECIMAL", "type_precision": int(match[1]), "type_scale": int(match[2])}
    return {"type_name": _TYPE_NAMES[name]}


def _to_struct_field(column: Mapping[str, Any]) -> dict[str, Any]:
    # The catalog's own name and nullability count; type_json repeats those of the time when it was written.
    struct_field = _parse_struct_field(column.get("type_json"))
    if struct_field is None:
        if not (text := column.get("type_text")):
            raise schema_error((column["name"],), "the column has neither type_json nor type_text")
        struct_field = {"type": text}
    nullable = column.get("nullable")
    comment = {} if column.get(_COMMENT) is None else {_COMMENT: column[_COMMENT]}
    return {
        "name": column["name"],
        "type": from_ddl(struct_field["type"]) if isinstance(struct_field["type"], str) else struct_field["type"],
        "nullable": struct_field.get("nullable", True) if nullable is None else nullable,
        "metadata": {**(struct_field.get("metadata") or {}), **comment},
    }


def _parse_struct_field(text: str | None) -> dict[str, Any] | None:
    try:
        parsed = json.loads(text or "null")
    except ValueError:
        return None
    return parsed if isinstance(parsed, dict) and "type" in parsed and "name" in parsed else None
