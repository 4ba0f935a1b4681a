from __future__ import annotations

import sqlite3
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from threading import Barrier

import psycopg
import pytest
from alembic.config import Config
from alembic.script import ScriptDirectory
from lance_namespace.errors import InvalidTableStateError

from lancehouse.store import migrate, repository
from lancehouse.store import principals as principal_rows
from lancehouse.store.database import Database
from lancehouse.store.statements import Tx
from tests.servers.postgres import new_database
from tests.store.conftest import drop


def execute(database: Database, statement: str) -> None:
    if database.file is not None:
        with closing(sqlite3.connect(database.file)) as connection, connection:
            connection.execute(statement)
        return
    with psycopg.connect(database.url) as session:
        session.execute(statement.encode())


def schema(database: Database) -> set[str]:
    """The schema in the database's own words; the order of constraints does not matter."""
    if database.file is not None:
        with closing(sqlite3.connect(database.file)) as connection:
            made = [
                " ".join(row[0].replace('"', "").split())
                for row in connection.execute("SELECT sql FROM sqlite_master")
                if row[0]
            ]
        return {"; ".join(sorted(part.strip(", )") for part in sql.split("CONSTRAINT"))) for sql in made}
    command = ["pg_dump", "--schema-only", "--no-owner", database.url]
    dumped = subprocess.run(command, check=True, capture_output=True, text=True, timeout=60).stdout
    return {line.strip().rstrip(",") for line in dumped.splitlines() if not line.startswith(("--", "\\"))}


def test_migrations_and_model_agree(url: str, kind: str, postgres: str, tmp_path: Path) -> None:
    made = Database(url)
    migrate.create_if_empty(made)
    migrated = Database(f"sqlite:///{tmp_path / 'other.db'}" if kind == "sqlite" else new_database(postgres))
    migrate.run_migrations(migrated)
    migrate.check(migrated)
    assert schema(migrated) == schema(made)
    assert len(schema(made)) > 20
    for database in (made, migrated):
        database.close()
    if migrated.url:
        drop(migrated.url)


ROWS_OF_0003 = (
    "INSERT INTO warehouses (id, name, location) VALUES (1, 'main', '/lake')",
    "INSERT INTO namespaces (id, warehouse_id, name, path, path_key, properties) VALUES (1, 1, 'ml', 'ml', 'ml', '{}')",
    *(
        "INSERT INTO entries (id, namespace_id, name, kind, uuid, location, location_key, properties, revision, "
        "created_ms, updated_ms) "
        f"VALUES ({number}, 1, 't{number}', 'lance', 'u', '/lake/{number}', '/lake/{number}/', '{{}}', 1, 5, 5)"
        for number in (1, 2)
    ),
    "INSERT INTO snapshots (entry_id, snapshot_id, sequence, timestamp_ms, manifest_list, summary) "
    "VALUES (1, 1, 1, 5, 'm', '{}')",
    "DELETE FROM entries WHERE id = 2",
)


def test_upgrade_of_a_database_in_use(url: str, kind: str) -> None:
    database = Database(url)
    migrate.run_migrations(database, "0003")
    for statement in ROWS_OF_0003:
        execute(database, statement)
    if kind == "postgres":
        execute(database, "SELECT setval(pg_get_serial_sequence('entries', 'id'), 2)")
    assert migrate.upgrade(database) == ("0003", migrate.HEAD)
    entry = database.read(lambda tx: repository.find_entry(tx, 1, ("ml",), "t1"))
    assert entry is not None
    assert entry.id == 1
    assert [row.snapshot_id for row in database.read(lambda tx: repository.list_snapshots(tx, 1))] == [1]
    new = database.write(
        lambda tx: repository.insert_entry(
            tx,
            1,
            name="t3",
            kind="lance",
            uuid="u3",
            location="/lake/3",
            location_key="/lake/3/",
            properties={},
            now_ms=6,
        )
    )
    assert new is not None
    assert new.id == 3, "an id was given again"
    database.close()


REFUSE = """
CREATE FUNCTION refuse() RETURNS event_trigger LANGUAGE plpgsql AS
$$ BEGIN RAISE EXCEPTION 'extension "pg_trgm" is not allow-listed' USING ERRCODE = '0A000'; END $$;
CREATE EVENT TRIGGER refuse ON ddl_command_start WHEN TAG IN ('CREATE EXTENSION') EXECUTE FUNCTION refuse();
"""
HIDE = """
CREATE VIEW public.pg_available_extensions AS SELECT * FROM pg_catalog.pg_available_extensions WHERE name != 'pg_trgm';
GRANT SELECT ON public.pg_available_extensions TO plain;
ALTER ROLE plain SET search_path = public, pg_catalog;
"""


@pytest.mark.parametrize(
    "preparation",
    [
        pytest.param("", id="not-permitted"),
        pytest.param("GRANT CREATE ON DATABASE {} TO plain;" + REFUSE, id="not-on-the-list"),
        pytest.param("GRANT CREATE ON DATABASE {} TO plain;" + HIDE, id="not-installed"),
    ],
)
@pytest.mark.parametrize("way", ["upgrade", "create"])
def test_a_postgres_without_the_index_of_words(postgres: str, preparation: str, way: str) -> None:
    """The schema is made without it, a search reads all names, and an administrator may create it later."""
    url = new_database(postgres)
    server, _, name = url.rpartition("/")
    with psycopg.connect(url, autocommit=True) as session:
        session.execute("DROP ROLE IF EXISTS plain")
        session.execute(b"CREATE ROLE plain LOGIN; GRANT ALL ON SCHEMA public TO plain;")
        session.execute(preparation.replace("{}", name).encode())
    database = Database(f"{server.replace('lancehouse@', 'plain@')}/{name}")
    try:
        if way == "upgrade":
            migrate.run_migrations(database)
        else:
            migrate.create_if_empty(database)
        migrate.check(database)
        with psycopg.connect(url, autocommit=True) as session:
            find_index = "SELECT count(*) FROM pg_indexes WHERE indexname = 'ix_entries_name_words'"
            assert session.execute(find_index).fetchone() == (0,)
            assert _search(database, "orders") == ["orders"]
            session.execute("DROP EVENT TRIGGER IF EXISTS refuse")
            for statement in migrate.SEARCH_INDEX:
                session.execute(statement.encode())
            assert session.execute(find_index).fetchone() == (1,)
        assert _search(database, "voices") == ["invoices"]
    finally:
        database.close()
        drop(url)
        with psycopg.connect(postgres, autocommit=True) as session:
            session.execute("DROP ROLE plain")


