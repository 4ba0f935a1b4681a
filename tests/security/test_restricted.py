"""Who has a grant with a row filter and masks: every route shows visible rows with masked values, or refuses."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any
from urllib.parse import quote

import lance
import pyarrow as pa
import pytest
from lance_namespace import (
    CountTableRowsRequest,
    DescribeTableRequest,
    ListTablesRequest,
    QueryTableRequest,
    connect,
)
from lance_namespace.errors import PermissionDeniedError
from pyiceberg.exceptions import ForbiddenError

from lancehouse.catalog.bootstrap import open_database
from lancehouse.catalog.callers import Grant, Role
from lancehouse.catalog.principals import Principals
from lancehouse.gateway.operations import OPERATIONS
from lancehouse.gateway.restricted import ALLOWED, parse_restriction
from lancehouse.server.api.iceberg import ROUTES
from lancehouse.server.console.routes import DATA_HANDLERS, RESTRICTED_HANDLERS, TABLE_HANDLERS
from tests.gateway.calls import BODIES, call
from tests.live.gateways import ask
from tests.security.house import ServerWithPrincipals
from tests.security.test_one_table import ICEBERG_BODIES

HIDDEN, MASKED = "a row of the others", "behind-a-mask"
ROWS = 10
"""Rows of the table, of which four are visible."""
NAMESPACE = "masked"
WHERE = "region = 'EU'"
MASKS = {"email": "hash", "name": "text:***", "salary": "null", "secret": "null"}
ANSWERED = {"listNamespaces", "loadNamespaceMetadata", "namespaceExists", "listTables", "listViews"}
ANSWERED |= {"loadTable", "tableExists", "reportMetrics", "loadCredentials"}
"""Routes of Iceberg that are answered. On a disk, nobody is kept from the copies of others: no scan is planned."""


def people() -> pa.Table:
    """Rows of two regions; Lance evaluates `1 / (salary - 5000)` with an error for a hidden row only."""
    numbers = range(ROWS)
    is_seen = [number % 5 < 2 for number in numbers]
    return pa.table(
        {
            "id": pa.array(numbers, pa.int64()),
            "region": ["EU" if seen else "US" for seen in is_seen],
            "text": ["seen" if seen else HIDDEN for seen in is_seen],
            "email": [f"{MASKED}-{number % 2}@x" for number in numbers],
            "name": [MASKED] * ROWS,
            "salary": pa.array([5000 + number for number in range(ROWS, 0, -1)], pa.int64()),
            "zero": pa.array([1 if seen else 0 for seen in is_seen], pa.int64()),
            "secret": [f"{MASKED} {number}" for number in numbers],
            "v": pa.array([[float(number), 0.0] for number in numbers], pa.list_(pa.float32(), 2)),
        }
    )


@pytest.fixture(scope="module")
def part(house: ServerWithPrincipals) -> ServerWithPrincipals:
    """With a table `t`, of which `r` sees a part; `g` is in two groups with other parts, `w` reads all of it too."""
    assert house.send("root", "POST", "/iceberg/v1/main/namespaces", {"namespace": [NAMESPACE]})[0] == 200
    lance.write_dataset(people(), house.place(NAMESPACE, "t"))
    house.register("root", NAMESPACE, "t")
    database = open_database(f"sqlite:///{house.folder / 'catalog.db'}")
    principals = Principals(database)

    def grant(where: str | None, masks: dict[str, str]) -> Grant:
        return Grant(Role.READER, "main", (NAMESPACE,), "t", parse_restriction(where, masks))

    principals.create("r", [grant(WHERE, MASKS)])
    principals.create("m", [grant(None, {"secret": "null"})])
    for name, where, masks in (("g1", "id = 1", {"email": "hash"}), ("g2", "id = 2", {"email": "null"})):
        principals.create_group(name, [grant(where, masks)])
    for name in ("g", "w"):
        principals.create(name)
        principals.change_members("g1", add=[name])
    principals.change_members("g2", add=["g"])
    principals.grant("w", Grant(Role.READER, "main", (NAMESPACE,)))
    for name in ("r", "m", "g", "w"):
        house.tokens[name] = principals.create_token(name, "test")
    database.close()
    return house


def check(body: bytes) -> None:
    """No answer tells of hidden rows or of values behind masks."""
    assert HIDDEN.encode() not in body
    assert MASKED.encode() not in body


def query(house: ServerWithPrincipals, who: str, **fields: Any) -> tuple[int, Any]:
    status, body = house.send(
        who, "POST", f"/lance/main/v1/table/{NAMESPACE}$t/query", {"k": 0, "vector": {}, **fields}
    )
    if who != "w":
        check(body)
    return status, pa.ipc.open_file(body).read_all().to_pydict() if status == 200 else json.loads(body)


def count(house: ServerWithPrincipals, who: str, predicate: str | None = None) -> tuple[int, Any]:
    status, body = house.send(who, "POST", f"/lance/main/v1/table/{NAMESPACE}$t/count_rows", {"predicate": predicate})
    return status, json.loads(body)


@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda operation: operation.name)
def test_operations_of_the_lance_protocol(part: ServerWithPrincipals, operation: Any) -> None:
    kind = operation.path.partition("/")[0]
    target = [NAMESPACE] if kind == "namespace" else [NAMESPACE, "t", *(["1"] if kind == "transaction" else [])]
    method, path, body = call(operation, "$".join(target))
    if operation.name in BODIES and body is not None and body.startswith(b"{"):
        body = body.replace(b'"db", "t"', f'"{NAMESPACE}", "t"'.encode())
        body = body.replace(b'"db", "u"', f'"{NAMESPACE}", "new"'.encode())
    content = "application/vnd.apache.arrow.stream" if operation.body.name == "ARROW" else "application/json"
    if operation.name == "AlterTransaction":
        body = json.dumps({"actions": [{"set_status_action": {"status": "SUCCEEDED"}}]}).encode()
    if operation.name == "CreateMaterializedView":
        fields = {"kind": "query", "source_query": "select 1", "output_schema": "{}", "udf_specs": []}
        body = json.dumps({"source_table_id": target, **fields}).encode()
    headers = {"authorization": f"Bearer {part.tokens['r']}", "content-type": content}
    heard = ask(part.served, method, f"/lance/main/v1/{path}", body, headers)
    check(heard.body)
    is_seen = kind == "namespace" and operation.required_access.name == "READ"
    allowed = operation.name in ALLOWED or is_seen or operation.name == "ListAllTables"
    assert heard.status == (200 if allowed else 403), heard.body
    if not allowed:
        assert heard.json["code"] == 15  # PermissionDenied


@pytest.mark.parametrize("route", ROUTES, ids=lambda route: route.name)
def test_iceberg_routes(part: ServerWithPrincipals, route: Any) -> None:
    path = route.template.replace("{prefix}", "main").replace("{namespace}", NAMESPACE).replace("{table}", "t")
    path = path.replace("{view}", "t").replace("{plan-id}", "0" * 8 + "-0000-0000-0000-" + "0" * 12)
    body = json.loads(json.dumps(ICEBERG_BODIES.get(route.name)).replace('"one"', f'"{NAMESPACE}"'))
    if route.name in ("renameTable", "commitTransaction"):
        body = json.loads(json.dumps(body).replace('"theirs"', '"t"'))
    status, answer = part.send("r", route.method, f"/iceberg{path}", body)
    check(answer)
    assert status in ((200, 204) if route.name in ANSWERED else (403,)), answer


@pytest.mark.parametrize("question", [*TABLE_HANDLERS, *DATA_HANDLERS])
def test_questions_of_the_console(part: ServerWithPrincipals, question: str) -> None:
    where = f"in=main&level={NAMESPACE}&level=t&column=email&row=0&k=1&filter=true&to=1&number=0"
    status, body = part.send("r", "GET", f"/console/v1/{question}?{where}")
    check(body)
    allowed = {**TABLE_HANDLERS, **DATA_HANDLERS}[question] in RESTRICTED_HANDLERS
    assert status == (200 if allowed else 403), body


def test_the_console_shows_visible_rows(part: ServerWithPrincipals) -> None:
    def ask_console(what: str, more: str = "") -> Any:
        status, body = part.send("r", "GET", f"/console/v1/{what}?in=main&level={NAMESPACE}&level=t{more}")
        check(body)
        assert status == 200, body
        return json.loads(body)

    page = ask_console("rows", "&column_shown=id&column_shown=salary&limit=3")
    assert (page["rows"], page["ids"], page["more"]) == ([[0, None], [1, None], [5, None]], ["0", "1", "2"], True)
    assert ask_console("rows", "&column_shown=id&filter=length(name)=3&offset=3")["rows"] == [[6]]
    assert ask_console("rows", "&filter=salary%3E0")["rows"] == []
    assert (ask_console("count"), ask_console("count", "&filter=salary%3E0")) == ({"count": 4}, {"count": 0})
    told = ask_console("table")
    assert (told["summary"], told["location"], told["restricted"]) == (None, None, True)
    assert [column["name"] for column in told["columns"]] == people().column_names
    for wrong in ("&filter=_rowid%3E0", "&column_shown=_rowid", "&filter=SECRET+IS+NULL"):
        path = f"/console/v1/rows?in=main&level={NAMESPACE}&level=t{wrong}"
        assert part.send("r", "GET", path)[0] in (400, 404)


def test_lists_show_the_table(part: ServerWithPrincipals) -> None:
    tables = json.loads(part.send("r", "GET", f"/iceberg/v1/main/namespaces/{NAMESPACE}/tables")[1])["identifiers"]
    assert tables == [{"namespace": [NAMESPACE], "name": "t"}]
    assert json.loads(part.send("r", "GET", "/lance/main/v1/table")[1])["tables"] == [f"{NAMESPACE}$t"]
    for path in ("table", f"namespace/{NAMESPACE}/table/list"):
        listed = json.loads(part.send("r", "GET", f"/lance/main/v1/{path}?include_declared=false")[1])["tables"]
        assert [name.removeprefix(f"{NAMESPACE}$") for name in listed] == ["t"]
    entries = json.loads(part.send("r", "GET", f"/console/v1/entries?in=main&level={NAMESPACE}")[1])
    assert entries["names"] == ["t"]
    for words in ("t", NAMESPACE, f"main.{NAMESPACE}.t"):
        found = json.loads(part.send("r", "GET", f"/console/v1/search?q={words}")[1])["found"]
        assert {"in": "main", "levels": [NAMESPACE, "t"], "kind": "lance"} in found
        assert {each["levels"][0] for each in found} == {NAMESPACE}


def test_clients_of_the_catalog_list_the_table(part: ServerWithPrincipals) -> None:
    """They cannot open it, and know from the catalog that it has data."""
    client = part.client("r")
    for has_all in (True, False):
        request = ListTablesRequest(id=["main", NAMESPACE], include_declared=has_all)
        assert client.list_tables(request).tables == ["t"]
    described = client.describe_table(
        DescribeTableRequest(id=["main", NAMESPACE, "t"], check_declared=True, load_detailed_metadata=True)
    )
    assert (described.is_only_declared, described.stats) == (False, None)


def test_a_table_without_data_is_listed_as_declared(part: ServerWithPrincipals) -> None:
    database = open_database(f"sqlite:///{part.folder / 'catalog.db'}")
    try:
        body = {"location": part.place(NAMESPACE, "empty")}
        assert part.send("root", "POST", f"/lance/main/v1/table/{NAMESPACE}$empty/declare", body)[0] == 200
        principals = Principals(database)
        restriction = parse_restriction("true", None)
        principals.create("d", [Grant(Role.READER, "main", (NAMESPACE,), "empty", restriction)])
        part.tokens["d"] = principals.create_token("d", "test")
        for query, names in (("", ["empty"]), ("?include_declared=false", [])):
            listed = part.send("d", "GET", f"/lance/main/v1/namespace/{NAMESPACE}/table/list{query}")[1]
            assert json.loads(listed)["tables"] == names
    finally:
        part.send("root", "POST", f"/lance/main/v1/table/{NAMESPACE}$empty/deregister", {})
        database.close()


def test_a_query_sees_visible_rows_with_masked_values(part: ServerWithPrincipals) -> None:
    status, rows = query(part, "r")
    assert status == 200
    assert rows["id"] == [0, 1, 5, 6]
    assert rows["name"] == ["***"] * 4
    assert rows["salary"] == rows["secret"] == [None] * 4
    assert rows["email"][0] == rows["email"][3] != rows["email"][1] == rows["email"][2]
    assert all(len(value) == 32 for value in rows["email"])
    assert count(part, "r") == (200, 4)
    # By the hash that they see, callers find rows; by the value behind it they do not.
    same = f"email = '{rows['email'][0]}'"
    assert query(part, "r", filter=same)[1]["id"] == [0, 6]
    assert count(part, "r", same) == (200, 2)


NOTHING: Sequence[str] = (
    f"text = '{HIDDEN}'",
    "region = 'US'",
    "salary > 0",
    "salary IS NOT NULL",
    "email LIKE 'behind%'",
    "name = 'behind-a-mask'",
    "name != '***'",
    "length(name) > 3",
    "starts_with(secret, 'b')",
    "id = 2 OR 1 / zero < 0",
    "coalesce(salary, 0) > 0",
    "NOT (salary IS NULL)",
)
"""Filters that match hidden rows or values behind masks, and no visible row."""


@pytest.mark.parametrize("condition", NOTHING)
def test_filters_see_nothing_else(part: ServerWithPrincipals, condition: str) -> None:
    assert query(part, "r", filter=condition) == (200, {name: [] for name in people().column_names})
    assert count(part, "r", condition) == (200, 0)


@pytest.mark.parametrize(
    "condition",
    ["1 / zero > 0", "zero = 1 AND 1 / zero > 0", "1 / (salary - 5001) IS NULL", "cast(name AS int) > 0"],
)
def test_errors_tell_nothing_of_hidden_rows(part: ServerWithPrincipals, condition: str) -> None:
    """For an admin, `1 / zero` is an error; for who sees no such row, it must not be."""
    assert (
        part.send(
            "root",
            "POST",
            f"/lance/main/v1/table/{NAMESPACE}$t/query",
            {"k": 0, "vector": {}, "filter": "1 / zero > 0"},
        )[0]
        == 400
    )
    status, answer = query(part, "r", filter=condition)
    if "name" in condition:  # the text of the mask is no number, whatever is behind it
        assert status == 400
    else:
        assert (status, answer["id"]) == (200, [0, 1, 5, 6])


@pytest.mark.parametrize(
    "condition",
    [
        "nothing = 1",
        "id =",
        "nosuch(id) = 1",
        "id = 'x'",
        "id = 1.5",
        "id > 99999999999999999999999",
        "id BETWEEN 1 AND 99999999999999999999",
        "zero IN (1, 1e400)",
        "salary = 1.5",
        "region > 5",
        "id + region > 1",
        "id",
    ],
)
def test_a_filter_that_is_not_valid_is_the_same_error_as_for_others(part: ServerWithPrincipals, condition: str) -> None:
    (wanted, told), (status, answer) = count(part, "root", condition), count(part, "r", condition)
    assert wanted in (400, 404)
    assert (status, answer["code"]) == (wanted, told["code"]), answer
    status, answer = query(part, "r", filter=condition)
    assert (status, answer["code"]) == (wanted, told["code"]), answer
    path = f"/console/v1/count?in=main&level={NAMESPACE}&level=t&filter={quote(condition)}"
    assert part.send("r", "GET", path)[0] == part.send("root", "GET", path)[0] == 400


def test_an_empty_filter_is_none(part: ServerWithPrincipals) -> None:
    assert count(part, "r", "  ") == (200, 4)
    assert query(part, "r", filter="  ")[1]["id"] == [0, 1, 5, 6]


@pytest.mark.parametrize(
    "fields",
    [
        {"columns": {"column_names": ["_rowid"]}},
        {"columns": {"column_aliases": {"x": "_rowid"}}},
        {"columns": {"column_aliases": {"x": "SECRET"}}},
        {"columns": {"column_names": ["SECRET"]}},
        {"filter": "_rowid >= 0"},
        {"filter": "_rowaddr >= 0"},
        {"filter": "SECRET IS NULL"},
        {"filter": "nothing = 1"},
        {"with_row_id": True},
    ],
)
def test_names_that_are_refused(part: ServerWithPrincipals, fields: dict[str, Any]) -> None:
    """Lance matches names in any case, and has columns of its own: neither leads around a mask."""
    status, answer = query(part, "r", **fields)
    assert status in (400, 403, 404), answer


def test_expressions_see_masked_values(part: ServerWithPrincipals) -> None:
    values = {"a": "name || email", "b": "coalesce(salary, -1)", "id": "id * 2", "email": "upper(name)"}
    status, rows = query(part, "r", columns={"column_aliases": values}, filter="id > 0", k=2, offset=1)
    assert status == 200
    assert (rows["b"], rows["id"], rows["email"]) == ([-1, -1], [10, 12], ["***", "***"])
    assert all(value.startswith("***") and len(value) == 35 for value in rows["a"])


@pytest.mark.parametrize(
    ("fields", "ids"),
    [
        ({}, [1, 0]),
        ({"filter": "id >= 5", "prefilter": True}, [5, 6]),
        ({"filter": "length(name) = 3 AND id >= 5", "prefilter": True}, [5, 6]),
        ({"filter": "salary > 0", "prefilter": True}, []),
        ({"filter": "id >= 5", "prefilter": False}, []),
        ({"columns": {"column_aliases": {"id": "id + 0", "s": "secret"}}}, [1, 0]),
    ],
)
def test_a_vector_search_ranks_visible_rows(part: ServerWithPrincipals, fields: dict[str, Any], ids: Any) -> None:
    """Rows 2 and 3 are nearer, and hidden."""
    status, rows = query(part, "r", vector={"single_vector": [2.0, 0.0]}, vector_column="v", **{"k": 2, **fields})
    assert (status, rows["id"]) == (200, ids), rows
    assert "_distance" in rows


def test_a_search_by_words_sees_masked_words_of_visible_rows(part: ServerWithPrincipals) -> None:
    def search(word: str, column: str) -> Any:
        words = {"string_query": {"query": word, "columns": [column]}}
        status, rows = query(part, "r", k=10, full_text_query=words)
        assert status == 200, rows
        return sorted(rows["id"])

    assert search("seen", "text") == [0, 1, 5, 6]
    assert search("others", "text") == []
    assert search("behind", "name") == []
    assert search("behind", "secret") == []


@pytest.mark.parametrize(
    ("words", "ids"),
    [
        ({"string_query": {"query": "seen"}}, [0, 1, 5, 6]),
        ({"string_query": {"query": "EU"}}, [0, 1, 5, 6]),
        ({"string_query": {"query": "others US behind"}}, []),
        ({"match": {"terms": "seen"}}, [0, 1, 5, 6]),
        ({"match": {"terms": "behind"}}, []),
        ({"phrase": {"terms": "row of"}}, []),
        ({"phrase": {"terms": "seen"}}, [0, 1, 5, 6]),
        ({"multi_match": {"match_queries": [{"terms": "seen"}, {"terms": "behind"}]}}, [0, 1, 5, 6]),
        (
            {"boolean": {"must": [{"match": {"terms": "seen", "column": "text"}}, {"match": {"terms": "EU"}}]}},
            [0, 1, 5, 6],
        ),
        ({"boolean": {"must": [{"match": {"terms": "seen", "column": "text"}}, {"match": {"terms": "US"}}]}}, []),
        ({"boost": {"positive": {"match": {"terms": "seen"}}, "negative": {"match": {"terms": "US"}}}}, [0, 1, 5, 6]),
    ],
)
def test_a_search_without_a_column_sees_all_visible_texts(part: ServerWithPrincipals, words: Any, ids: Any) -> None:
    """Masked ones by what the mask shows; whether an index exists makes no difference."""
    if "string_query" not in words:
        if "boolean" in words:
            words = {"boolean": {"should": [], "must_not": [], **words["boolean"]}}
        words = {"structured_query": {"query": words}}
    status, rows = query(part, "r", k=10, full_text_query=words)
    assert (status, sorted(rows["id"])) == (200, ids), rows
    status, rows = query(part, "r", k=10, full_text_query=words, columns={"column_names": ["id", "_score"]})
    assert (status, sorted(rows["id"])) == (200, ids), rows


def test_a_hash_is_a_word(part: ServerWithPrincipals) -> None:
    shown = query(part, "r")[1]["email"][0]
    status, rows = query(part, "r", k=10, full_text_query={"string_query": {"query": shown}})
    assert (status, sorted(rows["id"])) == (200, [0, 6])


def test_other_versions_have_the_same_filter_or_none(part: ServerWithPrincipals) -> None:
    """A version without a column of the grant is closed, and one that holds more rows is filtered."""
    place = part.place(NAMESPACE, "t")
    before = lance.dataset(place).version
    lance.dataset(place).alter_columns({"path": "secret", "name": "open"})
    try:
        status, answer = query(part, "r", version=before + 1)
        assert (status, answer["code"]) == (403, 15)
        assert part.send("r", "POST", f"/lance/main/v1/table/{NAMESPACE}$t/describe", {})[0] == 403
        assert query(part, "r", version=before)[1]["id"] == [0, 1, 5, 6]
    finally:
        lance.dataset(place, version=before).restore()
    assert query(part, "r", version=99)[0] == 404


def test_a_column_of_the_filter_is_not_named(part: ServerWithPrincipals) -> None:
    """By a version that lacks it, callers would learn what their filter is about."""
    place = part.place(NAMESPACE, "t")
    before = lance.dataset(place).version
    lance.dataset(place).drop_columns(["region"])
    try:
        for version in (None, before + 1):
            status, answer = query(part, "r", version=version)
            assert (status, answer["code"]) == (403, 15)
            assert "region" not in answer["error"]
    finally:
        lance.dataset(place, version=before).restore()


def test_a_wrong_name_of_a_branch_is_no_fault_of_the_grant(part: ServerWithPrincipals) -> None:
    for name in ("", "a..b", "nosuch"):
        status, answer = query(part, "r", branch=name)
        assert (status, answer["code"]) == ((404, 22) if name == "nosuch" else (400, 13)), answer


def test_a_search_of_indexed_rows_alone_finds_visible_rows(part: ServerWithPrincipals) -> None:
    """Visible rows are searched without the index, so that `fast_search` must not leave them out."""
    place = part.place(NAMESPACE, "t")
    before = lance.dataset(place).version
    lance.dataset(place).create_scalar_index("text", "INVERTED")
    try:
        for columns in (["text"], None):
            words = {"string_query": {"query": "seen", "columns": columns}}
            status, rows = query(part, "r", k=10, full_text_query=words, fast_search=True)
            assert (status, sorted(rows["id"])) == (200, [0, 1, 5, 6])
    finally:
        lance.dataset(place, version=before).restore()


def test_a_commit_of_earlier_days_is_not_answered_with_the_whole_table(part: ServerWithPrincipals) -> None:
    """Who was a writer repeats a commit by its idempotency key; the answer would have totals and the location."""
    scope = {"warehouse": "main", "namespace": [NAMESPACE], "table": "t"}
    writer = {"principals": [{"name": "former", "grants": [{**scope, "role": "writer"}]}]}
    assert part.send("root", "POST", "/lancehouse/v1/principals", writer)[0] == 200
    issued = part.send("root", "POST", "/lancehouse/v1/principals/former/tokens", {"label": "test"})[1]
    part.tokens["former"] = json.loads(issued)["token"]
    update = {"action": "set-properties", "updates": {"note": "x"}}
    body = json.dumps({"requirements": [], "updates": [update]}).encode()
    headers = {"authorization": f"Bearer {part.tokens['former']}", "content-type": "application/json"}
    headers["idempotency-key"] = "0197d3a0-0000-7000-8000-000000000001"

    def commit() -> Any:
        return ask(part.served, "POST", f"/iceberg/v1/main/namespaces/{NAMESPACE}/tables/t", body, headers)

    first, again = commit(), commit()
    assert (first.status, again.status) == (200, 200), first.body
    revoke, grant = "/lancehouse/v1/principals/former/revoke", "/lancehouse/v1/principals/former/grants"
    assert part.send("root", "POST", revoke, {**scope, "role": "writer"})[0] == 200
    assert part.send("root", "POST", grant, {**scope, "role": "reader", "where": "id = 1"})[0] == 200
    while query(part, "former", columns={"column_names": ["id"]})[1].get("id") != [1]:
        pass  # within two seconds
    answer = commit()
    assert answer.status == 403, answer.body
    assert part.place(NAMESPACE, "t") not in answer.body.decode()


def test_events_of_others_are_not_shown_nor_their_position(part: ServerWithPrincipals) -> None:
    events = "/iceberg/v1/main/lancehouse/events"
    assert json.loads(part.send("r", "GET", events)[1])["events"] == []
    database = open_database(f"sqlite:///{part.folder / 'catalog.db'}")
    try:
        Principals(database).create("nobody")
        part.tokens["nobody"] = Principals(database).create_token("nobody", "test")
    finally:
        database.close()
    for query_ in ("", "?after=now"):
        assert part.send("nobody", "GET", events + query_)[0] == 403


def test_a_description_has_columns_alone(part: ServerWithPrincipals) -> None:
    status, body = part.send(
        "r",
        "POST",
        f"/lance/main/v1/table/{NAMESPACE}$t/describe",
        {"vend_credentials": True, "load_detailed_metadata": True, "with_table_uri": True},
    )
    answer = json.loads(body)
    assert status == 200
    assert answer.keys() == {"table", "namespace", "version", "schema"}
    assert [field["name"] for field in answer["schema"]["fields"]] == people().column_names


def test_what_iceberg_is_told_of_the_table(part: ServerWithPrincipals) -> None:
    """Columns, and a current snapshot without counts; no folder of the table, no history and no credentials."""
    path = f"/iceberg/v1/main/namespaces/{NAMESPACE}/tables/t"
    whole, loaded = (json.loads(part.send(who, "GET", path)[1]) for who in ("root", "r"))
    metadata = loaded["metadata"]
    assert part.place(NAMESPACE, "t") not in json.dumps(loaded)
    assert "total-records" in json.dumps(whole)
    assert metadata["properties"] == {"table_type": "lance"}
    (snapshot,) = metadata["snapshots"]
    assert snapshot["summary"] == {"operation": "append"}
    assert snapshot["snapshot-id"] == whole["metadata"]["current-snapshot-id"]
    assert loaded["config"] == {"scan-planning-mode": "server", "lancehouse.restricted": "true"}
    assert json.loads(part.send("r", "GET", f"{path}/credentials")[1]) == {"storage-credentials": []}
    columns = [column["name"] for column in metadata["schemas"][0]["fields"]]
    assert columns == people().column_names
    table = part.pyiceberg("r").load_table((NAMESPACE, "t"))
    assert [column.name for column in table.schema().fields] == people().column_names
    with pytest.raises(ForbiddenError, match="can be limited to your own copies"):
        table.scan().to_arrow()


def test_grants_of_several_groups(part: ServerWithPrincipals) -> None:
    status, rows = query(part, "w", filter="id < 4")
    assert (status, rows["id"], rows["email"][1]) == (200, [0, 1, 2, 3], f"{MASKED}-1@x")
    status, body = part.send("g", "POST", f"/lance/main/v1/table/{NAMESPACE}$t/query", {"k": 0, "vector": {}})
    rows = pa.ipc.open_file(body).read_all().to_pydict()
    assert (status, rows["id"], rows["email"]) == (200, [1, 2], [None, None])


def test_the_client_of_lance(part: ServerWithPrincipals) -> None:
    """Pylance's own client queries and counts, and gets nothing by which it could open the table."""
    uri = f"{part.served.uri}/lance/main"
    client = connect("rest", {"uri": uri, "header.Authorization": f"Bearer {part.tokens['r']}"})
    table = [NAMESPACE, "t"]
    data: Any = client.query_table(QueryTableRequest.model_validate({"id": table, "k": 0, "vector": {}}))
    assert pa.ipc.open_file(data.data).read_all()["id"].to_pylist() == [0, 1, 5, 6]
    assert client.count_table_rows(CountTableRowsRequest(id=table)).count == 4
    with pytest.raises((PermissionDeniedError, OSError, ValueError, KeyError, RuntimeError)):
        lance.dataset(namespace_client=client, table_id=table).to_table()


