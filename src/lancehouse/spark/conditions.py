"""Translate conditions of Spark's SQL on one table to Lance's SQL, where both mean the same.

A translated condition is true for every row for which Spark's is true. It may be true for more, as Spark applies its
own again; `is_exact` tells whether it may not.
"""

from __future__ import annotations

import calendar
import re
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any
from zoneinfo import ZoneInfo

import pyarrow as pa
from sqlglot import exp

from lancehouse.identifiers import quote_name

Expr = exp.Expr
Resolve = Callable[[exp.Column], str | None]
"""Returns the name of the column of the table that an expression names; None if it is none of its columns."""

COMPARISONS: Mapping[type[Expr], str] = {
    exp.EQ: "=",
    exp.NEQ: "<>",
    exp.LT: "<",
    exp.LTE: "<=",
    exp.GT: ">",
    exp.GTE: ">=",
}
NEGATED = {"=": "<>", "<>": "=", "<": ">=", "<=": ">", ">": "<=", ">=": "<"}
MIRRORED = {"=": "=", "<>": "<>", "<": ">", "<=": ">=", ">": "<", ">=": "<="}
WITH_NAN = (">", ">=", "<>")
"""Comparisons with a number that are true of NaN in Spark, where it is the greatest number."""

_INTEGER, _DECIMAL = re.compile(r"\d+"), re.compile(r"\d+\.\d*|\.\d+")
_DATE = re.compile(r"\d{4}-\d\d-\d\d")
_TIME = re.compile(r"(\d{4}-\d\d-\d\d)(?:[ T](\d\d:\d\d:\d\d(?:\.\d{1,6})?))?")
_UTC = ("UTC", "Z", "+00:00", "Etc/UTC")
_UNITS = {"s": 1_000_000, "ms": 1000, "us": 1}
_MOST_EXACT = 1 << 53
_YEARS = range(1700, 2200)
"""Years of timestamps that Lance can parse, whatever the unit."""


@dataclass(frozen=True, slots=True)
class Condition:
    """A condition in Lance's SQL."""

    sql: str
    is_exact: bool = True


@dataclass(frozen=True, slots=True)
class Constants:
    """What the values of constants depend on besides their text."""

    plain_strings: frozenset[str] = frozenset()
    """Values of the string literals that Spark and sqlglot certainly read alike: without escapes."""
    arguments: Mapping[str, Any] = field(default_factory=dict)
    zone: str | None = None
    """Time zone of the session."""

    def value(self, node: Any) -> Any:
        """Return the value of a constant expression as a Python object, or `UNKNOWN`.

        A `TIMESTAMP` is a datetime in UTC, a `TIMESTAMP_NTZ` one without a zone.
        """
        match node:
            case exp.Paren():
                return self.value(node.this)
            case exp.Boolean():
                return bool(node.this)
            case exp.Literal(is_string=True):
                return node.this if node.this in self.plain_strings else UNKNOWN
            case exp.Literal():
                return _parse_number(node.this)
            case exp.Neg():
                number = self.value(node.this)
                return -number if isinstance(number, int | Decimal | float) and number is not True else UNKNOWN
            case exp.Cast() | exp.TryCast():
                return self._cast(self.value(node.this), node.to)
            case exp.Add() | exp.Sub():
                return self._shift(node)
            case exp.Placeholder() if node.name in self.arguments:
                return _argument(self.arguments[node.name])
        return UNKNOWN

    def _cast(self, value: Any, to: exp.DataType) -> Any:
        if to.expressions:
            return UNKNOWN
        match value, to.this:
            case str(), exp.DataType.Type.DATE:
                return _parse_date(value)
            case str(), exp.DataType.Type.TIMESTAMPTZ:
                return self.to_timestamp(value)
            case str(), exp.DataType.Type.TIMESTAMPNTZ:
                return _parse_local(value)
            case int(), exp.DataType.Type.BIGINT if -(1 << 63) <= value < 1 << 63 and not isinstance(value, bool):
                return value
            case date(), exp.DataType.Type.DATE if not isinstance(value, datetime):
                return value
        return UNKNOWN

    def _shift(self, node: Expr) -> Any:
        """Return a date plus or minus an interval of days, months or years."""
        start, interval = self.value(node.this), node.expression
        is_date = isinstance(start, date) and not isinstance(start, datetime)
        if not is_date or not isinstance(interval, exp.Interval) or not isinstance(interval.this, exp.Literal):
            return UNKNOWN
        text, unit = str(interval.this.this).strip(), str(interval.args.get("unit") or "").upper().removesuffix("S")
        if not re.fullmatch(r"\d{1,5}", text) or unit not in ("DAY", "MONTH", "YEAR"):
            return UNKNOWN
        count = int(text) if isinstance(node, exp.Add) else -int(text)
        try:
            if unit == "DAY":
                return start + timedelta(days=count)
            months = start.year * 12 + start.month - 1 + count * (12 if unit == "YEAR" else 1)
            year, month = months // 12, months % 12 + 1
            return date(year, month, min(start.day, calendar.monthrange(year, month)[1]))
        except (OverflowError, ValueError):
            return UNKNOWN

    def to_timestamp(self, value: date | str) -> Any:
        """Return a date or a text as the timestamp that Spark casts it to, in the zone of the session."""
        local = _parse_local(value) if isinstance(value, str) else datetime(value.year, value.month, value.day)
        if local is UNKNOWN or self.zone is None:
            return UNKNOWN
        try:
            zone = ZoneInfo(self.zone)
        except (KeyError, ValueError, OSError):
            return UNKNOWN
        # A local time that does not exist, or exists twice, is left to Spark.
        instants = {local.replace(tzinfo=zone, fold=fold).astimezone(UTC) for fold in (0, 1)}
        return instants.pop() if len(instants) == 1 else UNKNOWN


