"""Plan scans of Lance tables: the fragments that may match a filter, as Parquet copies; filters as Lance's SQL.

Lance SQL only skips fragments without a matching row. A condition may hold for more rows than the filter, never for
fewer: Iceberg's readers do not agree on nulls and NaN in negations, Lance distinguishes 0.0 from -0.0, and Iceberg's
types are coarser than Lance's. In doubt, the condition is true.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime, timedelta
from functools import cached_property, partial
from typing import Any

import numpy as np
import orjson
import pyarrow as pa
from lance_namespace.errors import (
    LanceNamespaceError,
    PermissionDeniedError,
    TableNotFoundError,
    TableVersionNotFoundError,
)
from pyiceberg.expressions import BooleanExpression, BoundReference, BoundTerm
from pyiceberg.expressions.literals import AboveMax, BelowMin
from pyiceberg.expressions.visitors import BoundBooleanExpressionVisitor, bind, visit
from pyiceberg.schema import Schema

from lancehouse.catalog.errors import IllegalArgumentError
from lancehouse.catalog.location_access import ReadableLocations
from lancehouse.catalog.metadata_loader import LanceMetadataCache
from lancehouse.catalog.restricted_tables import copies_key
from lancehouse.catalog.scans.exports import ExportRequest, Exports
from lancehouse.catalog.scans.scan_requests import Filter, Json, ScanRequest, encode_task, scan_tasks, task_not_found
from lancehouse.catalog.warehouses import Warehouse
from lancehouse.lake.chunked_scan import group_up_to
from lancehouse.lake.dataset import VERSION_BITS, TableRef, from_snapshot_id
from lancehouse.lake.parquet_export import ExportFragment, VersionExporter
from lancehouse.lake.restricted_rows import VisiblePart
from lancehouse.store.model import EntryRow, ExportRow

TRUE = "true"
FALSE = "false"

Columns = Mapping[int, "pa.Field[Any]"]
"""Lance's columns by their Iceberg field id."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_INTEGERS = (pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64())
_STRINGS = (pa.string(), pa.large_string())
_FLOATS: Mapping[pa.DataType, type[np.floating[Any]]] = {pa.float32(): np.float32, pa.float64(): np.float64}
_MAX_LISTED = 1000
"""Most values of an `in` that are translated."""
_INT64_MAX = 2**63 - 1


def to_lance_sql(superset: BooleanExpression, schema: Schema, columns: Columns, *, case_sensitive: bool) -> str:
    """Return the SQL condition for a filter without negations.

    Args:
        superset: the filter, without negations.
        schema: the schema that its names refer to.
        columns: Lance's columns in the version that is scanned, by Iceberg id; a missing one is all null.
        case_sensitive: whether names are matched case-sensitively.
    """
    return visit(bind(schema, superset, case_sensitive), _SqlVisitor(columns))


