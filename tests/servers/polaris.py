"""An emulator of Apache Polaris 1.4.1 in memory: it answers as `tests/wire/polaris.py` says that the real one does."""

from __future__ import annotations

import json
import re
import secrets
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from threading import RLock
from typing import Any
from urllib.parse import unquote_plus

from tests.servers import metadata
from tests.servers.loopback import Answer, Loopback, RefusedError, Request
from tests.servers.polaris_catalog import (
    IcebergTable,
    Json,
    Levels,
    MixedNamespace,
    PolarisCatalog,
    PolarisGenericTable,
    folder,
    join_levels,
)

SCOPE = "PRINCIPAL_ROLE:ALL"
NO_ROUTE = "Unable to find matching target resource method"
DUMMY_SCHEMA: Json = {"type": "struct", "fields": [{"id": 1, "name": "x", "required": False, "type": "string"}]}

ICEBERG_ENDPOINTS = (
    "GET /v1/{prefix}/namespaces",
    "POST /v1/{prefix}/namespaces",
    "GET /v1/{prefix}/namespaces/{namespace}",
    "HEAD /v1/{prefix}/namespaces/{namespace}",
    "DELETE /v1/{prefix}/namespaces/{namespace}",
    "POST /v1/{prefix}/namespaces/{namespace}/properties",
    "GET /v1/{prefix}/namespaces/{namespace}/tables",
    "POST /v1/{prefix}/namespaces/{namespace}/tables",
    "GET /v1/{prefix}/namespaces/{namespace}/tables/{table}",
    "HEAD /v1/{prefix}/namespaces/{namespace}/tables/{table}",
    "POST /v1/{prefix}/namespaces/{namespace}/tables/{table}",
    "DELETE /v1/{prefix}/namespaces/{namespace}/tables/{table}",
    "POST /v1/{prefix}/tables/rename",
)
GENERIC_ENDPOINTS = (
    "GET polaris/v1/{prefix}/namespaces/{namespace}/generic-tables",
    "POST polaris/v1/{prefix}/namespaces/{namespace}/generic-tables",
    "GET polaris/v1/{prefix}/namespaces/{namespace}/generic-tables/{generic-table}",
    "DELETE polaris/v1/{prefix}/namespaces/{namespace}/generic-tables/{generic-table}",
)


