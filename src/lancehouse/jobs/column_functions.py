"""`@column`: functions with a version that compute a column; how they are called, and what a table keeps of them.

A table never holds code: the metadata of a computed column names its function as `module:name`, with a digest of the
function and of the modules of the user's own that it imports.
"""

from __future__ import annotations

import importlib
import logging
import random
import sys
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from queue import Empty, Queue
from types import FunctionType
from typing import Any, Self, TypeVar

import lance
import pyarrow as pa
from lance_namespace.errors import InvalidInputError, PermissionDeniedError

from lancehouse.jobs.fingerprints import digest_code, json_digest
from lancehouse.lake.errors import translate_errors
from lancehouse.secrets import redact

logger = logging.getLogger(__name__)

F = TypeVar("F", bound=Callable[..., Any])

BLOBS = ("bytes", "file")
"""How a function gets the values of blob columns."""
LONGEST_BACKOFF_S = 60.0
MOST_TIMEOUTS = 30
"""Calls in a row that may time out: of a batch that is halved down to one bad row, about a dozen do."""
LONGEST_MESSAGE = 500
"""Characters of an exception that are kept."""

_MARK = "__lancehouse_column__"
FOREIGN = (Exception, SystemExit)
"""What user code may raise: anything but an interrupt."""


@dataclass(frozen=True, slots=True)
class _Mark:
    """What `@column` says of a function or class."""

    version: str
    inputs: tuple[str, ...]
    returns: pa.DataType | None
    blobs: str


def column(
    version: str | int, inputs: str | Sequence[str], returns: pa.DataType | None = None, blobs: str = "bytes"
) -> Callable[[F], F]:
    """Mark a function, or a class whose objects are called, as one that computes a column.

    It gets one Arrow array for each input and returns one value for each row: an Arrow array, a numpy array (for
    vectors a matrix), a pandas Series or a list. A class is instantiated once in each process that computes, never on
    the driver: load models in `__init__`.

    Args:
        version: name it anew whenever the results change: rows that another version made are computed again.
        inputs: the columns that it reads.
        returns: type of the column; by default found out by calling it with one batch.
        blobs: `bytes` passes values of blob columns as binary; `file` as a list of file-like objects, or None.

    Raises:
        InvalidInputError: an argument is none of these.
    """
    names = (inputs,) if isinstance(inputs, str) else tuple(inputs)
    if not names or not all(isinstance(name, str) and name for name in names):
        raise InvalidInputError(f"inputs must be the names of the columns that the function reads, not {inputs!r}")
    if isinstance(version, bool) or not isinstance(version, str | int) or not str(version).strip():
        raise InvalidInputError(f'version must be a text such as "1", not {version!r}')
    if blobs not in BLOBS:
        raise InvalidInputError(f"blobs must be {' or '.join(BLOBS)}, not {blobs!r}")
    if returns is not None:
        check_column_type(returns)
    mark = _Mark(str(version), names, returns, blobs)

    def decorate(target: F) -> F:
        if not isinstance(target, FunctionType | type):
            raise InvalidInputError(f"@column marks a function or a class, which has a name, not {target!r}")
        setattr(target, _MARK, mark)
        return target

    return decorate


def is_column_function(value: Any) -> bool:
    """Return whether a value was marked by `@column`; a subclass of a marked class is not."""
    return _MARK in getattr(value, "__dict__", {})


def check_column_type(dtype: pa.DataType) -> None:
    """Refuse what is no type of a column.

    Raises:
        InvalidInputError: it is no Arrow type, or that of nothing but nulls.
    """
    if not isinstance(dtype, pa.DataType):
        raise InvalidInputError(f"returns must be an Arrow type such as pa.float32(), not {dtype!r}")
    if pa.types.is_null(dtype):
        raise InvalidInputError("a column needs a type: the function gave nothing but nulls; say it with returns=")


class FunctionReference(ABC):
    """A function or class by its name, which is loaded in the process that computes."""

    __slots__ = ()

    @abstractmethod
    def load(self) -> Callable[..., Any]:
        """Return the function or class; the same one in each call, as long as its code is the same."""


