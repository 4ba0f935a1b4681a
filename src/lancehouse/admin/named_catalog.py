"""Two catalogs beside each other: the tables of each, under names that do not depend on where it puts them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from lance_namespace.errors import NamespaceNotFoundError, TableNotFoundError

from lancehouse.admin.checked_catalog import CheckedCatalog
from lancehouse.catalog_walk import Id, walk_tables
from lancehouse.clients.inspection import ForeignTable, InspectedTable, Inspector, inspector_for


@dataclass(frozen=True)
class NamedCatalog:
    """One of two catalogs. An id that is the same in both begins after the catalog's `parent`."""

    name: str
    catalog: CheckedCatalog

    @property
    def parent(self) -> Id:
        """The levels in front of all ids."""
        return tuple(self.catalog.target.parent)

    @property
    def inspector(self) -> Inspector:
        """What looks at its entries."""
        return inspector_for(self.catalog.namespace)

    def full_id(self, common: Id) -> Id:
        """The id of a table here."""
        return (*self.parent, *common)

    def list_tables(self, namespace: Id = ()) -> Iterator[Id]:
        """The ids of all Lance tables in a namespace and below it, without `parent`.

        Raises:
            InvalidInputError: the catalog cannot be listed without a `parent`.
            NamespaceNotFoundError: there is no such namespace.
        """
        for table in walk_tables(self.catalog, self.full_id(namespace)):
            yield table[len(self.parent) :]

    def find_table(self, common: Id) -> InspectedTable | ForeignTable | None:
        """What the catalog has under a name; None for nothing."""
        table = self.full_id(common)
        try:
            with self.catalog.translate_errors(table):
                return self.inspector.inspect_table(table)
        except (TableNotFoundError, NamespaceNotFoundError):
            return None


def select_tables(side: NamedCatalog, namespace: Id, tables: Sequence[Id]) -> list[Id]:
    """The tables that are named, or all of a namespace."""
    return list(tables) if tables else sorted(side.list_tables(namespace))