class Polaris(Loopback):
    """The server. The Polaris client takes `.uri` as its endpoint, an Iceberg client `.iceberg_uri`.

    Args:
        catalogs: their names.
        root: below which each catalog has its folder.
        credential: `client_id:client_secret` of the one principal.
        token_lifetime_s: how long a token is good for.
        paging: honour `pageSize` for namespaces and Iceberg tables, which a real catalog does when told to.
    """

    def __init__(
        self,
        *catalogs: str,
        root: str = "file:///warehouse",
        credential: str = "root:s3cr3t",
        token_lifetime_s: float = 3600,
        paging: bool = False,
    ) -> None:
        self.credential = credential
        self.token_lifetime_s = token_lifetime_s
        self.paging = paging
        self._root = root
        self._lock = RLock()
        self._tokens: dict[str, float] = {}
        self._catalogs: dict[str, PolarisCatalog] = {}
        for name in catalogs or ("test_catalog",):
            self.seed_catalog(name)
        super().__init__()

    @property
    def iceberg_uri(self) -> str:
        """The endpoint for clients of Iceberg REST."""
        return f"{self.uri}/api/catalog"

    # What tests do behind the back of the API.

    def token(self) -> str:
        """A new token, without asking over HTTP."""
        token = f"token-{secrets.token_hex(16)}"
        with self._lock:
            self._tokens[token] = time.monotonic() + self.token_lifetime_s
        return token

    def expire_tokens(self) -> None:
        """Make every token that was given out worthless."""
        with self._lock:
            self._tokens.clear()

    def seed_catalog(self, name: str, location: str | None = None) -> None:
        """Add a catalog."""
        with self._lock:
            self._catalogs[name] = PolarisCatalog(name, location or f"{self._root.rstrip('/')}/{name}")

    def seed_namespace(self, catalog: str, *levels: str, properties: Mapping[str, str] | None = None) -> None:
        """Add a namespace with exactly these properties, so perhaps without a location; its parents are not needed."""
        with self._lock:
            self._catalogs[catalog].namespaces[levels] = MixedNamespace(dict(properties or {}))

    def seed_generic(
        self,
        catalog: str,
        *path: str,
        format: str = "delta",
        location: str | None = None,
        properties: Mapping[str, str] | None = None,
        vended: Sequence[Json] = (),
    ) -> None:
        """Add a generic table, of Delta unless told otherwise; `path` is its namespace, then its name."""
        *levels, name = path
        table = PolarisGenericTable(format, location, None, dict(properties or {}), vended)
        with self._lock:
            self._catalogs[catalog].namespaces[tuple(levels)].tables[name] = table

    def seed_iceberg(
        self,
        catalog: str,
        *path: str,
        location: str | None = None,
        properties: Mapping[str, str] | None = None,
        config: Mapping[str, str] | None = None,
        vended: Sequence[Json] = (),
    ) -> None:
        """Add an Iceberg table, which is no Lance table unless its properties say so."""
        *levels, name = path
        with self._lock:
            namespace = self._catalogs[catalog].namespaces[tuple(levels)]
            location = location or f"{namespace.location.rstrip('/')}/{name}"
            table = _new_table(location, DUMMY_SCHEMA, properties or {})
            namespace.tables[name] = replace(table, config=dict(config or {}), vended=vended)

    # What clients see.

    def answer(self, request: Request) -> Answer:
        """Answer as the real server does."""
        try:
            with self._lock:
                return self._route(request)
        except RefusedError as refused:
            return refused.answer

    def _route(self, request: Request) -> Answer:
        if request.segments[:2] != ["api", "catalog"]:
            raise _no_route()
        path = request.segments[2:]
        if (request.method, path) == ("POST", ["v1", "oauth", "tokens"]):
            return self._issue_token(request)
        self._authenticate(request)
        if path[0] == "v1" and path[-2:] == ["tables", ".."]:  # resolved away, so that the namespace is what is meant
            path = path[:-2]
        if {".", ".."} & set(path):
            raise _no_route()
        match path:
            case ["v1", "config"]:
                return self._config(request)
            case ["v1", prefix, *rest]:
                return self._iceberg(request, self._catalog(prefix), rest)
            case ["polaris", "v1", prefix, "namespaces", namespace, "generic-tables", *rest]:
                return self._generic(request, self._catalog(prefix), _levels(namespace), rest)
        raise _no_route()

    def _issue_token(self, request: Request) -> Answer:
        form = request.form
        if form.get("grant_type") != "client_credentials":
            return _oauth_error(400, "unsupported_grant_type", "The grant type is not supported")
        if f"{form.get('client_id', '')}:{form.get('client_secret', '')}" != self.credential:
            return _oauth_error(401, "invalid_client", "The client is unknown or its secret is wrong")
        if form.get("scope") != SCOPE:
            return _oauth_error(400, "invalid_scope", "The scope is invalid")
        kind = "urn:ietf:params:oauth:token-type:access_token"
        lifetime = {"expires_in": int(self.token_lifetime_s), "token_type": "bearer"}
        return Answer.json({"access_token": self.token(), "issued_token_type": kind, **lifetime})

    def _authenticate(self, request: Request) -> None:
        scheme, _, token = request.headers.get("Authorization", "").partition(" ")
        if scheme.lower() != "bearer":
            raise RefusedError(401, "NotAuthorizedException", "Authentication is required")
        if self._tokens.get(token, 0) <= time.monotonic():
            raise RefusedError(401, "NotAuthorizedException", "Failed to verify the token")

    def _config(self, request: Request) -> Answer:
        name = request.query.get("warehouse")
        if not name:
            raise RefusedError(400, "BadRequestException", "Please specify a warehouse")
        catalog = self._catalog(name)
        return Answer.json(
            {
                "defaults": {"default-base-location": catalog.location},
                "overrides": {"prefix": catalog.name},
                "endpoints": [*ICEBERG_ENDPOINTS, *GENERIC_ENDPOINTS],
            }
        )

    def _catalog(self, name: str) -> PolarisCatalog:
        if (found := self._catalogs.get(name)) is None:
            raise RefusedError(404, "NotFoundException", f"Unable to find warehouse {name}")
        return found

    def _iceberg(self, request: Request, catalog: PolarisCatalog, path: list[str]) -> Answer:
        match request.method, path:
            case "GET", ["namespaces"]:
                return self._list_namespaces(request, catalog)
            case "POST", ["namespaces"]:
                return _create_namespace(catalog, _body(request))
            case "GET" | "HEAD" as method, ["namespaces", namespace]:
                levels = _levels(namespace)
                found = catalog.namespace(levels)
                return Answer(204) if method == "HEAD" else Answer.json(_namespace(levels, found))
            case "DELETE", ["namespaces", namespace]:
                return _drop_namespace(catalog, _levels(namespace))
            case "POST", ["namespaces", namespace, "properties"]:
                return _update_properties(catalog, _levels(namespace), _body(request))
            case "GET", ["namespaces", namespace, "tables"]:
                levels = _levels(namespace)
                tables = catalog.namespace(levels).tables.items()
                names = [name for name, table in tables if isinstance(table, IcebergTable)]
                return self._page(request, "identifiers", [_identifier(levels, name) for name in names])
            case "POST", ["namespaces", namespace, "tables"]:
                return _create_iceberg(catalog, _levels(namespace), _body(request))
            case "GET" | "HEAD" as method, ["namespaces", namespace, "tables", name]:
                table = catalog.iceberg(_levels(namespace), _decoded_again(name))
                return Answer(204) if method == "HEAD" else _load(request, table)
            case "POST", ["namespaces", namespace, "tables", name]:
                return _commit(catalog, _levels(namespace), _decoded_again(name), _body(request))
            case "DELETE", ["namespaces", namespace, "tables", name]:
                return _drop_iceberg(request, catalog, _levels(namespace), _decoded_again(name))
            case "POST", ["tables", "rename"]:
                return _rename(catalog, _body(request))
        raise _no_route()

    def _generic(self, request: Request, catalog: PolarisCatalog, levels: Levels, path: list[str]) -> Answer:
        match request.method, path:
            case "GET", []:
                tables = catalog.namespace(levels).tables.items()
                names = [name for name, table in tables if isinstance(table, PolarisGenericTable)]
                listed = [_identifier(levels, name) for name in names]
                return Answer.json({"next-page-token": None, "identifiers": listed})
            case "POST", []:
                return _create_generic(catalog, levels, _body(request))
            case "GET" | "HEAD", [name]:
                return _load_generic(request, name, catalog.generic(levels, name))
            case "DELETE", [name]:
                catalog.generic(levels, name)
                del catalog.namespaces[levels].tables[name]
                return Answer(204)
        raise _no_route()

    def _list_namespaces(self, request: Request, catalog: PolarisCatalog) -> Answer:
        parent = request.query.get("parent")
        levels = _levels(parent) if parent else ()
        if levels:
            catalog.namespace(levels)
        return self._page(request, "namespaces", [list(child) for child in catalog.children(levels)])

    def _page(self, request: Request, key: str, items: list[Any]) -> Answer:
        if not self.paging or "pageToken" not in request.query:
            return Answer.json({key: items, "next-page-token": None})
        start = int(request.query["pageToken"] or 0)
        end = start + int(request.query.get("pageSize", 100))
        return Answer.json({key: items[start:end], "next-page-token": str(end) if end < len(items) else None})


