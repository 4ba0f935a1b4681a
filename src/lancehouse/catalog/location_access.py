"""Which locations a caller may choose for a table or view, and which files are opened on their behalf."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import ClassVar
from uuid import uuid4

from lance_namespace.errors import InvalidInputError, PermissionDeniedError

from lancehouse.catalog import locations
from lancehouse.catalog.callers import Caller, Identity, Role
from lancehouse.catalog.iceberg.tables import IcebergTableMetadata
from lancehouse.catalog.names import Levels
from lancehouse.catalog.warehouses import Warehouse
from lancehouse.lake.confinement import outside_error, require_no_links
from lancehouse.locations import is_inside
from lancehouse.store import repository
from lancehouse.store.database import Database, Tx
from lancehouse.store.rows import Kind

PATHS = ("write.metadata.path", "write.data.path", "write.object-storage.path", "write.folder-storage.path")
"""Properties that place files of an Iceberg table outside its location."""
CHECKED = ("properties", "statistics", "partition-statistics")
"""Parts of an Iceberg table's metadata that `check_table_paths` checks."""


def check_chosen_location(database: Database, caller: Caller, warehouse: Warehouse, location: str, kind: Kind) -> str:
    """Return a location that the caller chose, after a check that they may.

    A writer of the whole warehouse may choose any location in it. Others may choose only below the folders of their
    namespaces: the default folder, or the one that Lance clients choose, which has the warehouse's name in front.

    Raises:
        InvalidInputError: no table may lie there, whoever asks.
        PermissionDeniedError: the caller may not choose it.
    """
    checked = locations.check_location(warehouse, location, kind)
    if caller.identity.has_role(Role.WRITER, warehouse.name):
        return checked
    writable = caller.identity.writable_namespaces(warehouse.name)
    # If a namespace has the warehouse's name, that folder is its own, and Lance clients' layout cannot be allowed.
    namesake = database.read(lambda tx: repository.find_namespace(tx, warehouse.id, (warehouse.name,)))
    folders = writable if namesake else [*writable, *((warehouse.name, *levels) for levels in writable)]
    roots = [
        locations.key(locations.default_location(warehouse, folder[:-1], folder[-1], kind), kind) for folder in folders
    ]
    key = locations.key(checked, kind)
    if any(key.startswith(root) and key != root for root in roots):
        return checked
    raise PermissionDeniedError(
        f"{caller.identity.name} may choose locations only below the folders of the namespaces that they write to"
    )


def find_free_location(database: Database, warehouse: Warehouse, levels: Levels, name: str, kind: Kind) -> str:
    """Return the location for a table that is created without one: by its name, with a suffix if that is taken."""
    suffix = uuid4().hex[:8]
    location = locations.default_location(warehouse, levels, name, kind)
    for candidate in (location, f"{location}-{suffix}"):
        key = locations.key(candidate, kind)
        if database.read(lambda tx: repository.find_overlapping_table(tx, key)) is None:  # noqa: B023
            return candidate
    return locations.default_location(warehouse, (f"{levels[0]}-{suffix}", *levels[1:]), name, kind)


def require_location_free(tx: Tx, location: str, kind: Kind, entry_id: int | None = None) -> str:
    """Return the key of a location, after a check that no other table lies at, above or below it.

    Raises:
        InvalidInputError: a table does; the message does not name it, as the caller may not be allowed to see it.
    """
    key = locations.key(location, kind)
    if repository.find_overlapping_table(tx, key, entry_id) is not None:
        raise InvalidInputError(f"location {location} lies in another table's, or holds one: choose another")
    return key


def check_table_paths(
    database: Database, caller: Caller, warehouse: Warehouse, table: IcebergTableMetadata, entry_id: int | None = None
) -> None:
    """Refuse an Iceberg table whose files lie where the caller may not choose, or in another table.

    Raises:
        InvalidInputError, PermissionDeniedError: they do, or a statistics file lies where the caller may not read.
    """
    files = TableFiles(ReadableLocations.from_caller(database, caller, warehouse), table)
    for statistics in (*table.json["statistics"], *table.json["partition-statistics"]):
        files.check_readable(statistics["statistics-path"], "file of statistics")
    root = locations.key(table.location, "iceberg")
    for path in filter(None, map(table.properties.get, PATHS)):
        if not f"{path.rstrip('/')}/".startswith(f"{table.location.rstrip('/')}/"):
            check_chosen_location(database, caller, warehouse, path, "iceberg")
        if not locations.key(path, "iceberg").startswith(root):
            database.read(lambda tx: require_location_free(tx, path, "iceberg", entry_id))  # noqa: B023


