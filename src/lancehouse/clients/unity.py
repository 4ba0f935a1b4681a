"""Client for Unity Catalog: Lance tables as external tables with the property `table_type=lance`."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import quote, urlencode

import pyarrow as pa
from lance_namespace import (
    CreateNamespaceRequest,
    CreateNamespaceResponse,
    DescribeTableResponse,
    ListNamespacesRequest,
    ListNamespacesResponse,
)
from lance_namespace.errors import (
    InvalidInputError,
    LanceNamespaceError,
    NamespaceAlreadyExistsError,
    NamespaceNotEmptyError,
    NamespaceNotFoundError,
    PermissionDeniedError,
    TableAlreadyExistsError,
    TableNotFoundError,
)
from pydantic import BaseModel, ConfigDict, Field

from lancehouse import locations
from lancehouse.clients.catalog_namespace import (
    CatalogNamespace,
    Entry,
    StorageAccess,
    map_concurrently,
    none_if_missing,
)
from lancehouse.clients.rest import Rest, parse_reply
from lancehouse.credentials import ACCESS, EXPIRES, READ, SECRETS, canonical_options
from lancehouse.errors import ErrorMap, is_route_missing
from lancehouse.identifiers import NamespaceId, TableId
from lancehouse.lake import dataset
from lancehouse.paging import paginate
from lancehouse.properties import is_lance, require_lance
from lancehouse.schema.jsonarrow import to_jsonarrow
from lancehouse.schema.unity import from_unity, to_unity
from lancehouse.settings import AUTO, ClientSettings
from lancehouse.wire.model import Paged

logger = logging.getLogger(__name__)

PAGING: Mapping[str, Any] = {"token_name": "page_token", "first": None}
"""How Unity pages: by a parameter of another name, which the first request lacks."""
EXTERNAL = "EXTERNAL"
TEXT = "TEXT"
"""Data source format of Lance tables; Unity refuses `LANCE`."""
MAX_LENGTH = 255
"""Longest name, property key or property value, in characters: the width of a column in Unity's database."""


class UnityNamespace(CatalogNamespace):
    """The Lance namespace of one catalog of a Unity server. Ids are catalog, schema, table."""

    client: ClassVar[str] = "unity"
    ping_path: ClassVar[str] = "/catalogs"
    lists_whole_ids: ClassVar[bool] = False
    delimiter: ClassVar[str] = "$"
    cascades: ClassVar[bool] = True
    lists_catalogs: ClassVar[bool] = True
    vends_freely: ClassVar[bool] = False

    _tables: UnityTables

    def __init__(self, **properties: str) -> None:
        super().__init__(**properties)
        base = self._settings.endpoint.removesuffix(self._settings.api_path) + self._settings.api_path
        self._rest = Rest(self._settings, base=base, token_uri="")
        self._access = StorageAccess(self._settings)
        self._namespaces = UnitySchemas(self._rest)
        self._tables = UnityTables(self._rest, self._settings, self._access)

    # Identifiers: the levels of an id may also be joined by `$`. No name contains a period: it joins them in a path.

    def _parse_namespace_id(self, parts: Sequence[str] | None, *, least: int = 2) -> NamespaceId:
        levels = _split_levels(parts)
        if len(levels) != least:
            form = "[catalog]" if least == 1 else "[catalog, schema]"
            raise InvalidInputError(
                f"unity has catalogs and schemas, no deeper levels: expected {form}, got {levels!r}"
            )
        namespace = NamespaceId.parse(levels, least=least)
        if namespace.catalog != self._settings.catalog:
            raise NamespaceNotFoundError(f"{namespace}: {self._wrong_catalog_message()}")
        return namespace

    def _parse_table_id(self, parts: Sequence[str] | None) -> TableId:
        levels = _split_levels(parts)
        if len(levels) != 3:
            raise InvalidInputError(f"a table id is [catalog, schema, table], got {levels!r}")
        table = TableId.parse(levels)
        if table.namespace.catalog != self._settings.catalog:
            raise InvalidInputError(f"{table}: {self._wrong_catalog_message()}")
        return table

    def _wrong_catalog_message(self) -> str:
        return f"this connection is to the catalog {self._settings.catalog!r} alone"

    def _format_namespace(self, namespace: NamespaceId) -> str:
        return namespace.levels[-1]

    # Namespaces

    def list_namespaces(self, request: ListNamespacesRequest) -> ListNamespacesResponse:
        """List the schemas of the catalog; at the root, the catalog itself."""
        if _split_levels(request.id):
            return super().list_namespaces(request)
        listing = paginate({self._settings.catalog: None}, request.limit, request.page_token)
        return ListNamespacesResponse(namespaces=list(listing.items), page_token=listing.token)

    def create_namespace(self, request: CreateNamespaceRequest) -> CreateNamespaceResponse:
        """Create a schema; another catalog than this connection's is an invalid request, not a missing parent."""
        levels = _split_levels(request.id)
        if levels and levels[0] != self._settings.catalog:
            raise InvalidInputError(f"namespace {self.delimiter.join(levels)}: {self._wrong_catalog_message()}")
        return super().create_namespace(request)

    def _list_subtree(self, parts: Sequence[str] | None) -> list[NamespaceId]:
        levels = _split_levels(parts) or [self._settings.catalog]
        if len(levels) == 2:
            return [self._parse_namespace_id(levels)]
        return self._namespaces.list_children(self._parse_namespace_id(levels, least=1))

    def _walk_namespaces(self, parts: Sequence[str] | None, start: list[str]) -> Iterator[NamespaceId]:
        """Yield the schemas from `start` on, in order; one request returns them all."""
        ordered = sorted(self._list_subtree(parts), key=lambda schema: schema.parts)
        return (schema for schema in ordered if schema.parts >= start)

    # Tables

    def _declare(
        self, table: TableId, location: str | None, properties: Mapping[str, str] | None, *, vend: bool
    ) -> Entry:
        _check_lengths(table, table.name, properties or {})
        return super()._declare(table, location, properties, vend=vend)

    def _add_schema(self, response: DescribeTableResponse, entry: Entry) -> None:
        """Set the response's schema from the entry's columns, else from the dataset; None if there is neither.

        Unity cannot change the columns of an entry, so those of a table that was altered later may be out of date.
        """
        schema = (
            from_unity(entry.columns) if entry.columns else self._tables.find_schema(entry.location, entry.properties)
        )
        response.var_schema = to_jsonarrow(schema) if schema is not None else None


