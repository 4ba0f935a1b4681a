"""The tables of the catalog's database, a change of which needs an Alembic migration, and dataclasses of their rows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    ForeignKey,
    Identity,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    Table,
    Text,
    UniqueConstraint,
    text,
)

metadata = MetaData(
    naming_convention={
        "pk": "pk_%(table_name)s",
        "fk": "fk_%(table_name)s_%(column_0_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
    }
)

NUMBER = BigInteger().with_variant(Integer(), "sqlite")
"""64-bit integer. In SQLite only the type INTEGER can be an automatic primary key."""
TEXT = Text(collation="C").with_variant(Text(), "sqlite")
"""Text that both databases order by code point."""


def _id_column() -> Column[int]:
    return Column("id", NUMBER, Identity(), primary_key=True)


def _foreign_key(table: str, *, cascade: bool = False, nullable: bool = False, **options: Any) -> Column[int]:
    """Return a foreign key column; the row that it refers to cannot be deleted, or its deletion cascades."""
    key = ForeignKey(f"{table}.id", ondelete="CASCADE" if cascade else "RESTRICT")
    return Column({"entries": "entry_id"}.get(table, f"{table[:-1]}_id"), NUMBER, key, nullable=nullable, **options)


def _define_required(kind: Any, *names: str) -> list[Column[Any]]:
    return [Column(name, kind, nullable=False) for name in names]


NEVER_AGAIN: dict[str, Any] = {"sqlite_autoincrement": True}
"""Ids are never reused: an id that is held in memory never refers to another row."""

warehouses = Table(
    "warehouses",
    metadata,
    _id_column(),
    Column("name", TEXT, nullable=False, unique=True),
    Column("location", TEXT, nullable=False),
    **NEVER_AGAIN,
)

namespaces = Table(
    "namespaces",
    metadata,
    _id_column(),
    _foreign_key("warehouses"),
    Column("parent_id", NUMBER, ForeignKey("namespaces.id", ondelete="RESTRICT"), index=True),
    *_define_required(TEXT, "name", "path", "path_key", "properties"),
    UniqueConstraint("warehouse_id", "path_key"),
    Index(None, "warehouse_id", "parent_id", "name"),
    **NEVER_AGAIN,
)

entries = Table(
    "entries",
    metadata,
    _id_column(),
    _foreign_key("namespaces", nullable=True),  # a dropped table has none
    *_define_required(TEXT, "name", "kind", "uuid", "location"),
    Column("location_key", TEXT, nullable=False, index=True),
    Column("properties", TEXT, nullable=False),
    *_define_required(NUMBER, "revision", "created_ms", "updated_ms"),
    Column("schema", TEXT),
    Column("version", NUMBER),
    Column("metadata_location", TEXT),
    Column("published", NUMBER),
    UniqueConstraint("namespace_id", "name"),
    Index(None, "namespace_id", "name", "kind"),  # covers the query that lists names
    **NEVER_AGAIN,
)

snapshots = Table(
    "snapshots",
    metadata,
    _foreign_key("entries", cascade=True, primary_key=True),
    Column("snapshot_id", NUMBER, primary_key=True, autoincrement=False),
    Column("parent_id", NUMBER),
    *_define_required(NUMBER, "sequence", "timestamp_ms"),
    *_define_required(TEXT, "manifest_list", "summary"),
)

refs = Table(
    "refs",
    metadata,
    _foreign_key("entries", cascade=True, primary_key=True),
    Column("name", TEXT, primary_key=True),
    Column("kind", TEXT, nullable=False),
    Column("snapshot_id", NUMBER, nullable=False),
)

commits = Table(
    "commits",
    metadata,
    _id_column(),
    _foreign_key("entries", cascade=True, index=True),
    Column("at_ms", NUMBER, nullable=False),
    *_define_required(TEXT, "principal", "client", "request_id"),
    Column("revision", NUMBER, nullable=False),
    Column("snapshot_id", NUMBER),
    Column("operation", TEXT, nullable=False),
)

dropped = Table(
    "dropped",
    metadata,
    _foreign_key("entries", cascade=True, primary_key=True),
    _foreign_key("warehouses"),
    *_define_required(TEXT, "path", "path_key", "name"),
    Column("dropped_ms", NUMBER, nullable=False),
    Column("expires_ms", NUMBER, nullable=False, index=True),
    Column("principal", TEXT, nullable=False),
    Column("purge", Boolean, nullable=False),
    Index(None, "warehouse_id", "path_key", "name"),
)

audit = Table(
    "audit",
    metadata,
    _id_column(),
    Column("at_ms", NUMBER, nullable=False, index=True),
    *_define_required(TEXT, "principal", "peer", "client", "request_id", "action", "warehouse", "path", "name"),
    Column("before", TEXT),
    Column("after", TEXT),
    Column("position", NUMBER, unique=True),
    Index(None, "name", "id"),
    Index(
        "ix_audit_unnumbered", "id", sqlite_where=text("position IS NULL"), postgresql_where=text("position IS NULL")
    ),
    **NEVER_AGAIN,
)

webhooks = Table(
    "webhooks",
    metadata,
    Column("name", TEXT, primary_key=True),
    Column("position", NUMBER, nullable=False),
    Column("holder", TEXT, nullable=False),
    Column("leased_until_ms", NUMBER, nullable=False),
)

keys = Table(
    "idempotency_keys",
    metadata,
    Column("key", TEXT, primary_key=True),
    Column("digest", TEXT, nullable=False),
    Column("status", NUMBER, nullable=False),
    Column("body", LargeBinary),
    Column("created_ms", NUMBER, nullable=False, index=True),
)

principals = Table(
    "principals",
    metadata,
    _id_column(),
    Column("name", TEXT, nullable=False, unique=True),
    Column("client_id", TEXT, unique=True),
    Column("secret_hash", TEXT),
    Column("created_ms", NUMBER, nullable=False),
    Column("kind", TEXT, nullable=False, server_default="principal"),  # or "group"
    **NEVER_AGAIN,
)

members = Table(
    "members",
    metadata,
    _foreign_key("principals", cascade=True, primary_key=True),
    Column("group_id", NUMBER, ForeignKey("principals.id", ondelete="CASCADE"), primary_key=True, index=True),
)

tokens = Table(
    "tokens",
    metadata,
    _foreign_key("principals", cascade=True, primary_key=True),
    Column("label", TEXT, primary_key=True),
    Column("token_hash", TEXT, nullable=False, unique=True),
    Column("created_ms", NUMBER, nullable=False),
    Column("expires_ms", NUMBER),
)

grants = Table(
    "grants",
    metadata,
    _foreign_key("principals", cascade=True, primary_key=True),
    Column("role", TEXT, primary_key=True),
    Column("warehouse", TEXT, primary_key=True),
    Column("path_key", TEXT, primary_key=True),
    Column("path", TEXT, nullable=False),
    Column("table_name", TEXT),
    Column("restriction", TEXT),
    Index(None, "warehouse", "path_key"),  # finds who has grants on a table
)

signing_keys = Table(
    "signing_keys",
    metadata,
    Column("id", NUMBER, primary_key=True, autoincrement=False),
    Column("key", TEXT, nullable=False),
)

exports = Table(
    "exports",
    metadata,
    _id_column(),
    *_define_required(TEXT, "warehouse", "table_uuid", "version"),
    Column("fragment", NUMBER, nullable=False),
    *_define_required(TEXT, "columns", "path"),
    *_define_required(NUMBER, "bytes", "rows", "planned_ms"),
    Index(None, "table_uuid", "version"),
    Index(None, "warehouse", "planned_ms"),
    **NEVER_AGAIN,
)

maintained_tables = Table(
    "maintained_tables",
    metadata,
    _id_column(),
    Column("entry_id", NUMBER, ForeignKey("entries.id", ondelete="CASCADE"), unique=True),
    *_define_required(TEXT, "backend", "path", "path_key"),
    Column("due_ms", NUMBER, index=True),
    *_define_required(TEXT, "why", "requested", "requested_by"),
    Column("lease", NUMBER, nullable=False),
    Column("worker", TEXT, nullable=False),
    Column("lease_until_ms", NUMBER),
    Column("started_ms", NUMBER),
    Column("looked_ms", NUMBER),
    Column("failures", NUMBER, nullable=False),
    *_define_required(TEXT, "error", "seen"),
    UniqueConstraint("backend", "path_key"),
    # Of leased tables only: SQLite would look for those that are due among all that are not leased.
    Index(
        "ix_maintained_tables_leased",
        "lease_until_ms",
        sqlite_where=text("lease_until_ms IS NOT NULL"),
        postgresql_where=text("lease_until_ms IS NOT NULL"),
    ),
    Index(
        "ix_maintained_tables_failing",
        "due_ms",
        "id",
        sqlite_where=text("failures > 0"),
        postgresql_where=text("failures > 0"),
    ),
    **NEVER_AGAIN,
)

maintenance_runs = Table(
    "maintenance_runs",
    metadata,
    _id_column(),
    Column(
        "table_id",
        NUMBER,
        ForeignKey("maintained_tables.id", ondelete="CASCADE"),
        nullable=False,
        index=True,
    ),
    Column("started_ms", NUMBER, nullable=False),
    Column("ended_ms", NUMBER, nullable=False, index=True),
    *_define_required(TEXT, "worker", "operation", "outcome", "why"),
    Column("version_before", NUMBER),
    Column("version_after", NUMBER),
    Column("bytes_before", NUMBER),
    Column("bytes_after", NUMBER),
    Column("bytes_removed", NUMBER, nullable=False),
    Column("message", TEXT, nullable=False),
    **NEVER_AGAIN,
)

maintenance_marks = Table(
    "maintenance_marks",
    metadata,
    Column("name", TEXT, primary_key=True),
    Column("number", NUMBER, nullable=False),
    Column("holder", TEXT, nullable=False),
)

fences = Table(
    "fences",
    metadata,
    _foreign_key("warehouses", cascade=True, primary_key=True),
    Column("catalog", TEXT, nullable=False),
    Column("epoch", NUMBER, nullable=False),
    Column("tokens", TEXT, nullable=False),
    Column("position", NUMBER, nullable=False),
    *_define_required(TEXT, "state", "reason"),
    Column("renewed_ms", NUMBER),
    Column("holder", TEXT, nullable=False),
    Column("leased_until_ms", NUMBER, nullable=False),
)


Kind = Literal["lance", "iceberg", "view"]
"""The kind of an entry; tables and views share one set of names."""

FenceState = Literal["open", "unguarded", "fenced", "adopting"]
"""Whether a warehouse takes changes.

