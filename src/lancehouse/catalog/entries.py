"""Operations that tables and views share: list names, create and rename entries, record commits; each change once."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import islice
from time import time
from typing import TYPE_CHECKING, TypeVar

from lance_namespace.errors import InvalidInputError, PermissionDeniedError, TableAlreadyExistsError

from lancehouse.catalog.callers import Caller, IdempotencyKey, Role
from lancehouse.catalog.errors import (
    AlreadyDoneError,
    Levels,
    already_exists,
    check_name,
    format_name,
    namespace_not_found,
    table_not_found,
    view_not_found,
)
from lancehouse.catalog.location_access import require_location_free
from lancehouse.catalog.warehouses import Warehouse
from lancehouse.locations import key as location_key
from lancehouse.paging import decode_token, encode_token
from lancehouse.properties import PROTECTED
from lancehouse.secrets import redact_properties
from lancehouse.store import audit, repository
from lancehouse.store.database import Database
from lancehouse.store.dropped import release_location
from lancehouse.store.model import AuditRow, CommitRow, EntryRow, Json, Kind, NamespaceRow
from lancehouse.store.statements import Tx

if TYPE_CHECKING:  # it loads Arrow, which a server's parent process does without
    from lancehouse.catalog.fence import Fence

T = TypeVar("T")


def write_once(
    database: Database, caller: Caller, work: Callable[[Tx], T], *, body: Callable[[T], bytes] | None = None
) -> T:
    """Run `work` in a write transaction, at most once for each idempotency key; it is durable on return.

    Args:
        database: the database to write to.
        caller: the caller; their idempotency key, if any, is stored in the same transaction.
        work: the change to make.
        body: makes the response that a repeated request gets, where it cannot be rebuilt from the catalog's state.

    Raises:
        AlreadyDoneError: the key is already stored; nothing was changed.
    """
    key = caller.key
    if key is None:
        return database.write(work)

    def write_with_key(tx: Tx) -> T:
        # The key goes first: of two requests with the same key that run at once, the second waits for the first here,
        # and fails before it changes anything.
        if not repository.insert_key(tx, key.key, key.digest, 0, None, now_ms()):
            raise AlreadyDoneError
        result = work(tx)
        if body is not None:
            repository.finish_key(tx, key.key, 200, body(result))
        return result

    return database.write(write_with_key)


def now_ms() -> int:
    """Return the current time in milliseconds since the epoch, the unit of Iceberg's metadata."""
    return int(time() * 1000)


@dataclass(frozen=True, slots=True)
class IdempotentResponse:
    """How a request ended. Status 0 or no body: it succeeded, and the response is rebuilt from the catalog."""

    status: int
    body: bytes | None


def find_response(database: Database, key: IdempotencyKey) -> IdempotentResponse | None:
    """Return how the request with this key ended, or None if the key is unknown.

    Raises:
        InvalidInputError: the key was used for a different request.
    """
    row = database.read(lambda tx: repository.find_key(tx, key.key))
    if row is None:
        return None
    digest, status, body = row
    if digest != key.digest:
        raise InvalidInputError(f"Idempotency-Key {key.key} was used for another request; take a new one")
    return IdempotentResponse(status, body)


def record_response(database: Database, key: IdempotencyKey, status: int, body: bytes) -> None:
    """Store the response of a refused request, unless the key is already stored."""
    database.write(lambda tx: repository.insert_key(tx, key.key, key.digest, status, body, now_ms()))


def delete_old_keys(database: Database, older_than_s: float) -> int:
    """Delete keys older than this many seconds, and return how many."""
    return database.write(lambda tx: repository.delete_keys_before(tx, now_ms() - int(older_than_s * 1000)))


@dataclass(frozen=True, slots=True)
class TableName:
    """The name of a table or view within a warehouse: the levels of its namespace, and its own name."""

    levels: Levels
    name: str

    def __str__(self) -> str:
        return format_name(self.levels, self.name)

    @property
    def full_name(self) -> tuple[str, ...]:
        """Its levels, with its own name as the last."""
        return (*self.levels, self.name)


