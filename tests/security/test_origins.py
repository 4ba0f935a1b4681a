"""Pages of other sites, in the browser of somebody who runs or can reach a server: they change and read nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from http.client import HTTPConnection
from urllib.parse import urlsplit

import pytest

from lancehouse.catalog.callers import Role
from lancehouse.server.http.origins import Origins
from tests.live.engines import principal
from tests.live.gateways import Heard, ask, ids, numbers
from tests.servers.lancehouse import Served, start_lancehouse

JSON = {"content-type": "application/json"}
ROWS = {"content-type": "application/vnd.apache.arrow.stream"}
NAMESPACES = "/iceberg/v1/main/namespaces"
TABLE = "/lance/main/v1/table/db$t"
FAST = "/iceberg/v1/config"
"""Answered by the protocol of the connection, where the database is a file."""
SLOW = "/console/v1/places"
"""Answered by a thread, through ASGI."""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A server that asks nobody who they are, with a table of three rows."""
    options = ["--allowed-hosts", "lake.example.com,Lake.internal:8443", "--log-level", "warning"]
    with start_lancehouse(tmp_path_factory.mktemp("open"), options=options) as running:
        assert ask(running, "POST", NAMESPACES, b'{"namespace": ["db"]}', JSON).status == 200
        assert ask(running, "POST", f"{TABLE}/create", numbers(0, 3), ROWS).status == 200
        ask(running, "GET", FAST)
        yield running


def refusal_text(heard: Heard, path: str) -> str:
    """The message of a refusal, which has the form of whose path it is."""
    assert heard.status == 403, heard
    if path.startswith("/lance/"):
        assert heard.json["code"] == 15
        return str(heard.json["error"])
    assert heard.json["error"]["type"] == "ForbiddenException"
    return str(heard.json["error"]["message"])


def own(server: Served) -> str:
    return urlsplit(server.uri).netloc


def send(
    server: Served, host: str | None, method: str, path: str, headers: dict[str, str] | None = None, body: bytes = b""
) -> Heard:
    """A request with these header fields and no others."""
    connection = HTTPConnection(own(server), timeout=30)
    connection.putrequest(method, path, skip_host=True, skip_accept_encoding=True)
    length = {"content-length": str(len(body))} if method != "GET" else {}
    for name, value in {**({} if host is None else {"host": host}), **length, **(headers or {})}.items():
        connection.putheader(name, value)
    connection.endheaders(body)
    answer = connection.getresponse()
    try:
        return Heard(answer.status, {name.lower(): value for name, value in answer.getheaders()}, answer.read())
    finally:
        connection.close()


# What a page sends


@pytest.mark.parametrize(
    "kind",
    [
        None,
        "",
        "text/plain",
        "text/plain; charset=UTF-8",
        "text/plain; application/json",
        "application/x-www-form-urlencoded",
        "multipart/form-data; boundary=x",
        "application/jsonp",
    ],
)
@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        (f"{TABLE}/delete", b'{"predicate": "true"}', 400),
        (f"{TABLE}/drop", b"{}", 400),
        (f"{TABLE}/insert", numbers(3, 1), 400),
        (NAMESPACES, b'{"namespace": ["page"]}', 415),
        ("/iceberg/v1/main/tables/rename", b"{}", 415),
    ],
)
def test_bodies_that_any_page_can_send_change_nothing(
    server: Served, kind: str | None, path: str, body: bytes, status: int
) -> None:
    sent = {"sec-fetch-mode": "no-cors"} if kind is None else {"sec-fetch-mode": "no-cors", "content-type": kind}
    heard = send(server, own(server), "POST", path, sent, body)
    assert heard.status == status
    assert b"Content-Type" in heard.body
    assert ids(server, "db$t") == [0, 1, 2]


@pytest.mark.parametrize(
    "kind", ["application/json", "Application/JSON; charset=utf-8", "application/json;charset=UTF-8"]
)
def test_json_is_taken(server: Served, kind: str) -> None:
    heard = ask(server, "POST", f"{TABLE}/count_rows", b"{}", {"content-type": kind})
    assert (heard.status, heard.json) == (200, 3)


