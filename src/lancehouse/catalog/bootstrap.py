"""Prepare a server's start: open and check the database, register the warehouses, create their folders."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from time import time_ns
from types import MappingProxyType

from lance_namespace.errors import InvalidInputError

from lancehouse.catalog import vending
from lancehouse.catalog.location_access import prepare_warehouse_location
from lancehouse.catalog.warehouses import Warehouse
from lancehouse.locations import is_same
from lancehouse.locations import key as location_key
from lancehouse.store import migrate, repository
from lancehouse.store.database import Database
from lancehouse.store.model import WarehouseRow
from lancehouse.store.statements import Tx

NO_ROOTS: Mapping[str, Sequence[str]] = MappingProxyType({})
Say = Callable[[str], None]
"""Called with one line of text for each notable event."""


def _ignore_line(line: str) -> None:
    pass


def open_database(url: str, say: Say = _ignore_line) -> Database:
    """Open a database that is ready for use; an empty one is set up, and `say` is called.

    Raises:
        InvalidTableStateError: its schema is older (run `lancehouse db upgrade`) or newer than this version's.
        ServiceUnavailableError: it cannot be reached.
        InvalidInputError: the URL is not valid, or its folder cannot be created.
    """
    database = Database(url)
    if database.file is not None:
        _create_folder(database.file.parent)
    if migrate.create_if_empty(database):
        say(f"new database {database.name}")
    migrate.check(database)
    return database


def require_database(url: str) -> None:
    """Raise if there is no such file of SQLite: a mistyped one would otherwise be taken for a catalog without tables.

    Raises:
        InvalidInputError: the URL is not valid, or there is no such file.
    """
    if (file := Database(url).file) is not None and not file.exists():
        raise InvalidInputError(f"there is no database {file}")


def default_warehouse_location(database: Database) -> str | None:
    """Return the location of the default warehouse, beside SQLite's file; None with other databases."""
    return str(database.file.parent / "warehouse") if database.file is not None else None


def check_database(database: Database) -> None:
    """Raise if the database cannot be reached or does not have the right schema."""
    migrate.check(database)


def prove_write(database: Database) -> None:
    """Commit a small change, and raise if that is not possible: no other operation shows that the disk is not full."""
    now = time_ns() // 1_000_000
    database.write(lambda tx: repository.put_sign_of_life(tx, now))


def _create_folder(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InvalidInputError(f"the folder {folder} cannot be made: {error.strerror}") from None


def record_warehouses(
    database: Database,
    configured: Sequence[Warehouse],
    default: Warehouse,
    roots: Mapping[str, Sequence[str]] = NO_ROOTS,
    say: Say = _ignore_line,
) -> list[Warehouse]:
    """Return the warehouses to serve, with their ids; insert new ones into the database and create their folders.

    Args:
        database: the catalog's database.
        configured: the warehouses of the configuration; if empty, those that the database knows are served.
        default: the warehouse to serve if the database knows none either.
        roots: more locations where tables may lie, by name of the warehouse.
        say: called for each new warehouse.

    Raises:
        InvalidInputError: a location cannot be used; or a known warehouse that has tables is to move; or a new one lies
            in another's location or contains it; or `roots` names a warehouse that is not served.
    """
    existing = database.read(repository.list_warehouses)
    warehouses = (
        configured
        or [Warehouse(row.id, row.name, row.location, retention_s=default.retention_s) for row in existing]
        or [default]
    )
    names = [warehouse.name for warehouse in warehouses]
    for name in roots:
        if name not in names:
            raise InvalidInputError(f"--root names warehouse {name}, which is not served; there are {', '.join(names)}")
    prepared_warehouses = [_prepare_warehouse(warehouse, roots.get(warehouse.name, ())) for warehouse in warehouses]
    recorded_warehouses = database.write(
        lambda tx: [_record_warehouse(tx, warehouse) for warehouse in prepared_warehouses]
    )
    for warehouse in recorded_warehouses:
        if warehouse.id not in {row.id for row in existing}:
            say(f"new warehouse {warehouse.name}={warehouse.location}")
    return recorded_warehouses


def _prepare_warehouse(warehouse: Warehouse, roots: Sequence[str]) -> Warehouse:
    """Return a warehouse with its locations checked and normalized, and its local folders created."""
    try:
        prepared = replace(
            warehouse,
            location=prepare_warehouse_location(warehouse.location),
            roots=tuple(dict.fromkeys(map(prepare_warehouse_location, (*warehouse.roots, *roots)))),
            cache=warehouse.cache and prepare_warehouse_location(warehouse.cache),
            blob_roots=tuple(map(_check_blob_root, warehouse.blob_roots)),
        )
    except InvalidInputError as error:
        raise InvalidInputError(f"warehouse {warehouse.name}: {error}") from error
    vending.check_warehouse(prepared)
    return prepared


def _check_blob_root(location: str) -> str:
    """Return a location from which blobs are read, checked; the server does not create it."""
    location_key(location)
    return location


def _record_warehouse(tx: Tx, warehouse: Warehouse) -> Warehouse:
    existing = repository.list_warehouses(tx)
    for row in existing:
        if row.name != warehouse.name:
            continue
        if not is_same(row.location, warehouse.location):
            if not repository.is_warehouse_empty(tx, row.id):
                raise InvalidInputError(
                    f"warehouse {row.name} is at {row.location} and has tables there; "
                    f"it cannot be served at {warehouse.location}: give its location, or another name"
                )
            _check_apart(warehouse, existing)
            repository.move_warehouse(tx, row.id, warehouse.location)
        return replace(warehouse, id=row.id)
    _check_apart(warehouse, existing)
    new_row = repository.insert_warehouse(tx, warehouse.name, warehouse.location)
    if new_row is None:  # another server inserted it first: take its row
        return _record_warehouse(tx, warehouse)
    return replace(warehouse, id=new_row.id)


def _check_apart(warehouse: Warehouse, others: Sequence[WarehouseRow]) -> None:
    """Refuse a location that overlaps another warehouse's: one could then list or drop tables of the other."""
    own_key = location_key(warehouse.location)
    for row in others:
        other_key = location_key(row.location)
        if row.name == warehouse.name or not (own_key.startswith(other_key) or other_key.startswith(own_key)):
            continue
        relation = (
            "is the location of" if own_key == other_key else "lies in" if own_key.startswith(other_key) else "holds"
        )
        raise InvalidInputError(
            f"warehouse {warehouse.name}: location {warehouse.location} {relation} warehouse {row.name} "
            f"at {row.location}: give it a place of its own"
        )
