"""UpdateTable and CommitTransaction: commit changes to one table or atomically to several."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from time import sleep
from typing import Any

from lance_namespace.errors import (
    ConcurrentModificationError,
    InvalidInputError,
    TableAlreadyExistsError,
)

from lancehouse import measures
from lancehouse.catalog import location_access
from lancehouse.catalog.callers import Caller, Role
from lancehouse.catalog.entries import (
    TableName,
    create_entry,
    diff_properties,
    now_ms,
    record_commit,
    require_name_free,
    require_unprotected,
    write_once,
)
from lancehouse.catalog.errors import (
    ATTEMPTS,
    CommitConflictError,
    Levels,
    ViewAlreadyExistsError,
    check_name,
    table_not_found,
)
from lancehouse.catalog.fence import Fence
from lancehouse.catalog.iceberg import tables as iceberg_tables
from lancehouse.catalog.iceberg.manifests import is_below
from lancehouse.catalog.lance_commits import EntryChange, decide
from lancehouse.catalog.lance_metadata import is_managed, is_on_branch, managed_branches
from lancehouse.catalog.metadata_loader import (
    LanceMetadataCache,
    LoadResult,
    MetadataDocument,
    MetadataLoader,
    discard_files,
    discard_on_failure,
)
from lancehouse.catalog.warehouse_files import WarehouseFiles
from lancehouse.catalog.warehouses import Warehouse
from lancehouse.lake.dataset import MAIN, snapshot_id
from lancehouse.locations import key as location_key
from lancehouse.properties import LANCE, TABLE_TYPE, is_lance
from lancehouse.store import repository
from lancehouse.store.database import Database
from lancehouse.store.model import EntryRow, Json, SnapshotRow
from lancehouse.store.statements import Tx

LONGEST_PAUSE_S = 0.05
"""Longest random pause between two attempts, in seconds."""


WHOLE_BYTES = 256 * 1024
"""Largest table metadata, in bytes, that the response to a commit of a Lance table carries with all snapshots.

