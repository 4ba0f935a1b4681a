"""Load files, images and Iceberg tables into a Lance table: list the source, plan, write units, commit.

What each unit has written is recorded below the table's location: the same call after a failure resumes from there.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path
from typing import Any, Protocol
from uuid import uuid4

import lance
import pyarrow as pa
from lance_namespace.errors import (
    ConcurrentModificationError,
    InvalidInputError,
    LanceNamespaceError,
    TableAlreadyExistsError,
    TableNotFoundError,
    TableSchemaValidationError,
)

from lancehouse.identifiers import format_levels
from lancehouse.jobs import orphans
from lancehouse.jobs.address import TableAddress
from lancehouse.jobs.blob_references import ReferencedBlobs
from lancehouse.jobs.engine import Engine
from lancehouse.jobs.job import Job, WriteOptions, declare_table, find_version_of_same_run, retry_changed_columns
from lancehouse.jobs.lineage_events import DatasetName, Inputs, observe_run
from lancehouse.jobs.sources.ingest_source import ICEBERG, IngestSource, Unit, open_source
from lancehouse.jobs.sources.schemas import conform
from lancehouse.jobs.table_changes import evolve_columns
from lancehouse.lake import commits
from lancehouse.lake.commits import (
    RUN,
    NewFragment,
    TableLocation,
    discard_fragments,
    find_lost_fragments,
    find_version_of_run,
    locate_table,
    parse_new_fragments,
    write_uncommitted,
)
from lancehouse.lake.dataset import empty_dataset
from lancehouse.lake.job_records import JobProgress
from lancehouse.lake.manifests import read_transaction_uuid
from lancehouse.modes import parse_choice
from lancehouse.schema.blob_references import find_references, with_blobs, with_bytes
from lancehouse.schema.walk import check_types, nullable_hint

logger = logging.getLogger(__name__)

MODES = ("create", "append", "overwrite")


class BatchTransform(Protocol):
    """Transforms rows between the source and the table; sent to executors."""

    @property
    def key(self) -> str:
        """Text that is equal for transformations with the same result."""

    @property
    def schema(self) -> pa.Schema:
        """Schema of the transformed rows."""

    def batches(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the transformed batches."""


@dataclass(frozen=True, slots=True)
class IngestResult:
    """Version and number of rows of an ingest."""

    version: int
    rows: int | None
    """Number of rows that were read; None if the version was made by an earlier call."""


@dataclass(frozen=True, slots=True)
class UnitResult:
    """What was written of a unit; converted to JSON."""

    rows: int
    """Number of rows that were read."""
    pieces: list[NewFragment]


def ingest(
    engine: Engine,
    address: TableAddress,
    source: Any,
    *,
    format: str | None,
    mode: str,
    columns: Sequence[str] | None,
    options: Mapping[str, Any],
    how: WriteOptions,
) -> int:
    """Load rows of a source into a table; return the version that this made. A missing table is created.

    Raises:
        InvalidInputError: a file cannot be read.
        TableSchemaValidationError: the columns do not fit the table.
        ConcurrentModificationError: in mode `overwrite`, another writer changed the table meanwhile.
    """
    mode = parse_choice("mode", mode, *MODES)
    if how.evolves and mode != "append":
        raise InvalidInputError(f"schema_mode: columns evolve in mode append, not in mode {mode}")
    if (existing_version := find_version_of_same_run(address.to_ref(), how)) is not None:
        return existing_version
    if not isinstance(source, str | Path) and isinstance(source, Iterable):
        source = list(source)  # a generator can be read only once, and its paths are needed again below
    opened = open_source(source, format, columns, options, parallelism=engine.parallelism)
    paths = source if isinstance(source, list) else [source]
    inputs = [_name_input(path, format) for path in paths]
    return run_ingest(engine, address, opened, list(map(str, paths)), mode, how, inputs=inputs).version


def _name_input(source: object, format: str | None) -> str | DatasetName:
    """Return a source as events of lineage name it."""
    if isinstance(source, str | Path) and format != ICEBERG:
        return str(source)
    return ICEBERG, source if isinstance(source, str) else type(source).__name__


