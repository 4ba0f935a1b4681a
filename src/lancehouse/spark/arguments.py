"""Arguments of `LanceCatalog` that cannot be: said by name, before any work starts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from lance_namespace.errors import InvalidInputError

from lancehouse.identifiers import parse_levels
from lancehouse.lake.fragments import Layout
from lancehouse.spark.sources.options import ALL_OPTIONS
from lancehouse.spark.suggestions import meant
from lancehouse.spark.writing import Write

LARGEST = 2**63 - 1
_WRITES = ("vector_columns", "nullable", "run", "max_rows_per_file", "max_bytes_per_file", "data_storage_version")


def text(name: str, value: Any) -> str:
    """A text.

    Raises:
        InvalidInputError: it is none, as for all below.
    """
    if not isinstance(value, str):
        raise _wrong(name, "a text", value)
    return value


def some_text(name: str, value: Any) -> str | None:
    """A text, or None."""
    return None if value is None else text(name, value)


def flag(name: str, value: Any) -> bool:
    """Yes or no."""
    if not isinstance(value, bool):
        raise _wrong(name, "True or False", value)
    return value


def levels(name: str, value: Any) -> tuple[str, ...]:
    """A namespace, by its levels or as text; the empty one is the whole catalog."""
    found = parse_levels(value) if isinstance(value, str) else tuple(value) if isinstance(value, Iterable) else None
    if found is None or not all(isinstance(level, str) for level in found):
        raise _wrong(name, "text such as 'wh.db', or a list of levels", value)
    return found


def condition(name: str, value: Any) -> str | None:
    """A condition in SQL, or None."""
    if value is not None and not isinstance(value, str):
        raise _wrong(name, "a condition in SQL, as a text", value)
    return value


def names(name: str, value: Any) -> tuple[str, ...]:
    """One name, or several."""
    found = (value,) if isinstance(value, str) else tuple(value) if isinstance(value, Iterable) else None
    if found is None or not all(isinstance(each, str) for each in found):
        raise _wrong(name, "the name of a column, or a list of names", value)
    return found


def some_names(name: str, value: Any) -> tuple[str, ...] | None:
    """One name, several, or None."""
    return None if value is None else names(name, value)


def number(name: str, value: Any) -> int | None:
    """A whole number of 64 bits, or None."""
    if value is not None and (isinstance(value, bool) or not isinstance(value, int) or abs(value) > LARGEST):
        raise _wrong(name, "a whole number", value)
    return value


def mapping(name: str, value: Any, expected: str) -> Mapping[str, Any]:
    """Names and what they are."""
    if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
        raise _wrong(name, expected, value)
    return value


def expressions(value: Any) -> Mapping[str, str]:
    """What `update` sets columns to."""
    for column, expression in mapping("set", value, "columns and SQL, such as {'price': 'price * 2'}").items():
        if callable(expression):
            raise InvalidInputError(
                f"set: {column} is a function, and update takes SQL over the row; compute a column with add_columns, "
                "or merge a DataFrame that has the new values"
            )
        if not isinstance(expression, str):
            raise _wrong(f"set: {column}", f"SQL, as a text such as {str(expression)!r}", expression)
    found: Mapping[str, str] = value
    return found


def frame(value: Any) -> Any:
    """A DataFrame of Spark."""
    if not callable(getattr(value, "mapInArrow", None)):
        raise _wrong("df", "a DataFrame of Spark (spark.createDataFrame makes one)", type(value))
    return value


def write(call: str, given: Mapping[str, Any]) -> Write:
    """How rows are written, from the arguments that all writes share.

    Args:
        call: the method, for errors.
        given: them.
    """
    for name in given:
        if name in _WRITES:
            continue
        if call == "ingest" and name in ALL_OPTIONS:
            raise InvalidInputError(f"{name} is an option of the format: give it as options={{{name!r}: …}}")
        raise InvalidInputError(f"{call} has no argument {name!r}; {meant(name, _WRITES)}")
    vectors = mapping("vector_columns", given.get("vector_columns") or {}, "columns and dimensions: {'emb': 128}")
    for column, dimension in vectors.items():
        if not (isinstance(dimension, int) and dimension > 0):
            raise _wrong(f"vector_columns: {column}", "the number of values in a vector", dimension)
    layout = Layout(
        number("max_rows_per_file", given.get("max_rows_per_file")),
        number("max_bytes_per_file", given.get("max_bytes_per_file")),
        some_text("data_storage_version", given.get("data_storage_version")),
    )
    nullable = given.get("nullable", True)
    if not isinstance(nullable, bool):
        raise _wrong("nullable", "True, or False to keep what the rows say of nulls", nullable)
    return Write(vectors, layout, some_text("run", given.get("run")), nullable=nullable)


def _wrong(name: str, expected: str, value: Any) -> InvalidInputError:
    return InvalidInputError(f"{name} must be {expected}, not {value!r}")
