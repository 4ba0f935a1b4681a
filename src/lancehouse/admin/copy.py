"""Copying tables from one catalog to another, their entries only or with their data; comparing those of two.

A copy is planned wholly before anything is changed. A repeated copy resumes: tables that are complete are left alone.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any

from lance_namespace.errors import (
    InvalidInputError,
    InvalidTableStateError,
    LanceNamespaceError,
    NamespaceAlreadyExistsError,
    NamespaceNotFoundError,
    ServiceUnavailableError,
    TableNotFoundError,
    UnauthenticatedError,
)

from lancehouse import locations
from lancehouse.admin.checked_catalog import CheckedCatalog
from lancehouse.catalog_walk import Id, walk_tables
from lancehouse.clients.catalog_namespace import CatalogNamespace
from lancehouse.clients.iceberg import IcebergNamespace
from lancehouse.clients.inspection import ForeignTable, InspectedTable, Inspector, inspector_for, is_managed_by_default
from lancehouse.identifiers import format_levels
from lancehouse.jobs import table_copy
from lancehouse.jobs.table_copy import CopyPlan
from lancehouse.lake.commits import TableLocation
from lancehouse.lake.dataset import TableRef
from lancehouse.lake.dataset_files import relative_levels, split_location
from lancehouse.lake.history import find_latest_version
from lancehouse.lake.job_records import JobProgress
from lancehouse.lake.version_records import read_summary
from lancehouse.properties import COPY_OF, FEW_METADATA_FILES, GC_ENABLED, IMPL, MANAGED_BY, STORAGE, TABLE_TYPE
from lancehouse.schema.display import field_to_json


@dataclass(frozen=True)
class NamedCatalog:
    """One of two catalogs. Ids that are the same in both omit the catalog's `parent`."""

    name: str
    catalog: CheckedCatalog

    @property
    def parent(self) -> Id:
        """Levels before all ids of this catalog."""
        return tuple(self.catalog.target.parent)

    @property
    def inspector(self) -> Inspector:
        """The inspector that reads its entries."""
        return inspector_for(self.catalog.namespace)

    def full_id(self, common: Id) -> Id:
        """Return an id of this catalog, with its `parent`."""
        return (*self.parent, *common)

    def list_tables(self, namespace: Id = ()) -> Iterator[Id]:
        """Yield the ids of all Lance tables in a namespace and below it, without `parent`.

        Raises:
            InvalidInputError: the catalog cannot be listed without a `parent`.
            NamespaceNotFoundError: there is no such namespace.
        """
        for table in walk_tables(self.catalog, self.full_id(namespace)):
            yield table[len(self.parent) :]

    def find_table(self, common: Id) -> InspectedTable | ForeignTable | None:
        """Load the entry of a table; None if there is none."""
        table = self.full_id(common)
        try:
            with self.catalog.translate_errors(table):
                return self.inspector.inspect_table(table)
        except (TableNotFoundError, NamespaceNotFoundError):
            return None


def select_tables(side: NamedCatalog, namespace: Id, tables: Sequence[Id]) -> list[Id]:
    """Return `tables`, or if it is empty, all tables of a namespace."""
    return list(tables) if tables else sorted(side.list_tables(namespace))


CATALOG_PROPERTIES = frozenset({TABLE_TYPE, MANAGED_BY, GC_ENABLED, COPY_OF, *FEW_METADATA_FILES})
"""Properties that each catalog sets for itself, and that are not copied."""
ICEBERG_WRITES = "write."
"""Prefix of properties for Iceberg's writers, which are not copied."""
JOB, SOURCE = "copy", "source"
"""The record, at the location of an unfinished copy, of the table that it is a copy of."""

ReportProgress = Callable[[int, int], None]
CopyData = Callable[[Id, Id], CopyPlan]
"""Copies the data of a table, given its ids in both catalogs."""


class Action(StrEnum):
    """What is to be done with a table, or was done."""

    REGISTER = "register"
    COPY = "copy"
    PRESENT = "present"
    SKIP = "skip"
    CONFLICT = "conflict"
    DONE = "done"
    FAILS = "fails"


