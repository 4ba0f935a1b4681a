"""Materialized views: tables whose rows are made of those of another table, and made again where it changed.

Each row of the source becomes none, one or many. A refresh replaces what came of rows that are new, changed or deleted,
in one commit; done twice, it changes nothing.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Self
from uuid import uuid4

import lance
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from lance_namespace.errors import (
    ConcurrentModificationError,
    InvalidInputError,
    TableAlreadyExistsError,
    TableColumnNotFoundError,
    TableNotFoundError,
    TableVersionNotFoundError,
)

from lancehouse.identifiers import format_levels, quote_name
from lancehouse.jobs.address import PinnedVersion, TableAddress
from lancehouse.jobs.column_filling import TASKS_EACH, UPDATED, FillOptions
from lancehouse.jobs.column_functions import ColumnFunction, FunctionCaller, check_column_type, definitions
from lancehouse.jobs.engine import Engine
from lancehouse.jobs.fill_progress import ReportFill, watch_fill
from lancehouse.jobs.fingerprints import json_digest
from lancehouse.jobs.index_building import optimize_stale_indices
from lancehouse.jobs.job import Job, declare_table
from lancehouse.lake.chunked_scan import has_blobs
from lancehouse.lake.commits import (
    RUN,
    FileLayout,
    NewFragment,
    create,
    find_lost_fragments,
    find_version,
    find_version_of_run,
    locate_table,
    parse_new_fragments,
    write_uncommitted,
)
from lancehouse.lake.dataset import TableRef, translate_refusals
from lancehouse.lake.errors import translate_errors
from lancehouse.lake.manifests import read_transaction_uuid
from lancehouse.lake.row_changes import ATTEMPTS, commit_rewrite, delete_rows, offsets_by_fragment
from lancehouse.lake.scans import COMPANION, VersionSelector
from lancehouse.schema.walk import check_types, relax_nullability

VIEW = b"lancehouse.view"
"""Key of a schema's metadata that holds the definition of a view."""
REFRESHED = "lancehouse.view.refreshed"
"""Key of a table's configuration: the version of the source that the view shows, and its transaction."""
SOURCE_ROW = f"{COMPANION}source"
"""Column of a view with the row id of the source's row."""
START = "start"
"""Key of a job's record: what it began with."""


@dataclass(frozen=True, slots=True)
class ViewDefinition:
    """What a view is made of, as its table keeps it."""

    source: tuple[str, ...]
    columns: Mapping[str, str]
    """Columns that are taken from the source's row, as SQL."""
    where: str | None = None
    function: str = ""
    """`module:name` of the function that makes further columns, or empty."""
    version: str = ""
    inputs: tuple[str, ...] = ()
    digest: str = ""
    names: tuple[str, ...] = ()
    """The columns that the view makes; others may have been added to it, such as computed ones."""

    def to_metadata(self) -> str:
        """Return the definition as JSON."""
        return json.dumps(asdict(self))

    @classmethod
    def from_schema(cls, schema: pa.Schema) -> Self | None:
        """Return the definition of a view; None for other tables.

        Raises:
            InvalidInputError: it cannot be read: whoever writes the table can write anything there.
        """
        text = (schema.metadata or {}).get(VIEW)
        if text is None:
            return None
        try:
            fields = json.loads(text)
            lists = {name: tuple(map(str, fields[name])) for name in ("source", "inputs", "names")}
            return cls(**{**fields, **lists, "columns": dict(fields["columns"])})
        except (ValueError, TypeError, KeyError) as error:
            raise InvalidInputError(f"the definition of the view cannot be read ({error}); create it anew") from error

    def matches(self, function: ColumnFunction | None) -> bool:
        """Return whether the view is made by this function."""
        if function is None:
            return not self.function
        return (self.function, self.version, self.digest) == (function.name, function.version, function.digest)


@dataclass(frozen=True, slots=True)
class RefreshResult:
    """What a refresh did."""

    version: int
    """The version that it made, or the latest one if there was nothing to do."""
    source_version: int
    """The version of the source that the view shows."""
    inserted: int = 0
    deleted: int = 0
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
    given = ViewDefinition(source.id, dict(columns), where)
    if function is not None:
        parts = (function.name, function.version, function.inputs, function.digest)
        given = ViewDefinition(source.id, dict(columns), where, *parts)
    pinned = PinnedVersion.resolve(source, VersionSelector())
    schema = _view_schema(pinned, given, function)
    given = replace(given, names=tuple(schema.names))
    table = address.to_ref()
    if not table.exists():
        declare_table(table)
        metadata = {VIEW: given.to_metadata()}
        create(table, locate_table(table), schema.with_metadata(metadata), [])
    else:
        _redefine(table, given, schema)
    return refresh_view(engine, address, function, options, report)


