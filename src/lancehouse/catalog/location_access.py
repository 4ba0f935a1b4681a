"""Which locations a table or view may have: those of its warehouse, that the caller may choose, and that are free.

How a location is parsed depends on the kind of the table, so each is checked as the table's own readers parse it.

On local disk a location is checked against the disk as it is now: there must be no symlink below the root. Whoever can
write to the disk directly can create one later; call `check_location` again where that matters: it costs a few system
calls.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, ClassVar, Self
from urllib.parse import quote
from uuid import uuid4

from lance_namespace.errors import InvalidInputError, PermissionDeniedError

from lancehouse.catalog.callers import Caller, Identity, Role
from lancehouse.catalog.errors import Levels
from lancehouse.catalog.warehouses import Warehouse
from lancehouse.credentials import AZURE_HOST, canonical_options
from lancehouse.lake.confinement import outside_error, require_no_links
from lancehouse.locations import (
    child_location,
    find_link,
    is_inside,
    is_unicode,
    is_uri,
    location_error,
    names_below,
    parse,
)
from lancehouse.locations import key as location_key
from lancehouse.store import repository
from lancehouse.store.database import Database
from lancehouse.store.model import Kind
from lancehouse.store.statements import Tx

if TYPE_CHECKING:
    from lancehouse.catalog.iceberg.tables import IcebergTableMetadata

CACHE = ".lancehouse"
"""Folder below a warehouse's location that is reserved for the server."""

LONGEST = MappingProxyType({"file": 3800, "": 900})
"""Longest path in bytes, on disk and elsewhere, so that the names of a table's files still fit."""


def check_location(warehouse: Warehouse, location: str, kind: Kind | None = None) -> str:
    """Return a location that a client chose, as it was given but without a trailing slash.

    Args:
        warehouse: the warehouse of the table.
        location: the location to check.
        kind: the kind of the table; if it is not known yet, the location must be allowed for every kind.

    Raises:
        InvalidInputError: tables of this warehouse must not lie there; the message says why.
    """
    for reader in (kind,) if kind else ("lance", "iceberg"):
        _check_for_kind(warehouse, location, reader)
    return location.rstrip("/")


def default_location(warehouse: Warehouse, levels: Sequence[str], name: str, kind: Kind = "lance") -> str:
    """Return the location of a table that is created without one: `{warehouse}/{level}/…/{table}`.

    Raises:
        InvalidInputError: a name is too long for a folder.
    """
    names = [*levels, name]
    if not all(map(is_unicode, names)):
        raise InvalidInputError(f"{names!r} holds a character that is not Unicode")
    location = child_location(warehouse.location, names)
    if _is_reserved(warehouse, location_key(location, kind), kind):
        location = _escape_first_letter(warehouse.location, location)
    return check_location(warehouse, location, kind)


def cache_location(warehouse: Warehouse) -> str:
    """Return where the server stores copies for scans; no table may lie there."""
    return warehouse.cache or child_location(warehouse.location, [CACHE])


def epoch_file_location(warehouse: Warehouse) -> str:
    """Return where the file lies by which servers on copies of one database notice each other; see `fence`."""
    return child_location(warehouse.location, [CACHE, "epoch.json"])


def scan_cache_location(warehouse: Warehouse) -> str:
    """Return `cache_location` as Iceberg's clients know it: for them, an `az://` URI names the account too."""
    location = cache_location(warehouse).rstrip("/")
    account = canonical_options(warehouse.storage).get("azure_storage_account_name")
    if not location.startswith("az://") or not account:
        return location
    container, _, path = location.removeprefix("az://").partition("/")
    return f"abfss://{container}@{account}.{AZURE_HOST}/{path}"


def prepare_warehouse_location(text: str) -> str:
    """Return a warehouse's location from the form in which a user writes it, and create a local folder.

    Raises:
        InvalidInputError: the location cannot be used; the message says why.
    """
    if text.strip() and not is_uri(text):
        home = os.path.expanduser(text)  # noqa: PTH111 - pathlib raises where nobody has that name
        if home.startswith("~"):
            raise location_error(text, "there is no such home folder")
        text = os.path.abspath(home)  # noqa: PTH100 - pathlib would leave `..` in
    parsed = parse(text, "lance")
    if parsed.store != "file":
        if "%" in text:
            raise location_error(text, "Lance and Iceberg's clients disagree on what % means there")
        return text.rstrip("/")
    if not parsed.segments:
        raise location_error(text, "a warehouse is not the whole disk")
    try:
        Path(parsed.path).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise location_error(text, f"the folder cannot be made: {error.strerror}") from error
    return parsed.path if "%" in text else text.rstrip("/")


