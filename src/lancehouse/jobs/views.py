"""Materialized views: tables whose rows are made of those of another table, and made again where it changed.

Each row of the source becomes none, one or many. A refresh replaces what came of rows that are new, changed or deleted,
in one commit; done twice, it changes nothing.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass, field, replace
from fnmatch import fnmatchcase
from itertools import chain
from typing import Any, Self
from uuid import uuid4

import lance
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from lance_namespace.errors import (
    InvalidInputError,
    NamespaceNotFoundError,
    PermissionDeniedError,
    TableAlreadyExistsError,
    TableNotFoundError,
    TableVersionNotFoundError,
)

from lancehouse.identifiers import format_levels, quote_name
from lancehouse.jobs.address import PinnedVersion, TableAddress
from lancehouse.jobs.column_filling import FILLED_FROM, FillOptions
from lancehouse.jobs.column_functions import ColumnFunction, FunctionCaller, check_column_type
from lancehouse.jobs.engine import Engine
from lancehouse.jobs.fingerprints import json_digest
from lancehouse.jobs.index_building import optimize_stale_indices
from lancehouse.jobs.job import Job, ReportFill, declare_table, watch_fill
from lancehouse.lake.changes import changed_since, read_row_ids, require_stable_row_ids
from lancehouse.lake.chunked_scan import has_blobs
from lancehouse.lake.column_states import VIEW_ERRORS, name_inputs, parse_view_errors, view_error_records
from lancehouse.lake.commits import (
    MESSAGE,
    RUN,
    FileLayout,
    NewFragment,
    TableLocation,
    create,
    find_lost_fragments,
    find_restore,
    find_version,
    find_version_of_run,
    locate_table,
    parse_new_fragments,
    write_uncommitted,
)
from lancehouse.lake.dataset import (
    OFFSET,
    OFFSET_BITS,
    TableRef,
    VersionSelector,
    enclose_sql,
    require_storable_names,
    translate_refusals,
)
from lancehouse.lake.errors import translate_errors
from lancehouse.lake.manifests import read_transaction_uuid
from lancehouse.lake.row_changes import commit_rewrite, delete_rows, offsets_by_fragment, retry_conflicts
from lancehouse.schema.definitions import SOURCE_ROW, VIEW, VIEW_OF, ViewDefinition, definitions
from lancehouse.schema.walk import check_types, relax_nullability, require_columns

REFRESHED = "lancehouse.view.refreshed"
"""Key of a table's configuration: the version of the source that the view shows, its transaction, how many rows failed,
a digest of the definition by which the rows were made, and the run that made them; a run alone: all are made again."""
START = "start"
"""Key of a job's record: what it began with."""
MOST_FAILED = 100_000
"""Most rows that are remembered as failed."""


@dataclass(frozen=True, slots=True)
class RefreshResult:
    """What a refresh did."""

    version: int
    """The version that it made, or the latest one if there was nothing to do."""
    source_version: int
    """The version of the source that the view shows."""
    inserted: int = 0
    deleted: int = 0
    failed: int = 0
    """Rows of the source for which the function failed, and which the view leaves out."""
    bytes: int = 0
    """Size of the files with the rows that were inserted."""
    seconds: float = 0.0
    """How long it took."""

    @property
    def rows_per_s(self) -> float:
        """Rows that were inserted, a second."""
        return self.inserted / self.seconds if self.seconds else 0.0


def create_view(
    engine: Engine,
    address: TableAddress,
    source: TableAddress,
    columns: Mapping[str, str],
    function: ColumnFunction | None,
    where: str | None,
    options: FillOptions,
    report: ReportFill | None = None,
) -> RefreshResult:
    """Create a view and fill it. A view of the same definition is refreshed; another function replaces its rows.

    Raises:
        TableAlreadyExistsError: there is a table that is no view, or a view with other columns.
        InvalidInputError: the source has no stable row ids, or the function does not return lists.
    """
    origin, dataset = PinnedVersion.resolve(source).open()
    require_stable_row_ids(origin, has_them=dataset.has_stable_row_ids)
    definition, schema = plan_view(origin, dataset, source.id, columns, function, where)
    table = address.to_ref()
    if not table.exists():
        declare_table(table, {VIEW_OF: format_levels(source.id)})
        metadata = {VIEW: definition.to_metadata()}
        note = {MESSAGE: f"Create a view of {format_levels(source.id)} ({definition.title})"}
        create(table, locate_table(table), schema.with_metadata(metadata), [], note)
    else:
        with table.dataset() as view:
            existing = require_same_columns(table, view, definition, schema)
            if existing != definition:
                view.update_config({REFRESHED: json.dumps([uuid4().hex])})  # all rows are made again
                view.update_schema_metadata({VIEW.decode(): definition.to_metadata()})
    return refresh_view(engine, address, function, options, report)


