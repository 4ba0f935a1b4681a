"""Build LoadTable and LoadView results: metadata, storage settings and credentials, and an ETag."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from lancehouse.catalog import vending
from lancehouse.catalog.callers import Caller, Role
from lancehouse.catalog.document_cache import DocumentCache
from lancehouse.catalog.errors import WouldBlockError
from lancehouse.catalog.lance_cache import LanceMetadataCache, Snapshots
from lancehouse.catalog.names import Levels
from lancehouse.catalog.warehouses import Warehouse
from lancehouse.store.rows import EntryRow, Json

SERVER_PLANS: Mapping[str, str] = {"scan-planning-mode": "server"}
"""Setting that makes clients ask the server for scan plans: only it can offer a Lance table as Parquet files."""


@dataclass(frozen=True, slots=True)
class LoadResult:
    """The parts of Iceberg's LoadTableResult. Its repr shows no secrets."""

    metadata: bytes
    etag: str
    metadata_location: str | None = None
    config: Mapping[str, str] = field(default_factory=dict, repr=False)
    credentials: Sequence[Json] = field(default=(), repr=False)
    has_all_snapshots: bool = True
    """False if snapshots were left out although the caller did not ask for fewer."""


class MetadataLoader:
    """Loads the metadata that an entry refers to, from memory where they are known to be current."""

    def __init__(self, lance: LanceMetadataCache, documents: DocumentCache) -> None:
        self.lance = lance
        self.documents = documents

    def load(
        self,
        caller: Caller,
        warehouse: Warehouse,
        levels: Levels,
        entry: EntryRow,
        snapshots: Snapshots = "all",
        *,
        blocking: bool = True,
    ) -> LoadResult:
        """Load the result.

        Raises:
            MetadataNotFoundError: the metadata file of an Iceberg table or a view no longer exists.
            WouldBlockError: it may not block, and memory and a look at local folders are not enough.
        """
        if not blocking and caller.delegation and warehouse.vend != "none":
            raise WouldBlockError
        if entry.kind == "lance":
            table = self.lance.load(warehouse, entry, snapshots, blocking=blocking)
            config, credentials = self.storage_access(caller, warehouse, levels, entry.location, entry)
            body = table.refs_json if snapshots == "refs" else table.full_json
            return LoadResult(body, table.etag, None, {**config, **SERVER_PLANS}, credentials)
        document = self.documents.load(warehouse, str(entry.metadata_location), blocking=blocking)
        body = document.refs_json if snapshots == "refs" else document.full_json
        if entry.kind == "view":
            return LoadResult(body, document.etag, document.location)
        config, credentials = self.storage_access(caller, warehouse, levels, entry.location)
        return LoadResult(body, document.etag, document.location, config, credentials)

    def storage_access(
        self, caller: Caller, warehouse: Warehouse, levels: Levels, location: str, lance: EntryRow | None = None
    ) -> tuple[Mapping[str, str], Sequence[Json]]:
        """Return settings and credentials for a location, as far as the caller asks for them and may have them.

        For a Lance table, pass its entry as `lance`: the credentials can then also read the Parquet copies of its rows.
        """
        if not caller.delegation:
            return {}, ()
        can_write = caller.identity.has_role(Role.WRITER, warehouse.name, levels)
        if lance is None:
            return vending.vend_access(warehouse, location, write=can_write, kind="iceberg")
        return vending.vend_access(warehouse, location, write=can_write, kind="lance", uuid=lance.uuid)
