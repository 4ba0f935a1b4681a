"""Fill computed columns: the rows that nobody has filled, that another version made, or whose inputs changed since.

Only the data of the column are written: each fragment gets a new file with the column and its companion, in which rows
that need no new value keep the one that they have. What is computed is recorded below the table's location, a number of
rows at a time, so that the same call goes on after a crash. A commit that meets another change is made again with the
same files; nothing is computed twice.
"""

from __future__ import annotations

import json
import logging
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import astuple, dataclass, field, replace
from functools import cache
from itertools import chain, pairwise, repeat
from operator import itemgetter
from typing import Any, Self, TypeVar
from uuid import uuid4

import lance
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from lance.file import LanceFileReader
from lance.fragment import DataFile, FragmentMetadata
from lance_namespace.errors import ConcurrentModificationError, InternalError, InvalidInputError

from lancehouse.identifiers import quote_name
from lancehouse.jobs.address import PinnedVersion, TableAddress
from lancehouse.jobs.column_functions import CallRules, ColumnFunction, FunctionCaller, RowError, SqlFunction
from lancehouse.jobs.engine import PIECES_EACH, Engine, is_repeated, spread
from lancehouse.jobs.fingerprints import json_digest
from lancehouse.jobs.job import Job, ReportFill, watch_fill
from lancehouse.lake.changes import UPDATED
from lancehouse.lake.chunked_scan import has_blobs
from lancehouse.lake.column_states import error_records, find_failed, find_field_id, sort_errors
from lancehouse.lake.commits import (
    MESSAGE,
    FileLayout,
    NewFragment,
    TableLocation,
    commit,
    discard_fragments,
    find_lost_fragments,
    find_restore,
    locate_table,
    parse_new_fragments,
    write_uncommitted,
)
from lancehouse.lake.dataset import OFFSET, OFFSET_BITS, TableRef, empty_dataset, enclose_sql
from lancehouse.lake.errors import translate_errors
from lancehouse.schema.definitions import COMPANION_TYPE, FAILED, FILLED, SKIPPED, definitions

logger = logging.getLogger(__name__)

T = TypeVar("T")

ATTEMPTS = 10
"""How often a commit is tried over changes of others, and how often fragments that came meanwhile are filled."""
LEAST_BETWEEN_S = 1.0
"""Checkpoints of a fast function are at least this far apart: what a second computes is not worth a file."""
MOST_PENDING = 128 << 20
"""Bytes of values that are held in memory for the next checkpoint."""
MOST_ERRORS = 100_000
"""Largest number of rows whose exceptions are kept: of more, the newest. One fragment collects no more, either."""
UNKNOWN = "too many rows failed to keep each exception"
"""Stands for the exception of a row that is not kept."""
START = "start"
"""Key of a job's record: the version of the table when the job began."""
LEAST_SPLIT = 50_000
"""Fewest rows of a fragment that are worth a piece of their own."""
FILLED_FROM = "lancehouse.filled-from"
"""Property of a fill's transaction: the oldest version of the table that its values were computed from."""
KEPT_BYTES = 31 << 20
"""Just below 32 MiB: glibc does not adapt to blocks that are larger."""
GONE = -2
"""Lance's field id of a column in a file that another file has instead."""


@dataclass(frozen=True, slots=True)
class FillOptions:
    """Which rows are filled, and how."""

    where: str | None = None
    recompute: bool = False
    """Fill all rows that `where` selects, also those that are up to date."""
    where_failed: bool = False
    """Fill only rows for which the function has failed."""
    batch_rows: int = 4096
    """Most rows of one call."""
    checkpoint_rows: int = 10_000
    checkpoint_s: float = 60.0
    commit_every: int | None = None
    """Commit after this many fragments; by default once, at the end."""
    max_concurrency: int | None = None
    """Most calls at once, in the whole job."""
    rules: CallRules = field(default_factory=CallRules)
    resources: Mapping[str, float] = field(default_factory=dict)
    """What a task needs of an executor, such as `{"gpu": 1}`."""
    optimize_indices: bool = False
    """Add the rows to the indices on the column, or on the view, at the end."""
    allowed: tuple[str, ...] | None = None
    """Functions and modules that may be imported by the names that a table has; None for all."""
    sources: tuple[str, ...] | None = None
    """Tables whose rows a view may show, by name, or by a pattern such as `main.ml.*`; None for all."""

    def spread(self, items: Sequence[T], engine: Engine) -> list[Sequence[T]]:
        """Return items in groups for the pieces of an engine: more than run at once, unless calls are limited."""
        return spread(items, self.max_concurrency or engine.parallelism * PIECES_EACH)

    def is_checkpoint_due(self, rows: int, elapsed_s: float, *, is_large: bool = False) -> bool:
        """Return whether what was computed since the last checkpoint is written now."""
        if not rows or elapsed_s >= self.checkpoint_s:
            return bool(rows)
        return rows >= self.checkpoint_rows and (elapsed_s >= LEAST_BETWEEN_S or is_large)


@dataclass(frozen=True, slots=True)
class FillResult:
    """What was filled."""

    version: int
    """The version that the last commit made, or the latest one if there was nothing to do."""
    filled: int = 0
    failed: int = 0
    skipped: int = 0
    function_s: float = 0.0
    """Time that the functions took, in seconds, of all tasks together."""
    bytes: int = 0
    """Size of the files that the table has now for what was filled."""
    seconds: float = 0.0
    """How long it took in all."""
    columns: Mapping[str, Self] = field(default_factory=dict)
    """The same for each column."""

    @property
    def rows(self) -> int:
        """Rows that were filled, failed or skipped."""
        return self.filled + self.failed + self.skipped

    @property
    def rows_per_s(self) -> float:
        """Rows a second."""
        return self.rows / self.seconds if self.seconds else 0.0

    def __add__(self, other: Self) -> FillResult:
        return FillResult(
            max(self.version, other.version),
            self.filled + other.filled,
            self.failed + other.failed,
            self.skipped + other.skipped,
            self.function_s + other.function_s,
            self.bytes + other.bytes,
            self.seconds + other.seconds,
            {**self.columns, **other.columns},
        )


