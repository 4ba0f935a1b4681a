"""Bad days of networks and servers: a right result or the right error, and nothing lost or doubled."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
from lance_namespace import (
    CreateNamespaceRequest,
    DeclareTableRequest,
    DeregisterTableRequest,
    DescribeNamespaceRequest,
    DescribeTableRequest,
    DropNamespaceRequest,
    ListTablesRequest,
    RenameTableRequest,
)
from lance_namespace import errors as lance
from lance_namespace.errors import LanceNamespaceError
from pydantic import BaseModel

import lancehouse
from lancehouse import CommitStateUnknownError
from lancehouse.clients import rest
from lancehouse.clients.catalog_namespace import CatalogNamespace
from lancehouse.clients.rest import Rest
from lancehouse.settings import ClientSettings
from tests.servers.faults import (
    ALWAYS,
    PAGE,
    Fault,
    FaultProxy,
    answer_after,
    answer_always,
    garble_answer,
    html,
    lost_answer,
    passes,
    read_timeout,
    reset,
    slow,
    throttle,
    truncate_answer,
)
from tests.servers.loopback import Answer, Loopback, Request
from tests.servers.polaris import Polaris
from tests.servers.unity import Unity

RETRIES = 2
PROPERTIES = {
    "connect_timeout_millis": "500",
    "max_retries": str(RETRIES),
    "root": "/data",
}


class Setup:
    """A client behind a proxy, with one namespace and one table that are there already."""

    def __init__(self, proxy: FaultProxy, namespace: CatalogNamespace, parent: list[str]) -> None:
        self.proxy = proxy
        self.namespace = namespace
        self.parent = parent
        namespace.create_namespace(CreateNamespaceRequest(id=parent))
        namespace.declare_table(DeclareTableRequest(id=[*parent, "t"]))
        proxy.clear()

    def tables(self) -> list[str]:
        return self.namespace.list_tables(ListTablesRequest(id=self.parent)).tables


@pytest.fixture(params=["iceberg", "polaris", "unity"])
def setup(request: pytest.FixtureRequest) -> Iterator[Setup]:
    common = {**PROPERTIES, "read_timeout_millis": read_timeout(request)}
    if request.param == "unity":
        with Unity("cat") as unity, FaultProxy(unity.uri) as proxy:
            yield Setup(proxy, lancehouse.UnityNamespace(endpoint=proxy.uri, catalog="cat", **common), ["cat", "db"])
        return
    kind = lancehouse.PolarisNamespace if request.param == "polaris" else lancehouse.IcebergNamespace
    path = "" if request.param == "polaris" else "/api/catalog"
    with Polaris("cat", root="file:///data") as polaris, FaultProxy(polaris.uri) as proxy:
        properties = {**common, "endpoint": proxy.uri + path, "credential": polaris.credential}
        if request.param == "iceberg":
            properties |= {"root": "file:///data/cat/db", "scope": "PRINCIPAL_ROLE:ALL"}
        yield Setup(proxy, kind(**properties), ["cat", "db"])


READS: dict[str, Callable[[Setup], Any]] = {
    "describe namespace": lambda on: on.namespace.describe_namespace(DescribeNamespaceRequest(id=on.parent)),
    "describe table": lambda on: on.namespace.describe_table(DescribeTableRequest(id=[*on.parent, "t"])).location,
    "list tables": lambda on: on.tables(),
}


@pytest.mark.parametrize("read", READS)
@pytest.mark.parametrize(
    "fault",
    [
        reset,
        lost_answer,
        truncate_answer(5),
        slow(5),
        slow(drip_s=0.2),
        throttle("0"),
        answer_always(503),
        answer_always(502),
        answer_always(504),
    ],
    ids=["reset", "lost", "truncated", "slow", "drip", "429", "503", "502", "504"],
)
def test_a_read_survives_a_passing_fault(setup: Setup, read: str, fault: Fault) -> None:
    healthy = READS[read](setup)
    setup.proxy.clear()
    setup.proxy.add(fault, times=RETRIES)
    assert READS[read](setup) == healthy


@pytest.mark.parametrize(
    ("fault", "expected", "attempts"),
    [
        (reset, lance.ServiceUnavailableError, RETRIES + 1),
        (slow(5), lance.ServiceUnavailableError, RETRIES + 1),
        (truncate_answer(5), lance.ServiceUnavailableError, RETRIES + 1),
        (answer_always(503, "<h1>Sorry</h1>"), lance.ServiceUnavailableError, RETRIES + 1),
        (answer_always(502), lance.InternalError, RETRIES + 1),
        (answer_always(504), lance.InternalError, RETRIES + 1),
        (throttle("0"), lance.ThrottlingError, RETRIES + 1),
        (throttle("3600"), lance.ThrottlingError, 1),  # nobody waits an hour
        (html, lance.InternalError, 1),
        (answer_always(200, '{"unexpected": true}'), lance.InternalError, 1),
        (answer_always(200, ""), lance.InternalError, 1),
        (answer_always(500, '{"error": {"message": "oops", "type": "X", "code": 500}}'), lance.InternalError, 1),
        (answer_always(400, '{"error": {"message": "bad", "type": "X", "code": 400}}'), lance.InvalidInputError, 1),
        (answer_always(403, "<html>Forbidden</html>"), lance.PermissionDeniedError, 1),
        (answer_always(403, "[" * 50_000), lance.PermissionDeniedError, 1),
        (answer_always(409, ""), lance.ConcurrentModificationError, 1),
        (answer_always(302, "", {"Location": "http://elsewhere"}), lance.InternalError, 1),
    ],
    ids=lambda value: getattr(value, "__name__", str(value)),
)
def test_a_read_that_fails_for_good(
    setup: Setup, fault: Fault, expected: type[LanceNamespaceError], attempts: int
) -> None:
    setup.proxy.add(fault, path="t$|t[?]", times=ALWAYS)
    with pytest.raises(expected) as error:
        setup.namespace.describe_table(DescribeTableRequest(id=[*setup.parent, "t"]))
    assert "table cat.db.t" in str(error.value)
    assert setup.proxy.count("GET", "t$|t[?]") == attempts


@pytest.mark.parametrize(
    ("headers", "said"),
    [
        (
            {"Location": "https://me:pass@elsewhere/login?code=pass#pass"},
            r"redirects to https://\*\*\*@elsewhere/login;",
        ),
        ({"Location": "/login"}, "redirects to /login;"),
        ({}, "the server gave no reason"),
    ],
    ids=["secrets", "path", "nowhere"],
)
def test_a_redirect_is_not_followed(setup: Setup, headers: dict[str, str], said: str) -> None:
    setup.proxy.add(answer_always(307, "", headers), path="t$|t[?]", times=ALWAYS)
    with pytest.raises(lance.InternalError, match=said) as error:
        setup.namespace.describe_table(DescribeTableRequest(id=[*setup.parent, "t"]))
    assert "pass" not in str(error.value)


def test_no_server_at_all(setup: Setup) -> None:
    with setup.proxy.refusing(), pytest.raises(lance.ServiceUnavailableError, match=r"table cat\.db\.t: no connection"):
        setup.namespace.describe_table(DescribeTableRequest(id=[*setup.parent, "t"]))
    assert setup.tables() == ["t"]


def test_a_list_is_whole_or_an_error(setup: Setup) -> None:
    """One table that cannot be read does not vanish from the list."""
    for name in "abc":
        setup.namespace.declare_table(DeclareTableRequest(id=[*setup.parent, name]))
    setup.proxy.add(answer_always(401, ""), path="tables", method="GET", times=ALWAYS)
    with pytest.raises(lance.UnauthenticatedError):
        setup.tables()
    setup.proxy.clear()
    setup.proxy.add(answer_always(503, ""), path="/b|tables[?]", method="GET", times=ALWAYS)
    with pytest.raises(lance.ServiceUnavailableError):
        setup.tables()
    setup.proxy.clear()
    assert setup.tables() == ["a", "b", "c", "t"]


@pytest.mark.parametrize(
    "fault",
    [lost_answer, truncate_answer(5), slow(5), html, reset, answer_always(503), answer_always(502), answer_always(504)],
    ids=["lost", "truncated", "slow", "html", "reset", "503", "502", "504"],
)
@pytest.mark.parametrize("made", ["namespace", "table"])
def test_a_create_whose_answer_is_lost(setup: Setup, fault: Fault, made: str) -> None:
    path = "(namespaces|schemas)$" if made == "namespace" else "tables$"
    setup.proxy.add(fault, method="POST", path=path)
    served = fault not in (html,)
    if made == "namespace":
        schema = ["cat", "made"]
        if not served:
            with pytest.raises(lance.InternalError):
                setup.namespace.create_namespace(CreateNamespaceRequest(id=schema, properties={"k": "v"}))
            return
        answer = setup.namespace.create_namespace(CreateNamespaceRequest(id=schema, properties={"k": "v"}))
        assert (answer.properties or {})["k"] == "v"
        with pytest.raises(lance.NamespaceAlreadyExistsError):
            setup.namespace.create_namespace(CreateNamespaceRequest(id=schema, properties={"k": "v"}))
        return
    if not served:
        with pytest.raises(lance.InternalError):
            setup.namespace.declare_table(DeclareTableRequest(id=[*setup.parent, "made"]))
        assert setup.tables() == ["t"]
        return
    answer_ = setup.namespace.declare_table(DeclareTableRequest(id=[*setup.parent, "made"]))
    assert answer_.location
    assert setup.tables() == ["made", "t"]
    with pytest.raises(lance.TableAlreadyExistsError):
        setup.namespace.declare_table(DeclareTableRequest(id=[*setup.parent, "made"]))


@pytest.mark.parametrize("status", [503, 500])
def test_what_was_there_before_is_not_taken_for_ours(setup: Setup, status: int) -> None:
    """A server that says that it did nothing made nothing, however alike what is there looks."""
    expected = {503: lance.TableAlreadyExistsError, 500: lance.InternalError}[status]
    setup.proxy.add(answer_always(status, ""), method="POST", path="tables$", times=1 if status == 503 else ALWAYS)
    with pytest.raises(expected):
        setup.namespace.declare_table(DeclareTableRequest(id=[*setup.parent, "t"]))
    assert setup.tables() == ["t"]


def test_a_lost_create_of_somebody_else_is_not_ours(setup: Setup) -> None:
    """The answer is lost, and what the look-up finds was made by another with another location."""
    setup.proxy.add(reset, method="POST", path="tables$")

    def other_is_faster(request: Any, forward: Any) -> Any:
        other.declare_table(DeclareTableRequest(id=[*setup.parent, "made"], location="file:///data/cat/db/other"))
        return forward(request)

    other = type(setup.namespace)(**setup.namespace._properties)
    setup.proxy.add(other_is_faster, method="GET", path="made")
    with pytest.raises(lance.TableAlreadyExistsError):
        setup.namespace.declare_table(DeclareTableRequest(id=[*setup.parent, "made"]))


@pytest.mark.parametrize(
    "fault",
    [lost_answer, slow(5), answer_always(503), reset, html, answer_after(200, PAGE), garble_answer],
    ids=["lost", "slow", "503", "reset", "html", "html after it was made", "garbled"],
)
def test_a_delete_whose_answer_is_lost(setup: Setup, fault: Fault) -> None:
    setup.proxy.add(fault, method="DELETE")
    setup.namespace.deregister_table(DeregisterTableRequest(id=[*setup.parent, "t"]))
    assert setup.tables() == []
    setup.proxy.add(fault, method="DELETE")
    setup.namespace.drop_namespace(DropNamespaceRequest(id=setup.parent, mode="Fail"))
    with pytest.raises(lance.NamespaceNotFoundError):
        setup.namespace.describe_namespace(DescribeNamespaceRequest(id=setup.parent))


@pytest.mark.parametrize("setup", ["iceberg"], indirect=True)
@pytest.mark.parametrize(
    "fault",
    [lost_answer, throttle("0"), answer_after(200, PAGE), garble_answer],
    ids=["lost", "429", "html after it was made", "garbled"],
)
def test_a_rename_whose_answer_is_lost(setup: Setup, fault: Fault) -> None:
    setup.proxy.add(fault, method="POST", path="rename")
    setup.namespace.rename_table(RenameTableRequest(id=[*setup.parent, "t"], new_table_name="u"))
    assert setup.tables() == ["u"]


@pytest.mark.parametrize("setup", ["iceberg"], indirect=True)
def test_a_rename_that_was_never_made_is_not_repeated(setup: Setup) -> None:
    setup.proxy.add(reset, method="POST", path="rename")
    with pytest.raises(lance.ServiceUnavailableError):
        setup.namespace.rename_table(RenameTableRequest(id=[*setup.parent, "t"], new_table_name="u"))
    assert setup.proxy.count("POST", "rename") == 1
    assert setup.tables() == ["t"]


@pytest.mark.parametrize("setup", ["iceberg"], indirect=True)
def test_a_rename_that_a_page_answers_was_not_made(setup: Setup) -> None:
    setup.proxy.add(html, method="POST", path="rename")
    with pytest.raises(lance.InternalError, match="the answer is a page"):
        setup.namespace.rename_table(RenameTableRequest(id=[*setup.parent, "t"], new_table_name="u"))
    assert setup.tables() == ["t"]


def test_a_delete_that_only_pages_answer(setup: Setup) -> None:
    setup.proxy.add(html, method="DELETE", times=ALWAYS)
    with pytest.raises(lance.InternalError, match="the answer is a page"):
        setup.namespace.deregister_table(DeregisterTableRequest(id=[*setup.parent, "t"]))
    assert setup.tables() == ["t"]


def test_text_that_json_cannot_hold(setup: Setup) -> None:
    properties = {"k": "\udcff"}
    with pytest.raises(lance.InvalidInputError, match="written as JSON"):
        setup.namespace.declare_table(DeclareTableRequest(id=[*setup.parent, "u"], properties=properties))


@pytest.mark.parametrize("setup", ["iceberg"], indirect=True)
def test_a_failed_config_is_not_remembered(setup: Setup) -> None:
    fresh = type(setup.namespace)(**{**setup.namespace._properties, "max_retries": "0"})
    setup.proxy.add(answer_always(503), path="/v1/config")
    with pytest.raises(lance.ServiceUnavailableError):
        fresh.list_tables(ListTablesRequest(id=setup.parent))
    assert fresh.list_tables(ListTablesRequest(id=setup.parent)).tables == ["t"]
    assert fresh.list_tables(ListTablesRequest(id=setup.parent)).tables == ["t"]
    assert setup.proxy.count("GET", "/v1/config") == 2  # and a success is


def test_requests_say_who_they_are(setup: Setup) -> None:
    seen: list[str] = []

    def look(request: Any, forward: Any) -> Any:
        seen.append(request.headers["User-Agent"])
        return forward(request)

    setup.proxy.add(look)
    READS["describe namespace"](setup)
    assert seen[0].startswith("lancehouse/")


# Commits: made once, or not at all, and nobody is told one for the other


class Swap(BaseModel):
    """Make `to` of a value, if it is `expected`."""

    expected: str
    to: str


class Cell(Loopback):
    """A server with one value, `before` at first, and a compare-and-swap."""

    def __init__(self) -> None:
        self.value = "before"
        super().__init__()

    def answer(self, request: Request) -> Answer:
        if request.method == "GET":
            return Answer.json({"value": self.value})
        asked = json.loads(request.body)
        if asked["expected"] != self.value:
            error = {"message": f"it is {self.value}", "type": "CommitFailedException", "code": 409}
            return Answer.json({"error": error}, 409)
        self.value = asked["to"]
        return Answer.json({"metadata": {}})


class CellValue(BaseModel):
    value: str


class Committing:
    """A client that swaps, behind a proxy."""

    def __init__(self, cell: Cell, proxy: FaultProxy, read_timeout_ms: str) -> None:
        self.cell = cell
        self.proxy = proxy
        properties = {**PROPERTIES, "read_timeout_millis": read_timeout_ms, "endpoint": proxy.uri}
        settings = ClientSettings.parse("iceberg", properties)
        self._rest = Rest(settings, base=proxy.uri, token_uri="")

    def commit(self) -> None:
        self._rest.commit(
            "/cell",
            Swap(expected="before", to="ours"),
            about="the cell",
            is_committed=self._has_landed,
            on={404: lance.TableNotFoundError},
        )

    def _has_landed(self) -> bool | None:
        now = self._rest.get("/cell", CellValue, about="the cell").value
        return {"before": None, "ours": True}.get(now, False)


@pytest.fixture
def committing(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Committing]:
    monkeypatch.setattr(rest, "FIRST_BACKOFF_S", 0.001)
    with Cell() as cell, FaultProxy(cell.uri) as proxy:
        yield Committing(cell, proxy, read_timeout(request))


def refusal(status: int, type_: str = "X") -> Fault:
    return answer_always(status, json.dumps({"error": {"message": "no", "type": type_, "code": status}}))


UNKNOWN = {
    "500": (answer_after(500), answer_always(500)),
    "500 with a name": (
        answer_after(500, '{"error": {"message": "?", "type": "CommitStateUnknownException", "code": 500}}'),
        refusal(500, "CommitStateUnknownException"),
    ),
    "502": (answer_after(502), answer_always(502)),
    "504": (answer_after(504), answer_always(504)),
    "520": (answer_after(520), answer_always(520)),  # some gateways have numbers of their own
    "524": (answer_after(524), answer_always(524)),
    "reset": (lost_answer, reset),
    "time-out": (slow(5), lambda request, forward: Answer(delay_s=5)),
    "cut off": (truncate_answer(5), lambda request, forward: Answer(body=b"{}", missing=1)),
    "a page": (answer_after(200, PAGE), html),
    "garbled": (garble_answer, answer_always(200, "{}", {"Content-Encoding": "gzip"})),
}
"""Answers that say nothing of a commit, which was made or was not."""


@pytest.mark.parametrize("kind", UNKNOWN)
def test_a_commit_that_was_made_and_whose_answer_is_lost(committing: Committing, kind: str) -> None:
    committing.proxy.add(UNKNOWN[kind][0], method="POST", times=ALWAYS)
    committing.commit()
    assert committing.cell.value == "ours"
    assert len(committing.proxy.forwarded) <= 2  # made at once, and seen at once


@pytest.mark.parametrize("kind", UNKNOWN)
def test_a_commit_that_was_not_made_and_whose_answer_is_lost(committing: Committing, kind: str) -> None:
    committing.proxy.add(UNKNOWN[kind][1], method="POST")
    committing.commit()
    assert committing.cell.value == "ours"
    assert committing.proxy.count("POST") == 2  # sent again


@pytest.mark.parametrize("was_made", [True, False], ids=["made", "not made"])
@pytest.mark.parametrize(
    "look",
    [
        answer_always(503),
        answer_always(500),
        answer_always(502),
        reset,
        html,
        refusal(401),  # the token is over
        refusal(403),
        refusal(400),
    ],
    ids=["503", "500", "502", "reset", "a page", "401", "403", "400"],
)
@pytest.mark.parametrize("kind", ["500", "502", "reset"])
def test_a_commit_of_which_nothing_can_be_known(committing: Committing, kind: str, look: Fault, was_made: bool) -> None:
    """Nobody is told that it was refused: what it needs would be thrown away."""
    committing.proxy.add(UNKNOWN[kind][0 if was_made else 1], method="POST", times=ALWAYS)
    committing.proxy.add(look, method="GET", times=ALWAYS)
    with pytest.raises(CommitStateUnknownError, match=r"the cell: .*whether the commit was made is not known") as error:
        committing.commit()
    assert error.value.code == lance.ErrorCode.INTERNAL
    assert committing.proxy.count("POST") == RETRIES + 1


def test_a_commit_that_is_still_on_its_way(committing: Committing) -> None:
    """It can be seen that it was not made so far; it may be, later."""
    committing.proxy.add(answer_always(504), method="POST", times=ALWAYS)
    with pytest.raises(CommitStateUnknownError):
        committing.commit()


@pytest.mark.parametrize("later", [401, 403, 404, 400, 503])
def test_a_commit_that_is_refused_after_its_answer_was_lost(committing: Committing, later: int) -> None:
    """The refusal is of the second request, and says nothing of the first."""
    committing.proxy.add(reset, method="POST")
    committing.proxy.add(refusal(later), method="POST", times=ALWAYS)
    with pytest.raises(CommitStateUnknownError):
        committing.commit()


@pytest.mark.parametrize(
    "first", [lost_answer, answer_after(500), answer_after(502), slow(5)], ids=["lost", "500", "502", "slow"]
)
def test_a_conflict_with_oneself(committing: Committing, first: Fault) -> None:
    """The first answer is lost and cannot be looked up; the second request is refused, because the first was made."""
    committing.proxy.add(first, method="POST")
    committing.proxy.add(answer_always(503), method="GET", times=RETRIES + 1)
    committing.commit()
    assert (committing.cell.value, committing.proxy.count("POST")) == ("ours", 2)


@pytest.mark.parametrize(
    "before", [[], [answer_always(503)], [reset], [answer_always(500)]], ids=["409", "503", "reset", "500"]
)
def test_a_commit_that_came_too_late(committing: Committing, before: list[Fault]) -> None:
    committing.cell.value = "theirs"
    for fault in before:
        committing.proxy.add(fault, method="POST")
    with pytest.raises(lance.ConcurrentModificationError, match="the cell") as error:
        committing.commit()
    assert not isinstance(error.value, CommitStateUnknownError)
    assert committing.cell.value == "theirs"


def test_a_commit_that_was_made_before(committing: Committing) -> None:
    """By the same request, of somebody who did not live to see the answer."""
    committing.cell.value = "ours"
    committing.commit()
    assert (committing.proxy.count("POST"), committing.proxy.count("GET")) == (1, 1)


def test_a_conflict_that_cannot_be_looked_into(committing: Committing) -> None:
    """A 409 says no, and there was only one request."""
    committing.cell.value = "theirs"
    committing.proxy.add(answer_always(503), method="GET", times=ALWAYS)
    with pytest.raises(lance.ConcurrentModificationError):
        committing.commit()
    assert committing.proxy.count("POST") == 1


@pytest.mark.parametrize(
    ("faults", "expected", "attempts"),
    [
        ([], None, 1),
        ([answer_always(503)], None, 2),
        ([answer_always(503), throttle("0")], None, 3),
        ([answer_always(503)] * (RETRIES + 1), lance.ServiceUnavailableError, RETRIES + 1),
        ([throttle("0")] * (RETRIES + 1), lance.ThrottlingError, RETRIES + 1),
        ([throttle("3600")], lance.ThrottlingError, 1),  # nobody waits an hour
        ([refusal(400)], lance.InvalidInputError, 1),
        ([refusal(403)], lance.PermissionDeniedError, 1),
        ([refusal(404)], lance.TableNotFoundError, 1),
        ([refusal(401)], lance.UnauthenticatedError, 1),
        ([refusal(405)], lance.UnsupportedOperationError, 1),
        ([answer_always(302, "", {"Location": "http://elsewhere"})], lance.InternalError, 1),
    ],
    ids=lambda value: getattr(value, "__name__", str(value) if isinstance(value, int) else None),
)
def test_a_commit_that_is_answered(
    committing: Committing, faults: Sequence[Fault], expected: type[LanceNamespaceError] | None, attempts: int
) -> None:
    for fault in faults:
        committing.proxy.add(fault, method="POST")
    if expected is None:
        committing.commit()
    else:
        with pytest.raises(expected, match="the cell") as error:
            committing.commit()
        assert not isinstance(error.value, CommitStateUnknownError)
    assert committing.cell.value == ("ours" if expected is None else "before")
    assert committing.proxy.count("POST") == attempts
    assert committing.proxy.count("GET") == 0  # there is nothing to look up


def test_nothing_but_pages(committing: Committing) -> None:
    committing.proxy.add(html, method="POST", times=ALWAYS)
    with pytest.raises(CommitStateUnknownError) as error:
        committing.commit()
    assert "Please sign in" in str(error.value)
    assert "None" not in str(error.value)


def test_a_commit_to_nobody(committing: Committing) -> None:
    with committing.proxy.refusing(), pytest.raises(lance.ServiceUnavailableError, match="no connection") as error:
        committing.commit()
    assert not isinstance(error.value, CommitStateUnknownError)
    committing.commit()
    assert committing.cell.value == "ours"


def test_somebody_else_is_faster_while_nothing_is_known(committing: Committing) -> None:
    def other_is_faster(request: Request, forward: Callable[[Request], Answer]) -> Answer:
        committing.cell.value = "theirs"
        return forward(request)

    committing.proxy.add(answer_always(502), method="POST", times=ALWAYS)
    committing.proxy.add(passes, method="GET")
    committing.proxy.add(other_is_faster, method="GET")
    with pytest.raises(lance.ConcurrentModificationError) as error:
        committing.commit()
    assert not isinstance(error.value, CommitStateUnknownError)
    assert committing.proxy.count("POST") == 2
