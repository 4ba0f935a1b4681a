"""Requests and responses of Iceberg REST, as far as clients of Lance tables need them, and of generic tables."""

from __future__ import annotations

from typing import Any

from pydantic import Field, ValidationInfo, field_validator

from lancehouse.wire.model import KebabModel, Paged


class CatalogConfig(KebabModel):
    """Response of `GET /v1/config`."""

    defaults: dict[str, Any] | None = None
    overrides: dict[str, Any] | None = None
    endpoints: list[str] | None = None


class Namespace(KebabModel):
    """A namespace with its properties; also the request that creates it."""

    namespace: list[str]
    properties: dict[str, str] | None = None


class NamespaceChange(KebabModel):
    """Request that sets and removes properties of a namespace."""

    updates: dict[str, str] = Field(default_factory=dict)
    removals: list[str] = Field(default_factory=list)


class NamespacePage(Paged, KebabModel):
    """One page of namespaces."""

    namespaces: list[list[str]] | None = None


class TableIdentifier(KebabModel):
    """A table's name and its namespace."""

    namespace: list[str]
    name: str


class TablePage(Paged, KebabModel):
    """One page of tables, both Iceberg's and Polaris' generic ones."""

    identifiers: list[TableIdentifier] | None = None


class TableMetadata(KebabModel):
    """The parts of Iceberg's table metadata that we read."""

    location: str | None = None
    properties: dict[str, str] | None = None


class StorageCredential(KebabModel):
    """Vended credentials for everything below a prefix."""

    prefix: str
    config: dict[str, str] = Field(repr=False)


class LoadedTable(KebabModel):
    """Response of LoadTable and CreateTable."""

    metadata: TableMetadata
    metadata_location: str | None = None
    config: dict[str, str] | None = Field(default=None, repr=False)
    storage_credentials: list[StorageCredential] | None = None


class Snapshot(KebabModel):
    """A snapshot of a table."""

    snapshot_id: int
    sequence_number: int = 0
    timestamp_ms: int
    manifest_list: str = ""
    summary: dict[str, str] = Field(default_factory=dict)


class SnapshotRef(KebabModel):
    """The snapshot that a branch or tag points to."""

    snapshot_id: int
    type: str


class VersionedMetadata(TableMetadata):
    """Table metadata with snapshots, refs and schemas."""

    table_uuid: str
    last_updated_ms: int = 0
    last_sequence_number: int = 0
    current_schema_id: int = 0
    schemas: list[dict[str, Any]] = Field(default_factory=list)
    refs: dict[str, SnapshotRef] = Field(default_factory=dict)
    snapshots: list[Snapshot] = Field(default_factory=list)


class VersionedTable(LoadedTable):
    """Response of LoadTable, with snapshots."""

    metadata: VersionedMetadata


class LatestMetadata(VersionedMetadata):
    """Table metadata with only those snapshots that branches and tags point to.

    A server may send all of them, possibly thousands, although only these were requested; the others are dropped before
    they are parsed.
    """

    @field_validator("snapshots", mode="before")
    @classmethod
    def _keep_referenced(cls, snapshots: Any, info: ValidationInfo) -> Any:
        if not isinstance(snapshots, list):
            return snapshots
        referenced_ids = {ref.snapshot_id for ref in info.data.get("refs", {}).values()}
        return [
            snapshot
            for snapshot in snapshots
            if not isinstance(snapshot, dict) or snapshot.get("snapshot-id") in referenced_ids
        ]


class LatestTable(VersionedTable):
    """Response of LoadTable, with only those snapshots that refs point to."""

    metadata: LatestMetadata


class CommitTable(KebabModel):
    """Request of UpdateTable; with an identifier, one of the changes of CommitTransaction."""

    identifier: TableIdentifier | None = None
    requirements: list[dict[str, Any]]
    updates: list[dict[str, Any]]


class CommitTransaction(KebabModel):
    """Request of CommitTransaction."""

    table_changes: list[CommitTable]


class CreateTable(KebabModel):
    """Request of CreateTable."""

    name: str
    location: str | None
    """None lets the server choose."""
    table_schema: dict[str, Any] = Field(alias="schema")
    properties: dict[str, str]
    stage_create: bool = False
    """Sent although the specification has a default, because Nessie fails without it."""


class DroppedTable(KebabModel):
    """A dropped table that our server keeps for a while."""

    namespace: list[str]
    name: str
    dropped_at: str
    expires_at: str
    principal: str
    """Who dropped it."""
    purge: bool
    """Whether its data is deleted when its time is over; else only the entry is."""


class DroppedTableList(KebabModel):
    """The dropped tables of a warehouse."""

    tables: list[DroppedTable]


class RestoreTable(KebabModel):
    """Request that restores or purges a dropped table."""

    namespace: list[str]
    name: str
    new_namespace: list[str] | None = None
    new_name: str | None = None


class RenameTable(KebabModel):
    """Request that renames a table."""

    source: TableIdentifier
    destination: TableIdentifier


class Token(KebabModel):
    """Response of an OAuth2 token endpoint."""

    # The pattern is that of a header field, which the token becomes part of.
    access_token: str = Field(alias="access_token", repr=False, pattern=r"^[\x21-\x7e]+$")
    expires_in: float | None = Field(default=None, alias="expires_in")


class GenericTable(KebabModel):
    """A table of any format; also the request that creates it."""

    name: str
    format: str
    base_location: str | None = None
    doc: str | None = None
    properties: dict[str, str] | None = None


class LoadedGenericTable(KebabModel):
    """Response to load and create."""

    table: GenericTable
    storage_access_configs: list[StorageCredential] | None = None
    """Polaris: vended credentials."""
    storage_credentials: list[StorageCredential] | None = None
    """Lakekeeper: vended credentials."""
    config: dict[str, str] | None = None
    """Lakekeeper: how to reach the storage."""


class GenericTableName(KebabModel):
    """A generic table in a list; only Lakekeeper returns its format."""

    name: str
    format: str | None = None


class GenericTablePage(Paged, KebabModel):
    """One page of a list of generic tables."""

    identifiers: list[GenericTableName] | None = None