def require_same_columns(
    table: TableRef, view: lance.LanceDataset, definition: ViewDefinition, schema: pa.Schema
) -> ViewDefinition:
    """Return the definition of a view that exists.

    Raises:
        TableAlreadyExistsError: it is no view, or has other columns than those that are given.
    """
    existing = ViewDefinition.from_schema(view.schema)
    if existing is None or existing.names != definition.names or not _read_own_schema(view, existing).equals(schema):
        what = "a view with other columns" if existing else "a table that is no view"
        raise TableAlreadyExistsError(f"{table}: there is {what}; drop it first")
    return existing


def plan_view(
    table: TableRef,
    dataset: lance.LanceDataset,
    source: tuple[str, ...],
    columns: Mapping[str, str],
    function: ColumnFunction | None,
    where: str | None,
) -> tuple[ViewDefinition, pa.Schema]:
    """Return the definition of a view, and its columns: those that are taken from the source, those that its function
    makes, and the source's row id.

    Args:
        table: the source, for errors.
        dataset: a dataset with the columns of the source.
        source: id of the source.
        columns: columns that are taken from the source's row, as SQL.
        function: makes further columns.
        where: condition on the source's rows.

    Raises:
        InvalidInputError: the function does not return lists, or SQL cannot be read.
        TableColumnNotFoundError: the source has no such column.
    """
    definition = ViewDefinition(source, dict(columns), where)
    if function is not None:
        parts = (function.name, function.version, function.inputs, function.digest)
        definition = ViewDefinition(source, dict(columns), where, *parts)
    require_columns(table, definition.inputs, dataset.schema.names)
    require_storable_names(columns)
    with translate_errors(table, table.storage_options):
        expressions = {name: enclose_sql(sql) for name, sql in definition.columns.items()}
        scanner = dataset.scanner(columns=expressions or [], filter=enclose_sql(definition.where), with_row_id=True)
        scanner.explain_plan()
        # Without their metadata: a computed column of the source is none of the view's.
        source_columns = [column.remove_metadata() for column in scanner.projected_schema if column.name != "_rowid"]
        if blobs := [column.name for column in scanner.projected_schema if has_blobs(column)]:
            raise InvalidInputError(f"a view cannot take blobs along, such as {', '.join(blobs)}: read them by row id")
    fields = [*source_columns, *(_plan_function_fields(function) if function is not None else ())]
    require_storable_names(column.name for column in fields)
    fields.append(pa.field(SOURCE_ROW, pa.int64()))
    if len({column.name for column in fields}) != len(fields) or len(fields) == 1:
        raise InvalidInputError("a view has at least one column, and each name once")
    schema = relax_nullability(pa.schema(fields).remove_metadata())
    check_types(schema)
    return replace(definition, names=tuple(schema.names)), schema


def _read_own_schema(view: lance.LanceDataset, definition: ViewDefinition) -> pa.Schema:
    """Return the columns that the view makes."""
    return pa.schema([view.schema.field(name) for name in definition.names])


def _plan_function_fields(function: ColumnFunction) -> list[pa.Field[Any]]:
    dtype: Any = function.returns
    if dtype is None or not (pa.types.is_list(dtype) or pa.types.is_large_list(dtype)):
        raise InvalidInputError(
            f'{function.label} must return a list for each row, such as returns=pa.list_(pa.struct([("text", '
            "pa.string())])): each item becomes a row of the view"
        )
    check_column_type(dtype.value_type)
    item = dtype.value_type
    return list(item) if pa.types.is_struct(item) else [pa.field("value", item)]


