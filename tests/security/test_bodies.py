"""Bodies that are meant to fill the server's memory or to keep it busy, with and without credentials."""

from __future__ import annotations

import gzip
import json
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from lancehouse.catalog.callers import Role
from tests.live.engines import principal
from tests.live.gateways import ask, at_once, until
from tests.security.watch import attack_server
from tests.servers.lancehouse import Served, start_lancehouse

TOKENS = "/iceberg/v1/oauth/tokens"
NAMESPACES = "/iceberg/v1/main/namespaces"
DESCRIBE = "/lance/main/v1/namespace/db/describe"
INSERT = "/lance/main/v1/table/db$t/insert"
FORM = {"content-type": "application/x-www-form-urlencoded"}
JSON = {"content-type": "application/json"}
ROWS = {"content-type": "application/vnd.apache.arrow.stream"}
GZIP = {"content-encoding": "gzip"}
MIB = 2**20
LARGEST = 16 * MIB
"""The default of `--max-body`."""


@pytest.fixture(scope="module")
def closed_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Served, str]]:
    """A server that asks who calls, and the token of a writer."""
    folder = tmp_path_factory.mktemp("closed")
    with start_lancehouse(folder, options=["--auth", "--log-level", "warning"]) as server:
        yield server, principal(f"sqlite:///{folder / 'catalog.db'}", "ada", Role.ADMIN)


class Sender:
    """Sends all of a body but its last byte, as far as the server takes it in, and waits for an answer."""

    def __init__(self, server: Served, path: str, headers: dict[str, str], announced: int = LARGEST) -> None:
        address = urlsplit(server.uri)
        self.answer = b""
        self.left = LARGEST - 1
        self.socket = socket.create_connection((address.hostname or "", address.port or 0), timeout=60)
        head = "".join(f"{name}: {value}\r\n" for name, value in {**headers, "content-length": announced}.items())
        self.socket.sendall(f"POST {path} HTTP/1.1\r\nhost: {address.netloc}\r\n{head}\r\n".encode())
        self.socket.setblocking(False)

    def go_on(self) -> bool:
        """Send what can be sent; whether an answer has come."""
        with suppress(OSError):
            while self.left and not self.answer:
                self.left -= self.socket.send(b" " * min(self.left, MIB))
        with suppress(OSError):
            self.answer += self.socket.recv(65536)
        return self.answer.endswith(b"}")


@contextmanager
def hold_bodies(server: Served, path: str, headers: dict[str, str], count: int, *, held: int) -> Iterator[list[bytes]]:
    """Many such bodies at once, until all but those that may be `held` are answered; the answers."""
    senders = [Sender(server, path, headers) for _ in range(count)]
    try:
        until(lambda: sum(sender.go_on() for sender in senders) >= count - held, f"no more than {held} are held")
        yield [sender.answer for sender in senders if sender.go_on()]
    finally:
        for sender in senders:
            sender.socket.close()


# Before anybody is known


