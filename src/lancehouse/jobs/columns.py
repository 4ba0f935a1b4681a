"""Define computed columns, fill them, tell which there are and for which rows they failed."""

from __future__ import annotations

import base64
import logging
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

import lance
import pyarrow as pa
from lance_namespace.errors import InvalidInputError

from lancehouse.jobs.address import PinnedVersion, TableAddress
from lancehouse.jobs.column_filling import FillOptions, FillResult, fill_column
from lancehouse.jobs.column_functions import CallRules, ColumnFunction, FunctionCaller, check_column_type
from lancehouse.jobs.engine import Engine
from lancehouse.jobs.index_building import optimize_stale_indices
from lancehouse.jobs.job import ReportFill
from lancehouse.lake.column_states import (
    count_states,
    describe_columns,
    error_records,
    find_field_id,
    name_inputs,
)
from lancehouse.lake.commits import commit, locate_table
from lancehouse.lake.dataset import TableRef, empty_dataset, translate_refusals
from lancehouse.lake.errors import translate_errors
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
        for name, given in functions.items():
            function = with_inputs(table, dataset, given)
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
    require_free_names([name])
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
        found = dataset.schema.field(name).type
        if function.returns is not None and function.returns != found:
            raise InvalidInputError(f"column {name} is {found}, and {function.label} returns {function.returns}")
        if is_same_version:
            return replace(existing, digest=function.digest)
    ids = {each.name(): each.id() for each in dataset.lance_schema.fields()}
    inputs = tuple((ids[each], each) for each in function.inputs)
    # Of a column that had this name and was renamed, or none at all, such as that of a view with the source's row ids.
    taken = {known.companion for other, known in definitions(dataset.schema).items() if other != name}
    taken |= {each.name for each in dataset.schema if not each.type.equals(COMPANION_TYPE)}
    companion = companion_name(name) if existing is None else existing.companion
    while companion in taken:
        companion += "_"
    made = (function.name, function.version, inputs, function.digest, int(dataset.version) + 1)
    return ColumnDefinition(*made, companion, function.sql)


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
        dataset.scanner(columns={"value": sql}, with_row_id=True).explain_plan()
    named = [name for name in dataset.schema.names if name.lower() in sql.lower()]
    fields = pa.schema([dataset.schema.field(name) for name in named]).remove_metadata()
    return tuple(name for name in named if not _is_valid(sql, fields.remove(fields.get_field_index(name))))


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
    known = definitions(dataset.schema)
    replaced = {name for name, each in changed.items() if each.since != known[name].since}
    for _ in range(ATTEMPTS if changed else 0):
        since = version + 1
        updates = {
            ids[name]: lance.LanceOperation.UpdateMap(
                {COMPUTED.decode(): replace(each, since=since if name in replaced else each.since).to_metadata()}
            )
            for name, each in changed.items()
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
        InvalidInputError: only a call of the function could tell, or it is no type of a column.
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
    found: pa.DataType = schema.field(0).type
    check_column_type(found)
    return found


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
    found = {}
    for name in _in_order(dataset, defined):
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
        found[name] = replace(function, returns=schema.field(name).type)
    return found


def _in_order(dataset: lance.LanceDataset, defined: Mapping[str, ColumnDefinition]) -> list[str]:
    """Return computed columns so that each comes after those that it is computed from."""
    order: list[str] = []

    def add(name: str, above: tuple[str, ...]) -> None:
        if name in order or name in above:
            return
        for each in name_inputs(dataset, defined[name]):
            if each in defined:
                add(each, (*above, name))
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
    """Fill computed columns, all by default; `report` is told of progress.

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
