"""Translate Iceberg filters into Lance SQL, which is used to skip fragments without a matching row.

A condition may hold for more rows than the filter, never for fewer: Iceberg's readers do not agree on nulls and NaN in
negations, Lance distinguishes 0.0 from -0.0, and Iceberg's types are coarser than Lance's. In doubt, the condition is
true.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, date, datetime, timedelta
from typing import Any

import numpy as np
import pyarrow as pa
from pyiceberg.expressions import BooleanExpression, BoundReference, BoundTerm
from pyiceberg.expressions.literals import AboveMax, BelowMin
from pyiceberg.expressions.visitors import BoundBooleanExpressionVisitor, bind, visit
from pyiceberg.schema import Schema

TRUE = "true"
FALSE = "false"

Columns = Mapping[int, "pa.Field[Any]"]
"""Lance's columns by their Iceberg field id."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_INTEGERS = (pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64())
_STRINGS = (pa.string(), pa.large_string())
_FLOATS: Mapping[pa.DataType, type[np.floating[Any]]] = {pa.float32(): np.float32, pa.float64(): np.float64}
_MAX_LISTED = 1000
"""Most values of an `in` that are translated."""
_INT64_MAX = 2**63 - 1


def to_lance_sql(superset: BooleanExpression, schema: Schema, columns: Columns, *, case_sensitive: bool) -> str:
    """Return the SQL condition for a filter without negations.

    Args:
        superset: the filter, without negations.
        schema: the schema that its names refer to.
        columns: Lance's columns in the version that is scanned, by Iceberg id; a missing one is all null.
        case_sensitive: whether names are matched case-sensitively.
    """
    return visit(bind(schema, superset, case_sensitive), _SqlVisitor(columns))


class _SqlVisitor(BoundBooleanExpressionVisitor[str]):
    def __init__(self, columns: Columns) -> None:
        self._columns = columns

    def visit_true(self) -> str:
        return TRUE

    def visit_false(self) -> str:
        return FALSE

    def visit_not(self, child_result: str) -> str:  # noqa: ARG002 - there are no negations
        return TRUE

    def visit_and(self, left_result: str, right_result: str) -> str:
        if FALSE in (left_result, right_result):
            return FALSE
        parts = [part for part in (left_result, right_result) if part != TRUE]
        return _join(" AND ", parts) if parts else TRUE

    def visit_or(self, left_result: str, right_result: str) -> str:
        if TRUE in (left_result, right_result):
            return TRUE
        parts = [part for part in (left_result, right_result) if part != FALSE]
        return _join(" OR ", parts) if parts else FALSE

    def visit_is_null(self, term: BoundTerm) -> str:
        column = self._column(term)
        return TRUE if column is None or column.type == pa.null() else f"{_quote(column)} IS NULL"

    def visit_not_null(self, term: BoundTerm) -> str:
        column = self._column(term)
        return TRUE if column is None or column.type == pa.null() else f"{_quote(column)} IS NOT NULL"

    def visit_is_nan(self, term: BoundTerm) -> str:
        column = self._column(term)
        return TRUE if column is None or column.type not in _FLOATS else f"isnan({_quote(column)})"

    def visit_not_nan(self, term: BoundTerm) -> str:  # noqa: ARG002
        return TRUE

    def visit_in(self, term: BoundTerm, literals: set[Any]) -> str:
        if len(literals) > _MAX_LISTED:
            return TRUE
        equal = [self._compare(term, value, ">=", "<=") for value in literals]
        return TRUE if TRUE in equal else _join(" OR ", equal)

    def visit_not_in(self, term: BoundTerm, literals: set[Any]) -> str:  # noqa: ARG002
        return TRUE

    def visit_not_equal(self, term: BoundTerm, literal: Any) -> str:
        column = self._column(term)
        if column is None or (exact := _exact_literal(column.type, literal.value)) is None:
            return TRUE
        return f"({_quote(column)} IS NULL OR {_quote(column)} <> {exact})"

    def visit_equal(self, term: BoundTerm, literal: Any) -> str:
        return self._compare_literal(term, literal, ">=", "<=")

    def visit_greater_than_or_equal(self, term: BoundTerm, literal: Any) -> str:
        return self._compare_literal(term, literal, ">=")

    def visit_greater_than(self, term: BoundTerm, literal: Any) -> str:
        return self._compare_literal(term, literal, ">")

    def visit_less_than(self, term: BoundTerm, literal: Any) -> str:
        return self._compare_literal(term, literal, "<")

    def visit_less_than_or_equal(self, term: BoundTerm, literal: Any) -> str:
        return self._compare_literal(term, literal, "<=")

    def visit_starts_with(self, term: BoundTerm, literal: Any) -> str:
        column = self._column(term)
        if column is None or column.type not in _STRINGS or _is_extension(column):
            return TRUE
        return f"starts_with({_quote(column)}, {_string_literal(str(literal.value))})"

    def visit_not_starts_with(self, term: BoundTerm, literal: Any) -> str:  # noqa: ARG002
        return TRUE

    def _compare_literal(self, term: BoundTerm, literal: Any, *operators: str) -> str:
        return TRUE if isinstance(literal, (AboveMax, BelowMin)) else self._compare(term, literal.value, *operators)

    def _compare(self, term: BoundTerm, value: Any, *operators: str) -> str:
        column = self._column(term)
        if column is None or _is_extension(column) or (bounds := _sql_bounds(column.type, value)) is None:
            return TRUE
        name, (lower, upper) = _quote(column), bounds
        if lower == upper:
            return f"{name} = {lower}" if len(operators) > 1 else f"{name} {operators[0]} {lower}"
        parts = [f"{name} >= {lower}" if ">" in operator else f"{name} <= {upper}" for operator in operators]
        between = _join(" AND ", parts)
        # Engines disagree on whether NaN is greater or less than a number, or neither.
        return f"({between} OR isnan({name}))" if column.type in _FLOATS else between

    def _column(self, term: BoundTerm) -> pa.Field[Any] | None:
        """Return the column of a term; None for a nested field, or a name that cannot be quoted."""
        if not isinstance(term, BoundReference):
            return None
        column = self._columns.get(term.ref().field.field_id)
        return None if column is None or "`" in column.name else column


