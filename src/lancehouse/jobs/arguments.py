"""Validate the arguments of `TableJobs` and `LanceCatalog` before any work starts.

Each function returns the value if it is valid, and raises an InvalidInputError that names the argument if not.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import pyarrow as pa
from lance_namespace.errors import InvalidInputError

from lancehouse.identifiers import parse_levels
from lancehouse.jobs.job import WriteOptions
from lancehouse.jobs.merge_keys import MergeRules
from lancehouse.jobs.sources.text_options import ALL_OPTIONS
from lancehouse.lake.fragments import FileLayout
from lancehouse.suggestions import suggest

LARGEST = 2**63 - 1
_WRITES = ("vector_columns", "nullable", "run", "max_rows_per_file", "max_bytes_per_file", "data_storage_version")


def check_text(name: str, value: Any) -> str:
    """Return a text.

    Raises:
        InvalidInputError: it is none; likewise for all functions below.
    """
    if not isinstance(value, str):
        raise _wrong_type(name, "a text", value)
    return value


def some_text(name: str, value: Any) -> str | None:
    """Return a text, or None."""
    return None if value is None else check_text(name, value)


def flag(name: str, value: Any) -> bool:
    """Return a boolean."""
    if not isinstance(value, bool):
        raise _wrong_type(name, "True or False", value)
    return value


def levels(name: str, value: Any) -> tuple[str, ...]:
    """Return the levels of a namespace that is given as a list or as text; no levels mean the whole catalog."""
    found = parse_levels(value) if isinstance(value, str) else tuple(value) if isinstance(value, Iterable) else None
    if found is None or not all(isinstance(level, str) for level in found):
        raise _wrong_type(name, "text such as 'wh.db', or a list of levels", value)
    return found


def check_condition(name: str, value: Any) -> str | None:
    """Return a condition in SQL, or None."""
    if value is not None and not isinstance(value, str):
        raise _wrong_type(name, "a condition in SQL, as a text", value)
    return value


def check_names(name: str, value: Any) -> tuple[str, ...]:
    """Return one name or several as a tuple."""
    checked = (value,) if isinstance(value, str) else tuple(value) if isinstance(value, Iterable) else None
    if checked is None or not all(isinstance(each, str) for each in checked):
        raise _wrong_type(name, "the name of a column, or a list of names", value)
    return checked


def some_names(name: str, value: Any) -> tuple[str, ...] | None:
    """Return one name or several as a tuple, or None."""
    return None if value is None else check_names(name, value)


def check_number(name: str, value: Any) -> int | None:
    """Return a 64-bit integer, or None."""
    if value is not None and (isinstance(value, bool) or not isinstance(value, int) or abs(value) > LARGEST):
        raise _wrong_type(name, "a whole number", value)
    return value


def check_mapping(name: str, value: Any, expected: str) -> Mapping[str, Any]:
    """Return a mapping whose keys are texts."""
    if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
        raise _wrong_type(name, expected, value)
    return value


def check_expressions(value: Any) -> Mapping[str, str]:
    """Return the SQL expressions that `update` sets columns to."""
    for column, expression in check_mapping("set", value, "columns and SQL, such as {'price': 'price * 2'}").items():
        if callable(expression):
            raise InvalidInputError(
                f"set: {column} is a function, and update takes SQL over the row; compute a column with add_columns, "
                "or merge a DataFrame that has the new values"
            )
        if not isinstance(expression, str):
            raise _wrong_type(f"set: {column}", f"SQL, as a text such as {str(expression)!r}", expression)
    checked: Mapping[str, str] = value
    return checked


def check_frame(value: Any) -> Any:
    """Return a DataFrame of Spark."""
    if not callable(getattr(value, "mapInArrow", None)):
        raise _wrong_type("df", "a DataFrame of Spark (spark.createDataFrame makes one)", type(value))
    return value


def check_arrow(value: Any) -> pa.Table:
    """Return rows in memory as an Arrow table."""
    if isinstance(value, pa.RecordBatchReader):
        return value.read_all()
    if not isinstance(value, pa.Table):
        raise _wrong_type("rows", "an Arrow table", type(value))
    return value


def parse_merge_rules(when_matched: Any, when_not_matched: Any, delete_by_source: Any) -> MergeRules:
    """Return the rules of a merge."""
    matched, not_matched = (
        check_text("when_matched", when_matched),
        check_text("when_not_matched", when_not_matched),
    )
    return MergeRules(matched, not_matched, flag("delete_by_source", delete_by_source))


def parse_write_options(call: str, arguments: Mapping[str, Any]) -> WriteOptions:
    """Return write options from the keyword arguments that all writes share.

    Args:
        call: name of the method, for errors.
        arguments: the keyword arguments.
    """
    for name in arguments:
        if name in _WRITES:
            continue
        if call == "ingest" and name in ALL_OPTIONS:
            raise InvalidInputError(f"{name} is an option of the format: give it as options={{{name!r}: …}}")
        raise InvalidInputError(f"{call} has no argument {name!r}; {suggest(name, _WRITES)}")
    vectors = check_mapping(
        "vector_columns", arguments.get("vector_columns") or {}, "columns and dimensions: {'emb': 128}"
    )
    for column, dimension in vectors.items():
        if not (isinstance(dimension, int) and dimension > 0):
            raise _wrong_type(f"vector_columns: {column}", "the number of values in a vector", dimension)
    layout = FileLayout(
        check_number("max_rows_per_file", arguments.get("max_rows_per_file")),
        check_number("max_bytes_per_file", arguments.get("max_bytes_per_file")),
        some_text("data_storage_version", arguments.get("data_storage_version")),
    )
    nullable = arguments.get("nullable", True)
    if not isinstance(nullable, bool):
        raise _wrong_type("nullable", "True, or False to keep what the rows say of nulls", nullable)
    return WriteOptions(vectors, layout, some_text("run", arguments.get("run")), nullable=nullable)


def _wrong_type(name: str, expected: str, value: Any) -> InvalidInputError:
    return InvalidInputError(f"{name} must be {expected}, not {value!r}")