def refresh_view(
    engine: Engine,
    address: TableAddress,
    function: ColumnFunction | None,
    options: FillOptions,
    report: ReportFill | None = None,
) -> RefreshResult:
    """Make the rows of a view again that came of rows which are new, changed or deleted since the last time.

    Args:
        engine: runs the pieces.
        address: the view.
        function: its function; None to import it by its name.
        options: how the function is called.
        report: is told of progress, in rows of the source.

    Raises:
        InvalidInputError: the table is no view, or the function is not its own.
        PermissionDeniedError: its source is not among those of the options.
        ConcurrentModificationError: others kept changing the view, so that all attempts failed.
    """
    if options.rules.on_error == "null":
        raise InvalidInputError('on_error: a view has no value that could be null; "skip" leaves out rows that fail')
    table, start_time = address.to_ref(), time.monotonic()

    def attempt() -> RefreshResult:
        dataset = table.open()
        definition = _require_definition(table, dataset.schema)
        _require_source(table, definition, options.sources)
        own = function
        if own is None and definition.function:
            own = ColumnFunction.load(definition.function, options.allowed)
        if not definition.matches(own):
            raise InvalidInputError(
                f"{table} is made by {definition.function} of version {definition.version}, and this is another "
                "function, version or code; create_materialized_view takes it over"
            )
        result = _Refresh(engine, address, definition, own, options, report).run(dataset)
        version = optimize_stale_indices(engine, address) if options.optimize_indices else result.version
        return replace(result, version=max(version, result.version), seconds=time.monotonic() - start_time)

    return retry_conflicts(address, attempt)


def _require_source(table: TableRef, definition: ViewDefinition, allowed: Sequence[str] | None) -> None:
    """Refuse a source that is not allowed: whoever writes a view names its source, and may have no right to read it."""
    source = format_levels(definition.source)
    if allowed is not None and not any(fnmatchcase(source, pattern) for pattern in allowed):
        raise PermissionDeniedError(
            f"{table} shows rows of {source}, and views of that are not refreshed here (--maintenance-sources)"
        )


