"""Operations of the Lance interface on rows: create a table, insert, merge, update, delete, count."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from types import MappingProxyType
from typing import Any, ClassVar, cast

import lance
from lance_namespace import (
    CountTableRowsRequest,
    CountTableRowsResponse,
    CreateTableRequest,
    CreateTableResponse,
    DeclareTableRequest,
    DeclareTableResponse,
    DeleteFromTableRequest,
    DeleteFromTableResponse,
    DeregisterTableRequest,
    DescribeTableRequest,
    DescribeTableResponse,
    InsertIntoTableRequest,
    InsertIntoTableResponse,
    LanceNamespace,
    MergeInsertIntoTableRequest,
    MergeInsertIntoTableResponse,
    UpdateTableRequest,
    UpdateTableResponse,
)
from lance_namespace.errors import (
    InternalError,
    InvalidInputError,
    LanceNamespaceError,
    TableAlreadyExistsError,
    TableNotFoundError,
)

from lancehouse.errors import CommitStateUnknownError
from lancehouse.lake import commits
from lancehouse.lake.chunked_scan import count_rows, has_large_rows
from lancehouse.lake.commits import (
    CreateConflictError,
    TableLocation,
    create_with_rows,
    locate_table,
    write_uncommitted,
)
from lancehouse.lake.dataset import MAIN, TableRef, enclose_sql, exists, translate_refusals
from lancehouse.lake.dataset_files import remove_dataset
from lancehouse.lake.errors import translate_errors
from lancehouse.lake.row_changes import ColumnUpdate, delete_in_batches, update_in_batches
from lancehouse.lake.row_streams import Data, RowSource, RowStream, raise_stream_error, read_stream
from lancehouse.modes import parse_choice

Entry = DeclareTableResponse | DescribeTableResponse

_UNITS = MappingProxyType({"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0})
_DURATION = re.compile(r"(?:\d+(?:\.\d+)?(?:ms|s|m|h))+")


class RowOperations(LanceNamespace):
    """Operations on rows, for any catalog that implements describe, declare and deregister."""

    writes_metadata: ClassVar[bool] = False
    """Whether the catalog writes Iceberg metadata next to a table, which is removed together with its data."""

    def create_table(self, request: CreateTableRequest, request_data: Data) -> CreateTableResponse:
        """Declare a table and write its first rows. A table that is only declared gets them, whatever the mode.

        If the rows cannot be written, an entry that this call created is removed again. Data that existed before is
        never removed: overwriting adds a version.
        """
        mode = parse_choice("mode", request.mode, "Create", "ExistOk", "Overwrite")
        rows = read_stream(request_data, request.id)
        with raise_stream_error(rows):
            return self._create_with_rows(request, mode, rows)

    def _create_with_rows(self, request: CreateTableRequest, mode: str, rows: RowSource) -> CreateTableResponse:
        if (existing := self._find_entry(request)) is not None:
            return self._create_in_entry(request, existing, mode, rows)
        try:
            entry = self.declare_table(
                DeclareTableRequest(
                    identity=request.identity, context=request.context, id=request.id, properties=request.properties
                )
            )
        except TableAlreadyExistsError:
            if (existing := self._find_entry(request)) is None:
                raise
            return self._create_in_entry(request, existing, mode, rows)
        try:
            version = self._write_version(request, entry, mode, rows)
        except (CreateConflictError, CommitStateUnknownError):
            raise  # the table there now is another writer's, or perhaps this call's: do not remove its entry
        except BaseException as error:
            self._undo_declaration(request.id, entry, error)
            raise
        return _to_create_response(entry, version)

    def insert_into_table(self, request: InsertIntoTableRequest, request_data: Data) -> InsertIntoTableResponse:
        """Append rows or replace all rows. A table that is only declared is created with them."""
        mode = parse_choice("mode", request.mode, "Append", "Overwrite")
        rows = read_stream(request_data, request.id)
        with raise_stream_error(rows):
            version = self._insert(TableRef.in_namespace(self, request.id, branch=request.branch), rows, mode)
        return InsertIntoTableResponse(num_inserted_rows=rows.num_rows, version=version)

    def merge_insert_into_table(
        self, request: MergeInsertIntoTableRequest, request_data: Data
    ) -> MergeInsertIntoTableResponse:
        """Update, insert and delete rows by key, in one commit. A clause is also turned on by its filter alone."""
        if not request.on:
            raise InvalidInputError("merge_insert_into_table needs `on`, the columns to match by")
        timeout = None if request.timeout is None else parse_duration(request.timeout)
        rows = read_stream(request_data, request.id)
        table = TableRef.in_namespace(self, request.id, branch=request.branch)
        try:
            with raise_stream_error(rows), table.dataset() as dataset:
                counts = _merge_builder(dataset, request, timeout).execute(
                    rows.to_reader() if isinstance(rows, RowStream) else rows
                )
        except TableNotFoundError:
            if not request.when_not_matched_insert_all:
                raise
            with raise_stream_error(rows):
                version = self._write_first_version(table, rows, "Append")
            return MergeInsertIntoTableResponse(
                num_updated_rows=0, num_inserted_rows=rows.num_rows, num_deleted_rows=0, version=version
            )
        return MergeInsertIntoTableResponse(**counts, version=dataset.version)

    def update_table(self, request: UpdateTableRequest) -> UpdateTableResponse:
        """Set columns to SQL expressions, in the rows that match the predicate or in all. Properties do not change."""
        updates = dict(request.updates)
        if not updates or len(updates) < len(request.updates):
            raise InvalidInputError("update_table needs [column, expression] pairs, each column once")
        table = TableRef.in_namespace(self, request.id, branch=request.branch)
        with table.dataset() as dataset:
            if not _needs_batches(table, dataset):
                expressions = {name: enclose_sql(expression) for name, expression in updates.items()}
                updated = dataset.update(expressions, where=enclose_sql(request.predicate))
                return UpdateTableResponse(updated_rows=updated["num_rows_updated"], version=dataset.version)
        rows, version = update_in_batches(table, ColumnUpdate(updates, request.predicate))
        return UpdateTableResponse(updated_rows=rows, version=version)

    def delete_from_table(self, request: DeleteFromTableRequest) -> DeleteFromTableResponse:
        """Delete the rows that match the predicate."""
        if not request.predicate.strip():
            raise InvalidInputError("delete_from_table needs a predicate; `true` deletes all rows")
        table = TableRef.in_namespace(self, request.id, branch=request.branch)
        with table.dataset() as dataset:
            if not _needs_batches(table, dataset):
                dataset.delete(enclose_sql(request.predicate))
                return DeleteFromTableResponse(version=dataset.version)
        return DeleteFromTableResponse(version=delete_in_batches(table, request.predicate))

    def count_table_rows(self, request: CountTableRowsRequest) -> CountTableRowsResponse:
        """Count all rows, or those that match the predicate."""
        with TableRef.in_namespace(
            self, request.id, version=request.version, branch=request.branch
        ).dataset() as dataset:
            count = count_rows(dataset, request.predicate) if request.predicate else dataset.count_rows()
            return CountTableRowsResponse(count=count)

    def _insert(self, table: TableRef, rows: RowSource, mode: str) -> int:
        """Insert rows, or create the table with them if it is only declared; return the new version."""
        try:
            return _add_rows(table, rows, mode)
        except TableNotFoundError:
            return self._write_first_version(table, rows, mode)

    def _find_entry(self, request: CreateTableRequest) -> DescribeTableResponse | None:
        """Describe the table; return None if it has no entry.

        Called before the table is declared, so that an older entry is never mistaken for one that this call created.
        """
        try:
            return self.describe_table(
                DescribeTableRequest(identity=request.identity, context=request.context, id=request.id)
            )
        except TableNotFoundError:
            return None

    def _create_in_entry(
        self, request: CreateTableRequest, entry: Entry, mode: str, rows: RowSource
    ) -> CreateTableResponse:
        """Create a table in an entry that this call did not create, and that it therefore never removes."""
        try:
            version = self._write_version(request, entry, mode, rows)
        except TableAlreadyExistsError:
            if mode != "ExistOk":
                raise
            return _to_create_response(entry, None)
        return _to_create_response(entry, version)

    def _write_version(self, request: CreateTableRequest, entry: Entry, mode: str, rows: RowSource) -> int:
        """Write the first version of a table, or the next one if the mode is Overwrite."""
        location, table_id = _require_location(entry), list(request.id or ())
        options = {**(entry.storage_options or {}), **(request.storage_options or {})}
        about = f"table {'.'.join(table_id)}"
        client: LanceNamespace = self
        if request.storage_options:
            client = cast("LanceNamespace", _OptionsOverride(self, request.storage_options))
        managed = entry.managed_versioning is True
        table = TableRef.in_namespace(client, table_id)
        if not (table.exists() if managed else exists(location, options)):
            return create_with_rows(table, TableLocation(location, options, managed), rows)
        if mode != "Overwrite":
            raise TableAlreadyExistsError(f"{about}: there is a Lance table at {location}")
        with translate_refusals(client, table_id), translate_errors(about, options):
            reader = rows.to_reader()
            dataset = lance.write_dataset(reader, namespace_client=client, table_id=table_id, mode="overwrite")
            return int(dataset.version)

    def _write_first_version(self, table: TableRef, rows: RowSource, mode: str) -> int:
        """Write the first version of a declared table; if another writer has just done so, insert into theirs."""
        if table.branch not in (None, MAIN):
            raise TableNotFoundError(f"{table}: the table has no data yet, and therefore no branches")
        entry = self.describe_table(DescribeTableRequest(id=list(table.id)))
        try:
            return self._write_version(CreateTableRequest(id=list(table.id)), entry, "Create", rows)
        except TableAlreadyExistsError:
            return _add_rows(table, rows, mode)

    def _undo_declaration(self, id: list[str] | None, entry: Entry, error: BaseException) -> None:
        """Remove a declared entry; if that fails, add a note to the error that is being raised."""
        try:
            self.deregister_table(DeregisterTableRequest(id=id))
            if not exists(_require_location(entry), entry.storage_options):
                remove_dataset(_require_location(entry), entry.storage_options, metadata=self.writes_metadata)
        except LanceNamespaceError as left:
            error.add_note(f"and what this had begun could not be taken back: {left}")


class _OptionsOverride:
    """A namespace whose storage options are overridden by those of a request; in pylance the namespace's would win."""

    def __init__(self, namespace: LanceNamespace, storage_options: Mapping[str, str]) -> None:
        self._namespace = namespace
        self._storage_options = storage_options

    def describe_table(self, request: DescribeTableRequest) -> DescribeTableResponse:
        entry = self._namespace.describe_table(request)
        return entry.model_copy(update={"storage_options": {**(entry.storage_options or {}), **self._storage_options}})

    def __getattr__(self, name: str) -> Any:
        return getattr(self._namespace, name)