@dataclass(frozen=True, slots=True)
class CopyStep:
    """The plan for one table, or its result."""

    table: Id
    """Its id, without the `parent` of either catalog."""
    action: Action
    why: str = ""
    location: str = ""
    """Where its data is."""
    target: str = ""
    """Where its data will be."""
    properties: Mapping[str, str] = field(default_factory=dict, repr=False)
    is_managed: bool = False
    replaces: bool = False
    """Whether an entry of the same name is removed from the target."""
    files: int = 0
    bytes: int = 0
    version: int | None = None
    branches: Sequence[str] = ()
    """Branches of its data that are not copied."""
    tags: Sequence[str] = ()
    """Tags of those branches."""

    @property
    def name(self) -> str:
        """The id as the user types it."""
        return format_levels(self.table)


def portable_properties(properties: Mapping[str, str]) -> dict[str, str]:
    """Return the properties that belong to the table, without those that a catalog sets for itself."""
    return {
        key: value
        for key, value in properties.items()
        if key not in CATALOG_PROPERTIES and not key.startswith(ICEBERG_WRITES)
    }


@dataclass(frozen=True)
class Copier:
    """Copies tables from one catalog to another.

    Args:
        source: the catalog to copy from.
        target: the catalog to copy to.
        with_data: whether the data is copied too, to a location of its own.
        root: location of the copies; default: where the target puts tables.
        replaces: whether to remove an entry of the target that has the name of another table; its data stays.
    """

    source: NamedCatalog
    target: NamedCatalog
    with_data: bool = False
    root: str | None = None
    replaces: bool = False

    def plan(
        self, tables: Sequence[Id], report_progress: ReportProgress = lambda _done, _total: None
    ) -> list[CopyStep]:
        """Plan what has to be done, without changing anything. One table that cannot be read does not stop the others.

        Raises:
            ServiceUnavailableError: the target does not respond.
            UnauthenticatedError: the target does not accept the credentials.
        """
        if tables:
            self._check_target_answers(tables[0])
        steps: list[CopyStep] = []
        for number, table in enumerate(tables, 1):
            try:
                steps.append(self._plan_table(table))
            except LanceNamespaceError as error:
                steps.append(CopyStep(table, Action.FAILS, str(error)))
            report_progress(number, len(tables))
        return steps

    def _check_target_answers(self, table: Id) -> None:
        """Raise if the target does not respond at all: otherwise every table would fail, one by one."""
        try:
            self.target.find_table(table)
        except (ServiceUnavailableError, UnauthenticatedError):
            raise
        except LanceNamespaceError:
            pass  # about this table

    def _plan_table(self, table: Id) -> CopyStep:
        source_table = self.source.find_table(table)
        if source_table is None:
            raise TableNotFoundError(f"{self.source.name} has no table {format_levels(table)}")
        if isinstance(source_table, ForeignTable):
            raise InvalidInputError(
                f"{format_levels(table)} is no Lance table in {self.source.name}, but a {source_table.kind}"
            )
        step = CopyStep(
            table,
            Action.COPY if self.with_data else Action.REGISTER,
            location=source_table.location,
            target=self._target_location(table, source_table.location),
            properties=portable_properties(source_table.properties),
            is_managed=source_table.is_managed,
        )
        if (
            not source_table.location
            or find_latest_version(TableRef(source_table.location, source_table.storage_options)) is None
        ):
            return replace(step, action=Action.SKIP, why="has no data")
        target_table = self.target.find_table(table)
        planned_step = self._plan_copy(step, target_table) if self.with_data else self._plan_entry(step, target_table)
        if planned_step.action is Action.CONFLICT and self.replaces and isinstance(target_table, InspectedTable):
            why = f"instead of the one at {target_table.location}, which stays"
            return replace(planned_step, action=step.action, replaces=True, why=why)
        return planned_step

    def _target_location(self, table: Id, location: str) -> str:
        if not self.with_data:
            return location
        return locations.child_location(self.root, self.target.full_id(table)) if self.root else ""

    # Entries only

    def _plan_entry(self, step: CopyStep, target_table: InspectedTable | ForeignTable | None) -> CopyStep:
        if target_table is not None:
            if (
                isinstance(target_table, InspectedTable)
                and target_table.location
                and split_location(target_table.location) == split_location(step.location)
            ):
                return replace(step, action=Action.PRESENT)
            return replace(step, action=Action.CONFLICT, why=self._conflict_reason(target_table))
        if step.is_managed and is_managed_by_default(self.target.catalog.namespace):
            command = self.source.catalog.shell.command("table", "manage", step.name, "--by", STORAGE)
            why = (
                f"{self.source.name} manages its versions, and {self.target.name} would too: with --data it gets a "
                f"copy of its own, or `{command}`"
            )
            return replace(step, action=Action.CONFLICT, why=why)
        if self._is_dir and self._path_below_root(step.location) is None:
            why = "Lance's `dir` has tables below its root only: --data copies it there"
            return replace(step, action=Action.CONFLICT, why=why)
        if step.is_managed:
            return replace(step, why=f"{self.source.name} manages its versions: write through it alone")
        return step

    def _conflict_reason(self, target_table: InspectedTable | ForeignTable) -> str:
        if isinstance(target_table, ForeignTable):
            return f"{self.target.name} has a {target_table.kind} of that name"
        return f"{self.target.name} has another table of that name, at {target_table.location or 'no place'}"

    @property
    def _is_dir(self) -> bool:
        return not isinstance(self.target.catalog.namespace, CatalogNamespace)

    def _path_below_root(self, location: str) -> str | None:
        root = self.target.catalog.target.properties.get("root", "")
        levels = relative_levels(location, root) if root else None
        return "/".join(levels) if levels else None

    # With data

    def _plan_copy(self, step: CopyStep, target_table: InspectedTable | ForeignTable | None) -> CopyStep:
        ref = TableRef.in_namespace(self.source.catalog.namespace, self.source.full_id(step.table))
        if target_table is None:
            return _with_copy_plan(step, table_copy.plan(ref, None))
        if isinstance(target_table, ForeignTable):
            return replace(step, action=Action.CONFLICT, why=self._conflict_reason(target_table))
        place = TableLocation(target_table.location, target_table.storage_options)
        is_part = table_copy.is_copy(ref, place)
        if is_part is None and not self._is_begun(step, target_table, place):
            why = f"{self.target.name} has a table of that name without data, at {target_table.location}"
            return replace(step, action=Action.CONFLICT, why=why)
        if is_part is False or split_location(target_table.location) == split_location(step.location):
            return replace(step, action=Action.CONFLICT, why=self._conflict_reason(target_table))
        copy_plan = table_copy.plan(ref, place)
        measured_step = replace(_with_copy_plan(step, copy_plan), target=target_table.location)
        is_whole = not copy_plan.files and is_part and not self._copy_record(place).read_records()
        return replace(measured_step, action=Action.PRESENT) if is_whole else measured_step

    def _is_begun(self, step: CopyStep, target_table: InspectedTable, place: TableLocation) -> bool:
        """Return whether an entry without data is that of a copy which an earlier run has begun."""
        original = target_table.properties.get(COPY_OF) or self._copy_record(place).read_records().get(SOURCE)
        return bool(original == step.location)

    def _copy_record(self, place: TableLocation) -> JobProgress:
        return JobProgress(place.location, place.storage_options, JOB)

    # Execution

    def execute(
        self,
        steps: Sequence[CopyStep],
        data: CopyData | None = None,
        report_progress: ReportProgress = lambda _done, _total: None,
    ) -> list[CopyStep]:
        """Carry out a plan, and return the results. One table that fails does not stop the others."""
        done: list[CopyStep] = []
        for number, step in enumerate(steps, 1):
            try:
                done.append(self._execute_step(step, data))
            except LanceNamespaceError as error:
                done.append(replace(step, action=Action.FAILS, why=str(error)))
            report_progress(number, len(steps))
        return done

    def _execute_step(self, step: CopyStep, data: CopyData | None) -> CopyStep:
        if step.action is Action.REGISTER:
            self._create_namespaces(step.table)
            self._register(step)
            return replace(step, action=Action.DONE)
        if step.action is Action.COPY:
            assert data is not None
            self._create_namespaces(step.table)
            return self._copy_table(step, data)
        return step

    def _create_namespaces(self, table: Id) -> None:
        table_id = self.target.full_id(table)
        first = max(len(self.target.parent), self.target.inspector.catalog_levels) + 1
        for depth in range(first, len(table_id)):
            with suppress(NamespaceAlreadyExistsError):
                self.target.catalog.call("create_namespace", table_id[:depth], mode="ExistOk")

    def _register(self, step: CopyStep) -> None:
        table = self.target.full_id(step.table)
        location = self._path_below_root(step.location) or step.location if self._is_dir else step.location
        mode = "Create"
        if step.replaces:
            if self._is_dir:
                self.target.catalog.call("deregister_table", table)
            else:
                mode = "Overwrite"
        properties = {**step.properties, **({MANAGED_BY: STORAGE} if step.is_managed and not self._is_dir else {})}
        fields = {"location": location, "mode": mode, "properties": properties or None}
        self.target.catalog.call("register_table", table, **fields)

    def _copy_table(self, step: CopyStep, data: CopyData) -> CopyStep:
        table = self.target.full_id(step.table)
        if step.replaces:
            self.target.catalog.call("deregister_table", table)
        target_table = None if step.replaces else self.target.find_table(step.table)
        if target_table is None:
            self._declare(step)
        place = self._target_place(table)
        if target_table is None:
            self._check_target_free(step, place)
        # The record is written before the data and removed at the end, so that a repeated run recognizes an unfinished
        # copy and resumes it.
        record = self._copy_record(place)
        record.record(SOURCE, step.location)
        copy_plan = data(self.source.full_id(step.table), table)
        stored = find_latest_version(TableRef(place.location, place.storage_options))
        if stored != copy_plan.version:
            raise InvalidTableStateError(
                f"the copy of {step.name} at {place.location} is at version {stored}, not {copy_plan.version}: "
                "somebody else writes there"
            )
        self._manage_copy(step, table)
        record.clear()
        return replace(_with_copy_plan(step, copy_plan), action=Action.DONE, target=place.location)

    def _declare(self, step: CopyStep) -> None:
        """Create an entry without data; storage manages its versions until the data is copied.

        It names the original, for the case that the store fails before that is recorded there: a repeated run must not
        take the entry for another table.
        """
        own_properties = {MANAGED_BY: STORAGE, COPY_OF: step.location}
        properties = {**step.properties, **({} if self._is_dir else own_properties)}
        location = None if self._is_dir else step.target or None
        table = self.target.full_id(step.table)
        self.target.catalog.call("declare_table", table, location=location, properties=properties or None)

    def _check_target_free(self, step: CopyStep, place: TableLocation) -> None:
        """Check that no other data, such as that of a dropped table, lies at the location of a new copy.

        Raises:
            InvalidTableStateError: there is some; the new entry has been removed again.
        """
        ref = TableRef.in_namespace(self.source.catalog.namespace, self.source.full_id(step.table))
        if table_copy.is_copy(ref, place) is False:
            self.target.catalog.call("deregister_table", self.target.full_id(step.table))
            raise InvalidTableStateError(
                f"another dataset lies at {place.location}: remove it, or give another --root for {step.name}"
            )

    def _target_place(self, table: Id) -> TableLocation:
        entry = self.target.catalog.call("describe_table", table)
        return TableLocation(entry.location, entry.storage_options or {})

    def _manage_copy(self, step: CopyStep, table: Id) -> None:
        """Let the target manage the versions of the copy, if the source did so or the target does so by default."""
        namespace = self.target.catalog.namespace
        if isinstance(namespace, IcebergNamespace) and (step.is_managed or is_managed_by_default(namespace)):
            with self.target.catalog.translate_errors(table):
                namespace.manage_table(table, IMPL, adopt=True)


