"""What Apache Polaris 1.4.1 answers, with one catalog `test_catalog` below `file:///warehouse`.

Recorded in November 2026 and restated here; `set-up` lines were sent but not recorded. Generic tables have an API, so
also paths, of their own.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from tests.wire.facts import Fact, NameFact, metadata_location

SCHEMA = {"type": "struct", "fields": [{"id": 1, "name": "dummy", "required": False, "type": "string"}]}
LANCE = {"table_type": "lance"}
HOME = "file:///warehouse/test_catalog"
SPACES = "/v1/test_catalog/namespaces"
GENERIC_SPACES = "/polaris/v1/test_catalog/namespaces"
TABLES, GENERIC = f"{SPACES}/p1/tables", f"{GENERIC_SPACES}/p1/generic-tables"

NO_SPACE = "NoSuchNamespaceException"
NO_TABLE = "NoSuchTableException"
EXISTS = "AlreadyExistsException"
NOT_EMPTY = "NamespaceNotEmptyException"
FORBIDDEN = "ForbiddenException"
NO_ROUTE = "Unable to find matching target resource method"
ANY_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z")


def error(case: str, method: str, path: str, status: int, type: str, message: str, body: Any = None) -> Fact:
    return Fact(case, method, path, status, body, type, message)


def no_space(case: str, method: str, path: str, name: str = "nope", body: Any = None) -> Fact:
    return error(case, method, path, 404, NO_SPACE, f"Namespace does not exist: {name}", body)


def no_table(case: str, method: str, path: str, name: str, kind: str = "Table") -> Fact:
    return error(case, method, path, 404, NO_TABLE, f"{kind} does not exist: {name}")


def space(*levels: str, **properties: str) -> dict[str, Any]:
    location = "/".join([HOME, *levels, ""])
    return {"namespace": list(levels), "properties": {"location": location, **properties}}


def create_space(*levels: str, case: str = "", **properties: str) -> Fact:
    body = {"namespace": list(levels), "properties": properties}
    return Fact(case or f"create ns {list(levels)}", "POST", SPACES, 200, body, shows=space(*levels, **properties))


def no_create_space(*levels: str, status: int, type: str, message: str, case: str = "") -> Fact:
    body = {"namespace": list(levels), "properties": {}}
    return error(case or f"create ns {list(levels)}", "POST", SPACES, status, type, message, body)


def spaces(*listed: list[str]) -> dict[str, Any]:
    return {"namespaces": list(listed), "next-page-token": None}


def identifiers(*names: Any) -> dict[str, Any]:
    listed = [name if name is ... else {"namespace": ["p1"], "name": name} for name in names]
    return {"identifiers": listed, "next-page-token": None}


def table(name: str, location: str | None = None) -> dict[str, Any]:
    body = {"name": name, "schema": SCHEMA, "properties": LANCE}
    return body | ({"location": location} if location else {})


def generic(name: str, location: str | None = None) -> dict[str, Any]:
    body = {"name": name, "format": "lance", "properties": LANCE}
    return body | ({"base-location": location} if location else {})


def load_response(path: str) -> dict[str, Any]:
    """What is shown of an Iceberg table below the catalog's folder."""
    properties = {"created-at": ANY_TIME, "write.parquet.compression-codec": "zstd", **LANCE}
    shown = {"location": f"{HOME}/{path}", "properties": properties}
    return {"metadata-location": metadata_location(f"file:/warehouse/test_catalog/{path}"), "metadata": shown}


def generic_loaded(name: str, location: str) -> Mapping[str, Any]:
    """What is shown of a generic table."""
    shown = {"name": name, "format": "lance", "base-location": location, "doc": None, "properties": LANCE}
    return {"table": shown, "storage-access-configs": []}


def outside(case: str, name: str, location: str) -> Fact:
    """An Iceberg table that may not be where it wants to."""
    reason = f"{location} is not in the list of allowed locations: [{HOME}/p1]"
    message = f"Invalid locations '[{location}]' for identifier 'p1.{name}': {reason}"
    return error(case, "POST", TABLES, 403, FORBIDDEN, message, table(name, location))