@dataclass(frozen=True, slots=True)
class ColumnFunction:
    """What computes a column: a marked function or class, or SQL over the row; can be sent to other processes."""

    name: str
    """`module:name`, or empty for SQL."""
    version: str
    inputs: tuple[str, ...] = ()
    sql: str | None = None
    returns: pa.DataType | None = None
    blobs: str = "bytes"
    digest: str = ""
    """Digest of the code and of the modules of the user's own that it imports."""
    target: Any = field(default=None, repr=False, compare=False)
    """The function or class, or a `FunctionReference`."""

    @classmethod
    def of(cls, value: Any) -> Self:
        """Return the function that a caller gives: SQL as text, or what `@column` has marked.

        Raises:
            InvalidInputError: it is neither.
        """
        if isinstance(value, cls):
            return value
        if isinstance(value, str):
            digest = json_digest(value)
            return cls("", digest[:8], sql=value, digest=digest)
        if not is_column_function(value):
            raise InvalidInputError(
                f"{getattr(value, '__qualname__', value)!r} is no function with a version: mark it with "
                "@lancehouse.column(version=…, inputs=[…]); of columns, SQL as text will do"
            )
        mark: _Mark = vars(value)[_MARK]
        name = f"{value.__module__}:{value.__qualname__}"
        return cls(name, mark.version, mark.inputs, None, mark.returns, mark.blobs, digest_code(value), value)

    @classmethod
    def load(cls, name: str, allowed: Sequence[str] | None = None) -> Self:
        """Import a function by its name, `module:name`.

        Args:
            name: the name, which whoever writes a table may have chosen.
            allowed: what may be imported: functions as `module:name`, or modules with all below them; None for all.

        Raises:
            PermissionDeniedError: it is not allowed; nothing was imported.
            InvalidInputError: there is no such module or function, or `@column` has not marked it.
        """
        module, _, path = name.partition(":")
        if allowed is not None and not any(
            name == prefix or f"{module}.".startswith(f"{prefix}.") for prefix in allowed
        ):
            raise PermissionDeniedError(
                f"{name} is not imported: only {', '.join(allowed) or 'nothing'} is allowed here (functions=, --allow)"
            )
        try:
            value: Any = sys.modules[module] if module in sys.modules else importlib.import_module(module)
            for step in path.split("."):
                value = getattr(value, step)
        except FOREIGN as error:
            raise InvalidInputError(
                f"{name} cannot be imported ({_describe_error(error)}): give the function itself, or start where its "
                "module is found"
            ) from error
        return cls.of(value)

    @property
    def label(self) -> str:
        """Name for messages."""
        return self.name or f"SQL {self.sql!r}"


# Calling


@dataclass(frozen=True, slots=True)
class CallRules:
    """How often a function is called for the same rows, and what happens to rows for which it fails."""

    on_error: str = "fail"
    """`fail` ends the job, `null` sets the value to null, `skip` leaves it as it is."""
    retries: int = 0
    """How often a call is repeated that raises one of `retry_on`."""
    retry_on: tuple[str, ...] = ()
    """Names of exceptions, with or without their modules; without any, all are retried."""
    backoff_s: float = 1.0
    """Pause before the first repetition; it doubles with each."""
    timeout_s: float | None = None
    """Longest time of a call."""


class WrongFunctionError(InvalidInputError):
    """The function is wrong, or what it calls does not answer: no row is to blame."""


@dataclass(frozen=True, slots=True)
class RowError:
    """A row for which the function failed, by its position in the batch."""

    position: int
    exception: str


@dataclass(frozen=True, slots=True)
class Values:
    """The values of a batch, and the rows that have none because the function failed."""

    array: pa.Array[Any]
    errors: tuple[RowError, ...] = ()