class UnitySchemas:
    """Schemas of Unity as namespaces."""

    def __init__(self, rest: Rest) -> None:
        self._rest = rest

    def list_children(self, parent: NamespaceId) -> list[NamespaceId]:
        """List the schemas of a catalog."""
        query = urlencode({"catalog_name": parent.catalog})
        on: ErrorMap = {404: NamespaceNotFoundError}
        pages = self._rest.list_pages("/schemas", SchemaPage, about=parent, query=query, on=on, **PAGING)
        return [parent.child(schema.name) for part in pages for schema in part.schemas or ()]

    def create(self, namespace: NamespaceId, properties: Mapping[str, str]) -> Mapping[str, str]:
        """Create a schema and return its properties."""
        _check_lengths(namespace, namespace.levels[-1], properties)
        body = CreateSchema(
            name=namespace.levels[-1], catalog_name=namespace.catalog, properties=dict(properties) or None
        )

        def lookup() -> UnitySchema | None:
            existing = none_if_missing(lambda: self.load(namespace))
            is_ours = existing is not None and properties.items() <= existing.items()
            return UnitySchema(name=namespace.levels[-1], properties=dict(existing or {})) if is_ours else None

        created = self._rest.create(
            "/schemas",
            body,
            UnitySchema,
            about=namespace,
            lookup=lookup,
            on={404: NamespaceNotFoundError, 409: NamespaceAlreadyExistsError},
        )
        return created.properties or {}

    def load(self, namespace: NamespaceId) -> Mapping[str, str]:
        """Load the properties of a schema."""
        schema = self._rest.get(
            f"/schemas/{_full_name(namespace.parts)}", UnitySchema, about=namespace, on={404: NamespaceNotFoundError}
        )
        return schema.properties or {}

    def delete(self, namespace: NamespaceId, *, cascade: bool) -> None:
        """Drop a schema."""
        self._rest.delete(
            f"/schemas/{_full_name(namespace.parts)}",
            query="force=true" if cascade else "",
            about=namespace,
            on={
                404: NamespaceNotFoundError,
                409: NamespaceNotEmptyError,
                "FAILED_PRECONDITION": NamespaceNotEmptyError,
            },
        )


