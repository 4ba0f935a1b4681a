"""What Unity Catalog 0.6.0 answers, with one catalog `lance_test`, below `/api/2.1/unity-catalog`.

Recorded in November 2026 and restated here; `set-up` lines were sent but not recorded.
"""

from __future__ import annotations

import json
from typing import Any

from tests.wire.facts import Fact

CATALOG = "lance_test"
LANCE = {"table_type": "lance"}
SPARK_FIELD = {"name": "__placeholder_id", "type": "long", "nullable": True, "metadata": {}}
COLUMN = {
    "name": "__placeholder_id",
    "type_text": "long",
    "type_name": "LONG",
    "type_json": json.dumps(SPARK_FIELD, separators=(",", ":")),
    "position": 0,
    "nullable": True,
}
COLUMN_SHOWN = {
    **COLUMN,
    **dict.fromkeys(("type_precision", "type_scale", "type_interval_type", "comment", "partition_index")),
}
PARSING = "failed to parse a JSON document: com.fasterxml.jackson.databind.exc.ValueInstantiationException"
LIST = f"/tables?catalog_name={CATALOG}&schema_name=s1"
INVALID = "INVALID_ARGUMENT"
BAD_NAME = "Name cannot contain a period, space, forward-slash, or control character"


def error(case: str, method: str, path: str, status: int, code: str, message: str, body: Any = None) -> Fact:
    return Fact(case, method, path, status, body, code, message)


def schema(name: str, **properties: str) -> dict[str, Any]:
    """What is shown of a schema."""
    empty = dict.fromkeys(("comment", "owner", "created_by", "updated_by"))
    names = {"name": name, "catalog_name": CATALOG, "full_name": f"{CATALOG}.{name}"}
    return {**names, "properties": properties, **empty}


def create_schema(case: str, name: str, **properties: str) -> Fact:
    body = {"name": name, "catalog_name": CATALOG, "properties": properties}
    return Fact(case, "POST", "/schemas", 200, body, shows=schema(name, **properties))


def no_schema(name: str, status: int, code: str, message: str, *, case: str, catalog: str = CATALOG) -> Fact:
    return error(case, "POST", "/schemas", status, code, message, {"name": name, "catalog_name": catalog})


def table(name: str, **more: Any) -> dict[str, Any]:
    names = {"name": name, "catalog_name": CATALOG, "schema_name": "s1"}
    kind = {"table_type": "EXTERNAL", "data_source_format": "TEXT", "storage_location": f"file:///warehouse/s1/{name}"}
    return {**names, **kind, "columns": [COLUMN], "properties": LANCE, **more}


def table_response(name: str, **more: Any) -> dict[str, Any]:
    """What is shown of a table."""
    return {**table(name), "columns": [COLUMN_SHOWN], "comment": None, **more}


def create_table(case: str, name: str, *, location: str | None = None, **more: Any) -> Fact:
    seen = more.pop("seen", {}) | ({"storage_location": location} if location else {})
    return Fact(case, "POST", "/tables", 200, table(name, **more), shows=table_response(name, **{**more, **seen}))


def no_table(case: str, status: int, code: str, message: str, *, name: str = "zz", **more: Any) -> Fact:
    return error(case, "POST", "/tables", status, code, message, table(name, **more))


def refused_format(name: str) -> Fact:
    return no_table(f"fmt {name}", 400, INVALID, PARSING, data_source_format=name)


def accepted_format(name: str) -> Fact:
    return create_table(f"fmt {name}", f"f_{name.lower()}", data_source_format=name)


def list_response(*names: Any, token: str | None) -> dict[str, Any]:
    tables = [name if name is ... else {"name": name, "properties": LANCE, "columns": [{}]} for name in names]
    return {"tables": tables, "next_page_token": token}


