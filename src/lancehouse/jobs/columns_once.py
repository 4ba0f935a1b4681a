"""Add columns that are computed once, by SQL or plain functions: fragment by fragment, with one commit.

The table keeps nothing of how they were made. What a crash leaves is resumed, a fragment at a time.
"""

from __future__ import annotations

import base64
import json
import logging
import pickle
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import lance
import pyarrow as pa
from lance.fragment import FragmentMetadata
from lance_namespace.errors import ConcurrentModificationError, InvalidInputError

from lancehouse.jobs.address import PinnedVersion, TableAddress
from lancehouse.jobs.engine import PIECES_EACH, Engine, spread
from lancehouse.jobs.fingerprints import Fingerprint, fingerprint_functions, json_digest, package_versions
from lancehouse.jobs.job import Job
from lancehouse.lake import chunked_scan
from lancehouse.lake.chunked_scan import has_blobs
from lancehouse.lake.commits import NewFragment, TableLocation, commit, find_lost_fragments, locate_table
from lancehouse.lake.dataset import TableRef, translate_refusals
from lancehouse.lake.errors import translate_errors
from lancehouse.lake.job_records import JobProgress
from lancehouse.schema.walk import check_types, relax_nullability, require_columns

logger = logging.getLogger(__name__)

Function = Callable[[pa.RecordBatch], Any]
"""Takes a record batch, returns an Arrow array with one value for each row."""

SAMPLE = 16
"""Number of rows on which a function is tried to learn the type of its column."""

ROW_BYTES = 1024
"""Rough guess of what a row takes besides its blobs, in bytes."""

CODE = "code"
"""Key of a job's record with the fingerprint of the code."""

ATTEMPTS = 10
"""How often the commit is tried; before each, columns of fragments that were added meanwhile are computed."""


def add_columns_once(
    engine: Engine,
    address: TableAddress,
    columns: Mapping[str, str | Function],
    read_columns: Sequence[str] | None,
) -> int:
    """Add columns that are computed from others; return the version that this made.

    What a piece has computed is recorded below the table's location. After a failure the same call computes only the
    rest, if the code is the same, including all modules of the user's own that it imports; otherwise it starts over.

    Raises:
        InvalidInputError: a column exists already, or an expression is invalid.
        ConcurrentModificationError: others kept changing the table, so that all attempts failed.
    """
    table = address.to_ref()
    adding = ColumnsToAdd.for_table(table, table.open(), columns, read_columns)
    family, code = f"add-columns-{adding.key}-", adding.fingerprint()
    job = Job(address, f"{family}{code.digest}")
    progress = job.progress()
    values = progress.read_records()
    if not values:
        _warn_restart(address, progress.list_other_jobs(family), code)
    values.pop(CODE, None)
    progress.record(CODE, code.record)
    recorded = [AddedColumns.from_json(value) for value in values.values()]
    lost_pieces = find_lost_fragments([each.piece for each in recorded], job.write_location())
    done = [each for each in recorded if each.piece not in lost_pieces]
    for attempt in range(ATTEMPTS):
        # Only the commit is tried again. Fragments that did not change meanwhile keep what was computed of them.
        pinned = PinnedVersion.resolve(address)
        _, dataset = pinned.open()
        done += _compute_fragments(engine, job, pinned, adding, missing_fragments(dataset, done))
        try:
            version = commit_columns(table, locate_table(table), dataset, adding, done)
        except ConcurrentModificationError:
            if attempt == ATTEMPTS - 1:
                raise
            continue
        for records in (progress, *progress.list_other_jobs(family)):  # the columns exist now: nobody can resume them
            records.clear()
        return version
    raise AssertionError("each attempt ends above")


def _warn_restart(address: TableAddress, others: Sequence[JobProgress], code: Fingerprint) -> None:
    """Log why an interrupted job on the same columns is not resumed."""
    if others:
        before: dict[str, str] = next((found for each in others if (found := each.read_records().get(CODE))), {})
        logger.warning(
            "%s: add_columns starts over, and takes over nothing of an earlier run that did not finish: %s",
            address,
            code.explain_difference(before),
        )


def _compute_fragments(
    engine: Engine, job: Job, pinned: PinnedVersion, adding: ColumnsToAdd, fragments: Sequence[int]
) -> list[AddedColumns]:
    def work(fragments: Sequence[int]) -> list[str]:
        table, dataset = pinned.open()
        progress = job.progress()
        results = []
        for fragment in fragments:
            added = compute_fragment(table, dataset, fragment, adding)
            progress.record(str(fragment), added.to_json(keep=True))
            results.append(added.to_json())
        return results

    texts = engine.run(spread(fragments, engine.parallelism * PIECES_EACH), work)
    return list(map(AddedColumns.from_json, texts))


