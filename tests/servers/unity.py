"""An emulator of Unity Catalog 0.6.0 in memory: it answers as `tests/wire/unity.py` says that the real one does."""

from __future__ import annotations

import json
import re
import time
import uuid
from collections.abc import Mapping, Sequence
from pathlib import PurePosixPath
from threading import RLock
from typing import Any
from urllib.parse import urlsplit

from tests.servers.loopback import Answer, Loopback, Request

Json = dict[str, Any]

BASE = ["api", "2.1", "unity-catalog"]
PAGE_SIZE = 100
"""What a page holds at most, whatever is asked."""

FORMATS = {"DELTA", "CSV", "JSON", "AVRO", "PARQUET", "ORC", "TEXT"}
TABLE_TYPES = {"MANAGED", "EXTERNAL", "STREAMING_TABLE", "MATERIALIZED_VIEW", "METRIC_VIEW", "VIEW"}
SCHEMES = {"file", "s3", "gs", "abfs", "abfss"}
TYPE_NAMES = {
    *("BOOLEAN", "BYTE", "SHORT", "INT", "LONG", "FLOAT", "DOUBLE", "DATE", "TIMESTAMP", "TIMESTAMP_NTZ", "STRING"),
    *("BINARY", "DECIMAL", "INTERVAL", "ARRAY", "STRUCT", "MAP", "VARIANT", "CHAR", "NULL", "USER_DEFINED_TYPE"),
    "TABLE_TYPE",
}
COLUMN_KEYS = (
    *("name", "type_text", "type_json", "type_name", "type_precision", "type_scale", "type_interval_type"),
    *("position", "comment", "nullable", "partition_index"),
)


class UnityRefusedError(Exception):
    """An error that goes back to the client."""

    def __init__(self, status: int, code: str, message: str) -> None:
        super().__init__(message)
        details = [{"@type": "type.googleapis.com/google.rpc.ErrorInfo", "reason": code, "metadata": {}}]
        body = {"error_code": code, "details": details, "stack_trace": None, "message": message}
        self.answer = Answer.json(body, status)


