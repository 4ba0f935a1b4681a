"""What Iceberg's reference REST server 1.11.0 answers, over JDBC. Places in braces are the server's and the test's own.

Recorded in November 2026 and restated here; `set-up` lines were sent but not recorded.
"""

from __future__ import annotations

from typing import Any

from tests.wire.facts import Fact, NameFact, metadata_location

SCHEMA = {"type": "struct", "fields": [{"id": 1, "name": "dummy", "required": False, "type": "string"}]}
LANCE = {"table_type": "lance"}
SPACES, TABLES = "/v1/namespaces", "/v1/namespaces/p1/tables"

NO_SPACE = "NoSuchNamespaceException"
NO_TABLE = "NoSuchTableException"
EXISTS = "AlreadyExistsException"
NOT_EMPTY = "NamespaceNotEmptyException"
PAGE = '<html>\n<head>\n<meta http-equiv="Content-Type" content="text/html;charset=ISO-8859-1"/>\n<title>Error 400 '


def create_space(*levels: str, status: int = 200, **more: Any) -> Fact:
    properties = more.pop("properties", {})
    body = {"namespace": list(levels), "properties": properties}
    case = more.pop("case", f"create ns {list(levels)}")
    return Fact(case, "POST", SPACES, status, body, **more)


def created_space(*levels: str, **more: Any) -> Fact:
    """A namespace that is created, and shows where."""
    location = "/".join(["{warehouse}", *levels])
    properties = {"location": location, **more.get("properties", {})}
    return create_space(*levels, shows={"namespace": list(levels), "properties": properties}, **more)


def create_table(case: str, name: str, location: str | None = None, *, path: str = TABLES, **more: Any) -> Fact:
    body = {"name": name, "schema": SCHEMA, "properties": LANCE} | ({"location": location} if location else {})
    return Fact(case, "POST", path, more.pop("status", 200), body, **more)


def load_response(location: str, metadata: str) -> dict[str, Any]:
    """What is shown of a table."""
    properties = {"write.parquet.compression-codec": "zstd", **LANCE}
    shown = {"location": location, "properties": properties}
    return {"metadata-location": metadata_location(metadata), "metadata": shown, "config": None}


def identifiers(*names: Any, space: str = "p1", token: str | None = None) -> dict[str, Any]:
    listed = [name if name is ... else {"namespace": [space], "name": name} for name in names]
    return {"identifiers": listed, "next-page-token": token}


def spaces(*listed: list[str], token: str | None = None) -> dict[str, Any]:
    return {"namespaces": list(listed), "next-page-token": token}


T1 = load_response("{warehouse}/p1/t1-0", "{hadoop}/p1/t1-0")