def _with_copy_plan(step: CopyStep, plan: CopyPlan) -> CopyStep:
    behind = f"branches stay behind: {', '.join(plan.branches)}" if plan.branches else ""
    with_them = f"tags of theirs too: {', '.join(plan.tags)}" if plan.tags else ""
    why = "; ".join(dict.fromkeys(filter(None, (*step.why.split("; "), behind, with_them))))
    return replace(
        step,
        files=plan.files,
        bytes=plan.bytes,
        version=plan.version,
        why=why,
        branches=plan.branches,
        tags=plan.tags,
    )


FIELDS = ("location", "version", "rows", "schema", "properties")
ERROR = "error"
MAX_WORKERS = 8


@dataclass(frozen=True, slots=True)
class Difference:
    """A table that is not the same in both catalogs."""

    table: str
    is_in_first: bool
    is_in_second: bool
    fields: Mapping[str, tuple[Any, Any]] = field(default_factory=dict)
    """The values of both sides, where they differ."""


@dataclass(frozen=True, slots=True)
class CatalogDiff:
    """Result of a comparison: how many tables are the same, and the others."""

    same: int
    different: list[Difference]


def compare(
    first: NamedCatalog,
    second: NamedCatalog,
    namespace: Id = (),
    ignore: Collection[str] = (),
    report_progress: ReportProgress = lambda _done, _total: None,
) -> CatalogDiff:
    """Compare the tables of two catalogs.

    Args:
        first: one of them.
        second: the other.
        namespace: compare only tables in it and below it; default: all.
        ignore: names among `FIELDS` that are not compared.
        report_progress: is called with the number of tables compared, and of all.

    Raises:
        NamespaceNotFoundError: neither catalog has the namespace.
    """
    here, there = _list_tables(first, second, namespace)
    both = sorted(here & there)
    differences = [Difference(format_levels(table), table in here, table in there) for table in sorted(here ^ there)]
    with ThreadPoolExecutor(MAX_WORKERS) as pool:
        results = pool.map(lambda table: _different_fields(first, second, table, ignore), both)
        for done, (table, fields) in enumerate(zip(both, results, strict=True), 1):
            if fields:
                differences.append(Difference(format_levels(table), True, True, fields))
            report_progress(done, len(both))
    return CatalogDiff(
        len(both) + len(here ^ there) - len(differences), sorted(differences, key=lambda difference: difference.table)
    )


