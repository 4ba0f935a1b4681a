"""Namespaces with one defect each, and the checks that find it."""

from __future__ import annotations

import shutil
import time
from typing import Any
from urllib.parse import unquote

from lance.namespace import DirectoryNamespace
from lance_namespace import (
    AlterTableDropColumnsRequest,
    CountTableRowsRequest,
    CountTableRowsResponse,
    CreateNamespaceRequest,
    CreateNamespaceResponse,
    DeclareTableRequest,
    DeclareTableResponse,
    DeregisterTableRequest,
    DeregisterTableResponse,
    DescribeNamespaceRequest,
    DescribeNamespaceResponse,
    DescribeTableIndexStatsRequest,
    DescribeTableRequest,
    DescribeTableResponse,
    DropNamespaceRequest,
    DropNamespaceResponse,
    DropTableIndexRequest,
    DropTableIndexResponse,
    DropTableRequest,
    DropTableResponse,
    InsertIntoTableRequest,
    ListNamespacesRequest,
    ListNamespacesResponse,
    ListTablesRequest,
    ListTablesResponse,
    UpdateTableTagRequest,
)
from lance_namespace.errors import (
    InternalError,
    InvalidInputError,
    NamespaceNotFoundError,
    TableNotFoundError,
    UnsupportedOperationError,
)

from lancehouse.conformance.target import DEAD_URL
from tests.conformance.model import Id, ModelNamespace, ModelTable


class LosesATable(ModelNamespace):
    """A long list lacks its last table."""

    def list_tables(self, request: ListTablesRequest) -> ListTablesResponse:
        found = super().list_tables(request)
        return found.model_copy(update={"tables": found.tables[:5]})


class DoublesEntries(ModelNamespace):
    """Every namespace is listed twice."""

    def list_namespaces(self, request: ListNamespacesRequest) -> ListNamespacesResponse:
        found = super().list_namespaces(request)
        return found.model_copy(update={"namespaces": sorted(found.namespaces * 2)})


class LosesAPage(ModelNamespace):
    """The token skips an entry."""

    def page(self, names: list[str], limit: int | None, token: str | None) -> tuple[list[str], str | None]:
        found, following = super().page(names, limit, token)
        return found, names[names.index(following) + 1] if following else None


class IgnoresLimit(ModelNamespace):
    def page(self, names: list[str], limit: int | None, token: str | None) -> tuple[list[str], str | None]:
        return super().page(names, None, token)


class Unsorted(ModelNamespace):
    def list_tables(self, request: ListTablesRequest) -> ListTablesResponse:
        found = super().list_tables(request)
        return found.model_copy(update={"tables": found.tables[::-1]})


class WrongCode(ModelNamespace):
    """A missing table is a missing namespace."""

    def table(self, id: list[str] | None) -> ModelTable:
        try:
            return super().table(id)
        except TableNotFoundError as error:
            raise NamespaceNotFoundError(str(error)) from error


class ForeignError(ModelNamespace):
    def need_empty(self, id: Id) -> None:
        if self.children(self.store.tables, id):
            raise KeyError(id)
        super().need_empty(id)


class LeaksProperties(ModelNamespace):
    def describe_table(self, request: DescribeTableRequest) -> DescribeTableResponse:
        found = super().describe_table(request)
        return found.model_copy(update={"storage_options": found.properties})


class ForgetsProperties(ModelNamespace):
    def create_namespace(self, request: CreateNamespaceRequest) -> CreateNamespaceResponse:
        return super().create_namespace(request.model_copy(update={"properties": {}}))


class MovesTables(ModelNamespace):
    """It is described at another place than it was declared at."""

    def declare_table(self, request: DeclareTableRequest) -> DeclareTableResponse:
        declared = super().declare_table(request)
        return declared.model_copy(update={"location": f"{declared.location}/"})


class IgnoresModes(ModelNamespace):
    def mode(self, given: str | None, *modes: str) -> str:
        return modes[0]


class PicksASpelling(ModelNamespace):
    def mode(self, given: str | None, *modes: str) -> str:
        if given and given[0].islower():
            raise InvalidInputError(f"{given} has no capital")
        return super().mode(given, *modes)


class DropsWhatIsFull(ModelNamespace):
    def need_empty(self, id: Id) -> None:
        for things in (self.store.tables, self.store.namespaces):
            for thing in [thing for thing in things if thing[: len(id)] == id and thing != id]:
                del things[thing]


class DropsNothing(ModelNamespace):
    def drop_namespace(self, request: DropNamespaceRequest) -> DropNamespaceResponse:
        kept = dict(self.store.namespaces)
        dropped = super().drop_namespace(request)
        self.store.namespaces.update(kept)
        return dropped


