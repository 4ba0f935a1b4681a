"""Databases for the tests of the store: every test runs on SQLite and on Postgres."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import psycopg
import pytest
from psycopg import sql

from lancehouse.store import migrate, repository
from lancehouse.store.database import Database
from lancehouse.store.statements import Tx
from tests.servers.postgres import new_database
from tests.store.rows import StoredNamespace


@pytest.fixture(params=["sqlite", "postgres"])
def kind(request: pytest.FixtureRequest) -> str:
    """Which database."""
    return str(request.param)


@pytest.fixture
def url(kind: str, request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """The URL of an empty database."""
    if kind == "sqlite":
        yield f"sqlite:///{tmp_path / 'catalog.db'}"
        return
    made = new_database(request.getfixturevalue("postgres"))
    yield made
    drop(made)


@pytest.fixture(scope="session")
def template(postgres: str) -> str:
    """A database with its schema, which is copied faster than it is made."""
    made = new_database(postgres)
    database = Database(made)
    migrate.create_if_empty(database)
    database.close()
    return made


@pytest.fixture
def database(kind: str, request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Database]:
    """A database with its schema and nothing in it."""
    if kind == "sqlite":
        made = Database(f"sqlite:///{tmp_path / 'catalog.db'}")
        migrate.create_if_empty(made)
    else:
        made = Database(copy_database(request.getfixturevalue("template")))
    yield made
    made.close()
    if made.url:
        drop(made.url)


@pytest.fixture
def place(database: Database) -> StoredNamespace:
    """A warehouse with the namespace `a`."""

    def work(tx: Tx) -> StoredNamespace:
        warehouse = repository.insert_warehouse(tx, "main", "/data")
        assert warehouse is not None
        namespace = repository.insert_namespace(tx, warehouse.id, ("a",), {})
        assert namespace is not None
        return StoredNamespace(database, warehouse.id, namespace.id)

    return database.write(work)


def copy_database(template: str) -> str:
    """The URL of a new database like `template`."""
    server, _, like = template.rpartition("/")
    name = f"db_{uuid4().hex[:12]}"
    statement = sql.SQL("CREATE DATABASE {} TEMPLATE {}").format(sql.Identifier(name), sql.Identifier(like))
    with psycopg.connect(f"{server}/postgres", autocommit=True) as connection:
        connection.execute(statement)
    return f"{server}/{name}"


def drop(url: str) -> None:
    """Remove a database, whoever is connected to it."""
    server, _, name = url.rpartition("/")
    with psycopg.connect(f"{server}/postgres", autocommit=True) as connection:
        connection.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(name)))
