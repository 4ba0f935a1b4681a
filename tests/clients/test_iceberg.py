"""What the Iceberg client does beyond the conformance suite: addresses, laxness of servers, lists, credentials."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, ClassVar
from uuid import uuid4

import pytest
from lance_namespace import (
    CreateNamespaceRequest,
    DeclareTableRequest,
    DeregisterTableRequest,
    DescribeNamespaceRequest,
    DescribeTableRequest,
    DropNamespaceRequest,
    ListNamespacesRequest,
    ListTablesRequest,
    NamespaceExistsRequest,
    RenameTableRequest,
)
from lance_namespace import errors as lance

import lancehouse
from lancehouse.clients import rest
from lancehouse.clients.catalog_namespace import LOOKAHEAD
from tests.servers.faults import FaultProxy, answer_always
from tests.servers.lancehouse import Served
from tests.servers.loopback import Answer, Loopback, Request
from tests.servers.polaris import Polaris

Calls = list[tuple[Callable[[Any], object], Any]]


@pytest.fixture
def proxy(reference: str) -> Iterator[FaultProxy]:
    with FaultProxy(reference) as proxy:
        yield proxy


@pytest.fixture
def namespace(proxy: FaultProxy, tmp_path: Path) -> lancehouse.IcebergNamespace:
    return lancehouse.IcebergNamespace(endpoint=f"{proxy.uri}/", root=str(tmp_path))


@pytest.fixture
def db(namespace: lancehouse.IcebergNamespace) -> list[str]:
    parent = ["wh", f"db_{uuid4().hex[:8]}"]
    namespace.create_namespace(CreateNamespaceRequest(id=parent))
    return parent


class Fake(Loopback):
    """A server with one namespace `db` and one Lance table `t` in it, below a prefix of its choice."""

    def __init__(self, config: dict[str, Any], prefix: str) -> None:
        self.config = config
        self.prefix = prefix
        self.headers: list[Any] = []
        super().__init__()

    def answer(self, request: Request) -> Answer:
        self.headers.append(request.headers)
        if request.path == "/v1/config":
            return Answer.json(self.config)
        if request.path == f"/v1{self.prefix}/namespaces":
            return Answer.json({"namespaces": [["db"], ["db", "inner"]]})  # below any parent
        if request.path in (f"/v1{self.prefix}/namespaces/db", f"/v1{self.prefix}/namespaces/db%1Finner"):
            return Answer.json({"namespace": ["db"], "properties": {}})
        if request.path == f"/v1{self.prefix}/namespaces/db/tables/t":
            return Answer.json({"metadata": {"location": "s3://b/t", "properties": {"table_type": "LANCE"}}})
        if request.path.startswith(f"/v1{self.prefix}/namespaces/db/"):
            return Answer.json({"error": {"message": "no", "type": "NoSuchTableException", "code": 404}}, 404)
        return Answer.text("<html>nothing here</html>", 404)


@pytest.mark.parametrize(
    ("config", "prefix"),
    [
        ({"defaults": {"prefix": "d"}, "overrides": {}}, "/d"),
        ({"defaults": {"prefix": "d"}, "overrides": {"prefix": "o"}}, "/o"),
        ({"defaults": {"prefix": "catalogs/wh"}, "overrides": {}}, "/catalogs/wh"),
        ({"defaults": {"prefix": "arn%3Aaws%3As3tables"}, "overrides": {}}, "/arn%3Aaws%3As3tables"),
        ({"defaults": {"prefix": None}, "overrides": {}}, "/my%20wh"),
        ({"defaults": {}, "overrides": {}}, "/my%20wh"),
        ({"defaults": {}, "overrides": {}}, ""),
    ],
    ids=["defaults", "overrides", "with a slash", "encoded", "null", "the warehouse's name", "none at all"],
)
def test_the_prefix_is_decided_once(config: dict[str, Any], prefix: str) -> None:
    with Fake(config, prefix) as server:
        namespace = lancehouse.IcebergNamespace(endpoint=server.uri)
        request = DescribeTableRequest(id=["my wh", "db", "t"])
        assert namespace.describe_table(request).location == "s3://b/t"
        server.requests.clear()
        assert namespace.describe_table(request).location == "s3://b/t"
        with pytest.raises(lance.TableNotFoundError):
            namespace.describe_table(DescribeTableRequest(id=["my wh", "db", "zz"]))
        assert [target.partition("?")[0] for _, target in server.requests] == [
            f"/v1{prefix}/namespaces/db/tables/{name}" for name in ("t", "zz")
        ]


def test_threads_ask_for_the_config_once() -> None:
    with Fake({"defaults": {}, "overrides": {}}, "/wh") as server:
        namespace = lancehouse.IcebergNamespace(endpoint=server.uri)
        request = DescribeTableRequest(id=["wh", "db", "t"])
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(lambda _: namespace.describe_table(request), range(16)))
        assert [target for _, target in server.requests].count("/v1/config?warehouse=wh") == 1


def test_a_missing_table_is_no_missing_route() -> None:
    """Where the server names what is missing, the path was right."""
    with Fake({"defaults": {}, "overrides": {}}, "/wh") as server:
        namespace = lancehouse.IcebergNamespace(endpoint=server.uri)
        with pytest.raises(lance.TableNotFoundError):
            namespace.describe_table(DescribeTableRequest(id=["wh", "db", "zz"]))
        assert [target.partition("?")[0] for _, target in server.requests] == [
            "/v1/config",
            "/v1/wh/namespaces/db/tables/zz",
        ]


def test_a_namespace_that_exists_is_no_missing_route(reference: str) -> None:
    name = f"twice_{uuid4().hex[:8]}"
    request = CreateNamespaceRequest(id=["wh", name])
    lancehouse.IcebergNamespace(endpoint=reference).create_namespace(request)
    with pytest.raises(lance.NamespaceAlreadyExistsError):  # the first call of a client finds out how paths begin
        lancehouse.IcebergNamespace(endpoint=reference).create_namespace(request)


def test_a_refused_namespace_in_the_first_call_of_a_client(lancehouse_server: Served) -> None:
    """Nothing is known of the warehouse's paths yet when the error of the server arrives."""
    for name in ("a\0b", "a\x1fb"):
        fresh = lancehouse.IcebergNamespace(endpoint=lancehouse_server.iceberg)
        with pytest.raises(lance.InvalidInputError):
            fresh.declare_table(DeclareTableRequest(id=[lancehouse_server.warehouse, name, "t"]))


