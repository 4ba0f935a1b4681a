"""Steps of a pipeline: those that transform Arrow batches, and those that Spark runs (SQL, Python on DataFrames).

To Arrow steps, blobs are binaries. Spark passes rows to those that stand between its own.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from hashlib import sha256
from typing import Any
from uuid import uuid4

import numpy as np
import pyarrow as pa
from lance_namespace.errors import (
    InvalidInputError,
    LanceNamespaceError,
    TableColumnNotFoundError,
    UnsupportedOperationError,
)
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from lancehouse.jobs.address import TableAddress
from lancehouse.jobs.column_functions import FOREIGN
from lancehouse.jobs.sources.ingest_source import IngestSource, Unit
from lancehouse.lake.job_records import JobProgress
from lancehouse.pipelines.named_functions import NamedFunction
from lancehouse.schema.blob_references import blob_field, has_blob_type
from lancehouse.schema.spark import from_spark
from lancehouse.schema.spark_rows import from_spark_rows, to_spark_rows
from lancehouse.schema.walk import VIEWS
from lancehouse.spark.catalog import LanceCatalog
from lancehouse.spark.engine import Batches, run_in_tasks
from lancehouse.spark.queries import limit_nesting, run_query
from lancehouse.spark.query_text import is_query
from lancehouse.spark.session import to_struct

_MASK = "kept"


@dataclass(frozen=True, slots=True)
class FilterStep:
    """Keeps the rows that meet a condition."""

    condition: str

    @property
    def key(self) -> str:
        """Text that identifies the step."""
        return f"where {self.condition}"

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the rows of a batch for which the condition is true."""
        mask = Expressions({_MASK: self.condition}).evaluate(batch).column(_MASK)
        if mask.type != pa.bool_():
            raise InvalidInputError(f"{self.condition!r} is no condition, but {mask.type}")
        return batch.filter(mask)


@dataclass(frozen=True, slots=True)
class SelectStep:
    """Computes columns from SQL expressions."""

    columns: Mapping[str, str]

    @property
    def key(self) -> str:
        """Text that identifies the step."""
        return f"select {sorted(self.columns.items())} {list(self.columns)}"

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the computed columns of a batch."""
        return Expressions(self.columns).evaluate(batch)


@dataclass(frozen=True, slots=True)
class FunctionStep:
    """Applies a function to each batch."""

    function: NamedFunction

    @property
    def key(self) -> str:
        """Text that identifies the step, including the function's code."""
        return f"arrow {self.function.name} {self.function.code}"

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return what the function returns for a batch."""
        result = _call(self.function, batch)
        if isinstance(result, pa.Table):
            return _to_single_batch(result, self.function.name)
        if not isinstance(result, pa.RecordBatch):
            raise InvalidInputError(f"{self.function.name} gave {type(result).__name__}, not a RecordBatch")
        return result


@dataclass(frozen=True, slots=True)
class EmbedStep:
    """Adds a column that a function computes from others, or replaces the column of that name."""

    function: NamedFunction
    reads: tuple[str, ...]
    into: str

    @property
    def key(self) -> str:
        """Text that identifies the step, including the function's code."""
        return f"embed {self.function.name} {self.function.code} {self.reads} {self.into}"

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return a batch with the column."""
        names = batch.schema.names
        if missing := [name for name in self.reads if name not in names]:
            raise TableColumnNotFoundError(f"there is no column {', '.join(missing)}; there are {', '.join(names)}")
        values = _to_array(_call(self.function, *(batch.column(name) for name in self.reads)), self.function.name)
        if len(values) != batch.num_rows:
            raise InvalidInputError(f"{self.function.name} made {len(values)} values of {batch.num_rows} rows")
        column = pa.field(self.into, values.type)
        if self.into in names:
            return batch.set_column(names.index(self.into), column, values)
        return batch.append_column(column, values)


ArrowStep = FilterStep | SelectStep | FunctionStep | EmbedStep


@dataclass(frozen=True, slots=True)
class ArrowTransform:
    """A sequence of steps; can be sent to executors."""

    steps: tuple[ArrowStep, ...]
    schema: pa.Schema
    """Schema of the transformed rows."""

    @property
    def key(self) -> str:
        """Text that is the same for the same steps, in other processes too."""
        texts = [*(step.key for step in self.steps), str(self.schema)]
        return sha256("\0".join(texts).encode(errors="surrogatepass")).hexdigest()[:32]

    def batches(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the transformed batches; those without rows are dropped."""
        for batch in batches:
            current = batch
            for step in self.steps:
                if not current.num_rows:
                    break
                current = step(current)
            if current.num_rows:
                yield self._conform(current)

    def _conform(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        if batch.schema.names != self.schema.names:
            raise InvalidInputError(
                f"the steps gave the columns {', '.join(batch.schema.names)}, but of a batch without rows "
                f"{', '.join(self.schema.names)}; a function has to give the same columns always"
            )
        if batch.schema.equals(self.schema):
            return batch
        try:
            return batch.cast(self.schema)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError) as error:
            raise InvalidInputError(f"the steps gave other types than of a batch without rows: {error}") from error


