"""Values out of a client's JSON, of the kind that is needed or refused in one sentence.

`where` names the object in messages: "snapshot", "update add-schema". A key whose value is null counts as missing.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from lance_namespace.errors import InvalidInputError

Json = dict[str, Any]

T = TypeVar("T")

_UUID = re.compile(r"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")
_SHOWN = 60
_LARGEST = {32: 1 << 31, 64: 1 << 63}


def shown(value: object) -> str:
    """A value for a message: short, whatever it is."""
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


def mapping(value: object, where: str) -> Json:
    """The value itself, if it is a JSON object.

    Raises:
        InvalidInputError: it is not.
    """
    if not isinstance(value, dict):
        raise InvalidInputError(f"{where} must be an object, got {shown(value)}")
    return value


def integer(json: Mapping[str, Any], key: str, where: str, *, bits: int = 32) -> int:
    """A whole number that a signed integer of so many bits holds."""
    value = json.get(key)
    if type(value) is int and -_LARGEST[bits] <= value < _LARGEST[bits]:  # most are right, and messages cost more
        return value
    return _needed(optional_integer(json, key, where, bits=bits), key, where)


def optional_integer(json: Mapping[str, Any], key: str, where: str, *, bits: int = 32) -> int | None:
    """A whole number, or None where there is none."""
    value = json.get(key)
    return None if value is None else _integer(value, f"{where}: '{key}'", bits)


def integers(json: Mapping[str, Any], key: str, where: str, *, bits: int = 32) -> list[int]:
    """A list of whole numbers."""
    return [_integer(value, f"each of {where}: '{key}'", bits) for value in items(json, key, where)]


def text(json: Mapping[str, Any], key: str, where: str) -> str:
    """A string."""
    value = json.get(key)
    if type(value) is str:
        return value
    return _needed(optional_text(json, key, where), key, where)


def optional_text(json: Mapping[str, Any], key: str, where: str) -> str | None:
    """A string, or None where there is none."""
    value = json.get(key)
    return None if value is None else _text(value, f"{where}: '{key}'")


def texts(json: Mapping[str, Any], key: str, where: str) -> list[str]:
    """A list of strings."""
    return [_text(value, f"each of {where}: '{key}'") for value in items(json, key, where)]


def flag(json: Mapping[str, Any], key: str, where: str) -> bool:
    """True or false."""
    value = _needed(json.get(key), key, where)
    if not isinstance(value, bool):
        raise InvalidInputError(f"{where}: '{key}' must be true or false, got {shown(value)}")
    return value


def items(json: Mapping[str, Any], key: str, where: str) -> list[Any]:
    """A list of anything."""
    value = _needed(json.get(key), key, where)
    if not isinstance(value, list):
        raise InvalidInputError(f"{where}: '{key}' must be a list, got {shown(value)}")
    return value


def part(json: Mapping[str, Any], key: str, where: str) -> Json:
    """An object inside the object."""
    return mapping(_needed(json.get(key), key, where), f"{where}: '{key}'")


def strings(json: Mapping[str, Any], key: str, where: str) -> dict[str, str]:
    """An object whose values are strings."""
    values = part(json, key, where)
    for name, value in values.items():
        if type(value) is not str:
            _text(value, f"{where}: {shown(name)} in '{key}'")
    return values


def optional_strings(json: Mapping[str, Any], key: str, where: str) -> dict[str, str]:
    """An object whose values are strings; empty where there is none."""
    return {} if json.get(key) is None else strings(json, key, where)


def uuid(json: Mapping[str, Any], key: str, where: str) -> str:
    """A UUID in its usual form, in lower case."""
    value = text(json, key, where)
    if not _UUID.fullmatch(value):
        raise InvalidInputError(f"{where}: '{key}' must be a UUID, got {shown(value)}")
    return value.lower()


def known(handlers: Mapping[str, T], json: object, key: str, what: str) -> tuple[T, Json]:
    """What handles this object, by the name under `key`, and the object.

    Raises:
        InvalidInputError: the name is missing or not known.
    """
    found = mapping(json, f"each {what}")
    name = text(found, key, what)
    if name not in handlers:
        raise InvalidInputError(f"{what} {shown(name)} is not supported; known are: {', '.join(handlers)}")
    return handlers[name], found


def each(json: object, what: str, check: Callable[[Any], T]) -> list[T]:
    """A list, each item checked."""
    if not isinstance(json, list):
        raise InvalidInputError(f"{what} must be a list, got {shown(json)}")
    return [check(item) for item in json]


def _integer(value: object, what: str, bits: int) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise InvalidInputError(f"{what} must be a whole number, got {shown(value)}")
    if not -_LARGEST[bits] <= value < _LARGEST[bits]:
        raise InvalidInputError(f"{what} must be a number of {bits} bits, got {shown(value)}")
    return value


def _text(value: object, what: str) -> str:
    if not isinstance(value, str):
        raise InvalidInputError(f"{what} must be a string, got {shown(value)}")
    return value


def _needed(value: T | None, key: str, where: str) -> T:
    if value is None:
        raise InvalidInputError(f"{where}: '{key}' is missing")
    return value
