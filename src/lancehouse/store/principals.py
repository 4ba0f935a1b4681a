"""Rows of principals and groups, their tokens and grants, and the key that signs tokens; secrets are stored as hashes.

A group is a principal of another kind: grants refer to both alike, and their names are of one set. What looks up
principals never finds a group, so that nobody can act as one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from lance_namespace.errors import InvalidInputError
from sqlalchemy import bindparam, delete, literal_column, select, update

from lancehouse.store.model import GrantRow, PrincipalRow
from lancehouse.store.model import grants as g
from lancehouse.store.model import members as m
from lancehouse.store.model import principals as p
from lancehouse.store.model import signing_keys as s
from lancehouse.store.model import tokens as t
from lancehouse.store.statements import (
    AS_IS,
    EVERYTHING,
    LEVELS,
    NONE,
    SEPARATOR,
    RowType,
    Statement,
    Stored,
    Tx,
    UniqueViolationError,
    check_indexed,
    index_key,
    insert_into,
    join_levels,
    limit_rows,
)

q = p.alias("q")

EVERYWHERE = ""
"""Stands for all warehouses in a grant; no warehouse has this name."""

Kind = Literal["principal", "group"]
PRINCIPAL = RowType(p, PrincipalRow)
GRANT = RowType(
    g,
    GrantRow,
    warehouse=Stored(lambda name: name or EVERYWHERE, lambda name: name or None),
    levels=LEVELS,
    table=AS_IS._replace(column="table_name"),
)
PRINCIPALS = select(*PRINCIPAL.columns).where(p.c.kind == literal_column("'principal'"))
OF_KIND = select(*PRINCIPAL.columns).where(p.c.kind == bindparam("which"))
PAGE = Statement(limit_rows(OF_KIND.where(p.c.name > bindparam("after")).order_by(p.c.name)))
ANY = Statement(PRINCIPALS.limit(literal_column("1")).offset(NONE))
BY_NAME = Statement(OF_KIND.where(p.c.name == bindparam("called")))
BY_CLIENT = Statement(PRINCIPALS.where(p.c.client_id == bindparam("client")))
BY_TOKEN = Statement(
    select(*PRINCIPAL.columns, t.c.expires_ms)
    .join(t, t.c.principal_id == p.c.id)
    .where(p.c.kind == literal_column("'principal'"), t.c.token_hash == bindparam("hash"))
)
INSERT = Statement(
    insert_into(p, "name", "client_id", "secret_hash", "created_ms", "kind").on_conflict_do_nothing().returning(p.c.id)
)
INSERT_MEMBER = Statement(insert_into(m, "principal_id", "group_id").on_conflict_do_nothing())
DELETE_MEMBER = Statement(
    delete(m).where(m.c.principal_id == bindparam("principal"), m.c.group_id == bindparam("group"))
)
MEMBERS = Statement(
    select(p.c.name).join(m, m.c.principal_id == p.c.id).where(m.c.group_id == bindparam("group")).order_by(p.c.name)
)
GROUPS_OF = Statement(
    select(p.c.name)
    .join(m, m.c.group_id == p.c.id)
    .where(m.c.principal_id == bindparam("principal"))
    .order_by(p.c.name)
)
UPDATE_SECRET = Statement(
    update(p)
    .where(p.c.id == bindparam("principal"))
    .values(client_id=bindparam("new_client"), secret_hash=bindparam("new_hash"))
)
DELETE = Statement(delete(p).where(p.c.id == bindparam("principal")))
INSERT_TOKEN = Statement(
    insert_into(t, "principal_id", "label", "token_hash", "created_ms", "expires_ms").on_conflict_do_nothing()
)
TOKENS = Statement(
    select(t.c.label, t.c.created_ms, t.c.expires_ms)
    .where(t.c.principal_id == bindparam("principal"))
    .order_by(t.c.label)
)
DELETE_TOKEN = Statement(delete(t).where(t.c.principal_id == bindparam("principal"), t.c.label == bindparam("called")))
DELETE_TOKENS = Statement(delete(t).where(t.c.principal_id == bindparam("principal")))
PUT_GRANT = Statement(insert_into(g, "principal_id", *GRANT.names, "path_key").on_conflict_do_nothing())
DELETE_GRANT = Statement(
    delete(g).where(
        g.c.principal_id == bindparam("principal"),
        g.c.role == bindparam("given"),
        g.c.warehouse == bindparam("place"),
        g.c.path_key == bindparam("here"),
    )
)
GRANTS = Statement(
    select(*GRANT.columns)
    .where(g.c.principal_id == bindparam("principal"))
    .order_by(g.c.warehouse, g.c.path_key, g.c.role)
)
GRANTS_THROUGH_GROUPS = Statement(
    select(*GRANT.columns).join(m, m.c.group_id == g.c.principal_id).where(m.c.principal_id == bindparam("principal"))
)
GROUPS_AT_ONCE = 50
"""Names of groups in one query."""
GRANTS_OF_GROUPS = Statement(
    select(p.c.name, *GRANT.columns)
    .select_from(p.outerjoin(g, g.c.principal_id == p.c.id))
    .where(
        p.c.kind == literal_column("'group'"),
        p.c.name.in_([bindparam(f"group_{number}") for number in range(GROUPS_AT_ONCE)]),
    )
)
GRANTS_OF_PAGE = Statement(
    select(g.c.principal_id, *GRANT.columns)
    .join(p, p.c.id == g.c.principal_id)
    .where(p.c.kind == bindparam("which"), p.c.name > bindparam("after"), p.c.name <= bindparam("last"))
    .order_by(g.c.principal_id, g.c.warehouse, g.c.path_key, g.c.role)
)
MEMBERS_OF_PAGE = Statement(
    select(m.c.principal_id, p.c.name)
    .join(p, p.c.id == m.c.group_id)
    .where(m.c.principal_id.in_(select(q.c.id).where(q.c.name > bindparam("after"), q.c.name <= bindparam("last"))))
    .order_by(m.c.principal_id, p.c.name)
)
HOLDERS = Statement(
    select(p.c.name, p.c.kind, p.c.id, *GRANT.columns)
    .join(g, g.c.principal_id == p.c.id)
    .where(g.c.warehouse == bindparam("place"), g.c.path_key == bindparam("here"))
    .order_by(p.c.name)
)
SIGNING_KEY = Statement(select(s.c.key))
INSERT_SIGNING_KEY = Statement(insert_into(s, "key").values(id=literal_column("1")).on_conflict_do_nothing())


def insert_principal(
    tx: Tx, name: str, client_id: str | None, secret_hash: str | None, now_ms: int, kind: Kind = "principal"
) -> PrincipalRow | None:
    """Insert a principal or group and return it; None if its name or client id is taken."""
    values = {"name": check_indexed("a name", name), "client_id": client_id, "secret_hash": secret_hash}
    row = tx.fetch_one(INSERT, {**values, "created_ms": now_ms, "kind": kind})
    return None if row is None else PrincipalRow(row[0], name, client_id, secret_hash, now_ms)


def find_client(tx: Tx, client_id: str) -> PrincipalRow | None:
    """Return the principal with a client id, or None."""
    return PRINCIPAL.fetch_one(tx, BY_CLIENT, {"client": client_id})


def find_holder(tx: Tx, name: str, kind: Kind) -> PrincipalRow | None:
    """Return the principal or group with a name, or None."""
    return PRINCIPAL.fetch_one(tx, BY_NAME, {"called": name, "which": kind})


def list_holders(
    tx: Tx, kind: Kind, after: str = "", limit: int | None = None
) -> list[tuple[PrincipalRow, list[GrantRow], list[str]]]:
    """Return principals or groups by name, those after one, each with its own grants and the groups that it is in."""
    size = EVERYTHING if limit is None else limit
    rows = PRINCIPAL.fetch_all(tx, PAGE, {"which": kind, "after": after, "size": size})
    if not rows:
        return []
    grants: dict[int, list[GrantRow]] = {row.id: [] for row in rows}
    groups: dict[int, list[str]] = {row.id: [] for row in rows}
    page = {"after": after, "last": rows[-1].name}
    for holder, *grant in tx.fetch_all(GRANTS_OF_PAGE, {**page, "which": kind}):
        grants[holder].append(GRANT.read(grant))
    for holder, group in tx.fetch_all(MEMBERS_OF_PAGE, page) if kind == "principal" else ():
        groups[holder].append(group)
    return [(row, grants[row.id], groups[row.id]) for row in rows]


def has_principals(tx: Tx) -> bool:
    """Return whether there is any principal."""
    return tx.fetch_one(ANY, {}) is not None


def insert_member(tx: Tx, group_id: int, principal_id: int) -> None:
    """Make a principal a member of a group, which it may be already."""
    tx.run(INSERT_MEMBER, {"group_id": group_id, "principal_id": principal_id})


def delete_member(tx: Tx, group_id: int, principal_id: int) -> bool:
    """Take a principal out of a group; return False if it is not in it."""
    return tx.run(DELETE_MEMBER, {"group": group_id, "principal": principal_id}) == 1


def list_members(tx: Tx, group_id: int) -> list[str]:
    """Return the names of the members of a group."""
    return [row[0] for row in tx.fetch_all(MEMBERS, {"group": group_id})]


def list_groups_of(tx: Tx, principal_id: int) -> list[str]:
    """Return the names of the groups that a principal is in."""
    return [row[0] for row in tx.fetch_all(GROUPS_OF, {"principal": principal_id})]


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


def insert_token(
    tx: Tx, principal_id: int, label: str, token_hash: str, now_ms: int, expires_ms: int | None = None
) -> bool:
    """Insert a token; return False if the principal has one with that label."""
    values = {"principal_id": principal_id, "label": check_indexed("a label", label), "token_hash": token_hash}
    return tx.run(INSERT_TOKEN, {**values, "created_ms": now_ms, "expires_ms": expires_ms}) == 1


def find_token_owner(tx: Tx, token_hash: str) -> tuple[PrincipalRow, int | None] | None:
    """Return the principal that owns a token and when the token expires, or None."""
    row = tx.fetch_one(BY_TOKEN, {"hash": token_hash})
    return None if row is None else (PrincipalRow(*row[:-1]), row[-1])


def list_tokens(tx: Tx, principal_id: int) -> list[tuple[str, int, int | None]]:
    """Return label, time of creation and of expiry of each token."""
    return [(row[0], row[1], row[2]) for row in tx.fetch_all(TOKENS, {"principal": principal_id})]


def delete_token(tx: Tx, principal_id: int, label: str) -> bool:
    """Delete a token; return False if there is none with that label."""
    return tx.run(DELETE_TOKEN, {"principal": principal_id, "called": label}) == 1


def delete_tokens(tx: Tx, principal_id: int) -> None:
    """Delete all tokens of a principal."""
    tx.run(DELETE_TOKENS, {"principal": principal_id})


def put_grant(tx: Tx, principal_id: int, grant: GrantRow) -> None:
    """Insert a grant; one that exists already is left as it is."""
    scope = scope_key(grant.levels, grant.table)
    tx.run(PUT_GRANT, {"principal_id": principal_id, **GRANT.values(grant), "path_key": scope})


def scope_key(levels: tuple[str, ...], table: str | None) -> str:
    """Return the key of a namespace or table in grants. Tables have more separators than any path or its digest."""
    path = join_levels(levels)
    return index_key(path if table is None else f"{path}{SEPARATOR * 3}{check_indexed('a name', table)}")


def delete_grant(tx: Tx, principal_id: int, grant: GrantRow) -> bool:
    """Delete a grant; return False if there is no such grant."""
    values = {"principal": principal_id, "given": grant.role, "place": grant.warehouse or EVERYWHERE}
    return tx.run(DELETE_GRANT, {**values, "here": scope_key(grant.levels, grant.table)}) == 1


def list_grants(tx: Tx, principal_id: int) -> list[GrantRow]:
    """Return the grants of a principal or group itself."""
    return GRANT.fetch_all(tx, GRANTS, {"principal": principal_id})


def list_grants_through_groups(tx: Tx, principal_id: int) -> list[GrantRow]:
    """Return the grants of the groups that a principal is in."""
    return GRANT.fetch_all(tx, GRANTS_THROUGH_GROUPS, {"principal": principal_id})


def list_grants_of_groups(tx: Tx, names: Sequence[str]) -> tuple[set[str], list[GrantRow]]:
    """Return which of the names are groups, and the grants of these."""
    groups: set[str] = set()
    grants = []
    for first in range(0, len(names), GROUPS_AT_ONCE):
        batch = [*names[first : first + GROUPS_AT_ONCE], *[names[first]] * GROUPS_AT_ONCE][:GROUPS_AT_ONCE]
        for name, *grant in tx.fetch_all(GRANTS_OF_GROUPS, {f"group_{n}": group for n, group in enumerate(batch)}):
            groups.add(name)
            if grant[0] is not None:  # a group without grants has one row, of nulls
                grants.append(GRANT.read(grant))
    return groups, grants


def list_holders_of_grants(
    tx: Tx, warehouse: str | None, levels: tuple[str, ...], table: str | None
) -> list[tuple[str, Kind, int, GrantRow]]:
    """Return who has a grant on exactly this scope: name, kind and id of the principal or group, and the grant."""
    values = {"place": warehouse or EVERYWHERE, "here": scope_key(levels, table)}
    return [(row[0], row[1], row[2], GRANT.read(row[3:])) for row in tx.fetch_all(HOLDERS, values)]


def find_signing_key(tx: Tx) -> str | None:
    """Return the key that signs tokens on all servers, or None."""
    row = tx.fetch_one(SIGNING_KEY, {})
    return None if row is None else str(row[0])


def insert_signing_key(tx: Tx, key: str) -> bool:
    """Insert the key; return False if another server was first, in which case its key must be read."""
    return tx.run(INSERT_SIGNING_KEY, {"key": key}) == 1