@pytest.mark.parametrize(
    ("grant", "reason"),
    [
        ({"role": "writer", "where": "id = 1"}, "role reader of one table"),
        ({"role": "reader", "where": "id = 1", "table": None}, "role reader of one table"),
        ({"where": "id ="}, "where: it cannot be read as SQL"),
        ({"where": ""}, "it is empty"),
        ({"where": "random() < 1"}, "not the same each time"),
        ({"where": "nosuch(id)"}, "the function nosuch is not allowed"),
        ({"masks": {"email": "md5"}}, "a mask is null, hash, or text:"),
        ({"masks": {"email": "text:" + "x" * 201}}, "at most 200 characters"),
        ({"masks": {"": "null"}}, "the name of a column is empty"),
        ({"masks": {}}, "no column is named"),
        ({"mask": {"email": "null"}}, "mask"),
        ({"Where": "id = 1"}, "Where"),
        ({"table": "nosuch", "where": "id = 1"}, "there is no table"),
        ({"warehouse": "files", "namespace": [], "table": "x", "where": "id = 1"}, "are for tables of warehouses"),
    ],
)
def test_grants_that_are_refused(part: ServerWithPrincipals, grant: dict[str, Any], reason: str) -> None:
    body = {"role": "reader", "warehouse": "main", "namespace": [NAMESPACE], "table": "t", **grant}
    status, answer = part.send("root", "POST", "/lancehouse/v1/principals/r/grants", body)
    assert (status, reason in json.loads(answer)["error"]["message"]) == (400, True), answer