def _create_namespace(catalog: PolarisCatalog, body: Json) -> Answer:
    levels = tuple(_strings(body.get("namespace"), "namespace"))
    properties = _properties(body)
    if not levels:
        message = "Cannot create root namespace, as it already exists implicitly."
        raise RefusedError(409, "AlreadyExistsException", message)
    default = folder(f"{catalog.home(levels[:-1])}/{levels[-1]}".rstrip("/"))
    if levels in catalog.namespaces:
        message = f"Cannot create namespace {join_levels(levels)}. Namespace already exists"
        raise RefusedError(409, "AlreadyExistsException", message)
    location = properties.get("location", default)
    _check_uri(location)
    if folder(location) != default:
        message = f"Namespace {levels[-1]} cannot have the location {location}: {default} is expected"
        raise RefusedError(400, "IllegalArgumentException", message)
    catalog.check_apart(levels[:-1], location)
    created = MixedNamespace({"location": location, **properties})
    catalog.namespaces[levels] = created
    return Answer.json(_namespace(levels, created))


def _drop_namespace(catalog: PolarisCatalog, levels: Levels) -> Answer:
    if catalog.namespace(levels).tables or catalog.children(levels):
        raise RefusedError(409, "NamespaceNotEmptyException", f"Namespace {join_levels(levels)} is not empty")
    del catalog.namespaces[levels]
    return Answer(204)


