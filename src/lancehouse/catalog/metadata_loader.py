"""Load the metadata of tables and views, from memory where they are known to be current, with storage access."""

from __future__ import annotations

import logging
import time
from collections import OrderedDict, deque
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from hashlib import blake2b, sha256
from math import inf
from secrets import token_bytes
from threading import Lock
from typing import Literal

import orjson
from lance_namespace.errors import InvalidInputError, InvalidTableStateError, LanceNamespaceError

from lancehouse.caches import BoundedCache
from lancehouse.catalog import location_access, vending
from lancehouse.catalog.callers import Caller, Role
from lancehouse.catalog.errors import Levels, WouldBlockError
from lancehouse.catalog.iceberg import tables as iceberg_tables
from lancehouse.catalog.iceberg.tables import IcebergTableMetadata
from lancehouse.catalog.lance_metadata import (
    BuiltMetadata,
    LanceTableMetadata,
    ReusablePrefix,
    build_from_storage,
    build_managed,
    find_reusable_prefix,
    is_managed,
    managed_branches,
    version_from_row,
)
from lancehouse.catalog.warehouse_files import WarehouseFiles
from lancehouse.catalog.warehouses import Warehouse
from lancehouse.credentials import ACCESS, READ, to_iceberg_config
from lancehouse.errors import CommitStateUnknownError
from lancehouse.lake import history as lake
from lancehouse.lake.confinement import ManifestsAlone
from lancehouse.lake.dataset import TableRef
from lancehouse.lake.folder_watch import FolderWatch, start_watch
from lancehouse.lake.history import History, Version
from lancehouse.lake.versions import list_manifests
from lancehouse.locations import local_folder
from lancehouse.properties import PUBLISHED
from lancehouse.store import repository
from lancehouse.store.database import Database
from lancehouse.store.model import EntryRow, Json, Kind, RefRow, SnapshotRow
from lancehouse.store.statements import Tx

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
    access_tag: str = ""
    """Distinguishes responses that differ in settings or credentials; empty if the caller did not ask for them."""


@dataclass(frozen=True, slots=True)
class VendedAccess:
    """Settings and credentials for the files of a table. Its repr shows no secrets."""

    config: Mapping[str, str] = field(default_factory=dict, repr=False)
    credentials: Sequence[Json] = field(default=(), repr=False)
    tag: str = ""
    """Distinguishes it from others, for entity tags; empty if it is empty."""
    until: float = 0.0
    """Until when it may be handed out, in seconds since 1970."""

    @classmethod
    def of(cls, warehouse: Warehouse, access: vending.Access, *, write: bool) -> VendedAccess:
        """Make one of what `vending.vend_access` returned; where there are credentials, it says if they only read."""
        config, credentials = access
        if credentials and not write:
            config = {**config, **ONLY_READS}
            credentials = [
                {**credential, "config": {**credential["config"], **ONLY_READS}} for credential in credentials
            ]
        # The key is this process's own: nobody can try out secrets against an entity tag that a proxy has logged.
        digest = blake2b(orjson.dumps([config, credentials]), key=_TAG_KEY, digest_size=8).hexdigest()
        expiries = [
            int(value) / 1000 - vending.EARLY_S
            for settings in (config, *(credential["config"] for credential in credentials))
            for key, value in settings.items()
            if EXPIRES_AT in key and value.isdecimal()
        ]
        until = min(expiries, default=inf if warehouse.vend in LASTING else 0.0)
        return cls(config, credentials, digest if config or credentials else "", until)


NO_ACCESS = VendedAccess()
LASTING = frozenset({"none", "static"})
"""Values of `vend` that need no other service, and give no credentials that expire."""
EXPIRES_AT = "expires-at"
"""Part of the names of Iceberg's properties that say when credentials expire."""
ONLY_READS: Mapping[str, str] = to_iceberg_config({ACCESS: READ})
_TAG_KEY = token_bytes(32)
AccessKey = tuple[str, str, str | None, bool]
"""Warehouse, location, UUID of a Lance table, and whether the caller may write."""
VENDED_KEPT = 10_000
"""Most tables whose settings and credentials are cached."""