def test_a_table_is_not_granted_twice_in_one_request(part: ServerWithPrincipals) -> None:
    scope = {"role": "reader", "warehouse": "main", "namespace": [NAMESPACE], "table": "t"}
    grants = [{**scope, "where": "id = 1"}, {**scope, "masks": {"email": "null"}}]
    status, answer = part.send(
        "root", "POST", "/lancehouse/v1/principals", {"principals": [{"name": "twice", "grants": grants}]}
    )
    assert (status, "is granted twice" in answer.decode()) == (400, True), answer


def test_only_admins_see_the_filter(part: ServerWithPrincipals) -> None:
    path = f"/lancehouse/v1/who-can?warehouse=main&namespace={NAMESPACE}&table=t"
    assert part.send("r", "GET", path)[0] == 403
    access = json.loads(part.send("root", "GET", path)[1])["access"]
    (grant,) = [each["grant"] for each in access if each["principal"] == "r"]
    assert (grant["where"], grant["masks"]) == (WHERE, MASKS)
    shown = json.loads(part.send("root", "GET", "/lancehouse/v1/principals/r")[1])["grants"]
    assert shown == [grant]


def test_a_change_is_audited_and_counts_at_once(part: ServerWithPrincipals) -> None:
    body = {"role": "reader", "warehouse": "main", "namespace": [NAMESPACE], "table": "t", "where": "id = 3"}
    assert part.send("root", "POST", "/lancehouse/v1/principals/m/grants", body)[0] == 200
    while query(part, "m", columns={"column_names": ["id"]})[1]["id"] != [3]:
        pass  # within two seconds
    (newest, *_) = json.loads(part.send("root", "GET", "/lancehouse/v1/audit?action=grant.create")[1])["changes"]
    assert newest["before"]["grants"][0]["masks"] == {"secret": "null"}
    assert (newest["after"]["where"], newest["after"]["masks"]) == ("id = 3", {})
    scope = {key: value for key, value in body.items() if key != "where"}
    assert part.send("root", "POST", "/lancehouse/v1/principals/m/revoke", scope)[0] == 200
    while query(part, "m", columns={"column_names": ["id"]})[0] != 403:
        pass