class UnityTables:
    """External tables of Unity as entries of Lance tables."""

    def __init__(self, rest: Rest, settings: ClientSettings, access: StorageAccess) -> None:
        self._rest = rest
        self._settings = settings
        self._access = access

    def list_candidates(self, namespace: NamespaceId) -> Mapping[str, Entry | None]:
        """List the Lance tables of a schema with their entries."""
        tables = filter(is_external_lance, self.list_all(namespace))
        return {table.name: Entry(table.storage_location or "", table.properties or {}) for table in tables}

    def list_all(self, namespace: NamespaceId) -> list[ListedTable]:
        """List the tables of a schema, of any kind."""
        query = urlencode(
            {"catalog_name": namespace.catalog, "schema_name": namespace.levels[-1], "omit_columns": "true"}
        )
        on: ErrorMap = {404: NamespaceNotFoundError}
        # Unity sends at most 100 tables in a page, whatever is asked for.
        pages = self._rest.list_pages("/tables", UnityTablePage, about=namespace, query=query, on=on, **PAGING)
        return [table for page in pages for table in page.tables or ()]

    def find_entries(self, tables: Sequence[TableId], *, vend: bool) -> list[Entry | None]:
        """Load the entries of listed tables in order, see `CatalogTables`."""
        return map_concurrently(lambda table: self._find_lance_entry(table, vend=vend), tables)

    def _find_lance_entry(self, table: TableId, *, vend: bool) -> Entry | None:
        unity_table = none_if_missing(lambda: self.get(table))
        if unity_table is None or not is_external_lance(unity_table):
            return None
        return self.to_entry(unity_table, table, vend=vend)

    def load(self, table: TableId, *, vend: bool) -> Entry:
        """Load the entry of a table; raise InvalidInputError if it is not a Lance table."""
        unity_table = self.get(table)
        require_lance(table, unity_table.properties)
        if unity_table.table_type != EXTERNAL:
            raise InvalidInputError(f"{table} is not a Lance table: it is {unity_table.table_type}, not {EXTERNAL}")
        return self.to_entry(unity_table, table, vend=vend)

    def get(self, table: TableId) -> UnityTable:
        """Load a table of any kind."""
        return self._rest.get(
            f"/tables/{_full_name(table.parts)}", UnityTable, about=table, on={404: TableNotFoundError}
        )

    def create(self, table: TableId, location: str, properties: Mapping[str, str], *, vend: bool) -> Entry:
        """Create the entry of a table and return it as the server stored it."""
        schema = self.find_schema(location, properties)
        body = UnityCreateTable(
            name=table.name,
            catalog_name=table.namespace.catalog,
            schema_name=table.namespace.levels[-1],
            table_type=EXTERNAL,
            data_source_format=TEXT,
            columns=to_unity(schema) if schema is not None else [],
            storage_location=location,
            properties=dict(properties),
        )

        def lookup() -> UnityTable | None:
            existing = none_if_missing(lambda: self.get(table))
            is_ours = (
                existing is not None
                # A plain path comes back as `file:///…`.
                and locations.is_same(existing.storage_location or "", location)
                and properties.items() <= (existing.properties or {}).items()
            )
            return existing if is_ours else None

        response = self._rest.create(
            "/tables",
            body,
            UnityTable,
            about=table,
            lookup=lookup,
            on={404: NamespaceNotFoundError, 409: TableAlreadyExistsError},
        )
        return self.to_entry(response, table, vend=vend)

    def delete(self, table: TableId) -> None:
        """Delete the entry of a table; its data stays."""
        self._rest.delete(f"/tables/{_full_name(table.parts)}", about=table, on={404: TableNotFoundError})

    def default_location(self, table: TableId) -> str:
        """Return a location below the client's root, or below the working directory."""
        return locations.child_location(self._settings.root or str(Path.cwd()), table.parts)

    def to_entry(self, unity_table: UnityTable, table: TableId, *, vend: bool) -> Entry:
        """Make an entry of a loaded table, with credentials if they are asked for."""
        return Entry(
            location=unity_table.storage_location or "",
            properties=unity_table.properties or {},
            vended=self._vend_credentials(unity_table, table) if vend and unity_table.table_id else {},
            columns=unity_table.columns or (),
        )

    def _vend_credentials(self, unity_table: UnityTable, table: TableId) -> Mapping[str, str]:
        """Request credentials to read and write a table, or only to read it; no options if the server vends none."""
        try:
            try:
                return self._request_credentials(unity_table, table, "READ_WRITE")
            except PermissionDeniedError:
                if SECRETS & canonical_options(self._settings.storage).keys():
                    return {}  # those of the user's own may write
                options = self._request_credentials(unity_table, table, "READ")
                return {**options, ACCESS: READ} if options else {}
        except LanceNamespaceError as error:
            if is_route_missing(error):
                return {}
            if self._settings.vend_credentials != AUTO:
                raise
            logger.info("%s: the catalog vends no credentials for it: %s", table, error)
            return {}

    def _request_credentials(self, unity_table: UnityTable, table: TableId, operation: str) -> Mapping[str, str]:
        body = CredentialsRequest(table_id=unity_table.table_id or "", operation=operation)
        reply = self._rest.post("/temporary-table-credentials", body, about=table, is_done=lambda: False)
        assert reply is not None
        return to_storage_options(parse_reply(reply, TemporaryCredentials, table))

    def find_schema(self, location: str, properties: Mapping[str, str]) -> pa.Schema | None:
        """Return the schema of the dataset at a location; None if there is none, or if this client cannot read it."""
        table = dataset.TableRef(location, self._access.merge(properties), confinement=self._access.confinement)
        try:
            if self._access.confinement is not None:
                self._access.confinement.require_table(location)
            data = table.find()
            return None if data is None else data.schema
        except LanceNamespaceError as error:
            logger.debug("cannot read %s: %s", location, error)
            return None


