"""Add columns: computed ones, which are defined, filled and listed; and those that are computed once.

The table does not store how SQL or plain functions computed a column once.
"""

from __future__ import annotations

import base64
import json
import logging
import pickle
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Self

import lance
import pyarrow as pa
from lance.fragment import FragmentMetadata
from lance_namespace.errors import ConcurrentModificationError, InvalidInputError

from lancehouse.jobs.address import PinnedVersion, TableAddress
from lancehouse.jobs.column_filling import FillOptions, FillResult, fill_column
from lancehouse.jobs.column_functions import CallRules, ColumnFunction, FunctionCaller, check_column_type
from lancehouse.jobs.engine import PIECES_EACH, Engine, spread
from lancehouse.jobs.fingerprints import Fingerprint, fingerprint_functions, json_digest, package_versions
from lancehouse.jobs.index_building import optimize_stale_indices
from lancehouse.jobs.job import Job, ReportFill
from lancehouse.lake import chunked_scan
from lancehouse.lake.chunked_scan import has_blobs
from lancehouse.lake.column_states import (
    count_states,
    describe_columns,
    error_records,
    find_field_id,
    name_inputs,
)
from lancehouse.lake.commits import NewFragment, TableLocation, commit, find_lost_fragments, locate_table
from lancehouse.lake.dataset import TableRef, empty_dataset, enclose_sql, require_storable_names, translate_refusals
from lancehouse.lake.errors import translate_errors
from lancehouse.lake.job_records import JobProgress
from lancehouse.lake.row_changes import ATTEMPTS, retry_conflicts
from lancehouse.schema.definitions import (
    COMPANION_TYPE,
    COMPUTED,
    ColumnDefinition,
    companion_name,
    definitions,
    require_free_names,
)
from lancehouse.schema.walk import check_types, relax_nullability, require_columns

logger = logging.getLogger(__name__)

SAMPLE = 16
"""Number of rows with which a function is called to learn the type of its column."""


def define_columns(
    engine: Engine, address: TableAddress, functions: Mapping[str, ColumnFunction], *, allow_changed: bool = False
) -> int:
    """Define computed columns, or define them anew by another version; return the version of the table.

    Raises:
        InvalidInputError: a column exists that is not computed, has another type, or is defined by the same version of
            a function whose code has changed since.
        ConcurrentModificationError: others kept changing the table, so that all attempts failed.
    """
    if not functions:
        raise InvalidInputError("columns: name at least one")
    table = address.to_ref()

    def attempt() -> int:
        pinned = PinnedVersion.resolve(address)
        _, dataset = pinned.open()
        existing = definitions(dataset.schema)
        fields: list[pa.Field[Any]] = []
        changed: dict[str, ColumnDefinition] = {}
        replaced: list[str] = []
        for name, bare_function in functions.items():
            function = with_inputs(table, dataset, bare_function)
            definition = plan_definition(
                table, dataset, name, function, existing.get(name), allow_changed=allow_changed
            )
            if name not in dataset.schema.names:
                dtype = _find_type(engine, pinned, function)
                fields.append(pa.field(name, dtype, metadata={COMPUTED: definition.to_metadata()}))
            elif definition != existing[name]:
                changed[name] = definition
                replaced += [name] if definition.since != existing[name].since else []
            if definition.companion not in dataset.schema.names:
                fields.append(pa.field(definition.companion, COMPANION_TYPE))
        version = _store(table, dataset, fields, changed)
        for name in replaced:  # rows for which the earlier function failed are filled again
            error_records(locate_table(table), find_field_id(dataset, name)).clear()
        return version

    return retry_conflicts(address, attempt)


def plan_definition(
    table: TableRef,
    dataset: lance.LanceDataset,
    name: str,
    function: ColumnFunction,
    existing: ColumnDefinition | None,
    *,
    allow_changed: bool,
) -> ColumnDefinition:
    """Return the definition of a column: that which it has, if this function made it.

    Raises:
        InvalidInputError: see `define_columns`.
        TableColumnNotFoundError: an input does not exist.
    """
    names = dataset.schema.names
    require_storable_names((name,))
    require_free_names((name,))
    require_columns(table, function.inputs, names)
    if name in names and existing is None:
        raise InvalidInputError(f"{table} has a column {name} that is not computed; choose another name, or drop it")
    if name in function.inputs:
        raise InvalidInputError(f"column {name} cannot be computed from itself")
    if existing is not None:
        if existing.matches(function):
            return existing
        is_same_version = (existing.version, existing.label) == (function.version, function.label)
        if is_same_version and not allow_changed:
            raise InvalidInputError(
                f"the code of {function.label} has changed since column {name} was defined, but its version is still "
                f"{function.version}: give it another version to compute the column again, or set allow_changed=True"
            )
        dtype = dataset.schema.field(name).type
        if function.returns is not None and function.returns != dtype:
            raise InvalidInputError(f"column {name} is {dtype}, and {function.label} returns {function.returns}")
        if is_same_version:
            return replace(existing, digest=function.digest)
    ids = {field.name(): field.id() for field in dataset.lance_schema.fields()}
    inputs = tuple((ids[column], column) for column in function.inputs)
    # Of a column that had this name and was renamed, or none at all, such as that of a view with the source's row ids.
    used_names = {definition.companion for other, definition in definitions(dataset.schema).items() if other != name}
    used_names |= {field.name for field in dataset.schema if not field.type.equals(COMPANION_TYPE)}
    companion = companion_name(name) if existing is None else existing.companion
    while companion in used_names:
        companion += "_"
    parts = (function.name, function.version, inputs, function.digest, int(dataset.version) + 1)
    return ColumnDefinition(*parts, companion, function.sql)