@dataclass(frozen=True, slots=True)
class ColumnsToAdd:
    """The columns to add: SQL expressions or functions, their inputs and their schema; sent to other processes."""

    expressions: Mapping[str, str]
    functions: Mapping[str, Function]
    inputs: tuple[str, ...]
    """Columns that the functions read."""
    schema: pa.Schema
    """Schema of the new columns."""

    @classmethod
    def for_table(
        cls,
        table: TableRef,
        dataset: lance.LanceDataset,
        columns: Mapping[str, str | Function],
        reads: Sequence[str] | None = None,
    ) -> Self:
        """Check that the columns can be added, and find out their types.

        Raises:
            InvalidInputError: no column is given, one exists already, SQL is mixed with functions, or a function fails.
            TableColumnNotFoundError: a column in `reads` does not exist.
        """
        existing = dataset.schema.names
        if taken := [name for name in columns if name in existing]:
            raise InvalidInputError(f"{table} has a column {', '.join(taken)} already")
        require_columns(table, reads or (), existing)
        expressions = {name: value for name, value in columns.items() if isinstance(value, str)}
        functions = {name: value for name, value in columns.items() if callable(value)}
        if not columns or len(columns) not in (len(expressions), len(functions)):
            raise InvalidInputError("add_columns takes columns that are all SQL, or all functions of Arrow batches")
        inputs = tuple(existing if reads is None else reads)
        return cls(expressions, functions, inputs, _output_schema(table, dataset, expressions, functions, inputs))

    @property
    def key(self) -> str:
        """A digest of the names of the columns, however they are computed."""
        return json_digest(sorted(self.schema.names))

    def fingerprint(self) -> Fingerprint:
        """Return what the values of the new columns depend on, besides the rows of the table."""
        code = fingerprint_functions(self.functions) if self.functions else Fingerprint(package_versions())
        sql = {f"SQL of {name}": text for name, text in self.expressions.items()}
        types = {f"type of {field.name}": str(field.type) for field in self.schema}
        return Fingerprint({**code.parts, **sql, **types, "columns read": ", ".join(self.inputs)}, code.doubts)

    def compute(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Call the functions on a batch, and return a batch of the new columns."""
        return _call_functions(self.functions, batch, self.schema)


@dataclass(frozen=True, slots=True)
class AddedColumns:
    """The new columns of one fragment, written but not committed; can be converted to JSON."""

    fragment: int
    digest: str
    """Digest of the fragment's schema and data files; if it changes, the columns have to be computed again."""
    piece: NewFragment
    schema: str | None = None
    """Schema of the table with the new columns, pickled by pylance. Not stored: data from storage is never unpickled.
    """

    def to_json(self, *, keep: bool = False) -> str:
        """Return the fragment as JSON text; without the schema if it is kept in storage."""
        return json.dumps([self.fragment, self.digest, self.piece, None if keep else self.schema])

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Parse what `to_json` returned."""
        return cls(*json.loads(text))


def compute_fragment(table: TableRef, dataset: lance.LanceDataset, fragment: int, adding: ColumnsToAdd) -> AddedColumns:
    """Compute and write the new columns of a fragment, without a commit."""
    lance_fragment = dataset.get_fragment(fragment)
    with translate_errors(table, table.storage_options):
        if adding.expressions:
            metadata, schema = lance_fragment.merge_columns(_compute_sql(dataset, fragment, adding))
        elif any(has_blobs(dataset.schema.field(name)) for name in adding.inputs):
            metadata, schema = lance_fragment.merge_columns(_compute_with_blobs(dataset, fragment, adding))
        else:
            values = lance.udf.BatchUDF(adding.compute, output_schema=adding.schema)
            metadata, schema = lance_fragment.merge_columns(values, columns=list(adding.inputs))
    pickled = base64.b64encode(pickle.dumps(schema)).decode()
    return AddedColumns(
        fragment, _fragment_digest(dataset, lance_fragment.metadata), json.dumps(metadata.to_json()), pickled
    )


def _compute_with_blobs(dataset: lance.LanceDataset, fragment: int, adding: ColumnsToAdd) -> pa.RecordBatchReader:
    """Call functions that need blobs, for which pylance by itself would pass only descriptors."""
    lance_fragment = dataset.get_fragment(fragment)  # not the one that is written to, which is locked
    columns = [dataset.schema.field(name) for name in adding.inputs]
    batches = chunked_scan.read_fragment(lance_fragment, columns, range(lance_fragment.count_rows()), ROW_BYTES)
    return pa.RecordBatchReader.from_batches(adding.schema, map(adding.compute, batches))


def _compute_sql(dataset: lance.LanceDataset, fragment: int, adding: ColumnsToAdd) -> Any:
    """Return the SQL expressions, or their values where Lance would make columns of them that are not nullable."""
    expressions, schema = dict(adding.expressions), adding.schema
    lance_fragment = dataset.get_fragment(fragment)  # not the one that is written to, which is locked
    scanner = _scanner(dataset, expressions, [lance_fragment])
    if _drop_row_id(scanner.projected_schema).equals(schema):
        return expressions
    batches = (batch.select(schema.names).cast(schema) for batch in scanner.to_batches())
    return pa.RecordBatchReader.from_batches(schema, batches)


def _scanner(
    dataset: lance.LanceDataset, expressions: Mapping[str, str], fragments: list[lance.LanceFragment] | None = None
) -> lance.LanceScanner:

    # With the row id, because Lance refuses to scan expressions of which none names a column.
    return dataset.scanner(columns=dict(expressions), with_row_id=True, fragments=fragments, scan_in_order=True)


def _drop_row_id(schema: pa.Schema) -> pa.Schema:
    return pa.schema([field for field in schema if field.name != "_rowid"])


def missing_fragments(dataset: lance.LanceDataset, done: Iterable[AddedColumns]) -> list[int]:
    """Return the fragments of a version whose columns are not computed yet, or were computed from other data.

    A job that resumes another one computes at least one fragment again, because stored results lack the schema.
    """
    done_by_state = {(each.fragment, each.digest): each for each in done}
    states = {
        fragment.fragment_id: _fragment_digest(dataset, fragment.metadata) for fragment in dataset.get_fragments()
    }
    undone = [fragment for fragment, state in states.items() if (fragment, state) not in done_by_state]
    has_schema = undone or any(done_by_state[each].schema for each in states.items())
    return undone if has_schema else list(states)[:1]


def commit_columns(
    table: TableRef,
    at: TableLocation,
    dataset: lance.LanceDataset,
    adding: ColumnsToAdd,
    done: Iterable[AddedColumns],
) -> int:
    """Commit the new columns; return the new version.

    Raises:
        ConcurrentModificationError: the table has changed; results for fragments that have not changed can be reused.
    """
    done_by_state = {(each.fragment, each.digest): each for each in done}
    fragments = [fragment.metadata for fragment in dataset.get_fragments()]
    if not fragments:
        with translate_refusals(table.namespace, table.id), translate_errors(table, at.storage_options):
            dataset.add_columns(adding.schema)
        return int(dataset.version)
    added = [done_by_state[each.id, _fragment_digest(dataset, each)] for each in fragments]
    merged = [_merge_fragment(*each) for each in zip(fragments, added, strict=True)]
    pickled_schema = next(each.schema for each in added if each.schema)
    schema = pickle.loads(base64.b64decode(pickled_schema))  # noqa: S301 - it came from a task of this job, not from storage
    return commit(table, at, lance.LanceOperation.Merge(merged, schema), dataset.version, retries=0)


def _merge_fragment(current: FragmentMetadata, added: AddedColumns) -> FragmentMetadata:
    """Return a fragment as it is now, with the new columns: rows may have been deleted since these were computed."""
    known_files = {file.path for file in current.files}
    new = [file for file in FragmentMetadata.from_json(added.piece).files if file.path not in known_files]
    return replace(current, files=[*current.files, *new])


def _output_schema(
    table: TableRef,
    dataset: lance.LanceDataset,
    expressions: Mapping[str, str],
    functions: Mapping[str, Function],
    reads: Sequence[str],
) -> pa.Schema:
    with translate_errors(table, table.storage_options):
        if expressions:
            return _check_output_schema(_drop_row_id(_scanner(dataset, expressions).projected_schema))
        sample = dataset.scanner(columns=list(reads), limit=SAMPLE, blob_handling="all_binary").to_table()
    [batch] = sample.combine_chunks().to_batches() or [pa.RecordBatch.from_pylist([], sample.schema)]
    return _check_output_schema(_call_functions(functions, batch).schema)


def _check_output_schema(schema: pa.Schema) -> pa.Schema:
    """Check the types of the new columns, and return them as nullable, like columns of a DataFrame."""
    check_types(schema)
    return relax_nullability(schema)


def _call_functions(
    functions: Mapping[str, Function], batch: pa.RecordBatch, schema: pa.Schema | None = None
) -> pa.RecordBatch:
    arrays: dict[str, Any] = {}
    for name, array in _call_each(functions, batch):
        if len(array) != batch.num_rows:
            raise InvalidInputError(f"column {name}: of {batch.num_rows} rows its function made {len(array)} values")
        arrays[name] = array if schema is None else _cast_to_sampled_type(name, array, schema.field(name).type)
    return pa.record_batch(arrays)


def _cast_to_sampled_type(name: str, array: Any, dtype: pa.DataType) -> Any:
    try:
        return array.cast(dtype)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError) as error:
        raise InvalidInputError(
            f"column {name}: its function gave {array.type}, but {dtype} of the first {SAMPLE} rows; have it give one "
            f"type always ({error})"
        ) from error


def _call_each(functions: Mapping[str, Function], batch: pa.RecordBatch) -> Iterator[tuple[str, Any]]:
    for name, function in functions.items():
        array = function(batch)
        if not isinstance(array, pa.Array | pa.ChunkedArray):
            raise InvalidInputError(f"column {name}: its function gave {type(array).__name__}, not an Arrow array")
        yield name, array.combine_chunks() if isinstance(array, pa.ChunkedArray) else array


def _fragment_digest(dataset: lance.LanceDataset, fragment: FragmentMetadata) -> str:
    return json_digest([str(dataset.lance_schema), [file.path for file in fragment.files]])