def _search(database: Database, word: str) -> list[str]:
    """The names of tables that contain a word, of two that are there."""

    def work(tx: Tx) -> list[str]:
        warehouse = repository.insert_warehouse(tx, f"main {word}", f"/data/{word}")
        assert warehouse is not None
        namespace = repository.insert_namespace(tx, warehouse.id, ("a",), {})
        assert namespace is not None
        for name in ("orders", "invoices"):
            place = f"/data/{word}/{name}"
            repository.insert_entry(
                tx,
                namespace.id,
                name=name,
                kind="lance",
                uuid=place,
                location=place,
                location_key=f"{place}/",
                properties={},
                now_ms=1,
            )
        return [found for _, _, found, _ in repository.search_entries(tx, warehouse.id, [word], [], 0, 9)]

    return database.write(work)


def test_head_is_the_newest_migration() -> None:
    config = Config()
    config.set_main_option("script_location", str(migrate.MIGRATIONS))
    config.set_main_option("path_separator", "os")
    scripts = ScriptDirectory.from_config(config)
    assert scripts.get_heads() == [migrate.HEAD]
    numbers = [script.revision for script in scripts.walk_revisions()][::-1]
    assert numbers == [f"{number:04}" for number in range(1, len(numbers) + 1)]


def test_create_if_empty(url: str) -> None:
    database = Database(url)
    with pytest.raises(InvalidTableStateError, match=r"has schema none.*lancehouse db upgrade"):
        migrate.check(database)
    assert migrate.create_if_empty(database)
    migrate.check(database)
    database.write(lambda tx: repository.insert_warehouse(tx, "w", "/w"))
    assert not migrate.create_if_empty(database)
    assert migrate.upgrade(database) == (migrate.HEAD, migrate.HEAD)
    assert len(database.read(repository.list_warehouses)) == 1
    database.close()


def test_upgrade_makes_a_schema(url: str) -> None:
    database = Database(url)
    assert migrate.upgrade(database) == (None, migrate.HEAD)
    migrate.check(database)
    database.close()


def test_servers_that_start_at_once(url: str) -> None:
    ready = Barrier(6)

    def start(_: int) -> bool:
        database = Database(url)
        ready.wait()
        made = migrate.create_if_empty(database)
        migrate.check(database)
        database.write(lambda tx: principal_rows.insert_signing_key(tx, "key"))
        database.close()
        return made

    with ThreadPoolExecutor(6) as pool:
        assert sum(pool.map(start, range(6))) == 1


@pytest.mark.parametrize(
    ("number", "words"),
    [("9999", "use a newer lancehouse"), ("0000", "lancehouse db upgrade"), ("abc123", "use a newer lancehouse")],
)
def test_other_schemas_are_refused(database: Database, number: str, words: str) -> None:
    execute(database, f"UPDATE {migrate.VERSION_TABLE} SET version_num = '{number}'")
    with pytest.raises(InvalidTableStateError, match=rf"has schema {number}.*{words}"):
        migrate.check(database)
    assert not migrate.create_if_empty(database)
    if number != "0000":
        with pytest.raises(InvalidTableStateError, match=words):
            migrate.upgrade(database)


def test_another_release_is_named(database: Database) -> None:
    execute(database, f"UPDATE {migrate.VERSION_TABLE} SET version_num = '0002'")
    with pytest.raises(InvalidTableStateError, match=r"schema 0002 \(lancehouse 0.1\), not 0009 \(lancehouse 0.2\)"):
        migrate.check(database)


def test_tables_of_somebody_else(url: str) -> None:
    database = Database(url)
    if database.file is not None:
        database.file.touch()
    execute(database, "CREATE TABLE entries (x INTEGER)")
    for attempt in (migrate.create_if_empty, migrate.check, migrate.upgrade):
        with pytest.raises(InvalidTableStateError, match="entries"):
            attempt(database)
    database.close()


def test_other_tables_do_not_matter(url: str) -> None:
    database = Database(url)
    if database.file is not None:
        database.file.touch()
    execute(database, "CREATE TABLE somebody_elses (x INTEGER)")
    assert migrate.create_if_empty(database)
    database.close()


def test_looking_makes_no_file(tmp_path: Path) -> None:
    database = Database(f"sqlite:///{tmp_path / 'folder' / 'c.db'}")
    assert migrate.read_schema_version(database) is None
    assert not list(tmp_path.iterdir())


def test_alembic_is_only_loaded_to_migrate(tmp_path: Path) -> None:
    code = (
        "import sys; from lancehouse.store import migrate; from lancehouse.store.database import Database;"
        "d = Database(sys.argv[1]); migrate.create_if_empty(d); migrate.check(d); print('alembic' in sys.modules)"
    )
    command = [sys.executable, "-c", code, f"sqlite:///{tmp_path / 'c.db'}"]
    assert subprocess.run(command, check=True, capture_output=True, text=True, timeout=60).stdout == "False\n"
