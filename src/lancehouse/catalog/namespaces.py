"""Create, list, load, change and drop namespaces, which may be nested."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import orjson
from lance_namespace.errors import NamespaceAlreadyExistsError, NamespaceNotEmptyError

from lancehouse.catalog.callers import Caller, Role
from lancehouse.catalog.entries import diff_properties, record_change, require_unprotected, write_once
from lancehouse.catalog.errors import Levels, UnprocessableError, check_levels, format_name, namespace_not_found
from lancehouse.catalog.fence import Fence
from lancehouse.catalog.maintenance import request_sweep
from lancehouse.catalog.warehouses import Warehouse
from lancehouse.maintenance_policy import check_properties, policy_properties
from lancehouse.paging import decode_token, encode_token
from lancehouse.secrets import redact_properties
from lancehouse.store import repository
from lancehouse.store.database import Database
from lancehouse.store.model import NamespaceRow
from lancehouse.store.statements import Tx

PropertyChanges = dict[str, list[str]]
"""Keys of the properties that were updated, removed, or missing, under those three names."""


class Namespaces:
    """Operations on namespaces. A namespace is visible to callers who may read anything in it or below it."""

    def __init__(self, database: Database, fence: Fence) -> None:
        self._database = database
        self._fence = fence

    def list(
        self, caller: Caller, warehouse: Warehouse, parent: Levels, page_token: str | None, page_size: int | None
    ) -> tuple[list[Levels], str | None]:
        """Return the children of a namespace, or of the warehouse, and the token of the next page or None.

        Raises:
            NamespaceNotFoundError: the parent does not exist.
        """
        limit = page_size if page_token is not None else None
        sees_all = caller.identity.has_role(Role.READER, warehouse.name, parent)

        def work(tx: Tx) -> list[str]:
            if parent:
                _get_namespace(tx, caller, warehouse, parent)
            fetch_limit = None if limit is None or not sees_all else limit + 1
            return repository.list_namespaces(tx, warehouse.id, parent, decode_token(page_token), fetch_limit)

        children = [(*parent, name) for name in self._database.read(work)]
        # Filter before the page is cut: the token is the name of its last child, which the caller must be able to see.
        if not sees_all:
            children = [child for child in children if caller.identity.can_see(warehouse.name, child)]
        page = children[:limit]
        return page, encode_token(page[-1][-1]) if 0 < len(page) < len(children) else None

    def load(self, caller: Caller, warehouse: Warehouse, levels: Levels) -> NamespaceRow:
        """Return a namespace with its properties.

        Raises:
            NamespaceNotFoundError: there is no such namespace.
            PermissionDeniedError: the caller may read nothing in it or below it.
        """
        return self._database.read(lambda tx: _get_namespace(tx, caller, warehouse, levels))

    def create(
        self, caller: Caller, warehouse: Warehouse, levels: Sequence[str], properties: Mapping[str, str]
    ) -> NamespaceRow:
        """Create a namespace, and its parents where they are missing.

        Raises:
            NamespaceAlreadyExistsError: it exists already.
            PermissionDeniedError: the caller may not create it, or not a missing parent; nothing was created.
        """
        new_levels = check_levels(levels)
        check_properties(properties)
        caller.identity.require_alter_namespace(warehouse.name, new_levels)
        self._fence.require_open(warehouse)

        def work(tx: Tx) -> NamespaceRow:
            for depth in range(1, len(new_levels)):
                if repository.find_namespace(tx, warehouse.id, new_levels[:depth]) is None:
                    caller.identity.require_alter_namespace(warehouse.name, new_levels[:depth])
                    _insert_namespace(tx, caller, warehouse, new_levels[:depth], {})
            row = _insert_namespace(tx, caller, warehouse, new_levels, properties)
            if row is None:
                raise NamespaceAlreadyExistsError(f"Namespace already exists: {format_name(new_levels)}")
            return row

        return write_once(self._database, caller, work)

    def drop(self, caller: Caller, warehouse: Warehouse, levels: Levels) -> None:
        """Drop an empty namespace.

        Raises:
            NamespaceNotFoundError, NamespaceNotEmptyError: nothing was removed.
            PermissionDeniedError: it is protected.
        """
        caller.identity.require_alter_namespace(warehouse.name, levels)
        self._fence.require_open(warehouse)

        def work(tx: Tx) -> None:
            row = _get_namespace(tx, caller, warehouse, levels)
            require_unprotected(tx, warehouse, levels, None, row.properties, "drop")
            if not repository.delete_namespace(tx, row.id):
                raise NamespaceNotEmptyError(f"Namespace {format_name(levels)} is not empty.")
            before = {"properties": redact_properties(row.properties)}
            record_change(tx, caller, "namespace.drop", warehouse.name, levels, "", before, None)

        write_once(self._database, caller, work)

    def update_properties(
        self, caller: Caller, warehouse: Warehouse, levels: Levels, updates: Mapping[str, str], removals: Sequence[str]
    ) -> PropertyChanges:
        """Set and remove properties, and return which keys were updated, removed, or missing.

        Raises:
            UnprocessableError: the same key is to be both set and removed.
        """
        caller.identity.require_alter_namespace(warehouse.name, levels)
        self._fence.require_open(warehouse)
        check_properties(updates)
        if conflicts := sorted(set(updates) & set(removals)):
            raise UnprocessableError(
                f"Invalid namespace update: cannot simultaneously set and remove keys: {conflicts}"
            )

        def work(tx: Tx) -> PropertyChanges:
            row = _get_namespace(tx, caller, warehouse, levels, lock=True)
            remaining = {key: value for key, value in row.properties.items() if key not in removals}
            repository.update_namespace(tx, row.id, {**remaining, **updates})
            before, after = diff_properties(row.properties, {**remaining, **updates})
            record_change(tx, caller, "namespace.properties", warehouse.name, levels, "", before, after)
            # Planning looks at tables with new commits only, so a new policy for old ones takes a sweep.
            if policy_properties(row.properties) != policy_properties({**remaining, **updates}):
                request_sweep(tx)
            removed = [key for key in dict.fromkeys(removals) if key in row.properties]
            missing = [key for key in dict.fromkeys(removals) if key not in row.properties]
            return {"updated": list(updates), "removed": removed, "missing": missing}

        return write_once(self._database, caller, work, body=orjson.dumps)


def _insert_namespace(
    tx: Tx, caller: Caller, warehouse: Warehouse, levels: Levels, properties: Mapping[str, str]
) -> NamespaceRow | None:
    """Insert a namespace and record who created it; None if it exists already."""
    row = repository.insert_namespace(tx, warehouse.id, levels, properties)
    if row is not None:
        after = {"properties": redact_properties(properties)}
        record_change(tx, caller, "namespace.create", warehouse.name, levels, "", None, after)
    return row


def _get_namespace(tx: Tx, caller: Caller, warehouse: Warehouse, levels: Levels, *, lock: bool = False) -> NamespaceRow:
    caller.identity.require_sight(warehouse.name, levels)
    row = repository.find_namespace(tx, warehouse.id, levels, lock=lock)
    if row is None:
        raise namespace_not_found(levels)
    return row