class MetadataLoader:
    """Loads the metadata that an entry refers to, from memory where they are known to be current."""

    def __init__(self, lance: LanceMetadataCache, documents: DocumentCache) -> None:
        self.lance = lance
        self.documents = documents
        self._vended: BoundedCache[AccessKey, VendedAccess] = BoundedCache(VENDED_KEPT)

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
        if entry.kind == "lance":
            table = self.lance.load(warehouse, entry, snapshots, blocking=blocking)
            if not blocking and snapshots == "all" and table.is_slow_to_join:
                raise WouldBlockError
            return self._lance_result(caller, warehouse, levels, entry, table, snapshots, blocking=blocking)
        document = self.documents.load(warehouse, str(entry.metadata_location), blocking=blocking)
        if not blocking and snapshots == "refs" and document.is_slow_to_reduce:
            raise WouldBlockError
        body = document.refs_json if snapshots == "refs" else document.full_json
        if entry.kind == "view":
            return LoadResult(body, document.etag, document.location)
        access = self.vend(caller, warehouse, levels, entry.name, entry.location, blocking=blocking)
        return LoadResult(
            body, document.etag, document.location, access.config, access.credentials, access_tag=access.tag
        )

    def load_declared(self, caller: Caller, warehouse: Warehouse, levels: Levels, entry: EntryRow) -> LoadResult:
        """Return the result for a new entry of a Lance table without data, which needs no look at storage."""
        table = build_from_storage(entry, None, None).table
        return self._lance_result(caller, warehouse, levels, entry, table, "all")

    def _lance_result(
        self,
        caller: Caller,
        warehouse: Warehouse,
        levels: Levels,
        entry: EntryRow,
        table: LanceTableMetadata,
        snapshots: Snapshots,
        *,
        blocking: bool = True,
    ) -> LoadResult:
        access = self.vend(caller, warehouse, levels, entry.name, entry.location, entry, blocking=blocking)
        body = table.refs_json if snapshots == "refs" else table.full_json
        config, tag = {**access.config, **SERVER_PLANS, **_published_config(entry)}, access.tag
        # Readers who need no look at storage must learn of it, though the metadata are the same.
        tag = f"{tag}-{entry.published}" if tag and entry.published is not None else tag
        return LoadResult(body, table.etag, None, config, access.credentials, access_tag=tag)

    def vend(
        self,
        caller: Caller,
        warehouse: Warehouse,
        levels: Levels,
        name: str,
        location: str,
        lance: EntryRow | None = None,
        *,
        blocking: bool = True,
    ) -> VendedAccess:
        """Return settings and credentials for a table's location, as far as the caller asks for them and may have them.

        They are cached until shortly before they expire, apart for those who may write and those who may only read.
        For a Lance table, pass its entry as `lance`: the credentials can then also read the Parquet copies of its rows.

        Raises:
            WouldBlockError: it may not block, and another service has to be asked.
        """
        if not caller.delegation:
            return NO_ACCESS
        can_write = caller.identity.has_role(Role.WRITER, warehouse.name, levels, name)
        key: AccessKey = (warehouse.name, location, None if lance is None else lance.uuid, can_write)
        cached = self._vended.get(key)
        if cached is not None and time.time() < cached.until:
            return cached
        if not blocking and warehouse.vend not in LASTING:
            raise WouldBlockError
        kind: Kind = "iceberg" if lance is None else "lance"
        access = vending.vend_access(warehouse, location, write=can_write, kind=kind, uuid=key[2])
        return self._vended.put(key, VendedAccess.of(warehouse, access, write=can_write))


def _published_config(entry: EntryRow) -> Mapping[str, str]:
    """Return the setting that says that the current version's manifest is in its place; else readers look for it."""
    is_known = entry.published is not None and entry.published == entry.version
    return {PUBLISHED: str(entry.published)} if is_known else {}


DOCUMENT_BYTES = 32 * 2**20
"""Most bytes of files held in memory."""

PARSED_BYTES = 2**19
"""Most bytes of files that are also held parsed."""

REDUCED_INLINE = 2**16
"""Most bytes of a file that is parsed on the event loop."""

GZIP = b"\x1f\x8b"
"""First bytes of a gzip file."""