@dataclass(frozen=True, slots=True)
class _Refresh:
    """One attempt to refresh a view."""

    engine: Engine
    address: TableAddress
    definition: ViewDefinition
    function: ColumnFunction | None
    options: FillOptions
    report: ReportFill | None

    def run(self, view: lance.LanceDataset) -> RefreshResult:
        table = self.address.to_ref()
        source = TableAddress(self.address.connection, self.definition.source)
        note = view.config().get(REFRESHED)
        shown = _find_shown_version(source, self.definition, note)
        # If all rows are made again, those that failed before are forgotten.
        failed = read_failed(locate_table(table)) if shown.failed or not shown.version else {}
        retried = sorted(failed) if self.options.where_failed else []
        # The note, which no two refreshes share, keeps apart the records of one that died after it had left its own.
        job = Job(self.address, f"refresh-{json_digest([self.definition.to_metadata(), note, shown.version, retried])}")
        records = job.progress().read_records()
        started = records.pop(START, None) or {}
        pinned, run = _pin_source(source, started.get("version")), started.get("run", uuid4().hex)
        if pinned.version == shown.version and not retried:
            return RefreshResult(int(view.version), shown.version)
        changes = _SourceChanges.find(pinned, self.definition, shown.version, retried)
        parts = _take_over(records, pinned.version, job.write_location())
        landed = find_version_of_run(table, started["run"]) if started else None
        if landed is not None and find_restore(table, landed) is None:
            # An earlier call died after its commit.
            if pinned.version == started["version"]:
                return self._finish(table, job, pinned, run, changes, failed, parts)
            job.progress().clear()  # what it showed was cleaned up since
            return self.run(table.open())
        job.progress().record(START, {"version": pinned.version, "run": run})
        parts += self._make_rows(job, pinned, changes, view.data_storage_version, parts)
        pieces = [piece for part in parts for piece in part.pieces]
        stale = self._find_stale(changes, view)
        change = delete_rows(table, view, offsets_by_fragment([stale]) if len(stale) else {})
        origin = f"{format_levels(source.id)}, version {pinned.version}"
        version = commit_rewrite(
            table,
            job.write_location(),
            view,
            replace(change, new=tuple(pieces)),
            view.schema.names,
            {
                RUN: run,
                MESSAGE: f"Refresh from {origin} ({self.definition.title})",
            },
            # Of two refreshes at the same time, which may add the same rows, Lance refuses the second.
            is_merge=True,
        )
        result = self._finish(table, job, pinned, run, changes, failed, parts)
        return replace(result, version=max(version, result.version), deleted=change.rows)

    def _finish(
        self,
        table: TableRef,
        job: Job,
        pinned: PinnedVersion,
        run: str,
        changes: _SourceChanges,
        failed: Mapping[int, tuple[str, str]],
        parts: Sequence[MadeRows],
    ) -> RefreshResult:
        """Note which version of the source the view shows, and for which rows the function has failed."""
        new = {row_id: (message, self.definition.version) for part in parts for row_id, message in part.failed}
        errors = {row_id: error for row_id, error in failed.items() if row_id in changes.unchanged} | new
        if failed or errors:
            newest = dict(list(errors.items())[-MOST_FAILED:])
            rows = [[key, *error] for key, error in newest.items()]
            view_error_records(job.write_location()).record(VIEW_ERRORS, rows)
        # After the commit of the rows. Who dies in between has left the records, by whose run the next call finds it.
        with table.dataset() as dataset, translate_refusals(table.namespace, table.id):
            made_by = json_digest(self.definition.to_metadata())
            note = [pinned.version, pinned.transaction_uuid, len(errors), made_by, run]
            dataset.update_config({REFRESHED: json.dumps(note)})
        job.progress().clear()
        written = parse_new_fragments([piece for part in parts for piece in part.pieces])
        return RefreshResult(
            int(dataset.version),
            pinned.version,
            inserted=sum(fragment.physical_rows for fragment in written),
            failed=len(new),
            bytes=sum(file.file_size_bytes or 0 for fragment in written for file in fragment.files),
        )

    def _make_rows(
        self,
        job: Job,
        pinned: PinnedVersion,
        changes: _SourceChanges,
        storage_version: str,
        known_parts: Sequence[MadeRows],
    ) -> list[MadeRows]:
        """Write the rows that come of new and changed rows, except for those that an earlier call has written."""
        _, dataset = pinned.open()
        begin = {fragment.fragment_id: 0 for fragment in dataset.get_fragments()} | {
            part.fragment: part.end for part in known_parts
        }
        todo = [(fragment, first) for fragment, first in begin.items() if first is not None]
        maker = RowMaker(
            self.definition,
            self.function,
            self.options,
            _read_own_schema(self.address.to_ref().open(), self.definition),
            changes.condition,
        )

        def work(parts: Sequence[tuple[int, int]]) -> Iterator[str]:
            for fragment, first in parts:
                for part in maker.make(job, pinned, fragment, first, storage_version):
                    yield part.to_json()

        groups = self.options.spread(todo, self.engine)
        known_rows = sum(part.rows for part in known_parts)

        def count_done(records: Mapping[str, Any]) -> tuple[int, int]:
            new_parts = _parse_made(records, pinned.version)
            return sum(part.rows for part in new_parts), sum(len(part.failed) for part in new_parts)

        name, progress = format_levels(self.address.id), job.progress()
        old_keys = {START, *(part.key(pinned.version) for part in known_parts)}
        with watch_fill(self.report, name, progress, old_keys, lambda: changes.count - known_rows, count_done):
            return list(map(MadeRows.from_json, self.engine.run(groups, work, self.options.resources)))

    def _find_stale(self, changes: _SourceChanges, view: lance.LanceDataset) -> pa.Array[Any]:
        """Return the addresses of rows of the view whose source was changed or deleted, or does not match any more."""
        rows = view.scanner(columns=[SOURCE_ROW], with_row_address=True).to_table()
        is_stale = ~np.isin(rows[SOURCE_ROW].to_numpy(), changes.unchanged_ids)
        stale: pa.Array[Any] = rows["_rowaddr"].combine_chunks().filter(pa.array(is_stale))
        return stale


