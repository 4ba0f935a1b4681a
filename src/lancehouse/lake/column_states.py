"""Computed columns and views for display: what makes them, which rows are filled, and for which they failed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from operator import itemgetter
from typing import Any

import lance
import pyarrow as pa
from lance_namespace.errors import InvalidInputError

from lancehouse.identifiers import quote_name
from lancehouse.lake.commits import TableLocation, locate_table
from lancehouse.lake.confinement import require_no_link
from lancehouse.lake.dataset import TableRef
from lancehouse.lake.job_records import JobProgress
from lancehouse.locations import local_folder
from lancehouse.schema.definitions import FAILED, FILLED, SKIPPED, ColumnDefinition, ViewDefinition, definitions
from lancehouse.schema.display import format_type
from lancehouse.schema.walk import require_columns
from lancehouse.secrets import redact

LONGEST_MESSAGE = 500
"""Characters of an exception that are shown."""
MAX_RECORDS = 8
MAX_RECORD_BYTES = 8 << 20
"""Limits of what a server reads of the exceptions of a column."""
VIEW_ERRORS = "failed"
"""Key of the record with the rows of the source that a view has nothing of, since its function failed for them."""
_RESULT = ("_rowid", "state", "version", "exception")


@dataclass(frozen=True, slots=True)
class ComputedColumn:
    """A computed column, with the present names of its inputs."""

    column: str
    type: str
    function: str
    version: str
    inputs: tuple[str, ...]
    since: int
    """Version of the table in which it was defined."""
    title: str
    """Name and version of the function."""

    @property
    def label(self) -> str:
        """What makes it, for lists: the function, its version and its inputs."""
        return f"{self.title} of {', '.join(self.inputs)}" if self.inputs else self.title


@dataclass(frozen=True, slots=True)
class StateCounts:
    """Numbers of rows of a computed column."""

    filled: int
    missing: int
    """Rows that nobody has filled, or that another version of the function made."""
    failed: int


def describe_columns(dataset: lance.LanceDataset) -> list[ComputedColumn]:
    """Return the computed columns of an open version; nothing is read."""
    return [
        ComputedColumn(
            name,
            format_type(dataset.schema.field(name).type),
            definition.label,
            definition.version,
            tuple(name_inputs(dataset, definition)),
            definition.since,
            definition.title,
        )
        for name, definition in definitions(dataset.schema).items()
    ]


def name_inputs(dataset: lance.LanceDataset, definition: ColumnDefinition) -> list[str]:
    """Return the inputs of a computed column, as they are called now, or were when they were dropped."""
    names = {field.id(): field.name() for field in dataset.lance_schema.fields()}
    return [names.get(number, name) for number, name in definition.inputs]


def count_states(dataset: lance.LanceDataset, name: str) -> StateCounts:
    """Count the rows of a computed column by their state; this reads its companion.

    Raises:
        InvalidInputError: the column is not computed.
    """
    definition = _get_definition(dataset, name)
    total = int(dataset.count_rows())
    if definition.companion not in dataset.schema.names:
        return StateCounts(0, total, 0)
    companion = quote_name(definition.companion)
    filled, failed = (
        int(dataset.count_rows(f"{definition.made_by_it} AND {companion}.state {how} '{FILLED}'"))
        for how in ("=", "<>")
    )
    return StateCounts(filled, total - filled - failed, failed)


def read_failed_rows(
    table: TableRef, name: str, columns: Sequence[str] = (), offset: int = 0, limit: int | None = None
) -> pa.Table:
    """Return the rows for which the function that defines a column has failed.

    Their columns are the row id, `columns`, state, version and exception.

    Raises:
        InvalidInputError: the column is not computed, or `columns` has a name of the result.
        TableColumnNotFoundError: the table lacks one of `columns`.
    """
    with table.dataset() as dataset:
        definition = _get_definition(dataset, name)
        if reserved := [column for column in columns if column in _RESULT]:
            raise InvalidInputError(f"columns: {reserved[0]} is a column of the result; leave it out")
        require_columns(table, columns, dataset.schema.names)
        if (companion := definition.companion) not in dataset.schema.names:
            raise InvalidInputError(f"{table}: {companion}, which says what made the values of {name}, was dropped")
        rows = find_failed(dataset, name, columns, offset, limit)
        field_id = find_field_id(dataset, name)
        records = _read_records(table, lambda at: error_records(at, field_id)) if len(rows) else {}
    messages = {row_id: _clean(message) for row_id, message, *_ in sort_errors(records, definition.version)}
    row_ids: list[Any] = rows["_rowid"].to_pylist()
    return rows.append_column("exception", pa.array([messages.get(row_id) for row_id in row_ids], pa.string()))


def find_failed(
    dataset: lance.LanceDataset, name: str, columns: Sequence[str] = (), offset: int = 0, limit: int | None = None
) -> pa.Table:
    """Return row id, `columns`, state and version of the rows for which the function that defines a column failed."""
    definition = _get_definition(dataset, name)
    companion = quote_name(definition.companion)
    wanted = {"_rowid": "CAST(_rowid AS BIGINT)", **{column: quote_name(column) for column in columns}}
    wanted |= {part: f"{companion}.{part}" for part in ("state", "version")}
    condition = f"{companion}.state IN ('{FAILED}', '{SKIPPED}') AND {definition.made_by_it}"
    rows: pa.Table = dataset.to_table(columns=wanted, filter=condition, offset=offset or None, limit=limit)
    return rows


def find_field_id(dataset: lance.LanceDataset, name: str) -> int:
    """Return the id of a column's field."""
    return next(int(field.id()) for field in dataset.lance_schema.fields() if field.name() == name)


