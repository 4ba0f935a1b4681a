"""Namespaces of any depth."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import orjson
from lance_namespace.errors import NamespaceAlreadyExistsError, NamespaceNotEmptyError

from lancehouse.catalog.callers import Caller, Role
from lancehouse.catalog.errors import UnprocessableError
from lancehouse.catalog.names import Levels, checked_levels, dotted, no_namespace
from lancehouse.catalog.transactions import write
from lancehouse.catalog.warehouses import Warehouse
from lancehouse.paging import after, token_after
from lancehouse.store import repository
from lancehouse.store.database import Database, Tx
from lancehouse.store.rows import NamespaceRow

Changes = dict[str, list[str]]
"""Which properties were updated, removed, or missing."""


class Namespaces:
    """What clients do with namespaces. A namespace is shown to whoever may read anything in it or below."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def list(
        self, caller: Caller, warehouse: Warehouse, parent: Levels, page_token: str | None, page_size: int | None
    ) -> tuple[list[Levels], str | None]:
        """The children of a namespace, or of the warehouse, and the token of the next page.

        Raises:
            NamespaceNotFoundError: there is no such parent.
        """
        limit = page_size if page_token is not None else None
        sees_all = caller.identity.may(Role.READER, warehouse.name, parent)

        def work(tx: Tx) -> list[str]:
            if parent:
                _found(tx, caller, warehouse, parent)
            more = None if limit is None or not sees_all else limit + 1
            return repository.list_namespaces(tx, warehouse.id, parent, after(page_token), more)

        children = [(*parent, name) for name in self._database.read(work)]
        if not sees_all:  # before the page is cut: its token is the name of one that is seen
            children = [child for child in children if caller.identity.sees(warehouse.name, child)]
        shown = children[:limit]
        return shown, token_after(shown[-1][-1]) if 0 < len(shown) < len(children) else None

    def load(self, caller: Caller, warehouse: Warehouse, levels: Levels) -> NamespaceRow:
        """A namespace with its properties.

        Raises:
            NamespaceNotFoundError: there is none, or the caller may see nothing in it.
        """
        return self._database.read(lambda tx: _found(tx, caller, warehouse, levels))

    def create(
        self, caller: Caller, warehouse: Warehouse, levels: Sequence[str], properties: Mapping[str, str]
    ) -> NamespaceRow:
        """Make a namespace, and those above it that are missing.

        Raises:
            NamespaceAlreadyExistsError: it is there already.
        """
        made = checked_levels(levels)
        caller.identity.require_over(warehouse.name, made)

        def work(tx: Tx) -> NamespaceRow:
            for depth in range(1, len(made)):
                if repository.find_namespace(tx, warehouse.id, made[:depth]) is None:
                    repository.insert_namespace(tx, warehouse.id, made[:depth], {})
            row = repository.insert_namespace(tx, warehouse.id, made, dict(properties))
            if row is None:
                raise NamespaceAlreadyExistsError(f"Namespace already exists: {dotted(made)}")
            return row

        return write(self._database, caller, work)

    def drop(self, caller: Caller, warehouse: Warehouse, levels: Levels) -> None:
        """Remove an empty namespace.

        Raises:
            NamespaceNotFoundError, NamespaceNotEmptyError: nothing was removed.
        """
        caller.identity.require_over(warehouse.name, levels)

        def work(tx: Tx) -> None:
            row = _found(tx, caller, warehouse, levels)
            if not repository.delete_namespace(tx, row.id):
                raise NamespaceNotEmptyError(f"Namespace {dotted(levels)} is not empty.")

        write(self._database, caller, work)

    def update(
        self, caller: Caller, warehouse: Warehouse, levels: Levels, updates: Mapping[str, str], removals: Sequence[str]
    ) -> Changes:
        """Set and remove properties; says which were updated, removed, or missing.

        Raises:
            UnprocessableError: a key is to be set and removed at once.
        """
        caller.identity.require_over(warehouse.name, levels)
        if both := sorted(set(updates) & set(removals)):
            raise UnprocessableError(f"Invalid namespace update: cannot simultaneously set and remove keys: {both}")

        def work(tx: Tx) -> Changes:
            row = _found(tx, caller, warehouse, levels, lock=True)
            kept = {key: value for key, value in row.properties.items() if key not in removals}
            repository.update_namespace(tx, row.id, {**kept, **updates})
            removed = [key for key in dict.fromkeys(removals) if key in row.properties]
            missing = [key for key in dict.fromkeys(removals) if key not in row.properties]
            return {"updated": list(updates), "removed": removed, "missing": missing}

        return write(self._database, caller, work, body=orjson.dumps)


def _found(tx: Tx, caller: Caller, warehouse: Warehouse, levels: Levels, *, lock: bool = False) -> NamespaceRow:
    if not caller.identity.sees(warehouse.name, levels):
        caller.identity.require(Role.READER, warehouse.name, levels)
    row = repository.find_namespace(tx, warehouse.id, levels, lock=lock)
    if row is None:
        raise no_namespace(levels)
    return row