def _redefine(table: TableRef, given: ViewDefinition, schema: pa.Schema) -> None:
    with table.dataset() as dataset:
        existing = ViewDefinition.from_schema(dataset.schema)
        if existing is None or existing.names != given.names or not _own_schema(dataset, existing).equals(schema):
            what = "a view with other columns" if existing else "a table that is no view"
            raise TableAlreadyExistsError(f"{table}: there is {what}; drop it first")
        if existing != given:
            dataset.delete_config_keys([REFRESHED])  # all rows are made again
            dataset.update_schema_metadata({VIEW.decode(): given.to_metadata()})


def _view_schema(pinned: PinnedVersion, definition: ViewDefinition, function: ColumnFunction | None) -> pa.Schema:
    """Return the columns of a view: those that are taken, those that its function makes, and the source's row id."""
    table, dataset = pinned.open()
    if not dataset.has_stable_row_ids:
        raise InvalidInputError(
            f"{table} has no stable row ids, so that a view cannot tell which rows changed: copy it into a new table"
        )
    if missing := [name for name in definition.inputs if name not in dataset.schema.names]:
        raise TableColumnNotFoundError(f"{table} has no column {', '.join(missing)}")
    with translate_errors(table, table.storage_options):
        scanner = dataset.scanner(columns=dict(definition.columns) or [], filter=definition.where, with_row_id=True)
        scanner.explain_plan()
        # Without their metadata: a computed column of the source is none of the view's.
        taken = [each.remove_metadata() for each in scanner.projected_schema if each.name != "_rowid"]
        if blobs := [each.name for each in scanner.projected_schema if has_blobs(each)]:
            raise InvalidInputError(f"a view cannot take blobs along, such as {', '.join(blobs)}: read them by row id")
    fields = [*taken, *(_made_fields(function) if function is not None else ())]
    if len({each.name for each in fields}) != len(fields) or not fields:
        raise InvalidInputError("a view has at least one column, and each name once")
    schema = relax_nullability(pa.schema([*fields, pa.field(SOURCE_ROW, pa.int64())]).remove_metadata())
    check_types(schema)
    return schema


def _own_schema(view: lance.LanceDataset, definition: ViewDefinition) -> pa.Schema:
    """Return the columns that the view makes."""
    return pa.schema([view.schema.field(name) for name in definition.names])