class DeletesData(ModelNamespace):
    """Deregister takes the data along."""

    def deregister_table(self, request: DeregisterTableRequest) -> DeregisterTableResponse:
        shutil.rmtree(self.folder(self.table(request.id)), ignore_errors=True)
        return super().deregister_table(request)


class KeepsData(ModelNamespace):
    """Drop leaves the data."""

    def drop_table(self, request: DropTableRequest) -> DropTableResponse:
        self.deregister_table(DeregisterTableRequest(id=request.id))
        return DropTableResponse()


class NeedsNoNamespace(ModelNamespace):
    """Tables can be made where there is no namespace."""

    def add(self, id: Id, location: str, properties: dict[str, str]) -> None:
        missing = id[:-1] not in self.store.namespaces
        self.store.namespaces.setdefault(id[:-1], {})
        super().add(id, location, properties)
        if missing:
            del self.store.namespaces[id[:-1]]


class DecodesNames(ModelNamespace):
    """Names go through a URL once too often."""

    def id_of(self, id: list[str] | None) -> Id:
        return tuple(unquote(level) for level in super().id_of(id))


class LeavesRoot(ModelNamespace):
    """Default locations are made of raw names."""

    def segment(self, level: str) -> str:
        return level


class ShowsSecret(ModelNamespace):
    def __repr__(self) -> str:
        return f"ShowsSecret({self.token})"


class TellsSecret(ModelNamespace):
    def table(self, id: list[str] | None) -> ModelTable:
        try:
            return super().table(id)
        except TableNotFoundError as error:
            raise TableNotFoundError(f"{error}, says {self.token}") from error


class WantsServer(ModelNamespace):
    def __init__(self, **properties: str) -> None:
        super().__init__(**properties)
        if self.endpoint == DEAD_URL:
            raise ConnectionError("nobody there")


class SharesState(ModelNamespace):
    """Two threads on one client mix up their requests."""

    def describe_table(self, request: DescribeTableRequest) -> DescribeTableResponse:
        self.request = request
        time.sleep(0.002)
        return super().describe_table(self.request)


class Anonymous(ModelNamespace):
    """Errors do not say what they are about."""

    def table(self, id: list[str] | None) -> ModelTable:
        try:
            return super().table(id)
        except TableNotFoundError:
            raise TableNotFoundError("not found") from None


class ListsDeclared(ModelNamespace):
    def has_data(self, table: ModelTable) -> bool:
        return True


class RefusesAndMakes(ModelNamespace):
    """A refused mode has its effect all the same."""

    def create_namespace(self, request: CreateNamespaceRequest) -> CreateNamespaceResponse:
        if request.mode and "bogus" in request.mode:
            super().create_namespace(request.model_copy(update={"mode": None}))
        return super().create_namespace(request)


class LacksDescribe(ModelNamespace):
    def describe_namespace(self, request: DescribeNamespaceRequest) -> DescribeNamespaceResponse:
        raise UnsupportedOperationError("Not supported: describe_namespace")


class Fragile(ModelNamespace):
    """Everything about names with a `%` is an internal error."""

    def id_of(self, id: list[str] | None) -> Id:
        if any("%" in level for level in id or ()):
            raise InternalError("%")
        return super().id_of(id)


MODES = {
    *("exist_ok", "overwrite", "overwrite_non_empty", "drop_skip", "cascade", "spelling_create[*]", "spelling_drop[*]"),
    *("bogus_create", "bogus_drop", "bogus_behavior", "bogus_register"),
}