def list_names(
    database: Database,
    caller: Caller,
    warehouse: Warehouse,
    levels: Levels,
    kinds: tuple[Kind, ...],
    page_token: str | None,
    page_size: int | None,
) -> tuple[list[str], str | None]:
    """Return the names of the entries of the given kinds in a namespace, and the token of the next page or None.

    Who has grants only on some of them gets those.

    Raises:
        NamespaceNotFoundError: there is no such namespace.
    """
    readable_names = caller.identity.readable_tables(warehouse.name, levels)
    limit = page_size if page_token is not None else None

    def work(tx: Tx) -> list[str]:
        namespace = repository.find_namespace(tx, warehouse.id, levels)
        if namespace is None:
            raise namespace_not_found(levels)
        fetch_limit = None if limit is None else limit + 1
        after = decode_token(page_token)
        if readable_names is None:
            return repository.list_entries(tx, namespace.id, kinds, after, fetch_limit)
        later_names = (name for name in readable_names if after is None or name > after)
        entries = (repository.find_entry(tx, warehouse.id, levels, name) for name in later_names)
        return list(islice((entry.name for entry in entries if entry and entry.kind in kinds), fetch_limit))

    names = database.read(work)
    page = names[:limit]
    return page, encode_token(page[-1]) if len(page) < len(names) else None


def require_name_free(
    tx: Tx, warehouse: Warehouse, name: TableName, wanted: Kind, *, replaced: bool = False
) -> NamespaceRow:
    """Return the namespace of a new table or view, after a check that its name is not taken.

    Args:
        tx: the transaction.
        warehouse: the warehouse of the table or view.
        name: the name to check.
        wanted: the kind of the new entry.
        replaced: whether an entry of the same kind may exist, because it will be replaced.

    Raises:
        NamespaceNotFoundError: there is no such namespace.
        TableAlreadyExistsError, ViewAlreadyExistsError: the name is taken.
    """
    namespace = repository.find_namespace(tx, warehouse.id, name.levels)
    if namespace is None:
        raise namespace_not_found(name.levels)
    existing = repository.find_entry(tx, warehouse.id, name.levels, name.name)
    if existing is not None and not (replaced and existing.kind == wanted):
        raise already_exists(name.levels, name.name, by=existing.kind, wanted=wanted)
    return namespace


def require_unprotected(
    tx: Tx, warehouse: Warehouse, levels: Levels, name: str | None, properties: Mapping[str, str], change: str
) -> None:
    """Refuse to drop or overwrite a table or namespace that is protected; the nearest setting counts.

    Args:
        tx: the transaction of the change: a protection that is set meanwhile counts too.
        warehouse: of the table or namespace.
        levels: the namespace.
        name: of the table; None for the namespace itself.
        properties: of the table or namespace.
        change: what is refused, for the message.

    Raises:
        PermissionDeniedError: it is protected.
    """
    what = "Namespace" if name is None else "Table"
    holder = what, format_name(levels, name)
    above = levels if name is not None else levels[:-1]
    while PROTECTED not in properties and above:
        row = repository.find_namespace(tx, warehouse.id, above)
        properties, holder = row.properties if row else {}, ("Namespace", format_name(above))
        above = above[:-1]
    if properties.get(PROTECTED, "").lower() == "true":
        raise PermissionDeniedError(
            f"Cannot {change} {what.lower()} {format_name(levels, name)}: {holder[0].lower()} {holder[1]} has "
            f"{PROTECTED}=true; set the property to false first"
        )


def create_entry(
    tx: Tx,
    caller: Caller,
    warehouse: Warehouse,
    name: TableName,
    kind: Kind,
    uuid: str,
    location: str,
    *,
    properties: Mapping[str, str] | None = None,
    schema: Json | None = None,
    version: int | None = None,
    metadata_location: str | None = None,
) -> EntryRow:
    """Insert an entry and record who created it, unless its name or its location is taken.

    The files of a dropped table that were to stay may become those of the new entry.

    Raises:
        NamespaceNotFoundError: there is no such namespace.
        TableAlreadyExistsError, ViewAlreadyExistsError: the name is taken.
        InvalidInputError: the location lies inside another table's, or contains one.
    """
    namespace = require_name_free(tx, warehouse, name, kind)
    if kind != "view":
        release_location(tx, location_key(location, kind))
    try:
        key = require_location_free(tx, location, kind)
    except InvalidInputError:
        # The check waits for others that create a table there. If one has the name by now, that is the error that
        # clients expect.
        require_name_free(tx, warehouse, name, kind)
        raise
    entry = repository.insert_entry(
        tx,
        namespace.id,
        name=name.name,
        kind=kind,
        uuid=uuid,
        location=location,
        location_key=key,
        properties=properties or {},
        now_ms=now_ms(),
        schema=schema,
        version=version,
        metadata_location=metadata_location,
    )
    if entry is None:
        raise already_exists(name.levels, name.name, by=kind, wanted=kind)
    record_commit(tx, entry, caller, warehouse, name, "create", version)
    return entry