class Unity(Loopback):
    """The server; clients take `.uri` as their endpoint.

    Args:
        catalogs: their names.
        token: the bearer token that clients must send; None where the server asks for none.
    """

    def __init__(self, *catalogs: str, token: str | None = None) -> None:
        self._lock = RLock()
        self._tokens = None if token is None else {token}
        self._catalogs: dict[str, Json] = {}
        self._schemas: dict[tuple[str, str], Json] = {}
        self._tables: dict[tuple[str, str, str], Json] = {}
        for name in catalogs or ("lance_test",):
            self.seed_catalog(name)
        super().__init__()

    @property
    def api(self) -> str:
        """Where the API's own paths start."""
        return f"{self.uri}/{'/'.join(BASE)}"

    # What tests do behind the back of the API.

    def accept_token(self, token: str) -> None:
        """From now on this token will do, and some token is needed."""
        with self._lock:
            self._tokens = {*(self._tokens or ()), token}

    def expire_tokens(self) -> None:
        """From now on no token will do that is not accepted anew."""
        with self._lock:
            self._tokens = set()

    def seed_catalog(self, name: str) -> None:
        """Add a catalog."""
        with self._lock:
            self._create_catalog({"name": name})

    def seed_schema(self, catalog: str, name: str, *, properties: Mapping[str, str] | None = None) -> None:
        """Add a schema."""
        with self._lock:
            self._create_schema({"catalog_name": catalog, "name": name, "properties": dict(properties or {})})

    def seed_table(
        self,
        catalog: str,
        schema: str,
        name: str,
        *,
        format: str = "DELTA",
        location: str | None = None,
        properties: Mapping[str, str] | None = None,
        columns: Sequence[Json] = (),
    ) -> None:
        """Add an external table, of Delta and no Lance table unless told otherwise."""
        body = {"catalog_name": catalog, "schema_name": schema, "name": name, "table_type": "EXTERNAL"}
        more = {"data_source_format": format, "storage_location": location or f"file:///warehouse/{schema}/{name}"}
        with self._lock:
            self._create_table({**body, **more, "properties": dict(properties or {}), "columns": list(columns)})

    # What clients see.

    def answer(self, request: Request) -> Answer:
        """Answer as the real server does."""
        try:
            with self._lock:
                return self._route(request)
        except UnityRefusedError as refused:
            return refused.answer

    def _route(self, request: Request) -> Answer:
        if request.segments[:3] != BASE:
            return _no_route(404, "Not Found")
        self._authenticate(request)
        match request.segments[3:]:
            case ["catalogs", *rest]:
                return self._on_catalogs(request, rest)
            case ["schemas", *rest]:
                return self._on_schemas(request, rest)
            case ["tables", *rest]:
                return self._on_tables(request, rest)
            case ["iceberg", "v1", *rest]:
                return self._on_iceberg(request, rest)
        return _no_route(404, "Not Found")

    def _authenticate(self, request: Request) -> None:
        scheme, _, token = request.headers.get("Authorization", "").partition(" ")
        if self._tokens is not None and (scheme.lower() != "bearer" or token not in self._tokens):
            raise UnityRefusedError(401, "UNAUTHENTICATED", "The bearer token is missing or invalid.")

    def _on_catalogs(self, request: Request, path: list[str]) -> Answer:
        match request.method, path:
            case "GET", []:
                return _page(request, "catalogs", self._catalogs.values())
            case "POST", []:
                return Answer.json(self._create_catalog(_body(request)))
            case "GET", [name]:
                return Answer.json(self._catalog(name))
            case "DELETE", [name]:
                return self._drop_catalog(name, force=_force(request))
        return _no_route(405, "Method Not Allowed")

    def _on_schemas(self, request: Request, path: list[str]) -> Answer:
        match request.method, path:
            case "GET", []:
                catalog = self._catalog(_parameter(request, "catalog_name"))["name"]
                found = [schema for (parent, _), schema in self._schemas.items() if parent == catalog]
                return _page(request, "schemas", found)
            case "POST", []:
                return Answer.json(self._create_schema(_body(request)))
            case "GET", [full_name]:
                return Answer.json(self._schema(*_parts(full_name, 2)))
            case "PATCH", [full_name]:
                return Answer.json(self._update_schema(full_name, _body(request)))
            case "DELETE", [full_name]:
                return self._drop_schema(full_name, force=_force(request))
        return _no_route(405, "Method Not Allowed")

    def _on_tables(self, request: Request, path: list[str]) -> Answer:
        match request.method, path:
            case "GET", []:
                catalog, schema = _parameter(request, "catalog_name"), _parameter(request, "schema_name")
                self._schema(catalog, schema)
                found = [table for key, table in self._tables.items() if key[:2] == (catalog, schema)]
                return _page(request, "tables", found)
            case "POST", []:
                return Answer.json(self._create_table(_body(request)))
            case "GET", [full_name]:
                return Answer.json(self._table(*_parts(full_name, 3), shown=full_name))
            case "DELETE", [full_name]:
                catalog, schema, name = _parts(full_name, 3)
                self._table(catalog, schema, name, shown=name)
                del self._tables[catalog, schema, name]
                return Answer.text("200 OK")
        return _no_route(405, "Method Not Allowed")

    def _on_iceberg(self, request: Request, path: list[str]) -> Answer:
        """The Iceberg REST API that the server has for reading."""
        match request.method, path:
            case "GET", ["config"]:
                name = self._catalog(_parameter(request, "warehouse"))["name"]
                endpoints = ["GET /v1/{prefix}/namespaces", "GET /v1/{prefix}/namespaces/{namespace}"]
                overrides = {"prefix": f"catalogs/{name}"}
                return Answer.json({"defaults": {}, "overrides": overrides, "endpoints": endpoints})
            case "GET", ["catalogs", catalog, "namespaces"]:
                names = sorted(name for parent, name in self._schemas if parent == self._catalog(catalog)["name"])
                return Answer.json({"namespaces": [[name] for name in names], "next-page-token": None})
        return _no_route(405, "Method Not Allowed")

    def _catalog(self, name: str) -> Json:
        if name not in self._catalogs:
            raise UnityRefusedError(404, "CATALOG_NOT_FOUND", f"Catalog not found: {name}")
        return self._catalogs[name]

    def _schema(self, catalog: str, name: str) -> Json:
        self._catalog(catalog)
        if (catalog, name) not in self._schemas:
            raise UnityRefusedError(404, "SCHEMA_NOT_FOUND", f"Schema not found: {catalog}.{name}")
        return self._schemas[catalog, name]

    def _table(self, catalog: str, schema: str, name: str, *, shown: str) -> Json:
        self._schema(catalog, schema)
        if (catalog, schema, name) not in self._tables:
            raise UnityRefusedError(404, "TABLE_NOT_FOUND", f"Table not found: {shown}")
        return self._tables[catalog, schema, name]

    def _create_catalog(self, body: Json) -> Json:
        name = _name(body)
        if name in self._catalogs:
            raise UnityRefusedError(400, "CATALOG_ALREADY_EXISTS", f"Catalog already exists: {name}")
        created = {"name": name, "comment": body.get("comment"), "properties": _properties(body), **_audit()}
        created |= {"id": str(uuid.uuid4()), "storage_root": body.get("storage_root"), "storage_location": None}
        self._catalogs[name] = created
        return created

    def _create_schema(self, body: Json) -> Json:
        name, catalog = _name(body), _string(body, "catalog_name")
        self._catalog(catalog)
        if (catalog, name) in self._schemas:
            raise UnityRefusedError(400, "SCHEMA_ALREADY_EXISTS", f"Schema already exists: {name}")
        created = {"name": name, "catalog_name": catalog, "comment": body.get("comment")}
        created |= {"properties": _properties(body), "full_name": f"{catalog}.{name}", **_audit()}
        created |= {"schema_id": str(uuid.uuid4()), "storage_root": None, "storage_location": None}
        self._schemas[catalog, name] = created
        return created

    def _update_schema(self, full_name: str, body: Json) -> Json:
        catalog, name = _parts(full_name, 2)
        schema = self._schema(catalog, name)
        if new_name := body.get("new_name"):
            if (catalog, _name({"name": new_name})) in self._schemas:
                raise UnityRefusedError(400, "SCHEMA_ALREADY_EXISTS", f"Schema already exists: {new_name}")
            schema = {**schema, "name": new_name, "full_name": f"{catalog}.{new_name}"}
            for key in [key for key in self._tables if key[:2] == (catalog, name)]:
                self._tables[catalog, new_name, key[2]] = {**self._tables.pop(key), "schema_name": new_name}
        changes = {"comment": body.get("comment"), "properties": _properties(body)}
        kept = {key: value for key, value in changes.items() if value}
        del self._schemas[catalog, name]
        updated = {**schema, **kept, "updated_at": _now_ms()}
        self._schemas[catalog, updated["name"]] = updated
        return updated

    def _create_table(self, body: Json) -> Json:
        if (format_ := body.get("data_source_format")) not in FORMATS:
            raise _unexpected_error("DataSourceFormat", format_)
        if (table_type := body.get("table_type")) not in TABLE_TYPES:
            raise _unexpected_error("TableType", table_type)
        name, catalog, schema = _name(body), _string(body, "catalog_name"), _string(body, "schema_name")
        columns = [_column(column) for column in body.get("columns") or []]
        properties = _properties(body)
        self._schema(catalog, schema)
        if (catalog, schema, name) in self._tables:
            raise UnityRefusedError(400, "TABLE_ALREADY_EXISTS", f"Table already exists: {catalog}.{schema}.{name}")
        if table_type != "EXTERNAL":
            raise _invalid(f"{table_type} tables are more than this emulator does.")
        created = {"name": name, "catalog_name": catalog, "schema_name": schema, "table_type": table_type}
        created |= {"data_source_format": format_, "columns": columns}
        created |= {"storage_location": _location(body.get("storage_location")), "comment": body.get("comment")}
        created |= {"properties": properties, **_audit(), "table_id": str(uuid.uuid4())}
        self._tables[catalog, schema, name] = created
        return created

    def _drop_catalog(self, name: str, *, force: bool) -> Answer:
        self._catalog(name)
        schemas = [key for key in self._schemas if key[0] == name]
        if schemas and not force:
            raise UnityRefusedError(400, "FAILED_PRECONDITION", "Cannot delete catalog with schemas")
        for catalog, schema in schemas:
            self._drop_schema(f"{catalog}.{schema}", force=True)
        del self._catalogs[name]
        return Answer.text("200 OK")

    def _drop_schema(self, full_name: str, *, force: bool) -> Answer:
        catalog, name = _parts(full_name, 2)
        self._schema(catalog, name)
        tables = [key for key in self._tables if key[:2] == (catalog, name)]
        if tables and not force:
            raise UnityRefusedError(400, "FAILED_PRECONDITION", "Cannot delete schema with tables")
        for key in tables:
            del self._tables[key]
        del self._schemas[catalog, name]
        return Answer.text("200 OK")


