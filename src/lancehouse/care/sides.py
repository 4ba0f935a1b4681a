"""Two catalogs beside each other: the tables of each, under names that do not depend on where it puts them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from lance_namespace.errors import NamespaceNotFoundError, TableNotFoundError

from lancehouse.care.catalogs import Catalog
from lancehouse.clients.inspection import Inspector, Neighbour, Seen, inspector
from lancehouse.trees import Id, all_tables


@dataclass(frozen=True)
class Side:
    """One of two catalogs. An id that is the same in both begins after the catalog's `parent`."""

    name: str
    catalog: Catalog

    @property
    def parent(self) -> Id:
        """The levels in front of all ids."""
        return tuple(self.catalog.target.parent)

    @property
    def inspector(self) -> Inspector:
        """What looks at its entries."""
        return inspector(self.catalog.namespace)

    def id(self, common: Id) -> Id:
        """The id of a table here."""
        return (*self.parent, *common)

    def tables(self, namespace: Id = ()) -> Iterator[Id]:
        """The ids of all Lance tables in a namespace and below it, without `parent`.

        Raises:
            InvalidInputError: the catalog cannot be listed without a `parent`.
            NamespaceNotFoundError: there is no such namespace.
        """
        for table in all_tables(self.catalog, self.id(namespace)):
            yield table[len(self.parent) :]

    def look(self, common: Id) -> Seen | Neighbour | None:
        """What the catalog has under a name; None for nothing."""
        table = self.id(common)
        try:
            with self.catalog.explained(table):
                return self.inspector.look(table)
        except (TableNotFoundError, NamespaceNotFoundError):
            return None


def chosen(side: Side, namespace: Id, tables: Sequence[Id]) -> list[Id]:
    """The tables that are named, or all of a namespace."""
    return list(tables) if tables else sorted(side.tables(namespace))
