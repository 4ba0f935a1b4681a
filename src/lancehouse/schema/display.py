"""Format Arrow types and values for display: shortened, and in types that JSON supports."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from lancehouse.schema.blob_references import is_blob
from lancehouse.schema.walk import EXTENSION, JSON, storage_type

Cell = None | bool | int | float | str | dict[str, Any]
"""A value: unchanged where it is short, otherwise an object whose `kind` defines its other keys."""

SAFE = 2**53 - 1
"""Largest integer that every JSON parser reads exactly."""
HEAD = 16
"""Number of bytes at the start of a file that show which kind of image it is."""
ELLIPSIS = "…"

_SHORT = {
    "float": "float32",
    "double": "float64",
    "halffloat": "float16",
    "large_string": "string",
    "large_binary": "binary",
    "date32[day]": "date",
    "date64[ms]": "date",
}

_ZEROS = re.compile(r"\.0+(?=$|Z|[+-])")
"""Fractions of a second that are zero."""


@dataclass(frozen=True, slots=True)
class DisplayLimits:
    """Limits of how much of one value is shown."""

    text: int = 240
    """Number of characters of a text, or of a whole nested value."""
    items: int = 8
    """Number of items of a list, or fields of a struct."""
    depth: int = 4


BRIEF = DisplayLimits()
WHOLE = DisplayLimits(text=200_000, items=20_000, depth=16)


def field_to_json(field: pa.Field[Any]) -> dict[str, Any]:
    """Describe a column or a nested field: name, type, kind of values, nullability, metadata and child fields."""
    dtype = storage_type(field.type)
    children = [dtype.field(place) for place in range(dtype.num_fields)] if isinstance(dtype, pa.StructType) else []
    if isinstance(dtype, (pa.ListType, pa.LargeListType)) and isinstance(storage_type(dtype.value_type), pa.StructType):
        children = [dtype.value_field]
    items = (field.metadata or {}).items()
    metadata = {key.decode(errors="replace"): value.decode(errors="replace") for key, value in items}
    kind = value_kind(field)
    return {
        "name": field.name,
        "type": format_type(field.type) if kind != "blob" else "blob",
        "kind": kind,
        "size": dtype.list_size if isinstance(dtype, pa.FixedSizeListType) else None,
        "nullable": field.nullable,
        "metadata": metadata,
        "fields": [field_to_json(child) for child in children] if kind != "blob" else [],
    }


def value_kind(field: pa.Field[Any]) -> str:
    """Return the kind of values of a column, which decides how they are shown."""
    if is_blob(field):
        return "blob"
    name = getattr(field.type, "extension_name", None) or (field.metadata or {}).get(EXTENSION.encode(), b"").decode()
    if name in JSON:
        return "json"
    dtype = storage_type(field.type)
    if is_vector(dtype):
        return "vector"
    checks = (
        (pa.types.is_boolean, "bool"),
        (pa.types.is_integer, "number"),
        (pa.types.is_floating, "number"),
        (pa.types.is_decimal, "number"),
        (pa.types.is_temporal, "time"),
        (_is_text, "text"),
        (_is_bytes, "bytes"),
        (pa.types.is_struct, "struct"),
        (pa.types.is_dictionary, "text"),
    )
    return next((word for check, word in checks if check(dtype)), "list" if dtype.num_fields else "other")


def is_vector(dtype: pa.DataType) -> bool:
    """Return whether a type is a vector: a fixed-size list of floats or 8-bit integers. Lance accepts no others."""
    if not isinstance(dtype, pa.FixedSizeListType):
        return False
    return pa.types.is_floating(dtype.value_type) or dtype.value_type in (pa.int8(), pa.uint8())


def format_type(dtype: pa.DataType) -> str:
    """Return a short name for a type."""
    if isinstance(dtype, pa.BaseExtensionType):
        return str(dtype.extension_name).rpartition(".")[2]
    match dtype:
        case pa.FixedSizeListType():
            return f"{format_type(dtype.value_type)}[{dtype.list_size}]"
        case pa.ListType() | pa.LargeListType():
            return f"list<{format_type(dtype.value_type)}>"
        case pa.StructType():
            return f"struct<{', '.join(field.name for field in dtype)}>"
        case pa.MapType():
            return f"map<{format_type(dtype.key_type)}, {format_type(dtype.item_type)}>"
        case pa.DictionaryType():
            return format_type(dtype.value_type)
    return _SHORT.get(str(dtype), str(dtype))


def format_cells(array: Any, kind: str, limits: DisplayLimits = BRIEF) -> list[Cell]:
    """Return the values of a column of a kind for display; blobs come as Lance's descriptions."""
    return [_format_blob(scalar) if kind == "blob" else format_cell(scalar, limits) for scalar in array]


def format_cell(scalar: Any, limits: DisplayLimits = BRIEF) -> Cell:
    """Return one value for display."""
    if isinstance(scalar.type, pa.UuidType):
        return None if scalar.as_py() is None else str(scalar.as_py())
    while isinstance(scalar, (pa.ExtensionScalar, pa.DictionaryScalar)) and scalar.is_valid:
        scalar = scalar.value
    if not scalar.is_valid:
        return None
    dtype = scalar.type
    if _is_bytes(dtype):
        raw = scalar.as_buffer()
        return {"kind": "bytes", "size": raw.size, "image": image_type(raw[:HEAD].to_pybytes())}
    if _is_text(dtype):
        return _truncate_text(scalar, limits)
    if is_vector(dtype):
        return {
            "kind": "vector",
            "size": dtype.list_size,
            "text": _join_limited(_format_nested(scalar, limits, 0), limits),
        }
    if dtype.num_fields:
        return {"kind": "nested", "size": len(scalar), "text": _join_limited(_format_nested(scalar, limits, 0), limits)}
    return _format_scalar(scalar)