def _page(request: Request, key: str, items: Any) -> Answer:
    """A page in order of names; its token is the last name, also where nothing comes after it."""
    try:
        asked = int(request.query.get("max_results", 0))
    except ValueError as error:
        raise _invalid(f"max_results is no number: {error}") from error
    if asked < 0:
        raise _invalid("maxResults must be greater than or equal to 0")
    size = min(asked or PAGE_SIZE, PAGE_SIZE)
    token = request.query.get("page_token", "")
    after = sorted((item for item in items if item["name"] > token), key=lambda item: str(item["name"]))
    page = after[:size]
    return Answer.json({key: page, "next_page_token": page[-1]["name"] if len(page) == size else None})


def _column(column: Json) -> Json:
    """Check a column's `type_json`, which is a Spark field, and give the column its every key."""
    name, text = column.get("name"), column.get("type_json")
    start = f"Invalid type_json for column {name}: "
    try:
        spark = json.loads(text or "")
    except (TypeError, ValueError):
        spark = None
    if not isinstance(spark, dict):
        raise _invalid(f"{start}Failed to parse typeJson for column {name}: {text}")
    for key in ("name", "type", "nullable", "metadata"):
        if spark.get(key) is None:
            raise _invalid(f"type_json.{key} is required.")
    for key in ("name", "nullable"):
        if column.get(key) is not None and column[key] != spark[key]:
            raise _invalid(f"{start}field {key} {spark[key]} does not match column {key} {column[key]}")
    if column.get("type_name") not in TYPE_NAMES:
        raise _unexpected_error("ColumnTypeName", column.get("type_name"))
    full = {key: column.get(key) for key in COLUMN_KEYS}
    nullable = True if column.get("nullable") is None else column["nullable"]
    return full | {"type_text": _string(column, "type_text").lower(), "nullable": nullable}