class _SqlVisitor(BoundBooleanExpressionVisitor[str]):
    def __init__(self, columns: Columns) -> None:
        self._columns = columns

    def visit_true(self) -> str:
        return TRUE

    def visit_false(self) -> str:
        return FALSE

    def visit_not(self, child_result: str) -> str:  # noqa: ARG002 - there are no negations
        return TRUE

    def visit_and(self, left_result: str, right_result: str) -> str:
        if FALSE in (left_result, right_result):
            return FALSE
        parts = [part for part in (left_result, right_result) if part != TRUE]
        return _join(" AND ", parts) if parts else TRUE

    def visit_or(self, left_result: str, right_result: str) -> str:
        if TRUE in (left_result, right_result):
            return TRUE
        parts = [part for part in (left_result, right_result) if part != FALSE]
        return _join(" OR ", parts) if parts else FALSE

    def visit_is_null(self, term: BoundTerm) -> str:
        column = self._column(term)
        return TRUE if column is None or column.type == pa.null() else f"{_quote(column)} IS NULL"

    def visit_not_null(self, term: BoundTerm) -> str:
        column = self._column(term)
        return TRUE if column is None or column.type == pa.null() else f"{_quote(column)} IS NOT NULL"

    def visit_is_nan(self, term: BoundTerm) -> str:
        column = self._column(term)
        return TRUE if column is None or column.type not in _FLOATS else f"isnan({_quote(column)})"

    def visit_not_nan(self, term: BoundTerm) -> str:  # noqa: ARG002
        return TRUE

    def visit_in(self, term: BoundTerm, literals: set[Any]) -> str:
        if len(literals) > _MAX_LISTED:
            return TRUE
        equal = [self._compare(term, value, ">=", "<=") for value in literals]
        return TRUE if TRUE in equal else _join(" OR ", equal)

    def visit_not_in(self, term: BoundTerm, literals: set[Any]) -> str:  # noqa: ARG002
        return TRUE

    def visit_not_equal(self, term: BoundTerm, literal: Any) -> str:
        column = self._column(term)
        if column is None or (exact := _exact_literal(column.type, literal.value)) is None:
            return TRUE
        return f"({_quote(column)} IS NULL OR {_quote(column)} <> {exact})"

    def visit_equal(self, term: BoundTerm, literal: Any) -> str:
        return self._compare_literal(term, literal, ">=", "<=")

    def visit_greater_than_or_equal(self, term: BoundTerm, literal: Any) -> str:
        return self._compare_literal(term, literal, ">=")

    def visit_greater_than(self, term: BoundTerm, literal: Any) -> str:
        return self._compare_literal(term, literal, ">")

    def visit_less_than(self, term: BoundTerm, literal: Any) -> str:
        return self._compare_literal(term, literal, "<")

    def visit_less_than_or_equal(self, term: BoundTerm, literal: Any) -> str:
        return self._compare_literal(term, literal, "<=")

    def visit_starts_with(self, term: BoundTerm, literal: Any) -> str:
        column = self._column(term)
        if column is None or column.type not in _STRINGS or _is_extension(column):
            return TRUE
        return f"starts_with({_quote(column)}, {_string_literal(str(literal.value))})"

    def visit_not_starts_with(self, term: BoundTerm, literal: Any) -> str:  # noqa: ARG002
        return TRUE

    def _compare_literal(self, term: BoundTerm, literal: Any, *operators: str) -> str:
        return TRUE if isinstance(literal, (AboveMax, BelowMin)) else self._compare(term, literal.value, *operators)

    def _compare(self, term: BoundTerm, value: Any, *operators: str) -> str:
        column = self._column(term)
        if column is None or _is_extension(column) or (bounds := _sql_bounds(column.type, value)) is None:
            return TRUE
        name, (lower, upper) = _quote(column), bounds
        if lower == upper:
            return f"{name} = {lower}" if len(operators) > 1 else f"{name} {operators[0]} {lower}"
        parts = [f"{name} >= {lower}" if ">" in operator else f"{name} <= {upper}" for operator in operators]
        between = _join(" AND ", parts)
        # Engines disagree on whether NaN is greater or less than a number, or neither.
        return f"({between} OR isnan({name}))" if column.type in _FLOATS else between

    def _column(self, term: BoundTerm) -> pa.Field[Any] | None:
        """Return the column of a term; None for a nested field, or a name that cannot be quoted."""
        if not isinstance(term, BoundReference):
            return None
        column = self._columns.get(term.ref().field.field_id)
        return None if column is None or "`" in column.name else column


def _join(operator: str, parts: list[str]) -> str:
    return parts[0] if len(parts) == 1 else f"({operator.join(parts)})"


def _quote(column: pa.Field[Any]) -> str:
    return f"`{column.name}`"


def _is_extension(column: pa.Field[Any]) -> bool:
    return isinstance(column.type, pa.BaseExtensionType) or b"ARROW:extension:name" in (column.metadata or {})


def _exact_literal(dtype: pa.DataType, value: Any) -> str | None:
    """Return a value as a SQL literal that Lance compares without loss, or None."""
    if dtype in _INTEGERS:
        return str(int(value)) if _fits(dtype, int(value)) else None
    if dtype == pa.bool_():
        return TRUE if value else FALSE
    return _string_literal(value) if dtype in _STRINGS and isinstance(value, str) else None


