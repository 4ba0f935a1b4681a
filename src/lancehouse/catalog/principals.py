"""Manage principals and groups, their grants, client secrets and static tokens; authenticate callers by them.

Only hashes are stored. Secrets and tokens are 256 random bits each, so they cannot be guessed. A client's secret is
stored as scrypt with its own salt; the cost is moderate, because wrong secrets must not be a way to keep the server
busy. A bearer token is looked up by its hash, so it is stored as plain SHA-256.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import secrets
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from math import inf

from lance_namespace.errors import ConcurrentModificationError, InvalidInputError, UnauthenticatedError

from lancehouse.caches import BoundedCache
from lancehouse.catalog.callers import (
    ANYBODY,
    EVERYWHERE,
    Caller,
    Grant,
    Identity,
    Role,
    enclosing_scopes,
    format_scope,
)
from lancehouse.catalog.entries import now_ms, record_change
from lancehouse.catalog.errors import PrincipalExistsError, PrincipalNotFoundError
from lancehouse.row_policy import HASH, NULL, Restriction
from lancehouse.store import principals as principal_rows
from lancehouse.store import repository
from lancehouse.store.database import Database
from lancehouse.store.model import EntryRow, GrantRow, Json, PrincipalRow, WarehouseRow
from lancehouse.store.principals import Kind as Kind
from lancehouse.store.statements import Tx

TOKEN_PREFIX = "lh_"  # noqa: S105
"""Prefix of static bearer tokens, by which they are recognized, and leaked ones are easy to find."""

COST, BLOCK, PARALLEL = 2**13, 8, 1
"""Parameters n, r and p of scrypt."""
MAX_MEMORY = 2**26
"""Memory limit of scrypt, more than our hashes need: a manipulated row must not claim all memory."""


def new_client_id() -> str:
    """Return a new client id, which is not secret."""
    return secrets.token_hex(8)


def new_secret() -> str:
    """Return a new client secret, in hexadecimal, so that no form, header or shell has to quote it."""
    return secrets.token_hex(32)


def new_token() -> str:
    """Return a new static bearer token."""
    return TOKEN_PREFIX + secrets.token_hex(32)


def digest(text: str) -> str:
    """Return the SHA-256 of a text: what is stored of a static token, and a safe cache key for any secret."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def hash_secret(secret: str) -> str:
    """Return the hash of a client's secret to store: `scrypt$n$r$p$salt$hash`."""
    salt = secrets.token_bytes(16)
    return f"scrypt${COST}${BLOCK}${PARALLEL}${salt.hex()}${_scrypt(secret, salt, COST, BLOCK, PARALLEL).hex()}"


def is_secret_valid(secret: str, secret_hash: str | None) -> bool:
    """Return whether `secret_hash` was made from `secret`.

    It takes the same time if `secret_hash` is None, so that the time does not tell which client ids exist.
    """
    _, cost, block, parallel, salt, expected = (secret_hash or _NOBODY).split("$")
    actual = _scrypt(secret, bytes.fromhex(salt), int(cost), int(block), int(parallel))
    return hmac.compare_digest(actual, bytes.fromhex(expected)) and secret_hash is not None


def _scrypt(secret: str, salt: bytes, cost: int, block: int, parallel: int) -> bytes:
    text = secret.encode("utf-8", "surrogatepass")
    return hashlib.scrypt(text, salt=salt, n=cost, r=block, p=parallel, maxmem=MAX_MEMORY, dklen=32)


_NOBODY = f"scrypt${COST}${BLOCK}${PARALLEL}${'00' * 16}${'00' * 32}"
"""Hash that no secret has, checked in place of that of an unknown client."""


LONGEST = 255
"""Longest name or label, in characters."""
MOST_PROVED = 1000
"""Most verified credentials that are remembered, by digest, with the hash that they match."""
LATEST_MS = 2**45
"""Latest time that a token may expire, which is in the year 3084."""
OPERATOR = Caller(Identity("operator", ()))
"""Who changes the database itself, on the command line."""
RESTRICTED = "restricted"
"""Role of a restricted grant in the database. A server that does not know restrictions knows no such role: it fails,
where with `reader` it would show everything."""
MOST_LISTED = 10
"""Most names that an error message lists."""


