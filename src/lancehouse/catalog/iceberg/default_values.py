"""Check default values of columns (`initial-default`, `write-default`) against the column's type."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from datetime import date, datetime, time
from decimal import Decimal, InvalidOperation
from types import MappingProxyType

from lancehouse.catalog.errors import IllegalArgumentError
from lancehouse.catalog.iceberg.json_values import format_value

_HEX = re.compile(r"([0-9a-fA-F]{2})*")
_UUID = re.compile(r"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")
_DATE = r"\d{4}-\d\d-\d\d"
_TIME = r"\d\d:\d\d(:\d\d(\.\d{1,9})?)?"


def check_default(value: object, type_: object) -> object:
    """Return the value in the form that every reader accepts.

    Raises:
        IllegalArgumentError: it is not a value of this type, or the type cannot have a default.
    """
    if isinstance(type_, str):
        for name, check in _CHECKS.items():
            if type_.partition("(")[0].partition("[")[0] == name:
                default = check(value, type_)
                if default is not None:
                    return default
    name = type_ if isinstance(type_, str) else "nested"
    raise IllegalArgumentError(f"Cannot parse default as a {name} value: {format_value(value)}")


def _integer_check(bits: int) -> Callable[[object, str], object]:
    def check(value: object, _: str) -> object:
        fits = isinstance(value, int) and not isinstance(value, bool) and abs(2 * value + 1) < 1 << bits
        return value if fits else None

    return check


def _check_real(value: object, _: str) -> object:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if abs(value) < 1 << 1023 else None  # readers recognize a float by its decimal point


def _pattern_check(pattern: str, parse: Callable[[str], object]) -> Callable[[object, str], object]:
    regex = re.compile(pattern)

    def check(value: object, _: str) -> object:
        if not isinstance(value, str) or not regex.fullmatch(value):
            return None
        try:
            parse(re.sub(r"(\.\d{6})\d+", r"\1", value))
        except ValueError:
            return None
        return value

    return check


def _check_decimal(value: object, type_: str) -> object:
    precision, scale = (int(number) for number in re.findall(r"\d+", type_))
    try:
        number = Decimal(value) if isinstance(value, str) else None
    except InvalidOperation:
        return None
    if number is None or not number.is_finite():
        return None
    digits = number.as_tuple()
    return value if digits.exponent == -scale and len(digits.digits) <= precision else None


def _check_hex(value: object, type_: str) -> object:
    if not isinstance(value, str) or not _HEX.fullmatch(value):
        return None
    length = re.search(r"\d+", type_)
    return value if length is None or len(value) == 2 * int(length[0]) else None


_timestamp = _pattern_check(f"{_DATE}T{_TIME}", datetime.fromisoformat)
_timestamptz = _pattern_check(rf"{_DATE}T{_TIME}(\+00:00|Z)", datetime.fromisoformat)

_CHECKS: Mapping[str, Callable[[object, str], object]] = MappingProxyType(
    {
        "boolean": lambda value, _: value if isinstance(value, bool) else None,
        "int": _integer_check(32),
        "long": _integer_check(64),
        "float": _check_real,
        "double": _check_real,
        "decimal": _check_decimal,
        "string": lambda value, _: value if isinstance(value, str) else None,
        "uuid": lambda value, _: value if isinstance(value, str) and _UUID.fullmatch(value) else None,
        "date": _pattern_check(_DATE, date.fromisoformat),
        "time": _pattern_check(_TIME, time.fromisoformat),
        "timestamp": _timestamp,
        "timestamp_ns": _timestamp,
        "timestamptz": _timestamptz,
        "timestamptz_ns": _timestamptz,
        "fixed": _check_hex,
        "binary": _check_hex,
    }
)
