"""What tables and views have in common: names in a namespace, one entry each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from lance_namespace.errors import TableAlreadyExistsError

from lancehouse.catalog.callers import Caller, Role
from lancehouse.catalog.names import Levels, checked_name, dotted, no_namespace, no_table, no_view, taken
from lancehouse.catalog.places import require_unshared
from lancehouse.catalog.transactions import now_ms, write
from lancehouse.catalog.warehouses import Warehouse
from lancehouse.paging import after, token_after
from lancehouse.store import repository
from lancehouse.store.database import Database, Tx
from lancehouse.store.rows import CommitRow, EntryRow, Json, Kind, NamespaceRow


@dataclass(frozen=True, slots=True)
class TableName:
    """A table or view in a warehouse."""

    levels: Levels
    name: str

    def __str__(self) -> str:
        return dotted(self.levels, self.name)


def list_names(
    database: Database,
    caller: Caller,
    warehouse: Warehouse,
    levels: Levels,
    kinds: tuple[Kind, ...],
    page_token: str | None,
    page_size: int | None,
) -> tuple[list[str], str | None]:
    """The names of some kinds in a namespace, and the token of the next page.

    Raises:
        NamespaceNotFoundError: there is no such namespace.
    """
    caller.identity.require(Role.READER, warehouse.name, levels)
    limit = page_size if page_token is not None else None

    def work(tx: Tx) -> list[str]:
        namespace = repository.find_namespace(tx, warehouse.id, levels)
        if namespace is None:
            raise no_namespace(levels)
        more = None if limit is None else limit + 1
        return repository.list_entries(tx, namespace.id, kinds, after(page_token), more)

    names = database.read(work)
    shown = names[:limit]
    return shown, token_after(shown[-1]) if len(shown) < len(names) else None


def require_free(
    tx: Tx, warehouse: Warehouse, name: TableName, wanted: Kind, *, replaced: bool = False
) -> NamespaceRow:
    """The namespace that a new table or view goes to.

    Args:
        tx: the transaction.
        warehouse: of the table.
        name: the new one.
        wanted: what it is to be.
        replaced: whether one of the same kind may be there.

    Raises:
        NamespaceNotFoundError: there is no such namespace.
        TableAlreadyExistsError, ViewAlreadyExistsError: the name is taken.
    """
    namespace = repository.find_namespace(tx, warehouse.id, name.levels)
    if namespace is None:
        raise no_namespace(name.levels)
    there = repository.find_entry(tx, warehouse.id, name.levels, name.name)
    if there is not None and not (replaced and there.kind == wanted):
        raise taken(name.levels, name.name, by=there.kind, wanted=wanted)
    return namespace


def insert(
    tx: Tx,
    namespace: NamespaceRow,
    name: TableName,
    kind: Kind,
    uuid: str,
    location: str,
    properties: Mapping[str, str],
    *,
    caller: Caller,
    schema: Json | None = None,
    version: int | None = None,
    metadata_location: str | None = None,
) -> EntryRow:
    """Make an entry, unless its name or its place is another's.

    Raises:
        TableAlreadyExistsError, ViewAlreadyExistsError: the name is taken.
        InvalidInputError: the location lies in another table's, or the other way round.
    """
    key = require_unshared(tx, location, kind)
    entry = repository.insert_entry(
        tx,
        namespace.id,
        name=name.name,
        kind=kind,
        uuid=uuid,
        location=location,
        location_key=key,
        properties=dict(properties),
        now_ms=now_ms(),
        schema=schema,
        version=version,
        metadata_location=metadata_location,
    )
    if entry is None:
        raise taken(name.levels, name.name, by=kind, wanted=kind)
    record(tx, entry, caller, "create", version)
    return entry


def record(tx: Tx, entry: EntryRow, caller: Caller, operation: str, snapshot_id: int | None) -> None:
    """Remember who made the change that the entry shows, when, and with what."""
    row = CommitRow(
        at_ms=entry.updated_ms,
        principal=caller.identity.name,
        client=caller.client,
        request_id=caller.request_id,
        revision=entry.revision,
        snapshot_id=snapshot_id,
        operation=operation,
    )
    repository.insert_commit(tx, entry.id, row)


def rename_entry(
    database: Database,
    caller: Caller,
    warehouse: Warehouse,
    kinds: tuple[Kind, ...],
    source: TableName,
    destination: TableName,
) -> None:
    """Give a table or view another name.

    Raises:
        TableNotFoundError, ViewNotFoundError, NamespaceNotFoundError, TableAlreadyExistsError: nothing was renamed.
    """
    caller.identity.require(Role.WRITER, warehouse.name, source.levels)
    caller.identity.require(Role.WRITER, warehouse.name, destination.levels)
    checked_name("table name", destination.name)

    def work(tx: Tx) -> None:
        entry = repository.find_entry(tx, warehouse.id, source.levels, source.name)
        if entry is None or entry.kind not in kinds:
            missing = no_view if kinds == ("view",) else no_table
            raise missing(source.levels, source.name)
        namespace = repository.find_namespace(tx, warehouse.id, destination.levels)
        if namespace is None:
            raise no_namespace(destination.levels)
        there = repository.find_entry(tx, warehouse.id, destination.levels, destination.name)
        if there is not None and there.id != entry.id:
            what = "View" if there.kind == "view" else "Table"
            raise TableAlreadyExistsError(f"Cannot rename {source} to {destination}. {what} already exists")
        if not repository.rename_entry(tx, entry.id, namespace.id, destination.name, now_ms()):
            raise TableAlreadyExistsError(f"Cannot rename {source} to {destination}. Table already exists")

    write(database, caller, work)
