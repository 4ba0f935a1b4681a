"""Files, images and Iceberg tables on their way into Lance, in Arrow alone: no row goes to the JVM."""

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

from lancehouse.lake import commits, orphans
from lancehouse.lake.commits import RUN, version_of_run
from lancehouse.lake.dataset import TableRef
from lancehouse.lake.fragments import Piece, Place, discard, lost, metadata, place, write
from lancehouse.lake.manifests import made_by
from lancehouse.lake.progress import Progress
from lancehouse.lake.scans import like
from lancehouse.modes import one_of
from lancehouse.schema.walk import nullable_hint, require_types
from lancehouse.spark.address import Address
from lancehouse.spark.errors import translated
from lancehouse.spark.session import parallelism
from lancehouse.spark.sources import Source, Unit, open_source
from lancehouse.spark.sources.conforming import conformed
from lancehouse.spark.tasks import results
from lancehouse.spark.writing import Write, declare, made_before

logger = logging.getLogger(__name__)

MODES = ("create", "append", "overwrite")


class Transform(Protocol):
    """What becomes of rows between the source and the table; it goes to executors."""

    @property
    def key(self) -> str:
        """The same for what makes the same of the same rows."""

    @property
    def schema(self) -> pa.Schema:
        """Of what comes out."""

    def batches(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """What becomes of batches."""


@dataclass(frozen=True, slots=True)
class Brought:
    """What an ingest did."""

    version: int
    rows: int | None
    """That were read; None if all was done before."""


def ingest(
    spark: SparkSession,
    address: Address,
    source: Any,
    *,
    format: str | None,
    mode: str,
    columns: Sequence[str] | None,
    options: Mapping[str, Any],
    how: Write,
) -> int:
    """Bring rows into a table; the version that this made. A missing table is created.

    Raises:
        InvalidInputError: a file cannot be read.
        TableSchemaValidationError: its columns do not fit the table.
        ConcurrentModificationError: in mode `overwrite`, somebody changed the table meanwhile.
    """
    mode = one_of("mode", mode, *MODES)
    if (made := made_before(address.ref(), how)) is not None:
        return made
    found = open_source(source, format, columns, options, parallelism=parallelism(spark))
    named = [source] if isinstance(source, str | Path) or not isinstance(source, Iterable) else source
    return bring(spark, address, found, list(map(str, named)), mode, how).version


def bring(
    spark: SparkSession,
    address: Address,
    found: Source,
    name: Sequence[str],
    mode: str,
    how: Write,
    transform: Transform | None = None,
    target: pa.Schema | None = None,
) -> Brought:
    """Bring rows of a source that is open into a table, through a transformation if there is one.

    What tasks have written is noted in the table's own storage: the same call after a failure goes on from there. Until
    it succeeds, a table that was missing stays declared, without data.

    Args:
        spark: the session.
        address: of the table.
        found: the source.
        name: what it is known by when it comes again.
        mode: one of `MODES`.
        how: how rows are written.
        transform: what becomes of the rows.
        target: columns of a new table, or of one that is written over; by default those of the rows.

    Raises:
        TableSchemaValidationError: the columns do not fit the table.
        ConcurrentModificationError: in mode `overwrite`, somebody changed the table meanwhile.
    """
    table = address.ref()
    if (made := made_before(table, how)) is not None:
        return Brought(made, None)
    dataset = table.open() if table.exists() else None
    if dataset is not None and mode == "create":
        raise TableAlreadyExistsError(f"{address} exists; append to it, overwrite it, or drop it first")
    adds = dataset is not None and mode == "append"
    if not adds or transform is not None:
        found.require_types()
    given = found.schema if transform is None else transform.schema
    schema = dataset.schema if dataset is not None and adds else target or found.table_schema(given, how.nullable)
    if unknown := [name for name in given.names if name not in schema.names]:
        raise TableSchemaValidationError(f"{address} has no column {', '.join(unknown)}; leave it out with columns=")
    if absent := [field.name for field in schema if not field.nullable and field.name not in given.names]:
        raise TableSchemaValidationError(
            f"{address}: {', '.join(absent)} must not be null, and the source has none; {nullable_hint(absent[0])}"
        )
    if not adds:
        require_types(schema)
        like(schema, how.layout.data_storage_version)
    if dataset is None:
        declare(table)
    at = place(table)
    columns = str(dataset.lance_schema if dataset is not None and adds else schema)
    family = f"ingest-{_digest(mode, *name)}-"
    key = _digest(columns, str(given), found.key, *([transform.key] if transform is not None else []))
    progress = Progress(at.location, at.storage_options, f"{family}{key}")
    units = _digest(*(unit.key for unit in found.units))
    recorded = progress.done()
    if not recorded and progress.others(family):
        logger.warning(
            "%s: the ingest starts over, and takes over nothing of an earlier one of the same source that did not "
            "finish: its columns, options, steps or functions were others, or cannot be compared",
            address,
        )
    begun = recorded.pop(RUN, {})
    if begun and (made := version_of_run(table, begun["run"])) is not None:  # it died after its commit
        progress.clear()
        if begun["units"] == units and how.run in (None, begun["run"]):
            return Brought(made, None)
        begun, recorded = {}, {}
    run = how.run or begun.get("run") or uuid4().hex
    progress.put(RUN, {"run": run, "units": units})
    done = _still_there({key: _Done(**each) for key, each in recorded.items()}, at)
    work = _Work(address, found.schema, transform, schema, progress.job, "append" if adds else "overwrite", how)
    all_done = _written(spark, found.units, work, done)
    written = [piece for each in all_done for piece in each.pieces]
    at, properties = place(table), {RUN: run}
    if dataset is not None:
        commits.require_same(table, dataset.version, made_by(dataset))
    if _still_there(done, at) != done:
        raise ConcurrentModificationError(f"{address}: somebody removed files of this ingest meanwhile; run it again")
    try:
        if dataset is None:
            version = commits.create(table, at, schema, written, properties)
        elif adds:
            version = commits.append(table, at, written, dataset.version, properties)
        else:
            version = commits.overwrite(table, at, schema, written, dataset.version, properties)
    except commits.RunMadeError as error:
        _take_back(table, at, progress, written)
        return Brought(error.version, None)
    except LanceNamespaceError as error:
        if commits.is_refusal(error):
            _take_back(table, at, progress, written)
        raise
    current = {unit.key for unit in found.units}
    discard([piece for key, each in done.items() if key not in current for piece in each.pieces], at)
    progress.clear()
    return Brought(version, sum(each.rows for each in all_done))


def _take_back(table: TableRef, at: Place, progress: Progress, written: Sequence[Piece]) -> None:
    """Remove what was written for nothing, but for what the same ingest has committed elsewhere at the same time."""
    progress.clear()
    if table.exists():
        owners = {orphans.owner(f"data/{file.path}") for each in metadata(written) for file in each.files}
        orphans.discard(table, owners, since=1)
    else:
        discard(written, at)


def _digest(*texts: str) -> str:
    return sha256("\n".join(texts).encode(errors="surrogatepass")).hexdigest()[:32]


@dataclass(frozen=True, slots=True)
class _Done:
    """What became of a unit; it goes through JSON."""

    rows: int
    """That were read."""
    pieces: list[Piece]


def _still_there(done: Mapping[str, _Done], at: Place) -> dict[str, _Done]:
    """What was done before, without what was cleaned away since."""
    gone = lost([piece for each in done.values() for piece in each.pieces], at)
    return {key: each for key, each in done.items() if gone.isdisjoint(each.pieces)}


@dataclass(frozen=True, slots=True)
class _Work:
    """What a task does with a unit."""

    address: Address
    source: pa.Schema
    transform: Transform | None
    target: pa.Schema
    job: str
    mode: str
    how: Write
    call: str = field(default_factory=lambda: uuid4().hex)
    """Tells calls of the same job apart."""

    def __call__(self, unit: Unit) -> list[str]:
        """Write the rows of a unit, and note what was written."""
        table, at = self.address.ref(), self.address.place(self.call)
        counted = _Counted()
        if self.transform is None:
            chosen = pa.schema([field for field in self.target if field.name in self.source.names])
            read = counted.of(unit.batches(chosen))
            batches = (conformed(batch, self.target, (), "the rows") for batch in read)
        else:
            made = self.transform.batches(counted.of(unit.batches(self.source)))
            batches = (conformed(batch, self.target, (), "the rows after the steps") for batch in made)
        rows = pa.RecordBatchReader.from_batches(self.target, batches)
        pieces = write(table, at, rows, mode=self.mode, layout=self.how.layout)
        done = {"rows": counted.rows, "pieces": pieces}
        Progress(at.location, at.storage_options, self.job).put(unit.key, done)
        return [json.dumps(done)]


class _Counted:
    """Counts the rows that pass."""

    rows = 0

    def of(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            self.rows += batch.num_rows
            yield batch


def _written(spark: SparkSession, units: Sequence[Unit], work: _Work, done: Mapping[str, _Done]) -> list[_Done]:
    """Write what is not written yet; all that is."""
    known = [done[unit.key] for unit in units if unit.key in done]
    with translated():
        new = results(spark, [unit for unit in units if unit.key not in done], work)
    return [*known, *(_Done(**json.loads(text)) for text in new)]
