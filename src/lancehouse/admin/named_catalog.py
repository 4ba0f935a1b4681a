"""A catalog under a name, with ids that are comparable between two catalogs because they omit its `parent`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from lance_namespace.errors import NamespaceNotFoundError, TableNotFoundError

from lancehouse.admin.checked_catalog import CheckedCatalog
from lancehouse.catalog_walk import Id, walk_tables
from lancehouse.clients.inspection import ForeignTable, InspectedTable, Inspector, inspector_for


@dataclass(frozen=True)
class NamedCatalog:
    """One of two catalogs. Ids that are the same in both omit the catalog's `parent`."""

    name: str
    catalog: CheckedCatalog

    @property
    def parent(self) -> Id:
        """Levels before all ids of this catalog."""
        return tuple(self.catalog.target.parent)

    @property
    def inspector(self) -> Inspector:
        """The inspector that reads its entries."""
        return inspector_for(self.catalog.namespace)

    def full_id(self, common: Id) -> Id:
        """Return an id of this catalog, with its `parent`."""
        return (*self.parent, *common)

    def list_tables(self, namespace: Id = ()) -> Iterator[Id]:
        """Yield the ids of all Lance tables in a namespace and below it, without `parent`.

        Raises:
            InvalidInputError: the catalog cannot be listed without a `parent`.
            NamespaceNotFoundError: there is no such namespace.
        """
        for table in walk_tables(self.catalog, self.full_id(namespace)):
            yield table[len(self.parent) :]

    def find_table(self, common: Id) -> InspectedTable | ForeignTable | None:
        """Load the entry of a table; None if there is none."""
        table = self.full_id(common)
        try:
            with self.catalog.translate_errors(table):
                return self.inspector.inspect_table(table)
        except (TableNotFoundError, NamespaceNotFoundError):
            return None


def select_tables(side: NamedCatalog, namespace: Id, tables: Sequence[Id]) -> list[Id]:
    """Return `tables`, or if it is empty, all tables of a namespace."""
    return list(tables) if tables else sorted(side.list_tables(namespace))