def image_type(head: bytes) -> str | None:
    """Return the media type of an image by its first bytes; None if it is no image that can be shown."""
    if head.startswith(b"\x89PNG\r\n\x1a\n"):
        return "image/png"
    if head.startswith(b"\xff\xd8\xff"):
        return "image/jpeg"
    if head.startswith((b"GIF87a", b"GIF89a")):
        return "image/gif"
    return "image/webp" if head[:4] == b"RIFF" and head[8:12] == b"WEBP" else None


def _format_blob(scalar: Any) -> Cell:
    """Return the size of a blob from Lance's description, without reading it."""
    description = scalar.as_py()
    return None if description is None else {"kind": "blob", "size": description.get("size")}


def _truncate_text(scalar: Any, limits: DisplayLimits) -> Cell:
    raw = scalar.as_buffer()
    # A character has at most four bytes in UTF-8: what is not shown of a long text is not decoded either.
    text: str = raw[: limits.text * 4].to_pybytes().decode("utf-8", "ignore")
    if raw.size <= limits.text * 4 and len(text) <= limits.text:
        return text
    return {"kind": "text", "size": raw.size, "text": text[: limits.text]}


def _format_scalar(scalar: Any) -> Cell:
    dtype = scalar.type
    if pa.types.is_boolean(dtype):
        return bool(scalar.as_py())
    if pa.types.is_integer(dtype):
        number: int = scalar.as_py()
        return number if abs(number) <= SAFE else {"kind": "number", "text": str(number)}
    if pa.types.is_floating(dtype):
        text = _format_number(scalar)
        return float(text) if math.isfinite(float(text)) else {"kind": "number", "text": text}
    if pa.types.is_decimal(dtype):
        return {"kind": "number", "text": str(scalar.as_py())}
    return _format_temporal(scalar)


def _format_number(scalar: Any) -> str:
    """Return the shortest text that parses to the same number."""
    value = scalar.as_py()
    if pa.types.is_float64(scalar.type) or not pa.types.is_floating(scalar.type):
        return str(value)
    return str(np.float32(value) if pa.types.is_float32(scalar.type) else np.float16(value))


def _format_temporal(scalar: Any) -> str:
    """Return a date, time or duration as Arrow formats it, since Python has no nanoseconds."""
    try:
        text = scalar.cast(pa.string()).as_py()
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        text = str(scalar)
    return _ZEROS.sub("", text)


def _join_limited(pieces: Iterator[str], limits: DisplayLimits) -> str:
    """Join pieces up to the limit; the remaining pieces are never generated."""
    shown_pieces, size = [], 0
    for piece in pieces:
        shown_pieces.append(piece)
        size += len(piece)
        if size > limits.text:
            return "".join(shown_pieces)[: limits.text] + ELLIPSIS
    return "".join(shown_pieces)


def _format_nested(scalar: Any, limits: DisplayLimits, depth: int) -> Iterator[str]:
    """Yield a nested value as pieces of text, from left to right."""
    while isinstance(scalar, (pa.ExtensionScalar, pa.DictionaryScalar)) and scalar.is_valid:
        scalar = scalar.value
    dtype = scalar.type
    if not scalar.is_valid:
        yield "null"
    elif depth >= limits.depth and dtype.num_fields:
        yield ELLIPSIS
    elif isinstance(dtype, pa.StructType):
        yield from _format_fields(scalar, limits, depth)
    elif isinstance(dtype, pa.MapType):
        yield from _format_items("{", (part for part in scalar.values), limits, depth, "}")
    elif dtype.num_fields:
        yield from _format_items("[", (part for part in scalar.values), limits, depth, "]")
    elif _is_bytes(dtype):
        yield f"<{scalar.as_buffer().size} bytes>"
    elif _is_text(dtype):
        value = _truncate_text(scalar, limits)
        yield json.dumps(value["text"] + ELLIPSIS if isinstance(value, dict) else value, ensure_ascii=False)
    elif pa.types.is_floating(dtype):
        yield _format_number(scalar)
    else:
        value = _format_scalar(scalar)
        yield str(value["text"]) if isinstance(value, dict) else json.dumps(value)


def _format_items(first: str, parts: Iterator[Any], limits: DisplayLimits, depth: int, last: str) -> Iterator[str]:
    yield first
    for place, part in enumerate(parts):
        if place:
            yield ", "
        if place >= limits.items:
            yield ELLIPSIS
            break
        yield from _format_nested(part, limits, depth + 1)
    yield last


def _format_fields(scalar: Any, limits: DisplayLimits, depth: int) -> Iterator[str]:
    yield "{"
    for place, field in enumerate(scalar.type):
        if place:
            yield ", "
        if place >= limits.items:
            yield ELLIPSIS
            break
        yield f"{json.dumps(field.name, ensure_ascii=False)}: "
        yield from _format_nested(scalar[place], limits, depth + 1)
    yield "}"


def _is_text(dtype: pa.DataType) -> bool:
    return pa.types.is_string(dtype) or pa.types.is_large_string(dtype)


def _is_bytes(dtype: pa.DataType) -> bool:
    return pa.types.is_binary(dtype) or pa.types.is_large_binary(dtype) or pa.types.is_fixed_size_binary(dtype)