That is about a thousand versions. Beyond it, building the response would cost more than the commit itself, so only
snapshots that refs point to are included; LoadTable returns the rest.
"""


@dataclass(frozen=True)
class PreparedCommit:
    """A commit of one table, decided on the entry as it was read; `apply` makes it unless the entry has changed."""

    name: TableName
    apply: Callable[[Tx], EntryRow]
    order: int = 0
    """Entries are locked in this order, so that two transactions never deadlock."""
    written: Sequence[str] = ()
    """Files written for this commit; they are deleted if it fails."""
    obsolete: Sequence[str] = ()
    """Files that are deleted once the commit has succeeded."""
    document: MetadataDocument | None = field(default=None, repr=False)


class Commits:
    """UpdateTable and CommitTransaction."""

    def __init__(self, database: Database, loader: MetadataLoader, fence: Fence) -> None:
        self._database = database
        self._loader = loader
        self._fence = fence

    def commit(self, caller: Caller, warehouse: Warehouse, levels: Levels, name: str, request: Json) -> LoadResult:
        """Commit changes to one table.

        The result always has a metadata location, as Iceberg's clients require; for a Lance table it is that of its
        manifest.

        Raises:
            TableNotFoundError: there is no such table, and the commit does not create it.
            ConcurrentModificationError: a requirement does not hold; nothing was changed.
            InvalidInputError: the request is not valid for this table; nothing was changed.
            WarehouseFencedError: the warehouse takes no changes; nothing was changed.
        """
        (entry,) = self._commit_with_retries(caller, warehouse, [(TableName(levels, name), request)])
        return self._load_result(caller, warehouse, levels, entry)

    def load_committed(self, caller: Caller, warehouse: Warehouse, levels: Levels, name: str) -> LoadResult:
        """Return what `commit` returned, for a commit that was made earlier.

        Raises:
            PermissionDeniedError: the caller may no longer read the table.
            TableNotFoundError: the table has been dropped since.
        """
        caller.identity.require_role(Role.READER, warehouse.name, levels, name)
        entry = self._database.read(lambda tx: repository.find_entry(tx, warehouse.id, levels, name))
        if entry is None or entry.kind == "view":
            raise table_not_found(levels, name)
        return self._load_result(caller, warehouse, levels, entry)

    def _load_result(self, caller: Caller, warehouse: Warehouse, levels: Levels, entry: EntryRow) -> LoadResult:
        if entry.kind != "lance":
            return self._loader.load(caller, warehouse, levels, entry)
        table = self._loader.lance.load_committed(warehouse, entry)
        has_all = table.full_size <= WHOLE_BYTES
        body = table.full_json if has_all else table.refs_json
        return LoadResult(body, table.etag, table.manifest, has_all_snapshots=has_all)

    def commit_transaction(self, caller: Caller, warehouse: Warehouse, changes: Sequence[Json]) -> None:
        """Commit changes to several tables, all or none. Lance and Iceberg tables may be mixed.

        Raises:
            As `commit`; nothing was changed.
        """
        table_changes = [
            (TableName(tuple(change["identifier"]["namespace"]), change["identifier"]["name"]), change)
            for change in changes
        ]
        if len({name for name, _ in table_changes}) < len(table_changes):
            raise InvalidInputError("a transaction changes each table once: put all updates of a table together")
        self._commit_with_retries(caller, warehouse, table_changes)

    def _commit_with_retries(
        self, caller: Caller, warehouse: Warehouse, changes: Sequence[tuple[TableName, Json]]
    ) -> list[EntryRow]:
        for name, _ in changes:
            caller.identity.require_role(Role.WRITER, warehouse.name, name.levels, name.name)
        self._fence.require_open(warehouse)
        with measures.report_commit():
            return self._retry_attempts(caller, warehouse, changes)

    def _retry_attempts(
        self, caller: Caller, warehouse: Warehouse, changes: Sequence[tuple[TableName, Json]]
    ) -> list[EntryRow]:
        for attempt in range(ATTEMPTS):
            with suppress(CommitConflictError):
                return self._attempt(caller, warehouse, changes)
            measures.report("commits", "repeated")
            # The first retry is immediate; later ones wait a random time, so that writers do not keep colliding.
            sleep(random.uniform(0, LONGEST_PAUSE_S) * min(attempt, 4) / 4)  # noqa: S311
        raise ConcurrentModificationError(
            f"other commits were faster {ATTEMPTS} times: {', '.join(str(name) for name, _ in changes)}"
        )

    def _attempt(
        self, caller: Caller, warehouse: Warehouse, changes: Sequence[tuple[TableName, Json]]
    ) -> list[EntryRow]:
        # Filled while the block runs: a failure deletes all files written so far, of every table in the commit.
        new_files: list[str] = []
        with discard_on_failure(warehouse, new_files):
            commits = []
            for name, request in changes:
                commits.append(self._prepare(caller, warehouse, name, request))
                new_files += commits[-1].written
            ordered = sorted(commits, key=lambda commit: commit.order)
            entries = write_once(
                self._database, caller, lambda tx: {commit.name: commit.apply(tx) for commit in ordered}
            )
        for commit in commits:
            if commit.document is not None:
                self._loader.documents.add(commit.document)
        # Only now: until the transaction is durable, the old metadata files are the ones that the entries point to.
        discard_files(warehouse, [file for commit in commits for file in commit.obsolete])
        return [entries[name] for name, _ in changes]

    def _prepare(self, caller: Caller, warehouse: Warehouse, name: TableName, request: Json) -> PreparedCommit:
        requirements, updates = request["requirements"], request["updates"]
        # Outside of the write transaction: writers do not wait for what is read from storage here. `apply` finds out
        # whether the entry has changed since.
        entry = self._database.read_one(lambda tx: repository.find_entry(tx, warehouse.id, name.levels, name.name))
        if any(requirement.get("type") == iceberg_tables.CREATE for requirement in requirements):
            return self._prepare_create(caller, warehouse, name, requirements, updates)
        if entry is None or entry.kind == "view":
            raise table_not_found(name.levels, name.name)
        if entry.kind == "lance":
            return self._prepare_lance(caller, warehouse, name, entry, request)
        return self._prepare_iceberg(caller, warehouse, name, entry, request)

    def _prepare_lance(
        self, caller: Caller, warehouse: Warehouse, name: TableName, entry: EntryRow, request: Json
    ) -> PreparedCommit:
        state = LazyTableState(self._database, self._loader.lance, warehouse, entry)
        change = decide(entry, state, request["requirements"], request["updates"])

        def apply(tx: Tx) -> EntryRow:
            if change.is_empty:
                return entry
            if entry.version is not None and change.overwrites:
                require_unprotected(tx, warehouse, name.levels, name.name, entry.properties, "overwrite")
            now = now_ms()
            # Compare and swap on the revision: either all that `decide` read of the entry is still true, or it decides
            # again.
            if not repository.advance_entry(tx, entry.id, entry.revision, now_ms=now, **change.values):
                raise CommitConflictError
            _store_change(tx, entry, caller, change, now)
            published = None if "version" in change.values else entry.published
            after = replace(entry, revision=entry.revision + 1, updated_ms=now, published=published, **change.values)
            changes = diff_properties(entry.properties, after.properties)
            record_commit(tx, after, caller, warehouse, name, change.operation, change.snapshot_id, changes)
            return after

        return PreparedCommit(name, apply, entry.id)

    def _prepare_iceberg(
        self, caller: Caller, warehouse: Warehouse, name: TableName, entry: EntryRow, request: Json
    ) -> PreparedCommit:
        before = self._loader.documents.load(warehouse, str(entry.metadata_location))
        iceberg_tables.check_requirements(before.table, request["requirements"])
        table = iceberg_tables.apply_updates(before.table, request["updates"], before.location)
        if table == before.table:
            return PreparedCommit(name, lambda _: entry, entry.id)
        if is_lance(table.properties):
            raise InvalidInputError(f"an Iceberg table cannot become a Lance table: {TABLE_TYPE} must not be {LANCE!r}")
        if any(table.json[part] != before.table.json[part] for part in location_access.CHECKED):
            location_access.check_table_paths(self._database, caller, warehouse, table, entry.id)
        values: dict[str, Any] = {}
        if table.location != before.table.location:
            location = location_access.check_chosen_location(
                self._database, caller, warehouse, table.location, "iceberg"
            )
            values = {"location": location, "location_key": location_key(location, "iceberg")}
        document = self._write_metadata(warehouse, iceberg_tables.next_metadata_location(table, before.location), table)
        values["metadata_location"] = document.location

        def apply(tx: Tx) -> EntryRow:
            now = now_ms()
            if "location" in values:
                # Checked again in the transaction: another table may have taken the location in the meantime.
                location_access.require_location_free(tx, values["location"], "iceberg", entry.id)
            if not repository.advance_entry(tx, entry.id, entry.revision, now_ms=now, **values):
                raise CommitConflictError
            entry_values = {key: value for key, value in values.items() if key != "location_key"}
            after = replace(entry, revision=entry.revision + 1, updated_ms=now, **entry_values)
            operation = _operation(request["updates"])
            changes = diff_properties(before.table.properties, table.properties)
            record_commit(tx, after, caller, warehouse, name, operation, table.current_snapshot_id, changes)
            return after

        # The metadata log may come from a registered file, so it may name anything; only files below the table's own
        # location are ever deleted because of it.
        roots = (location_key(table.location, "iceberg"),)
        obsolete = [
            file for file in iceberg_tables.obsolete_metadata_files(before.table, table) if is_below(roots, file)
        ]
        return PreparedCommit(name, apply, entry.id, [document.location], obsolete, document)

    def _prepare_create(
        self,
        caller: Caller,
        warehouse: Warehouse,
        name: TableName,
        requirements: Sequence[Json],
        updates: Sequence[Json],
    ) -> PreparedCommit:
        """Prepare the commit that creates a table which was staged with `stage-create`."""
        caller.identity.require_role(Role.WRITER, warehouse.name, name.levels)
        check_name("table name", name.name)
        self._database.read(lambda tx: _require_new(tx, warehouse, name))
        iceberg_tables.check_requirements(None, list(requirements))
        if not any(update.get("action") == "set-location" for update in updates):
            updates = [
                *updates,
                {
                    "action": "set-location",
                    "location": location_access.default_location(warehouse, name.levels, name.name, "iceberg"),
                },
            ]
        table = iceberg_tables.apply_updates(None, list(updates), None)
        if is_lance(table.properties):
            raise InvalidInputError("a Lance table cannot be staged: create it, then write to it with Lance")
        location = location_access.check_chosen_location(self._database, caller, warehouse, table.location, "iceberg")
        location_access.check_table_paths(self._database, caller, warehouse, table)
        document = self._write_metadata(warehouse, iceberg_tables.next_metadata_location(table, None), table)

        def apply(tx: Tx) -> EntryRow:
            _require_new(tx, warehouse, name)
            uuid, place = table.table_uuid, document.location
            return create_entry(tx, caller, warehouse, name, "iceberg", uuid, location, metadata_location=place)

        return PreparedCommit(name, apply, written=[document.location], document=document)

    def _write_metadata(
        self, warehouse: Warehouse, location: str, table: iceberg_tables.IcebergTableMetadata
    ) -> MetadataDocument:
        document = MetadataDocument.from_table(location, table)
        WarehouseFiles(warehouse).write(
            location_access.check_location(warehouse, document.location, "iceberg"), document.full_json
        )
        return document


class LazyTableState:
    """The current state of a Lance table, loaded on demand: the usual commit needs nothing from storage."""

    def __init__(self, database: Database, lance: LanceMetadataCache, warehouse: Warehouse, entry: EntryRow) -> None:
        self._database = database
        self._lance = lance
        self._warehouse = warehouse
        self._entry = entry

    def current_version(self) -> int | None:
        """Return the current version, or None if the table has no data."""
        return self._lance.current_version(self._warehouse, self._entry)

    def latest_stored_version(self) -> int | None:
        """Return the latest version in storage, or None."""
        return self._lance.find_latest_version(self._warehouse, self._entry.location)

    def ref_snapshot_id(self, name: str) -> int | None:
        """Return the id of the snapshot that a branch or tag points to, or None."""
        if name == MAIN:
            return self.current_version()
        if name in self._branches:
            return self._branches[name]
        ref = self._load_metadata().get("refs", {}).get(name)
        return None if ref is None else int(ref["snapshot-id"])

    def branches(self) -> Mapping[str, int]:
        """Return the branches besides main whose versions the catalog accepts, with the current snapshot of each."""
        return self._branches

    def stored_schema(self, version: int) -> Json:
        """Return the Iceberg schema of a version in storage."""
        return self._lance.read_schema(self._warehouse, self._entry.location, version)

    def stored_branches(self) -> Mapping[str, int]:
        """Return the branches besides main in storage, with the latest snapshot of each."""
        return self._lance.stored_branches(self._warehouse, self._entry.location)

    def accepted_snapshot_ids(self, branch: str) -> Sequence[int]:
        """Return the ids of the snapshots that the catalog accepted on a branch besides main."""
        rows = self._database.read(lambda tx: repository.list_snapshots(tx, self._entry.id, snapshot_id(branch, 0)))
        return [row.snapshot_id for row in rows if is_on_branch(branch, row.snapshot_id)]

    @cached_property
    def _branches(self) -> Mapping[str, int]:
        if not is_managed(self._entry):
            return {}
        return managed_branches(self._database.read(lambda tx: repository.list_refs(tx, self._entry.id)))

    def last_column_id(self) -> int:
        """Return the highest field id."""
        return int(self._load_metadata()["last-column-id"])

    def has_snapshot(self, snapshot_id: int) -> bool:
        """Return whether the table has this snapshot."""
        return any(snapshot["snapshot-id"] == snapshot_id for snapshot in self._load_metadata()["snapshots"])

    def _load_metadata(self) -> Json:
        return self._lance.load(self._warehouse, self._entry).metadata


def _store_change(tx: Tx, entry: EntryRow, caller: Caller, change: EntryChange, now: int) -> None:
    """Store the snapshots and refs of a change; summaries of new snapshots say who committed, when, and with what."""
    commit_properties = {
        "committed-by": caller.identity.name,
        "committed-with": caller.client,
        "committed-at-ms": str(now),
    }
    rows: list[SnapshotRow] = [
        replace(
            row, summary={**row.summary, **{f"lancehouse.{key}": value for key, value in commit_properties.items()}}
        )
        for row in change.snapshots
    ]
    if change.clears_history:
        repository.delete_snapshots(tx, entry.id, [row.snapshot_id for row in repository.list_snapshots(tx, entry.id)])
        for ref in repository.list_refs(tx, entry.id):
            repository.delete_ref(tx, entry.id, ref.name)
    if rows:
        repository.insert_snapshots(tx, entry.id, rows)
    if change.removed_snapshots:
        repository.delete_snapshots(tx, entry.id, change.removed_snapshots)
    for name, new_ref in change.refs.items():
        if new_ref is None:
            repository.delete_ref(tx, entry.id, name)
        else:
            repository.put_ref(tx, entry.id, new_ref)


def _require_new(tx: Tx, warehouse: Warehouse, name: TableName) -> None:
    """Raise unless the name of a table to create is free.

    A table of that name is a failed `assert-create` in the words that Iceberg's clients expect; a view keeps its own
    error.
    """
    try:
        require_name_free(tx, warehouse, name, "iceberg")
    except ViewAlreadyExistsError:
        raise
    except TableAlreadyExistsError as error:
        raise TableAlreadyExistsError(f"Requirement failed: table already exists: {name}") from error


def _operation(updates: Sequence[Json]) -> str:
    """Return the operation of the last snapshot added, or "metadata", for the record of commits."""
    new_snapshots = [update["snapshot"] for update in updates if update.get("action") == "add-snapshot"]
    return str(new_snapshots[-1].get("summary", {}).get("operation", "append")) if new_snapshots else "metadata"