@dataclass(frozen=True, slots=True)
class _SourceChanges:
    """Which rows of the source have to be made into rows of the view."""

    condition: str | None
    count: int
    """How many there are."""
    unchanged_ids: Any
    """Ids of the rows of which the view has all."""

    @property
    def unchanged(self) -> frozenset[int]:
        """The same, to look up single ones."""
        return frozenset(self.unchanged_ids.tolist())

    @classmethod
    def find(cls, pinned: PinnedVersion, definition: ViewDefinition, since: int, retried: Sequence[int]) -> Self:
        """Find the rows that are new or changed: by a change of the row, or of a computed column that the view takes;
        and those to retry.

        Args:
            pinned: version of the source.
            definition: of the view.
            since: version of the source that the view shows; 0 for none.
            retried: ids of rows that failed, and are tried again.
        """
        table, source = pinned.open()
        terms = [changed_since(since)]
        if since and (companions := _find_companions(source, definition)):
            # A fill that was committed since may have read, and noted, an older version.
            oldest = min([since, *_find_fills(table, since, pinned.version)])
            terms += [f"{quote_name(companion)}.at >= {oldest}" for companion in companions]
        terms += [f"_rowid IN ({', '.join(map(str, retried))})"] if retried else []
        conditions = [f"({' OR '.join(terms)})"] if since else []
        if definition.where is not None:
            conditions.append(enclose_sql(definition.where))
        condition = " AND ".join(conditions) or None
        with translate_errors(table, table.storage_options):
            alive, changed = (read_row_ids(source, where) for where in (definition.where, condition))
        return cls(condition, len(changed), np.setdiff1d(alive, changed).astype(np.int64))


def _find_companions(source: lance.LanceDataset, view: ViewDefinition) -> list[str]:
    """Return the companions of the computed columns that a view takes, and of those whose names its SQL contains."""
    sql = "\n".join([*view.columns.values(), view.where or ""]).lower()
    return [
        column.companion
        for name, column in definitions(source.schema).items()
        if name in view.inputs or name.lower() in sql or column.companion.lower() in sql
    ]


@dataclass(frozen=True, slots=True)
class _ShownVersion:
    """What a view shows of its source."""

    version: int = 0
    """Version of the source; 0 if changes since cannot be told by their numbers."""
    failed: int = 0
    """Number of the source's rows that are left out because the function failed."""


def _find_shown_version(source: TableAddress, definition: ViewDefinition, refreshed: str | None) -> _ShownVersion:
    """Return what a view shows.

    Changes cannot be told if the source was created anew, that version or one since was cleaned up, or an older one was
    restored; nor if the rows were made by another definition, as by a refresh that ended after the view was defined
    anew.
    """
    try:
        version, uuid, failed, made_by, _ = json.loads(refreshed or "null")
        is_same = read_transaction_uuid(source.to_ref(version=int(version)).open()) == uuid
        shown = _ShownVersion(int(version), int(failed))
    except (TableVersionNotFoundError, ValueError, TypeError):
        return _ShownVersion()
    if (
        not is_same
        or made_by != json_digest(definition.to_metadata())
        or find_restore(source.to_ref(), version) is not None
    ):
        return _ShownVersion()
    return shown


def read_failed(at: TableLocation) -> dict[int, tuple[str, str]]:
    """Return the rows of the source for which the function of a view has failed: exceptions and versions by row id."""
    return parse_view_errors(view_error_records(at).read_records())


def list_view_errors(address: TableAddress, columns: Sequence[str]) -> pa.Table:
    """Return the rows of the source that a view leaves out: row id, `columns` of the source, version, exception.

    Raises:
        InvalidInputError: the table is no view.
    """
    table = address.to_ref()
    definition = _require_definition(table, table.open().schema)
    if reserved := [column for column in columns if column in ("_rowid", "version", "exception")]:
        raise InvalidInputError(f"columns: {reserved[0]} is a column of the result; leave it out")
    failed = read_failed(locate_table(table))
    source = TableAddress(address.connection, definition.source).to_ref()
    with source.dataset() as dataset:
        condition = f"_rowid IN ({', '.join(map(str, failed))})" if failed else "false"
        source_rows = dataset.scanner(columns=list(columns), filter=condition, with_row_id=True).to_table()
    row_ids = source_rows["_rowid"].cast(pa.int64())
    errors = [failed[int(row_id)] for row_id in row_ids.to_numpy()]
    rows = pa.table({"_rowid": row_ids, **{column: source_rows[column] for column in columns}})
    rows = rows.append_column("version", pa.array([version for _, version in errors], pa.string()))
    return rows.append_column("exception", pa.array([message for message, _ in errors], pa.string()))


def _require_definition(table: TableRef, schema: pa.Schema) -> ViewDefinition:
    definition = ViewDefinition.from_schema(schema)
    if definition is None:
        raise InvalidInputError(f"{table} is no materialized view")
    return definition


