"""Names of all kinds: tables and views together, of one namespace or of everything that a caller sees."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from heapq import merge
from typing import TYPE_CHECKING

from lance_namespace.errors import NamespaceNotFoundError

from lancehouse.catalog.callers import Caller, Role
from lancehouse.catalog.entries import list_names
from lancehouse.catalog.names import Levels
from lancehouse.catalog.warehouses import Warehouse
from lancehouse.paging import token_after
from lancehouse.store.database import Database
from lancehouse.store.rows import Kind

if TYPE_CHECKING:
    from lancehouse.catalog.catalog import Catalog

KINDS: tuple[Kind, ...] = ("lance", "iceberg", "view")
NAMESPACE = "namespace"

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
