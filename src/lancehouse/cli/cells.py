"""Values of rows: short for people, whole for programs."""

from __future__ import annotations

import base64
import math
from collections.abc import Sequence
from typing import Any

from lancehouse.cli.words import size
from lancehouse.schema.shown import ELLIPSIS, Cell, Limits, cells, kind_of

LONGEST = 40
"""Characters of a cell."""
LIMITS = Limits(text=LONGEST * 2, items=3, depth=2)
WHOLE = Limits(text=2**31, items=2**31, depth=100)


def short(column: Any, field: Any) -> list[str]:
    """The values of a column, each short enough for a cell."""
    return [_short(cell) for cell in cells(column, kind_of(field), LIMITS)]


def _short(cell: Cell) -> str:
    match cell:
        case None:
            return "null"
        case {"kind": "vector" | "nested", "text": text, "size": count}:
            return _cut(f"{text.removesuffix(']').removesuffix(ELLIPSIS)}{ELLIPSIS}{count}]" if _is_cut(text) else text)
        case {"kind": "bytes" | "blob" as kind, "size": number, **more}:
            return f"<{str(more.get('image') or kind).rpartition('/')[2]}, {size(int(number or 0))}>"
        case {"text": text}:
            return _cut(text)
    return _cut(str(cell))


def _is_cut(text: str) -> bool:
    return text.endswith((f"{ELLIPSIS}]", ELLIPSIS)) and text.startswith("[")


def _cut(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= LONGEST else line[: LONGEST - 1] + ELLIPSIS


def whole(column: Any, field: Any) -> list[Any]:
    """The values of a column as JSON has them: bytes in Base64, of a blob its length."""
    if kind_of(field) == "blob":
        return [None if told is None else {"size": told.get("size")} for told in column.to_pylist()]
    return [_json(each) for each in _python(column, field)]


def _python(column: Any, field: Any) -> Sequence[Any]:
    if str(field.type) == "time64[ns]":  # of which Python would drop the nanoseconds
        column = column.cast("string")
    try:
        found: Sequence[Any] = column.to_pylist()
    except (ValueError, OverflowError):  # Python has no nanoseconds, nor the year 10,000
        return [each["text"] if isinstance(each, dict) else each for each in cells(column, kind_of(field), WHOLE)]
    return found


def _json(value: Any) -> Any:
    match value:
        case bytes():
            return base64.b64encode(value).decode()
        case float():
            return value if math.isfinite(value) else None
        case list() | tuple():
            return [_json(each) for each in value]
        case dict():
            return {str(key): _json(each) for key, each in value.items()}
        case None | bool() | int() | str():
            return value
    return _json(value.item()) if hasattr(value, "item") else str(value)
