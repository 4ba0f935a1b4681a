"""Read the audit: changes with who made them, for admins, and as events for those who follow the changes of tables."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from time import monotonic, sleep

from lance_namespace.errors import PermissionDeniedError

from lancehouse.catalog.callers import Caller, Role
from lancehouse.catalog.warehouses import Warehouse
from lancehouse.store import audit
from lancehouse.store.database import Database
from lancehouse.store.model import AuditRow, Json

LOOK_EVERY_S = 0.25
"""How often new events are looked for while a caller waits for them."""
MOST_LOOKED_AT = 10_000
"""Most changes that are read to fill one page with those that the caller may see."""
TYPE = "io.lancehouse."


@dataclass(frozen=True, slots=True)
class AuditFilter:
    """Which changes are listed; None is no condition."""

    warehouse: str | None = None
    levels: tuple[str, ...] | None = None
    """The namespace, and what lies below it."""
    name: str | None = None
    principal: str | None = None
    action: str | None = None
    """An action, or what it begins with: `table` or `table.drop`."""
    since_ms: int = 0
    until_ms: int | None = None

    def selects(self, row: AuditRow) -> bool:
        """Return whether a change is listed; the database has selected by name and time."""
        return (
            self.warehouse in (None, row.warehouse)
            and (self.levels is None or row.levels[: len(self.levels)] == self.levels)
            and self.principal in (None, row.principal)
            and (self.action is None or f"{row.action}.".startswith(f"{self.action.rstrip('.')}."))
        )


class Audit:
    """The changes of a catalog. A record is never changed; whole months are deleted when they are no longer needed."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def list(
        self, caller: Caller, filter: AuditFilter, before: int | None, limit: int
    ) -> tuple[Sequence[AuditRow], int | None]:
        """Return changes, newest first, and the id from which the next page goes on, or None.

        Admins of a warehouse see the changes in it, admins of all warehouses those of principals and grants too.

        Raises:
            PermissionDeniedError: the caller is no admin of the warehouse asked for, or of any.
        """
        identity = caller.identity
        if filter.warehouse is not None:
            identity.require_role(Role.ADMIN, filter.warehouse, filter.levels or ())
        elif not any(grant.role >= Role.ADMIN for grant in identity.grants):
            raise PermissionDeniedError(f"{identity.name} is no admin of any warehouse, and may not read the audit")
        changes: list[AuditRow] = []
        row_count = 0
        while len(changes) < limit and row_count < MOST_LOOKED_AT:
            page = self._database.read(
                lambda tx: audit.list_changes(
                    tx,
                    below=before,  # noqa: B023
                    since_ms=filter.since_ms,
                    until_ms=filter.until_ms,
                    name=filter.name,
                    limit=limit,
                )
            )
            for number, row in page:
                before, row_count = number, row_count + 1
                is_visible = (
                    identity.has_role(Role.ADMIN, row.warehouse, row.levels, row.name or None)
                    if row.warehouse
                    else identity.is_admin_everywhere
                )
                if is_visible and filter.selects(row):
                    changes.append(row)
                if len(changes) == limit:
                    return changes, before
            if len(page) < limit:
                return changes, None
        return changes, before

    def list_events(
        self, caller: Caller, warehouse: Warehouse, after: int, limit: int, wait_s: float = 0.0
    ) -> tuple[Sequence[Json], int]:
        """Return changes of a warehouse as CloudEvents, those after a position, and the position from which to go on.

        Every change that the caller may read comes at least once; those of one table in the order in which they were
        made.

        Args:
            caller: who asks.
            warehouse: of the changes.
            after: the position where the last call ended.
            limit: most events to return.
            wait_s: how long to wait for events if there are none.
        """
        caller.identity.require_sight(warehouse.name)
        until = monotonic() + wait_s
        while True:
            if self._database.read(audit.has_unnumbered):
                self._database.write(audit.number_changes)
            rows = self._database.read(lambda tx: audit.list_numbered(tx, after, limit))  # noqa: B023
            events = [
                to_event(position, row)
                for position, row in rows
                if row.warehouse == warehouse.name
                and caller.identity.has_role(Role.READER, warehouse.name, row.levels, row.name or None)
            ]
            if rows:
                after = rows[-1][0]
            if events or len(rows) == limit or monotonic() >= until:
                return events, after
            sleep(min(LOOK_EVERY_S, max(0.0, until - monotonic())))

    def last_position(self) -> int:
        """Return the position of the newest change."""
        while self._database.read(audit.has_unnumbered):
            self._database.write(audit.number_changes)
        return self._database.read(audit.find_last_position)


def to_event(position: int, row: AuditRow) -> Json:
    """Return a change as a CloudEvent in JSON. From where a request came is not for all who may read a table."""
    return {
        "specversion": "1.0",
        "id": str(position),
        "source": f"/warehouses/{row.warehouse}",
        "type": TYPE + row.action,
        "subject": ".".join([*row.levels, *filter(None, [row.name])]),
        "time": format_time(row.at_ms),
        "datacontenttype": "application/json",
        "data": {
            "warehouse": row.warehouse,
            "namespace": list(row.levels),
            "name": row.name or None,
            "principal": row.principal,
            "request-id": row.request_id,
            "before": row.before,
            "after": row.after,
        },
    }


def to_json(row: AuditRow) -> Json:
    """Return a change as JSON, for admins."""
    return {
        "time": format_time(row.at_ms),
        "principal": row.principal,
        "peer": row.peer,
        "client": row.client,
        "request-id": row.request_id,
        "action": row.action,
        "warehouse": row.warehouse or None,
        "namespace": list(row.levels),
        "name": row.name or None,
        "before": row.before,
        "after": row.after,
    }


def format_time(at_ms: int) -> str:
    """Return a time as RFC 3339 has it."""
    return datetime.fromtimestamp(at_ms / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
