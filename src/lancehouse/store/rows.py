"""What the repository hands out: rows as values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

Kind = Literal["lance", "iceberg", "view"]
"""What a name in a namespace stands for; tables and views share their names."""

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
    """A table or a view. `revision` counts its changes, each of which names the one it was made from."""

    id: int
    namespace_id: int
    name: str
    kind: Kind
    uuid: str
    location: str
    properties: Mapping[str, str]
    revision: int
    created_ms: int
    updated_ms: int
    schema: Json | None = None
    """Lance: the last Iceberg schema known, for as long as the dataset cannot say."""
    version: int | None = None
    """Lance, managed by the catalog: the current version."""
    metadata_location: str | None = None
    """Iceberg tables and views: the current metadata file."""


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
    """Who changed a table, when and with what."""

    at_ms: int
    principal: str
    client: str
    request_id: str
    revision: int
    snapshot_id: int | None
    operation: str


@dataclass(frozen=True, slots=True)
class PrincipalRow:
    """Somebody, or some program, that may call. Secrets are kept as hashes only."""

    id: int
    name: str
    client_id: str | None
    secret_hash: str | None
    created_ms: int


@dataclass(frozen=True, slots=True)
class GrantRow:
    """A role on all warehouses (None), on one, or on a namespace of it and all below."""

    role: str
    warehouse: str | None
    levels: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ExportRow:
    """A Parquet file made of one fragment of one version of a Lance table."""

    id: int
    warehouse: str
    table_uuid: str
    version: str
    fragment: int
    columns: str
    path: str
    bytes: int
    rows: int
    planned_ms: int
    """When it was last named in a plan."""