FOUND_BY: dict[type[ModelNamespace], set[str]] = {
    LosesATable: {"lists.tables_complete", "lists.tables_paged[all]", "lists.tables_paged[more]"},
    DoublesEntries: {
        *("namespaces.list", "namespaces.nesting", "lists.namespaces_complete", "lists.namespaces_paged[*]"),
        "names.namespace[*]",
    },
    LosesAPage: {
        *("lists.tables_paged[1]", "lists.tables_paged[3]", "lists.tables_paged[5]", "lists.namespaces_paged[*]"),
        "lists.change_between_pages",
    },
    IgnoresLimit: {"lists.tables_by_limit", "lists.token_again", "lists.namespaces_paged[*]"},
    Unsorted: {"lists.tables_sorted", "lists.pages_in_order"},
    WrongCode: {
        *("tables.describe_missing", "tables.deregister", "tables.deregister_missing", "tables.errors_name_it"),
        *("entries.table_exists_missing", "entries.drop_table", "entries.drop_declared", "entries.drop_missing"),
        *("entries.rename", "entries.rename_missing", "data.read_missing"),
    },
    ForeignError: {"namespaces.drop_with_table", "modes.restrict", "modes.overwrite_non_empty"},
    LeaksProperties: {"properties.storage_options"},
    ForgetsProperties: {
        *("properties.namespace", "properties.namespace_created", "properties.namespace_values", "modes.overwrite"),
    },
    MovesTables: {"tables.declare", "names.table[*]"},
    IgnoresModes: {*(f"modes.{mode}" for mode in MODES), "entries.register_overwrite"},
    PicksASpelling: {
        *("modes.create_mode", "modes.spelling_create[exist_ok]", "modes.spelling_create[existok]"),
        "modes.spelling_drop[skip]",
    },
    DropsWhatIsFull: {"namespaces.drop_with_table", "namespaces.drop_with_namespace", "modes.restrict"},
    DropsNothing: {
        *("namespaces.drop", "namespaces.create_again", "namespaces.dropped_is_forgotten", "names.namespace[*]"),
        "cleanup.nothing_left",
    },
    DeletesData: {
        *("entries.register", "entries.register_overwrite", "data.deregister_keeps_data", "data.register_again"),
    },
    KeepsData: {"entries.drop_table"},
    NeedsNoNamespace: {
        *("namespaces.dropped_is_forgotten", "tables.declare_in_missing", "entries.register_in_missing"),
    },
    DecodesNames: {"names.table[an escaped slash]", "names.namespace[an escaped slash]"},
    LeavesRoot: {"names.default_location[*]"},
    Fragile: {
        *("names.table[a percent sign]", "names.table[an escaped slash]"),
        *("names.namespace[a percent sign]", "names.namespace[an escaped slash]"),
    },
    ShowsSecret: {"connection.no_secret_shown"},
    TellsSecret: {"cleanup.no_secret_in_errors"},
    WantsServer: {"connection.constructor_offline", "connection.unreachable"},
    SharesState: {"connection.threads"},
    Anonymous: {"tables.errors_name_it"},
    ListsDeclared: {"details.only_declared", "details.include_declared"},
    RefusesAndMakes: {"modes.bogus_create"},
    LacksDescribe: {
        *("namespaces.create", "namespaces.nesting", "namespaces.describe_missing", "namespaces.drop"),
        *("namespaces.drop_with_namespace", "namespaces.errors_name_it", "modes.exist_ok_creates", "modes.overwrite"),
        *("modes.bogus_create", "modes.bogus_drop", "modes.bogus_behavior", "names.namespace[*]"),
        *("properties.namespace", "properties.namespace_values", "properties.namespace_separate"),
    },
}
"""Exactly these checks fail; `[*]` stands for all cases of one."""


class Miscounts(DirectoryNamespace):  # type: ignore[misc]
    def count_table_rows(self, request: CountTableRowsRequest) -> CountTableRowsResponse:
        found = super().count_table_rows(request)
        return CountTableRowsResponse(count=found.count + 1)


class InsertsTwice(DirectoryNamespace):  # type: ignore[misc]
    def insert_into_table(self, request: InsertIntoTableRequest, data: bytes) -> Any:
        super().insert_into_table(request, data)
        return super().insert_into_table(InsertIntoTableRequest(id=request.id), data)


class KeepsIndices(DirectoryNamespace):  # type: ignore[misc]
    def drop_table_index(self, request: DropTableIndexRequest) -> DropTableIndexResponse:
        stats = DescribeTableIndexStatsRequest(id=request.id, index_name=request.index_name)
        super().describe_table_index_stats(stats)
        return DropTableIndexResponse()


class TagsTheFirst(DirectoryNamespace):  # type: ignore[misc]
    def update_table_tag(self, request: UpdateTableTagRequest) -> Any:
        return super().update_table_tag(request.model_copy(update={"version": 1}))


class DropsAllColumnsButOne(DirectoryNamespace):  # type: ignore[misc]
    def alter_table_drop_columns(self, request: AlterTableDropColumnsRequest) -> Any:
        more = [*request.columns, "name"] if request.columns == ["vector"] else request.columns
        return super().alter_table_drop_columns(request.model_copy(update={"columns": more}))


FOUND_IN_ROWS: dict[type[DirectoryNamespace], set[str]] = {
    Miscounts: {"rows.count"},
    InsertsTwice: {"rows.insert", "rows.insert_overwrite"},
    KeepsIndices: {"indices.drop"},
    TagsTheFirst: {"versions.tag"},
    DropsAllColumnsButOne: {"columns.drop"},
}
"""The same for operations on rows; pylance's own failures come on top."""