class _Unknown:
    """A value that only Spark knows."""


UNKNOWN = _Unknown()


def _parse_number(text: str) -> Any:
    if _INTEGER.fullmatch(text):
        return int(text)
    if _DECIMAL.fullmatch(text):
        return Decimal(text)
    try:
        return float(text)
    except ValueError:
        return UNKNOWN


def _parse_date(text: str) -> Any:
    try:
        return date.fromisoformat(text) if _DATE.fullmatch(text) else UNKNOWN
    except ValueError:
        return UNKNOWN


def _parse_local(text: str) -> Any:
    match = _TIME.fullmatch(text)
    try:
        return datetime.fromisoformat(f"{match[1]} {match[2] or '00:00:00'}") if match else UNKNOWN
    except ValueError:
        return UNKNOWN


def _argument(value: Any) -> Any:
    if isinstance(value, datetime):  # without a zone, it depends on this machine's
        return UNKNOWN if value.tzinfo is None else value.astimezone(UTC)
    if value is None or isinstance(value, bool | int | float | str | Decimal | date):
        return NULL if value is None else value
    return UNKNOWN


class _Null:
    """SQL's NULL."""


NULL = _Null()


class Translator:
    """Translates conditions on one table."""

    def __init__(self, schema: pa.Schema, resolve: Resolve, constants: Constants) -> None:
        self._schema, self._resolve, self._constants = schema, resolve, constants

    def translate(self, node: Any, *, negated: bool = False) -> Condition | None:
        """Translate a condition, or that part of it which must be true of the table's row if the whole is true.

        Args:
            node: the condition.
            negated: translate its negation.
        """
        match node:
            case exp.Paren():
                return self.translate(node.this, negated=negated)
            case exp.Not():
                return self.translate(node.this, negated=not negated)
            case exp.And() | exp.Or():
                terms = [self.translate(term, negated=negated) for term in node.flatten()]
                return _all(terms) if isinstance(node, exp.And) != negated else _any(terms)
            case exp.Column():
                return self._boolean(node, negated)
            case exp.Is() if _has_only(node, "this", "expression"):
                return self._is(node, negated)
            case exp.NullSafeEQ() if not negated and _has_only(node, "this", "expression"):
                return self._compare(node.this, "=", node.expression, is_null_safe=True)
            case exp.In() if _has_only(node, "this", "expressions"):
                return self._in(node, negated)
            case exp.Between() if _has_only(node, "this", "low", "high"):
                return self._between(node, negated)
            case exp.Like() if _has_only(node, "this", "expression", "negate"):
                return self._like(node, negated != bool(node.args.get("negate")))
        if type(node) in COMPARISONS and _has_only(node, "this", "expression"):
            operator = COMPARISONS[type(node)]
            return self._compare(node.this, NEGATED[operator] if negated else operator, node.expression)
        return None

    def _column(self, node: Any) -> pa.Field[Any] | None:
        node = node.unnest() if isinstance(node, Expr) else node
        name = self._resolve(node) if isinstance(node, exp.Column) else None
        if name is None:
            return None
        column = self._schema.field(name)
        has_meaning = any(key.startswith((b"ARROW:extension", b"lance-encoding:blob")) for key in column.metadata or {})
        return None if has_meaning or isinstance(column.type, pa.BaseExtensionType) else column

    def _boolean(self, node: exp.Column, negated: bool) -> Condition | None:
        column = self._column(node)
        if column is None or column.type != pa.bool_():
            return None
        return Condition(f"{quote_name(column.name)} = {'false' if negated else 'true'}")

    def _is(self, node: exp.Is, negated: bool) -> Condition | None:
        column = self._column(node.this)
        if column is None:
            return None
        if isinstance(node.expression, exp.Null) and _has_null_test(column.type):
            return Condition(f"{quote_name(column.name)} IS {'NOT ' if negated else ''}NULL")
        if isinstance(node.expression, exp.Boolean) and not negated and column.type == pa.bool_():
            return Condition(f"{quote_name(column.name)} = {str(bool(node.expression.this)).lower()}")
        return None

    def _compare(self, left: Any, operator: str, right: Any, *, is_null_safe: bool = False) -> Condition | None:
        column, other = self._column(left), self._column(right)
        if column is not None and other is not None:
            return None if is_null_safe else _compare_columns(column, operator, other)
        if column is None:
            column, right, operator = other, left, MIRRORED[operator]
        return None if column is None else self._compare_constant(column, operator, self._constants.value(right))

    def _compare_constant(self, column: pa.Field[Any], operator: str, value: Any) -> Condition | None:
        literal = self._literal(column.type, value)
        if literal is None:
            return None
        name = quote_name(column.name)
        if not pa.types.is_floating(column.type):
            return Condition(f"{name} {operator} {literal}")
        if value == 0 and operator in ("=", ">="):
            return None  # Spark takes 0.0 and -0.0 for equal, Lance's indices do not
        with_nan = f" OR isnan({name})" if operator in WITH_NAN else ""
        sql = f"{name} {operator} {literal}{with_nan}"
        # To Lance a NaN whose sign is set, as 0.0 / 0.0 gives on many processors, is less than all numbers.
        return Condition(f"({sql})" if with_nan else sql, is_exact=value != 0 and operator not in ("<", "<="))

    def _between(self, node: exp.Between, negated: bool) -> Condition | None:
        if negated:
            return _any(
                [self._compare(node.this, "<", node.args["low"]), self._compare(node.this, ">", node.args["high"])]
            )
        return _all(
            [self._compare(node.this, ">=", node.args["low"]), self._compare(node.this, "<=", node.args["high"])]
        )

    def _in(self, node: exp.In, negated: bool) -> Condition | None:
        column, values = self._column(node.this), [self._constants.value(value) for value in node.expressions]
        if column is None or not values or len({type(value) for value in values}) > 1:
            return None  # Spark would compare values of different types in a third
        if pa.types.is_timestamp(column.type) and isinstance(values[0], str):
            return None  # without ANSI rules they are compared as texts
        if pa.types.is_floating(column.type):
            terms = [self._compare_constant(column, "<>" if negated else "=", value) for value in values]
            return _all_or_none(terms) if negated else _any(terms)
        literals = [self._literal(column.type, value) for value in values]
        if None in literals:
            return None
        return Condition(f"{quote_name(column.name)} {'NOT ' if negated else ''}IN ({', '.join(map(str, literals))})")

    def _like(self, node: exp.Like, negated: bool) -> Condition | None:
        column, pattern = self._column(node.this), self._constants.value(node.expression)
        if column is None or not _is_text(column.type) or not isinstance(pattern, str) or "\\" in pattern:
            return None
        return Condition(f"{quote_name(column.name)} {'NOT ' if negated else ''}LIKE {_quote(pattern)}")

    def _literal(self, dtype: Any, value: Any) -> str | None:
        """Return a value as a literal that Lance compares with a type as Spark compares the value; None if unsure."""
        match value:
            case bool():
                return str(value).lower() if dtype == pa.bool_() else None
            case str() if _is_text(dtype):
                return _quote(value)
            case int() | Decimal() | float():
                return _number_literal(dtype, value)
        if dtype == pa.date32():
            day = _parse_date(value) if isinstance(value, str) else value
            is_day = isinstance(day, date) and not isinstance(day, datetime)
            return f"date '{day.isoformat()}'" if is_day else None
        if pa.types.is_timestamp(dtype):
            return self._timestamp_literal(dtype, value)
        return None

    def _timestamp_literal(self, dtype: Any, value: Any) -> str | None:
        is_text_or_day = isinstance(value, str) or (isinstance(value, date) and not isinstance(value, datetime))
        if dtype.tz is None:
            local = value
            if is_text_or_day:
                local = _parse_local(value if isinstance(value, str) else value.isoformat())
            if not isinstance(local, datetime) or local.tzinfo is not None:
                return None
        else:
            instant = self._constants.to_timestamp(value) if is_text_or_day else value
            if not isinstance(instant, datetime) or instant.tzinfo is None or dtype.tz not in _UTC:
                return None
            local = instant.astimezone(UTC).replace(tzinfo=None)
        # Lance cuts off what the column's unit cannot hold; Spark cuts off nanoseconds of the column.
        per_unit = _UNITS.get(dtype.unit)
        if per_unit is None or local.microsecond % per_unit or local.year not in _YEARS:
            return None
        return f"timestamp '{local:%Y-%m-%d %H:%M:%S.%f}'"