@contextmanager
def explain_existing(namespace: LanceNamespace, id: Sequence[str] | None) -> Iterator[None]:
    """Explain in a TableAlreadyExistsError that the table is only declared, and what to do.

    pylance declares a table before it writes, and leaves the entry behind if the write fails.
    """
    try:
        yield
    except TableAlreadyExistsError as error:
        if not _is_only_declared(namespace, id):
            raise
        raise TableAlreadyExistsError(
            f"{error}; it is declared and has no data, as after a write that failed: append to it, which creates it, "
            "or deregister it first"
        ) from error


def _is_only_declared(namespace: LanceNamespace, id: Sequence[str] | None) -> bool:
    """Return whether a table is declared without data; False if that cannot be found out."""
    request = DescribeTableRequest(id=list(id or ()), check_declared=True)
    try:
        with translate_errors("table"):
            return bool(namespace.describe_table(request).is_only_declared)
    except LanceNamespaceError:
        return False


def parse_duration(text: str) -> timedelta:
    """Parse a duration such as `30s`, `5m` or `1m30s`.

    Raises:
        InvalidInputError: it has no unit, is not a duration, or is one of more than a million years.
    """
    if not _DURATION.fullmatch(text):
        raise InvalidInputError(f"timeout {text!r} is no time span such as 100ms, 30s, 5m or 1h30m")
    parts = re.findall(r"([\d.]+)(ms|s|m|h)", text)
    try:
        return timedelta(seconds=sum(float(number) * _UNITS[unit] for number, unit in parts))
    except OverflowError as error:
        raise InvalidInputError(f"timeout {text!r} is longer than Python can count") from error