def test_programs_may_leave_the_type_out(server: Served) -> None:
    heard = send(server, own(server), "POST", f"{TABLE}/count_rows", {}, b"{}")
    assert (heard.status, heard.json) == (200, 3)


@pytest.mark.parametrize("path", [f"{TABLE}/count_rows", f"{TABLE}/create", NAMESPACES])
@pytest.mark.parametrize("headers", [{"content-type": "text/plain"}, {}])
def test_no_body_is_of_no_type(server: Served, path: str, headers: dict[str, str]) -> None:
    heard = send(server, own(server), "POST", path, headers)
    assert b"Content-Type" not in heard.body


FOREIGN = [
    {"origin": "http://evil.example"},
    {"origin": "https://evil.example:8181"},
    {"origin": "null"},
    {"origin": "http://127.0.0.1:1"},
    {"origin": "http://localhost"},
    {"origin": "file://"},
    {"origin": "http://lake.example.com:3000"},
    {"origin": "http://lake.internal"},
    {"origin": "http://lake.example.com.evil.example"},
    {"origin": "http://evil.example/lake.example.com"},
    {"origin": "http://evil.example", "sec-fetch-site": "cross-site"},
    {"origin": "http://evil.example", "sec-fetch-site": "none"},
    {"sec-fetch-site": "cross-site"},
    {"sec-fetch-site": "same-site"},
    {"sec-fetch-site": "cross-site", "sec-fetch-mode": "no-cors"},
]


@pytest.mark.parametrize("headers", FOREIGN, ids=str)
@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("POST", f"{TABLE}/delete", b'{"predicate": "true"}'),
        ("POST", f"{TABLE}/drop", b""),
        ("POST", NAMESPACES, b'{"namespace": ["page"]}'),
        ("DELETE", f"{NAMESPACES}/db", None),
        ("GET", FAST, None),
        ("GET", SLOW, None),
        ("GET", NAMESPACES, None),
    ],
)
def test_pages_of_others_are_refused(
    server: Served, method: str, path: str, body: bytes | None, headers: dict[str, str]
) -> None:
    heard = ask(server, method, path, body, {**headers, **(JSON if body else {})})
    assert "only the server's own pages may" in refusal_text(heard, path)
    assert ids(server, "db$t") == [0, 1, 2]


@pytest.mark.parametrize(
    "headers",
    [
        {"origin": "own"},
        {"origin": "own", "sec-fetch-site": "same-origin"},
        {"sec-fetch-site": "same-origin"},
        {"sec-fetch-site": "none", "sec-fetch-mode": "navigate"},
        {"origin": "https://lake.example.com"},
        {"origin": "https://LAKE.example.com:443"},
        {"origin": "https://lake.internal:8443"},
        {"origin": "https://somewhere.else", "sec-fetch-site": "same-origin"},  # a proxy has changed the name
        {"sec-fetch-mode": "cors"},  # Node's fetch
        {},
    ],
    ids=str,
)
def test_its_own_pages_and_programs_are_answered(server: Served, headers: dict[str, str]) -> None:
    sent = {name: f"http://{own(server)}" if value == "own" else value for name, value in headers.items()}
    for path in (FAST, SLOW):
        assert ask(server, "GET", path, headers=sent).status == 200
    assert ask(server, "POST", f"{TABLE}/count_rows", b"{}", {**sent, **JSON}).json == 3


@pytest.mark.parametrize("path", ["/", "/console", SLOW])
def test_a_link_of_another_page_may_be_followed(server: Served, path: str) -> None:
    followed = {"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate", "sec-fetch-dest": "document"}
    assert ask(server, "GET", path, headers=followed).status in (200, 404)
    assert ask(server, "POST", f"{TABLE}/drop", b"", followed).status == 403