`open`: yes. `unguarded`: yes, although its epoch file cannot be read or written, so that nobody would notice a server
on another copy of the database. `fenced`: no. `adopting`: not until an adoption that has begun is finished.
"""

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class WarehouseRow:
    """A warehouse that this database has served."""

    id: int
    name: str
    location: str


@dataclass(frozen=True, slots=True)
class NamespaceRow:
    """A namespace of any depth."""

    id: int
    warehouse_id: int
    levels: tuple[str, ...]
    properties: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class EntryRow:
    """A table or a view.

    `revision` increases with each change, and a change applies only to the revision that it was made from.
    """

    id: int
    namespace_id: int | None
    """None for a dropped table."""
    name: str
    kind: Kind
    uuid: str
    location: str
    properties: Mapping[str, str]
    revision: int
    created_ms: int
    updated_ms: int
    schema: Json | None = None
    """Lance tables: the last known Iceberg schema, used while the dataset itself cannot be read."""
    version: int | None = None
    """Lance tables that the catalog manages: the current version."""
    metadata_location: str | None = None
    """Iceberg tables and views: the current metadata file."""
    published: int | None = None
    """Lance tables that the catalog manages: a version whose manifest a client has seen at its final path."""


@dataclass(frozen=True, slots=True)
class SnapshotRow:
    """A version of a Lance table that the catalog accepted."""

    snapshot_id: int
    parent_id: int | None
    sequence: int
    timestamp_ms: int
    manifest_list: str
    summary: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class RefRow:
    """A tag or branch that a client set in the catalog; `main` is the entry's version."""

    name: str
    kind: Literal["tag", "branch"]
    snapshot_id: int


