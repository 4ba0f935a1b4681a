"""Rows of principals, their tokens and grants, and the key that signs tokens; secrets are stored as hashes."""

from __future__ import annotations

from lance_namespace.errors import InvalidInputError
from sqlalchemy import bindparam, delete, literal_column, select, update

from lancehouse.store.model import GrantRow, PrincipalRow
from lancehouse.store.model import grants as g
from lancehouse.store.model import principals as p
from lancehouse.store.model import signing_keys as s
from lancehouse.store.model import tokens as t
from lancehouse.store.statements import (
    SEPARATOR,
    Statement,
    Tx,
    UniqueViolationError,
    check_indexed,
    index_key,
    insert_into,
    join_levels,
    split_levels,
)

EVERYWHERE = ""
"""Stands for all warehouses in a grant; no warehouse has this name."""

PRINCIPALS = select(p.c.id, p.c.name, p.c.client_id, p.c.secret_hash, p.c.created_ms)
ALL = Statement(PRINCIPALS.order_by(p.c.name))
BY_NAME = Statement(PRINCIPALS.where(p.c.name == bindparam("called")))
BY_CLIENT = Statement(PRINCIPALS.where(p.c.client_id == bindparam("client")))
BY_TOKEN = Statement(PRINCIPALS.join(t, t.c.principal_id == p.c.id).where(t.c.token_hash == bindparam("hash")))
INSERT = Statement(
    insert_into(p, "name", "client_id", "secret_hash", "created_ms").on_conflict_do_nothing().returning(p.c.id)
)
UPDATE_SECRET = Statement(
    update(p)
    .where(p.c.id == bindparam("principal"))
    .values(client_id=bindparam("new_client"), secret_hash=bindparam("new_hash"))
)
DELETE = Statement(delete(p).where(p.c.id == bindparam("principal")))
INSERT_TOKEN = Statement(insert_into(t, "principal_id", "label", "token_hash", "created_ms").on_conflict_do_nothing())
TOKENS = Statement(
    select(t.c.label, t.c.created_ms).where(t.c.principal_id == bindparam("principal")).order_by(t.c.label)
)
DELETE_TOKEN = Statement(delete(t).where(t.c.principal_id == bindparam("principal"), t.c.label == bindparam("called")))
DELETE_TOKENS = Statement(delete(t).where(t.c.principal_id == bindparam("principal")))
PUT_GRANT = Statement(
    insert_into(g, "principal_id", "role", "warehouse", "path_key", "path", "table_name").on_conflict_do_nothing()
)
DELETE_GRANT = Statement(
    delete(g).where(
        g.c.principal_id == bindparam("principal"),
        g.c.role == bindparam("given"),
        g.c.warehouse == bindparam("place"),
        g.c.path_key == bindparam("here"),
    )
)
GRANTS = Statement(
    select(g.c.role, g.c.warehouse, g.c.path, g.c.table_name)
    .where(g.c.principal_id == bindparam("principal"))
    .order_by(g.c.warehouse, g.c.path_key, g.c.role)
)
SIGNING_KEY = Statement(select(s.c.key))
INSERT_SIGNING_KEY = Statement(insert_into(s, "key").values(id=literal_column("1")).on_conflict_do_nothing())


def insert_principal(
    tx: Tx, name: str, client_id: str | None, secret_hash: str | None, now_ms: int
) -> PrincipalRow | None:
    """Insert a principal and return it; None if its name or client id is taken."""
    values = {"name": check_indexed("a name", name), "client_id": client_id, "secret_hash": secret_hash}
    row = tx.fetch_one(INSERT, {**values, "created_ms": now_ms})
    return None if row is None else PrincipalRow(row[0], name, client_id, secret_hash, now_ms)


def find_principal(tx: Tx, *, name: str | None = None, client_id: str | None = None) -> PrincipalRow | None:
    """Return the principal with a name, or else with a client id, or None."""
    row = (
        tx.fetch_one(BY_NAME, {"called": name}) if name is not None else tx.fetch_one(BY_CLIENT, {"client": client_id})
    )
    return None if row is None else PrincipalRow(*row)


