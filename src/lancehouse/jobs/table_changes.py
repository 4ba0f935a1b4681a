"""Create, rename, drop and alter tables, also so that other rows fit; their tags, branches and properties."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import lance
import pyarrow as pa
from lance_namespace.errors import (
    InvalidInputError,
    LanceNamespaceError,
    NamespaceNotFoundError,
    TableAlreadyExistsError,
    TableNotFoundError,
    TableSchemaValidationError,
    TableTagNotFoundError,
)

from lancehouse.catalog_walk import CatalogCalls
from lancehouse.identifiers import format_levels
from lancehouse.jobs.address import TableAddress
from lancehouse.jobs.job import declare_table, undo_declaration
from lancehouse.lake import commits
from lancehouse.lake.column_states import error_records, find_field_id, name_inputs
from lancehouse.lake.commits import locate_table
from lancehouse.lake.dataset import TableRef, VersionSelector, empty_dataset, require_storable_names
from lancehouse.lake.errors import translate_errors
from lancehouse.lake.row_changes import retry_conflicts
from lancehouse.properties import MANAGED_BY, STORAGE_PREFIX, TABLE_TYPE
from lancehouse.schema.definitions import COMPANION, definitions, require_free_names
from lancehouse.schema.walk import (
    EXTENSION,
    Path,
    check_types,
    no_column_error,
    relax_nullability,
)
from lancehouse.secrets import redact_properties

logger = logging.getLogger(__name__)

COMMENT = "comment"
"""Property with the comment of a table, as Spark has it."""

Id = Sequence[str]

# Tables


def table_exists(address: TableAddress) -> bool:
    """Return whether a table exists and can be read; one that is only declared cannot."""
    try:
        return address.to_ref().exists()
    except NamespaceNotFoundError:
        return False


def create_table(
    address: TableAddress, schema: pa.Schema, properties: Mapping[str, str], *, exist_ok: bool = False
) -> int:
    """Create a table without rows; return its version.

    Raises:
        TableAlreadyExistsError: it exists.
        TableSchemaValidationError: Lance does not store such columns.
    """
    check_types(schema)
    empty_dataset(schema)
    table = address.to_ref()
    if (existing := table.find()) is not None:
        if exist_ok:
            return int(existing.version)
        raise TableAlreadyExistsError(f"{address} exists; drop it first, or alter it")
    entry = {key: value for key, value in properties.items() if _is_of_entry(key)}
    rest = {key: value for key, value in properties.items() if key not in entry}
    declared = declare_table(table, entry)
    try:
        version = commits.create(table, locate_table(table), schema, [])
    except commits.CreateConflictError:
        if exist_ok:
            return int(table.open().version)
        raise
    except LanceNamespaceError as error:
        if declared and commits.is_refusal(error):
            undo_declaration(table)
        raise
    # Lance takes no properties with a first version, so they are a second one.
    return set_properties(address, rest) if rest else version


def drop_table(calls: CatalogCalls, id: Id, *, missing_ok: bool) -> None:
    """Drop a table with its data.

    Raises:
        TableNotFoundError: there is none.
    """
    try:
        calls.call("drop_table", id)
    except (TableNotFoundError, NamespaceNotFoundError) as error:
        if _is_described(calls, id):
            # Lance's `dir` describes such tables, and does not find them to drop.
            explained = TableNotFoundError(f"{format_levels(id)} was written without the catalog, which cannot drop it")
            explained.add_note("a `dir` catalog with the property manifest_enabled=false drops it")
            raise explained from error
        if not missing_ok:
            raise


def _is_described(calls: CatalogCalls, id: Id) -> bool:
    try:
        calls.call("describe_table", id)
    except (TableNotFoundError, NamespaceNotFoundError):
        return False
    return True


def read_schema(address: TableAddress, selector: VersionSelector) -> pa.Schema:
    """Return the columns of a version, without those that Lancehouse keeps beside computed ones."""
    _, dataset = selector.open(address.to_ref())
    schema: pa.Schema = dataset.schema
    metadata: Any = schema.metadata
    return pa.schema([field for field in schema if not field.name.startswith(COMPANION)], metadata)


# Columns


def add_null_columns(address: TableAddress, schema: pa.Schema) -> int:
    """Add columns that are null in all rows; return the version. No data is written.

    Raises:
        TableSchemaValidationError: a column exists, may not be null, or has a type that Lance does not store.
    """
    check_types(schema)
    empty_dataset(schema)
    require_free_names(schema.names)
    for column in schema:
        if not column.nullable:
            raise TableSchemaValidationError(
                f"column {column.name} is null in the rows that exist: it must be nullable"
            )
    fields = {field.name.lower(): field.name for field in schema}

    def add(_: TableRef, dataset: lance.LanceDataset) -> None:
        # Lance merges a struct that exists already with the new one, and takes names that differ by case alone.
        if duplicates := [name for name in dataset.schema.names if name.lower() in fields]:
            raise TableSchemaValidationError(f"{address} has a column {', '.join(duplicates)} already")
        dataset.add_columns(schema)

    return _alter(address, add)


def drop_columns(address: TableAddress, columns: Sequence[str]) -> int:
    """Drop columns; return the version. A computed column goes with its companion and its errors.

    Raises:
        TableColumnNotFoundError: there is no such column.
        InvalidInputError: another column is computed from one of them, or no column would be left.
    """
    field_ids: list[int] = []

    def drop(table: TableRef, dataset: lance.LanceDataset) -> None:
        schema = dataset.schema
        defined = definitions(schema)
        computed = [name for name in columns if name in defined]
        field_ids[:] = [find_field_id(dataset, name) for name in computed]
        companions = {defined[name].companion for name in computed}
        if own := [name for name in columns if name.startswith(COMPANION) and name not in companions]:
            raise InvalidInputError(f"{own[0]} says what made the values of a computed column: drop that column")
        names = [*columns, *sorted(companions & {*schema.names} - {*columns})]
        _require_columns(table, dataset, columns)
        touched = {_top_level(name) for name in names}
        dependents = {
            name: touched.intersection(name_inputs(dataset, definition))
            for name, definition in defined.items()
            if name not in names
        }
        broken = _find_broken_sql(dataset, names, lambda empty: empty.drop_columns(names))
        if wrong := [name for name, inputs in dependents.items() if inputs or name in broken]:
            raise InvalidInputError(
                f"{table}: {', '.join(wrong)} is computed from what would be dropped; drop {', '.join(wrong)} too, or "
                "define it by other columns first"
            )
        dataset.drop_columns(names)

    version = _alter(address, drop)
    try:
        at = locate_table(address.to_ref())
        for number in field_ids:
            error_records(at, number).clear()
    except LanceNamespaceError as error:  # the columns are dropped already
        logger.warning("%s: errors of columns are left, which remove_orphans removes: %s", address, error)
    return version


def rename_columns(address: TableAddress, names: Mapping[str, str]) -> int:
    """Rename columns; return the version. Computed columns keep finding their inputs, and indices stay.

    Raises:
        TableColumnNotFoundError: there is no such column.
        TableSchemaValidationError: a name is taken, or Lance does not store it.
        InvalidInputError: the SQL of a computed column names one of them, or only Lance itself uses a name.
    """
    alterations = [{"path": path, "name": name} for path, name in names.items()]
    for path, name in names.items():
        require_storable_names((name,))
        require_free_names((path, name))

    def rename(table: TableRef, dataset: lance.LanceDataset) -> None:
        _require_columns(table, dataset, list(names))
        if broken := _find_broken_sql(dataset, (), lambda empty: empty.alter_columns(*alterations)):
            raise InvalidInputError(
                f"{table}: the SQL of {', '.join(broken)} names what would be renamed; drop that column, and define it "
                "anew afterwards"
            )
        dataset.alter_columns(*alterations)

    return _alter(address, rename)


def alter_columns(address: TableAddress, changes: Mapping[str, tuple[pa.DataType | None, bool | None]]) -> int:
    """Change the types and the nullability of columns; return the version.

    A column that gets another type is written again as a whole, in this process; others are not. Lance cannot change
    the nullability of other columns in the same commit, so that is a commit of its own, the first.

    Args:
        address: the table.
        changes: for each column its new type, and whether it may be null; None leaves it as it is.

    Raises:
        TableColumnNotFoundError: there is no such column.
        TableSchemaValidationError: values could be lost, or Lance cannot do it.
        InvalidInputError: an index is on a column that would get another type, or a column has nulls.
    """
    nulls = [{"path": path, "nullable": may} for path, (dtype, may) in changes.items() if dtype is None]
    types = [
        {"path": path, "data_type": dtype} | ({} if nullable is None else {"nullable": nullable})
        for path, (dtype, nullable) in changes.items()
        if dtype is not None
    ]

    def alter(table: TableRef, dataset: lance.LanceDataset) -> None:
        _require_columns(table, dataset, list(changes))
        defined = definitions(dataset.schema)
        for path, (dtype, _) in changes.items():
            before = dataset.lance_schema.field(path).to_arrow().type
            if dtype is None or dtype == before:
                continue
            if not is_widening(before, dtype):
                raise TableSchemaValidationError(f"{table}: {path} is {before} and cannot become {dtype}: only {WIDER}")
            if path in defined:
                raise InvalidInputError(f"{table}: {path} is computed; define it by a function that returns {dtype}")
        if nulls:
            dataset.alter_columns(*nulls)
        if types:
            dataset.alter_columns(*types)

    return _alter(address, alter)


def _alter(address: TableAddress, alter: Callable[[TableRef, lance.LanceDataset], None]) -> int:
    """Alter the latest version of a table, again if another change of columns came first; return the new version."""

    def attempt() -> int:
        table = address.to_ref()
        with table.dataset() as dataset:
            alter(table, dataset)
            return int(dataset.version)

    return retry_conflicts(address, attempt)


def _top_level(path: str) -> str:
    return path.partition(".")[0]


def _require_columns(table: TableRef, dataset: lance.LanceDataset, paths: Sequence[str]) -> None:
    if missing := [path for path in paths if dataset.lance_schema.field(path) is None]:
        raise no_column_error(table, missing, dataset.schema.names)


def _find_broken_sql(
    dataset: lance.LanceDataset, dropped: Sequence[str], change: Callable[[lance.LanceDataset], Any]
) -> list[str]:
    """Return the columns whose SQL Lance can plan on the table now, and no longer after a change."""
    defined = definitions(dataset.schema)
    by_sql = {
        name: definition.sql
        for name, definition in defined.items()
        if definition.sql is not None and name not in dropped
    }
    if not by_sql:
        return []
    empty = empty_dataset(dataset.schema)
    planned = {name: sql for name, sql in by_sql.items() if _can_plan(empty, sql)}
    with translate_errors("a change of columns"):
        change(empty)
    return [name for name, sql in planned.items() if not _can_plan(empty, sql)]


def _can_plan(dataset: lance.LanceDataset, sql: str) -> bool:
    try:
        with translate_errors("a column"):
            dataset.scanner(columns={"value": sql}).explain_plan()
    except LanceNamespaceError:
        return False
    return True


# Indices, tags, branches and versions


def describe_index(index: Any) -> dict[str, Any]:
    """Return what a list of indices shows of one."""
    return {
        "name": index.index_name,
        "columns": list(index.columns),
        "type": index.index_type,
        "indexed_rows": index.num_indexed_rows,
        "unindexed_rows": index.num_unindexed_rows,
    }


def set_tag(calls: CatalogCalls, address: TableAddress, name: str, version: int | None, *, replace: bool) -> int:
    """Give a version a name, the latest by default; return the version.

    Raises:
        TableTagAlreadyExistsError: another version has the name, and `replace` is False.
        TableVersionNotFoundError: there is no such version.
    """
    _, dataset = VersionSelector(version).open(address.to_ref())
    number = int(dataset.version)
    if replace:
        try:
            calls.call("update_table_tag", address.id, tag=name, version=number)
            return number
        except TableTagNotFoundError:
            pass
    calls.call("create_table_tag", address.id, tag=name, version=number)
    return number


def restore(address: TableAddress, selector: VersionSelector) -> int:
    """Make an older version the current one, by a new version with the same content; return that.

    Raises:
        ConcurrentModificationError: somebody has changed the table meanwhile, which this would undo.
        InvalidInputError: the tag is of a version on another branch.
    """
    table = address.to_ref()
    base = int(table.open().version)
    chosen, _ = selector.open(table)
    if chosen.branch not in (None, "main"):
        raise InvalidInputError(f"{address}: the tag {selector.tag} is on branch {chosen.branch}, not on the main one")
    assert chosen.version is not None
    return base if chosen.version == base else commits.restore(table, locate_table(table), chosen.version, base)


# Properties


def read_properties(calls: CatalogCalls, address: TableAddress) -> dict[str, str]:
    """Return the properties of a table: those that it has itself, and those of its entry in the catalog.

    Values that are secret are not shown.
    """
    entry = calls.call("describe_table", address.id)
    with address.to_ref().dataset() as dataset:
        own: dict[str, str] = dataset.config()
    return redact_properties({**(entry.properties or {}), **own})


def set_properties(address: TableAddress, properties: Mapping[str, str]) -> int:
    """Set properties of a table, which are versioned with it and stay when it is overwritten; return the version.

    Raises:
        InvalidInputError: a property is that of the catalog's entry.
    """
    return _update_config(address, _check_own_properties(properties))


def _check_own_properties(properties: Mapping[str, str]) -> Mapping[str, str]:
    for key in properties:
        if not key or _is_of_entry(key):
            raise InvalidInputError(
                f"the property {key!r} is that of the catalog's entry: it is given when a table is created or "
                "registered (`lancehouse table manage` changes who manages its versions)"
            )
    return properties


def replace_properties(address: TableAddress, properties: Mapping[str, str]) -> int:
    """Set the properties of a table, and remove all others; return the version."""
    others: dict[str, str | None] = dict.fromkeys(address.to_ref().open().config())
    return _update_config(address, {**others, **_check_own_properties(properties)})


def unset_properties(address: TableAddress, names: Sequence[str]) -> int:
    """Remove properties of a table, those that it has; return the version."""
    config = address.to_ref().open().config()
    return _update_config(address, dict.fromkeys(name for name in names if name in config))


def _update_config(address: TableAddress, values: Mapping[str, str | None]) -> int:
    """Set properties, and remove those that are None; return the version, a new one if there is anything to do."""
    if not values:
        return int(address.to_ref().open().version)

    def update(_: TableRef, dataset: lance.LanceDataset) -> None:
        dataset.update_config(dict(values))

    return _alter(address, update)


def _is_of_entry(key: str) -> bool:
    return key in (MANAGED_BY, TABLE_TYPE) or key.startswith(STORAGE_PREFIX)


# Columns that evolve so that rows with other columns fit, before these are written


WIDER = "wider integers and floats, decimals with more digits, and large strings and binaries"
"""What a type may become, for error messages."""


def is_widening(before: pa.DataType, after: pa.DataType) -> bool:
    """Return whether every value of one type is a value of the other, and Lance can rewrite a column so."""
    if before == after:
        return True
    match before, after:
        case pa.FixedSizeListType(), pa.FixedSizeListType():
            return before.list_size == after.list_size and is_widening(before.value_type, after.value_type)
        case pa.ListType(), pa.ListType():
            return is_widening(before.value_type, after.value_type)
    if pa.types.is_integer(before) and pa.types.is_integer(after):
        return _is_wider_integer(before, after)
    if pa.types.is_decimal(before) and pa.types.is_decimal(after):
        return _is_wider_decimal(before, after)
    if pa.types.is_floating(before) and pa.types.is_floating(after):
        return after.bit_width > before.bit_width
    return (before, after) in ((pa.string(), pa.large_string()), (pa.binary(), pa.large_binary()))


def _may_fail(values: pa.DataType, column: pa.DataType) -> bool:
    """Return whether only the values of one type tell if they can be cast to another."""
    if pa.types.is_integer(column):
        return any(kind(values) for kind in (*_TEXTS, pa.types.is_floating, pa.types.is_decimal))
    is_plain = pa.types.is_floating(column) or pa.types.is_boolean(column) or pa.types.is_temporal(column)
    return is_plain and any(kind(values) for kind in _TEXTS)


_TEXTS = (pa.types.is_string, pa.types.is_large_string)


def _is_wider_integer(before: Any, after: Any) -> bool:
    if pa.types.is_signed_integer(before) and not pa.types.is_signed_integer(after):
        return False
    return bool(after.bit_width > before.bit_width)


def _is_wider_decimal(before: Any, after: Any) -> bool:
    digits = before.precision - before.scale
    return bool(type(before) is type(after) and after.scale >= before.scale and after.precision - after.scale >= digits)


@dataclass(frozen=True, slots=True)
class SchemaEvolution:
    """What changes in the columns of a table."""

    target: pa.Schema
    """The columns afterwards."""
    new: pa.Schema
    """New columns; and structs that exist, with their new fields only, as Lance adds them."""
    wider: dict[str, pa.DataType]
    """Columns and fields of structs that get a wider type, by path. Their values are written again."""

    def __bool__(self) -> bool:
        return bool(self.new.names or self.wider)


def plan_evolution(schema: pa.Schema, incoming: pa.Schema, fixed: Iterable[str] = ()) -> SchemaEvolution:
    """Return how columns have to change for rows with other columns.

    Types that cannot be widened stay, and so do vectors, whose values are floats for a purpose: whether the rows fit
    them is for the caller to check, against the target.

    Args:
        schema: columns of the table.
        incoming: columns of the rows; those that the table has not are added, as nullable ones.
        fixed: columns of the table that keep their types.

    Raises:
        TableSchemaValidationError: a new column has no type, a name that only differs by case, or lies where Lance can
            neither add nor widen it; the message names all of them.
    """
    planner = _Planner(frozenset(fixed))
    target, new = planner.merge((), schema, relax_nullability(incoming))
    if planner.problems:
        raise TableSchemaValidationError(f"the columns cannot evolve: {'; '.join(planner.problems)}")
    check_types(pa.schema(new))
    metadata: Any = schema.metadata
    return SchemaEvolution(pa.schema(target, metadata), pa.schema(new), planner.wider)


Fields = list["pa.Field[Any]"]


@dataclass(frozen=True, slots=True)
class _Planner:
    fixed: frozenset[str]
    wider: dict[str, pa.DataType] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)

    def merge(
        self, path: Path, before: Iterable[pa.Field[Any]], after: Iterable[pa.Field[Any]], *, in_list: bool = False
    ) -> tuple[Fields, Fields]:
        """Return the fields of a table or struct afterwards, and what is new of them."""
        fields = {column.name: column for column in before}
        new: Fields = []
        for column in after:
            existing = fields.get(column.name)
            if existing is None:
                alike = [name for name in fields if name.casefold() == column.name.casefold()]
                if alike:
                    self._refuse((*path, column.name), f"differs from {alike[0]} by case alone")
                fields[column.name] = column
                new.append(column)
            elif path or column.name not in self.fixed:
                fields[column.name], added = self._evolve((*path, column.name), existing, column, in_list=in_list)
                new += added
        return list(fields.values()), new

    def _evolve(
        self, path: Path, before: pa.Field[Any], after: pa.Field[Any], *, in_list: bool
    ) -> tuple[pa.Field[Any], Fields]:
        have, want = before.type, after.type
        if isinstance(have, pa.FixedSizeListType):
            return before, []
        if have == want or EXTENSION.encode() in (before.metadata or {}) or isinstance(have, pa.BaseExtensionType):
            return before, []
        match have, want:
            case pa.StructType(), pa.StructType():
                merged, new = self.merge(path, have, want, in_list=in_list)
                return before.with_type(pa.struct(merged)), [after.with_type(pa.struct(new))] if new else []
            case pa.ListType(), pa.ListType() if isinstance(have.value_type, pa.StructType):
                return self._evolve_list(path, before, after)
        if not is_widening(have, want):
            if _may_fail(want, have):
                self._refuse(path, f"is {have} and cannot hold {want}")
            return before, []
        if in_list:
            self._refuse(path, f"is {have} in a list of structs, and cannot become {want} there")
        self.wider[".".join(path)] = want
        return before.with_type(want), []

    def _evolve_list(self, path: Path, before: pa.Field[Any], after: pa.Field[Any]) -> tuple[pa.Field[Any], Fields]:
        """Evolve the structs in a list, to which Lance can add fields, and cannot widen them."""
        have: Any = before.type
        want: Any = after.type
        item, new = self._evolve((*path, "element"), have.value_field, want.value_field, in_list=True)
        added = [after.with_type(pa.list_(column.with_name("item"))) for column in new]
        return before.with_type(pa.list_(item)), added

    def _refuse(self, path: Path, problem: str) -> None:
        self.problems.append(f"column {'.'.join(path)} {problem}")


def plan_columns(schema: pa.Schema, incoming: pa.Schema) -> SchemaEvolution:
    """Return how the columns of a table have to change for rows with other columns. Computed columns stay.

    Raises:
        TableSchemaValidationError: they cannot; the message names the columns.
    """
    computed = definitions(schema)
    evolution = plan_evolution(
        schema, incoming, [*computed, *(definition.companion for definition in computed.values())]
    )
    require_free_names(evolution.new.names)
    return evolution


def evolve_columns(
    address: TableAddress,
    plan: Callable[[pa.Schema], pa.Schema],
    check: Callable[[pa.Schema], object] = lambda _: None,
) -> bool:
    """Change the columns of a table so that some rows fit; return whether there was anything to do.

    New columns are one commit, which writes no data. Wider types are another, before it, which writes these columns
    again in this process. If this fails in between, the table is whole, and the same call goes on. Of several writers
    that do this at once, each sees what the others have done.

    Args:
        address: the table.
        plan: returns the columns of the rows, given those of the table.
        check: called with the columns that the table will have, before anything is changed; raises if the rows do not
            fit them.

    Raises:
        TableSchemaValidationError: the columns cannot evolve so; nothing was changed.
        ConcurrentModificationError: others kept changing the table.
    """

    def attempt() -> bool:
        with address.to_ref().dataset() as dataset:
            evolution = plan_columns(dataset.schema, plan(dataset.schema))
            check(evolution.target)
            if not evolution:
                return False
            empty_dataset(evolution.target)
            if evolution.wider:
                dataset.alter_columns(*({"path": path, "data_type": to} for path, to in evolution.wider.items()))
            if evolution.new.names:
                dataset.add_columns(evolution.new)
            logger.info("%s: columns evolved in version %d", address, dataset.version)
            return True

    return retry_conflicts(address, attempt)