@dataclass(frozen=True, slots=True)
class Principal:
    """A person or program that may call the server."""

    name: str
    client_id: str | None
    created_ms: int
    grants: tuple[Grant, ...]
    """Its own ones."""
    generation: str = field(repr=False)
    """Changes with each new secret; tokens that carry an older generation are no longer valid."""
    through_groups: tuple[Grant, ...] = ()
    """Those of the groups that it is in."""
    groups: tuple[str, ...] = ()
    """Where it is listed, the names of these groups."""

    @property
    def is_external(self) -> bool:
        """Whether an outside issuer authenticates the principal, so that the server stores no secret."""
        return self.client_id is None

    @property
    def identity(self) -> Identity:
        """The identity by which services check permissions."""
        return Identity(self.name, self.grants + self.through_groups)


@dataclass(frozen=True, slots=True)
class Group:
    """A set of principals whose members have its grants. Groups are not nested."""

    name: str
    created_ms: int
    grants: tuple[Grant, ...]
    members: tuple[str, ...] | None = None
    """Names of its members; None where groups are listed. An outside issuer may vouch for others."""


@dataclass(frozen=True, slots=True)
class IssuedToken:
    """What is known of a static token, besides the hash."""

    label: str
    created_ms: int
    expires_ms: int | None
    """None: it is valid until it is deleted, or the secret rotated."""


@dataclass(frozen=True, slots=True)
class Access:
    """Why somebody may use a table."""

    principal: str | None
    """None: those for whom an issuer says that they are in the group, which has no members here."""
    grant: Grant
    group: str | None = None
    """The group by which they have the grant; None: it is their own."""


@dataclass(frozen=True, slots=True)
class NewPrincipal:
    """A principal to create."""

    name: str
    grants: Sequence[Grant] = ()
    external: bool = False
    groups: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class CreatedPrincipal:
    """A principal that was to be created."""

    name: str
    credential: Credential | None
    """None if it is external, or was there before."""
    is_new: bool = True


@dataclass(frozen=True, slots=True)
class Credential:
    """The client id and secret of a program. The secret is shown once and stored as a hash."""

    client_id: str
    client_secret: str = field(repr=False)