SCHEMAS = [
    error(
        *("create catalog exists", "POST", "/catalogs", 400, "CATALOG_ALREADY_EXISTS"),
        message=f"Catalog already exists: {CATALOG}",
        body={"name": CATALOG, "comment": "t"},
    ),
    error("get missing catalog", "GET", "/catalogs/nope", 404, "CATALOG_NOT_FOUND", "Catalog not found: nope"),
    Fact(
        *("list catalogs", "GET", "/catalogs?max_results=1", 200),
        shows={"catalogs": [{"name": CATALOG, "properties": {}, "owner": None, "created_by": None}]},
    ),
    create_schema("create schema", "s1", k="v"),
    no_schema("s1", 400, "SCHEMA_ALREADY_EXISTS", "Schema already exists: s1", case="create schema again"),
    no_schema(
        *("s1", 404, "CATALOG_NOT_FOUND", "Catalog not found: nope"),
        case="create schema missing catalog",
        catalog="nope",
    ),
    create_schema("create schema case variant", "S1"),
    Fact("get schema upper", "GET", f"/schemas/{CATALOG}.S1", 200, shows=schema("S1")),
    Fact("get schema", "GET", f"/schemas/{CATALOG}.s1", 200, shows=schema("s1", k="v")),
    error(
        *("get missing schema", "GET", f"/schemas/{CATALOG}.nope", 404, "SCHEMA_NOT_FOUND"),
        message=f"Schema not found: {CATALOG}.nope",
    ),
    error(
        *("list schemas missing cat", "GET", "/schemas?catalog_name=nope", 404, "CATALOG_NOT_FOUND"),
        message="Catalog not found: nope",
    ),
    Fact(
        *("patch schema props", "PATCH", f"/schemas/{CATALOG}.s1", 200, {"properties": {"a": "b"}}),
        shows={**schema("s1"), "properties": {"a": "b", "k": None}},
    ),
]

TABLES = [
    no_table(
        *("peer type_json", 400, INVALID, "type_json.name is required."),
        columns=[{**COLUMN, "type_json": '{"type":"long"}'}],
    ),
    no_table(
        *("type_json string long", 400, INVALID),
        'Invalid type_json for column __placeholder_id: Failed to parse typeJson for column __placeholder_id: "long"',
        columns=[{**COLUMN, "type_json": '"long"'}],
    ),
    create_table("no columns", "t0b", columns=None, seen={"columns": []}),
    create_table("columns []", "t0c", columns=[]),
    refused_format("LANCE"),
    *(accepted_format(name) for name in ("TEXT", "PARQUET", "DELTA", "JSON", "CSV", "AVRO", "ORC")),
    *(refused_format(name) for name in ("ICEBERG", "UNITY_CATALOG")),
    create_table("create table", "t1"),
    no_table(*("create table again", 400, "TABLE_ALREADY_EXISTS", f"Table already exists: {CATALOG}.s1.t1"), name="t1"),
    create_table("create table same loc", "t1b", storage_location="file:///warehouse/s1/t1"),
    no_table(
        *("create missing schema", 404, "SCHEMA_NOT_FOUND", f"Schema not found: {CATALOG}.nope"), schema_name="nope"
    ),
    no_table(*("create missing catalog", 404, "CATALOG_NOT_FOUND", "Catalog not found: nope"), catalog_name="nope"),
    create_table("plain path loc", "tp", storage_location="/warehouse/s1/tp", location="file:///warehouse/s1/tp"),
    create_table("s3 loc", "ts", storage_location="s3://bucket/ts"),
    create_table("gs loc", "tg", storage_location="gs://bucket/tg"),
    create_table(
        "trailing slash", "tsl", storage_location="file:///warehouse/s1/tsl/", location="file:///warehouse/s1/tsl"
    ),
    no_table("memory loc", 400, INVALID, "Unsupported URI scheme: memory", storage_location="memory://x/y"),
    Fact("get", "GET", f"/tables/{CATALOG}.s1.t1", 200, shows=table_response("t1")),
    error(
        *("get upper", "GET", f"/tables/{CATALOG}.s1.T1", 404, "TABLE_NOT_FOUND"),
        message=f"Table not found: {CATALOG}.s1.T1",
    ),
    error(
        *("get missing", "GET", f"/tables/{CATALOG}.s1.zz", 404, "TABLE_NOT_FOUND"),
        message=f"Table not found: {CATALOG}.s1.zz",
    ),
    error(
        *("get missing schema", "GET", f"/tables/{CATALOG}.nope.zz", 404, "SCHEMA_NOT_FOUND"),
        message=f"Schema not found: {CATALOG}.nope",
    ),
    error(
        *("list missing schema", "GET", f"/tables?catalog_name={CATALOG}&schema_name=nope", 404, "SCHEMA_NOT_FOUND"),
        message=f"Schema not found: {CATALOG}.nope",
    ),
    Fact(
        *("list max_results=2", "GET", f"{LIST}&max_results=2&omit_columns=true", 200),
        shows=list_response("f_avro", "f_csv", token="f_csv"),
    ),
    Fact(
        *("list page 2", "GET", f"{LIST}&max_results=2&omit_columns=true&page_token=f_csv", 200),
        shows=list_response("f_delta", "f_json", token="f_json"),
    ),
    Fact("list bad token", "GET", f"{LIST}&page_token=zzz", 200, shows={"tables": [], "next_page_token": None}),
    Fact("max_results=0", "GET", f"{LIST}&max_results=0", 200, shows={"tables": [{"name": "f_avro"}, ...]}),
    error(
        *("max_results=-1", "GET", f"{LIST}&max_results=-1", 400, INVALID),
        message="maxResults must be greater than or equal to 0",
    ),
    Fact("max_results=100000", "GET", f"{LIST}&max_results=100000", 200, shows={"tables": [{"name": "f_avro"}, ...]}),
    error(
        *("drop non-empty schema", "DELETE", f"/schemas/{CATALOG}.s1", 400, "FAILED_PRECONDITION"),
        message="Cannot delete schema with tables",
    ),
    error(
        *("drop missing schema", "DELETE", f"/schemas/{CATALOG}.nope", 404, "SCHEMA_NOT_FOUND"),
        message=f"Schema not found: {CATALOG}.nope",
    ),
    error(
        *("drop missing table", "DELETE", f"/tables/{CATALOG}.s1.zz", 404, "TABLE_NOT_FOUND"),
        message="Table not found: zz",
    ),
    Fact("drop table", "DELETE", f"/tables/{CATALOG}.s1.t1", 200, text="200 OK"),
    error(
        *("drop table again", "DELETE", f"/tables/{CATALOG}.s1.t1", 404, "TABLE_NOT_FOUND"),
        message="Table not found: t1",
    ),
]