@dataclass(frozen=True)
class MetadataDocument:
    """A metadata file: its location and its content."""

    location: str
    full_json: bytes

    @classmethod
    def from_table(cls, location: str, table: IcebergTableMetadata) -> MetadataDocument:
        """Return the metadata file for a table's metadata."""
        document = cls(location, _copy_compact(iceberg_tables.dump(table)))
        # In place of what the cached property `table` would parse.
        vars(document)["table"] = table
        _PARSED.add(document)
        return document

    @cached_property
    def refs_json(self) -> bytes:
        """The content with only those snapshots that a branch or a tag points to."""
        return _copy_compact(iceberg_tables.keep_ref_snapshots(self.full_json))

    @property
    def is_slow_to_reduce(self) -> bool:
        """Whether `refs_json` has still to be built, out of a large document."""
        return len(self.full_json) > REDUCED_INLINE and "refs_json" not in vars(self)

    @cached_property
    def table(self) -> IcebergTableMetadata:
        """The parsed content. It is dropped from memory after a while, and then parsed again."""
        _PARSED.add(self)
        return iceberg_tables.parse(self.full_json)

    @cached_property
    def etag(self) -> str:
        """ETag of this state of the table. A metadata file never changes, so its location identifies it."""
        return sha256(self.location.encode()).hexdigest()[:32]


class _ParsedDocuments:
    """The documents that were parsed last.

    Parsed metadata take about ten times the memory of the file, so older documents drop theirs.
    """

    def __init__(self, limit_bytes: int = PARSED_BYTES) -> None:
        self._limit = limit_bytes
        self._documents: deque[MetadataDocument] = deque()
        self._bytes = 0
        self._lock = Lock()

    def add(self, document: MetadataDocument) -> None:
        with self._lock:
            self._documents.append(document)
            self._bytes += len(document.full_json)
            # The newest stays, however large: its caller is about to use it.
            while self._bytes > self._limit and len(self._documents) > 1:
                oldest = self._documents.popleft()
                self._bytes -= len(oldest.full_json)
                vars(oldest).pop("table", None)


_PARSED = _ParsedDocuments()


class DocumentCache:
    """Metadata files by location; the least recently added are evicted first. Safe to use from several threads."""

    def __init__(self, limit_bytes: int = DOCUMENT_BYTES) -> None:
        self._documents: BoundedCache[str, MetadataDocument] = BoundedCache(
            limit_bytes, lambda document: len(document.full_json)
        )

    def load(self, warehouse: Warehouse, location: str, *, blocking: bool = True) -> MetadataDocument:
        """Return a file, from memory or from storage; on a local disk from memory only if it still exists there.

        Raises:
            MetadataNotFoundError: the file does not exist.
            WouldBlockError: it may not block, and memory does not have the file.
        """
        document = self._documents.get(location)
        if document is not None and WarehouseFiles(warehouse).may_exist(location):
            return document
        if not blocking:
            raise WouldBlockError
        return self.add(_read_document(warehouse, location))

    def add(self, document: MetadataDocument) -> MetadataDocument:
        """Add a file that was just read or written, and return it."""
        return self._documents.put(document.location, document)


def _copy_compact(json: bytes) -> bytes:
    """Return a copy of minimal size: the buffer of orjson's result takes 8 KB, however short it is."""
    return bytes(memoryview(json))


def _read_document(warehouse: Warehouse, location: str) -> MetadataDocument:
    raw = WarehouseFiles(warehouse).read(location)
    return (
        MetadataDocument.from_table(location, iceberg_tables.parse(raw))
        if raw.startswith(GZIP)
        else MetadataDocument(location, raw)
    )


@contextmanager
def discard_on_failure(warehouse: Warehouse, files: Collection[str]) -> Iterator[None]:
    """Delete files again if the block fails for which they were written, unless its outcome is unknown.

    After `CommitStateUnknownError` the database may already point to them.
    """
    try:
        yield
    except CommitStateUnknownError:
        raise
    except BaseException:
        discard_files(warehouse, files)
        raise


def discard_files(warehouse: Warehouse, files: Iterable[str]) -> None:
    """Delete files that nothing refers to; failures are ignored, because such a file does no harm."""
    for file in files:
        with suppress(LanceNamespaceError, OSError):
            WarehouseFiles(warehouse).delete(file)


log = logging.getLogger(__name__)

