"""Steps of a pipeline that transform Arrow batches: filter, select, embed, and functions."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

import numpy as np
import pyarrow as pa
from lance_namespace.errors import InvalidInputError, LanceNamespaceError, TableColumnNotFoundError

from lancehouse.pipelines.expressions import Expressions
from lancehouse.pipelines.named_functions import FOREIGN, NamedFunction

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
            return _to_single_batch(result)
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
        field = pa.field(self.into, values.type)
        if self.into in names:
            return batch.set_column(names.index(self.into), field, values)
        return batch.append_column(field, values)


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
        texts = [*(each.key for each in self.steps), str(self.schema)]
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


def _to_single_batch(table: pa.Table) -> pa.RecordBatch:
    batches: Sequence[pa.RecordBatch] = table.combine_chunks().to_batches()
    return batches[0] if len(batches) == 1 else pa.RecordBatch.from_pylist([], table.schema)
