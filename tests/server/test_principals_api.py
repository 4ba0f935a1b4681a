"""Principals, groups, grants and tokens over REST, and the command line that uses it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from time import monotonic, sleep
from typing import Any

import pytest
from click.testing import CliRunner

from lancehouse.catalog.bootstrap import open_database
from lancehouse.catalog.callers import Grant, Role
from lancehouse.catalog.principals import NewPrincipal, Principals
from lancehouse.cli.main import main
from lancehouse.server.api import principals as api
from lancehouse.store.audit import list_changes
from tests.live.committers import CommitClient
from tests.server.serving import ServerAnswer, ServerClient, serving
from tests.servers.lancehouse import Served, start_lancehouse
from tests.servers.postgres import new_database

BASE = "/lancehouse/v1/"
HERE = {"warehouse": "main", "namespace": ["a"], "table": None}
READER = {"role": "reader", **HERE}


class Admin:
    """Asks as one of the principals."""

    def __init__(self, client: ServerClient, token: str) -> None:
        self.client = client
        self.token = token

    def ask(self, method: str, path: str, body: Any = None, **headers: str) -> ServerAnswer:
        return self.client.send(method, BASE + path, body, {"authorization": f"Bearer {self.token}", **headers})


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("principals")


@pytest.fixture(scope="module")
def admins(folder: Path) -> Iterator[dict[str, Admin]]:
    """`root` of everything, `local` of namespace a, and `reader` of it."""
    with serving(folder) as client:
        client.iceberg("POST", "main/namespaces", {"namespace": ["a"]})
        client.iceberg("POST", "main/namespaces", {"namespace": ["b"]})
        database = open_database(f"sqlite:///{folder / 'catalog.db'}")
        principals = Principals(database)
        grants = {
            "root": Grant(Role.ADMIN),
            "local": Grant(Role.ADMIN, "main", ("a",)),
            "reader": Grant(Role.READER, "main", ("a",)),
        }
        for name, grant in grants.items():
            principals.create(name, [grant])
        tokens = {name: principals.create_token(name, "test") for name in grants}
        database.close()
        # The server is open until it looks again.
        waiting = Admin(client, "")
        while waiting.ask("GET", "principals").status == 200:
            pass
        yield {name: Admin(client, token) for name, token in tokens.items()}


@pytest.fixture
def root(admins: dict[str, Admin]) -> Admin:
    return admins["root"]


def test_a_life(root: Admin, folder: Path) -> None:
    body = {"principals": [{"name": "a|b/c", "grants": [READER]}, {"name": "eve", "external": True}]}
    made = root.ask("POST", "principals", body)
    first, eve = made.json["principals"]
    assert made.headers["cache-control"] == "no-store"
    assert eve == {"name": "eve", "created": True}
    form = f"grant_type=client_credentials&client_id={first['client-id']}&client_secret={first['client-secret']}"
    content = {"content-type": "application/x-www-form-urlencoded"}
    assert root.client.send("POST", "/iceberg/v1/oauth/tokens", headers=content, raw=form.encode()).status == 200
    assert root.ask("POST", "principals", body).error == (409, "AlreadyExistsException")
    again = root.ask("POST", "principals", {**body, "exist-ok": True}).json["principals"]
    assert again == [{"name": "a|b/c", "created": False}, {"name": "eve", "created": False}]
    assert root.ask("POST", "principals/a%7Cb%2Fc/grants", {"role": "writer", **HERE}).status == 200
    shown = root.ask("GET", "principals/a%7Cb%2Fc").json
    assert (shown["client-id"], shown["grants"]) == (first["client-id"], [{"role": "writer", **HERE}])
    token = root.ask("POST", "principals/eve/tokens", {"label": "x/y", "expires-ms": 2**41}).json["token"]
    assert [each["label"] for each in root.ask("GET", "principals/eve/tokens").json["tokens"]] == ["x/y"]
    assert token not in root.ask("GET", "principals/eve/tokens").body.decode()
    assert root.ask("DELETE", "principals/eve/tokens/x%2Fy").status == 204
    assert root.ask("DELETE", "principals/eve/tokens/x%2Fy").error == (404, "NotFoundException")
    rotated = root.ask("POST", "principals/a%7Cb%2Fc/rotate", {}).json
    assert rotated["client-secret"] != first["client-secret"]
    root.ask("POST", "groups", {"name": "team", "grants": [READER]})
    assert root.ask("POST", "groups/team/members", {"add": ["eve"]}).json["members"] == ["eve"]
    assert root.ask("POST", "groups/team/members", {"add": ["eve"]}).status == 200
    assert root.ask("POST", "groups/team/members", {"add": ["root"], "remove": ["eve", "nobody"]}).status == 404
    assert root.ask("GET", "groups/team").json["members"] == ["eve"]  # all or none
    swapped = root.ask("POST", "groups/team/members", {"add": ["root"], "remove": ["eve"]})
    assert swapped.json["members"] == ["root"]
    assert root.ask("POST", "groups/team/members", {"add": ["eve"], "remove": ["root"]}).status == 200
    found = root.ask("GET", "who-can?warehouse=main&namespace=a").json["access"]
    assert {"principal": "eve", "group": "team", "grant": READER} in found
    assert root.ask("POST", "principals/team/revoke", HERE).json == READER
    assert root.ask("POST", "principals/team/revoke", HERE).status == 404
    for path in ("principals/a%7Cb%2Fc", "principals/eve", "groups/team"):
        assert root.ask("DELETE", path).status == 204
        assert root.ask("DELETE", path).status == 404
    log = (folder / "log").read_text()
    database = open_database(f"sqlite:///{folder / 'catalog.db'}")
    rows = database.read(lambda tx: list_changes(tx, below=None, since_ms=0, until_ms=None, name=None, limit=100))
    database.close()
    actions = [(row.action, row.name, row.principal) for _, row in rows]
    assert ("principal.create", "eve", "root") in actions
    assert ("grant.delete", "team", "root") in actions
    for secret in (first["client-secret"], rotated["client-secret"], token):
        assert secret not in log
        assert secret not in repr(rows)


def test_pages(root: Admin) -> None:
    names = [f"p{number:02}" for number in range(7)]
    root.ask("POST", "principals", {"principals": [{"name": name, "external": True} for name in names]})
    found, token = [], ""
    while token is not None:
        page = root.ask("GET", f"principals?pageSize=3&pageToken={token}").json
        assert len(page["principals"]) <= 3
        found += [each["name"] for each in page["principals"]]
        token = page["next-page-token"]
    assert found == [*sorted(["local", *names, "reader", "root"])]
    for name in names:
        root.ask("DELETE", f"principals/{name}")


ROUTES = api.routes(None)  # type: ignore[arg-type]
BODIES: dict[str, Any] = {
    "createPrincipals": {"principals": [{"name": "x", "external": True}]},
    "grantRole": {"role": "reader", "warehouse": "main", "namespace": ["b"]},
    "revokeRole": {"warehouse": "main", "namespace": ["b"]},
    "createToken": {"label": "x"},
    "createGroup": {"name": "x"},
    "changeMembers": {"add": ["reader"]},
}
FOR_LOCAL = {"listPrincipals", "loadPrincipal", "listGroups", "loadGroup"}


@pytest.mark.parametrize("route", ROUTES, ids=lambda route: route.name)
def test_who_is_no_admin_of_all_may_not(admins: dict[str, Admin], route: Any) -> None:
    path = route.template.removeprefix(BASE).replace("{name}", "reader").replace("{item}", "test")
    path += "?warehouse=main&namespace=b" if route.name == "whoCan" else ""
    body = None if route.method in ("GET", "DELETE") else BODIES.get(route.name, {})
    assert admins["reader"].ask(route.method, path, body).status == 403
    answer = admins["local"].ask(route.method, path, body)
    assert answer.status == (403 if route.name not in FOR_LOCAL else 404 if route.name == "loadGroup" else 200)
    assert b"client-id" not in answer.body
    assert Admin(admins["root"].client, "lh_unknown").ask(route.method, path, body).status == 401


def test_an_admin_of_a_namespace_grants_only_there(admins: dict[str, Admin]) -> None:
    local = admins["local"]
    assert local.ask("POST", "principals/reader/grants", {"role": "writer", **HERE}).status == 200
    assert local.ask("GET", "who-can?warehouse=main&namespace=a").status == 200
    for scope in ({}, {"warehouse": "main"}, {"warehouse": "other"}, {"warehouse": "main", "namespace": ["b"]}):
        assert local.ask("POST", "principals/local/grants", {"role": "admin", **scope}).status == 403
        assert local.ask("POST", "principals/root/revoke", scope).status == 403
    assert local.ask("POST", "principals/local/grants", {"role": "admin", "namespace": ["a"]}).status == 400
    assert local.ask("GET", "principals/root").json["grants"] == []
    assert local.ask("POST", "principals/reader/grants", READER).status == 200


@pytest.mark.parametrize(
    ("method", "path", "body", "status"),
    [
        ("POST", "principals", {"principals": []}, 400),
        ("POST", "principals", {"principals": [{"name": f"x{n}"} for n in range(api.MOST_CREATED + 1)]}, 400),
        ("POST", "principals", {"principals": [{"name": "-x"}]}, 400),
        ("POST", "principals", {"principals": [{"name": "x", "grants": [{"role": "owner"}]}]}, 400),
        ("POST", "principals", {"principals": [{"name": "x", "groups": ["none"]}]}, 404),
        ("POST", "principals/none/grants", READER, 404),
        ("POST", "principals/reader/tokens", {"label": "x", "expires-ms": 1}, 400),
        ("POST", "groups/none/members", {"add": ["root"]}, 404),
        ("GET", "principals?pageToken=&pageSize=0", None, 400),
        ("GET", "who-can", None, 400),
        ("GET", "principals/", None, 404),
        ("GET", "nothing", None, 404),
        ("PUT", "principals", None, 405),
    ],
)
def test_mistakes(root: Admin, method: str, path: str, body: Any, status: int) -> None:
    assert root.ask(method, path, body).error[0] == status


def test_the_command_line_asks_a_server(root: Admin, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("LANCEHOUSE_TOKEN", root.token)
    monkeypatch.setenv("LANCEHOUSE_SERVER", f"http://127.0.0.1:{root.client.port}/iceberg")
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))

    def run(*words: str) -> Any:
        done = CliRunner().invoke(main, ["--output", "json", "principal", *words])
        assert done.exit_code == 0, done.output
        return json.loads(done.stdout)

    made = run("create", "ci bot", "--role", "reader", "--warehouse", "main", "--namespace", "a")
    assert made["credential"] == f"{made['client_id']}:{made['client_secret']}"
    assert run("create", "bob", "--external") == {"name": "bob", "external": True}
    run("group", "create", "crew")
    run("group", "add", "crew", "bob", "ci bot")
    run("grant", "crew", "--role", "writer", "--warehouse", "main", "--namespace", "b")
    assert run("group", "show", "crew")["members"] == ["bob", "ci bot"]
    assert [each["principal"] for each in run("who-can", "main.b", "--namespace")["rows"]] == ["bob", "ci bot", "root"]
    shown = {each["name"]: each for each in run("list")["rows"]}["ci bot"]
    assert (shown["client_id"], shown["roles"]) == (made["client_id"], "reader of namespace a of warehouse main")
    assert run("token", "create", "bob", "--label", "x", "--expires", "1d")["token"].startswith("lh_")
    assert run("token", "list", "bob")["rows"][0]["expires"]
    run("token", "delete", "bob", "--label", "x")
    run("rotate", "ci bot")
    revoked = run("revoke", "crew", "--warehouse", "main", "--namespace", "b")["revoked"]
    assert revoked == "writer of namespace b of warehouse main"
    run("group", "remove", "crew", "bob")
    run("group", "delete", "crew")
    run("delete", "bob")
    run("delete", "ci bot")
    assert not list(tmp_path.iterdir())
    refused = CliRunner().invoke(main, ["principal", "delete", "bob"])
    assert (refused.exit_code, "no principal called 'bob'" in refused.stderr) == (1, True)
    both = CliRunner().invoke(main, ["principal", "list", "--db", "sqlite:///x.db"])
    assert (both.exit_code, "--db or --server" in both.stderr) == (2, True)


def test_a_revocation_works_on_all_servers_within_two_seconds(postgres: str, tmp_path: Path) -> None:
    db, warehouses = new_database(postgres), {"main": tmp_path / "warehouse"}
    database = open_database(db)
    principals = Principals(database)
    admin = NewPrincipal("root", [Grant(Role.ADMIN)])
    named = ("granted", "member", "holder", "gone")
    with ExitStack() as stack:
        first, second = (
            stack.enter_context(start_lancehouse(tmp_path / name, db=db, warehouses=warehouses, options=["--auth"]))
            for name in ("first", "second")
        )
        principals.create_many([admin, *(NewPrincipal(name) for name in named)])
        tokens = {name: principals.create_token(name, "test") for name in ("root", *named)}
        database.close()

        def ask(server: Served, name: str, method: str, path: str, body: Any = None) -> tuple[int, bytes]:
            client = CommitClient(server.uri, "test")
            try:
                return client.send(method, path, body, Authorization=f"Bearer {tokens[name]}")
            finally:
                client.close()

        def change(method: str, path: str, body: Any = None) -> None:
            status, said = ask(first, "root", method, path, body)
            assert status < 300, said

        change("POST", "/iceberg/v1/main/namespaces", {"namespace": ["a"]})
        change("POST", f"{BASE}groups", {"name": "readers", "grants": [READER]})
        change("POST", f"{BASE}groups/readers/members", {"add": ["member"]})
        for name in ("granted", "holder", "gone"):
            change("POST", f"{BASE}principals/{name}/grants", READER)
        # Both servers know all of them by now, and would answer from memory.
        for server in (first, second):
            for name in named:
                wait_for_access(partial(ask, server, name, "GET", "/iceberg/v1/main/namespaces/a"))
        change("POST", f"{BASE}principals/granted/revoke", READER)
        change("POST", f"{BASE}groups/readers/members", {"remove": ["member"]})
        change("DELETE", f"{BASE}principals/holder/tokens/test")
        change("DELETE", f"{BASE}principals/gone")
        # The time is the promise itself. On a machine that is busy more of it passes, never less.
        sleep(2)
        refused = {"granted": 403, "member": 403, "holder": 401, "gone": 401}
        for server in (first, second):
            for name, status in refused.items():
                assert ask(server, name, "GET", "/iceberg/v1/main/namespaces/a")[0] == status, (server.uri, name)


def wait_for_access(ask: Callable[[], tuple[int, bytes]]) -> None:
    """Ask until it is granted: what a server knew before the grant ends by itself."""
    deadline = monotonic() + 60
    while (status := ask()[0]) != 200:
        assert monotonic() < deadline, status
        sleep(0.05)