def _update_properties(catalog: PolarisCatalog, levels: Levels, body: Json) -> Answer:
    properties = catalog.namespace(levels).properties
    removals = _strings(body.get("removals") or [], "removals")
    updates = _properties(body, "updates")
    if removals and updates:  # seen every time, whatever the reason
        raise RefusedError(
            409, "CommitConflictException", f"Concurrent modification of namespace: {join_levels(levels)}"
        )
    removed = [key for key in removals if properties.pop(key, None) is not None]
    properties.update(updates)
    missing = [key for key in removals if key not in removed]
    return Answer.json({"removed": removed, "updated": list(updates), "missing": missing})


def _create_iceberg(catalog: PolarisCatalog, levels: Levels, body: Json) -> Answer:
    name = _string(body, "name")
    schema = body.get("schema")
    if not isinstance(schema, dict) or not isinstance(schema.get("fields"), list):
        raise _malformed_error("schema is required")
    properties = _properties(body)
    catalog.check_free(levels, name)
    home = catalog.home(levels)
    _check_uri(f"{home}/{name}")
    location = body.get("location") or f"{home}/{name}"
    if not folder(location).startswith(folder(home)):
        reason = f"{location} is not in the list of allowed locations: [{home}]"
        message = f"Invalid locations '[{location}]' for identifier '{join_levels([*levels, name])}': {reason}"
        raise RefusedError(403, "ForbiddenException", message)
    catalog.check_apart(levels, location)
    created_at = datetime.now(UTC).isoformat().replace("+00:00", "Z")
    table = _new_table(location, schema, {"created-at": created_at, **properties})
    if body.get("stage-create"):
        return Answer.json({"metadata": table.metadata, "config": {}})
    catalog.namespaces[levels].tables[name] = table
    return Answer.json(_load_response(table, vend=False), headers={"ETag": _etag(table)})


def _new_table(location: str, schema: Json, properties: Mapping[str, str]) -> IcebergTable:
    properties = {"write.parquet.compression-codec": "zstd", **properties}
    return IcebergTable(metadata.new(location, schema, properties), _metadata_location(location, 0))


def _load(request: Request, table: IcebergTable) -> Answer:
    etag = _etag(table)
    if request.headers.get("If-None-Match") == etag:
        return Answer(304, headers={"ETag": etag})
    return Answer.json(_load_response(table, vend=_vending(request)), headers={"ETag": etag})


def _load_response(table: IcebergTable, *, vend: bool) -> Json:
    loaded: Json = {"metadata-location": table.metadata_location, "metadata": table.metadata, "config": table.config}
    return loaded | ({"storage-credentials": table.vended} if vend else {})


def _commit(catalog: PolarisCatalog, levels: Levels, name: str, body: Json) -> Answer:
    table = catalog.iceberg(levels, name)
    try:
        changed = metadata.commit(table.metadata, body.get("requirements", []), body.get("updates", []))
    except metadata.RequirementError as failed:
        raise RefusedError(409, "CommitFailedException", str(failed)) from failed
    except ValueError as unknown:
        raise _malformed_error(str(unknown)) from unknown
    version = int(table.metadata_location.rpartition("/")[2].partition("-")[0]) + 1
    table = replace(table, metadata=changed, metadata_location=_metadata_location(changed["location"], version))
    catalog.namespaces[levels].tables[name] = table
    return Answer.json({"metadata-location": table.metadata_location, "metadata": table.metadata})


def _drop_iceberg(request: Request, catalog: PolarisCatalog, levels: Levels, name: str) -> Answer:
    catalog.iceberg(levels, name)
    if request.query.get("purgeRequested", "").lower() == "true":
        raise RefusedError(403, "ForbiddenException", f"Unable to purge entity: {name}. Purging is not enabled")
    del catalog.namespaces[levels].tables[name]
    return Answer(204)