def _sql_bounds(dtype: Any, value: Any) -> tuple[str, str] | None:
    """Return two SQL literals that enclose every Lance value that Iceberg sees as `value`, or None if unknown."""
    if (exact := _exact_literal(dtype, value)) is not None:
        return exact, exact
    if dtype in _FLOATS:
        return _float_bounds(_FLOATS[dtype], float(value))
    if dtype == pa.date32():
        return _date_bounds(int(value))
    if isinstance(dtype, pa.TimestampType):
        # Lance parses a literal in the column's time zone: a day on each side covers every zone.
        margin = timedelta(seconds=1) if dtype.tz is None else timedelta(days=1)
        return _timestamp_bounds(int(value), margin)
    if isinstance(dtype, pa.Decimal128Type) and dtype.scale >= 0:
        exact = f"cast('{value:f}' as decimal({dtype.precision}, {dtype.scale}))"
        return exact, exact
    return None


def _fits(dtype: pa.DataType, value: int) -> bool:
    unsigned = bool(pa.types.is_unsigned_integer(dtype))
    bits = int(dtype.bit_width) - (not unsigned)
    return (0 if unsigned else -(1 << bits)) <= value <= min((1 << bits) - 1, _INT64_MAX)


def _float_bounds(kind: type[np.floating[Any]], value: float) -> tuple[str, str] | None:
    with np.errstate(over="ignore"):
        below, above = (np.nextafter(kind(value), kind(side)) for side in (-np.inf, np.inf))
    if not (np.isfinite(below) and np.isfinite(above)):
        return None
    return f"{float(below)!r}", f"{float(above)!r}"


def _date_bounds(days: int) -> tuple[str, str] | None:
    try:
        day = f"date '{date(1970, 1, 1) + timedelta(days=days)}'"
    except OverflowError:
        return None
    return day, day


def _timestamp_bounds(micros: int, margin: timedelta) -> tuple[str, str] | None:
    try:
        lower, upper = (_EPOCH + timedelta(microseconds=micros) + side * margin for side in (-1, 1))
    except OverflowError:
        return None
    # Lance may compare in nanoseconds, which range from 1677 to 2262.
    if not 1678 <= lower.year <= upper.year <= 2261:
        return None
    return f"timestamp '{lower:%Y-%m-%d %H:%M:%S.%f}'", f"timestamp '{upper:%Y-%m-%d %H:%M:%S.%f}'"


def _string_literal(value: str) -> str:
    return "'" + value.replace("'", "''") + "'"


COPIED_BYTES = 64 << 20
"""Most bytes of Lance data that one response copies; the rest becomes plan tasks. No copy is larger than this."""
COPIES = 32
"""Most copies that one response creates."""

REPLACING = frozenset({"Overwrite", "Restore"})
"""Lance operations after which a column's id may belong to another column."""

FIRST = 1
"""The version that created the table."""

PRUNED_S = 3.0
"""Seconds that a plan may spend to find fragments without a matching row."""


