"""Names of all kinds: tables and views together, of one namespace or of everything that a caller sees."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import partial
from heapq import merge
from typing import TYPE_CHECKING

from lance_namespace.errors import InvalidInputError, NamespaceNotFoundError

from lancehouse.catalog.callers import Caller, Role
from lancehouse.catalog.entries import list_names
from lancehouse.catalog.names import Levels
from lancehouse.catalog.warehouses import Warehouse
from lancehouse.paging import decode_token, encode_token
from lancehouse.store import repository
from lancehouse.store.database import Database, Tx
from lancehouse.store.rows import Kind

if TYPE_CHECKING:
    from lancehouse.catalog.catalog import Catalog

KINDS: tuple[Kind, ...] = ("lance", "iceberg", "view")
NAMESPACE = "namespace"
SEPARATOR = "\x1f"
"""Between the levels in a page token: no name can hold it."""
MOST_PLACES = 100
"""Grants that a query is narrowed by; who has more of them gets what the query finds without those, sifted."""

ListedEntry = tuple[str, Levels, str]
"""The warehouse, the levels, and what it is."""


def list_entries(
    database: Database,
    caller: Caller,
    warehouse: Warehouse,
    levels: Levels,
    page_token: str | None,
    page_size: int | None,
) -> tuple[list[tuple[str, Kind]], str | None]:
    """The names in a namespace with what each is, and the token of the next page.

    Each kind is listed by itself: so it is known which is which, and the index has all that is needed.

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
    """The Lance tables of a warehouse that a caller may read, of all namespaces, and the token of the next page.

    A page is one read of an index, however many tables there are.

    Raises:
        PermissionDeniedError: the caller may read nothing of the warehouse.
        InvalidInputError: a negative limit, or a token that was not given out here.
    """
    if limit is not None and limit < 0:
        raise InvalidInputError(f"limit {limit} is negative")
    if not caller.identity.can_see(warehouse.name):
        caller.identity.require_role(Role.READER, warehouse.name)
    after_table = _parse_page_token(page_token)
    readable = caller.identity.readable_namespaces(warehouse.name)
    namespaces = () if () in readable or len(readable) > MOST_PLACES else readable
    tables: list[tuple[Levels, str]] = []
    while True:
        size = None if limit is None else limit + 1 - len(tables)
        batch = database.read(partial(_list_everywhere, warehouse.id, after_table, size, namespaces))
        tables += [table for table in batch if caller.identity.has_role(Role.READER, warehouse.name, table[0])]
        if size is None or len(batch) < size or len(tables) > (limit or 0):
            break
        after_table = batch[-1]
    page = tables[:limit]
    return page, encode_token(SEPARATOR.join((*page[-1][0], page[-1][1]))) if 0 < len(page) < len(tables) else None


def _list_everywhere(
    warehouse_id: int, before: tuple[Levels, str] | None, size: int | None, below: Sequence[Levels], tx: Tx
) -> list[tuple[Levels, str]]:
    return repository.list_entries_in_warehouse(tx, warehouse_id, "lance", before, size, below)


def _parse_page_token(page_token: str | None) -> tuple[Levels, str] | None:
    text = decode_token(page_token)
    if text is None:
        return None
    *levels, name = text.split(SEPARATOR)
    if not levels:
        raise InvalidInputError(f"page_token {page_token!r} was not given out by this list; start without one")
    return tuple(levels), name


def walk_visible(catalog: Catalog, caller: Caller) -> Iterator[ListedEntry]:
    """All that a caller sees in all warehouses, level by level; a namespace that is dropped meanwhile is left out."""
    for warehouse in catalog.warehouses.values():
        if not caller.identity.can_see(warehouse.name):
            continue
        pending: list[Levels] = [()]
        while pending:
            levels = pending.pop(0)
            with suppress(NamespaceNotFoundError):
                if levels and caller.identity.has_role(Role.READER, warehouse.name, levels):
                    names, _ = list_entries(catalog.database, caller, warehouse, levels, None, None)
                    yield from ((warehouse.name, (*levels, name), kind) for name, kind in names)
                children, _ = catalog.namespaces.list(caller, warehouse, levels, None, None)
                yield from ((warehouse.name, child, NAMESPACE) for child in children)
                pending += children
