"""Idempotency keys, principals, tokens, grants, and the signing key."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
from lance_namespace.errors import InvalidInputError

from lancehouse.store import principals as principal_rows
from lancehouse.store import repository
from lancehouse.store.database import Database
from lancehouse.store.model import GrantRow, PrincipalRow
from lancehouse.store.statements import Tx
from tests.store.rows import NOW


def create(database: Database, name: str, client_id: str | None) -> PrincipalRow | None:
    return database.write(lambda tx: principal_rows.insert_principal(tx, name, client_id, f"hash of {name}", NOW))


def test_keys(database: Database) -> None:
    assert database.write(lambda tx: repository.insert_key(tx, "k", "digest", 0, None, NOW))
    assert database.read(lambda tx: repository.find_key(tx, "k")) == ("digest", 0, None)
    assert not database.write(lambda tx: repository.insert_key(tx, "k", "other", 200, b"x", NOW + 5))
    database.write(lambda tx: repository.finish_key(tx, "k", 200, b"\x00\xff"))
    assert database.read(lambda tx: repository.find_key(tx, "k")) == ("digest", 200, b"\x00\xff")
    assert database.read(lambda tx: repository.find_key(tx, "unknown")) is None
    database.write(lambda tx: repository.insert_key(tx, "young", "digest", 0, None, NOW + 5))
    assert database.write(lambda tx: repository.delete_keys_before(tx, NOW + 5)) == 1
    assert database.read(lambda tx: repository.find_key(tx, "k")) is None
    assert database.read(lambda tx: repository.find_key(tx, "young")) is not None


def test_a_key_whose_request_failed_is_free(database: Database) -> None:
    def failing(tx: Tx) -> None:
        assert repository.insert_key(tx, "k", "digest", 0, None, NOW)
        raise ValueError

    with pytest.raises(ValueError):
        database.write(failing)
    assert database.write(lambda tx: repository.insert_key(tx, "k", "digest", 0, None, NOW))


def test_one_of_many_takes_a_key(database: Database) -> None:
    with ThreadPoolExecutor(8) as pool:
        taken = pool.map(
            lambda _: database.write(lambda tx: repository.insert_key(tx, "k", "d", 0, None, NOW)), range(16)
        )
    assert sum(taken) == 1


def test_principals(database: Database) -> None:
    ada, bob = create(database, "ada", "id of ada"), create(database, "Bob", None)
    assert ada is not None
    assert bob is not None
    assert create(database, "ada", "another id") is None
    assert create(database, "eve", "id of ada") is None
    assert [row for row, _, _ in database.read(lambda tx: principal_rows.list_holders(tx, "principal"))] == [bob, ada]
    read = database.read
    assert read(lambda tx: principal_rows.find_holder(tx, "ada", "principal")) == ada
    assert read(lambda tx: principal_rows.find_client(tx, "id of ada")) == ada
    assert read(lambda tx: principal_rows.find_holder(tx, "Ada", "principal")) is None
    database.write(lambda tx: principal_rows.update_secret(tx, ada.id, "new id", "new hash"))
    found = read(lambda tx: principal_rows.find_client(tx, "new id"))
    assert found == PrincipalRow(ada.id, "ada", "new id", "new hash", NOW)
    with pytest.raises(InvalidInputError, match="another principal's"):
        database.write(lambda tx: principal_rows.update_secret(tx, bob.id, "new id", "x"))
    assert database.write(lambda tx: principal_rows.delete_principal(tx, ada.id))
    assert not database.write(lambda tx: principal_rows.delete_principal(tx, ada.id))


def test_tokens(database: Database) -> None:
    ada, bob = create(database, "ada", None), create(database, "bob", None)
    assert ada is not None
    assert bob is not None

    def insert(principal: PrincipalRow, label: str, token: str) -> bool:
        return database.write(lambda tx: principal_rows.insert_token(tx, principal.id, label, token, NOW))

    assert insert(ada, "ci", "hash 1")
    assert insert(ada, "a laptop", "hash 2")
    assert insert(bob, "ci", "hash 3")
    assert not insert(ada, "ci", "hash 4")
    assert database.read(lambda tx: principal_rows.find_token_owner(tx, "hash 1")) == (ada, None)
    assert database.read(lambda tx: principal_rows.find_token_owner(tx, "hash 4")) is None
    assert database.read(lambda tx: principal_rows.list_tokens(tx, ada.id)) == [
        ("a laptop", NOW, None),
        ("ci", NOW, None),
    ]
    assert database.write(lambda tx: principal_rows.delete_token(tx, ada.id, "ci"))
    assert not database.write(lambda tx: principal_rows.delete_token(tx, ada.id, "ci"))
    assert database.read(lambda tx: principal_rows.find_token_owner(tx, "hash 1")) is None
    database.write(lambda tx: principal_rows.delete_principal(tx, ada.id))
    assert database.read(lambda tx: principal_rows.find_token_owner(tx, "hash 2")) is None
    assert database.read(lambda tx: principal_rows.find_token_owner(tx, "hash 3")) == (bob, None)


def test_grants(database: Database) -> None:
    ada = create(database, "ada", None)
    assert ada is not None
    grants = [
        GrantRow("reader", None, ()),
        GrantRow("writer", "main", ()),
        GrantRow("admin", "main", ("a", "b.c")),
        GrantRow("reader", "main", ("a", "b.c")),
        GrantRow("reader", "main", tuple("deep down" for _ in range(300))),
    ]

    def list_grants() -> list[GrantRow]:
        return database.read(lambda tx: principal_rows.list_grants(tx, ada.id))

    for grant in [*grants, *grants]:
        database.write(lambda tx, grant=grant: principal_rows.put_grant(tx, ada.id, grant))  # type: ignore[misc]
    assert sorted(list_grants(), key=repr) == sorted(grants, key=repr)
    assert database.write(lambda tx: principal_rows.delete_grant(tx, ada.id, grants[2]))
    assert not database.write(lambda tx: principal_rows.delete_grant(tx, ada.id, grants[2]))
    assert sorted(list_grants(), key=repr) == sorted([*grants[:2], *grants[3:]], key=repr)
    database.write(lambda tx: principal_rows.delete_principal(tx, ada.id))
    assert list_grants() == []


def test_one_signing_key(database: Database) -> None:
    assert database.read(principal_rows.find_signing_key) is None
    with ThreadPoolExecutor(8) as pool:
        kept = list(
            pool.map(lambda n: database.write(lambda tx: principal_rows.insert_signing_key(tx, f"key {n}")), range(8))
        )
    assert sum(kept) == 1
    assert database.read(principal_rows.find_signing_key) == f"key {kept.index(True)}"