def _has_only(node: Expr, *names: str) -> bool:
    """Return whether an expression says nothing but these parts: others would change its meaning."""
    return all(name in names for name, value in node.args.items() if value)


def _has_null_test(dtype: pa.DataType) -> bool:
    types = pa.types
    return bool(types.is_primitive(dtype) or _is_text(dtype) or types.is_list(dtype) or types.is_fixed_size_list(dtype))


def _is_text(dtype: pa.DataType) -> bool:
    return bool(pa.types.is_string(dtype) or pa.types.is_large_string(dtype))


def _compare_columns(left: pa.Field[Any], operator: str, right: pa.Field[Any]) -> Condition | None:
    dtype = left.type
    is_plain = pa.types.is_integer(dtype) or _is_text(dtype) or dtype == pa.date32() or pa.types.is_timestamp(dtype)
    if not is_plain or dtype != right.type or (pa.types.is_timestamp(dtype) and dtype.unit not in _UNITS):
        return None
    return Condition(f"{quote_name(left.name)} {operator} {quote_name(right.name)}")


def _number_literal(dtype: Any, value: int | Decimal | float) -> str | None:
    if pa.types.is_floating(dtype):
        return _float_literal(dtype, value)
    if isinstance(value, float) or not Decimal(value).is_finite():
        return None
    exact = Decimal(value)
    if pa.types.is_integer(dtype):
        least = -(1 << dtype.bit_width - 1) if pa.types.is_signed_integer(dtype) else 0
        fits = exact == int(exact) and least <= exact < least + (1 << dtype.bit_width)
        return str(int(exact)) if fits else None
    if pa.types.is_decimal128(dtype) and 0 <= dtype.scale <= dtype.precision:
        if exact.adjusted() > dtype.precision or exact.as_tuple().exponent < -dtype.precision:
            return None
        digits = exact.scaleb(dtype.scale)
        fits = digits == int(digits) and abs(int(digits)) < 10**dtype.precision
        return f"decimal({dtype.precision},{dtype.scale}) '{exact:.{dtype.scale}f}'" if fits else None
    return None