@dataclass(frozen=True, slots=True)
class SqlFunction:
    """SQL over the row, as a function of arrays."""

    sql: str
    schema: pa.Schema
    """Names and types of the arrays."""

    def __call__(self, *inputs: Any) -> Any:
        """Return the values of some rows.

        Raises:
            LanceNamespaceError: it fails for one of them.
        """
        with translate_errors("SQL"):
            rows = lance.write_dataset(pa.table(list(inputs), schema=self.schema), "memory://")
            scanner = rows.scanner(columns={"value": self.sql}, with_row_id=True, scan_in_order=True)
            return scanner.to_table()["value"]


class FunctionCaller:
    """Calls a function in the process that computes, by the rules of the job."""

    def __init__(self, function: ColumnFunction, dtype: pa.DataType | None, rules: CallRules) -> None:
        self._function = function
        self._dtype = dtype
        self._rules = rules
        self._target: Callable[..., Any] = function.target
        self._timeouts = 0

    def compute(self, inputs: Sequence[Any], describe_row: Callable[[int], str]) -> Values:
        """Return the values of some rows.

        A call that fails is repeated with half of the rows until the row is found that it fails for.

        Args:
            inputs: an array, or a list of files, for each input.
            describe_row: names a row, given its position, for the message of an error.

        Raises:
            InvalidInputError: the function failed for a row, and the rules do not allow that.
        """
        self._target = get_instance(self._function)  # not below, where its failure would be that of a row
        rows = len(inputs[0]) if inputs else 0
        parts = list(self._compute_range(inputs, 0, rows))
        errors = tuple(part for part in parts if isinstance(part, RowError))
        if errors and self._rules.on_error == "fail":
            first = errors[0]
            raise InvalidInputError(
                f"{self._function.label} failed for {describe_row(first.position)}: {first.exception}; mend it, or set "
                'on_error="null" or "skip" to go on without such rows'
            )
        dtype: Any = self._dtype
        arrays = [pa.nulls(1, dtype) if isinstance(part, RowError) else part for part in parts]
        return Values(_concat(arrays, self._dtype), errors)

    def _compute_range(self, inputs: Sequence[Any], first: int, rows: int) -> Iterator[Any]:
        try:
            yield self._call([values[first : first + rows] for values in inputs], rows)
        except WrongFunctionError:
            raise
        except FOREIGN as error:
            if rows <= 1:
                yield RowError(first, _describe_error(error))
                return
            half = rows // 2
            before = list(self._compute_range(inputs, first, half))
            yield from before
            if self._rules.on_error == "fail" and any(isinstance(part, RowError) for part in before):
                return  # the job ends: the other half need not be called
            yield from self._compute_range(inputs, first + half, rows - half)

    def _call(self, inputs: Sequence[Any], rows: int) -> pa.Array[Any]:
        for attempt in range(self._rules.retries + 1):
            try:
                result = self._call_within(inputs)
                return to_array(result, rows, self._dtype)
            except WrongFunctionError as error:
                raise WrongFunctionError(f"{self._function.label}: {error}") from error
            except FOREIGN as error:
                if attempt == self._rules.retries or not self._is_retried(error):
                    raise
                pause = min(self._rules.backoff_s * 2**attempt, LONGEST_BACKOFF_S) * random.uniform(0.5, 1)  # noqa: S311
                logger.info("%s: %s; trying again in %.1f s", self._function.label, _describe_error(error), pause)
                time.sleep(pause)
        raise AssertionError("each attempt ends above")

    def _call_within(self, inputs: Sequence[Any]) -> Any:
        try:
            result = _call_within(self._target, inputs, self._rules.timeout_s)
        except TimeoutError as error:
            self._timeouts += 1
            if self._timeouts > MOST_TIMEOUTS:
                raise WrongFunctionError(f"{error}, {self._timeouts} times in a row: no row is to blame") from error
            raise
        self._timeouts = 0
        return result

    def _is_retried(self, error: BaseException) -> bool:
        names = {name for kind in type(error).__mro__ for name in (kind.__name__, f"{kind.__module__}.{kind.__name__}")}
        return not self._rules.retry_on or not names.isdisjoint(self._rules.retry_on)


