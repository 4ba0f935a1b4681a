"""Load files, images and Iceberg tables into Lance tables with Arrow in Spark tasks: no row goes to the JVM."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any, Protocol
from uuid import uuid4

import pyarrow as pa
from lance_namespace.errors import (
    ConcurrentModificationError,
    LanceNamespaceError,
    TableAlreadyExistsError,
    TableSchemaValidationError,
)
from pyspark.sql import SparkSession

from lancehouse.jobs import orphans
from lancehouse.jobs.job_progress import JobProgress
from lancehouse.jobs.sources import IngestSource, Unit, open_source
from lancehouse.jobs.sources.conform import conform
from lancehouse.lake import commits
from lancehouse.lake.commits import RUN, find_version_of_run
from lancehouse.lake.dataset import TableRef
from lancehouse.lake.fragments import (
    Piece,
    TableLocation,
    discard_pieces,
    find_lost_pieces,
    locate_table,
    parse_pieces,
    write_pieces,
)
from lancehouse.lake.manifests import read_transaction_uuid
from lancehouse.lake.scans import empty_dataset
from lancehouse.modes import parse_choice
from lancehouse.schema.walk import check_types, nullable_hint
from lancehouse.spark.address import TableAddress
from lancehouse.spark.errors import translate_task_errors
from lancehouse.spark.session import parallelism
from lancehouse.spark.table_writer import WriteOptions, declare_table, find_version_of_same_run
from lancehouse.spark.tasks import collect_results

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


def ingest(
    spark: SparkSession,
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
    if (existing_version := find_version_of_same_run(address.to_ref(), how)) is not None:
        return existing_version
    opened = open_source(source, format, columns, options, parallelism=parallelism(spark))
    paths = [source] if isinstance(source, str | Path) or not isinstance(source, Iterable) else source
    return run_ingest(spark, address, opened, list(map(str, paths)), mode, how).version


def run_ingest(
    spark: SparkSession,
    address: TableAddress,
    source: IngestSource,
    name: Sequence[str],
    mode: str,
    how: WriteOptions,
    transform: BatchTransform | None = None,
    target: pa.Schema | None = None,
) -> IngestResult:
    """Load rows of an opened source into a table, through a transformation if there is one.

    What tasks have written is recorded below the table's location: the same call after a failure resumes from there.
    Until it succeeds, a table that was missing stays declared, without data.

    Args:
        spark: the session.
        address: address of the table.
        source: the source.
        name: identifies the source when the call is repeated.
        mode: one of `MODES`.
        how: how rows are written.
        transform: transformation of the rows.
        target: columns of a new table, or of one that is overwritten; by default those of the rows.

    Raises:
        TableSchemaValidationError: the columns do not fit the table.
        ConcurrentModificationError: in mode `overwrite`, another writer changed the table meanwhile.
    """
    table = address.to_ref()
    if (existing_version := find_version_of_same_run(table, how)) is not None:
        return IngestResult(existing_version, None)
    dataset = table.open() if table.exists() else None
    if dataset is not None and mode == "create":
        raise TableAlreadyExistsError(f"{address} exists; append to it, overwrite it, or drop it first")
    adds = dataset is not None and mode == "append"
    if not adds or transform is not None:
        source.require_types()
    incoming = source.schema if transform is None else transform.schema
    schema = dataset.schema if dataset is not None and adds else target or source.table_schema(incoming, how.nullable)
    if unknown := [name for name in incoming.names if name not in schema.names]:
        raise TableSchemaValidationError(f"{address} has no column {', '.join(unknown)}; leave it out with columns=")
    if absent := [field.name for field in schema if not field.nullable and field.name not in incoming.names]:
        raise TableSchemaValidationError(
            f"{address}: {', '.join(absent)} must not be null, and the source has none; {nullable_hint(absent[0])}"
        )
    if not adds:
        check_types(schema)
        empty_dataset(schema, how.layout.data_storage_version)
    if dataset is None:
        declare_table(table)
    at = locate_table(table)
    columns = str(dataset.lance_schema if dataset is not None and adds else schema)
    family = f"ingest-{_digest(mode, *name)}-"
    key = _digest(columns, str(incoming), source.key, *([transform.key] if transform is not None else []))
    progress = JobProgress(at.location, at.storage_options, f"{family}{key}")
    units = _digest(*(unit.key for unit in source.units))
    recorded = progress.read_records()
    if not recorded and progress.list_other_jobs(family):
        logger.warning(
            "%s: the ingest starts over, and takes over nothing of an earlier one of the same source that did not "
            "finish: its columns, options, steps or functions were others, or cannot be compared",
            address,
        )
    started = recorded.pop(RUN, {})
    if (
        started and (existing_version := find_version_of_run(table, started["run"])) is not None
    ):  # the earlier call died after its commit, before it could remove its records
        progress.clear()
        if started["units"] == units and how.run in (None, started["run"]):
            return IngestResult(existing_version, None)
        started, recorded = {}, {}
    run = how.run or started.get("run") or uuid4().hex
    # Recorded before any task writes, and stored in the version too: a later call of the same ingest can tell by this
    # id whether this one has committed before it died.
    progress.record(RUN, {"run": run, "units": units})
    done = _drop_lost({key: _UnitResult(**each) for key, each in recorded.items()}, at)
    work = _IngestTask(address, source.schema, transform, schema, progress.job, "append" if adds else "overwrite", how)
    unit_results = _write_units(spark, source.units, work, done)
    pieces = [piece for each in unit_results for piece in each.pieces]
    at, properties = locate_table(table), {RUN: run}
    if dataset is not None:
        commits.require_same_table(table, dataset.version, read_transaction_uuid(dataset))
    # `remove_orphans` may have removed files that an earlier call had recorded, while this one was at work. A version
    # that references them must not be committed.
    if _drop_lost(done, at) != done:
        raise ConcurrentModificationError(f"{address}: somebody removed files of this ingest meanwhile; run it again")
    try:
        if dataset is None:
            version = commits.create(table, at, schema, pieces, properties)
        elif adds:
            version = commits.append(table, at, pieces, dataset.version, properties)
        else:
            version = commits.overwrite(table, at, schema, pieces, dataset.version, properties)
    except commits.RunAlreadyCommittedError as error:
        _remove_written(table, at, progress, pieces)
        return IngestResult(error.version, None)
    except LanceNamespaceError as error:
        # After any other error the commit may have been made: its files and records must stay.
        if commits.is_refusal(error):
            _remove_written(table, at, progress, pieces)
        raise
    current = {unit.key for unit in source.units}
    discard_pieces([piece for key, each in done.items() if key not in current for piece in each.pieces], at)
    progress.clear()
    return IngestResult(version, sum(each.rows for each in unit_results))


def _remove_written(table: TableRef, at: TableLocation, progress: JobProgress, pieces: Sequence[Piece]) -> None:
    """Remove files that were not committed, except those that the same ingest has committed in a concurrent call."""
    progress.clear()
    if table.exists():
        owners = {orphans.owner(f"data/{file.path}") for each in parse_pieces(pieces) for file in each.files}
        orphans.discard(table, owners, since=1)
    else:
        discard_pieces(pieces, at)


def _digest(*texts: str) -> str:
    return sha256("\n".join(texts).encode(errors="surrogatepass")).hexdigest()[:32]


@dataclass(frozen=True, slots=True)
class _UnitResult:
    """The result of a unit; converted to JSON."""

    rows: int
    """Number of rows that were read."""
    pieces: list[Piece]


def _drop_lost(done: Mapping[str, _UnitResult], at: TableLocation) -> dict[str, _UnitResult]:
    """Return the recorded results whose files still exist."""
    lost_pieces = find_lost_pieces([piece for each in done.values() for piece in each.pieces], at)
    return {key: each for key, each in done.items() if lost_pieces.isdisjoint(each.pieces)}


@dataclass(frozen=True, slots=True)
class _IngestTask:
    """What a task does with a unit."""

    address: TableAddress
    source: pa.Schema
    transform: BatchTransform | None
    target: pa.Schema
    job: str
    mode: str
    how: WriteOptions
    call: str = field(default_factory=lambda: uuid4().hex)
    """Distinguishes calls of the same job in the cache of locations."""

    def __call__(self, unit: Unit) -> list[str]:
        """Write the rows of a unit, and record what was written."""
        table, at = self.address.to_ref(), self.address.write_location(self.call)
        counter = _RowCounter()
        if self.transform is None:
            source_schema = pa.schema([field for field in self.target if field.name in self.source.names])
            read = counter.count(unit.batches(source_schema))
            batches = (conform(batch, self.target, (), "the rows") for batch in read)
        else:
            transformed = self.transform.batches(counter.count(unit.batches(self.source)))
            batches = (conform(batch, self.target, (), "the rows after the steps") for batch in transformed)
        rows = pa.RecordBatchReader.from_batches(self.target, batches)
        pieces = write_pieces(table, at, rows, mode=self.mode, layout=self.how.layout)
        done = {"rows": counter.rows, "pieces": pieces}
        JobProgress(at.location, at.storage_options, self.job).record(unit.key, done)
        return [json.dumps(done)]


class _RowCounter:
    """Counts the rows that pass through."""

    rows = 0

    def count(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            self.rows += batch.num_rows
            yield batch


def _write_units(
    spark: SparkSession, units: Sequence[Unit], work: _IngestTask, done: Mapping[str, _UnitResult]
) -> list[_UnitResult]:
    """Write the units that are not written yet; return the results of all units."""
    finished = [done[unit.key] for unit in units if unit.key in done]
    with translate_task_errors():
        new = collect_results(spark, [unit for unit in units if unit.key not in done], work)
    return [*finished, *(_UnitResult(**json.loads(text)) for text in new)]
