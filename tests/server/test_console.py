"""The console's questions over HTTP, on a real server that asks everybody who they are."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.parse import urlencode
from urllib.request import Request, urlopen

import lance
import pyarrow as pa
import pytest

from lancehouse.jobs.recall import RecallNotKeptWarning
from lancehouse.lake import column_states, version_records
from lancehouse.schema.definitions import ViewDefinition
from lancehouse.schema.display import BRIEF, WHOLE
from lancehouse.server.console import lineage, routes, row_pages, rows, tables
from tests.browser.house import ODD_VIEW, Open, indexed_table, measure_recall, open_house
from tests.waiting import wait_until

MANY = 2500


@dataclass(frozen=True)
class ConsoleAnswer:
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def message(self) -> str:
        return str(self.json["error"]["message"])


@dataclass(frozen=True)
class Console:
    """Asks as one principal, or as nobody."""

    house: Open
    name: str | None = "ada"
    headers: dict[str, str] = field(default_factory=dict)

    def get(self, path: str, method: str = "GET", **headers: str) -> ConsoleAnswer:
        sent = {**self.headers, **{key.replace("_", "-"): value for key, value in headers.items()}}
        if self.name:
            sent["Authorization"] = f"Bearer {self.house.tokens[self.name]}"
        try:
            with urlopen(Request(f"{self.house.uri}{path}", headers=sent, method=method)) as reply:
                return ConsoleAnswer(reply.status, {k.lower(): v for k, v in reply.headers.items()}, reply.read())
        except HTTPError as error:
            with error:
                return ConsoleAnswer(error.code, {k.lower(): v for k, v in error.headers.items()}, error.read())

    def ask(self, question: str, place: str | None = None, *levels: str, **params: Any) -> ConsoleAnswer:
        named = [("in", place)] if place else []
        asked = [*named, *(("level", level) for level in levels)]
        for key, value in params.items():
            asked += [(key, each) for each in (value if isinstance(value, list) else [value])]
        return self.get(f"/console/v1/{question}?{urlencode(asked)}")

    def ask_json(self, question: str, place: str | None = None, *levels: str, **params: Any) -> Any:
        answer = self.ask(question, place, *levels, **params)
        assert answer.status == 200, answer.body
        assert answer.headers["cache-control"] == "no-store"
        return answer.json


def test_tables_of_format_version_1() -> None:
    """LoadTable hands out the file as it is, which may be of before there were lists of schemas and specs."""
    fields = [{"id": 1, "name": "a", "required": False, "type": "long"}]
    spec = [{"source-id": 1, "field-id": 1000, "transform": "day", "name": "a_day"}]
    metadata = {"format-version": 1, "schema": {"type": "struct", "fields": fields}, "partition-spec": spec}
    assert [column["name"] for column in tables.columns(metadata)] == ["a"]
    assert tables.layout(metadata) == {"partition": ["day(a)"], "sort": []}


def test_totals_that_no_table_has() -> None:
    summary = {"operation": "append", "total-records": "9" * 5000}
    metadata = {"snapshots": [{"snapshot-id": 1, "timestamp-ms": 2, "summary": summary}]}
    (version,) = tables.snapshots(metadata)
    assert version["rows"] is None


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Open]:
    with open_house(tmp_path_factory.mktemp("console"), many=MANY) as house:
        yield house


@pytest.fixture(scope="module")
def ada(house: Open) -> Console:
    return Console(house)


@pytest.fixture(scope="module")
def guest(house: Open) -> Console:
    """Reads the shop, and nothing else."""
    return Console(house, "guest")


DOCS = ("main", "library", "docs")


# The page and its files


def files() -> list[str]:
    return sorted(file.name for file in routes.FOLDER.iterdir())


def test_the_page_is_public_and_brings_nothing_from_elsewhere(house: Open) -> None:
    page = Console(house, None).get("/", Accept="text/html,*/*")
    assert (page.status, page.headers["content-type"]) == (200, "text/html; charset=utf-8")
    text = page.body.decode()
    assert routes.BASE not in text
    assert "http" not in text.replace("http-equiv", "")
    policy = page.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "script-src 'self';" in policy
    assert "unsafe" not in policy
    assert page.headers["x-content-type-options"] == "nosniff"
    assert page.headers["referrer-policy"] == "no-referrer"


def test_programs_are_told_what_is_where(house: Open) -> None:
    answer = Console(house, None).get("/", Accept="*/*")
    assert answer.json["iceberg"] == "/iceberg"
    assert answer.headers["vary"] == "accept"


def test_files_are_kept_for_ever_and_the_page_is_asked_for_again(house: Open) -> None:
    nobody = Console(house, None)
    page = nobody.get("/", Accept="text/html")
    base = page.body.decode().split('src="')[1].rpartition("/theme.js")[0]
    assert nobody.get("/", Accept="text/html", If_None_Match=page.headers["etag"]).status == 304
    assert page.headers["cache-control"] == "no-cache"
    for name in files():
        if name == routes.PAGE:
            continue
        file = nobody.get(f"{base}/{name}")
        assert (file.status, file.body) == (200, (routes.FOLDER / name).read_bytes())
        assert "immutable" in file.headers["cache-control"]
        assert "script-src 'self'" in file.headers["content-security-policy"]
        assert nobody.get(f"{base}/{name}", method="HEAD").body == b""
        assert nobody.get(f"{base}/{name}", If_None_Match=file.headers["etag"]).status == 304
    assert nobody.get(f"{base}/../console.py").status == 404


def test_every_script_is_loaded_ahead_and_none_makes_markup_of_text() -> None:
    page = (routes.FOLDER / routes.PAGE).read_text()
    for name in files():
        text = (routes.FOLDER / name).read_text()
        assert name == routes.PAGE or f"/{name}" in page, f"the page does not name {name}"
        for word in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "http://", "https://"):
            allowed = "http://www.w3.org/2000/svg"
            assert word not in text.replace(allowed, ""), f"{name} has {word}"


def test_the_document_shows_what_there_is() -> None:
    docs = Path(__file__).parents[2] / "docs"
    page = (docs / "console.md").read_text()
    tabs = re.findall(r'\["[a-z]+", .*?"([A-Z]\w+)"', (routes.FOLDER / "table.js").read_text())
    assert len(tabs) > 8
    assert [tab for tab in tabs if f"| {tab} |" not in page and tab not in ("SQL", "Snapshots")] == []
    for key in re.findall(r'^  \["(.)", "', (routes.FOLDER / "app.js").read_text(), re.M):
        assert f"| `{key}` |" in page, f"the key {key} is not explained"
    pictures = {picture.name: picture.stat().st_size for picture in docs.glob("console-*.png")}
    assert pictures.keys() == set(re.findall(r"\]\((console-\w+\.png)\)", page))
    assert max(pictures.values()) < 150_000
    limits = (
        rows.MOST_ROWS,
        row_pages.MAX_DEFAULT_COLUMNS,
        BRIEF.text,
        f"{WHOLE.text:,}",
        f"{row_pages.SAMPLE:,}",
        f"{version_records.MAX_LISTED:,}",
    )
    assert [limit for limit in limits if str(limit) not in page.partition("## Limits")[2]] == []


# Who may ask


@pytest.mark.parametrize("question", [*routes.CATALOG_HANDLERS, *routes.DATA_HANDLERS])
def test_every_question_asks_who_you_are(house: Open, question: str) -> None:
    answer = Console(house, None).ask(question, *DOCS)
    assert (answer.status, answer.headers["www-authenticate"]) == (401, 'Bearer realm="lancehouse"')


@pytest.mark.parametrize("question", [*routes.DATA_HANDLERS, "changes", "namespace"])
def test_what_no_grant_allows_is_refused(guest: Console, question: str) -> None:
    answer = guest.ask(question, *DOCS, column="embedding", row=1)
    assert answer.status == 403, answer.body
    assert "guest is no reader of" in answer.message


def test_others_see_what_they_may_read(guest: Console) -> None:
    told = guest.ask_json("places")
    assert (told["principal"], [each["name"] for each in told["backends"]]) == ("guest", ["main"])
    assert guest.ask_json("namespaces", "main")["names"] == ["shop"]
    assert guest.ask_json("entries", "main", "shop")["names"] == ["orders", "sales"]
    assert [each["levels"] for each in guest.ask_json("search", q="o")["found"]] == [
        ["shop", "orders"],
        ["shop"],
        ["shop", "sales"],
    ]
    assert guest.ask_json("table", "main", "shop", "orders")["summary"]["rows"] == 6


@pytest.mark.parametrize("question", ["namespaces", "namespace", "entries"])
def test_a_warehouse_without_a_role_tells_nothing(guest: Console, question: str) -> None:
    answer = guest.ask(question, "attic")
    assert (answer.status, answer.message) == (403, "guest is no reader of warehouse attic")


def test_a_namespace_on_the_way_is_shown_without_its_tables(house: Open) -> None:
    clerk = Console(house, "clerk")
    assert clerk.ask_json("namespaces", "main")["names"] == ["library"]
    assert clerk.ask_json("entries", "main", "library")["names"] == []
    assert clerk.ask_json("entries", "main", "library", "archive")["names"] == ["old"]
    found = clerk.ask_json("search", q="l")["found"]
    assert [each["levels"] for each in found] == [["library"], ["library", "archive", "old"], ["library", "archive"]]
    assert clerk.ask("table", *DOCS).status == 403


@pytest.mark.parametrize("question", ["namespaces", "entries", "table", "rows", "versions", "changes"])
def test_another_backend_needs_a_role_on_it(guest: Console, question: str) -> None:
    answer = guest.ask(question, "laptop", "notes", *(["t"] if question not in ("namespaces", "entries") else []))
    where = "namespace notes" if question in ("namespaces", "entries") else "table notes.t"
    assert (answer.status, answer.message) == (403, f"guest is no reader of {where} of warehouse laptop")
    answer = guest.ask("rows", "laptop", "notes")  # a table that is called so, in no namespace
    assert (answer.status, answer.message) == (403, "guest is no reader of table notes of warehouse laptop")


@pytest.mark.parametrize("question", ["namespaces", "entries"])
def test_a_page_is_never_empty_while_there_is_more(ada: Console, question: str) -> None:
    assert len(ada.ask_json(question, "main", "library", limit=0)["names"]) == 1
    assert ada.ask(question, "laptop", limit=0).status == 200


def test_nothing_is_changed_through_the_console(ada: Console) -> None:
    assert {ada.get("/console/v1/rows", method=method).status for method in ("POST", "PUT", "DELETE", "PATCH")} == {405}


# The tree


def test_places_and_namespaces(ada: Console) -> None:
    told = ada.ask_json("places")
    assert told["principal"] == "ada"
    assert [(each["name"], each["warehouse"], each["impl"]) for each in told["backends"]] == [
        ("main", True, None),
        ("attic", True, None),
        ("laptop", False, "dir"),
        ("far", False, "iceberg"),
        ("shared", False, "unity"),
    ]
    assert ada.ask_json("namespaces", "main")["names"] == ["empty", "library", "many", "shop", "words"]
    assert ada.ask_json("namespaces", "main", "library")["names"] == ["archive"]
    first = ada.ask_json("namespaces", "main", limit=2)
    assert (first["names"], first["listed"]) == (["empty", "library"], True)
    assert ada.ask_json("namespaces", "main", limit=2, token=first["next"])["names"] == ["many", "shop"]
    assert ada.ask_json("namespace", "main", "library")["properties"]["owner"] == "the librarians"


def test_entries_of_all_kinds_come_in_one_order(ada: Console) -> None:
    assert ada.ask_json("entries", "main", "shop") == {
        "names": ["orders", "sales"],
        "kinds": ["iceberg", "view"],
        "next": None,
    }
    assert ada.ask_json("entries", "main")["names"] == []
    one = ada.ask_json("entries", "main", "shop", limit=1)
    assert one["names"] == ["orders"]
    assert ada.ask_json("entries", "main", "shop", limit=1, token=one["next"])["names"] == ["sales"]


def test_thousands_of_tables_come_in_pages(ada: Console) -> None:
    names: list[str] = []
    token, pages = "", 0
    while token is not None:
        told = ada.ask_json("entries", "main", "many", token=token)
        names, token, pages = names + told["names"], told["next"], pages + 1
    assert names == [f"t{number:05}" for number in range(MANY)]
    assert pages == 3
    assert len(ada.ask_json("entries", "main", "many", limit=10**9)["names"]) == MANY


def test_search_finds_the_best_first_and_says_if_there_is_more(ada: Console) -> None:
    found = ada.ask_json("search", q="DOC")
    assert [(each["in"], each["levels"], each["kind"]) for each in found["found"]] == [
        ("main", ["library", "docs"], "lance")
    ]
    assert ada.ask_json("search", q="lib")["found"][0]["levels"] == ["library"]
    assert [each["levels"] for each in ada.ask_json("search", q="many 00042")["found"]] == [["many", "t00042"]]
    whole = ada.ask_json("search", q="t0")
    assert (len(whole["found"]), whole["whole"]) == (100, False)
    assert ada.ask_json("search", q="no such thing") == {"found": [], "whole": True}
    assert ada.ask("search").message == "q is missing in the query"


def test_a_folder_as_a_backend(ada: Console) -> None:
    assert ada.ask_json("entries", "laptop") == {"names": ["notes"], "kinds": ["lance"], "next": None}
    about = ada.ask_json("table", "laptop", "notes")
    assert (about["state"], about["summary"]["rows"]) == ("ready", 20)
    (made,) = ada.ask_json("versions", "laptop", "notes")["versions"]
    assert (made["version"], made["operation"], made["by"]) == ("1", "Overwrite", None)
    assert ada.ask_json("changes", "laptop", "notes") == {"changes": None}
    title = ada.ask_json("value", "laptop", "notes", column="title", row=0)["value"]
    assert ada.ask_json("rows", "laptop", "notes", limit=1)["rows"] == [[0, title]]
    missing = ada.ask("table", "laptop", "nope")
    assert (missing.status, missing.message) == (404, "Table not found: table id 'nope'")


def test_a_catalog_whose_levels_end(ada: Console) -> None:
    """Unity has catalogs, schemas and tables, and says of every other level that it is wrong."""
    assert ada.ask_json("namespaces", "shared")["names"] == ["lake"]
    assert ada.ask_json("namespaces", "shared", "lake")["names"] == ["maps"]
    assert ada.ask_json("namespaces", "shared", "lake", "maps") == {"names": [], "next": None, "listed": True}
    assert ada.ask_json("entries", "shared", "lake")["names"] == []
    assert ada.ask_json("entries", "shared", "lake", "maps")["names"] == ["roads"]
    assert ada.ask_json("namespace", "shared", "lake") == {"properties": {}}
    assert ada.ask("namespaces", "shared", "lake", "no such").status == 404
    assert ada.ask("namespaces", "shared", "lake", "maps", "too deep").status == 400


def test_a_backend_that_does_not_tell_its_warehouses_or_is_away(ada: Console) -> None:
    assert ada.ask_json("namespaces", "far") == {"names": [], "next": None, "listed": False}
    assert ada.ask_json("entries", "far")["names"] == []
    away = ada.ask("namespaces", "far", "w")
    assert (away.status, "no connection to 127.0.0.1:9" in away.message) == (503, True)


@pytest.mark.parametrize(
    ("asked", "status", "message"),
    [
        (("entries", "nowhere"), 404, "there is no backend 'nowhere' here"),
        (("entries", "main", "nowhere"), 404, "Namespace does not exist: nowhere"),
        (("table", "main", "library", "nope"), 404, "Table does not exist: library.nope"),
        (("table", "main"), 400, "no table is named: give its levels, one by one, as level=…"),
        (("rows", "main", "library", ""), 400, "no level of a name may be empty"),
    ],
)
def test_what_is_not_there_is_said_in_a_sentence(
    ada: Console, asked: tuple[str, ...], status: int, message: str
) -> None:
    answer = ada.ask(*asked)
    assert (answer.status, answer.message) == (status, message)


# Tables and views


def test_a_lance_table(ada: Console) -> None:
    about = ada.ask_json("table", *DOCS)
    assert (about["kind"], about["state"], about["managed_by"]) == ("lance", "ready", "impl")
    assert about["summary"]["version"] == "7"
    assert about["summary"]["rows"] == ada.ask_json("count", *DOCS)["count"]
    assert about["summary"]["fragments"] == len(ada.ask_json("fragments", *DOCS)["fragments"])
    assert about["tags"] == {"spring": {"branch": None, "version": "2"}}
    kinds = {column["name"]: (column["kind"], column["type"]) for column in about["columns"]}
    assert kinds["embedding"] == ("vector", "float32[32]")
    assert kinds["seen_at"] == ("time", "timestamp[us, tz=UTC]")
    assert kinds["tags"] == ("list", "list<string>")
    old = ada.ask_json("table", *DOCS, version=1)["summary"]
    assert (old["version"], old["rows"]) == ("1", 600)
    assert ada.ask("table", *DOCS, version=99).status == 400


def test_versions_say_what_made_them_and_who(ada: Console) -> None:
    told = ada.ask_json("versions", *DOCS)
    made = {each["version"]: each for each in told["versions"]}
    assert list(made) == ["7", "6", "5", "4", "3", "2", "1"]
    assert [each["operation"] for each in made.values()] == [
        *("Append", "CreateIndex", "CreateIndex", "Update", "Delete", "Append", "Overwrite"),
    ]
    assert {version: each["by"]["principal"] for version, each in made.items()} == {
        **dict.fromkeys(("1", "3", "4", "5", "6"), "ada"),
        **dict.fromkeys(("2", "7"), "robin"),
    }
    assert made["7"]["message"] == "More of the same, by hand"
    assert made["7"]["properties"] == {"job": "nightly"}
    assert made["2"]["rows"] - made["1"]["rows"] == 200
    first = ada.ask_json("versions", *DOCS, limit=3)
    assert [each["version"] for each in first["versions"]] == ["7", "6", "5"]
    rest = ada.ask_json("versions", *DOCS, limit=4, token=first["next"])
    assert [each["version"] for each in rest["versions"]] == ["4", "3", "2", "1"]


def test_changes_of_the_entry(ada: Console) -> None:
    told = ada.ask_json("changes", *DOCS)["changes"]
    assert [(each["operation"], each["principal"], each["version"]) for each in (told[0], told[-1])] == [
        ("append", "robin", "7"),
        ("create", "ada", None),
    ]
    assert told[0]["client"].startswith("lancehouse/")
    assert told[0]["request"]


def test_changes_and_dropped_tables_of_a_namespace(ada: Console, guest: Console) -> None:
    told = ada.ask_json("audit", "main", "library")
    assert {"table.create", "table.commit"} <= {each["action"] for each in told["changes"]}
    assert told["next"] is None
    assert ada.ask_json("audit", "main", "library", before=1) == {"changes": [], "next": None}
    assert guest.ask("audit", "main", "shop").status == 403
    assert guest.ask_json("dropped", "main") == {"tables": []}
    assert ada.ask_json("dropped", "laptop") == {"tables": None}
    assert ada.ask_json("audit", "laptop") == {"changes": None, "next": None}


def test_a_version_that_storage_made_has_no_committer(ada: Console) -> None:
    (made,) = ada.ask_json("versions", "main", "library", "pictures")["versions"]
    assert made["by"] is None


def test_an_iceberg_table(ada: Console) -> None:
    about = ada.ask_json("table", "main", "shop", "orders")
    assert (about["kind"], about["summary"]["rows"], about["summary"]["format"]) == ("iceberg", 6, "Iceberg v2")
    assert [(each["name"], each["type"], each["kind"]) for each in about["columns"]] == [
        ("id", "long", "number"),
        ("item", "string", "text"),
        ("price", "double", "number"),
    ]
    newest, oldest = ada.ask_json("versions", "main", "shop", "orders")["versions"]
    assert (newest["rows"], oldest["rows"], newest["by"]["principal"]) == (6, 3, "ada")
    assert newest["version"] == about["summary"]["version"]
    one = ada.ask_json("versions", "main", "shop", "orders", limit=1)
    again = ada.ask_json("versions", "main", "shop", "orders", limit=1, token=one["next"])
    assert (one["versions"], again["versions"], again["next"]) == ([newest], [oldest], None)
    refused = ada.ask("rows", "main", "shop", "orders")
    assert refused.status == 400
    assert refused.message.startswith("table main.shop.orders is not a Lance table")


def test_a_view(ada: Console) -> None:
    about = ada.ask_json("table", "main", "shop", "sales")
    assert (about["kind"], about["sql"][0]["dialect"]) == ("view", "spark")
    assert about["sql"][0]["sql"].startswith("SELECT item, sum(price)")
    assert [column["name"] for column in about["columns"]] == ["item", "total"]
    (version,) = ada.ask_json("versions", "main", "shop", "sales")["versions"]
    assert (version["version"], version["sql"]) == ("1", about["sql"])


def test_a_table_without_data(ada: Console) -> None:
    about = ada.ask_json("table", "main", "library", "later")
    assert (about["state"], about["summary"], about["columns"]) == ("declared", None, [])


def test_a_table_whose_data_is_gone_is_shown_with_the_reason(house: Open, ada: Console) -> None:
    house.as_("ada").write(pa.table({"a": [1]}), "library", "archive", "gone", managed=True)
    where = ("main", "library", "archive", "gone")
    shutil.rmtree(Path(ada.ask_json("table", *where)["location"]) / "_versions")
    about = ada.ask_json("table", *where)
    assert (about["state"], about["summary"]) == ("broken", None)
    assert "was not found" in about["problem"]
    assert ada.ask_json("changes", *where)["changes"][0]["operation"] == "append"
    assert ada.ask("rows", *where).status == 400
    house.as_("ada").call("DELETE", "/iceberg/v1/main/namespaces/library%1Farchive/tables/gone")


# Rows


def test_rows_come_in_pages(ada: Console) -> None:
    first = ada.ask_json("rows", *DOCS, limit=3)
    assert (len(first["rows"]), first["more"], first["version"]) == (3, True, "7")
    assert first["columns"][:2] == ["id", "title"]
    second = ada.ask_json("rows", *DOCS, limit=3, offset=3)
    ids = [row[0] for row in first["rows"] + second["rows"]]
    assert ids == sorted(set(ids))
    assert len(ids) == 6
    total = ada.ask_json("count", *DOCS)["count"]
    last = ada.ask_json("rows", *DOCS, limit=3, offset=total - 1)
    assert (len(last["rows"]), last["more"]) == (1, False)
    assert len(ada.ask_json("rows", *DOCS, limit=10**6)["rows"]) == 200


def test_rows_are_chosen_by_columns_filter_and_version(ada: Console) -> None:
    told = ada.ask_json("rows", *DOCS, column_shown=["topic", "id"], filter="id < 3", version=1)
    assert told["columns"] == ["topic", "id"]
    assert [row[1] for row in told["rows"]] == [0, 1, 2]
    assert ada.ask_json("rows", *DOCS, filter="id = 3", version=1)["rows"]
    assert ada.ask_json("rows", *DOCS, filter="id = 3")["rows"] == []
    assert ada.ask_json("count", *DOCS, filter="id = 3", version=1) == {"count": 1}


@pytest.mark.parametrize(
    ("filter", "sentence"),
    [
        ("scor > 1", "There is no column scor; did you mean score?"),
        ("id >", "The filter is no condition in SQL: something is missing near '>'."),
        ("id id", "The filter is no condition in SQL: Invalid expression / Unexpected token near 'id'."),
        ("id = 'x'", 'The value "x" does not fit a column of type Int64.'),
        ("title", "The filter title is no condition: it has to be true or false for each row."),
        ("foo(id)", "The filter cannot use the function foo."),
        ("max(id) = 1", "The filter cannot use the function max."),
        ("(" * 41, "The filter cannot be used: it is nested more than 40 levels deep."),
        ("x" * 10_001, "the filter has more than 10000 characters"),
    ],
)
def test_a_wrong_filter_is_one_sentence(ada: Console, filter: str, sentence: str) -> None:
    for question in ("rows", "count"):
        answer = ada.ask(question, *DOCS, filter=filter)
        assert (answer.status, answer.message) == (400, sentence)


@pytest.mark.parametrize(
    ("params", "sentence"),
    [
        ({"limit": "-1"}, "limit must be a whole number from 0, got '-1'"),
        ({"offset": "x"}, "offset must be a whole number from 0, got 'x'"),
        ({"version": "9" * 30}, f"version must be a whole number from 0, got '{'9' * 30}'"),
        ({"column_shown": ["c"] * 201}, "at most 200 columns are shown at once"),
        ({"column_shown": "nope"}, "table main.library.docs has no column nope"),
    ],
)
def test_wrong_parameters(ada: Console, params: dict[str, Any], sentence: str) -> None:
    answer = ada.ask("rows", *DOCS, **params)
    assert (answer.status, answer.message) == (400, sentence)


def test_values_are_cut_and_can_be_asked_for_whole(ada: Console) -> None:
    told = ada.ask_json("rows", *DOCS, limit=1)
    values = dict(zip(told["columns"], told["rows"][0], strict=True))
    assert values["body"]["kind"] == "text"
    assert len(values["body"]["text"]) == 240 < values["body"]["size"]
    assert values["embedding"]["size"] == 32
    assert values["embedding"]["text"].count(",") == 8
    row = told["ids"][0]
    assert len(ada.ask_json("value", *DOCS, column="body", row=row)["value"]) == values["body"]["size"]
    whole = ada.ask_json("value", *DOCS, column="embedding", row=row)["value"]
    assert len(json.loads(whole["text"])) == 32
    assert ada.ask("value", *DOCS, column="body", row=10**15).status == 400
    assert ada.ask("value", *DOCS, column="body").message == "row is missing in the query: the id of a row"


# Pictures


PICTURES = ("main", "library", "pictures")


@pytest.mark.parametrize("column", ["picture", "icon"])
def test_pictures_are_told_by_their_own_bytes(ada: Console, column: str) -> None:
    told = ada.ask_json("rows", *PICTURES, column_shown=[column])
    answer = ada.ask("image", *PICTURES, column=column, row=told["ids"][0], version=told["version"])
    assert (answer.status, answer.headers["content-type"]) == (200, "image/png")
    assert answer.body.startswith(b"\x89PNG")
    assert len(answer.body) == told["rows"][0][0]["size"]
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["content-security-policy"] == "default-src 'none'; sandbox"
    assert answer.headers["cache-control"] == "no-store"


def test_what_is_no_picture_is_not_sent(ada: Console) -> None:
    ids = ada.ask_json("rows", *PICTURES, column_shown=["name"])["ids"]
    last = ada.ask("image", *PICTURES, column="picture", row=ids[-1])
    assert (last.status, last.message) == (400, "the value is no image: PNG, JPEG, GIF and WebP are shown")
    assert b"svg" not in last.body
    assert "holds text, no bytes" in ada.ask("image", *PICTURES, column="name", row=ids[0]).message


# Vectors


def test_vectors_of_a_topic_lie_together(ada: Console) -> None:
    told = ada.ask_json("plane", *DOCS, column="embedding", label="topic")
    assert len(told["ids"]) == len(told["points"]) == len(told["labels"]) == told["rows"]
    assert 0.3 < sum(told["spread"]) <= 1
    assert told == ada.ask_json("plane", *DOCS, column="embedding", label="topic")
    assert ada.ask_json("plane", *DOCS, column="embedding")["labels"] is None
    assert "holds int64, no vectors" in ada.ask("plane", *DOCS, column="id").message
    assert ada.ask("plane", *DOCS).message == "column is missing in the query"


def test_what_is_near_is_of_the_same_topic(ada: Console) -> None:
    topic = ada.ask_json("rows", *DOCS, column_shown=["topic"], limit=1)
    told = ada.ask_json("neighbours", *DOCS, column="embedding", row=topic["ids"][0], k=5, column_shown=["topic", "id"])
    assert told["own"][0] == topic["rows"][0][0]
    assert [row[0] for row in told["rows"]] == [told["own"][0]] * 5
    assert topic["ids"][0] not in told["ids"]
    assert told["distances"] == sorted(told["distances"])
    assert told["searched"] == "index"
    drawn = ada.ask_json("plane", *DOCS, column="embedding")
    places = dict(zip(drawn["ids"], drawn["points"], strict=True))
    assert told["point"] == pytest.approx(places[topic["ids"][0]], rel=1e-4)
    assert told["points"][0] == pytest.approx(places[told["ids"][0]], rel=1e-4)
    before = ada.ask_json("neighbours", *DOCS, column="embedding", row=0, k=500, version=1)
    assert (before["searched"], len(before["ids"])) == ("table", 50)


# Storage and indices


def test_fragments_and_columns(ada: Console) -> None:
    told = ada.ask_json("fragments", *DOCS)
    assert told["bytes"] == sum(each["bytes"] for each in told["fragments"])
    assert told["rows"] == sum(each["rows"] for each in told["fragments"])
    assert told["deleted"] > 0
    sizes = dict(told["columns"])
    assert max(sizes, key=sizes.__getitem__) == "embedding"


def test_indices(ada: Console) -> None:
    found = {each["index_name"]: each for each in ada.ask_json("indices", *DOCS)["indices"]}
    assert found["embedding_idx"]["index_type"] == "IVF_FLAT"
    assert found["id_idx"]["columns"] == ["id"]
    assert found["id_idx"]["num_unindexed_rows"] == 40
    assert ada.ask_json("indices", *DOCS, version=1)["indices"] == []


def test_recall_is_kept_by_those_who_may_write(house: Open) -> None:
    """And shown to those who may read. What a reader measures is not lost, but not kept."""
    clerk = Console(house, "clerk")

    def find_recall() -> Any:
        [index] = clerk.ask_json("indices", "main", "library", "archive", "measured")["indices"]
        return index["recall"]

    with indexed_table(house) as dataset:
        with pytest.warns(RecallNotKeptWarning, match=r"not kept with the table: .* clerk is no writer of"):
            assert measure_recall(house, "clerk").num_rows == 7
        assert find_recall() is None
        measured = measure_recall(house, "ada").to_pylist()
        found = find_recall()
        assert [found[name] for name in ("version", "k", "queries", "index_has_changed")] == ["2", 5, 20, False]
        assert [point["nprobes"] for point in found["points"]] == [row["nprobes"] for row in measured]
        dataset.create_index("embedding", "IVF_FLAT", num_partitions=2, replace=True)
        assert find_recall()["index_has_changed"] is True


# Computed columns and lineage

TEXTS = ("main", "words", "texts")


def test_computed_columns(ada: Console) -> None:
    about = ada.ask_json("table", *TEXTS)
    assert [column["name"] for column in about["columns"]] == ["id", "text", "length", "loud"]
    assert [column["name"] for column in about["kept_columns"]] == ["_lancehouse_length", "_lancehouse_loud"]
    length, loud = (column["computed"] for column in about["columns"][2:])
    assert (length["title"], length["inputs"], length["since"]) == ("tests.browser.features:length 3", ["text"], "2")
    assert loud["title"] == "SQL 'upper(text)'"
    assert ada.ask_json("states", *TEXTS, column="length") == {"filled": 10, "missing": 0, "failed": 2}
    assert ada.ask_json("states", *TEXTS, column="loud") == {"filled": 0, "missing": 12, "failed": 0}
    messages = [version["message"] for version in ada.ask_json("versions", *TEXTS)["versions"]]
    assert messages[1:] == [
        "Fill length (tests.browser.features:length 3)",
        "Define length (tests.browser.features:length 3)",
        None,
    ]
    assert ada.ask_json("rows", *TEXTS)["columns"] == ["id", "text", "length", "loud"]
    shown = ada.ask_json("rows", *TEXTS, column_shown="_lancehouse_length", limit=1)
    assert "filled" in shown["rows"][0][0]["text"]


def test_failed_rows_come_in_pages(ada: Console) -> None:
    first = ada.ask_json("failures", *TEXTS, column="length", limit=1)
    assert (first["rows"], first["more"]) == (
        [
            {
                "row": "1",
                "state": "failed",
                "version": "3",
                "exception": "ValueError: there is no text <img src=x onerror=alert(1)>",
            }
        ],
        True,
    )
    second = ada.ask_json("failures", *TEXTS, column="length", limit=1, offset=1)
    assert ([row["row"] for row in second["rows"]], second["more"]) == (["3"], False)
    wrong = ada.ask("failures", *TEXTS, column="id")
    assert (wrong.status, wrong.message) == (400, "id is no computed column; there is length, loud")


def test_rows_that_a_view_leaves_out_come_in_pages(ada: Console, house: Open) -> None:
    split = ("main", "words", "split")
    first = ada.ask_json("failures", *split, limit=1)
    message = "ValueError: there are no words <img src=x onerror=alert(1)>"
    assert first["rows"] == [{"row": "1", "state": "skipped", "version": "1", "exception": message}]
    second = ada.ask_json("failures", *split, limit=1, offset=1)
    assert [first["more"], [row["row"] for row in second["rows"]], second["more"]] == [True, ["3"], False]
    wrong = ada.ask("failures", *TEXTS)
    assert (wrong.status, "is no materialized view" in wrong.message) == (400, True)
    assert Console(house, "public").ask("failures", *split).status == 403


def test_lineage(ada: Console) -> None:
    told = ada.ask_json("lineage", "main", "words", "split")
    names = [".".join(table["levels"]) for table in told["tables"]]
    assert names == ["words.split", "words.texts", f"words.{ODD_VIEW}"]
    assert [table["depth"] for table in told["tables"]] == [0, -1, 1]
    assert [(edge["from"], edge["to"]) for edge in told["edges"]] == [(1, 0), (0, 2)]
    split, texts, _ = told["tables"]
    assert split["view"] == {
        "title": "tests.browser.features:words 1",
        "inputs": ["text"],
        "columns": ["id"],
        "where": "id < 9",
    }
    assert [each["column"] for each in texts["computed"]] == ["length", "loud"]
    assert texts["x"] < split["x"]
    assert (told["hidden"], told["whole"], told["views_known"]) == (0, True, True)
    below = ada.ask_json("lineage", *TEXTS)
    assert [table["levels"][-1] for table in below["tables"]] == ["texts", "split", "ids", ODD_VIEW]


def test_lineage_names_only_what_the_caller_may_read(house: Open) -> None:
    answer = Console(house, "public").ask("lineage", "main", "words", "public", "ids")
    assert answer.status == 200
    assert b"texts" not in answer.body
    assert answer.json["hidden"] == 1
    assert Console(house, "public").ask("lineage", *TEXTS).status == 403
    assert Console(house, "public").ask("failures", *TEXTS, column="length").status == 403


def test_lineage_of_what_others_wrote_ends(house: Open, ada: Console) -> None:
    """Chains, circles, and definitions that are none, or attacks."""
    folder = house.folder / "laptop"
    column = {
        "version": "1",
        "digest": "",
        "inputs": [[0, "\ud800" + "x" * 10_000]],
        "since": 2,
        "function": "os:system",
    }
    bad = [{**column, "since": 2**70}, {**column, "inputs": [[1]]}, {**column, "sql": []}, "x", [[]] * 3]
    fields = [("good", column), *((f"bad{number}", each) for number, each in enumerate(bad))]
    schema = pa.schema(
        [pa.field("id", pa.int64())]
        + [pa.field(name, pa.int64(), metadata={"lancehouse.column": json.dumps(each)}) for name, each in fields]
    )

    def write(name: str, view: Any) -> None:
        lance.write_dataset(
            pa.Table.from_pylist([], schema.with_metadata({"lancehouse.view": view})), folder / f"{name}.lance"
        )

    def define(*source: str) -> str:
        return json.dumps({**asdict(ViewDefinition(source, {})), "function": "os:system", "version": "1"})

    made = [*(f"chain{number}" for number in range(60)), "round", "about", "self", "broken", "up"]
    try:
        for number in range(60):
            write(f"chain{number}", define(f"chain{number + 1}"))
        for name, source in (("round", "about"), ("about", "round"), ("self", "self"), ("up", "../../catalog")):
            write(name, define(source))
        write("broken", '{"source": 5}')
        chain = ada.ask_json("lineage", "laptop", "chain0")
        assert (len(chain["tables"]), chain["whole"], chain["views_known"]) == (lineage.MAX_TABLES, False, False)
        circle = ada.ask_json("lineage", "laptop", "round")
        assert [(edge["from"], edge["to"]) for edge in circle["edges"]] == [(1, 0), (0, 1)]
        own = ada.ask_json("lineage", "laptop", "self")
        assert [(edge["from"], edge["to"]) for edge in own["edges"]] == [(0, 0)]
        assert [each["column"] for each in own["tables"][0]["computed"]] == ["good"]
        assert max(map(len, own["tables"][0]["computed"][0]["inputs"])) <= tables.LONGEST_TEXT
        assert ada.ask_json("lineage", "laptop", "up")["hidden"] == 1
        broken = ada.ask("lineage", "laptop", "broken")
        assert (broken.status, "cannot be read" in broken.message) == (400, True)
        assert ada.ask_json("table", "laptop", "broken")["summary"]["is_view"]
    finally:
        for name in made:
            shutil.rmtree(folder / f"{name}.lance", ignore_errors=True)


@pytest.mark.parametrize(("kind", "more"), [("column-*", ["3", 2]), ("view", ["3" * 10_000])])
def test_exceptions_that_others_wrote_are_bounded(house: Open, ada: Console, kind: str, more: list[Any]) -> None:
    """Records of failed rows lie below the table: whoever writes there may put anything in their place."""
    [record] = (house.folder / "warehouse").rglob(f"_lancehouse/errors/{kind}/*.json")
    kept = record.read_bytes()

    def first() -> str | None:
        asked = {"limit": 1} if kind == "view" else {"limit": 1, "column": "length"}
        rows = ada.ask_json("failures", "main", "words", "split" if kind == "view" else "texts", **asked)["rows"]
        assert all(len(row["version"]) <= column_states.LONGEST_MESSAGE for row in rows)
        return rows[0]["exception"] if rows else None

    try:
        values: list[Any] = [[[1, "x" * 10_000 + "\ud800", *more]], [[1]], "x", [[[]] * 9], 5, [[-1, None, []]]]
        for value in values:
            record.write_text(json.dumps({**json.loads(kept), "value": value}))
            assert len(first() or "") <= column_states.LONGEST_MESSAGE
        record.write_text(json.dumps({**json.loads(kept), "value": [[1, "y" * column_states.MAX_RECORD_BYTES, *more]]}))
        assert first() is None
        elsewhere = house.folder / "elsewhere.json"
        elsewhere.write_bytes(kept)
        record.unlink()
        record.symlink_to(elsewhere)
        assert first() is None
    finally:
        record.unlink()
        record.write_bytes(kept)


def test_the_log_has_no_filter_and_no_token(house: Open, ada: Console) -> None:
    ada.ask_json("rows", *DOCS, filter="title = 'a secret word'")
    (log,) = house.folder.glob("serve-*.log")
    wait_until(lambda: "/console/v1/rows" in log.read_text())  # the line is written after the response
    said = log.read_text()
    assert "secret word" not in said
    assert house.tokens["ada"] not in said