def _describe_error(error: BaseException) -> str:
    # They are kept with the table, and logged: no keys in queries of URLs.
    return f"{type(error).__name__}: {redact(str(error), {})}"[:LONGEST_MESSAGE]


def _call_within(function: Callable[..., Any], inputs: Sequence[Any], timeout_s: float | None) -> Any:
    if timeout_s is None:
        return function(*inputs)
    outcome: Queue[tuple[Any, BaseException | None]] = Queue()

    def call() -> None:
        try:
            outcome.put((function(*inputs), None))
        except BaseException as error:  # noqa: BLE001 - it is raised by the caller
            outcome.put((None, error))

    # A thread cannot be stopped: one that hangs is left behind, and does not keep the process from ending.
    threading.Thread(target=call, name="lancehouse-column", daemon=True).start()
    try:
        result, error = outcome.get(timeout=timeout_s)
    except Empty:
        raise TimeoutError(f"it took more than {timeout_s:g} s") from None
    if error is not None:
        raise error
    return result


def to_array(result: Any, rows: int, dtype: pa.DataType | None) -> pa.Array[Any]:
    """Return what a function gave as an Arrow array of the column's type.

    Raises:
        InvalidInputError: it does not have one value for each row, or not of that type.
    """
    if hasattr(result, "__dataframe__") or isinstance(result, Mapping):
        raise InvalidInputError(f"a column function gives one column, not {type(result).__name__}")
    try:
        array = _convert(result, dtype)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError, TypeError) as error:
        raise InvalidInputError(f"the result is no column of {dtype or 'one type'}: {error}") from error
    if len(array) != rows:
        raise WrongFunctionError(f"the function gave {len(array)} values for {rows} rows, and each needs one")
    if dtype is None:
        check_column_type(array.type)
    return array


def _convert(result: Any, dtype: pa.DataType | None) -> pa.Array[Any]:
    if isinstance(result, pa.ChunkedArray):
        result = result.combine_chunks()
    if isinstance(result, pa.Array):
        return result if dtype is None or result.type == dtype else result.cast(dtype)
    if getattr(result, "ndim", 1) == 2:  # a matrix: its rows are vectors
        size = dtype.list_size if isinstance(dtype, pa.FixedSizeListType) else result.shape[1]
        if result.shape[1] != size:
            raise InvalidInputError(f"the function gave vectors of {result.shape[1]} values, not {size}")
        values = pa.array(result.reshape(-1))
        array = pa.FixedSizeListArray.from_arrays(values, size)
        return array if dtype is None or array.type == dtype else array.cast(dtype)
    is_series = hasattr(result, "index") and hasattr(result, "to_numpy")
    return pa.array(result, dtype, from_pandas=True) if is_series else pa.array(result, dtype)


def _concat(arrays: Sequence[pa.Array[Any]], dtype: Any) -> pa.Array[Any]:
    if len(arrays) == 1:
        return arrays[0]
    return pa.concat_arrays(arrays) if arrays else pa.nulls(0, dtype or pa.null())


_instances: dict[tuple[str, str], tuple[type, Callable[..., Any]]] = {}
_instances_lock = threading.Lock()


def get_instance(function: ColumnFunction) -> Callable[..., Any]:
    """Return what is called: the function, or the object of a class, made once in this process.

    An object made by other code of the same class is dropped, so that two models do not fill the memory.

    Raises:
        InvalidInputError: the class cannot be instantiated.
    """
    target: Callable[..., Any] = function.target
    if isinstance(function.target, FunctionReference):
        target = function.target.load()
    if not isinstance(target, type):
        return target
    key = (function.name, function.version)
    with _instances_lock:
        pair = _instances.get(key)
        if pair is None or pair[0] is not target:
            for other in [instance_key for instance_key in _instances if instance_key[0] == function.name]:
                del _instances[other]
            try:
                pair = _instances[key] = (target, target())
            except FOREIGN as error:
                raise InvalidInputError(f"{function.label} cannot be made: {_describe_error(error)}") from error
        return pair[1]