@dataclass(frozen=True, slots=True)
class CommitRow:
    """The record of a commit: who changed an entry, when, and with which client."""

    at_ms: int
    principal: str
    client: str
    request_id: str
    revision: int
    snapshot_id: int | None
    operation: str


@dataclass(frozen=True, slots=True)
class DroppedRow:
    """A dropped table, until its time is over: the name that it had, and what happens to its files then."""

    entry_id: int
    warehouse_id: int
    levels: tuple[str, ...]
    name: str
    dropped_ms: int
    expires_ms: int
    principal: str
    purge: bool
    """Whether its files are deleted when its time is over; else only the entry is."""


@dataclass(frozen=True, slots=True)
class AuditRow:
    """A change, and who made it. It stays when what was changed is gone."""

    at_ms: int
    principal: str
    peer: str
    """The address from which the request came; empty for a change made by a program on the server's machine."""
    client: str
    request_id: str
    action: str
    """What was done to what, such as `table.drop`."""
    warehouse: str
    levels: tuple[str, ...]
    name: str
    """Of the table, view or principal; empty for a namespace."""
    before: Json | None
    after: Json | None


@dataclass(frozen=True, slots=True)
class FenceRow:
    """What the database knows of the epoch file in a warehouse, and whether the warehouse takes changes."""

    warehouse_id: int
    catalog: str
    """Random id of this catalog, made with the row; copies of the database share it."""
    epoch: int
    """Greater by one with each `lancehouse db adopt`."""
    tokens: tuple[str, ...]
    """The last tokens that servers on this database wrote or were about to write, the newest last."""
    position: int
    """Id of the last change in the audit when the file was last written."""
    state: FenceState
    reason: str
    """Why changes are refused, or why the file cannot be checked."""
    renewed_ms: int | None
    """When the file was last written by a server on this database; None if it never was."""
    holder: str
    leased_until_ms: int