def output_schema(step: ArrowStep, schema: pa.Schema) -> pa.Schema:
    """Return the columns that a step produces, by calling it with a batch without rows.

    Raises:
        LanceNamespaceError: the step does not accept such rows.
    """
    empty = pa.RecordBatch.from_pylist([], schema)
    try:
        result = step(empty).schema
    except InvalidInputError as error:
        if isinstance(step, FunctionStep | EmbedStep):
            raise InvalidInputError(f"{error} (it is asked for its columns with a batch without rows)") from error
        raise
    if twice := sorted({name for name in result.names if result.names.count(name) > 1}):
        raise InvalidInputError(f"two columns are called {', '.join(twice)}")
    return result


def _call(function: NamedFunction, *arguments: Any) -> Any:
    try:
        return function(*arguments)
    except LanceNamespaceError:
        raise
    except PySparkException as error:
        raise InvalidInputError(f"{function.name} failed: {_clean_message(error)}") from error
    except FOREIGN as error:
        raise InvalidInputError(f"{function.name} failed: {type(error).__name__}: {error}") from error


def _to_array(result: Any, name: str) -> pa.Array[Any]:
    """Convert the result of a function to an Arrow array; a NumPy matrix becomes an array of vectors."""
    if isinstance(result, pa.ChunkedArray):
        return result.combine_chunks()
    if isinstance(result, np.ndarray) and result.ndim == 2:
        values: Any = pa.array(np.ascontiguousarray(result).reshape(-1))
        return pa.FixedSizeListArray.from_arrays(values, result.shape[1])
    if isinstance(result, np.ndarray) and result.ndim == 1:
        return pa.array(result)
    if not isinstance(result, pa.Array):
        raise InvalidInputError(f"{name} gave {type(result).__name__}, not an Arrow array")
    return result


def _to_single_batch(table: pa.Table, name: str) -> pa.RecordBatch:
    batches: Sequence[pa.RecordBatch] = table.combine_chunks().to_batches()
    if len(batches) > 1:  # Arrow does not combine chunks whose texts together are longer than 32-bit offsets reach
        raise InvalidInputError(f"{name} gave a table with more than 2 GiB of text: let it return large_string columns")
    return batches[0] if batches else pa.RecordBatch.from_pylist([], table.schema)


_SETTINGS = {
    "datafusion.execution.target_partitions": "1",
    "datafusion.sql_parser.enable_ident_normalization": "false",
    "datafusion.sql_parser.parse_float_as_decimal": "false",
}
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
        places = {name: _find_column(batch.schema, expression) for name, expression in self.columns.items()}
        computed = _compute(batch, {name: text for name, text in self.columns.items() if places[name] is None})
        fields, arrays = [], []
        for name, place in places.items():
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
        dtype = VIEWS.get(field.type, field.type)
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
    except Exception as error:  # DataFusion raises nothing narrower
        if type(error) is not Exception:
            raise
        text = str(error)
        if missing := _MISSING.search(text):
            raise TableColumnNotFoundError(
                f"{expression!r}: there is no column {missing[1]}; there are {', '.join(schema.names)}"
            ) from error
        if "AggregateFunction" in text:
            raise InvalidInputError(f"{expression!r} looks at other rows: use a step sql for that") from error
        reason = _WRAPPED.sub(r"\1", _NOISE.sub("", text).strip().splitlines()[0])
        raise InvalidInputError(f"{expression!r}: {reason}") from error


_MARK = b"lancehouse.blob"
"""Key of a field's metadata that marks a binary column which was a blob column."""


def to_binary_schema(schema: pa.Schema) -> pa.Schema:
    """Return the columns as steps see them, with binaries in place of blobs."""
    return pa.schema([_to_binary_field(field) if has_blob_type(field) else field for field in schema])


def to_blob_schema(schema: pa.Schema) -> pa.Schema:
    """Return the columns as a table has them, with blobs in place of marked binaries."""
    return pa.schema([blob_field(field.name) if _is_marked(field) else field for field in schema])