@dataclass(frozen=True)
class ReadableLocations:
    """What is opened on behalf of a caller besides a table's own location. Implements `Confinement` for Lance tables.

    Another location may be opened if the caller may read it anyway: because it lies in a table that they may read, or
    because they may read the whole warehouse that it lies in. External blobs are read only below the locations that the
    operator names, because Parquet copies of them are shared by all readers of a table.
    """

    reads_rows: ClassVar = True
    database: Database = field(repr=False, compare=False)
    warehouse: Warehouse
    caller: str | None = field(repr=False)
    """Distinguishes callers; it may be a token, so repr hides it."""
    identify: Callable[[], Identity] = field(repr=False, compare=False)
    """Returns the caller's identity; called for each check, because grants change."""

    @classmethod
    def from_caller(cls, database: Database, caller: Caller, warehouse: Warehouse) -> ReadableLocations:
        """Return the locations for one request."""
        return cls(database, warehouse, caller.identity.name, lambda: caller.identity)

    def __hash__(self) -> int:
        return hash((self.warehouse.name, self.caller))

    def require_table(self, location: str, announced: Sequence[str] = ()) -> None:  # noqa: ARG002 - of others
        """Refuse a table with symlinks on the way to it or in its folder.

        Its location itself was checked when the table was created.

        Raises:
            InvalidInputError, OutsideError: there is a symlink, on the way or in its folder.
        """
        locations.require_no_link(self.warehouse, location, "lance")
        require_no_links(location)

    def require_choice(self, location: str, announced: Sequence[str] = ()) -> None:  # noqa: ARG002 - of others
        """Refuse a location that the catalog would refuse for a table of the caller.

        Raises:
            InvalidInputError, PermissionDeniedError: the location is not allowed.
        """
        check_chosen_location(self.database, Caller(self.identify()), self.warehouse, location, "lance")

    def require_base(self, base: str) -> None:
        """Refuse a base path that the caller may not read.

        Raises:
            OutsideError: the caller may not read it.
        """
        if not self.can_read(base, "lance") or self._holds_cache(base):
            remedy = "it may be read by who may read the table there, or all of the warehouse"
            raise outside_error("the table takes files from", base, remedy)

    def require_blob(self, uri: str) -> None:
        """Refuse an external blob outside of `blob_roots`.

        Raises:
            OutsideError: the blob lies elsewhere.
        """
        if not is_inside(uri, self.warehouse.blob_roots):
            remedy = f"an operator may name the place in blob_roots of warehouse {self.warehouse.name}"
            raise outside_error("the table has an external blob,", uri, remedy)

    def _holds_cache(self, base: str) -> bool:
        """Return whether the scan cache lies below a base path: it has copies of other tables, too."""
        return locations.key(locations.cache_location(self.warehouse)).startswith(locations.key(base))

    def can_read(self, location: str, kind: Kind) -> bool:
        """Return whether the caller may read a location outside of the table's own."""
        try:
            key = locations.key(location, kind)
        except InvalidInputError:
            return False
        if key.startswith(locations.key(locations.cache_location(self.warehouse), kind)):
            return False
        # Inside a table, the role on that table's namespace decides; it may even belong to another warehouse.
        identity, table = self.identify(), self.database.read(lambda tx: repository.find_enclosing_table(tx, key))
        if table is not None:
            return identity.has_role(Role.READER, *table)
        roots = (self.warehouse.location, *self.warehouse.roots)
        return identity.has_role(Role.READER, self.warehouse.name) and any(
            key.startswith(locations.key(root, kind)) for root in roots
        )


class TableFiles:
    """The files that an Iceberg table names: they must lie in its own folders, or where the caller may read.

    The server does not open these files, it only names them to clients; so an admin of every warehouse may have them
    anywhere.
    """

    def __init__(self, places: ReadableLocations, table: IcebergTableMetadata) -> None:
        own = (table.location, *filter(None, map(table.properties.get, PATHS)))
        self._own = [locations.key(folder, "iceberg") for folder in own]
        self._places = places
        self._folders: dict[str, bool] = {}

    def check_readable(self, file: str, what: str) -> None:
        """Refuse a file that lies elsewhere.

        Args:
            file: its location.
            what: what the file is, for the message.

        Raises:
            OutsideError: the file lies elsewhere.
        """
        folder, _, name = file.rpartition("/")
        if folder not in self._folders:  # a table has many files in few folders
            self._folders[folder] = self._is_allowed(folder)
        if not self._folders[folder] or name in ("", ".", ".."):
            raise outside_error(f"the table has a {what},", file, "keep the files of a table below its location")

    def _is_allowed(self, folder: str) -> bool:
        if self._places.identify().is_admin_everywhere:
            return True
        try:
            key = locations.key(folder, "iceberg")
        except InvalidInputError:
            return False
        return any(map(key.startswith, self._own)) or self._places.can_read(folder, "iceberg")
