"""Which types of columns may become which others without a loss."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

WIDER = "wider integers and floats, decimals with more digits, and large strings and binaries"
"""What a type may become, for error messages."""


def is_widening(before: pa.DataType, after: pa.DataType) -> bool:
    """Return whether every value of one type is a value of the other, and Lance can rewrite a column so."""
    if before == after:
        return True
    match before, after:
        case pa.FixedSizeListType(), pa.FixedSizeListType():
            return before.list_size == after.list_size and is_widening(before.value_type, after.value_type)
        case pa.ListType(), pa.ListType():
            return is_widening(before.value_type, after.value_type)
    if pa.types.is_integer(before) and pa.types.is_integer(after):
        return _is_wider_integer(before, after)
    if pa.types.is_decimal(before) and pa.types.is_decimal(after):
        return _is_wider_decimal(before, after)
    if pa.types.is_floating(before) and pa.types.is_floating(after):
        return after.bit_width > before.bit_width
    return (before, after) in ((pa.string(), pa.large_string()), (pa.binary(), pa.large_binary()))


def _is_wider_integer(before: Any, after: Any) -> bool:
    if pa.types.is_signed_integer(before) and not pa.types.is_signed_integer(after):
        return False
    return bool(after.bit_width > before.bit_width)


def _is_wider_decimal(before: Any, after: Any) -> bool:
    digits = before.precision - before.scale
    return bool(type(before) is type(after) and after.scale >= before.scale and after.precision - after.scale >= digits)
