"""What the recordings do not show of the Polaris emulator: tokens, several catalogs, rename, paging, bad requests."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import quote, unquote_plus, urlencode

import pytest

from tests.servers.polaris import Polaris
from tests.wire.facts import Talk, matches

SCHEMA = {"type": "struct", "fields": [{"id": 3, "name": "x", "required": False, "type": "string"}]}
SPACES = "/v1/test_catalog/namespaces"
TOKENS = "/v1/oauth/tokens"

Send = Callable[..., tuple[int, Any]]


@pytest.fixture
def send(polaris: Polaris) -> Iterator[Send]:
    """Sends with a good token; gives status and JSON."""
    talk = Talk(polaris.iceberg_uri, {"Authorization": f"Bearer {polaris.token()}"})

    def send(method: str, path: str, body: Any = None) -> tuple[int, Any]:
        status, text = talk.send(method, path, body)
        return status, json.loads(text) if text else None

    yield send
    talk.close()


def ask_for_token(polaris: Polaris, **form: str) -> tuple[int, Any]:
    talk = Talk(polaris.iceberg_uri, {"Content-Type": "application/x-www-form-urlencoded"})
    status, text = talk.send_raw("POST", TOKENS, urlencode(form).encode())
    talk.close()
    return status, json.loads(text)


GOOD = {
    "grant_type": "client_credentials",
    "client_id": "root",
    "client_secret": "s3cr3t",
    "scope": "PRINCIPAL_ROLE:ALL",
}


@pytest.mark.parametrize(
    ("form", "status", "shows"),
    [
        (GOOD, 200, {"token_type": "bearer", "expires_in": 3600}),
        ({**GOOD, "client_secret": "wrong"}, 401, {"error": "invalid_client"}),
        ({**GOOD, "client_id": "nobody"}, 401, {"error": "invalid_client"}),
        ({**GOOD, "scope": "catalog"}, 400, {"error": "invalid_scope"}),
        ({**GOOD, "grant_type": "password"}, 400, {"error": "unsupported_grant_type"}),
    ],
    ids=["good", "wrong secret", "unknown client", "wrong scope", "wrong grant"],
)
def test_token(polaris: Polaris, form: dict[str, str], status: int, shows: Any) -> None:
    found, answer = ask_for_token(polaris, **form)
    assert found == status
    assert matches(shows, answer)


def test_tokens_are_checked_and_expire(polaris: Polaris) -> None:
    _, issued = ask_for_token(polaris, **GOOD)
    good = Talk(polaris.iceberg_uri, {"Authorization": f"Bearer {issued['access_token']}"})
    none, wrong = Talk(polaris.iceberg_uri), Talk(polaris.iceberg_uri, {"Authorization": "Bearer guess"})
    assert good.send("GET", SPACES)[0] == 200
    polaris.expire_tokens()
    for talk in (good, none, wrong):
        status, text = talk.send("GET", SPACES)
        assert status == 401
        assert json.loads(text)["error"]["type"] == "NotAuthorizedException"
        talk.close()


def test_a_token_lives_as_long_as_said() -> None:
    with Polaris(token_lifetime_s=0) as polaris:
        talk = Talk(polaris.iceberg_uri, {"Authorization": f"Bearer {polaris.token()}"})
        assert talk.send("GET", SPACES)[0] == 401
        talk.close()


@pytest.mark.parametrize(
    ("query", "status", "shows"),
    [
        ("?warehouse=test_catalog", 200, {"overrides": {"prefix": "test_catalog"}}),
        (
            "?warehouse=nope",
            404,
            {"error": {"type": "NotFoundException", "message": "Unable to find warehouse nope"}},
        ),
        ("", 400, {"error": {"type": "BadRequestException"}}),
    ],
    ids=["known", "unknown", "none"],
)
def test_config(send: Send, query: str, status: int, shows: Any) -> None:
    found, answer = send("GET", f"/v1/config{query}")
    assert found == status
    assert matches(shows, answer)


def test_catalogs_are_apart(polaris: Polaris, send: Send) -> None:
    polaris.seed_catalog("second one", "file:///warehouse/second")
    assert send("POST", f"/v1/{quote('second one')}/namespaces", {"namespace": ["a"]})[0] == 200
    assert send("GET", SPACES)[1]["namespaces"] == []


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (SPACES, {}),
        (SPACES, {"namespace": "a"}),
        (SPACES, {"namespace": ["b"], "properties": {"a": 1}}),
        (f"{SPACES}/a/properties", {"updates": {"a": 1}}),
        (f"{SPACES}/a/tables", {"name": "t"}),
        (f"{SPACES}/a/tables", {"schema": SCHEMA}),
        ("/v1/test_catalog/tables/rename", {"source": {"namespace": ["a"], "name": "t"}}),
        ("/polaris/v1/test_catalog/namespaces/a/generic-tables", {"name": "t"}),
        ("/polaris/v1/test_catalog/namespaces/a/generic-tables", {"format": "lance"}),
    ],
    ids=lambda value: json.dumps(value) if isinstance(value, dict) else value.rpartition("/")[2],
)
def test_bodies_that_the_specification_refuses(send: Send, path: str, body: Any) -> None:
    assert send("POST", SPACES, {"namespace": ["a"]})[0] == 200
    status, answer = send("POST", path, body)
    assert (status, answer["error"]["type"]) == (400, "BadRequestException")


def test_properties_one_way_at_a_time(send: Send) -> None:
    send("POST", SPACES, {"namespace": ["a"], "properties": {"k": "v"}})
    path = f"{SPACES}/a/properties"
    assert send("POST", path, {"updates": {"b": "c"}})[1] == {"removed": [], "updated": ["b"], "missing": []}
    assert send("POST", path, {"removals": ["k", "z"]})[1] == {"removed": ["k"], "updated": [], "missing": ["z"]}
    assert matches({"b": "c", "k": None}, send("GET", f"{SPACES}/a")[1]["properties"])


def test_rename(polaris: Polaris, send: Send) -> None:
    for name in ("a", "b"):
        send("POST", SPACES, {"namespace": [name]})
    polaris.seed_iceberg("test_catalog", "a", "t")
    polaris.seed_generic("test_catalog", "b", "taken")

    def rename(source: str, destination: str, to: str = "b") -> tuple[int, Any]:
        ends = {"source": {"namespace": ["a"], "name": source}, "destination": {"namespace": [to], "name": destination}}
        return send("POST", "/v1/test_catalog/tables/rename", ends)

    assert rename("zz", "u")[1]["error"]["type"] == "NoSuchTableException"
    assert rename("t", "u", "nope")[1]["error"]["type"] == "NoSuchNamespaceException"
    assert rename("t", "taken")[1]["error"]["type"] == "AlreadyExistsException"
    assert rename("t", "u")[0] == 204
    assert send("GET", f"{SPACES}/a/tables")[1]["identifiers"] == []
    assert send("GET", f"{SPACES}/b/tables/u")[0] == 200


def test_purge_is_refused(polaris: Polaris, send: Send) -> None:
    polaris.seed_namespace("test_catalog", "a")
    polaris.seed_iceberg("test_catalog", "a", "t")
    assert send("DELETE", f"{SPACES}/a/tables/t?purgeRequested=true")[1]["error"]["type"] == "ForbiddenException"


def test_pages_where_the_catalog_has_them() -> None:
    with Polaris(paging=True) as polaris:
        polaris.seed_namespace("test_catalog", "a")
        for name in ("x", "y", "z"):
            polaris.seed_iceberg("test_catalog", "a", name)
        talk = Talk(polaris.iceberg_uri, {"Authorization": f"Bearer {polaris.token()}"})
        pages = [
            json.loads(talk.send("GET", f"{SPACES}/a/tables?pageSize=2&pageToken={token}")[1]) for token in ("", "2")
        ]
        talk.close()
    assert [[item["name"] for item in page["identifiers"]] for page in pages] == [["x", "y"], ["z"]]
    assert [page["next-page-token"] for page in pages] == ["2", None]


def test_credentials_for_those_who_ask(polaris: Polaris) -> None:
    vended = [{"prefix": "s3://b/", "config": {"s3.access-key-id": "k"}}]
    polaris.seed_namespace("test_catalog", "a")
    polaris.seed_iceberg("test_catalog", "a", "t", vended=vended)
    authorization = {"Authorization": f"Bearer {polaris.token()}"}
    for more, expected in [({}, None), ({"X-Iceberg-Access-Delegation": "vended-credentials"}, vended)]:
        talk = Talk(polaris.iceberg_uri, {**authorization, **more})
        assert json.loads(talk.send("GET", f"{SPACES}/a/tables/t")[1]).get("storage-credentials") == expected
        talk.close()


def test_commit_by_compare_and_swap(polaris: Polaris, send: Send) -> None:
    polaris.seed_namespace("test_catalog", "a")
    polaris.seed_iceberg("test_catalog", "a", "t")

    def commit(version: int, expected: int | None) -> int:
        snapshot = {"snapshot-id": version, "sequence-number": version, "timestamp-ms": 1, "manifest-list": "x"}
        ref = {"action": "set-snapshot-ref", "ref-name": "main", "type": "branch", "snapshot-id": version}
        requirement = {"type": "assert-ref-snapshot-id", "ref": "main", "snapshot-id": expected}
        updates = [{"action": "add-snapshot", "snapshot": snapshot}, ref]
        return send("POST", f"{SPACES}/a/tables/t", {"requirements": [requirement], "updates": updates})[0]

    assert [commit(1, None), commit(2, None), commit(2, 1)] == [200, 409, 200]
    assert send("GET", f"{SPACES}/a/tables/t")[1]["metadata"]["current-snapshot-id"] == 2


def test_requests_are_logged_raw(polaris: Polaris, send: Send) -> None:
    send("GET", f"{SPACES}/a%2Fb%1Fc?x=%20")
    assert polaris.requests == [("GET", f"/api/catalog{SPACES}/a%2Fb%1Fc?x=%20")]


@pytest.mark.parametrize("name", ["a+b", "a%2Fb"])
def test_names_of_iceberg_tables_are_decoded_twice(send: Send, name: str) -> None:
    """Unlike those of namespaces and of generic tables. Java's URI has to take the name as it is."""
    once, twice = quote(name, safe=""), quote(quote(name, safe=""), safe="")
    generic = SPACES.replace("/v1", "/polaris/v1")
    assert send("POST", SPACES, {"namespace": [name]})[0] == 200
    assert send("GET", f"{SPACES}/{once}")[0] == 200
    assert send("POST", f"{generic}/{once}/generic-tables", {"name": name, "format": "lance"})[0] == 200
    assert send("GET", f"{generic}/{once}/generic-tables/{once}")[0] == 200
    assert send("POST", SPACES, {"namespace": ["odd"]})[0] == 200
    assert send("POST", f"{SPACES}/odd/tables", {"name": name, "schema": SCHEMA})[0] == 200
    status, missing = send("GET", f"{SPACES}/odd/tables/{once}")
    assert (status, missing["error"]["message"]) == (404, f"Table does not exist: odd.{unquote_plus(name)}")
    assert send("GET", f"{SPACES}/odd/tables/{twice}")[0] == 200
    assert send("DELETE", f"{SPACES}/odd/tables/{twice}")[0] == 204
    for refused in ("a%b", "a b"):
        status, error = send("POST", f"{SPACES}/odd/tables", {"name": refused, "schema": SCHEMA})
        assert (status, error["error"]["type"]) == (400, "IllegalArgumentException")
    status, above = send("GET", f"{SPACES}/odd/tables/%2E%2E")
    assert (status, above["namespace"]) == (200, ["odd"])