class Principals:
    """The principals of one database. Changes apply to all servers on it within seconds."""

    def __init__(self, database: Database, configured: Collection[str] = (), caller: Caller = OPERATOR) -> None:
        """Manage principals.

        Args:
            database: the catalog's database.
            configured: warehouses and backends of the server's configuration file. Roles can be granted on them too,
                although the database does not know backends, and knows a warehouse only once it was served.
            caller: who makes changes, for the audit.
        """
        self._database = database
        self._configured = configured
        self._caller = caller
        self._verified_hashes: BoundedCache[str, str] = BoundedCache(MOST_PROVED)

    def acting_for(self, caller: Caller) -> Principals:
        """Return the same principals, for changes that a caller makes. Whether they may is not checked here."""
        return Principals(self._database, self._configured, caller)

    def _record(self, tx: Tx, action: str, name: str, before: Json | None, after: Json | None) -> None:
        record_change(tx, self._caller, action, "", (), name, before, after)

    def create(self, name: str, grants: Sequence[Grant] = (), *, external: bool = False) -> Credential | None:
        """Create a principal and return its credential, or None for an external one.

        Raises:
            InvalidInputError: the name is taken or not valid, or a grant is on something that does not exist.
        """
        return self.create_many([NewPrincipal(name, grants, external)])[0].credential

    def create_many(self, new: Sequence[NewPrincipal], *, exist_ok: bool = False) -> list[CreatedPrincipal]:
        """Create principals, all or none; with `exist_ok`, one that exists is left as it is.

        Raises:
            InvalidInputError: a name is taken or not valid, or a grant or group does not exist; nothing was created.
        """
        for principal in new:
            _check_name(principal.name, "a principal")
        existing_names = self._database.read(
            lambda tx: {
                principal.name
                for principal in new
                if exist_ok and principal_rows.find_holder(tx, principal.name, "principal")
            }
        )
        credentials = {
            principal.name: Credential(new_client_id(), new_secret())
            for principal in new
            if not principal.external and principal.name not in existing_names
        }
        # Before the transaction, in which others would wait: a hash keeps a core busy for a moment. Other threads run
        # meanwhile, so several are computed at once.
        with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
            hashes = dict(
                zip(
                    credentials,
                    pool.map(hash_secret, (credential.client_secret for credential in credentials.values())),
                    strict=True,
                )
            )

        def work(tx: Tx) -> list[CreatedPrincipal]:
            return [
                self._insert(tx, principal, credentials.get(principal.name), hashes, exist_ok=exist_ok)
                for principal in new
            ]

        return self._database.write(work)

    def _insert(
        self,
        tx: Tx,
        new: NewPrincipal,
        credential: Credential | None,
        hashes: Mapping[str, str],
        *,
        exist_ok: bool,
    ) -> CreatedPrincipal:
        if exist_ok and principal_rows.find_holder(tx, new.name, "principal"):
            return CreatedPrincipal(new.name, None, is_new=False)
        if credential is None and not new.external:
            # It existed when credentials were created, and was deleted since. Without one it would become external.
            raise ConcurrentModificationError(f"the principal {new.name!r} was deleted meanwhile; try again")
        client_id = credential.client_id if credential else None
        row = principal_rows.insert_principal(tx, new.name, client_id, hashes.get(new.name), now_ms())
        if row is None:
            raise _name_taken(new.name)
        self._put_grants(tx, row, new.grants)
        for group in new.groups:
            principal_rows.insert_member(tx, _get_holder(tx, group, "group").id, row.id)
        after = {"external": new.external, "grants": list(map(grant_to_json, new.grants)), "groups": list(new.groups)}
        self._record(tx, "principal.create", new.name, None, after)
        return CreatedPrincipal(new.name, credential)

    def _put_grants(self, tx: Tx, row: PrincipalRow, grants: Sequence[Grant]) -> None:
        scopes = [grant.scope for grant in grants]
        for grant in grants:
            if grant.restriction is not None and scopes.count(grant.scope) > 1:
                where = format_scope(*grant.scope)
                raise InvalidInputError(f"{where} is granted twice, once with a row filter or masks; put both into one")
            self._check_grant(tx, grant)
            principal_rows.put_grant(tx, row.id, _grant_to_row(grant))

    def list(self, after: str = "", limit: int | None = None) -> Sequence[Principal]:
        """Return principals ordered by name, those after one; their grants are their own, not those of groups."""
        rows = self._database.read(lambda tx: principal_rows.list_holders(tx, "principal", after, limit))
        return [_principal(row, grants, groups=groups) for row, grants, groups in rows]

    def has_any(self) -> bool:
        """Return whether there is any principal."""
        return self._database.read(principal_rows.has_principals)

    def find(self, name: str) -> Principal | None:
        """Return the principal of that name, or None."""
        if not is_valid_name(name):
            return None

        def work(tx: Tx) -> Principal | None:
            row = principal_rows.find_holder(tx, name, "principal")
            return None if row is None else _load_principal(tx, row)

        return self._database.read(work)

    def describe(self, name: str) -> Principal:
        """Return the principal of that name, with the names of its groups.

        Raises:
            InvalidInputError: there is no such principal.
        """

        def work(tx: Tx) -> Principal:
            row = _get_principal(tx, name)
            return replace(_load_principal(tx, row), groups=tuple(principal_rows.list_groups_of(tx, row.id)))

        return self._database.read(work)

    def find_external(self, name: str, groups: Sequence[str]) -> tuple[Principal | None, Identity | None]:
        """Return the principal of a name that an outside issuer vouches for, and the identity of its bearer.

        The issuer says in which groups they are; who is in one that is known here need not be a principal.

        Args:
            name: of the principal; there may be none.
            groups: names of groups, of which some may be known here.

        Returns:
            the principal, or None; the identity, or None if neither the principal nor a group is known here.
        """
        valid_groups = [group for group in dict.fromkeys(groups) if is_valid_name(group)]

        def work(tx: Tx) -> tuple[Principal | None, Identity | None]:
            row = principal_rows.find_holder(tx, name, "principal") if is_valid_name(name) else None
            principal = None if row is None else _load_principal(tx, row)
            known_groups, rows = principal_rows.list_grants_of_groups(tx, valid_groups)
            own = principal.identity.grants if principal else ()
            may_enter = principal is not None or (known_groups and is_valid_name(name) and name != ANYBODY.name)
            return principal, Identity(name, (*own, *map(_grant_from_row, rows))) if may_enter else None

        return self._database.read(work)

    def rotate_secret(self, name: str) -> Credential:
        """Give a principal a new secret; the old one and all its tokens, static ones too, stop being valid.

        A secret is rotated because it may have leaked, so nothing that was issued before stays valid.

        Raises:
            InvalidInputError: there is no such principal, or it is external.
        """
        secret = new_secret()
        secret_hash = hash_secret(secret)

        def work(tx: Tx) -> str:
            row = _get_principal(tx, name)
            if row.client_id is None:
                raise InvalidInputError(f"{name} is external: its issuer keeps its secret, there is none here")
            principal_rows.update_secret(tx, row.id, row.client_id, secret_hash)
            principal_rows.delete_tokens(tx, row.id)
            self._record(tx, "principal.rotate", name, None, None)
            return row.client_id

        return Credential(self._database.write(work), secret)

    def delete(self, name: str) -> None:
        """Delete a principal with its grants and tokens.

        Raises:
            InvalidInputError: there is no such principal.
        """
        self._delete(name, "principal")

    def _delete(self, name: str, kind: Kind) -> None:
        def work(tx: Tx) -> None:
            row = _get_holder(tx, name, kind)
            grants = map(_grant_from_row, principal_rows.list_grants(tx, row.id))
            before: Json = {"grants": list(map(grant_to_json, grants))}
            if kind == "group":
                before["members"] = principal_rows.list_members(tx, row.id)
            principal_rows.delete_principal(tx, row.id)
            self._record(tx, f"{kind}.delete", name, before, None)

        self._database.write(work)

    def grant(self, name: str, grant: Grant) -> None:
        """Grant a role to a principal or group, replacing the one that was granted on the same scope before.

        Raises:
            InvalidInputError: there is no such principal, or the grant is on something that does not exist.
        """

        def work(tx: Tx) -> None:
            row = _get_holder(tx, name)
            self._check_grant(tx, grant)
            existing = map(_grant_from_row, principal_rows.list_grants(tx, row.id))
            old_grants = [old_grant for old_grant in existing if old_grant.scope == grant.scope]
            if old_grants == [grant]:
                return
            for old_grant in old_grants:
                principal_rows.delete_grant(tx, row.id, _grant_to_row(old_grant))
            principal_rows.put_grant(tx, row.id, _grant_to_row(grant))
            before: Json | None = {"grants": list(map(grant_to_json, old_grants))} if old_grants else None
            self._record(tx, "grant.create", name, before, grant_to_json(grant))

        self._database.write(work)

    def revoke(
        self,
        name: str,
        warehouse: str | None,
        levels: tuple[str, ...] = (),
        role: Role | None = None,
        *,
        table: str | None = None,
    ) -> Grant:
        """Revoke the role that was granted to a principal or group on exactly this scope, and return the grant.

        Raises:
            InvalidInputError: there is no such principal, or no such grant; the message lists its grants.
        """

        def work(tx: Tx) -> Grant:
            row = _get_holder(tx, name)
            grants = list(map(_grant_from_row, principal_rows.list_grants(tx, row.id)))
            scope = warehouse, levels, table
            revoked_grants = [grant for grant in grants if grant.scope == scope and role in (None, grant.role)]
            if not revoked_grants:
                granted = ", ".join(map(str, grants)) or "nothing"
                role_name = role.name.lower() if role else "anything"
                raise PrincipalNotFoundError(
                    f"{name} was not made {role_name} of {format_scope(*scope)}; it is {granted}"
                )
            for grant in revoked_grants:
                principal_rows.delete_grant(tx, row.id, _grant_to_row(grant))
                self._record(tx, "grant.delete", name, grant_to_json(grant), None)
            return max(revoked_grants, key=lambda grant: grant.role)

        return self._database.write(work)

    def create_group(self, name: str, grants: Sequence[Grant] = ()) -> None:
        """Create a group; names of groups and principals are of one set.

        Raises:
            InvalidInputError: the name is taken or not valid, or a grant is on something that does not exist.
        """
        _check_name(name, "a group")

        def work(tx: Tx) -> None:
            row = principal_rows.insert_principal(tx, name, None, None, now_ms(), "group")
            if row is None:
                raise _name_taken(name)
            self._put_grants(tx, row, grants)
            self._record(tx, "group.create", name, None, {"grants": list(map(grant_to_json, grants))})

        self._database.write(work)

    def delete_group(self, name: str) -> None:
        """Delete a group with its grants; its members stay, without them.

        Raises:
            InvalidInputError: there is no such group.
        """
        self._delete(name, "group")

    def list_groups(self, after: str = "", limit: int | None = None) -> Sequence[Group]:
        """Return groups ordered by name, those after one, without their members."""
        rows = self._database.read(lambda tx: principal_rows.list_holders(tx, "group", after, limit))
        return [Group(row.name, row.created_ms, tuple(map(_grant_from_row, grants))) for row, grants, _ in rows]

    def describe_group(self, name: str) -> Group:
        """Return a group with its members.

        Raises:
            InvalidInputError: there is no such group.
        """

        def work(tx: Tx) -> Group:
            row = _get_holder(tx, name, "group")
            grants = tuple(map(_grant_from_row, principal_rows.list_grants(tx, row.id)))
            return Group(row.name, row.created_ms, grants, tuple(principal_rows.list_members(tx, row.id)))

        return self._database.read(work)

    def change_members(self, group: str, *, add: Sequence[str] = (), remove: Sequence[str] = ()) -> None:
        """Make principals members of a group, those that are stay so, then take others out of it; all or none.

        Raises:
            InvalidInputError: there is no such group or principal, one to add is a group itself, or one to take out is
                not in the group; nothing was changed.
        """

        def work(tx: Tx) -> None:
            row = _get_holder(tx, group, "group")
            for name in add:
                if is_valid_name(name) and principal_rows.find_holder(tx, name, "group"):
                    raise InvalidInputError(f"{name!r} is a group: members are principals, groups are not nested")
                principal_rows.insert_member(tx, row.id, _get_principal(tx, name).id)
            for name in remove:
                if not principal_rows.delete_member(tx, row.id, _get_principal(tx, name).id):
                    raise PrincipalNotFoundError(f"{name} is not in group {group}")
            if add:
                self._record(tx, "group.add", group, None, {"members": list(add)})
            if remove:
                self._record(tx, "group.remove", group, {"members": list(remove)}, None)

        self._database.write(work)

    def who_can(self, warehouse: str, levels: tuple[str, ...], table: str | None = None) -> Sequence[Access]:
        """Return who has which role on a table or namespace, by which grant, and through which group.

        Raises:
            InvalidInputError: there is no such warehouse, namespace or table.
        """

        def work(tx: Tx) -> list[Access]:
            self._check_grant(tx, Grant(Role.READER, warehouse, levels, table))
            accesses = []
            for scope in enclosing_scopes(warehouse, levels, table):
                for name, kind, holder_id, row in principal_rows.list_holders_of_grants(tx, *scope):
                    grant = _grant_from_row(row)
                    if kind == "principal":
                        accesses.append(Access(name, grant))
                    else:
                        members: Sequence[str | None] = principal_rows.list_members(tx, holder_id) or [None]
                        accesses += [Access(member, grant, name) for member in members]
            return accesses

        return sorted(self._database.read(work), key=lambda access: (access.principal or "", -access.grant.role))

    def create_token(self, name: str, label: str, expires_ms: int | None = None) -> str:
        """Create a static bearer token, shown once; it ends when it expires, is deleted, or the secret is rotated.

        Raises:
            InvalidInputError: there is no such principal, the label is taken or not valid, or the time is past.
        """
        if not is_valid_name(label):
            raise InvalidInputError(f"a label has 1 to {LONGEST} printable characters, got {label!r}")
        if expires_ms is not None and not now_ms() < expires_ms < LATEST_MS:
            raise InvalidInputError("a token must expire in the future, and within a thousand years")
        token = new_token()

        def work(tx: Tx) -> None:
            row = _get_principal(tx, name)
            if not principal_rows.insert_token(tx, row.id, label, digest(token), now_ms(), expires_ms):
                raise PrincipalExistsError(
                    f"{name} has a token labelled {label!r} already; delete it or choose another"
                )
            self._record(tx, "token.create", name, None, {"label": label, "expires-ms": expires_ms})

        self._database.write(work)
        return token

    def list_tokens(self, name: str) -> Sequence[IssuedToken]:
        """Return what is known of a principal's static tokens, expired ones too.

        Raises:
            InvalidInputError: there is no such principal.
        """
        rows = self._database.read(lambda tx: principal_rows.list_tokens(tx, _get_principal(tx, name).id))
        return [IssuedToken(*row) for row in rows]

    def delete_token(self, name: str, label: str) -> None:
        """Delete a static token, which is then no longer valid.

        Raises:
            InvalidInputError: there is no such principal, or no such token.
        """

        def work(tx: Tx) -> None:
            if not principal_rows.delete_token(tx, _get_principal(tx, name).id, label):
                raise PrincipalNotFoundError(f"{name} has no token labelled {label!r}")
            self._record(tx, "token.delete", name, {"label": label}, None)

        self._database.write(work)

    def authenticate_secret(self, client_id: str, secret: str) -> Principal:
        """Return the principal with this client id and secret.

        Raises:
            UnauthenticatedError: id or secret is wrong; neither the message nor the time it takes tells which.
        """
        client = self._find_client(client_id)
        # First compute the hash, also for an unknown client id, so that the time it takes reveals nothing.
        if not is_secret_valid(secret, client[1] if client else None) or client is None or client[1] is None:
            raise UnauthenticatedError("the client id or the client secret is wrong")
        self._verified_hashes.put(digest(f"{client_id}:{secret}"), client[1])
        return client[0]

    def recognize_secret(self, client_id: str, secret: str) -> Principal | None:
        """Return the principal if `authenticate_secret` has verified these credentials before, else None.

        It needs no scrypt, so a client that is known here is never delayed by others who try wrong secrets.
        """
        secret_hash = self._verified_hashes.get(digest(f"{client_id}:{secret}"))
        client = self._find_client(client_id) if secret_hash else None
        return client[0] if client and client[1] == secret_hash else None

    def authenticate_token(self, token: str) -> tuple[Principal, float]:
        """Return the principal that owns this static token, and when the token expires, in seconds since 1970.

        Raises:
            UnauthenticatedError: the token is unknown or was deleted, or has expired.
        """

        def work(tx: Tx) -> tuple[Principal, int | None] | None:
            owner = principal_rows.find_token_owner(tx, digest(token))
            return None if owner is None else (_load_principal(tx, owner[0]), owner[1])

        owner_and_expiry = self._database.read(work)
        if owner_and_expiry is None:
            raise UnauthenticatedError("the bearer token is not known, or it was deleted")
        principal, expires_ms = owner_and_expiry
        if expires_ms is None:
            return principal, inf
        if expires_ms <= now_ms():
            day = datetime.fromtimestamp(expires_ms / 1000, UTC).isoformat(timespec="seconds")
            raise UnauthenticatedError(f"the bearer token has expired at {day}; an administrator creates a new one")
        return principal, expires_ms / 1000

    def _find_client(self, client_id: str) -> tuple[Principal, str | None] | None:
        """Return the principal of a client id with the hash of its secret, or None."""

        def work(tx: Tx) -> tuple[Principal, str | None] | None:
            row = principal_rows.find_client(tx, client_id)
            return None if row is None else (_load_principal(tx, row), row.secret_hash)

        return self._database.read(work) if is_valid_name(client_id) else None

    def _check_grant(self, tx: Tx, grant: Grant) -> None:
        """Refuse a grant on something that does not exist.

        A typo would otherwise take effect as soon as somebody creates a namespace of that name.
        """
        if grant.restriction is not None and (grant.role is not Role.READER or not grant.table):
            raise InvalidInputError(
                "a row filter (where) and masks are for the role reader of one table (--table): grant them for each"
            )
        if grant.warehouse is None and grant.scope != EVERYWHERE:
            raise InvalidInputError("a grant on a namespace or table names its warehouse too")
        if "" in (grant.warehouse, *grant.levels, grant.table):
            raise InvalidInputError("a grant must not name an empty warehouse, level or table")
        if grant.warehouse is None:
            return
        warehouses = {row.name: row for row in repository.list_warehouses(tx)}
        warehouse = warehouses.get(grant.warehouse)
        if grant.restriction is not None and warehouse is None and grant.warehouse in self._configured:
            raise InvalidInputError(
                f"{grant.warehouse}: row filters and masks are for tables of warehouses, which this server has served"
                " before, not for those of other catalogs"
            )
        if warehouse is None:
            # The server does not know the namespaces of a backend, so any of them may be granted.
            if grant.warehouse not in self._configured:
                raise _warehouse_not_found(grant.warehouse, {*warehouses, *self._configured})
        elif grant.levels and repository.find_namespace(tx, warehouse.id, grant.levels) is None:
            raise _namespace_not_found(tx, warehouse, grant.levels)
        elif grant.table is not None and (
            not grant.levels or repository.find_entry(tx, warehouse.id, grant.levels, grant.table) is None
        ):
            raise InvalidInputError(
                f"there is no {format_scope(*grant.scope)}. Create it first, or grant the role on its namespace"
            )
        elif grant.restriction is not None:
            entry = repository.find_entry(tx, warehouse.id, grant.levels, str(grant.table))
            _check_restriction(grant.restriction, entry, format_scope(*grant.scope))

    def get_mask_key(self) -> bytes:
        """Return the key of the hashes that mask values: the same on all servers on the database."""
        return hmac.digest(self.get_signing_key().encode(), b"lancehouse column masks", "sha256")

    def get_signing_key(self) -> str:
        """Return the key that signs tokens. All servers on the database share it; the first to need it creates it."""
        key = self._database.read(principal_rows.find_signing_key)
        if key is None:
            self._database.write(lambda tx: principal_rows.insert_signing_key(tx, new_secret()))
            # Read again instead of using the own key: another server may have inserted one first, and theirs counts.
            key = self._database.read(principal_rows.find_signing_key)
        assert key is not None
        return key


