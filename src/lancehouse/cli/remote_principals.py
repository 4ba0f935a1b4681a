"""The principals of a running server, changed through its REST API instead of its database."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any
from urllib.parse import quote, urlencode

from lance_namespace.errors import UnsupportedOperationError
from pydantic import BaseModel, ConfigDict

from lancehouse.catalog.callers import Grant, Role
from lancehouse.catalog.principals import (
    Access,
    CreatedPrincipal,
    Credential,
    Group,
    IssuedToken,
    NewPrincipal,
    Principal,
    grant_to_json,
)
from lancehouse.clients.rest import Rest, parse_reply
from lancehouse.row_policy import Restriction
from lancehouse.settings import ClientSettings
from lancehouse.wire.model import Paged

PAGE = 1000
AT_ONCE = 100
"""Principals in one request."""
SEPARATOR = "\x1f"


class Message(BaseModel):
    """Any JSON object, as the server sends or takes it."""

    model_config = ConfigDict(extra="allow")

    @property
    def fields(self) -> dict[str, Any]:
        """Its fields."""
        return self.model_extra or {}


class Page(Paged):
    """A page of a list."""

    model_config = ConfigDict(extra="allow", alias_generator=lambda name: name.replace("_", "-"))


class RemotePrincipals:
    """Does what `lancehouse.catalog.principals.Principals` does, on a server; the methods have the same meaning."""

    def __init__(self, settings: ClientSettings) -> None:
        root = settings.endpoint.removesuffix("/").removesuffix("/v1").removesuffix("/iceberg")
        token_uri = settings.oauth2_server_uri or f"{root}/iceberg/v1/oauth/tokens"
        self._rest = Rest(settings, base=f"{root}/lancehouse/v1/", token_uri=token_uri)

    def close(self) -> None:
        """Close the connection."""
        self._rest.close()

    def _post(self, path: str, body: dict[str, Any], about: str) -> dict[str, Any]:
        # A change whose response is lost is not sent again: a secret in it would be lost.
        reply = self._rest.post(path, Message(**body), about=about, is_done=lambda: False)
        assert reply is not None
        return parse_reply(reply, Message, about).fields

    def _list(self, kind: str) -> Iterator[dict[str, Any]]:
        for page in self._rest.list_pages(kind, Page, about=kind, query=f"pageSize={PAGE}"):
            yield from (page.model_extra or {})[kind]

    def create_many(self, new: Sequence[NewPrincipal], *, exist_ok: bool = False) -> list[CreatedPrincipal]:
        """Create principals, some of them at a time."""
        created: list[CreatedPrincipal] = []
        for first in range(0, len(new), AT_ONCE):
            part = new[first : first + AT_ONCE]
            body = {"principals": [_new_to_json(principal) for principal in part], "exist-ok": exist_ok}
            answer = self._post("principals", body, "principals")
            created += [
                CreatedPrincipal(entry["name"], _credential(entry), entry["created"]) for entry in answer["principals"]
            ]
        return created

    def create(self, name: str, grants: Sequence[Grant] = (), *, external: bool = False) -> Credential | None:
        """Create a principal and return its credential, or None for an external one."""
        return self.create_many([NewPrincipal(name, grants, external)])[0].credential

    def list(self) -> Sequence[Principal]:
        """Return principals ordered by name."""
        return [
            Principal(
                entry["name"],
                entry.get("client-id") or (None if entry["external"] else ""),
                entry["created-ms"],
                _grants(entry),
                "",
                groups=tuple(entry.get("groups", ())),
            )
            for entry in self._list("principals")
        ]

    def rotate_secret(self, name: str) -> Credential:
        """Give a principal a new secret."""
        credential = _credential(self._post(f"{_path('principals', name)}/rotate", {}, name))
        assert credential is not None
        return credential

    def delete(self, name: str) -> None:
        """Delete a principal."""
        self._rest.delete(_path("principals", name), about=name)

    def grant(self, name: str, grant: Grant) -> None:
        """Grant a role to a principal or group.

        Raises:
            UnsupportedOperationError: the server knows no row filters and masks; nothing is granted.
        """
        granted = _grant(self._post(f"{_path('principals', name)}/grants", grant_to_json(grant), name))
        if (granted.restriction is None) != (grant.restriction is None):
            # A server of an earlier release ignores what it does not know, and has granted the whole table.
            self.revoke(name, *grant.scope[:2], grant.role, table=grant.table)
            raise UnsupportedOperationError(
                "this server knows no row filters and masks: upgrade it; nothing is granted"
            )

    def revoke(
        self,
        name: str,
        warehouse: str | None,
        levels: tuple[str, ...] = (),
        role: Role | None = None,
        *,
        table: str | None = None,
    ) -> Grant:
        """Revoke the role on exactly this scope, and return the grant."""
        body = grant_to_json(Grant(role or Role.READER, warehouse, levels, table))
        body["role"] = role.name.lower() if role else None
        return _grant(self._post(f"{_path('principals', name)}/revoke", body, name))

    def create_token(self, name: str, label: str, expires_ms: int | None = None) -> str:
        """Create a static bearer token."""
        body = {"label": label, "expires-ms": expires_ms}
        return str(self._post(f"{_path('principals', name)}/tokens", body, name)["token"])

    def list_tokens(self, name: str) -> Sequence[IssuedToken]:
        """Return what is known of a principal's static tokens."""
        tokens = self._rest.get(f"{_path('principals', name)}/tokens", Message, about=name).fields["tokens"]
        return [IssuedToken(token["label"], token["created-ms"], token["expires-ms"]) for token in tokens]

    def delete_token(self, name: str, label: str) -> None:
        """Delete a static token."""
        self._rest.delete(f"{_path('principals', name)}/{_path('tokens', label)}", about=name)

    def create_group(self, name: str, grants: Sequence[Grant] = ()) -> None:
        """Create a group."""
        self._post("groups", {"name": name, "grants": list(map(grant_to_json, grants))}, name)

    def delete_group(self, name: str) -> None:
        """Delete a group."""
        self._rest.delete(_path("groups", name), about=name)

    def list_groups(self) -> Sequence[Group]:
        """Return groups ordered by name."""
        return [_group(group) for group in self._list("groups")]

    def describe_group(self, name: str) -> Group:
        """Return a group with its members."""
        return _group(self._rest.get(_path("groups", name), Message, about=name).fields)

    def change_members(self, group: str, *, add: Sequence[str] = (), remove: Sequence[str] = ()) -> None:
        """Make principals members of a group, and remove others."""
        self._post(f"{_path('groups', group)}/members", {"add": list(add), "remove": list(remove)}, group)

    def who_can(self, warehouse: str, levels: tuple[str, ...], table: str | None = None) -> Sequence[Access]:
        """Return who has which role on a table or namespace."""
        place = {"warehouse": warehouse, "namespace": SEPARATOR.join(levels), "table": table}
        query = urlencode({key: value for key, value in place.items() if value})
        entries = self._rest.get("who-can", Message, about=warehouse, query=query).fields["access"]
        return [Access(entry["principal"], _grant(entry["grant"]), entry["group"]) for entry in entries]


def _path(kind: str, name: str) -> str:
    return f"{kind}/{quote(name, safe='')}"


def _new_to_json(new: NewPrincipal) -> dict[str, Any]:
    grants = list(map(grant_to_json, new.grants))
    return {"name": new.name, "external": new.external, "grants": grants, "groups": list(new.groups)}


def _credential(answer: dict[str, Any]) -> Credential | None:
    return Credential(answer["client-id"], answer["client-secret"]) if "client-secret" in answer else None


def _grant(answer: dict[str, Any]) -> Grant:
    levels, where, masks = tuple(answer["namespace"]), answer.get("where"), answer.get("masks")
    restriction = Restriction(where, (), tuple(sorted((masks or {}).items()))) if where or masks else None
    return Grant(Role[answer["role"].upper()], answer["warehouse"], levels, answer["table"], restriction)


def _grants(answer: dict[str, Any]) -> tuple[Grant, ...]:
    return tuple(map(_grant, answer["grants"]))


def _group(answer: dict[str, Any]) -> Group:
    members = tuple(answer["members"]) if "members" in answer else None
    return Group(answer["name"], answer["created-ms"], _grants(answer), members)
