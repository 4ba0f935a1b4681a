"""The real reference server answers as the table says, line by line."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.servers.reference import start_reference
from tests.wire import iceberg
from tests.wire.facts import Fact, Json, NameFact, Reply, Talk, check, fill, replay_name


def problem(answer: Json) -> tuple[str, str]:
    return answer["error"]["type"], answer["error"]["message"]


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("iceberg")
    uris = {"warehouse": (folder / "warehouse").as_uri(), "outside": (folder / "outside").as_uri()}
    hadoop = {"hadoop": f"file:{folder}/warehouse", "hadoop outside": f"file:{folder}/outside"}
    return {**uris, **hadoop, "plain": str(folder / "plain"), "folder": str(folder)}


@pytest.fixture(scope="module")
def talk(places: dict[str, str]) -> Iterator[Talk]:
    with start_reference(Path(places["folder"])) as server:
        talk = Talk(server.uri)
        yield talk
        talk.close()


@pytest.fixture(scope="module")
def replies(talk: Talk, places: dict[str, str]) -> list[Reply]:
    return talk.replay(fill(iceberg.FACTS, places))


@pytest.mark.parametrize("line", range(len(iceberg.FACTS)), ids=[fact.case for fact in iceberg.FACTS])
def test_line(replies: list[Reply], places: dict[str, str], line: int) -> None:
    fact: Fact = fill(iceberg.FACTS[line], places)
    check(fact, replies[line], problem)


@pytest.mark.parametrize("number", range(len(iceberg.NAMES)), ids=[ascii(fact.name[:12]) for fact in iceberg.NAMES])
@pytest.mark.usefixtures("replies")
def test_name(talk: Talk, places: dict[str, str], number: int) -> None:
    fact: NameFact = iceberg.NAMES[number]
    error = replay_name(
        *(talk, fact),
        number=number,
        spaces=iceberg.SPACES,
        tables=f"{iceberg.SPACES}/nm/tables",
        body=fill(iceberg.NAMED_TABLE, places),
    )
    assert error.startswith(iceberg.PAGE) if fact.namespace == iceberg.UNREADABLE else not error


def test_config(talk: Talk) -> None:
    status, text = talk.send("GET", "/v1/config")
    config = json.loads(text)
    assert status == 200
    assert config["overrides"] == {"namespace-separator": "%2E"}
    assert config["defaults"] == {}