def grant_to_json(grant: Grant) -> Json:
    """Return a grant as JSON."""
    role, warehouse, levels = grant.role.name.lower(), grant.warehouse, list(grant.levels)
    described = {"role": role, "warehouse": warehouse, "namespace": levels, "table": grant.table}
    return described if grant.restriction is None else {**described, **grant.restriction.describe()}


def _check_restriction(restriction: Restriction, entry: EntryRow | None, where: str) -> None:
    """Refuse a filter or mask that does not fit a table's columns, as far as the catalog knows them."""
    if entry is None or entry.kind != "lance":
        raise InvalidInputError(f"{where} is no Lance table: its files are read whole, without row filters and masks")
    types = {column["name"]: column["type"] for column in (entry.schema or {}).get("fields", ())}
    if not types or entry.version is None:
        return  # the catalog does not know the current columns: what does not fit them is refused when it is read
    used_columns = {*restriction.filter_columns, *(column for column, _ in restriction.masks)}
    if missing := sorted(used_columns - types.keys()):
        raise InvalidInputError(f"{where} has no column {', '.join(missing)}; it has {_format_names(types)}")
    for column, mask in restriction.masks:
        accepted_types = ("string",) if mask not in (HASH, NULL) else ("string", "long") if mask == HASH else None
        if accepted_types is not None and types[column] not in accepted_types:
            raise InvalidInputError(
                f"{where}: column {column} has the type {types[column]}: {mask.partition(':')[0]} masks"
                f" {' and '.join(accepted_types)}; null masks any"
            )