def _location(location: object) -> str:
    """A table's location in the one form that the server keeps."""
    if not isinstance(location, str):
        raise _invalid("Storage location is required for external table")
    if "/" not in location:
        raise _invalid(f"Ambiguous path: {location}")
    scheme = urlsplit(location).scheme
    if not scheme:
        return PurePosixPath("/", location).as_uri()
    if scheme not in SCHEMES:
        raise _invalid(f"Unsupported URI scheme: {scheme}")
    if scheme == "file":
        return "file:///" + location.removeprefix("file:").strip("/")
    return location.rstrip("/")


def _name(body: Json) -> str:
    name = body.get("name")
    if not isinstance(name, str) or not name:
        raise _invalid("Name cannot be empty")
    if len(name) > 255:
        raise _invalid("Name cannot be longer than 255 characters")
    if not re.fullmatch("[A-Za-z0-9_@-]+", name):
        raise _invalid("Name cannot contain a period, space, forward-slash, or control characters")
    return name


def _parts(full_name: str, count: int) -> list[str]:
    parts = full_name.split(".")
    if len(parts) != count:
        raise _invalid(f"Invalid full name: {full_name}")
    return parts


def _parameter(request: Request, name: str) -> str:
    if not (value := request.query.get(name)):
        raise _invalid(f"Missing required parameter: {name}")
    return value


def _force(request: Request) -> bool:
    return request.query.get("force", "").lower() == "true"


def _body(request: Request) -> Json:
    try:
        body = json.loads(request.body)
    except ValueError as error:
        raise _invalid(f"failed to parse a JSON document: {error}") from error
    if not isinstance(body, dict):
        raise _invalid("failed to parse a JSON document: an object is expected")
    return body


def _string(body: Json, key: str) -> str:
    if not isinstance(value := body.get(key), str):
        raise _invalid(f"{key} is required.")
    return value


def _properties(body: Json) -> dict[str, str]:
    value = body.get("properties") or {}
    if not isinstance(value, dict) or not all(isinstance(item, str) for item in value.values()):
        raise _invalid("failed to parse a JSON document: properties must map strings to strings")
    if any(len(item) > 255 for item in value.values()):
        problem = 'Value too long for column "PROPERTY_VALUE CHARACTER VARYING(255)"'
        raise UnityRefusedError(500, "INTERNAL", f"could not execute statement [{problem}]")
    return dict(value)


def _audit() -> Json:
    now = _now_ms()
    return {"owner": None, "created_at": now, "created_by": None, "updated_at": now, "updated_by": None}


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


def _invalid(message: str) -> UnityRefusedError:
    return UnityRefusedError(400, "INVALID_ARGUMENT", message)


def _unexpected_error(model: str, value: object) -> UnityRefusedError:
    """What Jackson says of a value that an enumeration does not have."""
    problem = (
        f"Cannot construct instance of `io.unitycatalog.server.model.{model}`, problem: Unexpected value '{value}'"
    )
    exception = "com.fasterxml.jackson.databind.exc.ValueInstantiationException"
    return _invalid(f"failed to parse a JSON document: {exception}: {problem}")


def _no_route(status: int, phrase: str) -> Answer:
    return Answer.text(f"Status: {status}\nDescription: {phrase}\n", status)
