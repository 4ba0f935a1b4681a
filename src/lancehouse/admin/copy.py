"""Copying tables from one catalog to another: their entries only, or with their data.

Everything is planned before anything is changed. A repeated copy resumes: tables that are complete are left alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from enum import StrEnum

from lance_namespace import (
    CreateNamespaceRequest,
    DeclareTableRequest,
    DeregisterTableRequest,
    DescribeTableRequest,
    RegisterTableRequest,
)
from lance_namespace.errors import (
    InvalidInputError,
    InvalidTableStateError,
    LanceNamespaceError,
    NamespaceAlreadyExistsError,
    ServiceUnavailableError,
    TableNotFoundError,
    UnauthenticatedError,
)

from lancehouse import locations
from lancehouse.admin.named_catalog import NamedCatalog
from lancehouse.catalog_walk import Id
from lancehouse.clients.catalog_namespace import CatalogNamespace
from lancehouse.clients.iceberg import IcebergNamespace
from lancehouse.clients.inspection import ForeignTable, InspectedTable, is_managed_by_default
from lancehouse.identifiers import format_levels
from lancehouse.jobs import table_copy
from lancehouse.jobs.job import JobProgress
from lancehouse.jobs.table_copy import CopyPlan
from lancehouse.lake.dataset import TableRef
from lancehouse.lake.dataset_discovery import relative_levels, split_location
from lancehouse.lake.fragments import TableLocation
from lancehouse.lake.history import find_latest_version
from lancehouse.properties import FEW_METADATA_FILES, GC_ENABLED, IMPL, MANAGED_BY, STORAGE, TABLE_TYPE

CATALOG_PROPERTIES = frozenset({TABLE_TYPE, MANAGED_BY, GC_ENABLED, *FEW_METADATA_FILES})
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
        except LanceNamespaceError as error:
            if isinstance(error, ServiceUnavailableError | UnauthenticatedError):
                raise

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
        planned = self._plan_copy(step, target_table) if self.with_data else self._plan_entry(step, target_table)
        return (
            planned
            if planned.action is not Action.CONFLICT or not self.replaces
            else self._plan_replacement(planned, target_table)
        )

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

    def _plan_replacement(self, step: CopyStep, target_table: InspectedTable | ForeignTable | None) -> CopyStep:
        if not isinstance(target_table, InspectedTable):
            return step
        action = Action.COPY if self.with_data else Action.REGISTER
        return replace(
            step, action=action, replaces=True, why=f"instead of the one at {target_table.location}, which stays"
        )

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
        if is_part is None and self._copy_record(place).read_records().get(SOURCE) != step.location:
            why = f"{self.target.name} has a table of that name without data, at {target_table.location}"
            return replace(step, action=Action.CONFLICT, why=why)
        if is_part is False or split_location(target_table.location) == split_location(step.location):
            return replace(step, action=Action.CONFLICT, why=self._conflict_reason(target_table))
        copy_plan = table_copy.plan(ref, place)
        measured_step = replace(_with_copy_plan(step, copy_plan), target=target_table.location)
        is_whole = not copy_plan.files and is_part and not self._copy_record(place).read_records()
        return replace(measured_step, action=Action.PRESENT) if is_whole else measured_step

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
                self.target.catalog.ask(
                    "create_namespace", CreateNamespaceRequest(id=list(table_id[:depth]), mode="ExistOk")
                )

    def _register(self, step: CopyStep) -> None:
        table = list(self.target.full_id(step.table))
        location = self._path_below_root(step.location) or step.location if self._is_dir else step.location
        mode = "Create"
        if step.replaces:
            if self._is_dir:
                self.target.catalog.ask("deregister_table", DeregisterTableRequest(id=table))
            else:
                mode = "Overwrite"
        properties = {**step.properties, **({MANAGED_BY: STORAGE} if step.is_managed and not self._is_dir else {})}
        request = RegisterTableRequest(id=table, location=location, mode=mode, properties=properties or None)
        self.target.catalog.ask("register_table", request)

    def _copy_table(self, step: CopyStep, data: CopyData) -> CopyStep:
        table = self.target.full_id(step.table)
        if step.replaces:
            self.target.catalog.ask("deregister_table", DeregisterTableRequest(id=list(table)))
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
        copied = data(self.source.full_id(step.table), table)
        stored = find_latest_version(TableRef(place.location, place.storage_options))
        if stored != copied.version:
            raise InvalidTableStateError(
                f"the copy of {step.name} at {place.location} is at version {stored}, not {copied.version}: somebody "
                "else writes there"
            )
        self._manage_copy(step, table)
        record.clear()
        return replace(_with_copy_plan(step, copied), action=Action.DONE, target=place.location)

    def _declare(self, step: CopyStep) -> None:
        """Create an entry without data; storage manages its versions until the data is copied."""
        properties = {**step.properties, **({} if self._is_dir else {MANAGED_BY: STORAGE})}
        location = None if self._is_dir else step.target or None
        request = DeclareTableRequest(
            id=list(self.target.full_id(step.table)), location=location, properties=properties or None
        )
        self.target.catalog.ask("declare_table", request)

    def _check_target_free(self, step: CopyStep, place: TableLocation) -> None:
        """Check that no other data, such as that of a dropped table, lies at the location of a new copy.

        Raises:
            InvalidTableStateError: there is some; the new entry has been removed again.
        """
        ref = TableRef.in_namespace(self.source.catalog.namespace, self.source.full_id(step.table))
        if table_copy.is_copy(ref, place) is False:
            table = self.target.full_id(step.table)
            self.target.catalog.ask("deregister_table", DeregisterTableRequest(id=list(table)))
            raise InvalidTableStateError(
                f"another dataset lies at {place.location}: remove it, or give another --root for {step.name}"
            )

    def _target_place(self, table: Id) -> TableLocation:
        entry = self.target.catalog.ask("describe_table", DescribeTableRequest(id=list(table)))
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