def is_valid_name(text: str) -> bool:
    """Return whether a text may be a principal's name; outside issuers have names such as `auth0|5f7c`."""
    return 0 < len(text) <= LONGEST and text.isprintable() and text == text.strip() and not text.startswith("-")


def _warehouse_not_found(name: str, names: Collection[str]) -> InvalidInputError:
    what = f"there is no warehouse or backend {name!r}"
    if not names:
        return InvalidInputError(
            f"{what}: no server has run on this database yet. Start one first, or name its file with --config"
        )
    return InvalidInputError(
        f"{what}; there is {_format_names(names)}. Backends, and warehouses that were never served, are known from the"
        " server's file: name it with --config"
    )


def _namespace_not_found(tx: Tx, warehouse: WarehouseRow, levels: tuple[str, ...]) -> InvalidInputError:
    """Build the error, which lists what does exist below the last level that exists."""
    depth = next(
        depth
        for depth in range(len(levels) - 1, -1, -1)
        if not depth or repository.find_namespace(tx, warehouse.id, levels[:depth])
    )
    existing = repository.list_namespaces(tx, warehouse.id, levels[:depth], limit=MOST_LISTED + 1)
    return InvalidInputError(
        f"there is no {format_scope(warehouse.name, levels)}; "
        f"in {format_scope(warehouse.name, levels[:depth])} there is "
        f"{_format_names(existing)}. Create it first, or grant the role on what holds it"
    )


