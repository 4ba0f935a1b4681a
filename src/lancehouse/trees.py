"""Catalogs walked from a namespace down, whatever their levels may hold."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

from lance_namespace.errors import InvalidInputError

Id = tuple[str, ...]


class Lists(Protocol):
    """What lists a catalog, all pages of it.

    A level that cannot hold what is asked for, such as a warehouse for tables, is an InvalidInputError.
    """

    def namespaces(self, id: Sequence[str]) -> list[Id]:
        """The namespaces directly below one."""

    def tables(self, id: Sequence[str]) -> list[Id]:
        """The tables of a namespace."""


def tree(lists: Lists, id: Id) -> Iterator[Id]:
    """A namespace and all below it, one listing at a time."""
    yield id
    try:
        children = lists.namespaces(id)
    except InvalidInputError:
        lists.tables(id)  # raises, unless the catalog's levels end here
        return
    for child in children:
        yield from _found(lists, child)


def all_tables(lists: Lists, id: Id) -> Iterator[Id]:
    """The tables of a namespace and of all below it."""
    for namespace in tree(lists, id):
        try:
            yield from lists.tables(namespace)
        except InvalidInputError:
            continue  # it holds namespaces only; what is no namespace at all, the walk says


def _found(lists: Lists, id: Id) -> Iterator[Id]:
    """A namespace that is known to be there, and all below it."""
    yield id
    try:
        children = lists.namespaces(id)
    except InvalidInputError:
        return
    for child in children:
        yield from _found(lists, child)
