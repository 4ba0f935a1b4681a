"""List tables and views together, find the entry of either by name, and list the commits recorded for it."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import partial
from heapq import merge
from typing import TYPE_CHECKING

from lance_namespace.errors import InvalidInputError, TableNotFoundError

from lancehouse.catalog.callers import Caller, Role
from lancehouse.catalog.entries import list_names
from lancehouse.catalog.errors import Levels, ViewNotFoundError
from lancehouse.catalog.metadata_loader import LoadResult
from lancehouse.catalog.warehouses import Warehouse
from lancehouse.paging import decode_token, encode_token
from lancehouse.schema.definitions import VIEW_OF
from lancehouse.store import repository
from lancehouse.store.database import Database
from lancehouse.store.model import CommitRow, EntryRow, Kind

if TYPE_CHECKING:
    from lancehouse.catalog.catalog import Catalog

KINDS: tuple[Kind, ...] = ("lance", "iceberg", "view")
"""All kinds of entries."""
NAMESPACE = "namespace"
SEPARATOR = "\x1f"
"""Separates levels in a page token; no name can contain it."""
SEARCH_PAGE = 2000
"""Names that a search reads at once."""
MOST_PLACES = 100
"""Most grants that are put into the query; with more, the rows are filtered after the query instead."""

Entry = EntryRow
Change = CommitRow
"""The record of a commit."""
ListedEntry = tuple[str, Levels, str]
"""Warehouse, levels, and kind of a namespace, table or view."""


def list_entries(
    database: Database,
    caller: Caller,
    warehouse: Warehouse,
    levels: Levels,
    page_token: str | None,
    page_size: int | None,
) -> tuple[list[tuple[str, Kind]], str | None]:
    """Return the names in a namespace with their kinds, and the token of the next page or None.

    Each kind is listed by its own query, which the index alone can answer.

    Raises:
        NamespaceNotFoundError: there is no such namespace.
    """
    lists = [(kind, *list_names(database, caller, warehouse, levels, (kind,), page_token, page_size)) for kind in KINDS]
    by_kind: list[list[tuple[str, Kind]]] = [[(name, kind) for name in names] for kind, names, _ in lists]
    merged = [*merge(*by_kind)]
    page = merged[:page_size] if page_token is not None else merged
    has_more = len(page) < len(merged) or any(token for _, _, token in lists)
    return page, encode_token(page[-1][0]) if has_more and page else None


def list_lance_tables(
    database: Database, caller: Caller, warehouse: Warehouse, page_token: str | None, limit: int | None
) -> tuple[list[tuple[Levels, str]], str | None]:
    """Return the Lance tables of a warehouse that a caller may read, in all namespaces, and the next page's token.

    A page usually costs one read of an index, however many tables there are.

    Raises:
        PermissionDeniedError: the caller may read nothing in the warehouse.
        InvalidInputError: the limit is negative, or the token is not one of this list.
    """
    if limit is not None and limit < 0:
        raise InvalidInputError(f"limit {limit} is negative")
    caller.identity.require_sight(warehouse.name)
    after_table = _parse_page_token(page_token)
    readable_levels = caller.identity.readable_namespaces(warehouse.name)
    namespaces = () if () in readable_levels or len(readable_levels) > MOST_PLACES else readable_levels
    tables: list[tuple[Levels, str]] = []
    # Tables that the caller may not read are filtered out after the query, so a page may take several reads.
    while True:
        size = None if limit is None else limit + 1 - len(tables)
        batch = database.read(
            lambda tx: repository.list_entries_in_warehouse(tx, warehouse.id, "lance", after_table, size, namespaces)  # noqa: B023
        )
        tables += [table for table in batch if caller.identity.can_list(warehouse.name, *table)]
        if size is None or len(batch) < size or len(tables) > (limit or 0):
            break
        after_table = batch[-1]
    page = tables[:limit]
    return page, encode_token(SEPARATOR.join((*page[-1][0], page[-1][1]))) if 0 < len(page) < len(tables) else None


def _parse_page_token(page_token: str | None) -> tuple[Levels, str] | None:
    text = decode_token(page_token)
    if text is None:
        return None
    *levels, name = text.split(SEPARATOR)
    if not levels:
        raise InvalidInputError(f"page_token {page_token!r} was not given out by this list; start without one")
    return tuple(levels), name


def list_views_of(
    database: Database, caller: Caller, warehouse: Warehouse, source: str, limit: int
) -> list[tuple[Levels, str]]:
    """Return Lance tables of a warehouse that a caller may read, and that were created as views of a table.

    A table may have been overwritten since: its own schema says what it is a view of now.

    Args:
        database: of the catalog.
        caller: who asks.
        warehouse: the warehouse of the views.
        source: id of the table that they were made of, as the client that created them wrote it.
        limit: most entries to read.
    """
    views = database.read(
        lambda tx: repository.list_entries_with_property(tx, warehouse.id, "lance", VIEW_OF, source, limit)
    )
    return [view for view in views if caller.identity.has_role(Role.READER, warehouse.name, *view)]


def search_visible(catalog: Catalog, caller: Caller, words: Sequence[str]) -> Iterator[ListedEntry]:
    """Yield what a caller may see in all warehouses, and whose full name may contain all words, in lower case.

    A full name is that of the warehouse, the namespace and the entry, joined by dots. All that match are yielded, and
    some that do not. What a namespace's own name contains is not looked for in the names of its entries.
    """
    for warehouse in catalog.warehouses.values():
        if not caller.identity.can_see(warehouse.name):
            continue
        namespaces = dict(catalog.database.read(partial(repository.list_all_namespaces, warehouse_id=warehouse.id)))
        groups: dict[tuple[str, ...], list[int]] = {}
        for number, levels in namespaces.items():
            if not caller.identity.can_see(warehouse.name, levels):
                continue
            yield warehouse.name, levels, NAMESPACE
            full_name = ".".join((warehouse.name, *levels, "")).lower()
            missing = tuple(word for word in words if word not in full_name)
            groups.setdefault(missing, []).append(number)
        for missing, ids in groups.items():
            yield from _search_tables(catalog.database, caller, warehouse, namespaces, missing, ids)


def _search_tables(
    database: Database,
    caller: Caller,
    warehouse: Warehouse,
    namespaces: Mapping[int, Levels],
    words: Sequence[str],
    ids: Sequence[int],
) -> Iterator[ListedEntry]:
    """Yield the tables and views in some namespaces whose names may contain what is missing of the words."""
    # A word may begin in the namespace's name and end in that of the table: its end is looked for.
    parts = [part for word in words if (part := word.rpartition(".")[2])]
    namespace_ids, after = frozenset(ids), 0
    while True:
        page = database.read(
            lambda tx: repository.search_entries(tx, warehouse.id, parts, ids, after, SEARCH_PAGE)  # noqa: B023
        )
        for _, namespace, name, kind in page:
            levels = namespaces.get(namespace, ())
            if namespace in namespace_ids and caller.identity.can_list(warehouse.name, levels, name):
                yield warehouse.name, (*levels, name), kind
        if len(page) < SEARCH_PAGE:
            return
        after = page[-1][0]


def get_entry(catalog: Catalog, caller: Caller, warehouse: Warehouse, levels: Levels, name: str) -> Entry:
    """Return the entry of a table or a view.

    Raises:
        TableNotFoundError: there is neither a table nor a view of that name.
    """
    try:
        return catalog.tables.get_entry(caller, warehouse, levels, name)
    except TableNotFoundError as error:
        try:
            return catalog.views.get_entry(caller, warehouse, levels, name)
        except ViewNotFoundError:
            raise error from None


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