BIG = [f"b{number:03d}" for number in range(120)]
LIST_BIG = f"/tables?catalog_name={CATALOG}&schema_name=big"
FIRST_PAGE = {"tables": [{"name": name} for name in BIG[:100]], "next_page_token": "b099"}

PAGES = [
    create_schema("set-up big", "big"),
    *(Fact(f"set-up {name}", "POST", "/tables", 200, table(name, schema_name="big")) for name in BIG),
    Fact("default page", "GET", LIST_BIG, 200, shows=FIRST_PAGE),
    Fact("max_results=1000", "GET", f"{LIST_BIG}&max_results=1000", 200, shows=FIRST_PAGE),
    Fact("drop schema force", "DELETE", f"/schemas/{CATALOG}.big?force=true", 200, text="200 OK"),
    Fact("drop s1 force", "DELETE", f"/schemas/{CATALOG}.s1?force=true", 200, text="200 OK"),
]

ICEBERG = [
    Fact(
        *("IRC config", "GET", f"/iceberg/v1/config?warehouse={CATALOG}", 200),
        shows={
            "defaults": {},
            "overrides": {"prefix": f"catalogs/{CATALOG}"},
            "endpoints": ["GET /v1/{prefix}/namespaces", "GET /v1/{prefix}/namespaces/{namespace}", ...],
        },
    ),
    Fact(
        *("IRC ns", "GET", f"/iceberg/v1/catalogs/{CATALOG}/namespaces", 200),
        shows={"namespaces": [["S1"]], "next-page-token": None},
    ),
    Fact(
        *("IRC create ns", "POST", f"/iceberg/v1/catalogs/{CATALOG}/namespaces", 405, {"namespace": ["x"]}),
        text="Status: 405\nDescription: Method Not Allowed\n",
    ),
]

NAMES = [
    *(no_schema(name, 400, INVALID, BAD_NAME, case=f"schema {name!r}") for name in ("a.b", "a b", "a/b", "ü")),
    *(no_schema(name, 400, INVALID, BAD_NAME, case=f"schema {name!r}") for name in ("a%b", "a$b", "it's")),
    *(create_schema(f"schema {name!r}", name) for name in ("a-b", "a_b", "A")),
    no_schema("e" * 300, 400, INVALID, "Name cannot be longer than 255 characters", case="schema e..(300)"),
]

FACTS = SCHEMAS + TABLES + PAGES + ICEBERG + NAMES
