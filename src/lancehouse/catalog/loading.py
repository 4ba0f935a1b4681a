"""What a client is told of a table or view: its metadata, how to reach its files, and a tag for this state of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from lancehouse.catalog import vending
from lancehouse.catalog.callers import Caller, Role
from lancehouse.catalog.documents import Documents
from lancehouse.catalog.metadata import LanceTable, LanceTables, Snapshots
from lancehouse.catalog.names import Levels
from lancehouse.catalog.warehouses import Warehouse
from lancehouse.store.rows import EntryRow, Json

SERVER_PLANS: Mapping[str, str] = {"scan-planning-mode": "server"}
"""Only the server can turn a Lance table into files that Iceberg's readers know."""


@dataclass(frozen=True, slots=True)
class Loaded:
    """The parts of Iceberg's LoadTableResult. Its repr shows no secret."""

    metadata: bytes
    etag: str
    metadata_location: str | None = None
    config: Mapping[str, str] = field(default_factory=dict, repr=False)
    credentials: Sequence[Json] = field(default=(), repr=False)
    is_whole: bool = True
    """Whether all snapshots are in it, though fewer were not asked for."""


class Loader:
    """Reads what an entry points to, from memory where it is known to be current."""

    def __init__(self, lance: LanceTables, documents: Documents) -> None:
        self.lance = lance
        self.documents = documents

    def cached(self, caller: Caller, warehouse: Warehouse, entry: EntryRow, snapshots: Snapshots) -> Loaded | None:
        """The answer, if that takes no more than a look at local folders."""
        if caller.delegation and warehouse.vend != "none":
            return None
        if entry.kind == "lance":
            table = self.lance.cached(warehouse, entry, snapshots)
            return None if table is None else self._lance(caller, warehouse, entry, (), table, snapshots)
        document = self.documents.cached(warehouse, str(entry.metadata_location))
        if document is None:
            return None
        body = document.refs if snapshots == "refs" else document.all
        if entry.kind == "view":
            return Loaded(body, document.etag, document.location)
        config, credentials = self.access(caller, warehouse, (), entry.location)
        return Loaded(body, document.etag, document.location, config, credentials)

    def load(
        self, caller: Caller, warehouse: Warehouse, levels: Levels, entry: EntryRow, snapshots: Snapshots = "all"
    ) -> Loaded:
        """The answer.

        Raises:
            MetadataNotFoundError: an Iceberg table's metadata file is gone.
        """
        if entry.kind == "lance":
            table = self.lance.load(warehouse, entry, snapshots)
            return self._lance(caller, warehouse, entry, levels, table, snapshots)
        document = self.documents.load(warehouse, str(entry.metadata_location))
        body = document.refs if snapshots == "refs" else document.all
        if entry.kind == "view":
            return Loaded(body, document.etag, document.location)
        config, credentials = self.access(caller, warehouse, levels, entry.location)
        return Loaded(body, document.etag, document.location, config, credentials)

    def access(
        self, caller: Caller, warehouse: Warehouse, levels: Levels, location: str, lance: EntryRow | None = None
    ) -> tuple[Mapping[str, str], Sequence[Json]]:
        """Settings and credentials for a place, as much as the caller asks for and may have.

        Of a Lance table, given as such, the copies of its rows can be read too.
        """
        if not caller.delegation:
            return {}, ()
        write = caller.identity.may(Role.WRITER, warehouse.name, levels)
        if lance is None:
            return vending.vended(warehouse, location, write=write, kind="iceberg")
        return vending.vended(warehouse, location, write=write, kind="lance", uuid=lance.uuid)

    def _lance(
        self,
        caller: Caller,
        warehouse: Warehouse,
        entry: EntryRow,
        levels: Levels,
        table: LanceTable,
        snapshots: Snapshots,
    ) -> Loaded:
        config, credentials = self.access(caller, warehouse, levels, entry.location, entry)
        body = table.refs if snapshots == "refs" else table.all
        return Loaded(body, table.etag, None, {**config, **SERVER_PLANS}, credentials)
