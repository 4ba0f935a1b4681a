"""Opening what a server stands on: the database with the right schema, and the warehouses that it has served."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from lance_namespace.errors import InvalidInputError

from lancehouse.catalog.warehouses import Warehouse
from lancehouse.locations import is_same
from lancehouse.store import migrate, repository
from lancehouse.store.database import Database, Tx


def open_database(url: str) -> Database:
    """A database that is ready for use; an empty one is set up.

    Raises:
        InvalidTableStateError: its schema is older, which `lancehouse db upgrade` changes, or newer.
        ServiceUnavailableError: it cannot be reached.
        InvalidInputError: the URL makes no sense, or its folder cannot be made.
    """
    database = Database(url)
    if database.file is not None:
        _make(database.file.parent)
    migrate.create_if_empty(database)
    migrate.check(database)
    return database


def check(database: Database) -> None:
    """Whether it can be reached and has the right schema; an error says why not."""
    migrate.check(database)


def _make(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InvalidInputError(f"the folder {folder} cannot be made: {error.strerror}") from None


def record(database: Database, wanted: Sequence[Warehouse], default: Warehouse) -> list[Warehouse]:
    """The warehouses to serve, as the database knows them. New ones are written down.

    Args:
        database: where they are written down.
        wanted: what was asked for; if nothing was, those that are known are served.
        default: what is served where nothing is known either.

    Raises:
        InvalidInputError: one is known with another location, and has tables there.
    """

    def work(tx: Tx) -> list[Warehouse]:
        known = repository.warehouses(tx)
        asked = list(wanted) or [Warehouse(row.id, row.name, row.location) for row in known] or [default]
        return [_recorded(tx, warehouse) for warehouse in asked]

    return database.write(work)


def _recorded(tx: Tx, warehouse: Warehouse) -> Warehouse:
    for row in repository.warehouses(tx):
        if row.name != warehouse.name:
            continue
        if not is_same(row.location, warehouse.location):
            if not repository.is_warehouse_empty(tx, row.id):
                raise InvalidInputError(
                    f"warehouse {row.name} is at {row.location} and has tables there; "
                    f"it cannot be served at {warehouse.location}: give its location, or another name"
                )
            repository.move_warehouse(tx, row.id, warehouse.location)
        return replace(warehouse, id=row.id)
    made = repository.insert_warehouse(tx, warehouse.name, warehouse.location)
    if made is None:  # another server was faster
        return _recorded(tx, warehouse)
    return replace(warehouse, id=made.id)