def with_inputs(table: TableRef, dataset: lance.LanceDataset, function: ColumnFunction) -> ColumnFunction:
    """Return a function with its inputs, which of SQL are found by the columns of the table."""
    if function.sql is None or function.inputs:
        return function
    return replace(function, inputs=_find_sql_inputs(table, dataset, function.sql))


def _find_sql_inputs(table: TableRef, dataset: lance.LanceDataset, sql: str) -> tuple[str, ...]:
    """Return the columns that an expression reads: those without which it is not valid.

    Raises:
        InvalidInputError: it is not valid, or names a column that does not exist.
    """
    with translate_errors(table, table.storage_options):
        dataset.scanner(columns={"value": enclose_sql(sql)}, with_row_id=True).explain_plan()
    candidates = [name for name in dataset.schema.names if name.lower() in sql.lower()]
    fields = pa.schema([dataset.schema.field(name) for name in candidates]).remove_metadata()
    return tuple(name for name in candidates if not _is_valid(sql, fields.remove(fields.get_field_index(name))))


def _is_valid(sql: str, schema: pa.Schema) -> bool:
    try:
        empty_dataset(schema).scanner(columns={"value": sql}, with_row_id=True).explain_plan()
    except ValueError:
        return False
    return True


def _store(
    table: TableRef,
    dataset: lance.LanceDataset,
    fields: Sequence[pa.Field[Any]],
    changed: Mapping[str, ColumnDefinition],
) -> int:
    if fields:
        with translate_refusals(table.namespace, table.id), translate_errors(table, table.storage_options):
            dataset.add_columns(pa.schema(fields))
    version = int(dataset.version)
    ids = {name: find_field_id(dataset, name) for name in changed}
    old_definitions = definitions(dataset.schema)
    replaced = {name for name, definition in changed.items() if definition.since != old_definitions[name].since}
    for _ in range(ATTEMPTS if changed else 0):
        since = version + 1
        updates = {
            ids[name]: lance.LanceOperation.UpdateMap(
                {
                    COMPUTED.decode(): replace(
                        definition, since=since if name in replaced else definition.since
                    ).to_metadata()
                }
            )
            for name, definition in changed.items()
        }
        operation = lance.LanceOperation.UpdateConfig(field_metadata_updates=updates)
        version = commit(table, locate_table(table), operation, version)
        if version == since or not replaced:
            break
        # Lance has put it after versions of others, with values of the function before perhaps: say it again.
    return version


def _find_type(engine: Engine, pinned: PinnedVersion, function: ColumnFunction) -> pa.DataType:
    """Return the type of a column: that of the function, or of one batch that a piece of the engine computes."""
    table, dataset = pinned.open()
    if function.returns is None and function.sql is None:
        function = replace(function, returns=_find_type_by_call(engine, pinned, function))
    return column_type(table, dataset, function)


def column_type(table: TableRef, dataset: lance.LanceDataset, function: ColumnFunction) -> pa.DataType:
    """Return the type of a column as the table has it.

    Raises:
        InvalidInputError: the type is not given, so that only a call could find it; or no column can have it.
    """
    dtype = function.returns
    if function.sql is not None:
        with translate_errors(table, table.storage_options):
            scanner = dataset.scanner(columns={"value": function.sql}, with_row_id=True)
            dtype = scanner.projected_schema.field("value").type
    if dtype is None:
        raise InvalidInputError(f"{function.label} does not say the type of its column: returns=")
    schema = relax_nullability(pa.schema([pa.field("value", dtype)]))
    check_types(schema)
    stored_type: pa.DataType = schema.field(0).type
    check_column_type(stored_type)
    return stored_type