def require_no_link(warehouse: Warehouse, location: str, kind: Kind) -> None:
    """Raise if there is a symlink between the warehouse's root and a location.

    A location that was checked before may have got one since.

    Raises:
        InvalidInputError: there is one.
    """
    if find_link(location, (warehouse.location, *warehouse.roots), kind):
        raise location_error(location, "there is a symlink on the way")


def _check_for_kind(warehouse: Warehouse, location: str, kind: Kind) -> None:
    parsed = parse(location, kind)
    roots = [warehouse.location, *warehouse.roots]
    split = next(filter(None, (names_below(parse(root, kind), parsed) for root in roots)), None)
    if split is None:
        raise location_error(location, f"tables of warehouse {warehouse.name} lie below {' or '.join(roots)}")
    root, names = split
    require_no_link(warehouse, location, kind)
    start = os.path.realpath(root) if parsed.store == "file" else parsed.store + root
    own_key = f"{start.rstrip('/')}/{'/'.join(names)}/"
    if _is_reserved(warehouse, own_key, kind):
        raise location_error(location, "that is where the server keeps files of its own")
    size = len(parsed.path.encode())
    longest = LONGEST.get(parsed.store, LONGEST[""])
    if size > longest:
        raise location_error(location, f"a path of {size} bytes is too long, {longest} is the most")


def _is_reserved(warehouse: Warehouse, key: str, kind: Kind) -> bool:
    """Return whether a location lies in a folder of the server's own, or contains one."""
    return any(_overlaps(key, location_key(folder, kind)) for folder in _own_folders(warehouse))


def _own_folders(warehouse: Warehouse) -> set[str]:
    return {cache_location(warehouse), child_location(warehouse.location, [CACHE])}


def _overlaps(left: str, right: str) -> bool:
    """Return whether one key is a prefix of the other."""
    return left.startswith(right) or right.startswith(left)


def _escape_first_letter(root: str, location: str) -> str:
    """Return another location for a name that would be the server's own folder: its first letter percent-encoded.

    No other name is encoded like that.
    """
    start = len(root.rstrip("/")) + 1
    letter = "".join(f"%{byte:02X}" for byte in location[start].encode())
    encoded = quote(letter, safe="") if "://" in root or root.startswith("file:") else letter
    return f"{location[:start]}{encoded}{location[start + 1 :]}"


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
    normalized = check_location(warehouse, location, kind)
    if caller.identity.has_role(Role.WRITER, warehouse.name):
        return normalized
    writable_namespaces = caller.identity.writable_namespaces(warehouse.name)
    # If a namespace has the warehouse's name, that folder is its own, and Lance clients' layout cannot be allowed.
    namesake = database.read(lambda tx: repository.find_namespace(tx, warehouse.id, (warehouse.name,)))
    folders = (
        writable_namespaces
        if namesake
        else [*writable_namespaces, *((warehouse.name, *levels) for levels in writable_namespaces)]
    )
    roots = [location_key(default_location(warehouse, folder[:-1], folder[-1], kind), kind) for folder in folders]
    key = location_key(normalized, kind)
    if any(key.startswith(root) and key != root for root in roots):
        return normalized
    raise PermissionDeniedError(
        f"{caller.identity.name} may choose locations only below the folders of the namespaces that they write to"
    )


def find_free_location(database: Database, warehouse: Warehouse, levels: Levels, name: str, kind: Kind) -> str:
    """Return the location for a table that is created without one: by its name, with a suffix if that is taken."""
    suffix = uuid4().hex[:8]
    location = default_location(warehouse, levels, name, kind)
    for candidate in (location, f"{location}-{suffix}"):
        key = location_key(candidate, kind)
        if database.read(lambda tx: repository.find_overlapping_table(tx, key)) is None:  # noqa: B023
            return candidate
    return default_location(warehouse, (f"{levels[0]}-{suffix}", *levels[1:]), name, kind)


def require_location_free(tx: Tx, location: str, kind: Kind, entry_id: int | None = None) -> str:
    """Return the key of a location, after a check that no other table lies at, above or below it.

    Raises:
        InvalidInputError: a table does; the message does not name it, as the caller may not be allowed to see it.
    """
    key = location_key(location, kind)
    if (table := repository.find_overlapping_table(tx, key, entry_id)) is not None:
        if table[0]:
            raise InvalidInputError(f"location {location} lies in another table's, or holds one: choose another")
        raise InvalidInputError(
            f"location {location} is kept for a dropped table: undrop that, or choose another location"
        )
    return key