def _rename(catalog: PolarisCatalog, body: Json) -> Answer:
    (source, old), (destination, new) = (_table(body, key) for key in ("source", "destination"))
    catalog.namespace(destination)
    table = catalog.iceberg(source, old)
    if (existing := catalog.namespaces[destination].tables.get(new)) is not None:
        kind = "Table" if isinstance(existing, IcebergTable) else "Generic table"
        names = f"{join_levels([*source, old])} to {join_levels([*destination, new])}"
        raise RefusedError(409, "AlreadyExistsException", f"Cannot rename {names}. {kind} already exists")
    del catalog.namespaces[source].tables[old]
    catalog.namespaces[destination].tables[new] = table
    return Answer(204)


def _create_generic(catalog: PolarisCatalog, levels: Levels, body: Json) -> Answer:
    name = _string(body, "name")
    table = PolarisGenericTable(_string(body, "format"), body.get("base-location"), body.get("doc"), _properties(body))
    catalog.check_free(levels, name)
    catalog.namespaces[levels].tables[name] = table
    return Answer.json(_generic_table(name, table, vend=False))


def _load_generic(request: Request, name: str, table: PolarisGenericTable) -> Answer:
    return Answer.json(_generic_table(name, table, vend=_vending(request)))


def _generic_table(name: str, table: PolarisGenericTable, *, vend: bool) -> Json:
    shown = {"name": name, "format": table.format, "base-location": table.location, "doc": table.doc}
    return {
        "table": {**shown, "properties": table.properties},
        "storage-access-configs": list(table.vended) if vend else [],
    }


def _namespace(levels: Levels, found: MixedNamespace) -> Json:
    return {"namespace": list(levels), "properties": found.properties}


def _identifier(levels: Levels, name: str) -> Json:
    return {"namespace": list(levels), "name": name}


def _metadata_location(location: str, version: int) -> str:
    base = re.sub("^file:///", "file:/", location)
    return f"{base}/metadata/{version:05d}-{uuid.uuid4()}.metadata.json"


def _etag(table: IcebergTable) -> str:
    return f'W/"{uuid.uuid5(uuid.NAMESPACE_URL, table.metadata_location)}"'


def _vending(request: Request) -> bool:
    return "vended-credentials" in request.headers.get("X-Iceberg-Access-Delegation", "")


def _levels(joined: str) -> Levels:
    return tuple(joined.split("\x1f"))


def _decoded_again(name: str) -> str:
    """The name of an Iceberg table, which comes decoded and is decoded once more, as a form is."""
    return unquote_plus(name)


def _check_uri(location: str) -> None:
    """Refuse what Java's URI class cannot parse, in its words."""
    if found := re.search(r'[\x00-\x20"<>\\^`{|}\[\]]', location):
        problem = "Illegal character in path"
    elif found := re.search(r"%(?![0-9A-Fa-f]{2})", location):
        problem = "Malformed escape pair"
    else:
        return
    raise RefusedError(400, "IllegalArgumentException", f"{problem} at index {found.start()}: {location}")


def _body(request: Request) -> Json:
    try:
        body = json.loads(request.body)
    except ValueError as error:
        raise _malformed_error(f"not JSON: {error}") from error
    if not isinstance(body, dict):
        raise _malformed_error("an object is expected")
    return body


def _string(body: Json, key: str) -> str:
    if not isinstance(value := body.get(key), str) or not value:
        raise _malformed_error(f"{key} is required")
    return value


def _strings(value: object, key: str) -> list[str]:
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise _malformed_error(f"{key} must be a list of strings")
    return value


def _properties(body: Json, key: str = "properties") -> dict[str, str]:
    value = body.get(key) or {}
    if not isinstance(value, dict) or not all(isinstance(item, str) for item in value.values()):
        raise _malformed_error(f"{key} must map strings to strings")
    return dict(value)


def _table(body: Json, key: str) -> tuple[Levels, str]:
    match body.get(key):
        case {"namespace": list(levels), "name": str(name)}:
            return tuple(levels), name
    raise _malformed_error(f"{key} must be a table's identifier")


def _malformed_error(message: str) -> RefusedError:
    return RefusedError(400, "BadRequestException", f"Malformed request: {message}")


def _no_route() -> RefusedError:
    return RefusedError(404, "NotFoundException", NO_ROUTE)


def _oauth_error(status: int, error: str, description: str) -> Answer:
    return Answer.json({"error": error, "error_description": description}, status)
