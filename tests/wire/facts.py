"""How a fact about a server is written down, and how it is checked."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from http.client import HTTPConnection
from types import EllipsisType
from typing import Any
from urllib.parse import quote, urlsplit

Json = Any
Reply = tuple[int, str]


@dataclass(frozen=True, slots=True)
class Fact:
    """One line of a recording: what was sent, and what came back.

    Lines build on those before them. `shows` is the part of the answer's JSON that was seen, for `matches`; `type` and
    `message` are those of an error, the message as far as it was seen.
    """

    case: str
    method: str
    path: str
    status: int
    body: Mapping[str, Any] | None = None
    type: str = ""
    message: str = ""
    shows: Json = None
    text: str = ""
    """What an answer that is no JSON starts with."""


@dataclass(frozen=True, slots=True)
class NameFact:
    """What became of a name: statuses of create, get and delete, as a namespace and as a table."""

    name: str
    namespace: tuple[int, int, int] = (200, 200, 204)
    table: tuple[int, int, int] = (200, 200, 204)
    type: str = ""
    """Of the first error, if it has one."""
    message: str = ""


@dataclass(slots=True)
class Talk:
    """One connection that sends paths exactly as they are written."""

    uri: str
    headers: Mapping[str, str] = field(default_factory=dict)
    _connection: HTTPConnection = field(init=False)

    def __post_init__(self) -> None:
        self._connection = HTTPConnection(urlsplit(self.uri).netloc, timeout=60)

    def send(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> Reply:
        """Send JSON; status and text of the answer."""
        return self.send_raw(method, path, None if body is None else json.dumps(body).encode())

    def send_raw(self, method: str, path: str, content: bytes | None) -> Reply:
        """Send bytes, of JSON unless `headers` say otherwise."""
        headers = {"Content-Type": "application/json", **self.headers}
        self._connection.request(method, urlsplit(self.uri).path + path, content, headers)
        response = self._connection.getresponse()
        return response.status, response.read().decode(errors="replace")

    def replay(self, facts: Iterable[Fact]) -> list[Reply]:
        """Send every line, in order."""
        return [self.send(fact.method, fact.path, fact.body) for fact in facts]

    def close(self) -> None:
        self._connection.close()


Problem = Callable[[Json], tuple[str, str]]
"""Takes type and message out of an error's JSON."""


def check(fact: Fact, reply: Reply, problem: Problem) -> None:
    """Assert that a reply is what the fact says."""
    status, text = reply
    assert status == fact.status, text
    assert text.startswith(fact.text), text
    if fact.type:
        type_, message = problem(json.loads(text))
        assert type_ == fact.type
        assert message.startswith(fact.message)
    if fact.shows is not None:
        answer = json.loads(text)
        assert matches(fact.shows, answer), answer


def matches(shown: Json, found: Json) -> bool:
    """Does an answer hold what was shown of it?

    Keys that were not shown may be there. `None` stands for null or for no such key, a pattern for a whole string that
    it matches, and `...` at the end of a list for whatever comes after.
    """
    match shown:
        case dict():
            return isinstance(found, dict) and all(matches(value, found.get(key)) for key, value in shown.items())
        case [*first, EllipsisType()]:
            return isinstance(found, list) and matches(first, found[: len(first)])
        case list():
            return isinstance(found, list) and len(shown) == len(found) and all(map(matches, shown, found))
        case re.Pattern():
            return isinstance(found, str) and shown.fullmatch(found) is not None
    return bool(shown == found)


def fill(value: Json, places: Mapping[str, str]) -> Json:
    """Put real places where a fact says `{warehouse}` and the like."""
    match value:
        case Fact():
            fields = {name: fill(getattr(value, name), places) for name in Fact.__slots__}
            return Fact(**fields)
        case str():
            for place, real in places.items():
                value = value.replace(f"{{{place}}}", real)
            return value
        case re.Pattern():
            return re.compile(fill(value.pattern, {place: re.escape(real) for place, real in places.items()}))
        case dict():
            return {key: fill(item, places) for key, item in value.items()}
        case list():
            return [fill(item, places) for item in value]
    return value


def metadata_location(folder: str) -> re.Pattern[str]:
    """Where a server put the first metadata of a table."""
    return re.compile(folder + r"/metadata/00000-[0-9a-f-]{36}\.metadata\.json")


def replay_name(talk: Talk, fact: NameFact, *, number: int, spaces: str, tables: str, body: Mapping[str, Any]) -> str:
    """Create, get and delete a namespace and a table of that name, assert what is seen; the first error's text.

    Args:
        talk: with the server.
        fact: the name.
        number: of the fact; makes the table's location.
        spaces: path of the namespaces.
        tables: path of the tables of the namespace that they go into.
        body: of the request that creates a table, `{number}` in it.
    """
    encoded = quote(fact.name, safe="")
    space = _life(talk, spaces, encoded, {"namespace": [fact.name], "properties": {}})
    assert _statuses(space) == fact.namespace
    if (got := space[1])[0] == 200:
        assert json.loads(got[1])["namespace"] == [fact.name]
    table = _life(talk, tables, encoded, {"name": fact.name, **fill(dict(body), {"number": str(number)})})
    assert _statuses(table) == fact.table
    assert fact.name in [listed["name"] for listed in json.loads(table[2][1])["identifiers"]]
    return next((text for status, text in [*space, *table] if status >= 400), "")


def _life(talk: Talk, folder: str, name: str, create: Mapping[str, Any]) -> list[Reply]:
    """Create, get, list, delete."""
    path = f"{folder}/{name}"
    created = talk.send("POST", folder, create)
    return [created, talk.send("GET", path), talk.send("GET", folder), talk.send("DELETE", path)]


def _statuses(life: Sequence[Reply]) -> tuple[int, int, int]:
    created, got, _, deleted = (status for status, _ in life)
    return created, got, deleted