def test_no_answer_lets_other_pages_read_it(server: Served) -> None:
    for method in ("GET", "OPTIONS"):
        heard = ask(server, method, FAST, headers={"access-control-request-method": "POST"})
        assert not [name for name in heard.headers if name.startswith("access-control-")]


# By which name


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "evil.example:8181",
        "localhost.evil.example",
        "127.0.0.1.evil.example",
        "lake.example.com.evil.example",
        "2130706433",
        "evil.example#localhost",
        "[evil.example]",
        "",
    ],
)
@pytest.mark.parametrize(("method", "path"), [("GET", FAST), ("GET", SLOW), ("POST", f"{TABLE}/drop")])
def test_a_name_that_was_led_here_is_refused(server: Served, host: str, method: str, path: str) -> None:
    headers = {"origin": f"http://{host}", "sec-fetch-site": "same-origin"}
    assert "--allowed-hosts" in refusal_text(send(server, host, method, path, headers), path)
    assert ids(server, "db$t") == [0, 1, 2]


@pytest.mark.parametrize(
    "host",
    [
        "localhost",
        "LocalHost.:8181",
        "house.localhost:1",
        "127.0.0.1",
        "127.9.9.9:8181",
        "[::1]",
        "[::1]:8181",
        "10.0.0.5:8181",
        "lake.example.com",
        "LAKE.example.com.:443",
        "lake.internal",
        None,
    ],
)
def test_its_own_names_and_addresses_are_answered(server: Served, host: str | None) -> None:
    for path in (FAST, SLOW):
        assert send(server, host, "GET", path).status == 200


def test_health_is_told_under_any_name(server: Served) -> None:
    assert send(server, "pod-7", "GET", "/health/live").status == 200


@pytest.mark.parametrize("hosts", [(), ("--allowed-hosts", "lake.example.com")])
def test_where_callers_are_asked_who_they_are(serving: Callable[..., Served], hosts: tuple[str, ...]) -> None:
    """No page knows a token: any name will do, unless the settings name some. Origins are checked all the same."""
    server = serving(options=["--auth", *hosts])
    token = principal(f"sqlite:///{server.location.parent / 'catalog.db'}", "ada", Role.ADMIN)
    who = {"authorization": f"Bearer {token}"}
    for path in (FAST, FAST, SLOW):
        assert send(server, "somewhere.example", "GET", path, who).status == (403 if hosts else 200)
        assert send(server, "lake.example.com", "GET", path, who).status == 200
        assert ask(server, "GET", path, headers={**who, "origin": "http://evil.example"}).status == 403
    assert send(server, "lake.example.com", "GET", FAST).status == 401


@pytest.mark.parametrize(
    ("proxies", "peer", "told", "found"),
    [
        ((), "10.0.0.1", "1.2.3.4", "10.0.0.1"),
        (("10.0.0.0/8",), "10.0.0.1", None, "10.0.0.1"),
        (("10.0.0.0/8",), "10.0.0.1", "1.2.3.4", "1.2.3.4"),
        (("10.0.0.0/8",), "9.9.9.9", "1.2.3.4", "9.9.9.9"),
        (("10.0.0.0/8",), "10.0.0.1", "6.6.6.6, 1.2.3.4", "1.2.3.4"),
        (("10.0.0.0/8",), "10.0.0.1", "1.2.3.4, 10.2.2.2", "1.2.3.4"),
        (("10.0.0.0/8",), "10.0.0.1", "nonsense", "10.0.0.1"),
        (("10.0.0.0/8",), "10.0.0.1", "1.2.3.4:555", "1.2.3.4"),
        (("10.0.0.0/8",), "::ffff:10.0.0.1", '"[2001:db8::1]:555"', "2001:db8::1"),
        (("10.0.0.0/8",), "10.0.0.1", ",".join(["10.0.0.9"] * 1000), "10.0.0.9"),
    ],
)
def test_callers_behind_proxies(proxies: tuple[str, ...], peer: str, told: str | None, found: str) -> None:
    headers = {} if told is None else {"x-forwarded-for": told}
    assert Origins(proxies=proxies).find_peer(peer, headers) == found
