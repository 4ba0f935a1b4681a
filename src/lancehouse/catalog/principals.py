"""Principals: who may call, what they were granted, and the secrets and tokens that prove it is them."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from lance_namespace.errors import InvalidInputError, UnauthenticatedError

from lancehouse.catalog import hashes
from lancehouse.catalog.callers import ANYBODY, Grant, Identity, Role, format_scope
from lancehouse.catalog.transactions import now_ms
from lancehouse.store import repository
from lancehouse.store.database import Database, Tx
from lancehouse.store.rows import GrantRow, PrincipalRow, WarehouseRow

LONGEST = 255
MOST_PROVED = 1000
"""Credentials that are remembered as right, by their digest, with the hash that they fit."""
MOST_LISTED = 10
"""Names that a message lists."""


@dataclass(frozen=True, slots=True)
class Principal:
    """Somebody, or some program, that may call."""

    name: str
    client_id: str | None
    created_ms: int
    grants: tuple[Grant, ...]
    generation: str = field(repr=False)
    """Another one after each new secret: what was issued for an older secret is worth nothing any more."""

    @property
    def is_external(self) -> bool:
        """Whether an outside issuer says who it is; there is no secret then."""
        return self.client_id is None

    @property
    def identity(self) -> Identity:
        """What services ask for permissions."""
        return Identity(self.name, self.grants)


@dataclass(frozen=True, slots=True)
class Credential:
    """What a program authenticates with. The secret is shown once, and kept as a hash."""

    client_id: str
    client_secret: str = field(repr=False)


class Principals:
    """The principals of one database. Every change holds for all servers on it within seconds."""

    def __init__(self, database: Database, configured: Collection[str] = ()) -> None:
        """Manage principals.

        Args:
            database: where they are kept.
            configured: warehouses and backends that the server's file names; roles can be granted on them too, although
                the database does not know backends, and knows a warehouse only once it was served.
        """
        self._database = database
        self._configured = configured
        self._verified_hashes: dict[str, str] = {}

    def create(self, name: str, grants: Sequence[Grant] = (), *, external: bool = False) -> Credential | None:
        """Add a principal; its credential, or None for an external one.

        Raises:
            InvalidInputError: the name is taken or is no name, or a grant is on something that is not there.
        """
        if not is_valid_name(name) or name == ANYBODY.name:
            raise InvalidInputError(
                f"{name!r} cannot be a principal's name: 1 to {LONGEST} printable characters that do not begin with a "
                f"dash or a space nor end with a space, and not {ANYBODY.name!r}"
            )
        credential = None if external else Credential(hashes.new_client_id(), hashes.new_secret())
        client_id = credential.client_id if credential else None
        secret_hash = hashes.hash_secret(credential.client_secret) if credential else None

        def work(tx: Tx) -> None:
            row = repository.insert_principal(tx, name, client_id, secret_hash, now_ms())
            if row is None:
                raise InvalidInputError(f"there is a principal called {name!r} already")
            for grant in grants:
                self._check_grant(tx, grant)
                repository.put_grant(tx, row.id, _grant_to_row(grant))

        self._database.write(work)
        return credential

    def list(self) -> Sequence[Principal]:
        """All of them, by name."""

        def work(tx: Tx) -> list[Principal]:
            return [_load_principal(tx, row) for row in repository.list_principals(tx)]

        return sorted(self._database.read(work), key=lambda principal: principal.name)

    def has_any(self) -> bool:
        """Whether there is one at all."""
        return bool(self._database.read(repository.list_principals))

    def find(self, name: str) -> Principal | None:
        """The principal of that name."""
        if not is_valid_name(name):
            return None

        def work(tx: Tx) -> Principal | None:
            row = repository.find_principal(tx, name=name)
            return None if row is None else _load_principal(tx, row)

        return self._database.read(work)

    def rotate_secret(self, name: str) -> Credential:
        """Give a principal a new secret. The old one and all tokens end, those issued for it and static ones alike.

        A secret is rotated because somebody may know it: nothing that was handed out before holds any longer.

        Raises:
            InvalidInputError: there is no such principal, or it is external.
        """
        secret = hashes.new_secret()
        secret_hash = hashes.hash_secret(secret)

        def work(tx: Tx) -> str:
            row = _get_principal(tx, name)
            if row.client_id is None:
                raise InvalidInputError(f"{name} is external: its issuer keeps its secret, there is none here")
            repository.update_secret(tx, row.id, row.client_id, secret_hash)
            repository.delete_tokens(tx, row.id)
            return row.client_id

        return Credential(self._database.write(work), secret)

    def delete(self, name: str) -> None:
        """Remove a principal with its grants and tokens.

        Raises:
            InvalidInputError: there is no such principal.
        """
        self._database.write(lambda tx: repository.delete_principal(tx, _get_principal(tx, name).id))

    def grant(self, name: str, grant: Grant) -> None:
        """Give a role somewhere, instead of the one that was given there before.

        Raises:
            InvalidInputError: there is no such principal, or the grant is on something that is not there.
        """

        def work(tx: Tx) -> None:
            row = _get_principal(tx, name)
            self._check_grant(tx, grant)
            for existing in repository.list_grants(tx, row.id):
                if (existing.warehouse, existing.levels) == (grant.warehouse, grant.levels):
                    repository.delete_grant(tx, row.id, existing)
            repository.put_grant(tx, row.id, _grant_to_row(grant))

        self._database.write(work)

    def revoke(self, name: str, warehouse: str | None, levels: tuple[str, ...] = (), role: Role | None = None) -> Grant:
        """Take away the role that was given exactly there, and say which it was.

        Raises:
            InvalidInputError: there is no such principal, or no such grant; those it has are named.
        """

        def work(tx: Tx) -> Grant:
            row = _get_principal(tx, name)
            grants = list(map(_grant_from_row, repository.list_grants(tx, row.id)))
            revoked = [
                grant
                for grant in grants
                if (grant.warehouse, grant.levels) == (warehouse, levels) and role in (None, grant.role)
            ]
            if not revoked:
                granted = ", ".join(map(str, grants)) or "nothing"
                what = role.name.lower() if role else "anything"
                raise InvalidInputError(
                    f"{name} was not made {what} of {format_scope(warehouse, levels)}; it is {granted}"
                )
            for grant in revoked:
                repository.delete_grant(tx, row.id, _grant_to_row(grant))
            return max(revoked, key=lambda grant: grant.role)

        return self._database.write(work)

    def create_token(self, name: str, label: str) -> str:
        """A static bearer token for a principal; it is shown once, and holds until it is deleted.

        Raises:
            InvalidInputError: there is no such principal, or the label is taken or no label.
        """
        if not is_valid_name(label):
            raise InvalidInputError(f"a label has 1 to {LONGEST} printable characters, got {label!r}")
        token = hashes.new_token()

        def work(tx: Tx) -> None:
            row = _get_principal(tx, name)
            if not repository.insert_token(tx, row.id, label, hashes.digest(token), now_ms()):
                raise InvalidInputError(f"{name} has a token labelled {label!r} already; delete it or choose another")

        self._database.write(work)
        return token

    def list_tokens(self, name: str) -> Sequence[tuple[str, int]]:
        """Labels of a principal's static tokens, and when each was made.

        Raises:
            InvalidInputError: there is no such principal.
        """
        return self._database.read(lambda tx: repository.list_tokens(tx, _get_principal(tx, name).id))

    def delete_token(self, name: str, label: str) -> None:
        """End a static token.

        Raises:
            InvalidInputError: there is no such principal, or no such token.
        """

        def work(tx: Tx) -> None:
            if not repository.delete_token(tx, _get_principal(tx, name).id, label):
                raise InvalidInputError(f"{name} has no token labelled {label!r}")

        self._database.write(work)

    def authenticate_secret(self, client_id: str, secret: str) -> Principal:
        """The principal whose credential this is.

        Raises:
            UnauthenticatedError: wrong id or wrong secret; it does not tell which, nor does the time it takes.
        """
        client = self._find_client(client_id)
        if not hashes.is_secret_valid(secret, client[1] if client else None) or client is None or client[1] is None:
            raise UnauthenticatedError("the client id or the client secret is wrong")
        while len(self._verified_hashes) >= MOST_PROVED:
            self._verified_hashes.pop(next(iter(self._verified_hashes)), None)
        self._verified_hashes[hashes.digest(f"{client_id}:{secret}")] = client[1]
        return client[0]

    def recognize_secret(self, client_id: str, secret: str) -> Principal | None:
        """The principal whose credential this is, if `authenticate_secret` has found that out before.

        It takes no scrypt: who has proved a secret once is never kept waiting by those who try wrong ones.
        """
        secret_hash = self._verified_hashes.get(hashes.digest(f"{client_id}:{secret}"))
        client = self._find_client(client_id) if secret_hash else None
        return client[0] if client and client[1] == secret_hash else None

    def authenticate_token(self, token: str) -> Principal:
        """The principal whose static token this is.

        Raises:
            UnauthenticatedError: nobody's, or not any more.
        """

        def work(tx: Tx) -> Principal | None:
            row = repository.find_token_owner(tx, hashes.digest(token))
            return None if row is None else _load_principal(tx, row)

        principal = self._database.read(work)
        if principal is None:
            raise UnauthenticatedError("the bearer token is not known, or it was deleted")
        return principal

    def _find_client(self, client_id: str) -> tuple[Principal, str | None] | None:
        """The principal of a client id, and the hash of its secret."""

        def work(tx: Tx) -> tuple[Principal, str | None] | None:
            row = repository.find_principal(tx, client_id=client_id)
            return None if row is None else (_load_principal(tx, row), row.secret_hash)

        return self._database.read(work) if is_valid_name(client_id) else None

    def _check_grant(self, tx: Tx, grant: Grant) -> None:
        """Refuse a grant on something that is not there: a slip of the pen would hold as soon as somebody makes it."""
        if grant.levels and grant.warehouse is None:
            raise InvalidInputError("a grant on a namespace names its warehouse too")
        if grant.warehouse == "" or "" in grant.levels:
            raise InvalidInputError("a grant must not name an empty warehouse or level")
        if grant.warehouse is None:
            return
        warehouses = {row.name: row for row in repository.list_warehouses(tx)}
        warehouse = warehouses.get(grant.warehouse)
        if warehouse is None:
            # What a backend holds is for its catalog to know: any namespace of it may be granted.
            if grant.warehouse not in self._configured:
                raise _warehouse_not_found(grant.warehouse, {*warehouses, *self._configured})
        elif grant.levels and repository.find_namespace(tx, warehouse.id, grant.levels) is None:
            raise _namespace_not_found(tx, warehouse, grant.levels)

    def get_signing_key(self) -> str:
        """The key that signs tokens: one for all servers on this database, made by whoever needs it first."""
        key = self._database.read(repository.find_signing_key)
        if key is None:
            self._database.write(lambda tx: repository.insert_signing_key(tx, hashes.new_secret()))
            key = self._database.read(repository.find_signing_key)
        assert key is not None
        return key


def is_valid_name(text: str) -> bool:
    """Whether it could be the name of a principal: outside issuers have names such as `auth0|5f7c`."""
    return 0 < len(text) <= LONGEST and text.isprintable() and text == text.strip() and not text.startswith("-")


def _warehouse_not_found(name: str, known: Collection[str]) -> InvalidInputError:
    what = f"there is no warehouse or backend {name!r}"
    if not known:
        return InvalidInputError(
            f"{what}: no server has run on this database yet. Start one first, or name its file with --config"
        )
    return InvalidInputError(
        f"{what}; there is {_format_names(known)}. Backends, and warehouses that were never served, are known from the"
        " server's file: name it with --config"
    )


def _namespace_not_found(tx: Tx, warehouse: WarehouseRow, levels: tuple[str, ...]) -> InvalidInputError:
    """Names what is there instead: the names below the last level that exists."""
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


def _get_principal(tx: Tx, name: str) -> PrincipalRow:
    row = repository.find_principal(tx, name=name) if is_valid_name(name) else None
    if row is None:
        raise InvalidInputError(f"there is no principal called {name!r}")
    return row


def _load_principal(tx: Tx, row: PrincipalRow) -> Principal:
    grants = tuple(_grant_from_row(grant) for grant in repository.list_grants(tx, row.id))
    generation = hashes.digest(f"{row.id}:{row.secret_hash}")[:16]
    return Principal(row.name, row.client_id, row.created_ms, grants, generation)


def _grant_to_row(grant: Grant) -> GrantRow:
    return GrantRow(grant.role.name.lower(), grant.warehouse, grant.levels)


def _grant_from_row(row: GrantRow) -> Grant:
    return Grant(Role[row.role.upper()], row.warehouse, row.levels)
