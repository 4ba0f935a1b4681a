"""The tables of one catalog brought into another: their entries alone, or with their data.

All is planned before anything is done. Done again, it goes on where it was: what is there already is left alone.
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
from lancehouse.care.sides import Side
from lancehouse.clients.inspection import Neighbour, Seen, manages
from lancehouse.clients.management import ManagedTables
from lancehouse.clients.namespace import CatalogNamespace
from lancehouse.identifiers import write_levels
from lancehouse.lake import copies
from lancehouse.lake.copies import Copying
from lancehouse.lake.dataset import TableRef
from lancehouse.lake.fragments import Place
from lancehouse.lake.history import latest
from lancehouse.lake.progress import Progress
from lancehouse.lake.survey import parts, relative
from lancehouse.properties import FEW_METADATA_FILES, GC_ENABLED, IMPL, MANAGED_BY, STORAGE, TABLE_TYPE
from lancehouse.trees import Id

OF_CATALOGS = frozenset({TABLE_TYPE, MANAGED_BY, GC_ENABLED, *FEW_METADATA_FILES})
"""Properties that a catalog sets for reasons of its own."""
ICEBERG_WRITES = "write."
"""Properties that tell Iceberg's writers what to do."""
JOB, SOURCE = "copy", "source"
"""The record, at the place of a copy that is not whole yet, of what it is a copy of."""

Told = Callable[[int, int], None]
Data = Callable[[Id, Id], Copying]
"""Copies the data of a table, by its ids in both catalogs."""


class Action(StrEnum):
    """What becomes of a table."""

    REGISTER = "register"
    COPY = "copy"
    PRESENT = "present"
    SKIP = "skip"
    CONFLICT = "conflict"
    DONE = "done"
    FAILS = "fails"


@dataclass(frozen=True, slots=True)
class Step:
    """What is to be done with a table, or was."""

    table: Id
    """Its id, without the `parent` of either catalog."""
    action: Action
    why: str = ""
    location: str = ""
    """Where its data is."""
    target: str = ""
    """Where it will be."""
    properties: Mapping[str, str] = field(default_factory=dict, repr=False)
    is_managed: bool = False
    replaces: bool = False
    """Whether another entry of that name goes."""
    files: int = 0
    bytes: int = 0
    version: int | None = None
    branches: Sequence[str] = ()
    """Branches of its data that stay behind."""
    tags: Sequence[str] = ()
    """Tags of those branches."""

    @property
    def name(self) -> str:
        """As it is typed."""
        return write_levels(self.table)


def kept(properties: Mapping[str, str]) -> dict[str, str]:
    """The properties that belong to the table, and not to how a catalog keeps it."""
    return {
        key: value for key, value in properties.items() if key not in OF_CATALOGS and not key.startswith(ICEBERG_WRITES)
    }


