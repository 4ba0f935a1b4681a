"""Requests and responses of Polaris' generic tables."""

from __future__ import annotations

from lancehouse.wire.iceberg import StorageCredential
from lancehouse.wire.model import KebabModel


class GenericTable(KebabModel):
    """A table of any format; also the request that creates it."""

    name: str
    format: str
    base_location: str | None = None
    doc: str | None = None
    properties: dict[str, str] | None = None


class LoadedGenericTable(KebabModel):
    """Response of loading or creating a generic table."""

    table: GenericTable
    storage_access_configs: list[StorageCredential] | None = None
