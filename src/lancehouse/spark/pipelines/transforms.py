"""Steps that stay in Arrow: each makes batches of batches, wherever the rows are."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

import numpy as np
import pyarrow as pa
from lance_namespace.errors import InvalidInputError, LanceNamespaceError, TableColumnNotFoundError

from lancehouse.spark.pipelines.expressions import Expressions
from lancehouse.spark.pipelines.functions import FOREIGN, Named

_KEPT = "kept"


@dataclass(frozen=True, slots=True)
class Where:
    """Rows that meet a condition."""

    condition: str

    @property
    def key(self) -> str:
        """The same for the same step."""
        return f"where {self.condition}"

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The rows of a batch for which it is true."""
        kept = Expressions({_KEPT: self.condition}).of(batch).column(_KEPT)
        if kept.type != pa.bool_():
            raise InvalidInputError(f"{self.condition!r} is no condition, but {kept.type}")
        return batch.filter(kept)


@dataclass(frozen=True, slots=True)
class Select:
    """Columns that are computed."""

    columns: Mapping[str, str]

    @property
    def key(self) -> str:
        """The same for the same step."""
        return f"select {sorted(self.columns.items())} {list(self.columns)}"

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Those of a batch."""
        return Expressions(self.columns).of(batch)


@dataclass(frozen=True, slots=True)
class Mapped:
    """Whatever a function makes of a batch."""

    function: Named

    @property
    def key(self) -> str:
        """The same for the same step."""
        return f"arrow {self.function.name} {self.function.code}"

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """What the function gives."""
        made = _called(self.function, batch)
        if isinstance(made, pa.Table):
            return _whole(made)
        if not isinstance(made, pa.RecordBatch):
            raise InvalidInputError(f"{self.function.name} gave {type(made).__name__}, not a RecordBatch")
        return made


@dataclass(frozen=True, slots=True)
class Embedded:
    """A column that a function makes of others, beside them or in the place of one of that name."""

    function: Named
    reads: tuple[str, ...]
    into: str

    @property
    def key(self) -> str:
        """The same for the same step."""
        return f"embed {self.function.name} {self.function.code} {self.reads} {self.into}"

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """A batch with the column."""
        names = batch.schema.names
        if missing := [name for name in self.reads if name not in names]:
            raise TableColumnNotFoundError(f"there is no column {', '.join(missing)}; there are {', '.join(names)}")
        made = _array(_called(self.function, *(batch.column(name) for name in self.reads)), self.function.name)
        if len(made) != batch.num_rows:
            raise InvalidInputError(f"{self.function.name} made {len(made)} values of {batch.num_rows} rows")
        field = pa.field(self.into, made.type)
        if self.into in names:
            return batch.set_column(names.index(self.into), field, made)
        return batch.append_column(field, made)


Step = Where | Select | Mapped | Embedded


@dataclass(frozen=True, slots=True)
class Transform:
    """Steps one after the other; it can be sent to executors."""

    steps: tuple[Step, ...]
    schema: pa.Schema
    """Of what comes out."""

    @property
    def key(self) -> str:
        """The same for the same steps, in another process too."""
        texts = [*(each.key for each in self.steps), str(self.schema)]
        return sha256("\0".join(texts).encode(errors="surrogatepass")).hexdigest()[:32]

    def batches(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """What becomes of batches; nothing becomes of one without rows."""
        for batch in batches:
            made = batch
            for step in self.steps:
                if not made.num_rows:
                    break
                made = step(made)
            if made.num_rows:
                yield self._checked(made)

    def _checked(self, batch: pa.RecordBatch) -> pa.RecordBatch:
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


def output(step: Step, schema: pa.Schema) -> pa.Schema:
    """The columns that a step gives, asked with a batch without rows.

    Raises:
        LanceNamespaceError: it cannot have such rows.
    """
    empty = pa.RecordBatch.from_pylist([], schema)
    try:
        made = step(empty).schema
    except InvalidInputError as error:
        if isinstance(step, Mapped | Embedded):
            raise InvalidInputError(f"{error} (it is asked for its columns with a batch without rows)") from error
        raise
    if twice := sorted({name for name in made.names if made.names.count(name) > 1}):
        raise InvalidInputError(f"two columns are called {', '.join(twice)}")
    return made


def _called(function: Named, *arguments: Any) -> Any:
    try:
        return function(*arguments)
    except LanceNamespaceError:
        raise
    except FOREIGN as error:
        raise InvalidInputError(f"{function.name} failed: {type(error).__name__}: {error}") from error


def _array(made: Any, name: str) -> pa.Array[Any]:
    """What a function gave as an Arrow array; a matrix of numpy is vectors."""
    if isinstance(made, pa.ChunkedArray):
        return made.combine_chunks()
    if isinstance(made, np.ndarray) and made.ndim == 2:
        values: Any = pa.array(np.ascontiguousarray(made).reshape(-1))
        return pa.FixedSizeListArray.from_arrays(values, made.shape[1])
    if isinstance(made, np.ndarray) and made.ndim == 1:
        return pa.array(made)
    if not isinstance(made, pa.Array):
        raise InvalidInputError(f"{name} gave {type(made).__name__}, not an Arrow array")
    return made


def _whole(table: pa.Table) -> pa.RecordBatch:
    batches: Sequence[pa.RecordBatch] = table.combine_chunks().to_batches()
    return batches[0] if len(batches) == 1 else pa.RecordBatch.from_pylist([], table.schema)