def _split_levels(parts: Sequence[str] | None) -> list[str]:
    levels = [level for part in parts or () for level in part.split("$")]
    if level_with_dot := next((level for level in levels if "." in level), None):
        raise InvalidInputError(f"a name in Unity Catalog has no period, got {level_with_dot!r}")
    return levels


def _check_lengths(about: NamespaceId | TableId, name: str, properties: Mapping[str, str]) -> None:
    """Refuse names and properties that are too long for Unity, which would respond 500 with its database's error.

    The message does not repeat values: they may be secret.

    Raises:
        InvalidInputError: a name, or the key or value of a property, is too long.
    """
    lengths = {"the name": len(name)}
    for key, value in properties.items():
        label = f"{key[:40]}…" if len(key) > MAX_LENGTH else key
        lengths |= {f"the key of property {label!r}": len(key), f"the value of property {label!r}": len(value)}
    if too_long := [f"{what} has {length}" for what, length in lengths.items() if length > MAX_LENGTH]:
        raise InvalidInputError(f"{about}: Unity Catalog keeps at most {MAX_LENGTH} characters; {', '.join(too_long)}")


def _full_name(parts: Sequence[str]) -> str:
    return ".".join(quote(part, safe="") for part in parts)


def is_external_lance(table: ListedTable) -> bool:
    """Return whether a table of Unity is one that this client takes for a Lance table."""
    return table.table_type == EXTERNAL and is_lance(table.properties)


def to_storage_options(credentials: TemporaryCredentials) -> dict[str, str]:
    """Return Unity's temporary credentials as storage options."""
    options: dict[str, str] = {}
    if aws := credentials.aws_temp_credentials:
        options |= {
            "aws_access_key_id": aws.access_key_id,
            "aws_secret_access_key": aws.secret_access_key,
            "aws_session_token": aws.session_token,
        }
    if azure := credentials.azure_user_delegation_sas:
        options["azure_storage_sas_token"] = azure.sas_token
    if gcp := credentials.gcp_oauth_token:
        options["google_storage_token"] = gcp.oauth_token
    if options and credentials.expiration_time is not None:
        options[EXPIRES] = str(credentials.expiration_time)
    return options


# Requests and responses of the server


class UnityModel(BaseModel):
    """JSON of Unity Catalog: names in snake_case, unknown keys ignored."""

    model_config = ConfigDict(frozen=True, extra="ignore")


class CreateSchema(UnityModel):
    """Request that creates a schema."""

    name: str
    catalog_name: str
    properties: dict[str, str] | None = None


class UnitySchema(UnityModel):
    """A schema of a catalog."""

    name: str
    properties: dict[str, str] | None = None


class SchemaPage(Paged, UnityModel):
    """One page of schemas."""

    schemas: list[UnitySchema] | None = None


class UnityCreateTable(UnityModel):
    """Request that creates a table."""

    name: str
    catalog_name: str
    schema_name: str
    table_type: str
    data_source_format: str
    columns: list[dict[str, Any]]
    storage_location: str
    properties: dict[str, str]


class ListedTable(UnityModel):
    """A table as a listing returns it; its columns are ignored."""

    name: str
    table_type: str | None = None
    storage_location: str | None = None
    properties: dict[str, str] | None = None


class UnityTable(ListedTable):
    """A table of a schema. Columns stay JSON, because servers add keys to them."""

    columns: list[dict[str, Any]] | None = None
    table_id: str | None = None


class UnityTablePage(Paged, UnityModel):
    """One page of tables."""

    tables: list[ListedTable] | None = None


class CredentialsRequest(UnityModel):
    """Request for temporary credentials for a table's storage."""

    table_id: str
    operation: str


class AwsCredentials(UnityModel):
    """Temporary credentials for S3."""

    access_key_id: str = Field(repr=False)
    secret_access_key: str = Field(repr=False)
    session_token: str = Field(repr=False)


class AzureDelegation(UnityModel):
    """Temporary credentials for Azure storage."""

    sas_token: str = Field(repr=False)


class GcpToken(UnityModel):
    """Temporary credentials for Google Cloud Storage."""

    oauth_token: str = Field(repr=False)


class TemporaryCredentials(UnityModel):
    """Response of `temporary-table-credentials`."""

    aws_temp_credentials: AwsCredentials | None = None
    azure_user_delegation_sas: AzureDelegation | None = None
    gcp_oauth_token: GcpToken | None = None
    expiration_time: int | None = None