def _float_literal(dtype: Any, value: int | Decimal | float) -> str | None:
    """Return a number that the type holds just as Spark compares it; else the two might round differently."""
    if dtype == pa.float16() or (isinstance(value, int) and abs(value) > _MOST_EXACT):
        return None
    number = float(value) + 0.0  # -0.0 becomes 0.0: Spark takes them for equal, Lance's indices do not
    if number != number or number in (float("inf"), float("-inf")):
        return None
    if dtype == pa.float32():
        try:
            [narrow] = struct.unpack("f", struct.pack("f", number))
        except OverflowError:
            return None
        if narrow != number or Decimal(number) != Decimal(value):
            return None
    return repr(number)


def _quote(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def _all(terms: Sequence[Condition | None]) -> Condition | None:
    """Return what must be true if all terms are; one that cannot be translated is left out."""
    conditions = list(dict.fromkeys(term for term in terms if term is not None))
    if not conditions:
        return None
    sql = conditions[0].sql if len(conditions) == 1 else f"({' AND '.join(term.sql for term in conditions)})"
    return Condition(sql, None not in terms and all(term.is_exact for term in conditions))


def _all_or_none(terms: Sequence[Condition | None]) -> Condition | None:
    return None if None in terms else _all(terms)


def _any(terms: Sequence[Condition | None]) -> Condition | None:
    """Return what must be true if one of the terms is, None if one cannot be translated."""
    conditions = list(dict.fromkeys(term for term in terms if term is not None))
    if None in terms or not conditions:
        return None
    sql = conditions[0].sql if len(conditions) == 1 else f"({' OR '.join(term.sql for term in conditions)})"
    return Condition(sql, all(term.is_exact for term in conditions))


def join_conditions(conditions: Sequence[Condition]) -> Condition | None:
    """Return the conjunction of conditions."""
    return _all(conditions)


def are_comparable_keys(left: pa.DataType, right: pa.DataType) -> bool:
    """Return whether values of two types are equal to Spark exactly if they are to Arrow and Lance."""
    are_numbers = pa.types.is_signed_integer(left) and pa.types.is_signed_integer(right)
    return bool(are_numbers or (left == right and _is_text(left)))


def is_one_of(column: pa.Field[Any], keys: Sequence[Any]) -> Condition | None:
    """Return the condition that a column has one of some keys; None if Lance may read one of them differently."""
    name = quote_name(column.name)
    if not _is_text(column.type):
        literals = [text for key in keys if (text := _number_literal(column.type, key)) is not None]
    elif any("\\" in key or "\0" in key for key in keys):
        return None
    else:
        literals = [_quote(key) for key in keys]
    return Condition(f"{name} IN ({', '.join(literals)})" if literals else f"({name} IS NULL AND {name} IS NOT NULL)")
