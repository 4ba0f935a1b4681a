"""Places in a warehouse that a caller may take for a table or view: allowed, and not another table's."""

from __future__ import annotations

from uuid import uuid4

from lance_namespace.errors import InvalidInputError, PermissionDeniedError

from lancehouse.catalog import locations
from lancehouse.catalog.callers import Caller, Role
from lancehouse.catalog.iceberg.tables import TableMetadata
from lancehouse.catalog.names import Levels
from lancehouse.catalog.warehouses import Warehouse
from lancehouse.store import repository
from lancehouse.store.database import Database, Tx
from lancehouse.store.rows import Kind

PATHS = ("write.metadata.path", "write.data.path", "write.object-storage.path", "write.folder-storage.path")
"""Properties by which an Iceberg table has files beside its location."""


def chosen(database: Database, caller: Caller, warehouse: Warehouse, location: str, kind: Kind) -> str:
    """A location that the caller chose.

    A writer of the whole warehouse may choose any of its places, others only below the folders of their namespaces:
    that of the namespace, or the one that Lance clients choose, which has the warehouse's name in front.

    Raises:
        InvalidInputError: no table may lie there.
        PermissionDeniedError: the caller may not choose it.
    """
    checked = locations.checked(warehouse, location, kind)
    if caller.identity.may(Role.WRITER, warehouse.name):
        return checked
    own = caller.identity.written(warehouse.name)
    namesake = database.read(lambda tx: repository.find_namespace(tx, warehouse.id, (warehouse.name,)))
    folders = own if namesake else [*own, *((warehouse.name, *levels) for levels in own)]
    roots = [locations.key(locations.default(warehouse, at[:-1], at[-1], kind), kind) for at in folders]
    key = locations.key(checked, kind)
    if any(key.startswith(root) and key != root for root in roots):
        return checked
    raise PermissionDeniedError(
        f"{caller.identity.name} may choose locations only below the folders of the namespaces that they write to"
    )


def free(database: Database, warehouse: Warehouse, levels: Levels, name: str, kind: Kind) -> str:
    """Where a table lies that was created without a location: where its name says, or near by if that is taken."""
    suffix = uuid4().hex[:8]
    location = locations.default(warehouse, levels, name, kind)
    for place in (location, f"{location}-{suffix}"):
        key = locations.key(place, kind)
        if database.read(lambda tx: repository.overlapping(tx, key)) is None:  # noqa: B023
            return place
    return locations.default(warehouse, (f"{levels[0]}-{suffix}", *levels[1:]), name, kind)


def require_unshared(tx: Tx, location: str, kind: Kind, entry_id: int | None = None) -> str:
    """The key of a location that no other table lies at, above or below.

    Raises:
        InvalidInputError: one does; it is not named, for the caller need not know it.
    """
    key = locations.key(location, kind)
    if repository.overlapping(tx, key, entry_id) is not None:
        raise InvalidInputError(f"location {location} lies in another table's, or holds one: choose another")
    return key


def check_paths(
    database: Database, caller: Caller, warehouse: Warehouse, table: TableMetadata, entry_id: int | None = None
) -> None:
    """Refuse an Iceberg table that wants its files where the caller may not choose, or in another table.

    Raises:
        InvalidInputError, PermissionDeniedError: it does.
    """
    root = locations.key(table.location, "iceberg")
    for path in filter(None, map(table.properties.get, PATHS)):
        if not f"{path.rstrip('/')}/".startswith(f"{table.location.rstrip('/')}/"):
            chosen(database, caller, warehouse, path, "iceberg")
        if not locations.key(path, "iceberg").startswith(root):
            database.read(lambda tx: require_unshared(tx, path, "iceberg", entry_id))  # noqa: B023