@dataclass(frozen=True, slots=True)
class ColumnPlan:
    """One column that is filled at one version of a table; can be sent to other processes."""

    name: str
    dtype: pa.DataType
    function: ColumnFunction
    inputs: tuple[str, ...]
    """Names of the inputs now; they may have been renamed since the column was defined."""
    input_ids: tuple[int, ...]
    own_ids: Mapping[int, int]
    """Field ids of the column and its companion, by those that they have in a file of their own."""
    options: FillOptions
    start: int
    """Version of the table when the job began."""
    since: int
    """Version of the table in which the column was defined."""
    companion: str
    """Name of the companion."""
    computed_inputs: tuple[str, ...]
    """Companions of inputs that are computed columns themselves."""
    dependents: tuple[int, ...]
    """Field ids of columns that are computed from this one."""
    stable: bool
    """Whether the table has stable row ids, by which changes of rows are found."""
    storage_version: str
    restored: int = 0
    """Version since the job began that restored an older one: what was computed before may be of rows that are gone.

    If versions since were cleaned up, the latest of them."""

    @property
    def schema(self) -> pa.Schema:
        """Schema of the files that are written."""
        return pa.schema([pa.field(self.name, self.dtype), pa.field(self.companion, COMPANION_TYPE)])

    @property
    def message(self) -> str:
        """Message of the commits."""
        version = "" if self.function.sql is not None else f" {self.function.version}"
        return f"Fill {self.name} ({self.function.label}{version})"

    @property
    def base_ids(self) -> tuple[int, ...]:
        """Field ids of what must not change until new values are committed: the column, and what is computed from it.

        A dependent column is filled again where this one was read at the same version of the table or a later one. If
        somebody fills it after this column was read, and commits first, it has read the old values at a later version,
        and would seem to be up to date. So the new values are then written again, as read at the version after that.
        """
        return (*self.own_ids.values(), *self.dependents)

    @property
    def condition(self) -> str:
        """Which rows need a value, in Lance's SQL."""
        own, options = quote_name(self.companion), self.options
        if options.recompute:
            # Not those that this job has filled already, before a commit or a crash.
            wanted = f"({own}.version IS NULL OR {own}.at < {self.start})"
        elif options.where_failed:
            wanted = f"{own}.state IN ('{FAILED}', '{SKIPPED}') AND {own}.at < {self.start}"
        else:
            version = self.function.version.replace("'", "''")
            terms = [f"{own}.version IS NULL", f"{own}.version <> '{version}'", f"{own}.at < {self.since}"]
            # A fill does not count as a change of the row. A later one of an input was made from a later version.
            terms += [f"{quote_name(companion)}.at >= {own}.at" for companion in self.computed_inputs]
            terms += [f"{UPDATED} > {own}.at"] if self.stable else []
            wanted = f"({' OR '.join(terms)})"
        return wanted if options.where is None else f"{enclose_sql(options.where)} AND {wanted}"


