"""Opening what a server stands on: the database with the right schema, and the warehouses that it has served."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType

from lance_namespace.errors import InvalidInputError

from lancehouse.catalog import vending
from lancehouse.catalog.locations import key, warehouse_location
from lancehouse.catalog.warehouses import Warehouse
from lancehouse.locations import is_same
from lancehouse.store import migrate, repository
from lancehouse.store.database import Database, Tx
from lancehouse.store.rows import WarehouseRow

NO_ROOTS: Mapping[str, Sequence[str]] = MappingProxyType({})
Say = Callable[[str], None]


def _silent(line: str) -> None:
    pass


def open_database(url: str, say: Say = _silent) -> Database:
    """A database that is ready for use; an empty one is set up, and `say` told so.

    Raises:
        InvalidTableStateError: its schema is older, which `lancehouse db upgrade` changes, or newer.
        ServiceUnavailableError: it cannot be reached.
        InvalidInputError: the URL makes no sense, or its folder cannot be made.
    """
    database = Database(url)
    if database.file is not None:
        _make(database.file.parent)
    if migrate.create_if_empty(database):
        say(f"new database {database.name}")
    migrate.check(database)
    return database


def default_location(database: Database) -> str | None:
    """Where the warehouse lies that nobody has named: beside SQLite's file."""
    return str(database.file.parent / "warehouse") if database.file is not None else None


def check(database: Database) -> None:
    """Whether it can be reached and has the right schema; an error says why not."""
    migrate.check(database)


def _make(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InvalidInputError(f"the folder {folder} cannot be made: {error.strerror}") from None


def record(
    database: Database,
    wanted: Sequence[Warehouse],
    default: Warehouse,
    roots: Mapping[str, Sequence[str]] = NO_ROOTS,
    say: Say = _silent,
) -> list[Warehouse]:
    """The warehouses to serve, as the database knows them. New ones are written down, and their folders made.

    Args:
        database: where they are written down.
        wanted: what was asked for; if nothing was, those that are known are served.
        default: what is served where nothing is known either.
        roots: more places where tables may lie, by the name of the warehouse.
        say: is told of each warehouse that is new.

    Raises:
        InvalidInputError: nothing can be kept at a location; or one is known with another location, and has tables
            there; or a new one lies in another or holds it; or `roots` names one that is not served.
    """
    known = database.read(repository.warehouses)
    asked = wanted or [Warehouse(row.id, row.name, row.location) for row in known] or [default]
    names = [warehouse.name for warehouse in asked]
    for name in roots:
        if name not in names:
            raise InvalidInputError(f"--root names warehouse {name}, which is not served; there are {', '.join(names)}")
    placed = [_placed(warehouse, roots.get(warehouse.name, ())) for warehouse in asked]
    recorded = database.write(lambda tx: [_recorded(tx, warehouse) for warehouse in placed])
    for warehouse in recorded:
        if warehouse.id not in {row.id for row in known}:
            say(f"new warehouse {warehouse.name}={warehouse.location}")
    return recorded


def _placed(warehouse: Warehouse, roots: Sequence[str]) -> Warehouse:
    """A warehouse whose locations are such that something can be kept there."""
    try:
        found = replace(
            warehouse,
            location=warehouse_location(warehouse.location),
            roots=tuple(dict.fromkeys(map(warehouse_location, (*warehouse.roots, *roots)))),
            cache=warehouse.cache and warehouse_location(warehouse.cache),
            blob_roots=tuple(map(_readable, warehouse.blob_roots)),
        )
    except InvalidInputError as error:
        raise InvalidInputError(f"warehouse {warehouse.name}: {error}") from error
    vending.check(found)
    return found


def _readable(location: str) -> str:
    """A place that blobs are read from; the server does not make it."""
    key(location)
    return location


def _recorded(tx: Tx, warehouse: Warehouse) -> Warehouse:
    known = repository.warehouses(tx)
    for row in known:
        if row.name != warehouse.name:
            continue
        if not is_same(row.location, warehouse.location):
            if not repository.is_warehouse_empty(tx, row.id):
                raise InvalidInputError(
                    f"warehouse {row.name} is at {row.location} and has tables there; "
                    f"it cannot be served at {warehouse.location}: give its location, or another name"
                )
            _check_apart(warehouse, known)
            repository.move_warehouse(tx, row.id, warehouse.location)
        return replace(warehouse, id=row.id)
    _check_apart(warehouse, known)
    made = repository.insert_warehouse(tx, warehouse.name, warehouse.location)
    if made is None:  # another server was faster
        return _recorded(tx, warehouse)
    return replace(warehouse, id=made.id)


def _check_apart(warehouse: Warehouse, known: Sequence[WarehouseRow]) -> None:
    """Refuse a place that another warehouse has: what one of them dropped or listed could be the other's."""
    here = key(warehouse.location)
    for row in known:
        there = key(row.location)
        if row.name == warehouse.name or not (here.startswith(there) or there.startswith(here)):
            continue
        how = "is the location of" if here == there else "lies in" if here.startswith(there) else "holds"
        raise InvalidInputError(
            f"warehouse {warehouse.name}: location {warehouse.location} {how} warehouse {row.name} "
            f"at {row.location}: give it a place of its own"
        )