def error_records(at: TableLocation, field_id: int) -> JobProgress:
    """Return the records of the rows for which the function of a column has failed.

    They are found by the id of the column's field, which a renaming does not change, and which no other column gets.
    """
    return JobProgress(at.location, at.storage_options, f"column-{field_id}", "errors")


def sort_errors(records: Mapping[str, Any], version: str) -> list[tuple[int, str, str, int]]:
    """Return the errors of a version of the function, the newest last; what is no such record is left out."""
    errors = []
    for rows in records.values():
        with suppress(ValueError, TypeError):
            errors += [
                (int(row_id), str(message), function_version, int(at)) for row_id, message, function_version, at in rows
            ]
    return sorted((error for error in errors if error[2] == version), key=itemgetter(3))


def view_error_records(at: TableLocation) -> JobProgress:
    """Return the records of the rows of its source for which the function of a view has failed."""
    return JobProgress(at.location, at.storage_options, "view", "errors")


def parse_view_errors(records: Mapping[str, Any]) -> dict[int, tuple[str, str]]:
    """Return exceptions and versions of the function by row ids of the source; what is no such record is left out."""
    with suppress(ValueError, TypeError):
        rows = records.get(VIEW_ERRORS, [])
        return {int(row_id): (str(message), str(version)) for row_id, message, version in rows}
    return {}


def read_view_errors(table: TableRef, offset: int = 0, limit: int | None = None) -> list[dict[str, Any]]:
    """Return the rows of its source that a view leaves out: row id, state, version, exception. The source is not read.

    Raises:
        InvalidInputError: the table is no view.
    """
    with table.dataset() as dataset:
        if ViewDefinition.from_schema(dataset.schema) is None:
            raise InvalidInputError(f"{table} is no materialized view")
    errors = sorted(parse_view_errors(_read_records(table, view_error_records)).items())
    chosen = errors[offset:] if limit is None else errors[offset : offset + limit]
    parts = ((row_id, SKIPPED, _clean(version), _clean(message)) for row_id, (message, version) in chosen)
    return [dict(zip(_RESULT, part, strict=True)) for part in parts]


def _read_records(table: TableRef, find: Callable[[TableLocation], JobProgress]) -> dict[str, Any]:
    """Return the exceptions of a column or view; of a table of others not more than a server can hold."""
    at = locate_table(table)
    records = find(at)
    if table.confinement is None:
        return records.read_records()
    table.confinement.require_table(at.location)
    if (folder := local_folder(at.location)) is not None:
        require_no_link(folder, records.folder)
    return records.read_records(limit=MAX_RECORDS, max_bytes=MAX_RECORD_BYTES)


def _clean(message: str) -> str:
    """Return an exception as it may be shown; whoever can write to the table can write anything there."""
    return redact(message.encode(errors="replace").decode()[:LONGEST_MESSAGE], {})


def _get_definition(dataset: lance.LanceDataset, name: str) -> ColumnDefinition:
    defined = definitions(dataset.schema)
    if name not in defined:
        names = ", ".join(defined) or "none"
        raise InvalidInputError(f"{name} is no computed column; there is {names}")
    return defined[name]