def to_binary_batches(batches: Iterable[pa.RecordBatch], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Yield batches of a source as steps see them.

    Args:
        batches: batches of the source.
        schema: what `to_binary_schema` returns for its columns.
    """
    places = [place for place, field in enumerate(schema) if _is_marked(field)]
    for batch in batches:
        yield _to_binary_batch(batch, schema, places) if places else batch


def _to_binary_field(field: pa.Field[Any]) -> pa.Field[Any]:
    return pa.field(field.name, pa.large_binary(), field.nullable, {_MARK: b"true"})


def _is_marked(field: pa.Field[Any]) -> bool:
    return _MARK in (field.metadata or {}) and field.type in (pa.large_binary(), pa.binary())


def _to_binary_batch(batch: pa.RecordBatch, schema: pa.Schema, places: Iterable[int]) -> pa.RecordBatch:
    arrays: list[Any] = list(batch.columns)
    for place in places:
        array = arrays[place]
        array = array.storage if isinstance(array, pa.ExtensionArray) else array
        if isinstance(array, pa.StructArray):
            array = array.field("data") if not array.null_count else array.flatten()[0]
        arrays[place] = array.cast(pa.large_binary())
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


@dataclass(frozen=True, slots=True)
class BlobTransform:
    """Steps over the rows of a source, whose blobs they see as binaries; sent to executors."""

    transform: ArrowTransform
    source: pa.Schema

    @property
    def key(self) -> str:
        """Text that is the same for the same steps."""
        return self.transform.key

    @property
    def schema(self) -> pa.Schema:
        """Schema of the transformed rows."""
        return self.transform.schema

    def batches(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the transformed batches of the source."""
        return self.transform.batches(to_binary_batches(batches, to_binary_schema(self.source)))


# Steps that Spark runs


@dataclass(frozen=True, slots=True)
class RowCount:
    """A count that tasks add to; sent to executors. A task that is repeated counts once."""

    address: TableAddress
    job: str = field(default_factory=lambda: f"count-{uuid4().hex}")

    def count(self, key: str, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the batches unchanged, and record the number of their rows under a key."""
        rows = 0
        for batch in batches:
            rows += batch.num_rows
            yield batch
        try:
            self._progress().record(key, rows)
        except LanceNamespaceError:
            return  # the table does not exist yet: the rows are evaluated before they are written

    def take(self) -> int:
        """Return the total, and remove the records."""
        progress = self._progress()
        rows = sum(progress.read_records().values())
        progress.clear()
        return int(rows)

    def _progress(self) -> JobProgress:
        at = self.address.write_location(self.job)
        return JobProgress(at.location, at.storage_options, self.job)


INPUT = "input"
"""Name of the rows so far in SQL."""
_TAIL = re.compile(r"\s*(SQLSTATE: \w+)?\s*[;.]?\s*\(?(line \d+,? ?pos \d+\)?.*)?$", re.DOTALL)
_CONDITION = re.compile(r"^\[[A-Z_.]+\] ")


def from_source(spark: SparkSession, source: IngestSource, transform: ArrowTransform, count: RowCount) -> DataFrame:
    """Return the rows of a source after Arrow steps, as a DataFrame; rows are counted in the same tasks."""
    rows = to_spark_rows(to_blob_schema(transform.schema))
    schema, binary_schema = source.schema, to_binary_schema(source.schema)

    def work(unit: Unit) -> Batches:
        batches = to_binary_batches(count.count(unit.key, unit.batches(schema)), binary_schema)
        for batch in transform.batches(batches):
            yield from rows.convert_batches(batch)

    return run_in_tasks(spark, source.units, work, to_struct(rows.struct))


def apply_steps(frame: DataFrame, transform: ArrowTransform) -> DataFrame:
    """Return the rows of a DataFrame after Arrow steps."""
    if not transform.steps:
        return frame
    struct_json = frame.schema.jsonValue()
    incoming = from_spark_rows(struct_json, to_binary_schema(from_spark(struct_json)))
    rows = to_spark_rows(to_blob_schema(transform.schema))

    def work(batches: Batches) -> Batches:
        for batch in transform.batches(map(incoming.convert_batch, batches)):
            yield from rows.convert_batches(batch)

    return frame.mapInArrow(work, to_struct(rows.struct))


def step_schema(frame: DataFrame) -> pa.Schema:
    """Return the columns of a DataFrame as Arrow steps see them.

    Raises:
        InvalidInputError: Spark cannot analyze the DataFrame.
        TableSchemaValidationError: Lance has no such type.
    """
    try:
        struct_json = frame.schema.jsonValue()
    except PySparkException as error:
        raise InvalidInputError(_clean_message(error)) from error
    return to_binary_schema(from_spark(struct_json))


def run_sql(catalog: LanceCatalog, query: str, frame: DataFrame) -> DataFrame:
    """Run a query over rows, which are its table `input`, and over tables of a catalog.

    Raises:
        InvalidInputError: the query is invalid.
        TableNotFoundError: it names a table that nobody knows.
    """
    try:
        with limit_nesting():
            if not is_query(query):
                raise InvalidInputError("a step sql is a query, such as SELECT … FROM input; it writes nothing itself")
            return run_query(catalog, query, frames={INPUT: frame})
    except InvalidInputError as error:
        raise InvalidInputError(_clean_message(error)) from error


def run_python(function: NamedFunction, frame: DataFrame) -> DataFrame:
    """Call a function with a DataFrame, and return the DataFrame that it returns.

    Raises:
        InvalidInputError: the function fails, or returns something else.
    """
    result = _call(function, frame)
    if not isinstance(result, DataFrame):
        raise InvalidInputError(f"{function.name} gave {type(result).__name__}, not a DataFrame")
    return result


def _clean_message(error: PySparkException | InvalidInputError) -> str:
    """Return the first line of Spark's message, without error class, SQLSTATE and position."""
    first = str(error).strip().split("\n\n")[0].splitlines()[0]
    return _CONDITION.sub("", _TAIL.sub("", first))