LIMIT = 4096
"""Most tables held in memory."""
LIMIT_BYTES = 64 * 2**20
"""Most bytes held in memory, approximately."""

TABLE_BYTES, VERSION_BYTES = 4_000, 500
"""Approximate memory in bytes of one table, and of one version, besides its JSON."""

STORAGE_REFRESH_S = 60.0
"""Seconds between two looks at a table in an object store, for tags, branches and clean-ups without the catalog."""

Key = tuple[int, str]
"""Id of the warehouse, and UUID of the table."""

Rows = tuple[Sequence[RefRow], Sequence[SnapshotRow], int]
"""Refs, snapshots to encode, and how many of the cached snapshots come before them."""

Snapshots = Literal["all", "refs"]
"""Which snapshots a caller wants: all, or only those that refs point to. As in LoadTable's parameter."""


@dataclass(frozen=True)
class _CachedTable:
    """The metadata of a table, with what is needed to tell whether they are still current."""

    built: BuiltMetadata
    revision: int
    started_ns: int
    """When reading from storage began, by the monotonic clock; 0 if storage was not read."""
    watch: FolderWatch | None
    """Detects later changes in storage; None if they cannot be detected, so that storage must be read each time."""
    is_listed: bool = True
    """Whether all versions in storage were listed; if not, only snapshots that refs point to are known to be right."""
    recent_until_ns: int = 0
    """In object stores: until when tags, branches and clean-ups without the catalog were looked for recently enough."""

    @property
    def table(self) -> LanceTableMetadata:
        return self.built.table

    @property
    def history(self) -> History | None:
        return self.built.history

    def can_serve(self, revision: int, snapshots: Snapshots) -> bool:
        """Return whether this is the given revision, and correct in all snapshots that the caller wants."""
        return self.revision == revision and (self.is_listed or snapshots == "refs")

    def is_newer_than(self, moment_ns: int) -> bool:
        """Return whether it includes everything that storage had at a moment of the monotonic clock.

        That is so if reading began later, or if nothing has changed since it was read.
        """
        return self.started_ns > moment_ns or (self.watch is not None and self.watch.is_unchanged())

    @cached_property
    def size_bytes(self) -> int:
        """Approximate memory in bytes."""
        versions = len(self.history.versions) if self.history else 0
        return TABLE_BYTES + self.table.size_bytes + versions * VERSION_BYTES


@dataclass(slots=True)
class _KeyLock:
    lock: Lock = field(default_factory=Lock)
    waiting: int = 0