class LanceScans:
    """Plans scans of Lance tables, and resolves their plan tasks."""

    def __init__(self, tables: LanceMetadataCache, exports: Exports) -> None:
        self._tables = tables
        self._exports = exports

    def plan(
        self, places: ReadableLocations, entry: EntryRow, request: ScanRequest, part: VisiblePart | None = None
    ) -> Json:
        """Return the tasks of a scan.

        Args:
            places: the locations that its caller may read.
            entry: the table.
            request: the scan.
            part: the part of the table that its caller sees; None for all of it.

        Raises:
            InvalidInputError: the request names a snapshot or a column that does not exist.
            PermissionDeniedError: the table has files in locations that the caller may not read, or a part of it is
                scanned by what was added to it.
        """
        is_latest = not request.is_incremental and request.snapshot_id is None
        if part is not None and request.is_incremental:
            raise PermissionDeniedError(
                f"{part.name}: your grant has a row filter or masks: scan a snapshot as a whole"
            )
        table, warehouse = self._load_table(places, entry, part, is_latest=is_latest), places.warehouse
        row_filter = request.parse_filter(table.schema)
        ids = table.column_ids(request.selected_ids(table.schema), row_filter)
        request.stats_field_ids(table.schema)  # refuses columns that do not exist; copies have no statistics
        result = _ScanResult(row_filter.residual)
        for snapshot_id, version, fragments in table.list_scanned(request):
            columns = _present_columns(ids, version.columns)
            # A fragment that is left out would tell of hidden rows, and of values behind masks.
            matching = (
                _prune(version, fragments, row_filter, table.schema, case_sensitive=request.case_sensitive)
                if part is None
                else fragments
            )
            self._add_requests(
                result,
                warehouse,
                copies_key(entry, part),
                snapshot_id,
                version,
                [ExportRequest(fragment, columns, range(fragment.rows)) for fragment in matching],
            )
        return result.to_json()

    def fetch_tasks(
        self, places: ReadableLocations, entry: EntryRow, content: Json, part: VisiblePart | None = None
    ) -> Json:
        """Return the tasks that a plan task stands for.

        Raises:
            PlanTaskNotFoundError: it is not from a plan of this table.
        """
        table, warehouse = self._load_table(places, entry, part, is_latest=False), places.warehouse
        match content:
            case {"snapshot": int(snapshot_id), "rows": list(parts), "columns": list(ids), "filter": residual}:
                pass
            case _:
                raise task_not_found()
        # The task comes back from the client, who may have changed it: check everything in it against the table.
        if snapshot_id not in table.snapshots or len(parts) > COPIES or not _are_integers(snapshot_id, *ids):
            raise task_not_found()
        version = table.open_version(snapshot_id)
        if not ids or not set(ids) <= set(version.columns):
            raise task_not_found()
        fragments = {fragment.id: fragment for fragment in version.fragments}
        requests = [_parse_request(part, fragments, frozenset(ids)) for part in parts]
        result = _ScanResult(residual)
        self._add_requests(result, warehouse, copies_key(entry, part), snapshot_id, version, requests)
        return result.to_json()

    def _add_requests(
        self,
        result: _ScanResult,
        warehouse: Warehouse,
        copies: str,
        snapshot_id: int,
        version: VersionExporter,
        requests: Sequence[ExportRequest],
    ) -> None:
        parts: list[ExportRow | ExportRequest] = []
        for part in self._exports.find(warehouse, copies, requests):
            parts += [part] if isinstance(part, ExportRow) else _split(part, _estimate_bytes(version, part))
        create_indexes = [
            index
            for index, part in enumerate(parts)
            if isinstance(part, ExportRequest) and result.reserve(_estimate_bytes(version, part))
        ]
        to_create = [part for index in create_indexes if isinstance(part := parts[index], ExportRequest)]
        new_rows = self._exports.create(warehouse, copies, version, to_create)
        for index, row in zip(create_indexes, new_rows, strict=True):
            parts[index] = row
        result.files += [part for part in parts if isinstance(part, ExportRow)]
        remaining = [part for part in parts if isinstance(part, ExportRequest)]
        remaining += [
            part.with_rows(rest)
            for part, row in zip(to_create, new_rows, strict=True)
            if (rest := part.rows[row.rows :])
        ]
        result.plan_tasks += [
            encode_task(
                {
                    "snapshot": snapshot_id,
                    "rows": [[request.fragment.id, request.rows.start, request.rows.stop] for request in group],
                    "columns": sorted(group[0].columns),
                    "filter": result.residual,
                }
            )
            for group in group_up_to(remaining, partial(_estimate_bytes, version), COPIED_BYTES, COPIES)
        ]

    def _load_table(
        self, places: ReadableLocations, entry: EntryRow, part: VisiblePart | None, *, is_latest: bool
    ) -> _ScannedTable:
        """Load a table: with all snapshots, or for a scan of the latest with few, which costs fewer requests."""
        warehouse = places.warehouse
        places.require_table(entry.location)
        table = self._tables.load(warehouse, entry, "refs" if is_latest else "all")
        metadata: Json = orjson.loads(table.refs_json if is_latest else table.full_json)
        return _ScannedTable(metadata, TableRef(entry.location, warehouse.storage, confinement=places), part)