@dataclass(frozen=True, slots=True)
class ComputedValues:
    """Values that were computed and written to a file that no version references yet; can be converted to JSON."""

    fragment: int
    inputs: str
    """Digest of the files that held the inputs: where they are the same, so are the inputs."""
    at: int
    """Version of the table that was read."""
    piece: NewFragment
    ranges: tuple[tuple[int, int, int], ...]
    """Row ids, positions in the file, and lengths of runs of both."""
    base: str | None
    """For a file with all rows of the fragment, which can be committed: a digest of the files that it replaces."""
    result: FillResult
    errors: tuple[tuple[int, str], ...] = ()
    """Row ids and exceptions."""

    @property
    def bytes(self) -> int:
        """Size of the file."""
        [fragment] = parse_new_fragments([self.piece])
        return sum(file.file_size_bytes or 0 for file in fragment.files)

    def to_json(self) -> str:
        """Return it as text."""
        return json.dumps(astuple(self))

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Parse what `to_json` returned."""
        fragment, inputs, at, piece, ranges, base, result, errors = json.loads(text)
        return cls(fragment, inputs, at, piece, _to_tuples(ranges), base, FillResult(*result), _to_tuples(errors))


def _to_tuples(rows: list[list[Any]]) -> Any:
    return tuple(map(tuple, rows))


def fill_column(
    engine: Engine,
    address: TableAddress,
    name: str,
    function: ColumnFunction,
    options: FillOptions,
    report: ReportFill | None = None,
) -> FillResult:
    """Fill a column that is defined by this function; `report` is called with the progress.

    Raises:
        InvalidInputError: the function failed for a row, and `on_error` does not allow that.
        ConcurrentModificationError: others kept changing the table, so that all attempts failed.
    """
    selection = [options.where, options.recompute, options.where_failed]
    job = Job(address, f"fill-{json_digest([name, function.version, function.digest, selection])}")
    table, progress = address.to_ref(), job.progress()
    if options.where is not None:
        with table.dataset() as dataset:  # an invalid condition fails before anything is recorded
            dataset.scanner(filter=enclose_sql(options.where)).explain_plan()
    records = progress.read_records()
    start = records.pop(START, None)
    if not isinstance(start, int) or not records:  # a call that has left nothing else has filled no row
        start = int(table.open().version)
        progress.record(START, start)
    start_time, is_resumed = time.monotonic(), bool(records)

    def count_all() -> int:
        dataset = table.open()
        return int(dataset.count_rows(plan_column(table, dataset, name, function, options, start).condition))

    with watch_fill(report, name, progress, {START, *records}, count_all, _count_rows):
        total = _fill(engine, job, name, function, options, start, _find_values(records.values(), job.write_location()))
    _prune_errors(table, job.write_location(), name, function.version)
    _remove_checkpoints(job)
    if options.recompute and is_resumed and not total.rows:
        # The earlier call that this one took over had died after its last commit: this is a new one.
        return fill_column(engine, address, name, function, options, report)
    total = replace(total, seconds=time.monotonic() - start_time)
    return replace(total, columns={name: total})


def _count_rows(records: Mapping[str, Any]) -> tuple[int, int]:
    """Return how many rows are computed by the records of a job, and for how many the function failed."""
    recorded = _parse_values(records.values())
    whole = {values.fragment: values for values in recorded if values.base is not None}
    # The file of a whole fragment has the rows of its checkpoints too, which would count twice.
    counted = [
        *whole.values(),
        *(values for values in recorded if values.base is None and values.fragment not in whole),
    ]
    return sum(values.result.rows for values in counted), sum(len(values.errors) for values in counted)


def _fill(
    engine: Engine,
    job: Job,
    name: str,
    function: ColumnFunction,
    options: FillOptions,
    start: int,
    known_values: list[ComputedValues],
) -> FillResult:
    """Compute and commit until no fragment is left."""
    address, table = job.address, job.address.to_ref()
    total, filled_fragments, lost_values = FillResult(0), set[int](), list[ComputedValues]()
    for attempt in range(ATTEMPTS):
        pinned = PinnedVersion.resolve(address)
        _, dataset = pinned.open()
        total = replace(total, version=max(total.version, pinned.version))
        fragments = [
            fragment.fragment_id for fragment in dataset.get_fragments() if fragment.fragment_id not in filled_fragments
        ]
        if not fragments:
            break
        plan = plan_column(table, dataset, name, function, options, start)
        # Files that did not fit the table any more still have the values of rows whose inputs are the same.
        known_values, lost_values = [*known_values, *lost_values], []
        if known_values or attempt:  # otherwise there is nothing that a restored version could have made wrong
            plan = replace(plan, restored=find_restore(table, start) or 0)
        known_values += _compute_ranges(engine, job, pinned, plan, known_values, fragments)
        size = options.commit_every or len(fragments)
        for group in (fragments[first : first + size] for first in range(0, len(fragments), size)):
            new_values = _compute_fragments(engine, job, pinned, plan, known_values, group)
            _keep_errors(job, plan, new_values)  # before the commit: what is not committed is pruned
            version, committed_values = _commit_values(table, plan, new_values)
            lost_values += [values for values in new_values if values not in committed_values]
            total = sum(
                (replace(values.result, version=version, bytes=values.bytes) for values in committed_values),
                start=total,
            )
            filled_fragments |= set(group) - {values.fragment for values in lost_values}
    if lost_values:
        raise ConcurrentModificationError(
            f"{address}: others kept changing the rows of column {name}; what is computed is kept: try again"
        )
    return total


def plan_column(
    table: TableRef,
    dataset: lance.LanceDataset,
    name: str,
    function: ColumnFunction,
    options: FillOptions,
    start: int,
) -> ColumnPlan:
    """Return how a column is filled at one version of the table.

    Raises:
        ConcurrentModificationError: the column was dropped, or defined anew, since the job began.
        InvalidInputError: an input was dropped, or renamed where SQL names it.
    """
    definition = definitions(dataset.schema).get(name)
    if definition is None or not definition.matches(function):
        raise ConcurrentModificationError(f"{table}: column {name} was defined anew meanwhile; fill it again")
    fields = {field.id(): field for field in dataset.lance_schema.fields()}
    if dropped := [column for number, column in definition.inputs if number not in fields]:
        raise InvalidInputError(f"{table}: column {name} is computed from {', '.join(dropped)}, which was dropped")
    inputs = tuple(fields[number].name() for number, _ in definition.inputs)
    renamed = [(old, new) for (_, old), new in zip(definition.inputs, inputs, strict=True) if old != new]
    if definition.sql is not None and renamed:
        old, new = renamed[0]
        raise InvalidInputError(
            f"{table}: column {name} is computed by {definition.label}, and {old} is called {new} now: define it anew"
        )
    if definition.companion not in dataset.schema.names:
        raise InvalidInputError(
            f"{table}: {definition.companion}, which says what made the values of {name}, was dropped; define_columns "
            "adds it again"
        )
    dtype = dataset.schema.field(name).type
    by_name = {field.name(): field for field in fields.values()}
    ids = find_own_ids(dataset, (name, definition.companion))
    input_ids = tuple(number for number, _ in definition.inputs)
    own_id = by_name[name].id()
    others = {column: other for column, other in definitions(dataset.schema).items() if column != name}
    return ColumnPlan(
        name,
        dtype,
        function,
        inputs,
        input_ids,
        ids,
        options,
        start,
        definition.since,
        definition.companion,
        tuple(other.companion for column, other in others.items() if by_name[column].id() in input_ids),
        tuple(
            by_name[column].id() for column, other in others.items() if own_id in {number for number, _ in other.inputs}
        ),
        dataset.has_stable_row_ids,
        dataset.data_storage_version,
    )


def find_own_ids(dataset: lance.LanceDataset, columns: Sequence[str]) -> dict[int, int]:
    """Return the field ids of columns and of what is in them, by those that they have in a file of their own."""
    by_name = {field.name(): field for field in dataset.lance_schema.fields()}
    own = pa.schema([dataset.schema.field(name) for name in columns])
    alone = empty_dataset(own, dataset.data_storage_version).lance_schema.fields()
    return dict(pair for field in alone for pair in _pair_ids(field, by_name[field.name()]))


def count_rows_to_fill(
    table: TableRef, dataset: lance.LanceDataset, name: str, function: ColumnFunction, options: FillOptions
) -> int:
    """Return how many rows of a version would be filled: all, if the column is not defined yet."""
    definition, condition = definitions(dataset.schema).get(name), options.where
    if definition is None:
        return int(dataset.count_rows())
    if definition.matches(function):
        condition = plan_column(table, dataset, name, function, options, int(dataset.version)).condition
    with translate_errors(table, table.storage_options):
        return int(dataset.scanner(columns=[], filter=condition, with_row_id=True).count_rows())


def _pair_ids(one: Any, other: Any) -> Iterator[tuple[int, int]]:
    yield one.id(), other.id()
    for child, same in zip(one.children(), other.children(), strict=True):
        yield from _pair_ids(child, same)


def _find_values(records: Iterable[Any], at: TableLocation) -> list[ComputedValues]:
    """Return what an earlier call has computed, as far as its files still exist."""
    all_values = _parse_values(records)
    lost = find_lost_fragments({values.piece for values in all_values}, at)
    return [values for values in all_values if values.piece not in lost]


def _add_recorded_values(job: Job, known_values: Sequence[ComputedValues]) -> Sequence[ComputedValues]:
    """Return what is known, with what an earlier attempt at this piece has computed since the job began."""
    if not is_repeated.get():
        return known_values
    recorded_values = _find_values(job.progress().read_records().values(), job.write_location())
    return [*known_values, *(values for values in recorded_values if values not in known_values)]


def _parse_values(records: Iterable[Any]) -> list[ComputedValues]:
    """Return the values among the records of a job; what is no such record is left out."""
    all_values = []
    for record in records:
        with suppress(ValueError, TypeError):
            all_values.append(ComputedValues.from_json(record))
    return all_values


# Computing, in the processes that the engine chooses


def _compute_fragments(
    engine: Engine,
    job: Job,
    pinned: PinnedVersion,
    plan: ColumnPlan,
    known_values: Sequence[ComputedValues],
    fragments: Sequence[int],
) -> list[ComputedValues]:
    """Compute what is missing in some fragments, and write a file for each that needs one."""

    def work(fragments: Sequence[int]) -> Iterator[str]:
        latest = _add_recorded_values(job, known_values)
        for fragment in fragments:
            values = FragmentFiller(job, pinned, plan, latest, fragment).fill()
            if values is not None:
                yield values.to_json()

    groups = plan.options.spread(fragments, engine)
    texts = engine.run(groups, work, plan.options.resources)
    return list(map(ComputedValues.from_json, texts))


def _compute_ranges(
    engine: Engine,
    job: Job,
    pinned: PinnedVersion,
    plan: ColumnPlan,
    known_values: Sequence[ComputedValues],
    fragments: Sequence[int],
) -> list[ComputedValues]:
    """Compute the values of a few large fragments in more pieces than there are fragments, as checkpoints."""
    # A fragment is filled by one piece, which writes its file: of few fragments most threads would see nothing.
    at_once = min(engine.parallelism, plan.options.max_concurrency or engine.parallelism)
    if len(fragments) >= at_once:
        return []
    _, dataset = pinned.open()
    rows = {fragment: int(dataset.get_fragment(fragment).physical_rows) for fragment in fragments}
    size = max(-(-sum(rows.values()) // at_once), LEAST_SPLIT)
    pieces = [
        (fragment, range(first, min(first + size, count)))
        for fragment, count in rows.items()
        for first in range(0, count, size)
        if count > size
    ]

    def work(pieces: Sequence[tuple[int, range]]) -> Iterator[str]:
        latest = _add_recorded_values(job, known_values)
        # The driver knows nothing of what an attempt at this piece has written before it died.
        yield from (values.to_json() for values in latest[len(known_values) :])
        for fragment, offsets in pieces:
            for computed in FragmentFiller(job, pinned, plan, latest, fragment, offsets).checkpoint_all():
                yield computed.to_json()

    texts = engine.run(spread(pieces, at_once), work, plan.options.resources)
    return list(map(ComputedValues.from_json, texts))


@dataclass(frozen=True, slots=True)
class _Batch:
    """Values of some rows of a fragment, in the order of their positions."""

    row_ids: Any
    offsets: Any
    columns: pa.RecordBatch
    """The column and its companion."""
    errors: tuple[tuple[int, str], ...] = ()
    """Of rows that failed or were skipped; without any, all are filled."""
    seconds: float = 0.0

    def split(self, rows: int) -> Iterator[_Batch]:
        """Yield parts whose rows lie in ranges of so many: what lies between is read, too."""
        breaks = np.flatnonzero(np.diff(self.offsets // rows)) + 1
        for first, last in pairwise([0, *breaks.tolist(), len(self.offsets)]):
            columns = self.columns.slice(first, last - first)
            yield _Batch(self.row_ids[first:last], self.offsets[first:last], columns, self.errors)

    @property
    def states(self) -> pa.Array[Any]:
        """The states of the rows."""
        companion: Any = self.columns.column(1)
        states: pa.Array[Any] = companion.field("state")
        return states

    @property
    def is_skipped(self) -> Any:
        """For each row whether it keeps the value that it has."""
        if not self.errors:
            return np.zeros(len(self.row_ids), bool)
        return pc.equal(self.states, pa.scalar(SKIPPED)).to_numpy(zero_copy_only=False)


@cache
def keep_freed_memory() -> None:
    """Have the C library keep memory that is freed, for the next batch, instead of returning it to the system.

    When a program frees a block, glibc returns memory from then on only if more than twice the size of that block is
    unused, which is less than two fragments hold until they are written. To get that memory anew, page by page, took a
    quarter of a fast function's fill in two threads.
    """
    np.empty(KEPT_BYTES, np.uint8)


class FragmentFiller:
    """Fills one fragment, or computes the values of a range of its rows."""

    def __init__(
        self,
        job: Job,
        pinned: PinnedVersion,
        plan: ColumnPlan,
        known: Sequence[ComputedValues],
        fragment: int,
        offsets: range | None = None,
    ) -> None:
        keep_freed_memory()
        self._job, self._plan, self._at, self._id, self._offsets = job, plan, pinned.version, fragment, offsets
        self._table, self._dataset = pinned.open()
        self._fragment = self._dataset.get_fragment(fragment)
        self._metadata = self._fragment.metadata
        self._inputs = _digest_files(self._metadata, plan.input_ids)
        self._base = _digest_files(self._metadata, plan.base_ids)
        self._has_values = not _field_ids(self._metadata).isdisjoint(plan.own_ids.values())
        self._known_values = known
        self._caller = self._make_caller()
        self._calls_sql = False
        """Whether SQL has failed for a row, and is called as a function is, to find it."""
        companion = {"version": plan.function.version, "state": FILLED, "at": self._at}
        rows = min(plan.options.batch_rows, self._metadata.physical_rows)
        self._all_filled: Any = pa.repeat(pa.scalar(companion, COMPANION_TYPE), rows)
        self._pending: list[_Batch] = []
        self._begun_s = self._saved_s = time.monotonic()

    def _make_caller(self) -> FunctionCaller:
        function, rules = self._plan.function, self._plan.options.rules
        if function.sql is not None:
            schema = pa.schema([self._dataset.schema.field(name) for name in self._plan.inputs]).remove_metadata()
            # It fails for the same rows whenever it is tried.
            function, rules = replace(function, target=SqlFunction(function.sql, schema)), replace(rules, retries=0)
        return FunctionCaller(function, self._plan.dtype, rules)

    def fill(self) -> ComputedValues | None:
        """Write a file with all values of the fragment; None if all rows have the right values already.

        A file that an earlier call has written for the same version of the table is taken as it is.
        """
        wanted = (self._id, self._inputs, self._base, self._at)
        for values in self._known_values:
            if (values.fragment, values.inputs, values.base, values.at) == wanted:
                return values
        while True:
            try:
                batches = self._compute()
                first = next(batches, None)
                if first is None:
                    return None
                summary = _Summary()
                columns = self._overlay(summary.watch(chain([first], batches)))
                return self._write(columns, self._metadata.physical_rows, summary, self._base)
            except LostValuesError as lost:  # another call that filled the same column has ended, and removed them
                self._known_values = [values for values in self._known_values if values.piece != lost.piece]

    def checkpoint_all(self) -> Iterator[ComputedValues]:
        """Compute all values, and write them as checkpoints."""
        for _ in self._compute():
            if self._is_checkpoint_due():
                yield self._flush()
        if self._pending:
            yield self._flush()

    # Reading

    def _compute(self) -> Iterator[_Batch]:
        """Yield the values of the rows that need one, in order, some from checkpoints."""
        at = self._job.write_location()
        resumed = _ResumedValues(self._table, at, self._plan, self._usable_values(), self._at)
        first_address = 0
        if resumed:
            # The inputs of rows whose values are known are not read, as far as they come before all others.
            rows = self._scan([], 0).to_table().combine_chunks()
            is_known = resumed.contains(rows)
            unknown = np.flatnonzero(~is_known)
            end = int(unknown[0]) if len(unknown) else len(rows)
            for first in range(0, end, self._plan.options.batch_rows):
                yield resumed.read(rows.slice(first, min(self._plan.options.batch_rows, end - first)))
            if end == len(rows):
                return
            first_address = int(rows["_rowaddr"][end].as_py())
        for batch in self._read(first_address):
            yield self._resolve(batch, resumed)

    def _read(self, first_address: int) -> Iterator[pa.RecordBatch]:
        """Yield the inputs of rows that need a value; for SQL the values, up to a batch in which it fails for a row."""
        if self._plan.function.sql is not None and not self._calls_sql:
            try:
                for batch in self._scan(self._columns(), first_address).to_batches():
                    values = batch.column("value").cast(self._plan.dtype)
                    yield batch.set_column(batch.schema.get_field_index("value"), "value", values)
                    first_address = int(batch.column("_rowaddr")[-1].as_py()) + 1
                return
            except (ValueError, OSError, RuntimeError):
                if not self._plan.inputs:  # it fails for all rows alike
                    raise
                # Lance does not tell the row: from here on the inputs are read, and batches are halved to find it.
                self._calls_sql = True
        yield from self._scan(self._columns(), first_address).to_batches()

    def _resolve(self, batch: pa.RecordBatch, resumed: _ResumedValues) -> _Batch:
        """Return the values of a batch of rows: those that are known, and the others from the function."""
        if not resumed:
            return self._call(batch)
        rows = pa.Table.from_batches([batch])
        is_known = resumed.contains(rows)
        if not is_known.any():
            return self._call(batch)
        if is_known.all():
            return resumed.read(rows)
        old_places, new_places = np.flatnonzero(is_known), np.flatnonzero(~is_known)
        old, new = resumed.read(rows.take(old_places)), self._call(batch.take(new_places))
        order = np.argsort(np.concatenate([old_places, new_places]))
        columns = pa.Table.from_batches([old.columns, new.columns]).take(order).combine_chunks().to_batches()[0]
        return _Batch(*_row_ids_and_offsets(batch), columns, (*old.errors, *new.errors), new.seconds)

    def _columns(self) -> list[str] | dict[str, str]:
        function = self._plan.function
        if function.sql is not None and not self._calls_sql:
            return {"value": function.sql}
        fields = [self._dataset.schema.field(name) for name in self._plan.inputs]
        return [field.name for field in fields if function.blobs == "bytes" or not has_blobs(field)]

    def _scan(self, columns: list[str] | dict[str, str], first_address: int) -> lance.LanceScanner:
        options = self._plan.options
        # A fragment without a file of the column has no value: all its rows are wanted, and no companion need be read.
        conditions = (
            [self._plan.condition] if self._has_values or options.where is not None or options.where_failed else []
        )
        if first_address:
            conditions.append(f"_rowaddr >= {first_address}")
        if self._offsets is not None:
            above = self._id << OFFSET_BITS
            conditions.append(f"_rowaddr >= {above + self._offsets.start} AND _rowaddr < {above + self._offsets.stop}")
        more = [UPDATED] if self._plan.stable else []
        with translate_errors(self._table, self._table.storage_options):
            return self._dataset.scanner(
                columns={**columns, **{name: name for name in more}} if isinstance(columns, dict) else columns + more,
                filter=" AND ".join(f"({condition})" for condition in conditions) or None,
                with_row_id=True,
                with_row_address=True,
                fragments=[self._fragment],
                # A batch is one call of the function.
                batch_size=self._plan.options.batch_rows,
                strict_batch_size=True,
                blob_handling="all_binary",
                # New values are laid over the old ones in one pass, so positions have to grow.
                scan_in_order=True,
            )

    def _call(self, batch: pa.RecordBatch) -> _Batch:
        """Compute the values of a batch."""
        row_ids, offsets = _row_ids_and_offsets(batch)
        start_time = time.monotonic()
        failures: tuple[RowError, ...] = ()
        if self._plan.function.sql is not None and not self._calls_sql:
            values = batch.column("value")
        else:
            computed = self._caller.compute(self._arguments(batch), lambda position: f"row id {row_ids[position]}")
            values, failures = computed.array, computed.errors
        state = SKIPPED if self._plan.options.rules.on_error == "skip" else FAILED
        companion = self._all_filled.slice(0, len(row_ids))
        if failures:
            states = np.full(len(row_ids), FILLED, object)
            states[[failure.position for failure in failures]] = state
            parts = [companion.field("version"), pa.array(states, pa.string()), companion.field("at")]
            companion = pa.StructArray.from_arrays(parts, fields=list(COMPANION_TYPE))
        columns = pa.RecordBatch.from_arrays([values, companion], schema=self._plan.schema)
        errors = tuple((int(row_ids[failure.position]), failure.exception) for failure in failures)
        result = _Batch(row_ids, offsets, columns, errors, time.monotonic() - start_time)
        if self._is_worth_holding(offsets):
            self._pending.append(result)
        return result

    def _is_worth_holding(self, offsets: Any) -> bool:
        """Return whether, at the pace so far, a checkpoint may come before the fragment is filled.

        Memory that is not held is used again for the next batch, which costs less than new memory.
        """
        if self._offsets is not None:  # of a range of rows, checkpoints are all that is written
            return True
        least_s = min(LEAST_BETWEEN_S, self._plan.options.checkpoint_s)
        share = (int(offsets[-1]) + 1) / self._metadata.physical_rows
        return bool(self._pending) or time.monotonic() - self._begun_s >= least_s * share

    def _arguments(self, batch: pa.RecordBatch) -> list[Any]:
        function = self._plan.function
        arguments: list[Any] = []
        for name in self._plan.inputs:
            if function.blobs == "file" and has_blobs(self._dataset.schema.field(name)):
                arguments.append(self._dataset.take_blobs(name, ids=batch.column("_rowid").to_pylist()))
            else:
                arguments.append(batch.column(name))
        return arguments

    def _usable_values(self) -> list[ComputedValues]:
        """Return what was computed of the same inputs; with stable row ids, rows are followed to other fragments."""
        # Files never change: of the same ones, the values are right whatever came in between.
        same = [values for values in self._known_values if (values.fragment, values.inputs) == (self._id, self._inputs)]
        if not self._plan.stable or self._plan.computed_inputs:
            return same
        existing = {fragment.fragment_id for fragment in self._dataset.get_fragments()}
        moved = [
            values
            for values in self._known_values
            if values.fragment not in existing and values.at >= self._plan.restored
        ]
        return [*same, *moved]

    # Writing

    def _overlay(self, batches: Iterable[_Batch]) -> Iterator[pa.RecordBatch]:
        """Yield the values of all rows of the fragment, deleted ones included, with the new ones in their places."""
        old = _OldValues(self._fragment, self._plan, is_empty=not self._has_values)
        position = 0
        for batch in chain.from_iterable(batch.split(self._plan.options.batch_rows) for batch in batches):
            first, last = int(batch.offsets[0]), int(batch.offsets[-1])
            yield from old.read(first - position)
            rows = last + 1 - first
            if rows == len(batch.offsets) and not batch.is_skipped.any():
                old.skip(rows)
                yield batch.columns
            else:
                yield _place_values(pa.Table.from_batches(old.read(rows), self._plan.schema), batch, first)
            position = last + 1
            if self._is_checkpoint_due():
                self._flush()
        yield from old.read(self._metadata.physical_rows - position)

    def _is_checkpoint_due(self) -> bool:
        rows, elapsed_s = sum(len(batch.row_ids) for batch in self._pending), time.monotonic() - self._saved_s
        is_large = sum(batch.columns.nbytes for batch in self._pending) >= MOST_PENDING
        return self._plan.options.is_checkpoint_due(rows, elapsed_s, is_large=is_large)

    def _flush(self) -> ComputedValues:
        """Write what was computed since the last checkpoint to a file of its own."""
        batches, self._pending = self._pending, []
        summary = _Summary()
        columns = [batch.columns for batch in summary.watch(batches, in_order=True)]
        values = self._write(columns, sum(map(len, columns)), summary, None)
        self._saved_s = time.monotonic()
        return values

    def _write(
        self, columns: Iterable[pa.RecordBatch], rows: int, summary: _Summary, base: str | None
    ) -> ComputedValues:
        """Write and record a file; it holds all rows of the fragment if `base` is given."""
        reader = pa.RecordBatchReader.from_batches(self._plan.schema, iter(columns))
        # As if it were a table of its own: appending these columns alone is refused where others are not nullable.
        layout = FileLayout(max_rows_per_file=max(rows, 1), data_storage_version=self._plan.storage_version)
        location = self._job.write_location()
        [piece] = write_uncommitted(self._table, location, reader, mode="overwrite", layout=layout)
        if (written := parse_new_fragments([piece])[0].physical_rows) != rows:
            raise InternalError(f"{self._table}: of {rows} values {written} were written")
        values = ComputedValues(
            self._id, self._inputs, self._at, piece, tuple(summary.ranges), base, summary.result, tuple(summary.errors)
        )
        self._job.progress().record(uuid4().hex, values.to_json())
        return values


class _Summary:
    """Collects of batches, while they are written, which rows lie where, their errors and their counts."""

    def __init__(self) -> None:
        self.ranges: list[tuple[int, int, int]] = []
        self.errors: list[tuple[int, str]] = []
        self.result = FillResult(0)

    def watch(self, batches: Iterable[_Batch], *, in_order: bool = False) -> Iterator[_Batch]:
        """Yield the batches; their rows lie at their offsets in the file, or one after the other if `in_order`."""
        position = 0
        for batch in batches:
            places = np.arange(position, position + len(batch.row_ids)) if in_order else batch.offsets
            position += len(batch.row_ids)
            self.ranges += _find_runs(batch.row_ids, places)
            self.errors += batch.errors[: MOST_ERRORS - len(self.errors)]
            counts = Counter(batch.states.to_pylist() if batch.errors else {FILLED: len(batch.row_ids)})
            self.result += FillResult(0, counts[FILLED], counts[FAILED], counts[SKIPPED], batch.seconds)
            yield batch


def _find_runs(row_ids: Any, places: Any) -> Iterator[tuple[int, int, int]]:
    """Yield runs in which both grow by one: their first row id and place, and their length."""
    breaks = np.flatnonzero((np.diff(row_ids.astype(np.int64)) != 1) | (np.diff(places.astype(np.int64)) != 1)) + 1
    for first, last in pairwise([0, *breaks.tolist(), len(row_ids)]):
        yield int(row_ids[first]), int(places[first]), int(last - first)


def _place_values(old: pa.Table, batch: _Batch, first: int) -> pa.RecordBatch:
    """Return a range of rows with new values in their places; rows that are skipped keep their old value."""
    places, positions = np.arange(len(old)), batch.offsets - first
    places[positions] = np.arange(len(old), len(old) + len(positions))
    tables = pa.concat_tables([old, pa.Table.from_batches([batch.columns])]).combine_chunks()
    # First the companion: also a row that is skipped, and keeps its value, says from now on that it was.
    companion = tables.column(1).take(places)
    places[positions[batch.is_skipped]] = positions[batch.is_skipped]
    return pa.table([tables.column(0).take(places), companion], schema=old.schema).combine_chunks().to_batches()[0]


class _OldValues:
    """The values that a fragment has, read in order; nulls where it has none."""

    def __init__(self, fragment: lance.LanceFragment, plan: ColumnPlan, *, is_empty: bool) -> None:
        self._skipped = 0
        self._rest = pa.RecordBatch.from_pylist([], plan.schema)
        self._batches: Iterator[pa.RecordBatch]
        if is_empty:
            rows = min(plan.options.batch_rows, fragment.physical_rows)
            nulls = [pa.nulls(rows, plan.schema.field(0).type), make_empty_companions(rows)]
            self._batches = repeat(pa.RecordBatch.from_arrays(nulls, schema=plan.schema))
        else:
            self._batches = _read_old_values(fragment, plan)

    def skip(self, rows: int) -> None:
        """Pass over rows; they are read only if others follow that are needed."""
        self._skipped += rows

    def read(self, rows: int) -> Iterator[pa.RecordBatch]:
        """Yield the next rows, which may be many, a batch at a time."""
        if rows:
            skipped, self._skipped = self._skipped, 0
            for _ in self._take(skipped):
                pass
            yield from self._take(rows)

    def _take(self, rows: int) -> Iterator[pa.RecordBatch]:
        while rows:
            if not self._rest.num_rows:
                self._rest = next(self._batches)
            part = self._rest.slice(0, rows)
            self._rest = self._rest.slice(part.num_rows)
            rows -= part.num_rows
            yield part


def _read_old_values(fragment: lance.LanceFragment, plan: ColumnPlan) -> Iterator[pa.RecordBatch]:
    scanner = fragment.scanner(
        columns=[plan.name, plan.companion],
        batch_size=plan.options.batch_rows,
        with_row_id=True,  # Lance includes deleted rows only with their ids, which are null
        include_deleted_rows=True,
    )
    for batch in scanner.to_batches():
        # A companion that is null as a whole cannot be written to files of version 2.0.
        companion = _remove_null_structs(batch.column(plan.companion))
        yield pa.RecordBatch.from_arrays([batch.column(plan.name), companion], schema=plan.schema)


def make_empty_companions(rows: int) -> pa.StructArray:
    """Return the companions of rows that nobody has filled."""
    return pa.StructArray.from_arrays(
        [pa.nulls(rows, field.type) for field in COMPANION_TYPE], fields=list(COMPANION_TYPE)
    )


def _remove_null_structs(array: Any) -> pa.StructArray:
    if not array.null_count and isinstance(array, pa.StructArray):
        return array
    return pa.StructArray.from_arrays(array.flatten(), fields=list(COMPANION_TYPE))


class LostValuesError(InternalError):
    """The file of values that were computed before is gone."""

    def __init__(self, piece: NewFragment) -> None:
        super().__init__("values that were computed before are gone")
        self.piece = piece


class _ResumedValues:
    """Values that are in files already, by row id."""

    def __init__(
        self, table: TableRef, at: TableLocation, plan: ColumnPlan, usable: Sequence[ComputedValues], version: int
    ) -> None:
        self._table, self._at, self._plan, self._version = table, at, plan, version
        self._errors = {row_id: message for values in usable for row_id, message in values.errors}
        # Of several values of a row the newest comes first, and is found: older ones may be of other inputs.
        self._values = sorted(usable, key=lambda values: values.at, reverse=True)
        runs = [(*run, number) for number, values in enumerate(self._values) for run in values.ranges]
        empty = np.empty(0, np.uint64)
        self._row_ids = np.concatenate([empty, *(np.arange(r, r + n, dtype=np.uint64) for r, _, n, _ in runs)])
        self._places = np.concatenate([empty, *(np.arange(p, p + n, dtype=np.uint64) for _, p, n, _ in runs)])
        self._files = np.concatenate([empty, *(np.full(n, k, np.uint64) for _, _, n, k in runs)])
        self._versions = np.array([values.at for values in self._values], np.int64)
        order = np.argsort(self._row_ids, kind="stable")
        self._row_ids, self._places, self._files = (
            array[order] for array in (self._row_ids, self._places, self._files)
        )

    def __bool__(self) -> bool:
        return bool(len(self._row_ids))

    def contains(self, rows: pa.Table) -> Any:
        """Return for each row whether its value is known, and computed of inputs that are still the same."""
        row_ids = rows["_rowid"].to_numpy().astype(np.uint64)
        if not len(self._row_ids):
            return np.zeros(len(row_ids), bool)
        indices = self._find(row_ids)
        is_known = self._row_ids[indices] == row_ids
        if self._plan.stable:
            is_known &= (
                rows[UPDATED].to_numpy().astype(np.int64) <= self._versions[self._files[indices].astype(np.int64)]
            )
        return is_known

    def read(self, rows: pa.Table) -> _Batch:
        """Return the values of rows that are known."""
        row_ids, offsets = _row_ids_and_offsets(rows)
        indices = self._find(row_ids.astype(np.uint64))
        parts, order = [], []
        for number in np.unique(self._files[indices]):
            chosen = np.flatnonzero(self._files[indices] == number)
            places = self._places[indices[chosen]].astype(np.int64)
            by_place = np.argsort(places, kind="stable")
            parts.append(self._read_file(int(number), places[by_place]))
            order.append(chosen[by_place])
        columns = pa.concat_tables(parts).take(np.argsort(np.concatenate(order))).combine_chunks()
        batch = _Batch(row_ids, offsets, columns.to_batches()[0])
        failed = row_ids[pc.not_equal(batch.states, pa.scalar(FILLED)).to_numpy(zero_copy_only=False)]
        return replace(batch, errors=tuple((row_id, self._errors.get(row_id, UNKNOWN)) for row_id in failed.tolist()))

    def _find(self, row_ids: Any) -> Any:
        return np.minimum(np.searchsorted(self._row_ids, row_ids), len(self._row_ids) - 1)

    def _read_file(self, number: int, places: Any) -> pa.Table:
        [fragment] = parse_new_fragments([self._values[number].piece])
        path = f"{self._at.location.rstrip('/')}/data/{fragment.files[0].path}"
        try:
            file = LanceFileReader(path, dict(self._at.storage_options) or None)
            table = file.take_rows(places.tolist()).to_table()
        except (OSError, ValueError) as error:
            if find_lost_fragments([self._values[number].piece], self._at):
                raise LostValuesError(self._values[number].piece) from error
            raise InternalError(f"{self._table}: values that were computed before cannot be read: {error}") from error
        # Their inputs are those of this version still, as `contains` has seen.
        recorded_companion: Any = table.column(1).combine_chunks()
        parts = [
            recorded_companion.field("version"),
            recorded_companion.field("state"),
            pa.repeat(pa.scalar(self._version), len(table)),
        ]
        companion = pa.StructArray.from_arrays(parts, fields=list(COMPANION_TYPE))
        return pa.table([table.column(0), companion], schema=self._plan.schema)


def _row_ids_and_offsets(rows: pa.Table | pa.RecordBatch) -> tuple[Any, Any]:
    addresses = rows.column("_rowaddr").to_numpy().astype(np.int64)
    return rows.column("_rowid").to_numpy(), addresses & OFFSET


def _field_ids(fragment: FragmentMetadata) -> set[int]:
    return {number for file in fragment.files for number in file.fields}


def _digest_files(fragment: FragmentMetadata, ids: Iterable[int]) -> str:
    """Return a digest of the files that hold some fields: while they are the same, so are the values."""
    wanted = set(ids)
    return json_digest(
        [fragment.physical_rows, sorted(str(file.path) for file in fragment.files if wanted & set(file.fields))]
    )


# Committing


def _commit_values(
    table: TableRef, plan: ColumnPlan, new_values: Sequence[ComputedValues]
) -> tuple[int, list[ComputedValues]]:
    """Commit files of values; return the version, and those of them that fitted the table as it is now."""
    for attempt in range(ATTEMPTS):
        dataset = table.open()
        # Planned anew, which raises if somebody has dropped or redefined the column: no attempt could mend that.
        current = plan_column(table, dataset, plan.name, plan.function, plan.options, plan.start)
        if current.own_ids != plan.own_ids:
            raise ConcurrentModificationError(f"{table}: column {plan.name} was made anew meanwhile; fill it again")
        fragments = {fragment.fragment_id: fragment.metadata for fragment in dataset.get_fragments()}
        fitting_values = [values for values in new_values if _fits(fragments.get(values.fragment), plan, values)]
        if not fitting_values:
            return int(dataset.version), []
        operation = lance.LanceOperation.Update(
            removed_fragment_ids=[],
            updated_fragments=[
                attach_file(fragments[values.fragment], plan.own_ids, values.piece) for values in fitting_values
            ],
            new_fragments=[],
            # Without offsets of rows, so that the change does not count as one of theirs.
            fields_modified=sorted(plan.own_ids.values()),
        )
        try:
            notes = {FILLED_FROM: str(min(values.at for values in fitting_values)), MESSAGE: plan.message}
            return commit(table, locate_table(table), operation, dataset.version, notes), fitting_values
        except ConcurrentModificationError:
            # Lance itself commits over appends. What gets here has changed some of the same fragments: of the others,
            # the files still fit.
            if attempt == ATTEMPTS - 1:
                raise
    raise AssertionError("each attempt ends above")


def _fits(fragment: FragmentMetadata | None, plan: ColumnPlan, values: ComputedValues) -> bool:
    if fragment is None:
        return False
    inputs, base = (_digest_files(fragment, ids) for ids in (plan.input_ids, plan.base_ids))
    return (inputs, base) == (values.inputs, values.base)


def attach_file(fragment: FragmentMetadata, own_ids: Mapping[int, int], piece: NewFragment) -> FragmentMetadata:
    """Return a fragment whose columns are in the new file; a file with other columns too is kept for these.

    Args:
        fragment: the fragment.
        own_ids: see `find_own_ids`.
        piece: what was written.
    """
    [alone] = parse_new_fragments([piece])
    [file] = alone.files
    own = set(own_ids.values())
    # Files are never changed: where one holds other columns too, its part of these is marked as gone.
    old_files = [
        _replace_fields(old_file, [GONE if number in own else number for number in old_file.fields])
        for old_file in fragment.files
        if not own.issuperset(number for number in old_file.fields if number != GONE)
    ]
    return replace(fragment, files=[*old_files, _replace_fields(file, [own_ids[number] for number in file.fields])])


def _replace_fields(file: DataFile, fields: list[int]) -> DataFile:
    numbers = (file.file_major_version, file.file_minor_version, file.file_size_bytes, file.base_id)
    return DataFile(str(file.path), fields, file.column_indices, *numbers)


def _keep_errors(job: Job, plan: ColumnPlan, new_values: Sequence[ComputedValues]) -> None:
    version, errors = plan.function.version, [(values.at, error) for values in new_values for error in values.errors]
    if errors:
        rows = [(row_id, message, version, at) for at, (row_id, message) in errors[-MOST_ERRORS:]]
        error_records(job.write_location(), next(iter(plan.own_ids.values()))).record(uuid4().hex, rows)


def _prune_errors(table: TableRef, at: TableLocation, name: str, version: str) -> None:
    """Forget the errors of rows that have values by now, and of older ones all but the newest."""
    with table.dataset() as dataset:
        records = error_records(at, find_field_id(dataset, name))
        old_records = records.read_records()
        if not old_records:
            return
        failed = set(find_failed(dataset, name)["_rowid"].to_pylist())
    newest = {row_id: (row_id, *rest) for row_id, *rest in sort_errors(old_records, version) if row_id in failed}
    newest_errors = sorted(newest.values(), key=itemgetter(3))[-MOST_ERRORS:]
    if [[list(row) for row in newest_errors]] != list(old_records.values()):
        if newest_errors:  # before the others go: a crash in between leaves errors twice, which is no harm
            records.record(uuid4().hex, newest_errors)
        records.forget_all(old_records)


def _remove_checkpoints(job: Job) -> None:
    """Remove the records and checkpoints of a job that is done.

    Files with all rows of a fragment stay: a call that runs at the same time may have committed them, and
    `remove_orphans` finds those that nobody has.
    """
    progress = job.progress()
    recorded = _parse_values(progress.read_records().values())
    discard_fragments([values.piece for values in recorded if values.base is None], job.write_location())
    progress.clear()