@dataclass(frozen=True, slots=True)
class PrincipalRow:
    """A person or program that may call the server. Secrets are stored as hashes only."""

    id: int
    name: str
    client_id: str | None
    secret_hash: str | None
    created_ms: int


@dataclass(frozen=True, slots=True)
class GrantRow:
    """A role on all warehouses (None), on one, on one of its namespaces and all below, or on one table."""

    role: str
    warehouse: str | None
    levels: tuple[str, ...]
    table: str | None = None
    restriction: str | None = None
    """Row filter and column masks as JSON."""


@dataclass(frozen=True, slots=True)
class ExportRow:
    """A Parquet copy of rows of one fragment of a Lance table."""

    id: int
    warehouse: str
    table_uuid: str
    version: str
    """Digest of the fragment, and the first row of it that the copy holds."""
    fragment: int
    columns: str
    """Ids of the columns, separated by commas."""
    path: str
    bytes: int
    rows: int
    planned_ms: int
    """When a plan last named it."""


@dataclass(frozen=True, slots=True)
class ChangedTable:
    """A Lance table of this catalog, as planning of its maintenance needs it."""

    entry_id: int
    warehouse_id: int
    levels: tuple[str, ...]
    name: str
    properties: Mapping[str, str]
    version: int | None
    """None if storage manages its versions, so that commits are not seen."""
    changed_ms: int
    summary: Mapping[str, str]
    """Of the snapshot of the current version."""
    due_ms: int | None
    looked_ms: int | None
    seen: Json
    """What was found when the table was last examined; see `catalog.maintenance.Seen`."""


@dataclass(frozen=True, slots=True)
class MaintainedTable:
    """A table under maintenance: what is due, who works on it, and what was seen of it."""

    id: int
    backend: str
    """The warehouse, or the backend of the gateway."""
    levels: tuple[str, ...]
    """Namespace and name; without the warehouse."""
    entry_id: int | None
    """Its entry in this catalog; None for a table of another one."""
    due_ms: int | None
    why: str
    requested: str
    requested_by: str
    lease: int
    """Number of the lease: it increases when a worker takes the table."""
    worker: str
    lease_until_ms: int | None
    started_ms: int | None
    looked_ms: int | None
    failures: int
    error: str
    seen: Json

    def state(self, now_ms: int) -> str:
        """Return its state in one word."""
        if self.lease_until_ms is not None:
            return "running" if self.lease_until_ms >= now_ms else "abandoned"
        if self.failures:
            return "failing"
        return "due" if self.due_ms is not None and self.due_ms <= now_ms else "planned"


@dataclass(frozen=True, slots=True)
class MaintenanceRun:
    """One thing that was done to a table, or tried."""

    started_ms: int
    ended_ms: int
    worker: str
    operation: str
    outcome: str
    why: str
    version_before: int | None = None
    version_after: int | None = None
    bytes_before: int | None = None
    """Size of the data that the version refers to."""
    bytes_after: int | None = None
    bytes_removed: int = 0
    """Size of the files that were deleted."""
    message: str = ""
