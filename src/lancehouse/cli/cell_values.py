"""Values of rows as output: short texts for tables on a terminal, complete values for JSON."""

from __future__ import annotations

import base64
import math
from collections.abc import Sequence
from typing import Any

from lancehouse.cli.output import format_size
from lancehouse.schema.display import ELLIPSIS, Cell, DisplayLimits, format_cells, value_kind

LONGEST = 40
"""Longest text in a cell, in characters."""
LIMITS = DisplayLimits(text=LONGEST * 2, items=3, depth=2)
WHOLE = DisplayLimits(text=2**31, items=2**31, depth=100)


def format_short_cells(column: Any, field: Any) -> list[str]:
    """Format the values of a column, each short enough for a cell."""
    return [_format_cell(cell) for cell in format_cells(column, value_kind(field), LIMITS)]


def _format_cell(cell: Cell) -> str:
    match cell:
        case None:
            return "null"
        case {"kind": "vector" | "nested", "text": text, "size": count}:
            return _truncate(
                f"{text.removesuffix(']').removesuffix(ELLIPSIS)}{ELLIPSIS}{count}]" if _is_truncated(text) else text
            )
        case {"kind": "bytes" | "blob" as kind, "size": number, **more}:
            return f"<{str(more.get('image') or kind).rpartition('/')[2]}, {format_size(int(number or 0))}>"
        case {"text": text}:
            return _truncate(text)
    return _truncate(str(cell))


def _is_truncated(text: str) -> bool:
    return text.endswith((f"{ELLIPSIS}]", ELLIPSIS)) and text.startswith("[")


def _truncate(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= LONGEST else line[: LONGEST - 1] + ELLIPSIS


def to_json_values(column: Any, field: Any) -> list[Any]:
    """Convert the values of a column to JSON: bytes as Base64, a blob as its size."""
    if value_kind(field) == "blob":
        return [
            None if description is None else {"size": description.get("size")} for description in column.to_pylist()
        ]
    return [_to_json(value) for value in _to_python(column, field)]


def _to_python(column: Any, field: Any) -> Sequence[Any]:
    if str(field.type) == "time64[ns]":  # Python's `time` would drop the nanoseconds
        column = column.cast("string")
    try:
        values: Sequence[Any] = column.to_pylist()
    except (ValueError, OverflowError):  # Python's `datetime` has no nanoseconds and no year 10,000
        return [
            cell["text"] if isinstance(cell, dict) else cell for cell in format_cells(column, value_kind(field), WHOLE)
        ]
    return values


def _to_json(value: Any) -> Any:
    match value:
        case bytes():
            return base64.b64encode(value).decode()
        case float():
            return value if math.isfinite(value) else None
        case list() | tuple():
            return [_to_json(item) for item in value]
        case dict():
            return {str(key): _to_json(item) for key, item in value.items()}
        case None | bool() | int() | str():
            return value
    return _to_json(value.item()) if hasattr(value, "item") else str(value)