def check_table_paths(
    database: Database, caller: Caller, warehouse: Warehouse, table: IcebergTableMetadata, entry_id: int | None = None
) -> None:
    """Refuse an Iceberg table whose files lie where the caller may not choose, or in another table.

    Raises:
        InvalidInputError, PermissionDeniedError: they do, or a statistics file lies where the caller may not read.
    """
    # Most tables have neither: each look at a local path, however short, is one at the disk.
    if statistics := [*table.json["statistics"], *table.json["partition-statistics"]]:
        files = TableFiles(ReadableLocations.from_caller(database, caller, warehouse), table)
        for file in statistics:
            files.check_readable(file["statistics-path"], "file of statistics")
    # A folder below the table's own location needs no check: the location itself has been checked.
    for path in filter(None, map(table.properties.get, PATHS)):
        if not f"{path.rstrip('/')}/".startswith(f"{table.location.rstrip('/')}/"):
            check_chosen_location(database, caller, warehouse, path, "iceberg")
        if not location_key(path, "iceberg").startswith(location_key(table.location, "iceberg")):
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
    opens: bool = True
    """Whether tables are opened, not only described."""

    @classmethod
    def from_caller(cls, database: Database, caller: Caller, warehouse: Warehouse) -> ReadableLocations:
        """Return the locations for one request."""
        return cls(database, warehouse, caller.identity.name, lambda: caller.identity)

    def __hash__(self) -> int:
        return hash((self.warehouse.name, self.caller))

    def for_descriptions(self) -> Self:
        """Return one for tables that are described and not opened."""
        return replace(self, opens=False)

    def require_table(self, location: str, announced: Sequence[str] = ()) -> None:  # noqa: ARG002 - of others
        """Refuse a table with symlinks on the way to it or in its folder.

        Its location itself was checked when the table was created.

        Raises:
            InvalidInputError, OutsideError: there is a symlink, on the way or in its folder.
        """
        if self.opens:
            require_no_link(self.warehouse, location, "lance")
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
        if not self.can_read(base, "lance") or self._holds_own_files(base):
            remedy = "it may be read by who may read the table there, or all of the warehouse"
            raise outside_error("the table takes files from", base, remedy)

    def require_blob(self, uri: str) -> None:
        """Refuse an external blob outside of `blob_roots`.

        Raises:
            OutsideError: the blob lies elsewhere.
        """
        if not is_inside(uri, self.warehouse.blob_roots) or is_inside(uri, _own_folders(self.warehouse)):
            remedy = f"an operator may name the place in blob_roots of warehouse {self.warehouse.name}"
            raise outside_error("the table has an external blob,", uri, remedy)

    def _holds_own_files(self, base: str) -> bool:
        """Return whether files of the server lie below a base path, such as copies of other tables."""
        key = location_key(base)
        return any(location_key(folder).startswith(key) for folder in _own_folders(self.warehouse))

    def can_read(self, location: str, kind: Kind) -> bool:
        """Return whether the caller may read a location outside of the table's own."""
        try:
            key = location_key(location, kind)
        except InvalidInputError:
            return False
        if any(key.startswith(location_key(folder, kind)) for folder in _own_folders(self.warehouse)):
            return False
        # Inside a table, the role on that table decides; it may even belong to another warehouse.
        identity, table = self.identify(), self.database.read(lambda tx: repository.find_enclosing_table(tx, key))
        if table is not None:
            warehouse, levels, name = table  # of a dropped table there is no warehouse: nobody reads it
            return warehouse is not None and identity.has_role(Role.READER, warehouse, levels, name)
        roots = (self.warehouse.location, *self.warehouse.roots)
        return identity.has_role(Role.READER, self.warehouse.name) and any(
            key.startswith(location_key(root, kind)) for root in roots
        )


class TableFiles:
    """The files that an Iceberg table names: they must lie in its own folders, or where the caller may read.

    The server does not open these files, it only names them to clients; so an admin of every warehouse may have them
    anywhere.
    """

    def __init__(self, places: ReadableLocations, table: IcebergTableMetadata) -> None:
        own = (table.location, *filter(None, map(table.properties.get, PATHS)))
        self._own = [location_key(folder, "iceberg") for folder in own]
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
            key = location_key(folder, "iceberg")
        except InvalidInputError:
            return False
        return any(map(key.startswith, self._own)) or self._places.can_read(folder, "iceberg")