def _list_tables(first: NamedCatalog, second: NamedCatalog, namespace: Id) -> tuple[set[Id], set[Id]]:
    tables: list[set[Id]] = []
    missing: list[NamespaceNotFoundError] = []
    for side in (first, second):
        try:
            tables.append(set(side.list_tables(namespace)))
        except NamespaceNotFoundError as error:
            missing.append(error)
            tables.append(set())
    if len(missing) == len(tables):
        raise missing[0]
    return tables[0], tables[1]


def _different_fields(
    first: NamedCatalog, second: NamedCatalog, table: Id, ignore: Collection[str]
) -> dict[str, tuple[Any, Any]]:
    one, other = _table_facts(first, table), _table_facts(second, table)
    return {
        name: (one.get(name), other.get(name))
        for name in (*FIELDS, ERROR)
        if name not in ignore and not _is_same(name, one.get(name), other.get(name))
    }


def _is_same(name: str, one: Any, other: Any) -> bool:
    if name == "location" and one and other:
        return split_location(one) == split_location(other)
    if name == "properties" and None in (one, other):
        return True  # a catalog that stores no properties
    return bool(one == other) and not (name == ERROR and one)


def _table_facts(side: NamedCatalog, table: Id) -> dict[str, Any]:
    """Return the compared fields of a table; for one that cannot be read, the error."""
    try:
        inspected = side.find_table(table)
        if not isinstance(inspected, InspectedTable):
            return {ERROR: "it is not there any more"}
        facts: dict[str, Any] = {"location": inspected.location, "properties": _comparable_properties(side, inspected)}
        with side.catalog.translate_errors(side.full_id(table)):
            table_summary = read_summary(TableRef.in_namespace(side.catalog.namespace, side.full_id(table)))
    except TableNotFoundError:
        return facts  # it is declared only, and has no data
    except LanceNamespaceError as error:
        return {ERROR: str(error)}
    columns = {column["name"]: column["type"] for column in map(field_to_json, table_summary.schema)}
    return {**facts, "version": table_summary.version, "rows": table_summary.rows, "schema": columns}


def _comparable_properties(side: NamedCatalog, inspected: InspectedTable) -> dict[str, str] | None:
    return portable_properties(inspected.properties) if side.inspector.keeps_properties else None