NAMESPACES = [
    create_space("p1", k="v"),
    no_create_space(
        *("p1",),
        status=409,
        type=EXISTS,
        message="Cannot create namespace p1. Namespace already exists",
        case="create ns ['p1'] again",
    ),
    no_create_space("nope", "c", status=404, type=NO_SPACE, message="Namespace does not exist: nope"),
    no_create_space(status=409, type=EXISTS, message="Cannot create root namespace, as it already exists implicitly."),
    no_create_space(
        "",
        status=403,
        type=FORBIDDEN,
        message=f"Unable to create table at location '{HOME}/' because it conflicts with existing table or namespace",
    ),
    Fact("describe ns", "GET", f"{SPACES}/p1", 200, shows=space("p1", k="v")),
    no_space("describe missing ns", "GET", f"{SPACES}/nope"),
    Fact("HEAD ns", "HEAD", f"{SPACES}/p1", 204),
    Fact("HEAD missing ns", "HEAD", f"{SPACES}/nope", 404),
    no_space("drop missing ns", "DELETE", f"{SPACES}/nope"),
    no_space("list ns parent missing", "GET", f"{SPACES}?parent=nope"),
    create_space("p1", "c1"),
    create_space("p1", "c1", "d1"),
    Fact("list top", "GET", SPACES, 200, shows=spaces(["p1"])),
    Fact("list ?parent=p1", "GET", f"{SPACES}?parent=p1", 200, shows=spaces(["p1", "c1"])),
    Fact("list ?parent=p1%1Fc1", "GET", f"{SPACES}?parent=p1%1Fc1", 200, shows=spaces(["p1", "c1", "d1"])),
    no_space("list ?parent=p1.c1", "GET", f"{SPACES}?parent=p1.c1", "p1.c1"),
    no_space("list ?parent=p1%2Ec1", "GET", f"{SPACES}?parent=p1%2Ec1", "p1.c1"),
    no_space("list ?parent=p1%251Fc1", "GET", f"{SPACES}?parent=p1%251Fc1", "p1%1Fc1"),
    error("GET ns/namespaces", "GET", f"{SPACES}/p1/namespaces", 404, "NotFoundException", NO_ROUTE),
    Fact("describe nested %1F", "GET", f"{SPACES}/p1%1Fc1", 200, shows=space("p1", "c1")),
    no_space("describe nested .", "GET", f"{SPACES}/p1.c1", "p1.c1"),
    no_space("describe nested %2E", "GET", f"{SPACES}/p1%2Ec1", "p1.c1"),
    no_space("describe nested %251F", "GET", f"{SPACES}/p1%251Fc1", "p1%1Fc1"),
    error("drop ns with child ns", "DELETE", f"{SPACES}/p1", 409, NOT_EMPTY, "Namespace p1 is not empty"),
    error(
        *("update props", "POST", f"{SPACES}/p1/properties", 409, "CommitConflictException"),
        message="Concurrent modification of namespace: p1",
        body={"removals": ["k"], "updates": {"a": "b"}},
    ),
]