def _join(operator: str, parts: list[str]) -> str:
    return parts[0] if len(parts) == 1 else f"({operator.join(parts)})"


def _quote(column: pa.Field[Any]) -> str:
    return f"`{column.name}`"


def _is_extension(column: pa.Field[Any]) -> bool:
    return isinstance(column.type, pa.BaseExtensionType) or b"ARROW:extension:name" in (column.metadata or {})


def _exact_literal(dtype: pa.DataType, value: Any) -> str | None:
    """Return a value as a SQL literal that Lance compares without loss, or None."""
    if dtype in _INTEGERS:
        return str(int(value)) if _fits(dtype, int(value)) else None
    if dtype == pa.bool_():
        return TRUE if value else FALSE
    return _string_literal(value) if dtype in _STRINGS and isinstance(value, str) else None


def _sql_bounds(dtype: Any, value: Any) -> tuple[str, str] | None:
    """Return two SQL literals that enclose every Lance value that Iceberg sees as `value`, or None if unknown."""
    if (exact := _exact_literal(dtype, value)) is not None:
        return exact, exact
    if dtype in _FLOATS:
        return _float_bounds(_FLOATS[dtype], float(value))
    if dtype == pa.date32():
        return _date_bounds(int(value))
    if isinstance(dtype, pa.TimestampType):
        # Lance parses a literal in the column's time zone: a day on each side covers every zone.
        margin = timedelta(seconds=1) if dtype.tz is None else timedelta(days=1)
        return _timestamp_bounds(int(value), margin)
    if isinstance(dtype, pa.Decimal128Type) and dtype.scale >= 0:
        exact = f"cast('{value:f}' as decimal({dtype.precision}, {dtype.scale}))"
        return exact, exact
    return None


def _fits(dtype: pa.DataType, value: int) -> bool:
    unsigned = bool(pa.types.is_unsigned_integer(dtype))
    bits = int(dtype.bit_width) - (not unsigned)
    return (0 if unsigned else -(1 << bits)) <= value <= min((1 << bits) - 1, _INT64_MAX)


def _float_bounds(kind: type[np.floating[Any]], value: float) -> tuple[str, str] | None:
    with np.errstate(over="ignore"):
        below, above = (np.nextafter(kind(value), kind(side)) for side in (-np.inf, np.inf))
    if not (np.isfinite(below) and np.isfinite(above)):
        return None
    return f"{float(below)!r}", f"{float(above)!r}"


def _date_bounds(days: int) -> tuple[str, str] | None:
    try:
        day = f"date '{date(1970, 1, 1) + timedelta(days=days)}'"
    except OverflowError:
        return None
    return day, day


def _timestamp_bounds(micros: int, margin: timedelta) -> tuple[str, str] | None:
    try:
        lower, upper = (_EPOCH + timedelta(microseconds=micros) + side * margin for side in (-1, 1))
    except OverflowError:
        return None
    # Lance may compare in nanoseconds, which range from 1677 to 2262.
    if not 1678 <= lower.year <= upper.year <= 2261:
        return None
    return f"timestamp '{lower:%Y-%m-%d %H:%M:%S.%f}'", f"timestamp '{upper:%Y-%m-%d %H:%M:%S.%f}'"


def _string_literal(value: str) -> str:
    return "'" + value.replace("'", "''") + "'"
