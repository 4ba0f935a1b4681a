"""JSON models of generic tables, as Polaris and Lakekeeper have them."""

from __future__ import annotations

from lancehouse.wire.iceberg import StorageCredential
from lancehouse.wire.model import KebabModel, Paged


class GenericTable(KebabModel):
    """A table of any format; also the request that creates it."""

    name: str
    format: str
    base_location: str | None = None
    doc: str | None = None
    properties: dict[str, str] | None = None


class LoadedGenericTable(KebabModel):
    """Answer of load and create."""

    table: GenericTable
    storage_access_configs: list[StorageCredential] | None = None
    """Polaris: vended credentials."""
    storage_credentials: list[StorageCredential] | None = None
    """Lakekeeper: vended credentials."""
    config: dict[str, str] | None = None
    """Lakekeeper: how to reach the storage."""


class GenericTableName(KebabModel):
    """A generic table in a list; Lakekeeper tells its format."""

    name: str
    format: str | None = None


class GenericTablePage(Paged, KebabModel):
    """One page of a list of generic tables."""

    identifiers: list[GenericTableName] | None = None