def test_the_separator_that_the_server_announces() -> None:
    with Fake({"defaults": {}, "overrides": {"prefix": "p", "namespace-separator": "%2E"}}, "/p") as server:
        namespace = lancehouse.IcebergNamespace(endpoint=server.uri)
        with pytest.raises(
            lance.InternalError, match="is `endpoint` right"
        ):  # a page for people says nothing of tables
            namespace.describe_namespace(DescribeNamespaceRequest(id=["wh", "a", "c d"]))
        assert server.requests[-1] == ("GET", "/v1/p/namespaces/a%2Ec%20d")


def test_a_server_that_ignores_the_parent_of_a_list() -> None:
    """A walk through its namespaces would not end."""
    with Fake({"defaults": {}, "overrides": {"prefix": "p"}}, "/p") as server:
        namespace = lancehouse.IcebergNamespace(endpoint=server.uri)
        assert namespace.list_namespaces(ListNamespacesRequest(id=["wh"])).namespaces == ["wh.db"]
        for parent in ("db", "DB"):  # some servers ignore the case of names
            listed = namespace.list_namespaces(ListNamespacesRequest(id=["wh", parent])).namespaces
            assert listed == ["wh.db.inner"]
        assert namespace.list_namespaces(ListNamespacesRequest(id=["wh", "db", "inner"])).namespaces == []


def test_headers_of_its_own() -> None:
    with Fake({"defaults": {}, "overrides": {"prefix": "p"}}, "/p") as server:
        namespace = lancehouse.IcebergNamespace(endpoint=server.uri, **{"header.X-Team": "ml"})
        namespace.describe_table(DescribeTableRequest(id=["wh", "db", "t"], vend_credentials=True))
        assert [headers["X-Team"] for headers in server.headers] == ["ml", "ml"]
        assert server.headers[-1]["X-Iceberg-Access-Delegation"] == "vended-credentials"
        namespace.describe_table(DescribeTableRequest(id=["wh", "db", "t"], vend_credentials=False))
        assert server.headers[-1]["X-Iceberg-Access-Delegation"] is None


@pytest.mark.parametrize(
    ("mode", "requested", "asks"),
    [
        ({}, None, True),
        ({"vend_credentials": "auto"}, False, False),
        ({"vend_credentials": "FALSE"}, None, False),
        ({"vend_credentials": "false"}, True, True),
        ({"vend_credentials": "true"}, False, False),
    ],
)
def test_credentials_are_asked_for(mode: dict[str, str], requested: bool | None, asks: bool) -> None:
    with Fake({"defaults": {}, "overrides": {"prefix": "p"}}, "/p") as server:
        namespace = lancehouse.IcebergNamespace(endpoint=server.uri, **mode)
        namespace.describe_table(DescribeTableRequest(id=["wh", "db", "t"], vend_credentials=requested))
        sent = server.headers[-1]["X-Iceberg-Access-Delegation"]
    assert sent == ("vended-credentials" if asks else None)


