from __future__ import annotations

import stat
import subprocess
import threading
from pathlib import Path
from time import sleep

import pytest
from lance_namespace.errors import InvalidInputError, ServiceUnavailableError

from lancehouse.store import migrate, repository
from lancehouse.store.database import Database
from lancehouse.store.migrate import backup
from lancehouse.store.postgres import split_secrets
from lancehouse.store.statements import Tx
from tests.servers.postgres import new_database
from tests.store.conftest import drop
from tests.store.rows import StoredNamespace, insert


def restore(database: Database, copy: Path) -> Database:
    if database.is_local:
        return Database(f"sqlite:///{copy}")
    made = new_database(database.url)
    subprocess.run(["pg_restore", "--no-owner", f"--dbname={made}", copy], check=True, timeout=60)
    return Database(made)


def test_copy_of_one_moment(place: StoredNamespace, tmp_path: Path) -> None:
    """Each transaction makes two tables: the copy has both or none, and all that was acknowledged before."""
    stop = threading.Event()
    made: list[int] = []

    def fill() -> None:
        while not stop.is_set():
            number = len(made)

            def work(tx: Tx, number: int = number) -> None:
                insert(tx, place.namespace_id, f"{number} left")
                insert(tx, place.namespace_id, f"{number} right")

            place.database.write(work)
            made.append(number)

    thread = threading.Thread(target=fill)
    thread.start()
    try:
        while len(made) < 20:
            sleep(0.01)
        before = len(made)
        copy = tmp_path / "new folder" / "copy"
        backup(place.database, copy)
    finally:
        stop.set()
        thread.join()
    assert stat.S_IMODE(copy.stat().st_mode) == 0o600
    assert [path.name for path in copy.parent.iterdir()] == ["copy"]
    again = restore(place.database, copy)
    migrate.check(again)
    names = again.read(lambda tx: repository.list_entries(tx, place.namespace_id, ["lance"]))
    assert {name for name in names if name.endswith("left")} == {name.replace("right", "left") for name in names}
    assert len(names) % 2 == 0
    assert len(names) >= 2 * before
    assert again.write(lambda tx: insert(tx, place.namespace_id, "after")) is not None
    again.close()
    if again.url:
        drop(again.url)


def test_never_over_another_file(database: Database, tmp_path: Path) -> None:
    for name, occupied in (("copy", "copy"), ("other", "other.part")):
        (tmp_path / occupied).write_text("mine")
        with pytest.raises(InvalidInputError, match="exists"):
            backup(database, tmp_path / name)
        assert (tmp_path / occupied).read_text() == "mine"


def test_place_that_cannot_be(database: Database, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(InvalidInputError, match="cannot be made"):
        backup(database, tmp_path / "file" / "copy")


def test_nothing_to_copy(tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match="there is no database"):
        backup(Database(f"sqlite:///{tmp_path / 'c.db'}"), tmp_path / "copy")
    assert not list(tmp_path.iterdir())


def test_without_pg_dump(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    database = Database("postgresql://u:geheim@127.0.0.1:1/d")
    with pytest.raises(ServiceUnavailableError, match="pg_dump failed") as caught:
        backup(database, tmp_path / "copy")
    assert "geheim" not in str(caught.value)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(InvalidInputError, match="install Postgres' client programs"):
        backup(database, tmp_path / "copy")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("url", "expected", "variables"),
    [
        ("postgresql://u@h/d", "user=u dbname=d host=h", {}),
        (
            "postgresql://u:p%40ss@h:1/d?sslmode=require",
            "user=u dbname=d host=h port=1 sslmode=require",
            {"PGPASSWORD": "p@ss"},
        ),
        ("postgresql://h/d?password=x", "dbname=d host=h", {"PGPASSWORD": "x"}),
    ],
)
def test_a_command_line_without_secrets(url: str, expected: str, variables: dict[str, str]) -> None:
    where, hidden = split_secrets(url)
    assert sorted(where.split()) == sorted(expected.split())
    assert hidden == variables


def test_a_secret_that_cannot_be_hidden() -> None:
    with pytest.raises(InvalidInputError, match="sslpassword") as caught:
        split_secrets("postgresql://h/d?sslpassword=geheim")
    assert "geheim" not in str(caught.value)