def list_principals(tx: Tx) -> list[PrincipalRow]:
    """Return all principals, ordered by name."""
    return [PrincipalRow(*row) for row in tx.fetch_all(ALL, {})]


def update_secret(tx: Tx, id: int, client_id: str | None, secret_hash: str | None) -> None:
    """Replace a principal's client id and the hash of its secret.

    Raises:
        InvalidInputError: another principal has the client id.
    """
    try:
        with tx.savepoint():
            tx.run(UPDATE_SECRET, {"principal": id, "new_client": client_id, "new_hash": secret_hash})
    except UniqueViolationError:
        raise InvalidInputError(f"client id {client_id} is another principal's") from None


def delete_principal(tx: Tx, id: int) -> bool:
    """Delete a principal with its tokens and grants; return False if it no longer exists."""
    return tx.run(DELETE, {"principal": id}) == 1


def insert_token(tx: Tx, principal_id: int, label: str, token_hash: str, now_ms: int) -> bool:
    """Insert a token; return False if the principal has one with that label."""
    values = {"principal_id": principal_id, "label": check_indexed("a label", label), "token_hash": token_hash}
    return tx.run(INSERT_TOKEN, {**values, "created_ms": now_ms}) == 1


def find_token_owner(tx: Tx, token_hash: str) -> PrincipalRow | None:
    """Return the principal that owns a token, or None."""
    row = tx.fetch_one(BY_TOKEN, {"hash": token_hash})
    return None if row is None else PrincipalRow(*row)


def list_tokens(tx: Tx, principal_id: int) -> list[tuple[str, int]]:
    """Return label and creation time of each token."""
    return [(row[0], row[1]) for row in tx.fetch_all(TOKENS, {"principal": principal_id})]


def delete_token(tx: Tx, principal_id: int, label: str) -> bool:
    """Delete a token; return False if there is none with that label."""
    return tx.run(DELETE_TOKEN, {"principal": principal_id, "called": label}) == 1


def delete_tokens(tx: Tx, principal_id: int) -> None:
    """Delete all tokens of a principal."""
    tx.run(DELETE_TOKENS, {"principal": principal_id})


def put_grant(tx: Tx, principal_id: int, grant: GrantRow) -> None:
    """Insert a grant; one that exists already is left as it is."""
    values = {"principal_id": principal_id, "role": grant.role, "warehouse": grant.warehouse or EVERYWHERE}
    names = {"path": join_levels(grant.levels), "path_key": scope_key(grant.levels, grant.table)}
    tx.run(PUT_GRANT, {**values, **names, "table_name": grant.table})


def scope_key(levels: tuple[str, ...], table: str | None) -> str:
    """Return the key of a namespace or table in grants. Tables have more separators than any path or its digest."""
    path = join_levels(levels)
    return index_key(path if table is None else f"{path}{SEPARATOR * 3}{check_indexed('a name', table)}")


def delete_grant(tx: Tx, principal_id: int, grant: GrantRow) -> bool:
    """Delete a grant; return False if there is no such grant."""
    values = {"principal": principal_id, "given": grant.role, "place": grant.warehouse or EVERYWHERE}
    return tx.run(DELETE_GRANT, {**values, "here": scope_key(grant.levels, grant.table)}) == 1


def list_grants(tx: Tx, principal_id: int) -> list[GrantRow]:
    """Return the grants of a principal."""
    return [
        GrantRow(row[0], row[1] or None, split_levels(row[2]), row[3])
        for row in tx.fetch_all(GRANTS, {"principal": principal_id})
    ]


def find_signing_key(tx: Tx) -> str | None:
    """Return the key that signs tokens on all servers, or None."""
    row = tx.fetch_one(SIGNING_KEY, {})
    return None if row is None else str(row[0])


def insert_signing_key(tx: Tx, key: str) -> bool:
    """Insert the key; return False if another server was first, in which case its key must be read."""
    return tx.run(INSERT_SIGNING_KEY, {"key": key}) == 1