def record_commit(
    tx: Tx,
    entry: EntryRow,
    caller: Caller,
    warehouse: Warehouse,
    name: TableName,
    operation: str,
    snapshot_id: int | None,
    changes: tuple[Json | None, Json | None] = (None, None),
) -> None:
    """Record who made the change that led to the entry's current revision, when, and with which client.

    Args:
        tx: the transaction of the change.
        entry: the entry after it.
        caller: who made it.
        warehouse: of the entry.
        name: of the entry.
        operation: what it did, in one word.
        snapshot_id: the new current snapshot, or None.
        changes: more fields for the audit: of the state before, and of the state after.
    """
    by = (caller.identity.name, caller.client, caller.request_id)
    repository.insert_commit(tx, entry.id, CommitRow(entry.updated_ms, *by, entry.revision, snapshot_id, operation))
    before, after = changes
    change = {"uuid": entry.uuid, "revision": entry.revision, "operation": operation, "snapshot-id": snapshot_id}
    what = "view" if entry.kind == "view" else "table"
    action = f"{what}.create" if operation == "create" else f"{what}.commit"
    record_change(tx, caller, action, warehouse.name, name.levels, name.name, before, {**change, **(after or {})})


def record_change(
    tx: Tx,
    caller: Caller,
    action: str,
    warehouse: str,
    levels: Levels,
    name: str,
    before: Json | None,
    after: Json | None,
) -> None:
    """Record a change in the audit, in the transaction that makes it.

    Args:
        tx: the transaction.
        caller: who makes the change.
        action: what is done to what, such as `table.drop`.
        warehouse: its name; empty for principals and grants, which are not in a warehouse.
        levels: the namespace.
        name: of the table, view or principal; empty for a namespace.
        before: what was, as far as it matters.
        after: what is.
    """
    by = (caller.identity.name, caller.peer, caller.client, caller.request_id)
    audit.insert_change(tx, AuditRow(now_ms(), *by, action, warehouse, levels, name, before, after))


def diff_properties(before: Mapping[str, str], after: Mapping[str, str]) -> tuple[Json | None, Json | None]:
    """Return the properties that changed, before and after, without secrets, as the audit shows them."""
    changed_keys = [key for key in {**before, **after} if before.get(key) != after.get(key)]
    if not changed_keys:
        return None, None
    old, new = (
        redact_properties({key: properties[key] for key in changed_keys if key in properties})
        for properties in (before, after)
    )
    return {"properties": old}, {"properties": new}


def rename_entry(
    database: Database,
    fence: Fence,
    caller: Caller,
    warehouse: Warehouse,
    kinds: tuple[Kind, ...],
    source: TableName,
    destination: TableName,
) -> None:
    """Rename a table or view, within its namespace or into another one.

    Raises:
        TableNotFoundError, ViewNotFoundError, NamespaceNotFoundError, TableAlreadyExistsError: nothing was renamed.
    """
    caller.identity.require_drop(warehouse.name, source.levels, source.name)
    caller.identity.require_role(Role.WRITER, warehouse.name, destination.levels)
    fence.require_open(warehouse)
    check_name("table name", destination.name)

    def work(tx: Tx) -> None:
        entry = repository.find_entry(tx, warehouse.id, source.levels, source.name)
        if entry is None or entry.kind not in kinds:
            not_found = view_not_found if kinds == ("view",) else table_not_found
            raise not_found(source.levels, source.name)
        namespace = repository.find_namespace(tx, warehouse.id, destination.levels)
        if namespace is None:
            raise namespace_not_found(destination.levels)
        existing = repository.find_entry(tx, warehouse.id, destination.levels, destination.name)
        if existing is not None and existing.id != entry.id:
            what = "View" if existing.kind == "view" else "Table"
            raise TableAlreadyExistsError(f"Cannot rename {source} to {destination}. {what} already exists")
        if not repository.rename_entry(tx, entry, namespace.id, destination.name, now_ms()):
            raise TableAlreadyExistsError(f"Cannot rename {source} to {destination}. Table already exists")
        action = "view.rename" if entry.kind == "view" else "table.rename"
        before, after = ({"namespace": list(table.levels), "name": table.name} for table in (source, destination))
        record_change(tx, caller, action, warehouse.name, destination.levels, destination.name, before, after)

    write_once(database, caller, work)