def test_a_form_that_unpacks_to_millions_of_fields(closed_server: tuple[Served, str], soak: bool) -> None:
    server, _ = closed_server
    bomb = gzip.compress(b"a=&" * (LARGEST // 3))
    with attack_server(server, soak=soak):
        heard = ask(server, "POST", TOKENS, bomb, {**FORM, **GZIP})
    assert heard.status == 413
    assert heard.json["error"] == "invalid_request"


@pytest.mark.parametrize(
    ("form", "status"),
    [
        (b"a=" + b"x" * 8190, 400),  # no grant_type, but it was read
        (b"a=" + b"x" * 8191, 413),
        (b"&".join(b"a%d=" % number for number in range(20)), 400),
        (b"&".join(b"a%d=" % number for number in range(21)), 400),
    ],
)
@pytest.mark.parametrize("packed", [False, True])
def test_a_form_is_small(closed_server: tuple[Served, str], form: bytes, status: int, packed: bool) -> None:
    server, _ = closed_server
    sent = (gzip.compress(form), GZIP) if packed else (form, {})
    heard = ask(server, "POST", TOKENS, sent[0], {**FORM, **sent[1]})
    assert heard.status == status
    assert ("20 fields" in heard.json["error_description"]) is (form.count(b"=") > 20)


@pytest.mark.parametrize(("path", "kind"), [(NAMESPACES, JSON), (DESCRIBE, JSON), (INSERT, ROWS)])
@pytest.mark.parametrize("who", [{}, {"authorization": "Bearer lh_wrong"}], ids=["nobody", "somebody wrong"])
def test_bodies_of_nobody_are_not_taken_in(
    closed_server: tuple[Served, str], path: str, kind: dict[str, str], who: dict[str, str], soak: bool
) -> None:
    server, _ = closed_server
    count = 200 if soak else 60
    with attack_server(server, soak=soak), hold_bodies(server, path, {**kind, **who}, count, held=0) as answers:
        assert [answer.split(b" ")[1] for answer in answers] == [b"401"] * count


def test_who_calls_may_stand_in_a_small_body_only(closed_server: tuple[Served, str]) -> None:
    server, token = closed_server
    ask(server, "POST", NAMESPACES, b'{"namespace": ["db"]}', {**JSON, "x-api-key": token})
    small = json.dumps({"identity": {"api_key": token}, "context": {"a": "x" * 60_000}}).encode()
    large = json.dumps({"identity": {"api_key": token}, "context": {"a": "x" * 66_000}}).encode()
    assert ask(server, "POST", DESCRIBE, small, JSON).status == 200
    assert ask(server, "POST", DESCRIBE, large, {**JSON, "x-api-key": token}).status == 200
    for body, packing in ((large, {}), (gzip.compress(large), GZIP)):
        refused = ask(server, "POST", DESCRIBE, body, {**JSON, **packing})
        assert refused.refused == (401, 16)
        assert "header" in refused.json["error"]


def test_much_json_of_nobody_is_not_parsed(closed_server: tuple[Served, str], soak: bool) -> None:
    server, _ = closed_server
    body = b'{"identity": {"api_key": "lh_wrong"}, "context": {"a": [' + b"[]," * (LARGEST // 3 - 100) + b"[]]}}"
    with attack_server(server, soak=soak):
        refused = at_once([lambda: ask(server, "POST", DESCRIBE, body, JSON).status] * 8)
    assert refused == [401] * 8


# Where anybody may call, or a caller is known


def test_all_bodies_together_have_one_budget(lancehouse_server: Served, soak: bool) -> None:
    count = 200 if soak else 60
    with (
        attack_server(lancehouse_server, soak=soak),
        hold_bodies(lancehouse_server, NAMESPACES, JSON, count, held=8) as answers,
    ):
        assert all(answer.startswith(b"HTTP/1.1 503 ") and b"retry-after: 1" in answer for answer in answers)
    until(lambda: _creates(lancehouse_server, LARGEST - 1000), "memory for bodies is given back")


def _creates(server: Served, size: int) -> bool:
    body = b'{"namespace": ["n"], "properties": {"a": "%b"}}' % (b"x" * size)
    return ask(server, "POST", NAMESPACES, body, JSON).status in (200, 409)


def test_the_budget_holds_for_who_is_known(closed_server: tuple[Served, str], soak: bool) -> None:
    server, token = closed_server
    who = {**JSON, "authorization": f"Bearer {token}"}
    with attack_server(server, soak=soak), hold_bodies(server, DESCRIBE, who, 60, held=8) as answers:
        assert all(answer.startswith(b"HTTP/1.1 503 ") and b'"code":17' in answer for answer in answers)
    until(lambda: ask(server, "POST", DESCRIBE, b"{}" + b" " * 10**7, who).status != 503, "memory is given back")


@pytest.mark.parametrize(
    "values", [b"[],", b"{},", b'{"":0},', b'"a",', b"1.5,"], ids=["lists", "objects", "pairs", "texts", "numbers"]
)
def test_json_that_is_larger_in_memory(lancehouse_server: Served, values: bytes, soak: bool) -> None:
    body = b'{"namespace": ["n"], "properties": {"a": [' + values * ((LARGEST - 100) // len(values)) + b"0]}}"
    with attack_server(lancehouse_server, soak=soak):
        statuses = at_once([lambda: ask(lancehouse_server, "POST", NAMESPACES, body, JSON).status] * 6)
    assert set(statuses) <= {400, 413, 503}


@pytest.mark.parametrize("path", [NAMESPACES, DESCRIBE])
def test_gzip_that_is_a_thousand_times_larger(lancehouse_server: Served, path: str, soak: bool) -> None:
    bomb = gzip.compress(b'{"a": "' + b" " * (LARGEST - 100) + b'"}')
    with attack_server(lancehouse_server, soak=soak):
        heard = at_once([lambda: ask(lancehouse_server, "POST", path, bomb, {**JSON, **GZIP})] * 20)
    assert {each.status for each in heard} == {413 if path == NAMESPACES else 400}
    assert all(b"times" in each.body for each in heard)


def test_gzip_of_usual_size_is_taken(lancehouse_server: Served) -> None:
    body = json.dumps({"namespace": ["zipped"], "properties": {f"key {n}": f"value {n}" for n in range(50_000)}})
    assert ask(lancehouse_server, "POST", NAMESPACES, gzip.compress(body.encode()), {**JSON, **GZIP}).status == 200


def test_uploads_that_wait_have_a_share_of_it(serving: Callable[..., Served], soak: bool) -> None:
    server = serving(options=["--log-level", "warning", "--max-body-memory", "32MiB", "--read-timeout", "30"])
    count = 200 if soak else 80
    with attack_server(server, soak=soak), hold_bodies(server, INSERT, ROWS, count, held=43) as answers:
        # Bodies take turns, so that each may have been read before the next one came: then none is too many.
        assert {answer.split(b" ")[1] for answer in answers} <= {b"400", b"503"}
    until(lambda: ask(server, "POST", INSERT, b"no rows", ROWS).status == 400, "memory for uploads is given back")


def test_a_connection_whose_body_is_refused_does_not_last(tmp_path: Path) -> None:
    """Who goes on sending what nobody reads is hung up on."""
    with start_lancehouse(tmp_path, options=["--auth", "--read-timeout", "1"]) as server:
        sender = Sender(server, NAMESPACES, JSON, announced=10 * LARGEST)  # so that it does not end
        until(sender.go_on, "it is answered")
        assert sender.answer.startswith(b"HTTP/1.1 401 ")
        with sender.socket as connection:

            def is_over() -> bool:
                try:
                    connection.send(b" ")
                    return connection.recv(1000) == b""
                except BlockingIOError:
                    return False
                except OSError:
                    return True

            until(is_over, "the connection is closed")