def run_ingest(
    engine: Engine,
    address: TableAddress,
    source: IngestSource,
    name: Sequence[str],
    mode: str,
    how: WriteOptions,
    transform: BatchTransform | None = None,
    target: pa.Schema | None = None,
    *,
    inputs: Inputs = (),
) -> IngestResult:
    """Load rows of an opened source into a table, through a transformation if there is one.

    Until it succeeds, a table that was missing stays declared, without data.

    Args:
        engine: runs the units.
        address: address of the table.
        source: the source.
        name: identifies the source when the call is repeated.
        mode: one of `MODES`.
        how: how rows are written.
        transform: transformation of the rows.
        target: columns of a new table, or of one that is overwritten; by default those of the rows.
        inputs: the source, as events of lineage name it.

    Raises:
        TableSchemaValidationError: the columns do not fit the table.
        ConcurrentModificationError: in mode `overwrite`, another writer changed the table meanwhile.
    """
    with observe_run("ingest", f"ingest {format_levels(address.id) or address.path}", inputs, address) as summary:
        if (existing_version := find_version_of_same_run(address.to_ref(), how)) is not None:
            return IngestResult(existing_version, None)
        request = IngestRequest.of(address, source, name, mode, transform)
        earlier = _list_earlier(request)
        if (existing_version := _find_committed(request, earlier, how.run)) is not None:
            return IngestResult(existing_version, None)

        def attempt() -> IngestResult:
            plan = plan_ingest(request, source, mode, how, transform, target, is_first=not earlier)
            return commit_units(plan, write_units(engine, plan))

        result = retry_changed_columns(how, attempt)
        summary.rows = result.rows
        return result


@dataclass(frozen=True, slots=True)
class IngestRequest:
    """What identifies an ingest when the same call is repeated, whatever columns the table has by then."""

    family: Job
    """Stands for all jobs that load the same source in the same mode: their ids begin with its id."""
    rows: str
    """Digest of the columns, options and steps."""
    units: str
    """Digest of the units."""

    @classmethod
    def of(
        cls,
        address: TableAddress,
        source: IngestSource,
        name: Sequence[str],
        mode: str,
        transform: BatchTransform | None,
    ) -> IngestRequest:
        """Return what identifies the arguments of `run_ingest`."""
        incoming = source.schema if transform is None else transform.schema
        rows = _digest(str(incoming), source.key, *([transform.key] if transform is not None else []))
        family = Job(address, f"ingest-{_digest(mode, *name)}-")
        return cls(family, rows, _digest(*(unit.key for unit in source.units)))

    def record(self, run: str) -> dict[str, str]:
        """Return the record of a run, by which a later call can tell whether this one has committed before it died."""
        return {"run": run, "rows": self.rows, "units": self.units}


@dataclass(frozen=True, slots=True)
class IngestPlan:
    """The units of an ingest, those that an earlier call has written, and what to do with each."""

    job: Job
    units: list[Unit]
    done: dict[str, UnitResult]
    """Results of units that an earlier call of the same job has written, by the unit's key."""
    task: IngestTask
    dataset: lance.LanceDataset | None
    """The table as it was; None if it had no version."""
    run: str


