"""Catalogs walked from a namespace down, whatever their levels may hold."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

from lance_namespace.errors import InvalidInputError

Id = tuple[str, ...]


class CatalogLister(Protocol):
    """What lists a catalog, all pages of it.

    A level that cannot hold what is asked for, such as a warehouse for tables, is an InvalidInputError.
    """

    def namespaces(self, id: Sequence[str]) -> list[Id]:
        """The namespaces directly below one."""

    def tables(self, id: Sequence[str]) -> list[Id]:
        """The tables of a namespace."""


def walk_namespaces(catalog: CatalogLister, id: Id) -> Iterator[Id]:
    """A namespace and all below it, one listing at a time."""
    yield id
    try:
        children = catalog.namespaces(id)
    except InvalidInputError:
        catalog.tables(id)  # raises, unless the catalog's levels end here
        return
    for child in children:
        yield from _walk_known(catalog, child)


def walk_tables(catalog: CatalogLister, id: Id) -> Iterator[Id]:
    """The tables of a namespace and of all below it."""
    for namespace in walk_namespaces(catalog, id):
        try:
            yield from catalog.tables(namespace)
        except InvalidInputError:
            continue  # it holds namespaces only; what is no namespace at all, the walk says


def _walk_known(catalog: CatalogLister, id: Id) -> Iterator[Id]:
    """A namespace that is known to be there, and all below it."""
    yield id
    try:
        children = catalog.namespaces(id)
    except InvalidInputError:
        return
    for child in children:
        yield from _walk_known(catalog, child)