NAMESPACES = [
    created_space("p1", properties={"k": "v"}),
    create_space("p1", status=409, type=EXISTS, message="Namespace already exists: p1", case="create ns ['p1'] again"),
    created_space("nope", "c"),
    created_space(),
    create_space("", status=409, type=EXISTS, message="Namespace already exists: "),
    Fact(
        *("describe ns", "GET", f"{SPACES}/p1", 200),
        shows={"namespace": ["p1"], "properties": {"location": "{warehouse}/p1", "k": "v"}},
    ),
    Fact(
        *("describe missing ns", "GET", f"{SPACES}/nope", 200),
        shows={"namespace": ["nope"], "properties": {"location": "{warehouse}/nope"}},
    ),
    Fact("HEAD ns", "HEAD", f"{SPACES}/p1", 204),
    Fact("HEAD missing ns", "HEAD", f"{SPACES}/nope", 204),
    Fact(
        *("drop missing ns", "DELETE", f"{SPACES}/nope", 409),
        type=NOT_EMPTY,
        message="Namespace nope is not empty. Contains 1 child namespace(s).",
    ),
    Fact("list ns parent missing", "GET", f"{SPACES}?parent=nope", 200, shows=spaces(["nope", "c"])),
    created_space("p1", "c1"),
    created_space("p1", "c1", "d1"),
    Fact("list top", "GET", SPACES, 200, shows=spaces(["nope"], ["p1"])),
    Fact("list ?parent=p1", "GET", f"{SPACES}?parent=p1", 200, shows=spaces(["p1", "c1"])),
    Fact("list ?parent=p1%1Fc1", "GET", f"{SPACES}?parent=p1%1Fc1", 200, shows=spaces(["p1", "c1", "d1"])),
    Fact("list ?parent=p1.c1", "GET", f"{SPACES}?parent=p1.c1", 200, shows=spaces(["p1", "c1", "d1"])),
    Fact("list ?parent=p1%2Ec1", "GET", f"{SPACES}?parent=p1%2Ec1", 200, shows=spaces(["p1", "c1", "d1"])),
    Fact(
        *("list ?parent=p1%251Fc1", "GET", f"{SPACES}?parent=p1%251Fc1", 404),
        type=NO_SPACE,
        message="Namespace does not exist: p1%1Fc1",
    ),
    Fact(
        *("GET ns/namespaces", "GET", f"{SPACES}/p1/namespaces", 400),
        type="BadRequestException",
        message="No route for request: GET v1/namespaces/p1/namespaces",
    ),
    Fact("describe nested %1F", "GET", f"{SPACES}/p1%1Fc1", 400, text=PAGE + "Suspicious Path Character"),
    Fact(
        *("describe nested .", "GET", f"{SPACES}/p1.c1", 200),
        shows={"namespace": ["p1.c1"], "properties": {"location": "{warehouse}/p1.c1"}},
    ),
    Fact(
        *("describe nested %2E", "GET", f"{SPACES}/p1%2Ec1", 200),
        shows={"namespace": ["p1", "c1"], "properties": {"location": "{warehouse}/p1/c1"}},
    ),
    Fact("describe nested %251F", "GET", f"{SPACES}/p1%251Fc1", 400, text=PAGE + "Ambiguous URI path encoding"),
    Fact(
        *("drop ns with child ns", "DELETE", f"{SPACES}/p1", 409),
        type=NOT_EMPTY,
        message="Namespace p1 is not empty. Contains 1 child namespace(s).",
    ),
    Fact(
        *("update props", "POST", f"{SPACES}/p1/properties", 200),
        body={"removals": ["k"], "updates": {"a": "b"}},
        shows={"removed": ["k"], "updated": ["a"], "missing": []},
    ),
]

