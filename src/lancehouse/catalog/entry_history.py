"""Find the entry of any table or view by name, load its metadata, and list the commits recorded for it."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

from lance_namespace.errors import TableNotFoundError

from lancehouse.catalog.callers import Caller
from lancehouse.catalog.errors import ViewNotFoundError
from lancehouse.catalog.metadata_loader import LoadResult
from lancehouse.catalog.names import Levels
from lancehouse.catalog.warehouses import Warehouse
from lancehouse.store import repository
from lancehouse.store.database import Database
from lancehouse.store.rows import CommitRow as Change
from lancehouse.store.rows import EntryRow as Entry

if TYPE_CHECKING:
    from lancehouse.catalog.catalog import Catalog

__all__ = ["Change", "Entry", "get_entry", "list_changes", "list_changes_of_snapshots", "load_metadata"]


def get_entry(catalog: Catalog, caller: Caller, warehouse: Warehouse, levels: Levels, name: str) -> Entry:
    """Return the entry of a table or a view.

    Raises:
        TableNotFoundError: there is neither a table nor a view of that name.
    """
    try:
        return catalog.tables.get_entry(caller, warehouse, levels, name)
    except TableNotFoundError as missing:
        try:
            return catalog.views.get_entry(caller, warehouse, levels, name)
        except ViewNotFoundError:
            raise missing from None


def load_metadata(catalog: Catalog, caller: Caller, warehouse: Warehouse, levels: Levels, entry: Entry) -> LoadResult:
    """Load the metadata of a table or view as Iceberg JSON."""
    service = catalog.views if entry.kind == "view" else catalog.tables
    return service.load(caller, warehouse, levels, entry.name)


def list_changes(database: Database, entry: Entry, limit: int) -> list[Change]:
    """Return the commits recorded for an entry, newest first, at most `limit`.

    Permissions are not checked: the caller must already have been allowed to read the entry.
    """
    return database.read(lambda tx: repository.list_commits(tx, entry.id, limit))


def list_changes_of_snapshots(database: Database, entry: Entry, snapshot_ids: Collection[int]) -> list[Change]:
    """Return the recorded commits whose snapshot ids lie between the lowest and the highest given id, newest first.

    The result may include commits of other snapshots in that range.
    """
    if not snapshot_ids:
        return []
    first, last = min(snapshot_ids), max(snapshot_ids)
    return database.read(lambda tx: repository.list_commits_between(tx, entry.id, first, last))
