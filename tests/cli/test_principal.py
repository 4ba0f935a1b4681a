from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from lancehouse.catalog.bootstrap import open_database
from lancehouse.catalog.callers import Role
from lancehouse.catalog.principals import Principals
from lancehouse.cli.main import main
from lancehouse.cli.principal import ROLES
from lancehouse.server.http.auth import Authenticator
from lancehouse.store import repository
from lancehouse.store.database import Database
from lancehouse.store.statements import Tx


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Commands without `--db` work in a data folder of their own."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    monkeypatch.delenv("LANCEHOUSE_DB", raising=False)
    monkeypatch.delenv("LANCEHOUSE_SERVER_CONFIG", raising=False)
    return tmp_path


@pytest.fixture
def warehouse(home: Path) -> None:
    """A server has run on the database: there is the warehouse `w` with the namespaces `a` and `a`.`b.c`."""
    database = open_database(f"sqlite:///{home / 'lancehouse' / 'catalog.db'}")

    def work(tx: Tx) -> None:
        row = repository.insert_warehouse(tx, "w", "/w")
        assert row
        for levels in (("a",), ("a", "b.c")):
            repository.insert_namespace(tx, row.id, levels, {})

    database.write(work)
    database.close()


def run(*words: str) -> Result:
    return CliRunner().invoke(main, ["principal", *words])


def document(*words: str) -> dict[str, Any]:
    done = CliRunner().invoke(main, ["--output", "json", "principal", *words])
    assert done.exit_code == 0, done.output
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_a_database_that_is_not_there() -> None:
    done = run("create", "ada", "--db", "sqlite:////proc/catalog.db")
    assert done.exit_code == 1
    assert done.stderr.endswith("Hint: check that --db is right and the database is running\n")


def test_roles_are_those_of_the_catalog() -> None:
    assert [role.name.lower() for role in Role] == list(ROLES)


@pytest.mark.usefixtures("warehouse")
def test_what_is_shown_is_what_a_client_needs(home: Path) -> None:
    made = document("create", "ada", "--role", "writer", "--warehouse", "w", "--namespace", "a.`b.c`")
    assert made["credential"] == f"{made['client_id']}:{made['client_secret']}"
    database = Database(f"sqlite:///{home / 'lancehouse' / 'catalog.db'}")
    auth = Authenticator(Principals(database), required=True)
    status, answer = auth.answer_token_request({"grant_type": "client_credentials", **made}, {})
    assert status == 200
    identity = auth.identify({"authorization": f"Bearer {answer['access_token']}"})
    assert [str(grant) for grant in identity.grants] == ["writer of namespace a.b.c of warehouse w"]
    assert identity.grants[0].levels == ("a", "b.c")
    database.close()


def test_text_shows_the_same_on_lines_that_are_never_broken() -> None:
    done = run("create", "ada", "--role", "reader")
    assert done.exit_code == 0
    lines = dict(line.split(maxsplit=1) for line in done.stdout.splitlines())
    assert list(lines) == ["name", "client_id", "client_secret", "credential"]
    assert lines["credential"] == f"{lines['client_id']}:{lines['client_secret']}"
    again = run("list").stdout
    assert lines["client_id"] in again
    assert lines["client_secret"] not in again


@pytest.mark.usefixtures("warehouse")
def test_a_life() -> None:
    first = document("create", "ada", "--role", "reader", "--warehouse", "w")
    assert document("create", "eve", "--external") == {"name": "eve", "external": True}
    document("grant", "ada", "--role", "admin", "--warehouse", "w", "--namespace", "a")
    listed = document("list")
    assert listed["count"] == 2
    ada, eve = listed["rows"]
    assert ada["grants"] == [
        {"role": "reader", "warehouse": "w", "namespace": [], "table": None},
        {"role": "admin", "warehouse": "w", "namespace": ["a"], "table": None},
    ]
    assert (ada["client_id"], ada["external"]) == (first["client_id"], False)
    assert (eve["client_id"], eve["external"], eve["grants"]) == ("", True, [])
    assert document("revoke", "ada", "--warehouse", "w")["revoked"] == "reader of warehouse w"
    rotated = document("rotate", "ada")
    assert rotated["client_id"] == first["client_id"]
    assert rotated["client_secret"] != first["client_secret"]
    assert document("token", "create", "ada", "--label", "ci")["token"].startswith("lh_")
    assert [row["label"] for row in document("token", "list", "ada")["rows"]] == ["ci"]
    assert document("token", "delete", "ada", "--label", "ci") == {"name": "ada", "deleted": "ci"}
    assert document("token", "list", "ada")["count"] == 0
    assert document("delete", "ada") == {"deleted": "ada"}
    assert [row["name"] for row in document("list")["rows"]] == ["eve"]


