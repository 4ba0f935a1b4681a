"""The Unity Catalog emulator answers as the real server did, line by line."""

from __future__ import annotations

import pytest

from tests.servers.unity import Unity
from tests.wire import unity
from tests.wire.facts import Json, Reply, Talk, check

SHOWN = [line for line, fact in enumerate(unity.FACTS) if not fact.case.startswith("set-up b")]


def problem(answer: Json) -> tuple[str, str]:
    assert answer["details"][0]["reason"] == answer["error_code"]
    return answer["error_code"], answer["message"]


@pytest.fixture(scope="module")
def replies() -> list[Reply]:
    with Unity(unity.CATALOG) as server:
        talk = Talk(server.api)
        replies = talk.replay(unity.FACTS)
        talk.close()
    return replies


@pytest.mark.parametrize("line", SHOWN, ids=[unity.FACTS[line].case for line in SHOWN])
def test_line(replies: list[Reply], line: int) -> None:
    check(unity.FACTS[line], replies[line], problem)