TABLE_FACTS = [
    create_table("create tbl explicit loc", "t1", "{warehouse}/p1/t1-0", shows=T1),
    create_table("create tbl again", "t1", status=409, type=EXISTS, message="Table already exists: p1.t1"),
    create_table("create tbl default loc", "t2", shows=load_response("{warehouse}/p1/t2", "{hadoop}/p1/t2")),
    create_table("create tbl same loc", "t3", "{warehouse}/p1/t1-0", shows=T1),
    create_table("create tbl plain path loc", "t4", "{plain}", shows=load_response("{plain}", "{plain}")),
    create_table(
        "create tbl loc outside", "t5", "{outside}/t5", shows=load_response("{outside}/t5", "{hadoop outside}/t5")
    ),
    create_table(
        *("create tbl s3 loc", "t6", "s3://bucket/x/t6"),
        status=500,
        type="RuntimeIOException",
        message="Failed to get file system for path: s3://bucket/x/t6/metadata/00000-",
    ),
    create_table(
        *("create tbl in missing ns", "t1"),
        path=f"{SPACES}/nope/tables",
        shows=load_response("{warehouse}/nope/t1", "{hadoop}/nope/t1"),
    ),
    create_table(
        *("create tbl nested %1F", "nt"),
        path=f"{SPACES}/p1%1Fc1/tables",
        status=400,
        text=PAGE + "Suspicious Path Character",
    ),
    create_table(
        *("create tbl nested .", "nt", "{warehouse}/p1/c1/nt20"),
        path=f"{SPACES}/p1.c1/tables",
        shows=load_response("{warehouse}/p1/c1/nt20", "{hadoop}/p1/c1/nt20"),
    ),
    Fact("describe tbl", "GET", f"{TABLES}/t1", 200, shows=T1),
    Fact("describe missing tbl", "GET", f"{TABLES}/zz", 404, type=NO_TABLE, message="Table does not exist: p1.zz"),
    Fact(
        *("describe tbl missing ns", "GET", f"{SPACES}/nope/tables/zz", 404),
        type=NO_TABLE,
        message="Table does not exist: nope.zz",
    ),
    Fact("list tables", "GET", TABLES, 200, shows=identifiers("t1", "t2", "t3", "t4", ...)),
    Fact("list tables missing ns", "GET", f"{SPACES}/nope/tables", 200, shows=identifiers("t1", space="nope")),
    Fact("HEAD tbl", "HEAD", f"{TABLES}/t1", 204),
    Fact("HEAD missing tbl", "HEAD", f"{TABLES}/zz", 404),
    Fact(
        *("drop ns with tables", "DELETE", f"{SPACES}/p1.c1", 409),
        type=NOT_EMPTY,
        message="Namespace p1.c1 is not empty. Contains 1 table(s).",
    ),
    Fact("list pageSize=1", "GET", f"{TABLES}?pageSize=1", 200, shows=identifiers("t1", token="1")),
    Fact("list pageSize=1, next", "GET", f"{TABLES}?pageSize=1&pageToken=1", 200, shows=identifiers("t2", token="2")),
    Fact("list pageToken=", "GET", f"{TABLES}?pageToken=&pageSize=1", 200, shows=identifiers("t1", token="1")),
    Fact("list pageToken=, next", "GET", f"{TABLES}?pageSize=1&pageToken=1", 200, shows=identifiers("t2", token="2")),
    Fact(
        *("list pageToken=garbage", "GET", f"{TABLES}?pageToken=garbage&pageSize=1", 500),
        type="NumberFormatException",
        message='For input string: "garbage"',
    ),
    Fact("drop missing tbl", "DELETE", f"{TABLES}/zz", 404, type=NO_TABLE, message="Table does not exist: p1.zz"),
    Fact("drop tbl", "DELETE", f"{TABLES}/t1?purgeRequested=false", 204),
    Fact(
        *("drop tbl again", "DELETE", f"{TABLES}/t1?purgeRequested=false", 404),
        type=NO_TABLE,
        message="Table does not exist: p1.t1",
    ),
    *(created_space(name, case=f"set-up {name}") for name in ("n1", "n2", "n3")),
    Fact("list ns pageSize=2", "GET", f"{SPACES}?pageSize=2", 200, shows=spaces(["nope"], ["p1"], token="2")),
    Fact(
        "list ns pageToken=", "GET", f"{SPACES}?pageToken=&pageSize=2", 200, shows=spaces(["nope"], ["p1"], token="2")
    ),
    Fact("list ns, next", "GET", f"{SPACES}?pageSize=2&pageToken=2", 200, shows=spaces(["n1"], ["n2"], token="4")),
    created_space("nm"),
]

FACTS = NAMESPACES + TABLE_FACTS

UNREADABLE = (200, 400, 400)
"""Created, then refused by Jetty in every path."""

NAMES = [
    *(NameFact(name) for name in ("a.b", "a b")),
    NameFact("a/b", UNREADABLE, UNREADABLE),
    *(NameFact(name) for name in ("ü", "表")),
    *(NameFact(name, UNREADABLE, UNREADABLE) for name in ("a%b", "a%2Fb")),
    *(NameFact(name) for name in ("a$b", "A", "a", "a+b", "a?b", "a#b")),
    *(NameFact(name, UNREADABLE, UNREADABLE) for name in ("a\\b", "x\x1fy")),
    *(NameFact(name) for name in ("it's", "..", "e" * 300)),
]
NAMED_TABLE = {"schema": SCHEMA, "properties": LANCE, "location": "{warehouse}/nm/{number}"}
