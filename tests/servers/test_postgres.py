"""Postgres starts, holds text in any language, and stops with its block."""

from __future__ import annotations

from pathlib import Path

import psycopg
import pytest

from tests.servers import postgres as module
from tests.servers.postgres import PostgresError, find_postgres, new_database, start_postgres


def test_it_runs_as_long_as_its_block() -> None:
    with start_postgres() as url:
        with psycopg.connect(url) as connection:
            row = connection.execute("SELECT 'ä', current_user, current_setting('fsync')").fetchone()
        assert row == ("ä", "lancehouse", "on")
    with pytest.raises(psycopg.OperationalError, match="refused"):
        psycopg.connect(url)


def test_databases_do_not_see_each_other(postgres: str) -> None:
    first, second = new_database(postgres), new_database(postgres)
    with psycopg.connect(first) as connection:
        connection.execute("CREATE TABLE t (a int)")
    with psycopg.connect(second) as connection:
        assert connection.execute("SELECT to_regclass('t')").fetchone() == (None,)


def test_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PLACES", ())
    monkeypatch.setattr(module, "WHEELS", ())
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(PostgresError, match="install Debian's `postgresql` or the wheel"):
        find_postgres()


def test_programs_that_another_user_cannot_reach_are_copied(tmp_path: Path) -> None:
    programs = tmp_path / "private" / "package" / "install" / "bin"
    libraries = tmp_path / "private" / "package.libs"
    for file in (programs / "postgres", libraries / "libpq.so"):
        file.parent.mkdir(parents=True)
        file.write_text("")
    (tmp_path / "private").chmod(0o700)
    target = tmp_path / "target"
    target.mkdir()
    copied = module._reachable(programs, target)
    assert copied == target / "package" / "install" / "bin"
    assert (copied / "postgres").exists()
    assert (copied / "../../../package.libs/libpq.so").exists()