def _find_type_by_call(engine: Engine, pinned: PinnedVersion, function: ColumnFunction) -> pa.DataType:
    if function.blobs == "file":
        raise InvalidInputError(f"{function.label} reads blobs as files: say its type with returns=")

    def work(pinned: PinnedVersion) -> list[str]:
        table, dataset = pinned.open()
        with translate_errors(table, table.storage_options):
            rows = dataset.scanner(columns=list(function.inputs), limit=SAMPLE, blob_handling="all_binary").to_table()
        if not len(rows):
            return []
        inputs = [column.combine_chunks() for column in rows.columns]
        values = FunctionCaller(function, None, CallRules()).compute(inputs, lambda row: f"row {row + 1}").array
        schema = pa.schema([pa.field("value", values.type)])
        return [base64.b64encode(schema.serialize().to_pybytes()).decode()]

    for text in engine.run([pinned], work):
        schema: pa.Schema = pa.ipc.read_schema(pa.py_buffer(base64.b64decode(text)))
        dtype: pa.DataType = schema.field(0).type
        return dtype
    raise InvalidInputError(f"the type of {function.label} is not known, and there is no row to call it with: returns=")


def find_functions(
    table: TableRef,
    dataset: lance.LanceDataset,
    columns: Sequence[str] | Mapping[str, ColumnFunction] | None,
    allowed: Sequence[str] | None = None,
) -> dict[str, ColumnFunction]:
    """Return the functions of computed columns: those that are given, or that their definitions name.

    Raises:
        InvalidInputError: a column is not computed, or a function cannot be imported or is not the one that defines it.
        PermissionDeniedError: a function that would have to be imported is not allowed.
    """
    schema: pa.Schema = dataset.schema
    defined = definitions(schema)
    names = list(defined) if columns is None else list(columns)
    if missing := [name for name in names if name not in defined]:
        raise InvalidInputError(
            f"{table}: {', '.join(missing)} is no computed column; there is {', '.join(defined) or 'none'}"
        )
    functions = {}
    for name in _sort_by_inputs(dataset, defined):
        if name not in names:
            continue
        definition = defined[name]
        function = columns[name] if isinstance(columns, Mapping) else _load(definition, allowed)
        if not definition.matches(function):
            raise InvalidInputError(
                f"column {name} is defined by {definition.label} of version {definition.version}, and this is "
                f"{function.label} of version {function.version}"
                + (", whose code has changed" if function.version == definition.version else "")
                + "; define_columns takes it over"
            )
        functions[name] = replace(function, returns=schema.field(name).type)
    return functions


def _sort_by_inputs(dataset: lance.LanceDataset, defined: Mapping[str, ColumnDefinition]) -> list[str]:
    """Return computed columns so that each comes after those that it is computed from."""
    order: list[str] = []

    def add(name: str, above: tuple[str, ...]) -> None:
        if name in order or name in above:
            return
        for input_name in name_inputs(dataset, defined[name]):
            if input_name in defined:
                add(input_name, (*above, name))
        order.append(name)

    for name in sorted(defined, key=dataset.schema.names.index):
        add(name, ())
    return order


def _load(definition: ColumnDefinition, allowed: Sequence[str] | None) -> ColumnFunction:
    if definition.sql is not None:
        return ColumnFunction.of(definition.sql)
    return ColumnFunction.load(definition.function, allowed)


def backfill(
    engine: Engine,
    address: TableAddress,
    columns: Sequence[str] | Mapping[str, ColumnFunction] | None,
    options: FillOptions,
    version: str | None = None,
    report: ReportFill | None = None,
) -> FillResult:
    """Fill computed columns, all by default; `report` is called with the progress.

    Raises:
        InvalidInputError: see `find_functions`; or a column is not defined by `version`.
    """
    table = address.to_ref()
    dataset = table.open()
    functions = find_functions(table, dataset, columns, options.allowed)
    for name, function in functions.items():
        if version is not None and function.version != version:
            raise InvalidInputError(f"column {name} is defined by version {function.version}, not {version}")
    if functions and not dataset.has_stable_row_ids:
        logger.warning("%s has no stable row ids: rows whose inputs changed are not found, and not filled again", table)
    total = FillResult(int(dataset.version))
    for name, function in functions.items():
        total += fill_column(engine, address, name, function, options, report)
    if options.optimize_indices:
        latest = optimize_stale_indices(engine, address, functions)
        return replace(total, version=max(latest, total.version))
    return total


COLUMNS = pa.schema(
    [
        ("column", pa.string()),
        ("type", pa.string()),
        ("function", pa.string()),
        ("version", pa.string()),
        ("inputs", pa.list_(pa.string())),
        ("since", pa.int64()),
        ("filled", pa.int64()),
        ("missing", pa.int64()),
        ("failed", pa.int64()),
    ]
)


def list_columns(table: TableRef) -> pa.Table:
    """Return the computed columns of a table, with the numbers of rows by state."""
    with table.dataset() as dataset:
        rows = [
            {**asdict(column), **asdict(count_states(dataset, column.column))} for column in describe_columns(dataset)
        ]
    return pa.Table.from_pylist(rows, COLUMNS)


