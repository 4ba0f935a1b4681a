"""Files, images and Iceberg tables on their way into Lance, in Arrow alone: no row goes to the JVM."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any
from uuid import uuid4

import pyarrow as pa
from lance_namespace.errors import LanceNamespaceError, TableAlreadyExistsError, TableSchemaValidationError
from pyspark.sql import SparkSession

from lancehouse.lake import commits
from lancehouse.lake.commits import RUN, version_of_run
from lancehouse.lake.fragments import Piece, discard, place, write
from lancehouse.lake.progress import Progress
from lancehouse.modes import one_of
from lancehouse.spark.address import Address
from lancehouse.spark.errors import translated
from lancehouse.spark.session import parallelism
from lancehouse.spark.sources import Unit, open_source
from lancehouse.spark.tasks import results
from lancehouse.spark.writing import Write, declare, made_before

MODES = ("create", "append", "overwrite")


def ingest(
    spark: SparkSession,
    address: Address,
    source: Any,
    *,
    format: str | None,
    mode: str,
    columns: Sequence[str] | None,
    options: Mapping[str, str],
    how: Write,
) -> int:
    """Bring rows into a table; the version that this made. A missing table is created.

    What tasks have written is noted in the table's own storage: the same call after a failure goes on from there. Until
    it succeeds, a table that was missing stays declared, without data.

    Raises:
        InvalidInputError: a file cannot be read.
        TableSchemaValidationError: its columns do not fit the table.
        ConcurrentModificationError: in mode `overwrite`, somebody changed the table meanwhile.
    """
    mode = one_of("mode", mode, *MODES)
    table = address.ref()
    if (made := made_before(table, how)) is not None:
        return made
    found = open_source(source, format, columns, options, parallelism=parallelism(spark))
    dataset = table.open() if table.exists() else None
    if dataset is not None and mode == "create":
        raise TableAlreadyExistsError(f"{address} exists; append to it, overwrite it, or drop it first")
    adds = dataset is not None and mode == "append"
    schema = dataset.schema if dataset is not None and adds else found.schema
    if unknown := [name for name in found.schema.names if name not in schema.names]:
        raise TableSchemaValidationError(f"{address} has no column {', '.join(unknown)}; leave it out with columns=")
    if dataset is None:
        declare(table)
    at = place(table)
    progress = Progress(at.location, at.storage_options, _job(source, mode, schema))
    units = _digest(*(unit.key for unit in found.units))
    done = progress.done()
    begun = done.pop(RUN, {})
    if begun and (made := version_of_run(table, begun["run"])) is not None:  # it died after its commit
        progress.clear()
        if begun["units"] == units:
            return made
        begun, done = {}, {}
    run = how.run or begun.get("run") or uuid4().hex
    progress.put(RUN, {"run": run, "units": units})
    written = _written(spark, address, found.units, schema, progress.job, done, "append" if adds else "overwrite", how)
    at, properties = place(table), {RUN: run}
    try:
        if dataset is None:
            version = commits.create(table, at, schema, written, properties)
        elif adds:
            version = commits.append(table, at, written, dataset.version, properties)
        else:
            version = commits.overwrite(table, at, schema, written, dataset.version, properties)
    except LanceNamespaceError as error:
        if commits.is_refusal(error):
            discard(written, at)
            progress.clear()
        raise
    current = {unit.key for unit in found.units}
    discard([piece for key, pieces in done.items() if key not in current for piece in pieces], at)
    progress.clear()
    return version


def _job(source: Any, mode: str, schema: pa.Schema) -> str:
    """The same for the same source into the same columns; which of its units are done is told by their own keys."""
    named = [source] if isinstance(source, str | Path) or not isinstance(source, Iterable) else source
    return f"ingest-{_digest(mode, str(schema), *map(str, named))}"


def _digest(*texts: str) -> str:
    return sha256("\n".join(texts).encode(errors="surrogatepass")).hexdigest()[:32]


def _written(
    spark: SparkSession,
    address: Address,
    units: Sequence[Unit],
    schema: pa.Schema,
    job: str,
    done: Mapping[str, Any],
    mode: str,
    how: Write,
) -> list[Piece]:
    """Write what is not written yet; all that is."""
    known = [piece for unit in units for piece in done.get(unit.key, ())]

    def work(unit: Unit) -> list[Piece]:
        table = address.ref()
        at = place(table)
        rows = pa.RecordBatchReader.from_batches(schema, unit.batches(schema))
        pieces = write(table, at, rows, mode=mode, layout=how.layout)
        Progress(at.location, at.storage_options, job).put(unit.key, pieces)
        return pieces

    with translated():
        return known + results(spark, [unit for unit in units if unit.key not in done], work)