@dataclass(frozen=True, slots=True)
class IngestTask:
    """Reads and writes one unit; sent to other processes."""

    job: Job
    source: pa.Schema
    transform: BatchTransform | None
    target: pa.Schema
    mode: str
    how: WriteOptions

    def __call__(self, unit: Unit) -> list[str]:
        """Write the rows of a unit, and record what was written."""
        table, at = self.job.to_ref(), self.job.write_location()
        counter = _RowCounter()
        incoming = self.source if self.transform is None else self.transform.schema
        references = {incoming.names[first] for first, *_ in find_references(incoming, self.target)}
        if self.transform is None:
            # Columns of references are read as they are; `_read_blobs` puts the blobs in their place.
            columns = [field for field in self.target if field.name in self.source.names]
            source_schema = pa.schema(
                [self.source.field(column.name) if column.name in references else column for column in columns]
            )
            read, label = counter.count(unit.batches(source_schema)), "the rows"
        else:
            read = self.transform.batches(counter.count(unit.batches(self.source)))
            label = "the rows after the steps"
        if references:
            read = self._read_blobs(read)
        batches = (conform(batch, self.target, (), label) for batch in read)
        rows = pa.RecordBatchReader.from_batches(self.target, batches)
        pieces = write_uncommitted(table, at, rows, mode=self.mode, layout=self.how.layout)
        record = {"rows": counter.rows, "pieces": pieces}
        self.job.record_or_discard(unit.key, record, pieces)
        return [json.dumps(record)]

    def _read_blobs(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        blobs = ReferencedBlobs(self.job.address.connection, job=self.job.id)
        for batch in batches:
            yield from blobs.fill(iter([batch]), find_references(batch.schema, self.target))


def _list_earlier(request: IngestRequest) -> list[JobProgress]:
    """Return the records of earlier calls that load the same source and did not finish."""
    try:
        return request.family.progress().list_other_jobs(request.family.id)
    except TableNotFoundError:  # not even declared, so that nothing can have been recorded
        return []


def _find_committed(request: IngestRequest, earlier: Sequence[JobProgress], run: str | None) -> int | None:
    """Return the version that an earlier call has committed before it died, and remove its records; None if none has.

    All jobs of the source are searched: the one that created the table has another id, as the table had no columns.

    Args:
        request: this call.
        earlier: records of earlier calls.
        run: name of this call's run, if it has one: another run loads the same again.
    """
    table, version = request.family.address.to_ref(), None
    for job in earlier:
        started = job.read_records().get(RUN)
        if started is None or (committed := find_version_of_run(table, started["run"])) is None:
            continue
        job.clear(last=RUN)
        if started == request.record(run or started["run"]):
            version = committed
    return version


def plan_ingest(
    request: IngestRequest,
    source: IngestSource,
    mode: str,
    how: WriteOptions,
    transform: BatchTransform | None = None,
    target: pa.Schema | None = None,
    *,
    is_first: bool,
) -> IngestPlan:
    """Check that the rows fit, declare a missing table, and find what an earlier call has written. See `run_ingest`.

    `is_first` says that there are no records of earlier calls, so that the store is not asked again.
    """
    address = request.family.address
    table = address.to_ref()
    dataset = table.find()
    if dataset is not None and mode == "create":
        raise TableAlreadyExistsError(f"{address} exists; append to it, overwrite it, or drop it first")
    adds = dataset is not None and mode == "append"
    if not adds or transform is not None:
        source.require_types()
    incoming = source.schema if transform is None else transform.schema
    if (how.evolves and adds) and evolve_columns(
        address,
        lambda before: target or with_blobs(incoming, before),
        lambda columns: _require_types_fit(address, incoming, columns),
    ):
        dataset = table.open()
    schema = (
        dataset.schema
        if dataset is not None and adds
        else target or with_blobs(source.table_schema(incoming, how.nullable))
    )
    _require_fit(address, incoming, schema)
    if not adds:
        check_types(schema)
        empty_dataset(schema, how.layout.data_storage_version)
    if dataset is None:
        declare_table(table)
    # Rows that were written for other columns, or other field ids, cannot be committed: these make another job.
    columns = str(dataset.lance_schema if dataset is not None and adds else schema)
    job = replace(request.family, id=f"{request.family.id}{_digest(columns, request.rows)}")
    task = IngestTask(job, source.schema, transform, schema, "append" if adds else "overwrite", how)
    recorded = {} if is_first else _read_recorded(job, request)
    return _resume(job, request, recorded, source.units, task, dataset)


def _require_fit(address: TableAddress, incoming: pa.Schema, schema: pa.Schema) -> None:
    if unknown := [name for name in incoming.names if name not in schema.names]:
        raise TableSchemaValidationError(f"{address} has no column {', '.join(unknown)}; leave it out with columns=")
    if absent := [field.name for field in schema if not field.nullable and field.name not in incoming.names]:
        raise TableSchemaValidationError(
            f"{address}: {', '.join(absent)} must not be null, and the source has none; {nullable_hint(absent[0])}"
        )


def _require_types_fit(address: TableAddress, incoming: pa.Schema, schema: pa.Schema) -> None:
    _require_fit(address, incoming, schema)
    conform(pa.RecordBatch.from_pylist([], with_bytes(incoming, schema)), schema, (), "the source")


def _read_recorded(job: Job, request: IngestRequest) -> dict[str, Any]:
    """Read what an earlier call of the same job has recorded; log if only others did that cannot be resumed."""
    progress = job.progress()
    recorded = progress.read_records()
    if not recorded and progress.list_other_jobs(request.family.id):
        logger.warning(
            "%s: the ingest starts over, and takes over nothing of an earlier one of the same source that did not "
            "finish: its columns, options, steps or functions were others, or cannot be compared",
            job.address,
        )
    return recorded


def _resume(
    job: Job,
    request: IngestRequest,
    recorded: dict[str, Any],
    units: list[Unit],
    task: IngestTask,
    dataset: lance.LanceDataset | None,
) -> IngestPlan:
    """Take over what an earlier call of the same job has written, and record that this one begins."""
    started = recorded.pop(RUN, {})
    run = task.how.run or started.get("run") or uuid4().hex
    # Recorded before any unit is written, and stored in the version too, see `_find_committed`.
    job.progress().record(RUN, request.record(run))
    results = _drop_lost({key: UnitResult(**value) for key, value in recorded.items()}, job.write_location())
    return IngestPlan(job, units, results, task, dataset, run)


def write_units(engine: Engine, plan: IngestPlan) -> list[UnitResult]:
    """Write the units that are not written yet; return the results of all units."""
    finished = [plan.done[unit.key] for unit in plan.units if unit.key in plan.done]
    new = engine.run([unit for unit in plan.units if unit.key not in plan.done], plan.task)
    return [*finished, *(UnitResult(**json.loads(text)) for text in new)]


def commit_units(plan: IngestPlan, results: Sequence[UnitResult]) -> IngestResult:
    """Commit what was written of all units as one version. If the commit is refused, its files are removed."""
    table, dataset, schema = plan.job.address.to_ref(), plan.dataset, plan.task.target
    pieces = [piece for result in results for piece in result.pieces]
    at, properties = locate_table(table), {RUN: plan.run}
    if dataset is not None:
        commits.require_same_table(table, dataset.version, read_transaction_uuid(dataset))
    # `remove_orphans` may have removed files that an earlier call had recorded, while this one was at work. A version
    # that references them must not be committed.
    if _drop_lost(plan.done, at) != plan.done:
        raise ConcurrentModificationError(
            f"{plan.job.address}: somebody removed files of this ingest meanwhile; run it again"
        )
    try:
        if dataset is None:
            version = commits.create(table, at, schema, pieces, properties)
        elif plan.task.mode == "append":
            version = commits.append(table, at, pieces, dataset.version, properties)
        else:
            version = commits.overwrite(table, at, schema, pieces, dataset.version, properties)
    except commits.RunAlreadyCommittedError as error:
        _remove_written(plan.job, at, pieces)
        return IngestResult(error.version, None)
    except LanceNamespaceError as error:
        # After any other error the commit may have been made: its files and records must stay.
        if commits.is_refusal(error):
            _remove_written(plan.job, at, pieces)
        raise
    try:
        _remove_records(plan, at)
    except LanceNamespaceError as error:
        # Not a success: as long as the records are there, the same call later would load nothing.
        raise type(error)(
            f"{plan.job.address}: version {version} is made, but the records of the ingest could not be removed; run "
            f"it again, which loads nothing twice: {error}"
        ) from error
    return IngestResult(version, sum(result.rows for result in results))


def _remove_records(plan: IngestPlan, at: TableLocation) -> None:
    """Remove the records of an ingest that is committed, and files of earlier calls that it does not need."""
    current = {unit.key for unit in plan.units}
    discard_fragments([piece for key, result in plan.done.items() if key not in current for piece in result.pieces], at)
    # The record of the run goes last: without it, the next call would take what is committed for files of a call that
    # died before its commit, and commit them again.
    plan.job.progress().clear(last=RUN)


def _remove_written(job: Job, at: TableLocation, pieces: Sequence[NewFragment]) -> None:
    """Remove files that were not committed, except those that the same ingest has committed in a concurrent call."""
    table = job.address.to_ref()
    job.progress().clear(last=RUN)
    if table.exists():
        owners = {
            orphans.owner(f"data/{file.path}") for fragment in parse_new_fragments(pieces) for file in fragment.files
        }
        orphans.discard(table, owners, since=1)
    else:
        discard_fragments(pieces, at)


def _drop_lost(results: Mapping[str, UnitResult], at: TableLocation) -> dict[str, UnitResult]:
    """Return the recorded results whose files still exist."""
    lost_pieces = find_lost_fragments([piece for result in results.values() for piece in result.pieces], at)
    return {key: result for key, result in results.items() if lost_pieces.isdisjoint(result.pieces)}


def _digest(*texts: str) -> str:
    return sha256("\n".join(texts).encode(errors="surrogatepass")).hexdigest()[:32]


class _RowCounter:
    """Counts the rows that pass through."""

    rows = 0

    def count(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            self.rows += batch.num_rows
            yield batch