# Columns that are computed once: fragment by fragment, with one commit. What a crash leaves is resumed.

Function = Callable[[pa.RecordBatch], Any]
"""Takes a record batch, returns an Arrow array with one value for each row."""

ROW_BYTES = 1024
"""Rough guess of what a row takes besides its blobs, in bytes."""

CODE = "code"
"""Key of a job's record with the fingerprint of the code."""


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
    recorded_results = [AddedColumns.from_json(value) for value in values.values()]
    lost_pieces = find_lost_fragments([result.piece for result in recorded_results], job.write_location())
    results = [result for result in recorded_results if result.piece not in lost_pieces]
    for attempt in range(ATTEMPTS):
        # Only the commit is tried again. Fragments that did not change meanwhile keep what was computed of them.
        pinned = PinnedVersion.resolve(address)
        _, dataset = pinned.open()
        results += _compute_fragments(engine, job, pinned, adding, missing_fragments(dataset, results))
        try:
            version = commit_columns(table, locate_table(table), dataset, adding, results)
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
        before: dict[str, str] = next((record for other in others if (record := other.read_records().get(CODE))), {})
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
        require_storable_names(columns)
        require_free_names(columns)
        if duplicates := [name for name in columns if name in existing]:
            raise InvalidInputError(f"{table} has a column {', '.join(duplicates)} already")
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
    columns = {name: enclose_sql(expression) for name, expression in expressions.items()}
    # With the row id, because Lance refuses to scan expressions of which none names a column.
    return dataset.scanner(columns=columns, with_row_id=True, fragments=fragments, scan_in_order=True)


def _drop_row_id(schema: pa.Schema) -> pa.Schema:
    return pa.schema([field for field in schema if field.name != "_rowid"])


def missing_fragments(dataset: lance.LanceDataset, results: Iterable[AddedColumns]) -> list[int]:
    """Return the fragments of a version whose columns are not computed yet, or were computed from other data.

    A job that resumes another one computes at least one fragment again, because stored results lack the schema.
    """
    done_by_state = {(result.fragment, result.digest): result for result in results}
    states = {
        fragment.fragment_id: _fragment_digest(dataset, fragment.metadata) for fragment in dataset.get_fragments()
    }
    undone = [fragment for fragment, state in states.items() if (fragment, state) not in done_by_state]
    has_schema = undone or any(done_by_state[state].schema for state in states.items())
    return undone if has_schema else list(states)[:1]


def commit_columns(
    table: TableRef,
    at: TableLocation,
    dataset: lance.LanceDataset,
    adding: ColumnsToAdd,
    results: Iterable[AddedColumns],
) -> int:
    """Commit the new columns; return the new version.

    Raises:
        ConcurrentModificationError: the table has changed; results for fragments that have not changed can be reused.
    """
    done_by_state = {(result.fragment, result.digest): result for result in results}
    fragments = [fragment.metadata for fragment in dataset.get_fragments()]
    if not fragments:
        with translate_refusals(table.namespace, table.id), translate_errors(table, at.storage_options):
            dataset.add_columns(adding.schema)
        return int(dataset.version)
    new_columns = [done_by_state[fragment.id, _fragment_digest(dataset, fragment)] for fragment in fragments]
    merged = [_merge_fragment(*pair) for pair in zip(fragments, new_columns, strict=True)]
    pickled_schema = next(result.schema for result in new_columns if result.schema)
    schema = pickle.loads(base64.b64decode(pickled_schema))  # noqa: S301 - it came from a task of this job, not from storage
    # The operation lists all fragments with all their files: committed over another version, it would lose fragments
    # that were appended and columns that were added meanwhile.
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
    for name, function in functions.items():
        array = function(batch)
        if not isinstance(array, pa.Array | pa.ChunkedArray):
            raise InvalidInputError(f"column {name}: its function gave {type(array).__name__}, not an Arrow array")
        if len(array) != batch.num_rows:
            raise InvalidInputError(f"column {name}: of {batch.num_rows} rows its function made {len(array)} values")
        whole = array.combine_chunks() if isinstance(array, pa.ChunkedArray) else array
        arrays[name] = whole if schema is None else _cast_to_sampled_type(name, whole, schema.field(name).type)
    return pa.record_batch(arrays)


def _cast_to_sampled_type(name: str, array: Any, dtype: pa.DataType) -> Any:
    try:
        return array.cast(dtype)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError) as error:
        raise InvalidInputError(
            f"column {name}: its function gave {array.type}, but {dtype} of the first {SAMPLE} rows; have it give one "
            f"type always ({error})"
        ) from error


def _fragment_digest(dataset: lance.LanceDataset, fragment: FragmentMetadata) -> str:
    return json_digest([str(dataset.lance_schema), [file.path for file in fragment.files]])