ICEBERG_TABLES = [
    Fact(
        "create tbl explicit loc", "POST", TABLES, 200, table("t1", f"{HOME}/p1/t1-0"), shows=load_response("p1/t1-0")
    ),
    error("create tbl again", "POST", TABLES, 409, EXISTS, "Table already exists: p1.t1", table("t1")),
    Fact("create tbl default loc", "POST", TABLES, 200, table("t2"), shows=load_response("p1/t2")),
    error(
        *("create tbl same loc", "POST", TABLES, 403, FORBIDDEN),
        message=f"Unable to create table at location '{HOME}/p1/t1-0' because it conflicts with existing table or "
        f"namespace at location '{HOME}/p1/t1-0/'",
        body=table("t3", f"{HOME}/p1/t1-0"),
    ),
    outside("create tbl plain path loc", "t4", "/warehouse"),
    outside("create tbl loc outside", "t5", "file:///somewhere/else/t5"),
    outside("create tbl s3 loc", "t6", "s3://bucket/x/t6"),
    no_space("create tbl in missing ns", "POST", f"{SPACES}/nope/tables", body=table("t1")),
    Fact(
        *("create tbl nested %1F", "POST", f"{SPACES}/p1%1Fc1/tables", 200, table("nt", f"{HOME}/p1/c1/nt0")),
        shows=load_response("p1/c1/nt0"),
    ),
    no_space("create tbl nested .", "POST", f"{SPACES}/p1.c1/tables", "p1.c1", table("nt")),
    Fact("describe tbl", "GET", f"{TABLES}/t1", 200, shows=load_response("p1/t1-0")),
    no_table("describe missing tbl", "GET", f"{TABLES}/zz", "p1.zz"),
    no_table("describe tbl missing ns", "GET", f"{SPACES}/nope/tables/zz", "nope.zz"),
    Fact("list tables", "GET", TABLES, 200, shows=identifiers("t1", "t2")),
    no_space("list tables missing ns", "GET", f"{SPACES}/nope/tables"),
    Fact("HEAD tbl", "HEAD", f"{TABLES}/t1", 204),
    Fact("HEAD missing tbl", "HEAD", f"{TABLES}/zz", 404),
    error("drop ns with tables", "DELETE", f"{SPACES}/p1%1Fc1", 409, NOT_EMPTY, "Namespace p1.c1 is not empty"),
    Fact("list pageSize=1", "GET", f"{TABLES}?pageSize=1", 200, shows=identifiers("t1", "t2")),
    Fact("list pageToken=", "GET", f"{TABLES}?pageToken=&pageSize=1", 200, shows=identifiers("t1", "t2")),
    Fact("list pageToken=garbage", "GET", f"{TABLES}?pageToken=garbage&pageSize=1", 200, shows=identifiers("t1", "t2")),
    no_table("drop missing tbl", "DELETE", f"{TABLES}/zz", "p1.zz"),
    Fact("drop tbl", "DELETE", f"{TABLES}/t1?purgeRequested=false", 204),
    no_table("drop tbl again", "DELETE", f"{TABLES}/t1?purgeRequested=false", "p1.t1"),
]

GENERIC_T1 = generic_loaded("t1", f"{HOME}/p1/t1-1")
LISTED = identifiers("t1", "t3", "t4", ...)