def test_a_wrong_way_to_ask_for_credentials() -> None:
    with pytest.raises(lance.InvalidInputError, match=r"vend_credentials.*must be auto, true or false"):
        lancehouse.IcebergNamespace(endpoint="http://127.0.0.1:1", vend_credentials="maybe")


@pytest.mark.parametrize(
    ("own", "config", "location"),
    [
        ({"root": "/mine"}, {"root": "/theirs"}, "/mine/wh/db/new"),
        ({}, {"root": "s3://b/theirs/"}, "s3://b/theirs/wh/db/new"),
        ({}, {}, f"{Path.cwd()}/wh/db/new"),
    ],
    ids=["property", "config", "working directory"],
)
def test_the_default_location(own: dict[str, str], config: dict[str, str], location: str) -> None:
    bodies: list[Any] = []

    class DeclaringServer(Fake):
        def answer(self, request: Request) -> Answer:
            if request.method == "POST":
                bodies.append(json.loads(request.body))
                return Answer.json({"metadata": {"location": "s3://chosen/by/server", "properties": {}}})
            return super().answer(request)

    with DeclaringServer({"defaults": config, "overrides": {"prefix": "p"}}, "/p") as server:
        namespace = lancehouse.IcebergNamespace(endpoint=server.uri, **own)
        declared = namespace.declare_table(DeclareTableRequest(id=["wh", "db", "new"], properties={"a": "b"}))
    assert declared.location == "s3://chosen/by/server"  # what the server answered, not what was asked
    assert bodies == [
        {
            "name": "new",
            "location": location,
            "schema": {
                "type": "struct",
                "schema-id": 0,
                "fields": [{"id": 1, "name": "dummy", "required": False, "type": "string"}],
            },
            "properties": {"a": "b", "table_type": "lance", "gc.enabled": "false"},
            "stage-create": False,
        }
    ]


def test_a_default_location_that_the_server_refuses(polaris: Polaris) -> None:
    namespace = lancehouse.IcebergNamespace(
        endpoint=polaris.iceberg_uri, credential=polaris.credential, scope="PRINCIPAL_ROLE:ALL", root="/not/allowed"
    )
    namespace.create_namespace(CreateNamespaceRequest(id=["test_catalog", "db"]))
    with pytest.raises(lance.PermissionDeniedError, match="set the property `root`"):
        namespace.declare_table(DeclareTableRequest(id=["test_catalog", "db", "t"]))


@pytest.mark.parametrize("root", [None, "/mine"])
def test_a_table_goes_below_its_namespace_where_the_default_is_refused(root: str | None) -> None:
    class PickyServer(Fake):
        locations: ClassVar[list[str]] = []

        def answer(self, request: Request) -> Answer:
            if request.method == "POST":
                body = json.loads(request.body)
                self.locations.append(body["location"])
                if not body["location"].startswith("s3://allowed/"):
                    error = {"message": "not there", "type": "ForbiddenException", "code": 403}
                    return Answer.json({"error": error}, 403)
                return Answer.json({"metadata": {"location": body["location"], "properties": {}}})
            if request.path.endswith("/namespaces/db"):
                return Answer.json({"namespace": ["db"], "properties": {"location": "s3://allowed/db"}})
            return super().answer(request)

    PickyServer.locations.clear()
    with PickyServer({"defaults": {}, "overrides": {"prefix": "p"}}, "/p") as server:
        namespace = lancehouse.IcebergNamespace(endpoint=server.uri, **({"root": root} if root else {}))
        if root is None:
            declared = namespace.declare_table(DeclareTableRequest(id=["wh", "db", "new"]))
            assert declared.location == "s3://allowed/db/new"
        else:
            with pytest.raises(lance.PermissionDeniedError, match="set the property `root`"):
                namespace.declare_table(DeclareTableRequest(id=["wh", "db", "new"]))
        assert len(PickyServer.locations) == (2 if root is None else 1)


