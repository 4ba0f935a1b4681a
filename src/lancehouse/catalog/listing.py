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
from lancehouse.paging import after, token_after
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

Named = tuple[str, Levels, str]
"""The warehouse, the levels, and what it is."""


def entries(
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
    named: list[list[tuple[str, Kind]]] = [[(name, kind) for name in names] for kind, names, _ in lists]
    whole = [*merge(*named)]
    shown = whole[:page_size] if page_token is not None else whole
    has_more = len(shown) < len(whole) or any(token for _, _, token in lists)
    return shown, token_after(shown[-1][0]) if has_more and shown else None


def lance_tables(
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
    if not caller.identity.sees(warehouse.name):
        caller.identity.require(Role.READER, warehouse.name)
    before = _table_before(page_token)
    places = caller.identity.readable(warehouse.name)
    below = () if () in places or len(places) > MOST_PLACES else places
    found: list[tuple[Levels, str]] = []
    while True:
        size = None if limit is None else limit + 1 - len(found)
        page = database.read(partial(_list_everywhere, warehouse.id, before, size, below))
        found += [each for each in page if caller.identity.may(Role.READER, warehouse.name, each[0])]
        if size is None or len(page) < size or len(found) > (limit or 0):
            break
        before = page[-1]
    shown = found[:limit]
    return shown, token_after(SEPARATOR.join((*shown[-1][0], shown[-1][1]))) if 0 < len(shown) < len(found) else None


def _list_everywhere(
    warehouse_id: int, before: tuple[Levels, str] | None, size: int | None, below: Sequence[Levels], tx: Tx
) -> list[tuple[Levels, str]]:
    return repository.list_everywhere(tx, warehouse_id, "lance", before, size, below)


def _table_before(page_token: str | None) -> tuple[Levels, str] | None:
    text = after(page_token)
    if text is None:
        return None
    *levels, name = text.split(SEPARATOR)
    if not levels:
        raise InvalidInputError(f"page_token {page_token!r} was not given out by this list; start without one")
    return tuple(levels), name


def everything(catalog: Catalog, caller: Caller) -> Iterator[Named]:
    """All that a caller sees in all warehouses, level by level; a namespace that is dropped meanwhile is left out."""
    for warehouse in catalog.warehouses.values():
        if not caller.identity.sees(warehouse.name):
            continue
        waiting: list[Levels] = [()]
        while waiting:
            levels = waiting.pop(0)
            with suppress(NamespaceNotFoundError):
                if levels and caller.identity.may(Role.READER, warehouse.name, levels):
                    names, _ = entries(catalog.database, caller, warehouse, levels, None, None)
                    yield from ((warehouse.name, (*levels, name), kind) for name, kind in names)
                children, _ = catalog.namespaces.list(caller, warehouse, levels, None, None)
                yield from ((warehouse.name, child, NAMESPACE) for child in children)
                waiting += children