GENERIC_TABLES = [
    Fact("generic explicit loc", "POST", GENERIC, 200, generic("t1", f"{HOME}/p1/t1-1"), shows=GENERIC_T1),
    error("generic again", "POST", GENERIC, 409, EXISTS, "Generic table already exists: p1.t1", generic("t1")),
    error("generic default loc", "POST", GENERIC, 409, EXISTS, "Table already exists: p1.t2", generic("t2")),
    Fact(
        *("generic same loc", "POST", GENERIC, 200, generic("t3", f"{HOME}/p1/t1-1")),
        shows=generic_loaded("t3", f"{HOME}/p1/t1-1"),
    ),
    *(
        Fact(f"generic {case}", "POST", GENERIC, 200, generic(name, location), shows=generic_loaded(name, location))
        for case, name, location in [
            ("plain path loc", "t4", "/warehouse"),
            ("loc outside", "t5", "file:///somewhere/else/t5"),
            ("s3 loc", "t6", "s3://bucket/x/t6"),
        ]
    ),
    no_space("generic in missing ns", "POST", f"{GENERIC_SPACES}/nope/generic-tables", body=generic("t1")),
    error(
        *("generic nested %1F", "POST", f"{GENERIC_SPACES}/p1%1Fc1/generic-tables", 409, EXISTS),
        message="Table already exists: p1.c1.nt",
        body=generic("nt"),
    ),
    no_space("generic nested .", "POST", f"{GENERIC_SPACES}/p1.c1/generic-tables", "p1.c1", generic("nt")),
    Fact("describe generic", "GET", f"{GENERIC}/t1", 200, shows=GENERIC_T1),
    no_table("describe missing generic", "GET", f"{GENERIC}/zz", "p1.zz", "Generic table"),
    no_table(
        *("describe generic missing ns", "GET", f"{GENERIC_SPACES}/nope/generic-tables/zz", "nope.zz", "Generic table")
    ),
    Fact("list generic", "GET", GENERIC, 200, shows=LISTED),
    no_space("list generic missing ns", "GET", f"{GENERIC_SPACES}/nope/generic-tables"),
    Fact("HEAD generic", "HEAD", f"{GENERIC}/t1", 200),
    Fact("HEAD missing generic", "HEAD", f"{GENERIC}/zz", 404),
    error("drop ns with tables, again", "DELETE", f"{SPACES}/p1%1Fc1", 409, NOT_EMPTY, "Namespace p1.c1 is not empty"),
    Fact("list generic pageSize=1", "GET", f"{GENERIC}?pageSize=1", 200, shows=LISTED),
    Fact("list generic pageToken=", "GET", f"{GENERIC}?pageToken=&pageSize=1", 200, shows=LISTED),
    Fact("list generic pageToken=garbage", "GET", f"{GENERIC}?pageToken=garbage&pageSize=1", 200, shows=LISTED),
    no_table("drop missing generic", "DELETE", f"{GENERIC}/zz", "p1.zz", "Generic table"),
    Fact("drop generic", "DELETE", f"{GENERIC}/t1?purgeRequested=false", 204),
    no_table("drop generic again", "DELETE", f"{GENERIC}/t1?purgeRequested=false", "p1.t1", "Generic table"),
    Fact("iceberg tbl ig", "POST", TABLES, 200, table("ig"), shows=load_response("p1/ig")),
    error("generic named as iceberg", "POST", GENERIC, 409, EXISTS, "Table already exists: p1.ig", generic("ig")),
    no_table("generic GET of iceberg", "GET", f"{GENERIC}/ig", "p1.ig", "Generic table"),
    Fact("iceberg GET", "GET", f"{TABLES}/t2", 200, shows=load_response("p1/t2")),
    Fact("list iceberg tbls", "GET", TABLES, 200, shows=identifiers("t2", "ig")),
    *(create_space(name, case=f"set-up {name}") for name in ("n1", "n2", "n3")),
    Fact("list ns pageSize=2", "GET", f"{SPACES}?pageSize=2", 200, shows=spaces(["p1"], ["n1"], ["n2"], ["n3"])),
    Fact(
        *("list ns pageToken=", "GET", f"{SPACES}?pageToken=&pageSize=2", 200),
        shows=spaces(["p1"], ["n1"], ["n2"], ["n3"]),
    ),
    create_space("nm"),
]

FACTS = NAMESPACES + ICEBERG_TABLES + GENERIC_TABLES

NO_URI = (400, 404, 404)
"""Its location would be no URI, so the namespace is not created."""
ILLEGAL, MALFORMED = "Illegal character in path at index ", "Malformed escape pair at index "
PARSER = "IllegalArgumentException"

NAMES = [
    NameFact("a.b"),
    NameFact("a b", NO_URI, type=PARSER, message=ILLEGAL),
    *(NameFact(name) for name in ("a/b", "ü", "表")),
    NameFact("a%b", NO_URI, type=PARSER, message=MALFORMED),
    *(NameFact(name) for name in ("a%2Fb", "a$b", "A", "a", "a+b", "a?b", "a#b")),
    *(NameFact(name, NO_URI, type=PARSER, message=ILLEGAL) for name in ("a\\b", "x\x1fy")),
    NameFact("it's"),
    NameFact("..", (200, 404, 404), (200, 404, 404), "NotFoundException", NO_ROUTE),
    NameFact("e" * 300),
]
NAMED_TABLE = {"format": "lance", "properties": LANCE, "base-location": f"{HOME}/nm/{{number}}"}
