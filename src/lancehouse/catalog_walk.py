"""Walk all namespaces and tables below a namespace of any catalog."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

from lance_namespace.errors import InvalidInputError

Id = tuple[str, ...]


class CatalogLister(Protocol):
    """Lists a catalog's namespaces and tables, following all pages.

    A level that cannot hold what is listed, such as tables directly in a warehouse, raises InvalidInputError.
    """

    def namespaces(self, id: Sequence[str]) -> list[Id]:
        """Return the ids of the namespaces directly below a namespace."""

    def tables(self, id: Sequence[str]) -> list[Id]:
        """Return the ids of the tables in a namespace, without those further down."""


def walk_namespaces(catalog: CatalogLister, id: Id) -> Iterator[Id]:
    """Yield a namespace and all namespaces below it, parents first; each is listed when it is reached."""
    yield id
    try:
        children = catalog.namespaces(id)
    except InvalidInputError:
        catalog.tables(id)  # raises, unless this is the deepest level that the catalog has
        return
    for child in children:
        yield from _walk_known(catalog, child)


def walk_tables(catalog: CatalogLister, id: Id) -> Iterator[Id]:
    """Yield the ids of all tables in a namespace and below it."""
    for namespace in walk_namespaces(catalog, id):
        try:
            yield from catalog.tables(namespace)
        except InvalidInputError:
            continue  # this level holds namespaces only; a namespace that does not exist raises in the walk


def _walk_known(catalog: CatalogLister, id: Id) -> Iterator[Id]:
    """Yield a namespace that is known to exist, and all namespaces below it."""
    yield id
    try:
        children = catalog.namespaces(id)
    except InvalidInputError:
        return
    for child in children:
        yield from _walk_known(catalog, child)