def _find_fills(table: TableRef, since: int, upto: int) -> list[int]:
    """Return the versions that the values of fills were computed from which were committed between two versions.

    Later ones are left to the next refresh: a call that goes on with what another has made must find the same rows.
    """
    versions: list[int] = []

    def note(transaction: lance.Transaction) -> bool:
        text = (transaction.transaction_properties or {}).get(FILLED_FROM, "")
        versions.extend([int(text)] if text.isdecimal() else [])
        return False

    find_version(replace(table, version=None), note, after=since, before=upto + 1)
    return versions


def _pin_source(source: TableAddress, version: int | None) -> PinnedVersion:
    """Return the version of the source to show: that of an earlier call that died, if it exists, or the latest."""
    try:
        return PinnedVersion.resolve(source, VersionSelector(version))
    except TableVersionNotFoundError:
        return PinnedVersion.resolve(source)


@dataclass(frozen=True, slots=True)
class RowMaker:
    """Makes the rows of a view from rows of its source; can be sent to other processes."""

    definition: ViewDefinition
    function: ColumnFunction | None
    options: FillOptions
    schema: pa.Schema
    condition: str | None

    def make(
        self, job: Job, pinned: PinnedVersion, fragment: int, first: int, storage_version: str
    ) -> Iterator[MadeRows]:
        """Write the rows that come of a fragment of the source, from a position on, a checkpoint at a time."""
        batches = self._read(pinned, fragment, first)
        layout = FileLayout(data_storage_version=storage_version)
        end: int | None = first
        while end is not None:
            part = _Part()
            rows = self._make_part(batches, part)
            head = next(rows, None)
            pieces: list[NewFragment] = []
            if head is not None:
                reader = pa.RecordBatchReader.from_batches(self.schema, chain([head], rows))
                pieces = write_uncommitted(job.to_ref(), job.write_location(), reader, mode="append", layout=layout)
            made_rows = MadeRows(fragment, end, part.end, tuple(pieces), part.rows, tuple(part.failed))
            job.progress().record(made_rows.key(pinned.version), made_rows.to_json())
            yield made_rows
            end = part.end

    def _read(self, pinned: PinnedVersion, fragment: int, first: int) -> Iterator[pa.RecordBatch]:
        table, dataset = pinned.open()
        above = f"_rowaddr >= {(fragment << OFFSET_BITS) + first}" if first else None
        conditions = [f"({condition})" for condition in (self.condition, above) if condition is not None]
        with translate_errors(table, table.storage_options):
            scanner = dataset.scanner(
                columns={**self.definition.columns, **self._inputs},
                filter=" AND ".join(conditions) or None,
                with_row_id=True,
                with_row_address=True,
                fragments=[dataset.get_fragment(fragment)],
                batch_size=self.options.batch_rows,
                strict_batch_size=True,
                blob_handling="all_binary",
                scan_in_order=True,
            )
            yield from scanner.to_batches()

    @property
    def _inputs(self) -> dict[str, str]:
        return {f"input {number}": quote_name(name) for number, name in enumerate(self.definition.inputs)}

    def _make_part(self, batches: Iterator[pa.RecordBatch], part: _Part) -> Iterator[pa.RecordBatch]:
        """Yield the rows of the view until a checkpoint is due or the fragment ends."""
        start_time = time.monotonic()
        for batch in batches:
            view_rows = self._expand(batch, part)
            part.rows += batch.num_rows
            if view_rows.num_rows:
                yield view_rows
            if self.options.is_checkpoint_due(part.rows, time.monotonic() - start_time):
                part.end = (batch.column("_rowaddr")[-1].as_py() & OFFSET) + 1
                return

    def _expand(self, batch: pa.RecordBatch, part: _Part) -> pa.RecordBatch:
        """Return the rows that come of a batch of the source's rows."""
        row_ids = batch.column("_rowid").cast(pa.int64())
        source_columns: list[Any] = [batch.column(name) for name in self.definition.columns]
        if self.function is None:
            return _to_schema([*source_columns, row_ids], self.schema)
        caller = FunctionCaller(self.function, self.function.returns, self.options.rules)
        computed = caller.compute([batch.column(name) for name in self._inputs], lambda row: f"row id {row_ids[row]}")
        part.failed += [(row_ids[error.position].as_py(), error.exception) for error in computed.errors]
        values = computed.array
        counts = pc.fill_null(pc.list_value_length(values), 0).to_numpy(zero_copy_only=False)
        parents = np.repeat(np.arange(len(values)), counts)
        items: Any = pc.list_flatten(values)
        new_columns = items.flatten() if pa.types.is_struct(items.type) else [items]
        return _to_schema(
            [*(column.take(parents) for column in source_columns), *new_columns, row_ids.take(parents)], self.schema
        )