class LanceMetadataCache:
    """The metadata of Lance tables; the least recently used are evicted first. Safe to use from several threads.

    A table's metadata are built from its entry in the catalog and from its storage, whoever wrote there. They are
    returned from memory only if both are known to be unchanged: the entry by its revision, storage by `start_watch`.

    Each look at an object store costs requests. For a table there that the catalog manages, the database has everything
    that commits decide. What only storage knows (tags, branches, clean-ups) is read every `storage_refresh_s` seconds,
    and when all snapshots are requested.
    """

    def __init__(
        self,
        database: Database,
        limit: int = LIMIT,
        limit_bytes: int = LIMIT_BYTES,
        *,
        storage_refresh_s: float = STORAGE_REFRESH_S,
    ) -> None:
        self._database = database
        self._limit = limit
        self._limit_bytes = limit_bytes
        self.storage_refresh_s = storage_refresh_s
        """Seconds until a table in an object store is looked at again."""
        self._lock = Lock()
        self._tables: OrderedDict[Key, _CachedTable] = OrderedDict()
        self._bytes = 0
        self._key_locks: dict[Key, _KeyLock] = {}

    def load(
        self, warehouse: Warehouse, entry: EntryRow, snapshots: Snapshots = "all", *, blocking: bool = True
    ) -> LanceTableMetadata:
        """Return the current state of the table. Threads that ask at the same time share one read of its storage.

        Args:
            warehouse: the warehouse of the table.
            entry: the table's entry.
            snapshots: the snapshots that the caller will use. With "refs" it must use no others: if the catalog manages
                the table, they may differ from what storage has by now.
            blocking: whether storage may be read; else memory must have the table, and local folders show that it did
                not change.

        Raises:
            InvalidTableStateError: the dataset is broken.
            LanceNamespaceError: the storage cannot be reached.
            WouldBlockError: it may not block, and storage must be read.
        """
        # Taken before waiting for the lock: what another thread began to read after this moment is current enough for
        # this caller, so that those who wait need not read again one after the other.
        arrived_ns = time.monotonic_ns()
        key = (warehouse.id, entry.uuid)
        if (table := self._find_current(key, entry, snapshots, arrived_ns)) is not None:
            return table
        if not blocking:
            raise WouldBlockError
        with self._lock_key(key):
            if (table := self._find_current(key, entry, snapshots, arrived_ns)) is not None:
                return table
            cached = self._tables.get(key)
            current = self._build_from_rows(entry, cached) if snapshots == "refs" else None
            return self._put(key, current or self._read_table(warehouse, entry, cached, snapshots))

    def _find_current(
        self, key: Key, entry: EntryRow, snapshots: Snapshots, moment_ns: int
    ) -> LanceTableMetadata | None:
        """Return the table if memory has it as it was at a moment of the monotonic clock, or later; else None.

        Of a table in an object store that the catalog manages, snapshots that refs point to may be as of a recent look.
        """
        cached = self._tables.get(key)
        if cached is None or not cached.can_serve(entry.revision, snapshots):
            return None
        is_recent = snapshots == "refs" and moment_ns < cached.recent_until_ns and is_managed(entry)
        if not is_recent and not cached.is_newer_than(moment_ns):
            return None
        with self._lock:
            if key in self._tables:
                self._tables.move_to_end(key)
        return cached.table

    def load_committed(self, warehouse: Warehouse, entry: EntryRow) -> LanceTableMetadata:
        """Return the table after a commit, without reading storage if the catalog manages it and memory has it."""
        if not is_managed(entry):
            return self.load(warehouse, entry)
        key = (warehouse.id, entry.uuid)
        with self._lock_key(key):
            cached = self._tables.get(key)
            if (current := self._build_from_rows(entry, cached)) is not None:
                return self._put(key, current)
            if cached is None:
                return self._put(key, self._read_table(warehouse, entry, None, lenient=True))
            # Storage was not read, so this is only for the commit's own response and for reuse: without a time and a
            # watch, the next `load` reads storage.
            return self._put(key, replace(self._build_managed(entry, cached, cached.history, 0, None), is_listed=False))

    def _build_from_rows(self, entry: EntryRow, cached: _CachedTable | None) -> _CachedTable | None:
        """Return a table of an object store as the database has it, with what was read from storage recently.

        None if the catalog does not manage the table, the last look is too long ago, or the database lacks what only
        the manifest has: an older client committed.
        """
        if not is_managed(entry) or entry.version is None or entry.schema is None:
            return None
        now_ns = time.monotonic_ns()
        recent_until_ns = now_ns + int(self.storage_refresh_s * 1e9) if cached is None else cached.recent_until_ns
        if local_folder(entry.location) is not None or now_ns >= recent_until_ns:
            return None
        table = self._build_managed(entry, cached, cached.history if cached else None, 0, None)
        last = table.built.last_accepted
        if last is None or last.snapshot_id != entry.version or version_from_row(last) is None:
            return None
        return replace(table, is_listed=False, recent_until_ns=recent_until_ns)

    def current_version(self, warehouse: Warehouse, entry: EntryRow) -> int | None:
        """Return the entry's version if the catalog manages the table, else the latest in storage, or None."""
        return entry.version if is_managed(entry) else lake.find_latest_version(_table_ref(warehouse, entry.location))

    def find_latest_version(self, warehouse: Warehouse, location: str) -> int | None:
        """Return the latest version of the dataset at a location, or None if there is no dataset.

        Raises:
            InvalidInputError: the dataset cannot be read.
            LanceNamespaceError: the storage cannot be reached.
        """
        version = lake.find_latest_version(_table_ref(warehouse, location))
        if version is not None:
            try:
                self.read_schema(warehouse, location, version)
            except InvalidTableStateError as error:
                raise InvalidInputError(str(error)) from error
        return version

    def stored_branches(self, warehouse: Warehouse, location: str) -> dict[str, int]:
        """Return the branches besides main of the dataset at a location, with the latest snapshot of each."""
        history = lake.read_history(_table_ref(warehouse, location))
        return {str(version.branch): version.snapshot_id for version in history.on_branches} if history else {}

    def read_schema(self, warehouse: Warehouse, location: str, version: int | None = None) -> Json:
        """Return the Iceberg schema of a dataset at a version, by default the latest.

        Raises:
            TableNotFoundError, TableVersionNotFoundError: there is no such dataset, or it has no such version.
        """
        return lake.read_schema(_table_ref(warehouse, location, version))

    def _read_table(
        self,
        warehouse: Warehouse,
        entry: EntryRow,
        cached: _CachedTable | None,
        snapshots: Snapshots = "all",
        *,
        lenient: bool = False,
    ) -> _CachedTable:
        # Take the time and start the watch before the first read: a change during the read then counts as a later one.
        started_ns = time.monotonic_ns()
        known_history = cached.history if cached else None
        table = _table_ref(warehouse, entry.location)
        recent_until_ns = started_ns + int(self.storage_refresh_s * 1e9) if local_folder(entry.location) is None else 0
        if not is_managed(entry):
            storage_watch = start_watch(entry.location)
            manifests = None
            if cached is not None and snapshots == "refs" and _is_recent(entry, cached, started_ns):
                # In an object store, one listing shows whether there is a new version.
                manifests = list_manifests(table)
                if cached.history is not None and manifests == {
                    stored.version: stored.manifest for stored in cached.history.on_main
                }:
                    return replace(cached, started_ns=started_ns)
            # Storage has taken over: versions that were built from rows of the database are read anew from storage.
            if known_history is not None and any(version.is_told for version in known_history.versions):
                known_history = None
            history = lake.read_history(table, known=known_history, listed=manifests)
            return _CachedTable(
                build_from_storage(entry, history, cached.built if cached else None),
                entry.revision,
                started_ns,
                storage_watch,
                recent_until_ns=recent_until_ns,
            )
        if entry.version is None:
            return self._build_managed(entry, cached, None, started_ns, start_watch(entry.location, versions=False))
        storage_watch = start_watch(entry.location, versions=False)
        # In an object store no manifest is read of a version that its row describes. If nothing is known yet, these are
        # all rows, of which the metadata are built as well.
        rows = self._read_rows(entry, None, None) if recent_until_ns and known_history is None else None
        try:
            if (
                snapshots == "refs"
                and (extended := self._try_extend(table, entry, cached, started_ns, storage_watch)) is not None
            ):
                return extended
            versions_in_database = self._versions_in_database(entry, known_history, rows) if recent_until_ns else {}
            history = lake.read_history(table, known=known_history, at=entry.version, told=versions_in_database)
        except LanceNamespaceError as error:
            if not lenient and known_history is None and entry.schema is None:
                raise
            # The catalog alone decides which version is current, so a table can be described while its storage is
            # unreachable. The watch is None: the next caller tries storage again.
            log.warning("table %s is shown as the catalog knows it: %s", entry.uuid, error)
            return self._build_managed(entry, cached, known_history, started_ns, None, rows=rows)
        # The accepted version may be pending, its manifest not yet in its final location: the metadata then lack what
        # only the manifest says, and without a watch they are built again at the next load.
        is_complete = history is not None and history.version == entry.version
        watch = storage_watch if is_complete else None
        current = self._build_managed(entry, cached, history, started_ns, watch, rows=rows)
        if history is None or not is_complete:
            return current
        if entry.schema is None:
            self._fill_in_schema(entry, history.schema)
        return replace(current, recent_until_ns=recent_until_ns)

    def _fill_in_schema(self, entry: EntryRow, schema: Json) -> None:
        """Keep the schema of a table that lacks one; a database that cannot be written fails no load."""
        try:
            self._database.write(lambda tx: repository.set_schema(tx, entry.id, entry.revision, schema))
        except LanceNamespaceError as error:
            log.warning("the schema of table %s is not kept: %s", entry.uuid, error)

    def _versions_in_database(
        self, entry: EntryRow, known_history: History | None, rows: Rows | None
    ) -> dict[int, Version]:
        """Return the versions of the main branch that the database describes, except those that are known already."""
        after_id = known_history.version if known_history else 0
        new_rows = (
            rows[1] if rows else self._database.read(lambda tx: repository.list_snapshots(tx, entry.id, after_id))
        )
        return {row.snapshot_id: version for row in new_rows if (version := version_from_row(row)) is not None}

    def _try_extend(
        self,
        table: TableRef,
        entry: EntryRow,
        cached: _CachedTable | None,
        started_ns: int,
        storage_watch: FolderWatch | None,
    ) -> _CachedTable | None:
        """Return the cached table plus its newer versions, or None if a snapshot that refs point to may differ.

        Its cost does not depend on the number of versions: they are not listed.
        """
        if cached is None or cached.history is None or entry.version is None:
            return None
        history = lake.extend_history(table, cached.history, entry.version)
        if history is None:
            return None
        prefix = find_reusable_prefix(entry, history, cached.built, is_extended=True)
        storage_watch = storage_watch if history.version == entry.version else None
        extended = self._build_managed(entry, cached, history, started_ns, storage_watch, prefix)
        return (
            replace(extended, is_listed=False)
            if lake.is_consistent(table, history, extended.built.ref_snapshot_ids)
            else None
        )

    def _build_managed(
        self,
        entry: EntryRow,
        cached: _CachedTable | None,
        history: History | None,
        started_ns: int,
        storage_watch: FolderWatch | None,
        prefix: ReusablePrefix | None = None,
        rows: Rows | None = None,
    ) -> _CachedTable:
        previous = cached.built if cached else None
        if rows is None:
            rows = self._read_rows(entry, cached, prefix or find_reusable_prefix(entry, history, previous))
        refs, snapshots, keep = rows
        return _CachedTable(
            build_managed(entry, history, snapshots, refs, previous, keep), entry.revision, started_ns, storage_watch
        )

    def _read_rows(self, entry: EntryRow, cached: _CachedTable | None, prefix: ReusablePrefix | None) -> Rows:
        """Return refs, snapshots to encode, and how many of the cached snapshots come before them."""
        if cached is not None and prefix is not None and cached.revision == entry.revision and prefix.needs_only_last:
            refs = cached.built.refs
            if not managed_branches(refs):
                return refs, [prefix.last_accepted], prefix.snapshot_count

        def read(tx: Tx) -> Rows:
            refs = repository.list_refs(tx, entry.id)
            if prefix is not None:
                rows = repository.list_snapshots(tx, entry.id, prefix.after_id)
                if prefix.is_continued_by(rows, repository.count_snapshots(tx, entry.id)):
                    return refs, rows, prefix.snapshot_count
            return refs, repository.list_snapshots(tx, entry.id), 0

        return self._database.read(read)

    def _put(self, key: Key, new: _CachedTable) -> LanceTableMetadata:
        with self._lock:
            previous = self._tables.get(key)
            # A caller may have read the entry before a commit and got the lock after it: keep the newer metadata.
            if previous is not None and previous.revision > new.revision:
                return new.table
            if previous is not None:
                self._bytes -= previous.size_bytes
            self._tables[key] = new
            self._tables.move_to_end(key)
            self._bytes += new.size_bytes
            while len(self._tables) > 1 and (len(self._tables) > self._limit or self._bytes > self._limit_bytes):
                self._bytes -= self._tables.popitem(last=False)[1].size_bytes
        return new.table

    @contextmanager
    def _lock_key(self, key: Key) -> Iterator[None]:
        with self._lock:
            key_lock = self._key_locks.setdefault(key, _KeyLock())
            key_lock.waiting += 1
        try:
            with key_lock.lock:
                yield
        finally:
            with self._lock:
                key_lock.waiting -= 1
                # The last thread removes the lock, so that there are never more locks than requests under way.
                if not key_lock.waiting:
                    del self._key_locks[key]


def _is_recent(entry: EntryRow, cached: _CachedTable, now_ns: int) -> bool:
    """Return whether a table in an object store was read so recently that only its versions must be listed."""
    return cached.history is not None and cached.revision == entry.revision and now_ns < cached.recent_until_ns


def _table_ref(warehouse: Warehouse, location: str, version: int | None = None) -> TableRef:
    location_access.require_no_link(warehouse, location, "lance")
    return TableRef(location, warehouse.storage, version=version, confinement=ManifestsAlone())
