"""Requests and responses of Unity Catalog: schemas, tables and temporary credentials."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from lancehouse.wire.model import Model, Paged


class CreateSchema(Model):
    """Request that creates a schema."""

    name: str
    catalog_name: str
    properties: dict[str, str] | None = None


class UnitySchema(Model):
    """A schema of a catalog."""

    name: str
    properties: dict[str, str] | None = None


class SchemaPage(Paged, Model):
    """One page of schemas."""

    schemas: list[UnitySchema] | None = None


class UnityCreateTable(Model):
    """Request that creates a table."""

    name: str
    catalog_name: str
    schema_name: str
    table_type: str
    data_source_format: str
    columns: list[dict[str, Any]]
    storage_location: str
    properties: dict[str, str]


class ListedTable(Model):
    """A table as a listing returns it; its columns are ignored."""

    name: str
    table_type: str | None = None
    storage_location: str | None = None
    properties: dict[str, str] | None = None


class UnityTable(ListedTable):
    """A table of a schema. Columns stay JSON, because servers add keys to them."""

    columns: list[dict[str, Any]] | None = None
    table_id: str | None = None


class UnityTablePage(Paged, Model):
    """One page of tables."""

    tables: list[ListedTable] | None = None


class CredentialsRequest(Model):
    """Request for temporary credentials for a table's storage."""

    table_id: str
    operation: str


class AwsCredentials(Model):
    """Temporary credentials for S3."""

    access_key_id: str = Field(repr=False)
    secret_access_key: str = Field(repr=False)
    session_token: str = Field(repr=False)


class AzureDelegation(Model):
    """Temporary credentials for Azure storage."""

    sas_token: str = Field(repr=False)


class GcpToken(Model):
    """Temporary credentials for Google Cloud Storage."""

    oauth_token: str = Field(repr=False)


class TemporaryCredentials(Model):
    """Response of `temporary-table-credentials`."""

    aws_temp_credentials: AwsCredentials | None = None
    azure_user_delegation_sas: AzureDelegation | None = None
    gcp_oauth_token: GcpToken | None = None
    expiration_time: int | None = None
