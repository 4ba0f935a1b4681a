"""The Polaris emulator answers as the real server did, line by line."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from tests.servers.polaris import Polaris
from tests.wire import polaris
from tests.wire.facts import Json, NameFact, Reply, Talk, check, replay_name


def problem(answer: Json) -> tuple[str, str]:
    assert answer["error"]["code"] >= 400
    return answer["error"]["type"], answer["error"]["message"]


@pytest.fixture(scope="module")
def talk() -> Iterator[Talk]:
    with Polaris("test_catalog") as server:
        talk = Talk(server.iceberg_uri, {"Authorization": f"Bearer {server.token()}"})
        yield talk
        talk.close()


@pytest.fixture(scope="module")
def replies(talk: Talk) -> list[Reply]:
    return talk.replay(polaris.FACTS)


@pytest.mark.parametrize("line", range(len(polaris.FACTS)), ids=[fact.case for fact in polaris.FACTS])
def test_line(replies: list[Reply], line: int) -> None:
    check(polaris.FACTS[line], replies[line], problem)


@pytest.mark.parametrize("number", range(len(polaris.NAMES)), ids=[ascii(fact.name[:12]) for fact in polaris.NAMES])
@pytest.mark.usefixtures("replies")
def test_name(talk: Talk, number: int) -> None:
    fact: NameFact = polaris.NAMES[number]
    error = replay_name(
        *(talk, fact),
        number=number,
        spaces=polaris.SPACES,
        tables=f"{polaris.GENERIC_SPACES}/nm/generic-tables",
        body=polaris.NAMED_TABLE,
    )
    if fact.type:
        type_, message = problem(json.loads(error))
        assert type_ == fact.type
        assert message.startswith(fact.message)
    else:
        assert not error