def _made_fields(function: ColumnFunction) -> list[pa.Field[Any]]:
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
        ConcurrentModificationError: others kept changing the view, so that all attempts failed.
    """
    if options.rules.on_error != "fail":
        raise InvalidInputError('on_error: a view that leaves out rows would not tell which; only "fail" is possible')
    table, begun = address.to_ref(), time.monotonic()
    for attempt in range(ATTEMPTS):
        dataset = table.open()
        definition = ViewDefinition.from_schema(dataset.schema)
        if definition is None:
            raise InvalidInputError(f"{table} is no materialized view")
        if function is None and definition.function:
            function = ColumnFunction.load(definition.function)
        if not definition.matches(function):
            raise InvalidInputError(
                f"{table} is made by {definition.function} of version {definition.version}, and this is another "
                "function, version or code; create_materialized_view takes it over"
            )
        try:
            result = _Refresh(engine, address, definition, function, options, report).run(dataset)
            version = optimize_stale_indices(engine, address) if options.optimize_indices else result.version
            return replace(result, version=max(version, result.version), seconds=time.monotonic() - begun)
        except ConcurrentModificationError:
            if attempt == ATTEMPTS - 1:
                raise
    raise AssertionError("each attempt ends above")


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
        since = _find_shown_version(source, view.config().get(REFRESHED))
        job = Job(self.address, f"refresh-{json_digest([self.definition.to_metadata(), since])}")
        progress = job.progress()
        records = progress.read_records()
        started = records.pop(START, None) or {}
        if started and find_version_of_run(table, started["run"]) is not None:
            # An earlier call died after its commit.
            return self._finish(table, job, started["version"], started["uuid"])
        pinned, run = _pin_source(source, started.get("version")), started.get("run", uuid4().hex)
        if pinned.version == since:
            return RefreshResult(int(view.version), since)
        uuid = pinned.transaction_uuid
        progress.record(START, {"version": pinned.version, "uuid": uuid, "run": run})
        at = job.write_location()
        known = {key: value for key, value in records.items() if isinstance(value, list)}
        lost = find_lost_fragments({piece for pieces in known.values() for piece in pieces}, at)
        known = {key: pieces for key, pieces in known.items() if lost.isdisjoint(pieces)}
        pieces = self._make_rows(job, pinned, since, view.data_storage_version, known)
        stale = self._find_stale(pinned, since, view)
        change = delete_rows(table, view, offsets_by_fragment([stale]) if len(stale) else {})
        version = commit_rewrite(
            table,
            at,
            view,
            replace(change, new=tuple(pieces)),
            view.schema.names,
            {RUN: run},
            is_merge=True,
        )
        written = parse_new_fragments(pieces)
        inserted = sum(each.physical_rows for each in written)
        size = sum(file.file_size_bytes or 0 for each in written for file in each.files)
        result = self._finish(table, job, pinned.version, uuid)
        return replace(result, version=max(version, result.version), inserted=inserted, deleted=change.rows, bytes=size)

    def _finish(self, table: TableRef, job: Job, source_version: int, uuid: str) -> RefreshResult:
        with table.dataset() as dataset, translate_refusals(table.namespace, table.id):
            dataset.update_config({REFRESHED: json.dumps([source_version, uuid])})
        job.progress().clear()
        return RefreshResult(int(dataset.version), source_version)

    def _condition(self, source: lance.LanceDataset, since: int) -> str | None:
        """Return which rows of the source are new or changed: by a change of the row, or of a computed column."""
        filled = [f"{quote_name(each.companion)}.at >= {since}" for each in definitions(source.schema).values()]
        conditions = [f"({' OR '.join([f'{UPDATED} > {since}', *filled])})"] if since else []
        if self.definition.where is not None:
            conditions.append(f"({self.definition.where})")
        return " AND ".join(conditions) or None

    def _make_rows(
        self, job: Job, pinned: PinnedVersion, since: int, storage_version: str, known: Mapping[str, list[NewFragment]]
    ) -> list[NewFragment]:
        """Write the rows that come of new and changed rows; what an earlier call has written is taken over."""
        _, dataset = pinned.open()
        fragments = [each.fragment_id for each in dataset.get_fragments()]
        todo = [each for each in fragments if f"{pinned.version} {each}" not in known]
        made = [piece for each in fragments for piece in known.get(f"{pinned.version} {each}", ())]
        condition = self._condition(dataset, since)
        definition, function, options = self.definition, self.function, self.options
        schema = _own_schema(self.address.to_ref().open(), definition)

        def work(fragments: Sequence[int]) -> Iterator[str]:
            maker = RowMaker(definition, function, options, schema, condition)
            for fragment in fragments:
                pieces = maker.write(job, pinned, fragment, storage_version)
                job.progress().record(f"{pinned.version} {fragment}", pieces)
                yield from pieces

        tasks = min(len(todo), options.max_concurrency or self.engine.parallelism * TASKS_EACH)
        groups = [todo[each::tasks] for each in range(tasks)]
        rows = Counter[int]()

        def count_all() -> int:
            scanner = dataset.scanner(columns=[], filter=condition, with_row_address=True)
            numbers = scanner.to_table()["_rowaddr"].to_numpy() >> np.uint64(32)
            rows.update(
                {int(key): int(count) for key, count in zip(*np.unique(numbers, return_counts=True), strict=True)}
            )
            return sum(rows[each] for each in todo)

        def count_done(records: Mapping[str, Any]) -> tuple[int, int]:
            return sum(rows[each] for each in todo if f"{pinned.version} {each}" in records), 0

        name, progress = format_levels(self.address.id), job.progress()
        with watch_fill(self.report, name, progress, {START, *known}, count_all, count_done):
            return made + self.engine.run(groups, work, options.resources)

    def _find_stale(self, pinned: PinnedVersion, since: int, view: lance.LanceDataset) -> pa.Array[Any]:
        """Return the addresses of rows of the view whose source was changed or deleted, or does not match any more."""
        _, source = pinned.open()
        alive, changed = (
            source.scanner(columns=[], filter=condition, with_row_id=True).to_table()["_rowid"].to_numpy()
            for condition in (self.definition.where, self._condition(source, since))
        )
        unchanged = np.setdiff1d(alive, changed).astype(np.int64)
        rows = view.scanner(columns=[SOURCE_ROW], with_row_address=True).to_table()
        is_stale = ~np.isin(rows[SOURCE_ROW].to_numpy(), unchanged)
        stale: pa.Array[Any] = rows["_rowaddr"].combine_chunks().filter(pa.array(is_stale))
        return stale


def _find_shown_version(source: TableAddress, refreshed: str | None) -> int:
    """Return the version of the source that the view shows; 0 if changes since cannot be told by their numbers.

    That is so if the source was created anew, that version was cleaned up, or an older one was restored since.
    """
    try:
        version, uuid = json.loads(refreshed or "null")
        is_same = read_transaction_uuid(source.to_ref(version=int(version)).open()) == uuid
    except (TableVersionNotFoundError, ValueError, TypeError):
        return 0
    if not is_same or find_version(source.to_ref(), _is_restore, after=version) is not None:
        return 0
    return int(version)


def _is_restore(transaction: lance.Transaction) -> bool:
    return isinstance(transaction.operation, lance.LanceOperation.Restore)


def _pin_source(source: TableAddress, version: int | None) -> PinnedVersion:
    """Return the version of the source to show: that of an earlier call that died, if it exists, or the latest."""
    try:
        return PinnedVersion.resolve(source, VersionSelector(version))
    except TableVersionNotFoundError:
        return PinnedVersion.resolve(source, VersionSelector())


@dataclass(frozen=True, slots=True)
class RowMaker:
    """Makes the rows of a view from rows of its source; can be sent to other processes."""

    definition: ViewDefinition
    function: ColumnFunction | None
    options: FillOptions
    schema: pa.Schema
    condition: str | None

    def write(self, job: Job, pinned: PinnedVersion, fragment: int, storage_version: str) -> list[NewFragment]:
        """Write the rows that come of a fragment of the source, without a commit."""
        batches = self._make(pinned, fragment)
        first = next(batches, None)
        if first is None:
            return []
        reader = pa.RecordBatchReader.from_batches(self.schema, _chain(first, batches))
        layout = FileLayout(data_storage_version=storage_version)
        return write_uncommitted(job.to_ref(), job.write_location(), reader, mode="append", layout=layout)

    def _make(self, pinned: PinnedVersion, fragment: int) -> Iterator[pa.RecordBatch]:
        table, dataset = pinned.open()
        inputs = {f"input {number}": quote_name(name) for number, name in enumerate(self.definition.inputs)}
        with translate_errors(table, table.storage_options):
            scanner = dataset.scanner(
                columns={**self.definition.columns, **inputs},
                filter=self.condition,
                with_row_id=True,
                fragments=[dataset.get_fragment(fragment)],
                batch_size=self.options.batch_rows,
                strict_batch_size=True,
                blob_handling="all_binary",
                scan_in_order=True,
            )
            for batch in scanner.to_batches():
                made = self._expand(batch, list(inputs))
                if made.num_rows:
                    yield made

    def _expand(self, batch: pa.RecordBatch, inputs: Sequence[str]) -> pa.RecordBatch:
        """Return the rows that come of a batch of the source's rows."""
        row_ids = batch.column("_rowid").cast(pa.int64())
        taken: list[Any] = [batch.column(name) for name in self.definition.columns]
        if self.function is None:
            return _to_schema([*taken, row_ids], self.schema)
        caller = FunctionCaller(self.function, self.function.returns, self.options.rules)
        values = caller.compute([batch.column(name) for name in inputs], lambda row: f"row id {row_ids[row]}").array
        counts = pc.fill_null(pc.list_value_length(values), 0).to_numpy(zero_copy_only=False)
        parents = np.repeat(np.arange(len(values)), counts)
        items: Any = pc.list_flatten(values)
        made = items.flatten() if pa.types.is_struct(items.type) else [items]
        return _to_schema([*(each.take(parents) for each in taken), *made, row_ids.take(parents)], self.schema)


