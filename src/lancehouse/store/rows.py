"""Immutable dataclasses for the rows of the catalog's database."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

Kind = Literal["lance", "iceberg", "view"]
"""The kind of an entry; tables and views share one set of names."""

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
    """Lance tables: the last known Iceberg schema, used while the dataset itself cannot be read."""
    version: int | None = None
    """Lance tables that the catalog manages: the current version."""
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
    """The record of a commit: who changed an entry, when, and with which client."""

    at_ms: int
    principal: str
    client: str
    request_id: str
    revision: int
    snapshot_id: int | None
    operation: str


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
    """A role on all warehouses (None), on one, or on one of its namespaces and all below."""

    role: str
    warehouse: str | None
    levels: tuple[str, ...]


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