@dataclass(frozen=True)
class _ScannedTable:
    """A table as Iceberg's clients see it."""

    metadata: Json
    ref: TableRef
    part: VisiblePart | None

    @cached_property
    def schema(self) -> Schema:
        return Schema.model_validate(self._schema if self.part is None else self.part.restrict_schema(self._schema))

    @property
    def _schema(self) -> Json:
        current = self.metadata["current-schema-id"]
        current_schema: Json = next(schema for schema in self.metadata["schemas"] if schema["schema-id"] == current)
        return current_schema

    @cached_property
    def snapshots(self) -> dict[int, Json]:
        return {snapshot["snapshot-id"]: snapshot for snapshot in self.metadata.get("snapshots") or ()}

    def column_ids(self, selected: set[int] | None, filter: Filter) -> set[int]:
        """Return the ids of the top-level columns that readers need: the selected ones (or all) and the filter's."""
        roots = {below: column.field_id for column in self.schema.fields for below in Schema(column).field_ids}
        selected_ids = set(roots) if selected is None else selected
        return {roots[field_id] for field_id in selected_ids | filter.fields}

    def open_version(self, snapshot_id: int) -> VersionExporter:
        """Open the version that a snapshot stands for.

        Raises:
            IllegalArgumentError: its manifest is not in its final location yet, or no longer.
        """
        refs = self.metadata.get("refs") or {}
        branches = [name for name, ref in refs.items() if ref["type"] == "branch"]
        branch, version = from_snapshot_id(snapshot_id, branches)
        like = self._schema if self._is_replaced_since(snapshot_id) else None
        try:
            return VersionExporter.open(replace(self.ref, version=version, branch=branch), like=like, part=self.part)
        except (TableNotFoundError, TableVersionNotFoundError) as error:
            raise IllegalArgumentError(
                f"version {version} cannot be read: its manifest is not in place yet, or not any more; try again"
            ) from error

    def _is_replaced_since(self, snapshot_id: int) -> bool:
        """Return whether an operation may have replaced the schema after a snapshot, on main or on another branch."""
        on_branch = snapshot_id >> VERSION_BITS
        return any(
            other != FIRST and (on_branch or other > snapshot_id)
            for other, snapshot in self.snapshots.items()
            if snapshot["summary"].get("lance.operation") in REPLACING
        )

    def list_scanned(self, request: ScanRequest) -> Iterator[tuple[int, VersionExporter, Sequence[ExportFragment]]]:
        """Yield snapshot id, version, and the fragments of it to scan."""
        if request.is_incremental:
            yield from self._list_appended(request)
            return
        snapshot_id = self.metadata.get("current-snapshot-id") if request.snapshot_id is None else request.snapshot_id
        if snapshot_id is None or snapshot_id == -1:
            return
        self._require_snapshot(snapshot_id)
        version = self.open_version(snapshot_id)
        yield snapshot_id, version, version.fragments

    def _list_appended(self, request: ScanRequest) -> Iterator[tuple[int, VersionExporter, Sequence[ExportFragment]]]:
        """Yield each version that only appended rows, with the fragments that it added."""
        for snapshot_id in self._snapshot_ids_between(request):
            snapshot = self.snapshots[snapshot_id]
            if snapshot.get("summary", {}).get("operation") != "append":
                continue
            parent = snapshot.get("parent-snapshot-id")
            before = (
                {fragment.id for fragment in self.open_version(parent).fragments} if parent in self.snapshots else set()
            )
            version = self.open_version(snapshot_id)
            yield snapshot_id, version, [fragment for fragment in version.fragments if fragment.id not in before]

    def _snapshot_ids_between(self, request: ScanRequest) -> list[int]:
        """Return the snapshots after the start up to and including the end, oldest first."""
        snapshot_ids: list[int] = []
        current: Any = self._require_snapshot(request.end_id)
        while current != request.start_id:
            if current not in self.snapshots:
                raise IllegalArgumentError(
                    f"Starting snapshot (exclusive) {request.start_id} is not a parent ancestor of "
                    f"end snapshot {request.end_id}"
                )
            snapshot_ids.append(current)
            current = self.snapshots[current].get("parent-snapshot-id")
        return snapshot_ids[::-1]

    def _require_snapshot(self, snapshot_id: int | None) -> int:
        if snapshot_id is None or snapshot_id not in self.snapshots:
            raise IllegalArgumentError(f"Cannot find snapshot with ID {snapshot_id}")
        return snapshot_id