@pytest.mark.usefixtures("warehouse")
def test_grants_on_what_is_not_there_are_refused() -> None:
    run("create", "ada")
    for words, said in (
        (["grant", "ada", "--role", "reader", "--warehouse", "x"], "no warehouse or backend 'x'; there is w"),
        (["create", "bob", "--role", "reader", "--warehouse", "x"], "no warehouse or backend 'x'; there is w"),
        (["grant", "ada", "--role", "reader", "--warehouse", "w", "--namespace", "z"], "in warehouse w there is a"),
        (["create", "bob", "--role", "admin", "--warehouse", "w", "--namespace", "a.z"], "there is b.c"),
    ):
        done = run(*words)
        assert (done.exit_code, done.stdout) == (1, "")
        assert said in done.stderr.replace("\n", " ")
    assert [(row["name"], row["grants"]) for row in document("list")["rows"]] == [("ada", [])]


@pytest.mark.usefixtures("warehouse")
def test_what_the_servers_file_names_can_be_granted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "server.yaml"
    file.write_text("db: ${NOT_SET}\nwarehouses: {new: /new}\nbackends: {folder: {impl: dir}}")
    run("create", "ada")
    document("grant", "ada", "--role", "reader", "--warehouse", "folder", "--namespace", "z", "--config", str(file))
    monkeypatch.setenv("LANCEHOUSE_SERVER_CONFIG", str(file))
    document("create", "bob", "--role", "reader", "--warehouse", "new")
    refused = run("grant", "ada", "--role", "reader", "--warehouse", "x")
    assert "there is folder, new, w" in refused.stderr.replace("\n", " ")
    broken = run("grant", "ada", "--role", "reader", "--warehouse", "folder", "--config", str(tmp_path / "none"))
    assert (broken.exit_code, "cannot be read" in broken.stderr) == (1, True)


def test_the_database_is_an_option_or_in_the_environment(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    url = f"sqlite:///{home / 'other.db'}"
    document("create", "ada", "--db", url)
    assert "there is no database" in run("list").stderr
    monkeypatch.setenv("LANCEHOUSE_DB", url)
    assert document("list")["count"] == 1


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["create", "ada"], 1, "called 'ada' already"),
        (["create", "anonymous"], 1, "cannot be a principal's name"),
        (["create", "bob", "--role", "owner"], 2, "owner"),
        (["create", "bob", "--warehouse", "w"], 2, "say where a --role is given"),
        (["create", "bob", "--role", "reader", "--namespace", "a"], 1, "names its warehouse"),
        (["create", "bob", "--role", "reader", "--warehouse", "w", "--namespace", "a."], 2, "is no id"),
        (["grant", "ada", "--warehouse", "w"], 2, "--role"),
        (["grant", "bob", "--role", "reader"], 1, "no principal or group called 'bob'"),
        (["revoke", "ada"], 1, "it is nothing"),
        (["rotate", "bob"], 1, "no principal called 'bob'"),
        (["delete", "bob"], 1, "no principal called 'bob'"),
        (["token", "create", "ada"], 2, "--label"),
        (["token", "list", "bob"], 1, "no principal called 'bob'"),
        (["token", "delete", "ada", "--label", "ci"], 1, "no token labelled 'ci'"),
        (["list", "--db", "mysql://root:secret@localhost/x"], 1, "database"),
    ],
)
def test_mistakes_are_one_sentence(words: list[str], code: int, said: str) -> None:
    run("create", "ada")
    done = run(*words)
    assert (done.exit_code, done.stdout) == (code, "")
    assert said in done.stderr
    assert "secret" not in done.stderr


@pytest.mark.usefixtures("warehouse")
def test_groups_tokens_and_who_can() -> None:
    document("create", "ada")
    document("group", "create", "team")
    document("group", "add", "team", "ada")
    document("grant", "team", "--role", "writer", "--warehouse", "w", "--namespace", "a")
    assert document("group", "show", "team")["members"] == ["ada"]
    assert document("group", "list")["count"] == 1
    (row,) = document("who-can", "w.a", "--namespace")["rows"]
    assert (row["principal"], row["role"], row["group"]) == ("ada", "writer", "team")
    assert row["granted_on"] == "namespace a of warehouse w"
    made = document("token", "create", "ada", "--label", "ci", "--expires", "30d")
    assert made["expires"] == document("token", "list", "ada")["rows"][0]["expires"]
    assert "such as 30d" in run("token", "create", "ada", "--label", "x", "--expires", "soon").stderr
    document("group", "remove", "team", "ada")
    document("group", "delete", "team")
    assert (
        "leave --namespace out" in run("grant", "ada", "--role", "reader", "--namespace", "a", "--table", "a.t").stderr
    )
    assert "no table a.t" in run("grant", "ada", "--role", "reader", "--warehouse", "w", "--table", "a.t").stderr
