"""Read typed values from a client's JSON, or raise InvalidInputError with a message that names the key.

`where` names the object in messages: "snapshot", "update add-schema". A key whose value is null counts as missing.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from lance_namespace.errors import InvalidInputError

Json = dict[str, Any]

T = TypeVar("T")

UUID = re.compile(r"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")
_SHOWN = 60
_LARGEST = {32: 1 << 31, 64: 1 << 63}


def format_value(value: object) -> str:
    """Return a short text for a value of any kind, for messages."""
    match value:
        case None:
            return "null"
        case bool():
            return "true" if value else "false"
        case int() if abs(value) >= 1 << 64:
            return "a number out of range"
        case str() if len(value) > _SHOWN:
            return f"{value[:_SHOWN]!r}…"
        case str() | int() | float():
            return repr(value)
        case list():
            return "a list"
        case _:
            return "an object"


def require_object(value: object, where: str) -> Json:
    """Return the value if it is a JSON object.

    Raises:
        InvalidInputError: it is none.
    """
    if not isinstance(value, dict):
        raise InvalidInputError(f"{where} must be an object, got {format_value(value)}")
    return value


def integer(json: Mapping[str, Any], key: str, where: str, *, bits: int = 32) -> int:
    """Return a whole number that fits a signed integer of `bits` bits."""
    value = json.get(key)
    # Fast path: building the names for messages costs more than the check.
    if type(value) is int and -_LARGEST[bits] <= value < _LARGEST[bits]:
        return value
    return _require(optional_integer(json, key, where, bits=bits), key, where)


def optional_integer(json: Mapping[str, Any], key: str, where: str, *, bits: int = 32) -> int | None:
    """Return a whole number, or None if the key is missing."""
    value = json.get(key)
    return None if value is None else _check_integer(value, f"{where}: '{key}'", bits)


def integers(json: Mapping[str, Any], key: str, where: str, *, bits: int = 32) -> list[int]:
    """Return a list of whole numbers."""
    return [_check_integer(value, f"each of {where}: '{key}'", bits) for value in items(json, key, where)]


def text(json: Mapping[str, Any], key: str, where: str) -> str:
    """Return a string."""
    value = json.get(key)
    if type(value) is str:
        return value
    return _require(optional_text(json, key, where), key, where)


def optional_text(json: Mapping[str, Any], key: str, where: str) -> str | None:
    """Return a string, or None if the key is missing."""
    value = json.get(key)
    return None if value is None else _check_text(value, f"{where}: '{key}'")


def texts(json: Mapping[str, Any], key: str, where: str) -> list[str]:
    """Return a list of strings."""
    return [_check_text(value, f"each of {where}: '{key}'") for value in items(json, key, where)]


def flag(json: Mapping[str, Any], key: str, where: str) -> bool:
    """Return a boolean."""
    value = _require(json.get(key), key, where)
    if not isinstance(value, bool):
        raise InvalidInputError(f"{where}: '{key}' must be true or false, got {format_value(value)}")
    return value


def items(json: Mapping[str, Any], key: str, where: str) -> list[Any]:
    """Return a list of anything."""
    value = _require(json.get(key), key, where)
    if not isinstance(value, list):
        raise InvalidInputError(f"{where}: '{key}' must be a list, got {format_value(value)}")
    return value


def inner_object(json: Mapping[str, Any], key: str, where: str) -> Json:
    """Return an object inside the object."""
    return require_object(_require(json.get(key), key, where), f"{where}: '{key}'")


def string_map(json: Mapping[str, Any], key: str, where: str) -> dict[str, str]:
    """Return an object whose values are strings."""
    values = inner_object(json, key, where)
    for name, value in values.items():
        if type(value) is not str:
            _check_text(value, f"{where}: {format_value(name)} in '{key}'")
    return values


def optional_string_map(json: Mapping[str, Any], key: str, where: str) -> dict[str, str]:
    """Return an object whose values are strings, or an empty one if the key is missing."""
    return {} if json.get(key) is None else string_map(json, key, where)


def uuid(json: Mapping[str, Any], key: str, where: str) -> str:
    """Return a UUID in its canonical form, in lower case."""
    value = text(json, key, where)
    if not UUID.fullmatch(value):
        raise InvalidInputError(f"{where}: '{key}' must be a UUID, got {format_value(value)}")
    return value.lower()


def get_handler(handlers: Mapping[str, T], json: object, key: str, what: str) -> tuple[T, Json]:
    """Return the handler for an object, chosen by the name under `key`, and the object.

    Raises:
        InvalidInputError: the name is missing or unknown.
    """
    json_object = require_object(json, f"each {what}")
    name = text(json_object, key, what)
    if name not in handlers:
        raise InvalidInputError(f"{what} {format_value(name)} is not supported; known are: {', '.join(handlers)}")
    return handlers[name], json_object


def parse_list(json: object, what: str, check: Callable[[Any], T]) -> list[T]:
    """Return a list with each item converted by `check`."""
    if not isinstance(json, list):
        raise InvalidInputError(f"{what} must be a list, got {format_value(json)}")
    return [check(item) for item in json]


def _check_integer(value: object, what: str, bits: int) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise InvalidInputError(f"{what} must be a whole number, got {format_value(value)}")
    if not -_LARGEST[bits] <= value < _LARGEST[bits]:
        raise InvalidInputError(f"{what} must be a number of {bits} bits, got {format_value(value)}")
    return value


def _check_text(value: object, what: str) -> str:
    if not isinstance(value, str):
        raise InvalidInputError(f"{what} must be a string, got {format_value(value)}")
    return value


def _require(value: T | None, key: str, where: str) -> T:
    if value is None:
        raise InvalidInputError(f"{where}: '{key}' is missing")
    return value