class _ScanResult:
    """The response to a plan, and how much has been copied for it so far."""

    def __init__(self, residual: Any) -> None:
        self.residual = residual
        self.files: list[ExportRow] = []
        self.plan_tasks: list[str] = []
        self._bytes = 0
        self._copies = 0

    def reserve(self, size: int) -> bool:
        """Return whether something of this size is copied for this response, and count it.

        The first is always copied, so that every response makes progress.
        """
        is_first = not self._copies
        self._bytes += size
        self._copies += 1
        return is_first or (self._bytes <= COPIED_BYTES and self._copies <= COPIES)

    def to_json(self) -> Json:
        return scan_tasks([self._task_json(row) for row in self.files if row.rows], plan_tasks=self.plan_tasks)

    def _task_json(self, row: ExportRow) -> Json:
        task: Json = {
            "data-file": {
                "spec-id": 0,
                "content": "data",
                "file-path": row.path,
                "file-format": "parquet",
                "partition": [],
                "file-size-in-bytes": row.bytes,
                "record-count": row.rows,
            }
        }
        return task if self.residual is None else task | {"residual-filter": self.residual}


def _are_integers(*values: object) -> bool:
    """Return whether all values are whole numbers: True and False are numbers to Python, but are stored otherwise."""
    return all(type(value) is int for value in values)


def _parse_request(part: object, fragments: Mapping[int, ExportFragment], columns: frozenset[int]) -> ExportRequest:
    match part:
        case [int(number), int(start), int(stop)] if number in fragments and _are_integers(number, start, stop):
            if 0 <= start < stop <= fragments[number].rows:
                return ExportRequest(fragments[number], columns, range(start, stop))
    raise task_not_found()


def _estimate_bytes(version: VersionExporter, request: ExportRequest) -> int:
    return int(version.row_bytes(request.fragment, request.columns) * len(request.rows))


def _split(request: ExportRequest, size: int) -> Iterator[ExportRequest]:
    """Yield parts of a request of about the same size, each small enough for one response."""
    # Both divisions round up: so many parts, and so many rows in each.
    count = -(-len(request.rows) // max(1, -(-size // COPIED_BYTES)))
    for start in range(0, len(request.rows), count):
        yield request.with_rows(request.rows[start : start + count])


def _present_columns(ids: set[int], columns: Mapping[int, pa.Field[Any]]) -> frozenset[int]:
    """Return the needed columns that a version has; if none, its smallest one, which gives the number of rows."""
    present = frozenset(ids & columns.keys())
    return present or frozenset([min(columns, key=lambda key: _bit_width(columns[key].type))])


def _bit_width(dtype: pa.DataType) -> int:
    try:
        return int(dtype.bit_width)
    except ValueError:
        return 1 << 32


def _prune(
    version: VersionExporter,
    fragments: Sequence[ExportFragment],
    filter: Filter,
    schema: Schema,
    *,
    case_sensitive: bool,
) -> Iterator[ExportFragment]:
    """Yield the fragments that may have a matching row, as far as Lance can tell within `PRUNED_S`."""
    sql = to_lance_sql(filter.superset, schema, version.columns, case_sensitive=case_sensitive)
    deadline = time.monotonic() + PRUNED_S
    for fragment in fragments if sql != FALSE else ():
        if sql != TRUE and time.monotonic() < deadline:
            try:
                if not version.has_matching_row(fragment.id, sql):
                    continue
            except LanceNamespaceError:
                # Lance cannot evaluate this condition: keep all remaining fragments.
                sql = TRUE
        yield fragment