def _format_names(names: Collection[str]) -> str:
    first_names = sorted(names)[:MOST_LISTED]
    return ", ".join(first_names) + (", …" if len(names) > len(first_names) else "") if first_names else "nothing"


def _check_name(name: str, what: str) -> None:
    if not is_valid_name(name) or name == ANYBODY.name:
        raise InvalidInputError(
            f"{name!r} cannot be {what}'s name: 1 to {LONGEST} printable characters that do not begin with a "
            f"dash or a space nor end with a space, and not {ANYBODY.name!r}"
        )


def _name_taken(name: str) -> PrincipalExistsError:
    return PrincipalExistsError(f"there is a principal or group called {name!r} already")


def _get_principal(tx: Tx, name: str) -> PrincipalRow:
    return _get_holder(tx, name, "principal")


def _get_holder(tx: Tx, name: str, *kinds: Kind) -> PrincipalRow:
    """Return the principal or group of a name; of the given kinds, if any are given."""
    accepted_kinds: tuple[Kind, ...] = kinds or ("principal", "group")
    rows = (principal_rows.find_holder(tx, name, kind) for kind in accepted_kinds if is_valid_name(name))
    row = next(filter(None, rows), None)
    if row is None:
        raise PrincipalNotFoundError(f"there is no {' or '.join(accepted_kinds)} called {name!r}")
    return row


def _load_principal(tx: Tx, row: PrincipalRow) -> Principal:
    through_groups = principal_rows.list_grants_through_groups(tx, row.id)
    return _principal(row, principal_rows.list_grants(tx, row.id), through_groups)


def _principal(
    row: PrincipalRow, grants: Sequence[GrantRow], through_groups: Sequence[GrantRow] = (), groups: Sequence[str] = ()
) -> Principal:
    generation = digest(f"{row.id}:{row.secret_hash}")[:16]
    own_grants, group_grants = (tuple(map(_grant_from_row, rows)) for rows in (grants, through_groups))
    return Principal(row.name, row.client_id, row.created_ms, own_grants, generation, group_grants, tuple(groups))


def _grant_to_row(grant: Grant) -> GrantRow:
    if grant.restriction is None:
        return GrantRow(grant.role.name.lower(), *grant.scope)
    return GrantRow(RESTRICTED, *grant.scope, grant.restriction.to_json())


def _grant_from_row(row: GrantRow) -> Grant:
    if row.restriction is None:
        return Grant(Role[row.role.upper()], row.warehouse, row.levels, row.table)
    return Grant(Role.READER, row.warehouse, row.levels, row.table, Restriction.from_json(row.restriction))
