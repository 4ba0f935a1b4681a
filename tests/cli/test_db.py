from __future__ import annotations

import json
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner, Result

from lancehouse.cli.main import CliContext, MainGroup
from lancehouse.cli.serve import db
from lancehouse.store import migrate, repository
from lancehouse.store.database import Database

Run = Callable[..., Result]


@click.group(cls=MainGroup)
@click.pass_context
def main(ctx: click.Context) -> None:
    ctx.obj = CliContext("json")


main.add_command(db)


@pytest.fixture
def run(tmp_path: Path) -> Run:
    def invoke(*arguments: str, env: dict[str, str] | None = None) -> Result:
        where = {"XDG_DATA_HOME": str(tmp_path / "home"), "LANCEHOUSE_DB": None, **(env or {})}
        return CliRunner().invoke(main, ["db", *arguments], env=where, catch_exceptions=False)

    return invoke


def answer(done: Result) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_from_nothing_to_a_backup(run: Run, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'c.db'}"
    nothing = run("status", "--db", url)
    assert (nothing.exit_code, answer(nothing)) == (1, {"database": url, "schema": "none", "state": "empty"})
    assert not list(tmp_path.iterdir())
    made = run("upgrade", "--db", url)
    assert (made.exit_code, answer(made)) == (0, {"database": url, "before": "empty", "schema": migrate.HEAD})
    assert answer(run("upgrade", "--db", url))["before"] == migrate.HEAD
    database = Database(url)
    database.write(lambda tx: repository.insert_warehouse(tx, "main", "/data"))
    database.close()
    state = run("status", env={"LANCEHOUSE_DB": url})
    assert (state.exit_code, answer(state)) == (0, {"database": url, "schema": migrate.HEAD, "state": "current"})
    copy = tmp_path / "copy.db"
    copied = run("backup", "--db", url, str(copy))
    assert copied.exit_code == 0, copied.output
    assert answer(copied) == {"database": url, "backup": str(copy), "bytes": copy.stat().st_size}
    assert stat.S_IMODE(copy.stat().st_mode) == 0o600
    again = Database(f"sqlite:///{copy}")
    assert [row.name for row in again.read(repository.list_warehouses)] == ["main"]
    again.close()
    refused = run("backup", "--db", url, str(copy))
    assert refused.exit_code == 1
    assert "exists already" in json.loads(refused.stderr)["error"]


def test_default_is_in_the_data_folder(run: Run, tmp_path: Path) -> None:
    done = run("upgrade")
    assert answer(done)["database"] == f"sqlite:///{tmp_path}/home/lancehouse/catalog.db"
    assert (tmp_path / "home" / "lancehouse" / "catalog.db").exists()


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("mysql://u:geheim@h/d", "no such kind of database"),
        ("sqlite://", "must be a file"),
        ("postgresql://u:geheim@127.0.0.1:1/d", "out of reach"),
    ],
)
@pytest.mark.parametrize("command", ["status", "upgrade"])
def test_one_sentence_without_secrets(run: Run, command: str, url: str, words: str) -> None:
    done = run(command, "--db", url)
    assert done.exit_code == 1
    assert words in json.loads(done.stderr)["error"]
    assert "geheim" not in done.output