def _to_schema(columns: Sequence[Any], schema: pa.Schema) -> pa.RecordBatch:
    arrays = [column.cast(field.type) for column, field in zip(columns, schema, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _chain(first: pa.RecordBatch, rest: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield first
    yield from rest


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
    seen: set[tuple[str, ...]] = set()
    todo = [address]
    while todo:
        current = todo.pop()
        if current.id in seen:
            continue
        seen.add(current.id)
        try:
            schema, name = current.to_ref().open().schema, format_levels(current.id)
        except TableNotFoundError:
            if current is address:
                raise
            continue  # the source of a view was dropped
        for column, known in definitions(schema).items():
            inputs = [each for _, each in known.inputs]
            rows.append(_lineage_row(name, column, name, inputs, known.label, known.version))
        if (view := ViewDefinition.from_schema(schema)) is not None:
            inputs = [*view.inputs, *view.columns]
            source = format_levels(view.source)
            rows.append(_lineage_row(name, None, source, inputs, view.function or "SQL", view.version))
            todo.append(TableAddress(current.connection, view.source))
    return pa.Table.from_pylist(rows, LINEAGE)


def _lineage_row(
    table: str, column: str | None, source: str, inputs: list[str], function: str, version: str
) -> dict[str, Any]:
    return dict(zip(LINEAGE.names, (table, column, source, inputs, function, version), strict=True))