@dataclass(slots=True)
class _Part:
    """What a checkpoint holds, while it is made."""

    end: int | None = None
    rows: int = 0
    failed: list[tuple[int, str]] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class MadeRows:
    """Rows that came of some rows of a fragment of the source, in files that no version references yet."""

    fragment: int
    first: int
    """Position of the first row of the source."""
    end: int | None
    """Position after the last one; None if the fragment is done."""
    pieces: tuple[NewFragment, ...]
    rows: int
    """Number of the source's rows."""
    failed: tuple[tuple[int, str], ...]
    """Row ids for which the function has failed, and exceptions."""

    def key(self, version: int) -> str:
        """Return the key of its record, for a version of the source."""
        return f"{version} {self.fragment} {self.first}"

    def to_json(self) -> str:
        """Return it as text."""
        return json.dumps(astuple(self))

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Parse what `to_json` returned."""
        fragment, first, end, pieces, rows, failed = json.loads(text)
        return cls(fragment, first, end, tuple(pieces), rows, tuple((row_id, message) for row_id, message in failed))


def _to_schema(columns: Sequence[Any], schema: pa.Schema) -> pa.RecordBatch:
    arrays = [column.cast(field.type) for column, field in zip(columns, schema, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _take_over(records: Mapping[str, Any], version: int, at: TableLocation) -> list[MadeRows]:
    """Return what an earlier call has made of each fragment from its start on, as far as its files still exist."""
    all_parts = _parse_made(records, version)
    lost = find_lost_fragments({piece for part in all_parts for piece in part.pieces}, at)
    by_start = {(part.fragment, part.first): part for part in all_parts if lost.isdisjoint(part.pieces)}
    usable_parts = []
    # Without gaps: what comes after a part that is lost is made again with it, as nobody knows where that ended.
    for fragment in {part.fragment for part in all_parts}:
        first: int | None = 0
        while first is not None and (next_part := by_start.get((fragment, first))) is not None:
            usable_parts.append(next_part)
            first = next_part.end
    return usable_parts


def _parse_made(records: Mapping[str, Any], version: int) -> list[MadeRows]:
    """Return what records of a job say was made of a version of the source."""
    return [MadeRows.from_json(text) for key, text in records.items() if key.startswith(f"{version} ")]


LINEAGE = pa.schema(
    [
        ("table", pa.string()),
        ("column", pa.string()),
        ("source", pa.string()),
        ("inputs", pa.list_(pa.string())),
        ("function", pa.string()),
        ("version", pa.string()),
    ]
)


def list_lineage(address: TableAddress) -> pa.Table:
    """Return what computed columns of a table, and the table itself if it is a view, come from, and so on upwards."""
    rows: list[dict[str, Any]] = []
    visited: set[tuple[str, ...]] = set()
    todo = [address]
    while todo:
        current = todo.pop()
        if current.id in visited:
            continue
        visited.add(current.id)
        try:
            dataset, name = current.to_ref().open(), format_levels(current.id)
            view = ViewDefinition.from_schema(dataset.schema)
        except (TableNotFoundError, NamespaceNotFoundError, PermissionDeniedError, InvalidInputError):
            if current is address:
                raise
            continue  # the source of a view was dropped, is not for the caller, or is named so that nothing can be
        for column, definition in definitions(dataset.schema).items():
            inputs = name_inputs(dataset, definition)
            rows.append(_lineage_row(name, column, name, inputs, definition.label, definition.version))
        if view is not None:
            inputs = [*view.inputs, *view.columns]
            source = format_levels(view.source)
            rows.append(_lineage_row(name, None, source, inputs, view.function or "SQL", view.version))
            todo.append(TableAddress(current.connection, view.source))
    return pa.Table.from_pylist(rows, LINEAGE)


def _lineage_row(
    table: str, column: str | None, source: str, inputs: list[str], function: str, version: str
) -> dict[str, Any]:
    return dict(zip(LINEAGE.names, (table, column, source, inputs, function, version), strict=True))
