"""Evaluate SQL expressions over Arrow batches with DataFusion; as in Lance, names are case-sensitive."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import pyarrow as pa
from lance_namespace.errors import InvalidInputError, TableColumnNotFoundError, UnsupportedOperationError

_SETTINGS = {
    "datafusion.execution.target_partitions": "1",
    "datafusion.sql_parser.enable_ident_normalization": "false",
    "datafusion.sql_parser.parse_float_as_decimal": "false",
}
_VIEWS: Mapping[Any, Any] = {pa.string_view(): pa.string(), pa.binary_view(): pa.binary()}
_PLAIN = re.compile(r"[A-Za-z_]\w*")
_WINDOW = re.compile(r"\bover\s*\(", re.IGNORECASE)
_MISSING = re.compile(r"No field named (.+?)\.\s")
_NOISE = re.compile(r"^(DataFusion error: |SQL error: |Error during planning: )+")
_WRAPPED = re.compile(r'^\w+Error\("(.*)"\)$')


@dataclass(frozen=True, slots=True)
class Expressions:
    """Columns that are computed from others, row by row."""

    columns: Mapping[str, str]

    def evaluate(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Compute the columns. An expression that is only a name takes the column unchanged.

        Raises:
            InvalidInputError: an expression is invalid, fails, or does not give one value for each row.
        """
        positions = {name: _find_column(batch.schema, said) for name, said in self.columns.items()}
        computed = _compute(batch, {name: said for name, said in self.columns.items() if positions[name] is None})
        fields, arrays = [], []
        for name, place in positions.items():
            field = computed.schema.field(name) if place is None else batch.schema.field(place).with_name(name)
            fields.append(field)
            arrays.append(computed.column(name) if place is None else batch.column(place))
        return pa.RecordBatch.from_arrays(arrays, schema=pa.schema(fields))


def _find_column(schema: pa.Schema, expression: str) -> int | None:
    """Return the index of the column whose name an expression is, or None."""
    name = expression.strip()
    if name[:1] == name[-1:] == "`" and len(name) > 2:
        name = name[1:-1].replace("``", "`")
    elif not _PLAIN.fullmatch(name):
        return None
    places = schema.get_all_field_indices(name)
    return places[0] if len(places) == 1 else None


def _compute(batch: pa.RecordBatch, columns: Mapping[str, str]) -> pa.RecordBatch:
    frame: Any = _session_context().create_dataframe([[batch]]) if columns else None
    fields, arrays = [], []
    for name, expression in columns.items():
        if _WINDOW.search(expression):
            raise InvalidInputError(f"{expression!r} looks at other rows: use a step sql for that")
        with _translate_errors(expression, batch.schema):
            selected = frame.select(frame.parse_sql_expr(expression).alias(name))
            field = selected.schema().field(0)
            values = pa.Table.from_batches(selected.collect(), pa.schema([field])).column(0).combine_chunks()
        dtype = _VIEWS.get(field.type, field.type)
        fields.append(pa.field(name, dtype))
        arrays.append(values.cast(dtype))
    return pa.RecordBatch.from_arrays(arrays, schema=pa.schema(fields))


@lru_cache(1)
def _session_context() -> Any:
    try:
        import datafusion
    except ImportError as error:
        raise UnsupportedOperationError("select and where need datafusion: pip install 'lancehouse[spark]'") from error
    config = datafusion.SessionConfig()
    for key, value in _SETTINGS.items():
        config = config.set(key, value)
    return datafusion.SessionContext(config)


@contextmanager
def _translate_errors(expression: str, schema: pa.Schema) -> Iterator[None]:
    """Turn an error of DataFusion, which has no exception class of its own, into one sentence."""
    try:
        yield
    except Exception as error:
        if type(error) is not Exception:
            raise
        text = str(error)
        if missing := _MISSING.search(text):
            there = ", ".join(schema.names)
            raise TableColumnNotFoundError(
                f"{expression!r}: there is no column {missing[1]}; there are {there}"
            ) from error
        if "AggregateFunction" in text:
            raise InvalidInputError(f"{expression!r} looks at other rows: use a step sql for that") from error
        words = _WRAPPED.sub(r"\1", _NOISE.sub("", text).strip().splitlines()[0])
        raise InvalidInputError(f"{expression!r}: {words}") from error
