"""What the recordings do not show of the Unity emulator: tokens, whole lists, columns, rename of a schema."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.servers.unity import Unity
from tests.wire.facts import Talk
from tests.wire.unity import COLUMN, table

Send = Callable[..., tuple[int, Any]]


@pytest.fixture
def send(unity: Unity) -> Iterator[Send]:
    talk = Talk(unity.api)

    def send(method: str, path: str, body: Any = None) -> tuple[int, Any]:
        status, text = talk.send(method, path, body)
        return status, json.loads(text) if text.startswith("{") else text

    yield send
    talk.close()


def test_tokens() -> None:
    with Unity("c", token="good") as unity:
        for token, status in [("good", 200), ("bad", 401)]:
            talk = Talk(unity.api, {"Authorization": f"Bearer {token}"})
            assert talk.send("GET", "/catalogs")[0] == status
            unity.expire_tokens()
            assert talk.send("GET", "/catalogs")[0] == 401
            unity.accept_token("good")
            talk.close()


@pytest.mark.parametrize("count", [0, 99, 100, 101, 250])
def test_every_page(unity: Unity, send: Send, count: int) -> None:
    unity.seed_schema("lance_test", "s")
    names = [f"t{number:03d}" for number in range(count)]
    for name in reversed(names):
        unity.seed_table("lance_test", "s", name)
    found: list[str] = []
    token: str | None = ""
    while token is not None:
        page = send("GET", f"/tables?catalog_name=lance_test&schema_name=s&page_token={token}")[1]
        found += [item["name"] for item in page["tables"]]
        token = page["next_page_token"]
    assert found == names


FIELD = {"name": "v", "type": {"type": "array", "elementType": "float", "containsNull": True}, "nullable": True}
VECTOR = {**COLUMN, "name": "v", "type_text": "ARRAY<FLOAT>", "type_name": "ARRAY"}


@pytest.mark.parametrize(
    ("column", "message"),
    [
        ({**VECTOR, "type_json": json.dumps({**FIELD, "metadata": {}})}, ""),
        ({**VECTOR, "type_json": json.dumps(FIELD)}, "type_json.metadata is required."),
        ({**VECTOR, "type_json": json.dumps({**FIELD, "name": "w", "metadata": {}})}, "Invalid type_json for column v"),
        ({**VECTOR, "type_json": "{"}, "Invalid type_json for column v: Failed to parse"),
        ({**COLUMN, "type_name": "VECTOR"}, "failed to parse a JSON document"),
    ],
    ids=["vector", "no metadata", "another name", "no JSON", "unknown type"],
)
def test_columns(unity: Unity, send: Send, column: dict[str, Any], message: str) -> None:
    unity.seed_schema("lance_test", "s1")
    status, answer = send("POST", "/tables", table("t", columns=[column]))
    assert (status, answer.get("message", "")[: len(message)]) == (400 if message else 200, message)
    if not message:
        assert answer["columns"][0]["type_text"] == "array<float>"


def test_a_schema_takes_its_tables_along(unity: Unity, send: Send) -> None:
    unity.seed_schema("lance_test", "s")
    unity.seed_table("lance_test", "s", "t")
    assert send("PATCH", "/schemas/lance_test.s", {"new_name": "r"})[1]["full_name"] == "lance_test.r"
    assert send("GET", "/tables/lance_test.r.t")[1]["schema_name"] == "r"
    assert send("GET", "/tables/lance_test.s.t")[0] == 404


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"name": "", "catalog_name": "lance_test"}, "Name cannot be empty"),
        ({"name": "s"}, "catalog_name is required."),
        ({"name": "s", "catalog_name": "lance_test", "properties": {"a": 1}}, "failed to parse a JSON document"),
    ],
    ids=["no name", "no catalog", "no string"],
)
def test_bodies_that_the_specification_refuses(send: Send, body: Any, message: str) -> None:
    status, answer = send("POST", "/schemas", body)
    assert (status, answer["error_code"]) == (400, "INVALID_ARGUMENT")
    assert answer["message"].startswith(message)


def test_values_that_its_database_has_no_room_for(send: Send) -> None:
    """Names are checked, values are not."""
    body = {"catalog_name": "lance_test", "name": "s", "properties": {"k": "v" * 255}}
    assert send("POST", "/schemas", body)[0] == 200
    status, failed = send("POST", "/schemas", {**body, "name": "t", "properties": {"k": "v" * 256}})
    assert (status, failed["error_code"]) == (500, "INTERNAL")
    assert "CHARACTER VARYING(255)" in failed["message"]
