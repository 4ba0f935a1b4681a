"""Who has a grant on one table alone: every route refuses everything else."""

from __future__ import annotations

import json
from typing import Any

import lance
import pyarrow as pa
import pytest

from lancehouse.catalog.bootstrap import open_database
from lancehouse.catalog.callers import Grant, Role
from lancehouse.catalog.principals import Principals
from lancehouse.gateway.operations import OPERATIONS, RequiredAccess
from lancehouse.server.api.iceberg import ROUTES
from lancehouse.server.console.routes import DATA_HANDLERS, TABLE_HANDLERS
from tests.gateway.calls import BODIES, call
from tests.live.gateways import ask
from tests.security.house import ServerWithPrincipals

SECRET = "rows of nobody else"
SCHEMA = {"type": "struct", "fields": [{"id": 1, "name": "id", "required": False, "type": "long"}]}
VIEW = {
    "name": "w",
    "schema": SCHEMA,
    "view-version": {
        "version-id": 1,
        "timestamp-ms": 1,
        "schema-id": 0,
        "summary": {},
        "default-namespace": ["one"],
        "representations": [{"type": "sql", "sql": "select 1", "dialect": "spark"}],
    },
    "properties": {},
}
COMMIT: dict[str, Any] = {"requirements": [], "updates": [{"action": "set-properties", "updates": {"x": "y"}}]}
ICEBERG_BODIES: dict[str, Any] = {
    "createNamespace": {"namespace": ["one", "more"]},
    "updateProperties": {"updates": {"x": "y"}, "removals": []},
    "createTable": {"name": "new", "schema": SCHEMA},
    "registerTable": {"name": "new", "metadata-location": "nowhere"},
    "updateTable": COMMIT,
    "renameTable": {
        "source": {"namespace": ["one"], "name": "theirs"},
        "destination": {"namespace": ["one"], "name": "x"},
    },
    "reportMetrics": {
        "report-type": "scan-report",
        "table-name": "x",
        "snapshot-id": 1,
        "filter": {"type": "true"},
        "schema-id": 0,
        "projected-field-ids": [],
        "projected-field-names": [],
        "metrics": {},
    },
    "commitTransaction": {
        "table-changes": [{"identifier": {"namespace": ["one"], "name": name}, **COMMIT} for name in ("mine", "theirs")]
    },
    "planTableScan": {},
    "fetchScanTasks": {"plan-task": "x"},
    "createView": VIEW,
    "registerView": {"name": "w", "metadata-location": "nowhere"},
    "replaceView": COMMIT,
    "renameView": {
        "source": {"namespace": ["one"], "name": "view"},
        "destination": {"namespace": ["one"], "name": "x"},
    },
}
SEEN = {"listNamespaces", "loadNamespaceMetadata", "namespaceExists", "listTables", "listViews"}
"""What is answered about the namespace of the table: it is above it, and lists leave others out."""


@pytest.fixture(scope="module")
def one(house: ServerWithPrincipals) -> ServerWithPrincipals:
    """With tables `mine` and `theirs`, in namespace `one` and in a folder.

    `one-r` reads, `one-w` writes and `one-o` owns `mine`.
    """
    assert house.send("root", "POST", "/iceberg/v1/main/namespaces", {"namespace": ["one"]})[0] == 200
    for name in ("mine", "theirs"):
        rows = pa.table({"id": pa.array([1], pa.int64()), "text": [SECRET if name == "theirs" else "mine"]})
        lance.write_dataset(rows, house.place("one", name))
        house.register("root", "one", name)
        lance.write_dataset(rows, str(house.folder / "files" / f"{name}.lance"))
    path = "/iceberg/v1/main/namespaces/one/views"
    assert house.send("root", "POST", path, {**VIEW, "name": "view"})[0] == 200
    database = open_database(f"sqlite:///{house.folder / 'catalog.db'}")
    principals = Principals(database, ["files"])
    for name, role in {"one-r": Role.READER, "one-w": Role.WRITER, "one-o": Role.ADMIN}.items():
        principals.create(name, [Grant(role, "main", ("one",), "mine"), Grant(role, "files", (), "mine")])
        house.tokens[name] = principals.create_token(name, "test")
    database.close()
    return house


@pytest.mark.parametrize("route", ROUTES, ids=lambda route: route.name)
def test_iceberg_routes(one: ServerWithPrincipals, route: Any) -> None:
    path = route.template.replace("{prefix}", "main").replace("{namespace}", "one").replace("{table}", "theirs")
    path = path.replace("{view}", "view").replace("{plan-id}", "0" * 8 + "-0000-0000-0000-" + "0" * 12)
    status, body = one.send("one-o", route.method, f"/iceberg{path}", ICEBERG_BODIES.get(route.name))
    assert (status in (200, 204)) == (route.name in SEEN), body
    if route.name not in SEEN:
        assert status == 403, body
    assert b"theirs" not in body or status == 403
    assert SECRET.encode() not in body