def test_vended_credentials(polaris: Polaris) -> None:
    polaris.seed_namespace("test_catalog", "db")
    polaris.seed_iceberg(
        "test_catalog",
        "db",
        "t",
        location="s3://b/db/t",
        properties={"table_type": "lance", "storage.region": "eu", "storage.endpoint": "table", "owner": "me"},
        config={"client.region": "us", "token": "not for storage"},
        vended=[
            {
                "prefix": "s3://b/db",
                "config": {
                    "s3.access-key-id": "k",
                    "s3.secret-access-key": "s",
                    "s3.session-token-expires-at-ms": "7",
                },
            }
        ],
    )
    namespace = lancehouse.IcebergNamespace(
        endpoint=polaris.iceberg_uri,
        credential=polaris.credential,
        scope="PRINCIPAL_ROLE:ALL",
        **{"storage.endpoint": "client", "storage.aws_access_key_id": "client"},
    )
    request = DescribeTableRequest(id=["test_catalog", "db", "t"], vend_credentials=True)
    assert namespace.describe_table(request).storage_options == {
        "endpoint": "client",
        "aws_region": "us",
        "aws_access_key_id": "k",
        "aws_secret_access_key": "s",
        "expires_at_millis": "7",
    }
    request = DescribeTableRequest(id=["test_catalog", "db", "t"], vend_credentials=False)
    plain = namespace.describe_table(request).storage_options or {}
    assert plain["aws_access_key_id"] == "client"
    assert "expires_at_millis" not in plain


def test_credentials_that_are_required_and_do_not_come(polaris: Polaris) -> None:
    polaris.seed_namespace("test_catalog", "db")
    polaris.seed_iceberg("test_catalog", "db", "t", location="s3://b/db/t", properties={"table_type": "lance"})
    namespace = lancehouse.IcebergNamespace(
        endpoint=polaris.iceberg_uri,
        credential=polaris.credential,
        scope="PRINCIPAL_ROLE:ALL",
        vend_credentials="true",
    )
    table = ["test_catalog", "db", "t"]
    with pytest.raises(lance.InvalidInputError, match="vends no credentials for it, and vend_credentials is true"):
        namespace.describe_table(DescribeTableRequest(id=table))
    assert namespace.describe_table(DescribeTableRequest(id=table, vend_credentials=False)).location == "s3://b/db/t"


def test_a_table_without_the_credentials_that_are_required_is_not_declared() -> None:
    class DeclaringServer(Fake):
        def answer(self, request: Request) -> Answer:
            if request.method == "POST":
                return Answer.json({"metadata": {"location": "s3://b/new", "properties": {}}})
            return Answer(204) if request.method == "DELETE" else super().answer(request)

    with DeclaringServer({"defaults": {}, "overrides": {"prefix": "p"}}, "/p") as server:
        namespace = lancehouse.IcebergNamespace(endpoint=server.uri, vend_credentials="true")
        with pytest.raises(lance.InvalidInputError, match="vends no credentials"):
            namespace.declare_table(DeclareTableRequest(id=["wh", "db", "new"], location="s3://b/new"))
        assert [method for method, _ in server.requests][-2:] == ["POST", "DELETE"]


@pytest.mark.parametrize("id", [[], None])
def test_the_root_is_no_place_to_work(namespace: lancehouse.IcebergNamespace, proxy: FaultProxy, id: Any) -> None:
    calls: Calls = [
        (namespace.list_namespaces, ListNamespacesRequest(id=id)),
        (namespace.list_tables, ListTablesRequest(id=id)),
        (namespace.list_all_tables, ListTablesRequest(id=id)),
        (namespace.describe_namespace, DescribeNamespaceRequest(id=id)),
        (namespace.create_namespace, CreateNamespaceRequest(id=id)),
        (namespace.drop_namespace, DropNamespaceRequest(id=id)),
        (namespace.namespace_exists, NamespaceExistsRequest(id=id)),
    ]
    for call, request in calls:
        with pytest.raises(lance.InvalidInputError, match="at least"):
            call(request)
    assert proxy.requests == []


def test_a_warehouse_is_listed_and_nothing_else(namespace: lancehouse.IcebergNamespace, proxy: FaultProxy) -> None:
    calls: Calls = [
        (namespace.list_tables, ListTablesRequest(id=["wh"])),
        (namespace.describe_namespace, DescribeNamespaceRequest(id=["wh"])),
        (namespace.create_namespace, CreateNamespaceRequest(id=["wh"])),
        (namespace.drop_namespace, DropNamespaceRequest(id=["wh"])),
        (namespace.namespace_exists, NamespaceExistsRequest(id=["wh"])),
    ]
    for call, request in calls:
        with pytest.raises(lance.InvalidInputError, match="at least 2 levels"):
            call(request)
    assert proxy.requests == []
    assert isinstance(namespace.list_namespaces(ListNamespacesRequest(id=["wh"])).namespaces, list)