def _require_location(entry: Entry) -> str:
    if not entry.location:
        raise InternalError("the catalog did not say where the table is")
    return entry.location


def _to_create_response(entry: Entry, version: int | None) -> CreateTableResponse:
    return CreateTableResponse(
        location=entry.location, version=version, storage_options=entry.storage_options, properties=entry.properties
    )


def _add_rows(table: TableRef, rows: RowSource, mode: str) -> int:
    with table.dataset() as dataset:
        if not isinstance(rows, RowStream) or table.branch not in (None, MAIN):
            return int(lance.write_dataset(rows.to_reader(), dataset, mode=mode.lower()).version)
    # A stream can be read only once, and Lance would need the rows again if its commit met another one. So they are
    # written first, and what is committed, perhaps several times, are the files.
    at = locate_table(table)
    new_fragments = write_uncommitted(table, at, rows.to_reader(), mode=mode.lower())
    with commits.discard_if_refused(new_fragments, at):
        if mode == "Append":
            return commits.append(table, at, new_fragments, dataset.version)
        return commits.overwrite(table, at, rows.schema, new_fragments, dataset.version)


def _needs_batches(table: TableRef, dataset: lance.LanceDataset) -> bool:
    """Return whether Lance's own delete and update would take too much memory.

    The alternatives, which work in batches, support the main branch only.
    """
    return table.branch in (None, MAIN) and has_large_rows(dataset)


def _merge_builder(
    dataset: lance.LanceDataset, request: MergeInsertIntoTableRequest, timeout: timedelta | None
) -> lance.MergeInsertBuilder:
    merge = dataset.merge_insert(request.on).use_index(bool(request.use_index))
    if request.when_matched_update_all or request.when_matched_update_all_filt:
        merge.when_matched_update_all(request.when_matched_update_all_filt)
    if request.when_not_matched_insert_all:
        merge.when_not_matched_insert_all()
    if request.when_not_matched_by_source_delete or request.when_not_matched_by_source_delete_filt:
        merge.when_not_matched_by_source_delete(request.when_not_matched_by_source_delete_filt)
    return merge if timeout is None else merge.retry_timeout(timeout)