@dataclass(frozen=True)
class Copier:
    """Brings tables from one catalog into another.

    Args:
        source: where they are.
        target: where they go.
        with_data: whether their data goes too, to a place of its own.
        root: where that is; default: where the target puts tables.
        replaces: whether an entry goes that has the name of another table; its data stays.
    """

    source: Side
    target: Side
    with_data: bool = False
    root: str | None = None
    replaces: bool = False

    def plan(self, tables: Sequence[Id], told: Told = lambda _done, _total: None) -> list[Step]:
        """See what has to be done, without doing it. One table that cannot be read does not stop the others.

        Raises:
            ServiceUnavailableError: the target does not answer.
            UnauthenticatedError: the target does not know us.
        """
        if tables:
            self._require_answer(tables[0])
        steps: list[Step] = []
        for number, table in enumerate(tables, 1):
            try:
                steps.append(self._planned(table))
            except LanceNamespaceError as error:
                steps.append(Step(table, Action.FAILS, str(error)))
            told(number, len(tables))
        return steps

    def _require_answer(self, table: Id) -> None:
        """With a target that does not answer every table would fail."""
        try:
            self.target.look(table)
        except LanceNamespaceError as error:
            if isinstance(error, ServiceUnavailableError | UnauthenticatedError):
                raise

    def _planned(self, table: Id) -> Step:
        seen = self.source.look(table)
        if seen is None:
            raise TableNotFoundError(f"{self.source.name} has no table {write_levels(table)}")
        if isinstance(seen, Neighbour):
            raise InvalidInputError(f"{write_levels(table)} is no Lance table in {self.source.name}, but a {seen.kind}")
        step = Step(
            table,
            Action.COPY if self.with_data else Action.REGISTER,
            location=seen.location,
            target=self._target(table, seen.location),
            properties=kept(seen.properties),
            is_managed=seen.is_managed,
        )
        if not seen.location or latest(TableRef(seen.location, seen.storage_options)) is None:
            return replace(step, action=Action.SKIP, why="has no data")
        there = self.target.look(table)
        decided = self._with_data(step, there) if self.with_data else self._entry_alone(step, there)
        return (
            decided if decided.action is not Action.CONFLICT or not self.replaces else self._replacing(decided, there)
        )

    def _target(self, table: Id, location: str) -> str:
        if not self.with_data:
            return location
        return locations.below(self.root, self.target.id(table)) if self.root else ""

    # Entries alone

    def _entry_alone(self, step: Step, there: Seen | Neighbour | None) -> Step:
        if there is not None:
            if isinstance(there, Seen) and there.location and parts(there.location) == parts(step.location):
                return replace(step, action=Action.PRESENT)
            return replace(step, action=Action.CONFLICT, why=self._taken(there))
        if step.is_managed and manages(self.target.catalog.namespace):
            typed = self.source.catalog.shell.command("table", "manage", step.name, "--by", STORAGE)
            why = (
                f"{self.source.name} manages its versions, and {self.target.name} would too: with --data it gets a "
                f"copy of its own, or `{typed}`"
            )
            return replace(step, action=Action.CONFLICT, why=why)
        if self._is_dir and self._below_root(step.location) is None:
            why = "Lance's `dir` has tables below its root only: --data copies it there"
            return replace(step, action=Action.CONFLICT, why=why)
        if step.is_managed:
            return replace(step, why=f"{self.source.name} manages its versions: write through it alone")
        return step

    def _taken(self, there: Seen | Neighbour) -> str:
        if isinstance(there, Neighbour):
            return f"{self.target.name} has a {there.kind} of that name"
        return f"{self.target.name} has another table of that name, at {there.location or 'no place'}"

    def _replacing(self, step: Step, there: Seen | Neighbour | None) -> Step:
        if not isinstance(there, Seen):
            return step
        action = Action.COPY if self.with_data else Action.REGISTER
        return replace(step, action=action, replaces=True, why=f"instead of the one at {there.location}, which stays")

    @property
    def _is_dir(self) -> bool:
        return not isinstance(self.target.catalog.namespace, CatalogNamespace)

    def _below_root(self, location: str) -> str | None:
        root = self.target.catalog.target.properties.get("root", "")
        levels = relative(location, root) if root else None
        return "/".join(levels) if levels else None

    # With data

    def _with_data(self, step: Step, there: Seen | Neighbour | None) -> Step:
        ref = TableRef.of(self.source.catalog.namespace, self.source.id(step.table))
        if there is None:
            return _measured(step, copies.plan(ref, None))
        if isinstance(there, Neighbour):
            return replace(step, action=Action.CONFLICT, why=self._taken(there))
        place = Place(there.location, there.storage_options)
        is_part = copies.is_part(ref, place)
        if is_part is None and self._record(place).done().get(SOURCE) != step.location:
            why = f"{self.target.name} has a table of that name without data, at {there.location}"
            return replace(step, action=Action.CONFLICT, why=why)
        if is_part is False or parts(there.location) == parts(step.location):
            return replace(step, action=Action.CONFLICT, why=self._taken(there))
        measured = copies.plan(ref, place)
        found = replace(_measured(step, measured), target=there.location)
        is_whole = not measured.files and is_part and not self._record(place).done()
        return replace(found, action=Action.PRESENT) if is_whole else found

    def _record(self, place: Place) -> Progress:
        return Progress(place.location, place.storage_options, JOB)

    # Doing it

    def execute(
        self, steps: Sequence[Step], data: Data | None = None, told: Told = lambda _done, _total: None
    ) -> list[Step]:
        """Do what was planned. One table that fails does not stop the others."""
        done: list[Step] = []
        for number, step in enumerate(steps, 1):
            try:
                done.append(self._executed(step, data))
            except LanceNamespaceError as error:
                done.append(replace(step, action=Action.FAILS, why=str(error)))
            told(number, len(steps))
        return done

    def _executed(self, step: Step, data: Data | None) -> Step:
        if step.action is Action.REGISTER:
            self._make_namespaces(step.table)
            self._register(step)
            return replace(step, action=Action.DONE)
        if step.action is Action.COPY:
            assert data is not None
            self._make_namespaces(step.table)
            return self._copied(step, data)
        return step

    def _make_namespaces(self, table: Id) -> None:
        whole = self.target.id(table)
        first = max(len(self.target.parent), self.target.inspector.catalog_levels) + 1
        for depth in range(first, len(whole)):
            with suppress(NamespaceAlreadyExistsError):
                self.target.catalog.ask(
                    "create_namespace", CreateNamespaceRequest(id=list(whole[:depth]), mode="ExistOk")
                )

    def _register(self, step: Step) -> None:
        table = list(self.target.id(step.table))
        location = self._below_root(step.location) or step.location if self._is_dir else step.location
        mode = "Create"
        if step.replaces:
            if self._is_dir:
                self.target.catalog.ask("deregister_table", DeregisterTableRequest(id=table))
            else:
                mode = "Overwrite"
        said = {**step.properties, **({MANAGED_BY: STORAGE} if step.is_managed and not self._is_dir else {})}
        request = RegisterTableRequest(id=table, location=location, mode=mode, properties=said or None)
        self.target.catalog.ask("register_table", request)

    def _copied(self, step: Step, data: Data) -> Step:
        table = self.target.id(step.table)
        if step.replaces:
            self.target.catalog.ask("deregister_table", DeregisterTableRequest(id=list(table)))
        there = None if step.replaces else self.target.look(step.table)
        if there is None:
            self._declare(step)
        place = self._place(table)
        if there is None:
            self._require_room(step, place)
        record = self._record(place)
        record.put(SOURCE, step.location)
        copied = data(self.source.id(step.table), table)
        stored = latest(TableRef(place.location, place.storage_options))
        if stored != copied.version:
            raise InvalidTableStateError(
                f"the copy of {step.name} at {place.location} is at version {stored}, not {copied.version}: somebody "
                "else writes there"
            )
        self._take_over(step, table)
        record.clear()
        return replace(_measured(step, copied), action=Action.DONE, target=place.location)

    def _declare(self, step: Step) -> None:
        """An entry whose data is still to come; storage manages its versions until it is there."""
        said = {**step.properties, **({} if self._is_dir else {MANAGED_BY: STORAGE})}
        location = None if self._is_dir else step.target or None
        request = DeclareTableRequest(id=list(self.target.id(step.table)), location=location, properties=said or None)
        self.target.catalog.ask("declare_table", request)

    def _require_room(self, step: Step, place: Place) -> None:
        """See that a new copy does not get mixed up with other data, which a table that is gone may have left.

        Raises:
            InvalidTableStateError: it would; the entry is taken back.
        """
        ref = TableRef.of(self.source.catalog.namespace, self.source.id(step.table))
        if copies.is_part(ref, place) is False:
            table = self.target.id(step.table)
            self.target.catalog.ask("deregister_table", DeregisterTableRequest(id=list(table)))
            raise InvalidTableStateError(
                f"another dataset lies at {place.location}: remove it, or give another --root for {step.name}"
            )

    def _place(self, table: Id) -> Place:
        entry = self.target.catalog.ask("describe_table", DescribeTableRequest(id=list(table)))
        return Place(entry.location, entry.storage_options or {})

    def _take_over(self, step: Step, table: Id) -> None:
        """Let the catalog manage the versions of the copy, if it did so before or is told to."""
        namespace = self.target.catalog.namespace
        if isinstance(namespace, ManagedTables) and (step.is_managed or manages(namespace)):
            with self.target.catalog.explained(table):
                namespace.manage_table(table, IMPL, adopt=True)


def _measured(step: Step, plan: Copying) -> Step:
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