def test_cascade_is_refused_before_any_request(namespace: lancehouse.IcebergNamespace, proxy: FaultProxy) -> None:
    with pytest.raises(lance.UnsupportedOperationError, match="Cascade"):
        namespace.drop_namespace(DropNamespaceRequest(id=["wh", "db"], behavior="CASCADE"))
    assert proxy.requests == []


@pytest.mark.parametrize(
    ("mode", "missing_is_error"), [(None, False), ("Skip", False), ("SKIP", False), ("Fail", True), ("fail", True)]
)
def test_dropping_what_is_not_there(
    namespace: lancehouse.IcebergNamespace, mode: str | None, missing_is_error: bool
) -> None:
    request = DropNamespaceRequest(id=["wh", "never_made"], mode=mode)
    if missing_is_error:
        with pytest.raises(lance.NamespaceNotFoundError):
            namespace.drop_namespace(request)
    else:
        namespace.drop_namespace(request)


def test_a_lax_server_is_asked_first(
    namespace: lancehouse.IcebergNamespace, proxy: FaultProxy, db: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(lance.NamespaceNotFoundError):
        namespace.create_namespace(CreateNamespaceRequest(id=["wh", "never_made", "child"]))
    with pytest.raises(lance.NamespaceNotFoundError):
        namespace.declare_table(DeclareTableRequest(id=["wh", "never_made", "t"]))
    assert proxy.count("POST", "never_made") == 0
    proxy.clear()
    for name in "abc":
        namespace.declare_table(DeclareTableRequest(id=[*db, name]))
    assert proxy.count("GET") == 0  # it was made a moment ago
    later = time.monotonic() + 61
    monkeypatch.setattr(time, "monotonic", lambda: later)
    namespace.declare_table(DeclareTableRequest(id=[*db, "d"]))
    assert proxy.count("GET", db[1]) == 1  # a minute later it is asked again


def test_a_dropped_namespace_is_forgotten(namespace: lancehouse.IcebergNamespace, db: list[str]) -> None:
    namespace.create_namespace(CreateNamespaceRequest(id=[*db, "child"]))
    namespace.drop_namespace(DropNamespaceRequest(id=[*db, "child"]))
    namespace.drop_namespace(DropNamespaceRequest(id=db))
    with pytest.raises(lance.NamespaceNotFoundError):
        namespace.declare_table(DeclareTableRequest(id=[*db, "t"]))


def test_lists_load_no_more_than_they_need(
    namespace: lancehouse.IcebergNamespace, proxy: FaultProxy, db: list[str]
) -> None:
    for number in range(12):
        namespace.declare_table(DeclareTableRequest(id=[*db, f"t{number:02}"]))
    proxy.clear()
    first = namespace.list_tables(ListTablesRequest(id=db, limit=5))
    assert first.tables == [f"t{number:02}" for number in range(5)]
    assert proxy.count("GET", r"/tables/t\d\d\?snapshots=refs") == 5
    rest = namespace.list_tables(ListTablesRequest(id=db, page_token=first.page_token))
    assert rest.tables == [f"t{number:02}" for number in range(5, 12)]
    assert rest.page_token is None


def test_the_second_listing_asks_only_what_changed(
    namespace: lancehouse.IcebergNamespace, proxy: FaultProxy, db: list[str]
) -> None:
    for name in "abc":
        namespace.declare_table(DeclareTableRequest(id=[*db, name]))
    answers: list[int] = []

    def look(request: Request, forward: Any) -> Answer:
        answer: Answer = forward(request)
        answers.append(answer.status)
        return answer

    namespace.list_tables(ListTablesRequest(id=db))
    proxy.add(look, method="GET", path=r"/tables/[abc]\?", times=100)
    assert namespace.list_tables(ListTablesRequest(id=db)).tables == ["a", "b", "c"]
    assert answers == [304, 304, 304]
    namespace.deregister_table(DeregisterTableRequest(id=[*db, "b"]))
    assert namespace.list_tables(ListTablesRequest(id=db)).tables == ["a", "c"]


def test_list_all_loads_no_more_than_it_needs(
    namespace: lancehouse.IcebergNamespace, proxy: FaultProxy, db: list[str]
) -> None:
    for name in "abcdef":
        namespace.declare_table(DeclareTableRequest(id=[*db, name]))
    proxy.clear()
    listed = namespace.list_all_tables(ListTablesRequest(id=db, limit=2))
    assert listed.tables == [".".join([*db, name]) for name in "ab"]
    assert proxy.count("GET", r"/tables/[a-f]\?") == 2
    rest = namespace.list_all_tables(ListTablesRequest(id=db, page_token=listed.page_token))
    assert rest.tables == [".".join([*db, name]) for name in "cdef"]


def test_a_page_of_all_tables_asks_for_the_namespaces_that_it_needs(
    namespace: lancehouse.IcebergNamespace, proxy: FaultProxy, db: list[str]
) -> None:
    below = [[*db, f"n{number:02}"] for number in range(30)]
    for number, levels in enumerate(below):
        namespace.create_namespace(CreateNamespaceRequest(id=levels))
        if number % 3 == 0:
            namespace.create_namespace(CreateNamespaceRequest(id=[*levels, "deep"]))
            namespace.declare_table(DeclareTableRequest(id=[*levels, "deep", "t"]))
        for name in "ba":
            namespace.declare_table(DeclareTableRequest(id=[*levels, name]))
    whole = namespace.list_all_tables(ListTablesRequest(id=db)).tables
    assert whole[:4] == [
        ".".join([*db, *rest]) for rest in (("n00", "a"), ("n00", "b"), ("n00", "deep", "t"), ("n01", "a"))
    ]
    assert len(whole) == 70
    pages, token = [], None
    while True:
        proxy.clear()
        page = namespace.list_all_tables(ListTablesRequest(id=db, limit=7, page_token=token))
        pages.append(page.tables)
        # Lists of tables, and of namespaces: a few batches, not all forty.
        assert proxy.count("GET", r"/tables(\?|$)") <= 2 * LOOKAHEAD
        assert proxy.count("GET", r"/namespaces\?") <= 2 * LOOKAHEAD + 2
        if (token := page.page_token) is None:
            break
    assert [len(page) for page in pages] == [7] * 10
    assert [name for page in pages for name in page] == whole


@pytest.mark.parametrize("token", ["bnMwMDAkdDAwMA", "W10", "WzEsIDJd", "e30", "%"])
def test_a_token_of_another_list_is_refused(namespace: lancehouse.IcebergNamespace, db: list[str], token: str) -> None:
    with pytest.raises(lance.InvalidInputError, match="page_token"):
        namespace.list_all_tables(ListTablesRequest(id=db, limit=1, page_token=token))


@pytest.mark.parametrize("answer", [{}, {"namespaces": None, "identifiers": None}])
def test_lists_without_their_key_are_empty(answer: dict[str, Any]) -> None:
    class KeylessServer(Fake):
        def answer(self, request: Request) -> Answer:
            found = super().answer(request)
            return Answer.json(answer) if request.path.endswith("/namespaces") else found

    with KeylessServer({"overrides": {"prefix": "p", "paging": True}}, "/p") as server:
        namespace = lancehouse.IcebergNamespace(endpoint=server.uri)
        assert namespace.list_namespaces(ListNamespacesRequest(id=["wh"])).namespaces == []


@pytest.mark.parametrize("makes_up_tokens", [False, True])
def test_a_list_that_does_not_end(monkeypatch: pytest.MonkeyPatch, makes_up_tokens: bool) -> None:
    class EndlessServer(Fake):
        def answer(self, request: Request) -> Answer:
            if not request.path.endswith("/namespaces"):
                return super().answer(request)
            token = f"page {len(self.requests)}" if makes_up_tokens else "next"
            return Answer.json({"namespaces": [["db"]], "next-page-token": token})

    monkeypatch.setattr(rest, "MAX_PAGES", 5)
    with EndlessServer({"overrides": {"prefix": "p"}}, "/p") as server:
        namespace = lancehouse.IcebergNamespace(endpoint=server.uri)
        with pytest.raises(lance.InternalError, match="the server's list does not end"):
            namespace.list_namespaces(ListNamespacesRequest(id=["wh"]))
        assert len(server.requests) == 1 + (6 if makes_up_tokens else 2)


def test_an_unasked_304(proxy: FaultProxy, namespace: lancehouse.IcebergNamespace, db: list[str]) -> None:
    namespace.declare_table(DeclareTableRequest(id=[*db, "t"]))
    proxy.add(answer_always(304), method="GET", path=r"/tables/t\?")
    with pytest.raises(lance.InternalError):
        namespace.list_tables(ListTablesRequest(id=db))


def test_rename_across_warehouses(namespace: lancehouse.IcebergNamespace, db: list[str]) -> None:
    namespace.declare_table(DeclareTableRequest(id=[*db, "t"]))
    with pytest.raises(lance.InvalidInputError, match="warehouse"):
        namespace.rename_table(RenameTableRequest(id=[*db, "t"], new_table_name="u", new_namespace_id=["other", "db"]))
    with pytest.raises(lance.NamespaceNotFoundError):
        namespace.rename_table(
            RenameTableRequest(id=[*db, "t"], new_table_name="u", new_namespace_id=["wh", "never_made"])
        )
    namespace.declare_table(DeclareTableRequest(id=[*db, "u"]))
    with pytest.raises(lance.TableAlreadyExistsError):
        namespace.rename_table(RenameTableRequest(id=[*db, "t"], new_table_name="u"))


def test_a_table_of_another_kind(proxy: FaultProxy, namespace: lancehouse.IcebergNamespace, db: list[str]) -> None:
    from pyiceberg.catalog.rest import RestCatalog
    from pyiceberg.schema import Schema

    catalog = RestCatalog("ref", uri=proxy.uri, **{"py-io-impl": "pyiceberg.io.pyarrow.PyArrowFileIO"})
    catalog.create_table((db[1], "plain"), Schema())
    namespace.declare_table(DeclareTableRequest(id=[*db, "t"]))
    assert namespace.list_tables(ListTablesRequest(id=db)).tables == ["t"]
    calls: Calls = [
        (namespace.describe_table, DescribeTableRequest(id=[*db, "plain"])),
        (namespace.deregister_table, DeregisterTableRequest(id=[*db, "plain"])),
    ]
    for call, request in calls:
        with pytest.raises(lance.InvalidInputError, match="is not a Lance table"):
            call(request)
    assert catalog.table_exists((db[1], "plain"))
    with pytest.raises(lance.InvalidInputError, match="table_type must be 'lance'"):
        namespace.declare_table(DeclareTableRequest(id=[*db, "x"], properties={"table_type": "iceberg"}))


def test_a_level_with_the_separator_of_the_server(
    namespace: lancehouse.IcebergNamespace, proxy: FaultProxy, db: list[str]
) -> None:
    """Iceberg's server on SQLite takes it for two levels."""
    namespace.create_namespace(CreateNamespaceRequest(id=[*db, "a"]))
    with pytest.raises(lance.InvalidInputError, match="for the end of a level"):
        namespace.create_namespace(CreateNamespaceRequest(id=[*db, "a.b"]))
    calls: Calls = [
        (namespace.describe_namespace, DescribeNamespaceRequest(id=["wh", f"{db[1]}.a"])),
        (namespace.list_tables, ListTablesRequest(id=["wh", f"{db[1]}.a"])),
        (namespace.drop_namespace, DropNamespaceRequest(id=["wh", f"{db[1]}.a"])),
    ]
    for call, request in calls:
        with pytest.raises(lance.InvalidInputError, match="for the end of a level"):
            call(request)
    assert namespace.list_namespaces(ListNamespacesRequest(id=db)).namespaces == [f"wh.{db[1]}.a"]
    with pytest.raises(lance.InvalidInputError, match="for the end of a level"):
        namespace.create_namespace(CreateNamespaceRequest(id=["wh", f"a.{db[1]}"]))
    assert "wh.a" not in namespace.list_namespaces(ListNamespacesRequest(id=["wh"])).namespaces


def test_names_that_the_server_cannot_find_again_are_not_made(
    namespace: lancehouse.IcebergNamespace, proxy: FaultProxy, db: list[str]
) -> None:
    namespace.declare_table(DeclareTableRequest(id=[*db, "t"]))
    proxy.clear()
    for name in ("a/b", "50%", "a\\b", "..", "x\x1fy"):
        with pytest.raises(lance.InvalidInputError):
            namespace.declare_table(DeclareTableRequest(id=[*db, name]))
        with pytest.raises(lance.InvalidInputError):
            namespace.rename_table(RenameTableRequest(id=[*db, "t"], new_table_name=name))
        with pytest.raises(lance.InvalidInputError):
            namespace.create_namespace(CreateNamespaceRequest(id=["wh", name]))
    assert proxy.count("POST") == 0


def test_a_server_that_needs_to_know_what_is_not_staged(
    namespace: lancehouse.IcebergNamespace, proxy: FaultProxy, db: list[str]
) -> None:
    """Nessie 0.99 answers 500 to a CreateTable without `stage-create`."""

    def nessie(request: Request, forward: Callable[[Request], Answer]) -> Answer:
        if json.loads(request.body).get("stage-create") is None:
            message = {"message": "HTTP 400 Bad Request", "type": "WebApplicationException", "code": 500}
            return Answer.json({"error": message}, 500)
        return forward(request)

    proxy.add(nessie, method="POST", path="/tables$")
    namespace.declare_table(DeclareTableRequest(id=[*db, "t"]))
    assert namespace.list_tables(ListTablesRequest(id=db)).tables == ["t"]


@pytest.fixture
def on_polaris(polaris: Polaris) -> lancehouse.IcebergNamespace:
    """The Iceberg side of Polaris, with a namespace `db`."""
    namespace = lancehouse.IcebergNamespace(
        endpoint=polaris.iceberg_uri,
        credential=polaris.credential,
        scope="PRINCIPAL_ROLE:ALL",
        root="file:///warehouse",
    )
    namespace.create_namespace(CreateNamespaceRequest(id=POLARIS_DB))
    return namespace


POLARIS_DB = ["test_catalog", "db"]


@pytest.mark.parametrize("name", ["a+b", "a%2Fb", "a%20b", "%2B"])
def test_a_name_that_the_server_decodes_twice(
    on_polaris: lancehouse.IcebergNamespace, polaris: Polaris, name: str
) -> None:
    """Nobody could load the table: it is deleted again."""
    with pytest.raises(lance.InvalidInputError, match=r"decodes names twice .* it was deleted again") as refused:
        on_polaris.declare_table(DeclareTableRequest(id=[*POLARIS_DB, name]))
    assert "root" not in str(refused.value)
    assert on_polaris.list_tables(ListTablesRequest(id=POLARIS_DB)).tables == []
    assert polaris.requests[-2][0] == "DELETE"
    on_polaris.drop_namespace(DropNamespaceRequest(id=POLARIS_DB))


def test_a_name_that_is_decoded_to_the_name_of_another_table(
    on_polaris: lancehouse.IcebergNamespace, polaris: Polaris
) -> None:
    """The other one stays."""
    on_polaris.declare_table(DeclareTableRequest(id=[*POLARIS_DB, "a/b"]))
    with pytest.raises(lance.InvalidInputError, match="it was deleted again"):
        on_polaris.declare_table(DeclareTableRequest(id=[*POLARIS_DB, "a%2Fb"]))
    assert on_polaris.list_tables(ListTablesRequest(id=POLARIS_DB)).tables == ["a/b"]


def test_a_rename_to_a_step_in_the_path(on_polaris: lancehouse.IcebergNamespace) -> None:
    """The table could not be loaded any more, nor the list of its namespace."""
    db = ["test_catalog", "db"]
    on_polaris.declare_table(DeclareTableRequest(id=[*db, "t"]))
    with pytest.raises(lance.InvalidInputError, match="takes the name for a step in the path"):
        on_polaris.rename_table(RenameTableRequest(id=[*db, "t"], new_table_name=".."))
    assert on_polaris.list_tables(ListTablesRequest(id=db)).tables == ["t"]


def test_a_rename_to_a_name_that_the_server_decodes_twice(on_polaris: lancehouse.IcebergNamespace) -> None:
    on_polaris.declare_table(DeclareTableRequest(id=[*POLARIS_DB, "t"]))
    with pytest.raises(lance.InvalidInputError, match=r"decodes names twice .* it is table test_catalog.db.t again"):
        on_polaris.rename_table(RenameTableRequest(id=[*POLARIS_DB, "t"], new_table_name="a+b"))
    assert on_polaris.list_tables(ListTablesRequest(id=POLARIS_DB)).tables == ["t"]


def test_a_name_that_the_server_takes_for_a_step_in_the_path(on_polaris: lancehouse.IcebergNamespace) -> None:
    """Polaris answers with the namespace."""
    with pytest.raises(lance.InvalidInputError, match="step in the path"):
        on_polaris.declare_table(DeclareTableRequest(id=[*POLARIS_DB, ".."]))
    assert on_polaris.list_tables(ListTablesRequest(id=POLARIS_DB)).tables == []


@pytest.mark.parametrize(("name", "looks"), [("plain", 0), ("a/b", 1), ("t.1+2", 2)])
def test_only_names_that_may_be_misread_are_looked_for(lancehouse_server: Served, name: str, looks: int) -> None:
    with FaultProxy(lancehouse_server.iceberg) as proxy:
        client = lancehouse.IcebergNamespace(endpoint=proxy.uri)
        parent = [lancehouse_server.warehouse, f"db_{uuid4().hex[:8]}"]
        client.create_namespace(CreateNamespaceRequest(id=parent))
        proxy.clear()
        client.declare_table(DeclareTableRequest(id=[*parent, name]))
        assert proxy.count("GET") == looks
        assert client.list_tables(ListTablesRequest(id=parent)).tables == [name]


def test_dropped_tables_of_no_warehouse() -> None:
    with pytest.raises(lance.InvalidInputError, match="at least 1 level"):
        lancehouse.IcebergNamespace(endpoint="http://127.0.0.1:1").list_dropped([])