@pytest.mark.parametrize("backend", ["main", "files"])
@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda operation: operation.name)
def test_operations_of_the_lance_protocol(one: ServerWithPrincipals, operation: Any, backend: str) -> None:
    namespace = ["one"] if backend == "main" else []
    kind = operation.path.partition("/")[0]
    target = namespace if kind == "namespace" else [*namespace, "theirs", *(["1"] if kind == "transaction" else [])]
    method, path, body = call(operation, "$".join(target) or "$")
    if operation.name in BODIES and body is not None and body.startswith(b"{"):
        body = body.replace(b'"db", "t"', json.dumps([*namespace, "theirs"])[1:-1].encode())
        body = body.replace(b'"db", "u"', json.dumps([*namespace, "new"])[1:-1].encode())
    if operation.name == "AlterTransaction":
        body = json.dumps({"actions": [{"set_status_action": {"status": "SUCCEEDED"}}]}).encode()
    if operation.name == "CreateMaterializedView":
        fields = {"kind": "query", "source_query": "select 1", "output_schema": "{}", "udf_specs": []}
        body = json.dumps({"source_table_id": target, **fields}).encode()
    content = {"content-type": "application/json"}
    if operation.body.name == "ARROW":
        content = {"content-type": "application/vnd.apache.arrow.stream"}
    headers = {"authorization": f"Bearer {one.tokens['one-o']}", **content}
    heard = ask(one.served, method, f"/lance/{backend}/v1/{path}", body, headers)
    assert SECRET.encode() not in heard.body
    is_seen = kind == "namespace" and operation.required_access is RequiredAccess.READ
    if is_seen or (operation.name == "ListAllTables" and backend == "main"):
        assert heard.status == 200, heard.body
        assert b"theirs" not in heard.body
    else:
        assert heard.status == 403, heard.body


@pytest.mark.parametrize("backend", ["main", "files"])
@pytest.mark.parametrize("question", [*TABLE_HANDLERS, *DATA_HANDLERS])
def test_questions_of_the_console(one: ServerWithPrincipals, question: str, backend: str) -> None:
    levels = "level=one&" if backend == "main" else ""
    path = f"/console/v1/{question}?in={backend}&{levels}level=theirs&column=id&row=0&k=1&filter=true&to=1&number=0"
    status, body = one.send("one-o", "GET", path)
    assert (status, SECRET.encode() in body) == (403, False), body


@pytest.mark.parametrize("backend", ["main", "files"])
def test_what_is_granted_is_seen_and_read(one: ServerWithPrincipals, backend: str) -> None:
    table, level = ("one$mine", "&level=one") if backend == "main" else ("mine", "")
    assert one.query("one-r", table, backend)[0] == 200
    names = json.loads(one.send("one-r", "GET", f"/console/v1/entries?in={backend}{level}")[1])["names"]
    assert names == ["mine"]
    assert one.send("one-r", "GET", f"/console/v1/rows?in={backend}{level}&level=mine")[0] == 200
    deletion = {"predicate": "false"}
    statuses = [
        one.send(who, "POST", f"/lance/{backend}/v1/table/{table}/delete", deletion)[0] for who in ("one-r", "one-w")
    ]
    assert statuses == [403, 200]


def test_lists_and_searches_show_one_table(one: ServerWithPrincipals) -> None:
    listed = json.loads(one.send("one-r", "GET", "/iceberg/v1/main/namespaces/one/tables")[1])["identifiers"]
    assert listed == [{"namespace": ["one"], "name": "mine"}]
    assert json.loads(one.send("one-r", "GET", "/iceberg/v1/main/namespaces")[1])["namespaces"] == [["one"]]
    assert json.loads(one.send("one-r", "GET", "/lance/main/v1/table")[1])["tables"] == ["one$mine"]
    found = json.loads(one.send("one-r", "GET", "/console/v1/search?q=main")[1])["found"]
    assert [each["levels"] for each in found] == [["one"], ["one", "mine"]]
    paged = json.loads(one.send("one-r", "GET", "/iceberg/v1/main/namespaces/one/tables?pageToken=&pageSize=1")[1])
    assert (len(paged["identifiers"]), paged["next-page-token"]) == (1, None)
    assert one.send("one-r", "GET", "/iceberg/v1/main/namespaces/a/tables")[0] == 403


def test_a_writer_of_a_table_commits_and_only_an_owner_drops_it(one: ServerWithPrincipals) -> None:
    path = "/iceberg/v1/main/namespaces/one/tables/mine"
    assert [one.send(who, "POST", path, COMMIT)[0] for who in ("one-r", "one-w")] == [403, 200]
    assert [one.send(who, "DELETE", path)[0] for who in ("one-r", "one-w")] == [403, 403]
    stolen = {"requirements": [{"type": "assert-create"}], "updates": []}
    assert one.send("one-o", "POST", path.replace("mine", "new"), stolen)[0] == 403
    # A new name takes a writer of its namespace.
    rename = {"source": {"namespace": ["one"], "name": "mine"}, "destination": {"namespace": ["one"], "name": "x"}}
    assert one.send("one-o", "POST", "/iceberg/v1/main/tables/rename", rename)[0] == 403
    assert one.send("one-o", "DELETE", path)[0] == 204
    # A grant is by name.
    lance.write_dataset(pa.table({"id": [2]}), one.place("one", "again"))
    body = {"name": "mine", "metadata-location": one.place("one", "again")}
    assert one.send("root", "POST", "/iceberg/v1/main/namespaces/one/register", body)[0] == 200
    assert one.send("one-r", "GET", path)[0] == 200


def test_files_of_other_tables_stay_closed(one: ServerWithPrincipals) -> None:
    """A table that takes its rows from another one, as a shallow clone does, shows them only to who may read both."""
    lance.dataset(one.place("one", "theirs")).shallow_clone(one.place("one", "clone"), 1)
    one.register("root", "one", "clone")
    database = open_database(f"sqlite:///{one.folder / 'catalog.db'}")
    principals = Principals(database)
    principals.create("c", [Grant(Role.READER, "main", ("one",), "clone")])
    one.tokens["c"] = principals.create_token("c", "test")
    database.close()
    status, body = one.query("c", "one$clone")
    assert (status, SECRET.encode() in body) == (403, False)
    assert one.plan("c", "one", "clone")[0] == 403
    assert one.query("root", "one$clone")[0] == 200
