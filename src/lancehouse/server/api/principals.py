"""Routes and handlers at `/lancehouse/v1/` for principals, groups, grants and tokens, for admins.

Who is an admin of all warehouses may do everything. Who is one of a warehouse, namespace or table may grant and revoke
roles there, and sees the names of principals and groups with their grants there.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Annotated, Literal, TypeVar

from lance_namespace.errors import InvalidInputError, PermissionDeniedError
from pydantic import ConfigDict, Field

from lancehouse.catalog.audit import format_time
from lancehouse.catalog.callers import EVERYWHERE, Grant, Identity, Role, Scope
from lancehouse.catalog.principals import Credential, Group, NewPrincipal, Principal, Principals, grant_to_json
from lancehouse.gateway.restricted import parse_restriction
from lancehouse.paging import decode_token, encode_token
from lancehouse.server.http import responses
from lancehouse.server.http.responses import Response
from lancehouse.server.http.routes import Json, Route, split_namespace
from lancehouse.wire.iceberg_requests import RequestModel

if TYPE_CHECKING:
    from lancehouse.server.http.routes import Call

SERVER = "/lancehouse/v1/"
MOST_CREATED = 200
"""Most principals in one request: each secret takes a few hundredths of a second."""
MOST_MEMBERS = 1000
DEFAULT_PAGE = 200
LARGEST_PAGE = 1000
LARGEST_BODY = 2**20

H = TypeVar("H", Principal, Group)
RoleName = Literal["reader", "writer", "admin"]


class ScopeRequest(RequestModel):
    """What a grant is on, and the role that is revoked, if only that one is meant."""

    role: RoleName | None = None
    warehouse: str | None = None
    namespace: list[str] = Field(default_factory=list)
    table: str | None = None

    @property
    def scope(self) -> Scope:
        """What the grant is on."""
        return self.warehouse, tuple(self.namespace), self.table


class GrantRequest(ScopeRequest):
    """A grant. A misspelt `where` or `masks` must not grant the whole table, so nothing unknown is ignored."""

    model_config = ConfigDict(extra="forbid")

    role: RoleName
    where: str | None = None
    masks: dict[str, str] | None = None

    @property
    def grant(self) -> Grant:
        """The grant.

        Raises:
            InvalidInputError: its row filter is no condition that the gateway takes, or a mask is none.
        """
        if self.masks is not None and not self.masks:
            raise InvalidInputError("masks: no column is named; leave `masks` out to grant all columns")
        return Grant(Role[self.role.upper()], *self.scope, parse_restriction(self.where, self.masks))


class NewPrincipalRequest(RequestModel):
    """A principal to create."""

    name: str
    external: bool = False
    grants: Annotated[list[GrantRequest], Field(default_factory=list, max_length=MOST_MEMBERS)]
    groups: Annotated[list[str], Field(default_factory=list, max_length=MOST_MEMBERS)]


class CreatePrincipalsRequest(RequestModel):
    """Principals to create, all or none."""

    principals: Annotated[list[NewPrincipalRequest], Field(min_length=1, max_length=MOST_CREATED)]
    exist_ok: bool = False


class CreateGroupRequest(RequestModel):
    """A group to create."""

    name: str
    grants: Annotated[list[GrantRequest], Field(default_factory=list, max_length=MOST_MEMBERS)]


class MembersRequest(RequestModel):
    """Principals to add to a group, and to take out of it."""

    add: Annotated[list[str], Field(default_factory=list, max_length=MOST_MEMBERS)]
    remove: Annotated[list[str], Field(default_factory=list, max_length=MOST_MEMBERS)]


class TokenRequest(RequestModel):
    """A static token to create."""

    label: str
    expires_ms: int | None = None


def routes(principals: Principals) -> list[Route]:
    """Return the routes for the principals of a server's database."""

    def route(
        name: str,
        method: str,
        path: str,
        answer: Callable[[Principals, Call], Response],
        require: Callable[[Call], None] | None = None,
    ) -> Route:
        """Return a route; `require` checks the caller, unless the handler does by what the request names."""

        def handle(call: Call) -> Response:
            if require is not None:
                require(call)
            response = answer(principals.acting_for(call.caller), call)
            response.headers.append((b"cache-control", b"no-store"))
            return response

        # Hashes of secrets take a while: they must not keep short requests waiting.
        pool: Literal["scans", "requests"] = "scans" if answer in (create_principals, rotate) else "requests"
        return Route(name, method, SERVER + path, handle, pool=pool, alters=method != "GET", max_body=LARGEST_BODY)

    return [
        route("listPrincipals", "GET", "principals", list_principals, _require_any_admin),
        route("createPrincipals", "POST", "principals", create_principals, _require_admin),
        route("loadPrincipal", "GET", "principals/{name}", load_principal, _require_any_admin),
        route("deletePrincipal", "DELETE", "principals/{name}", delete_principal, _require_admin),
        route("rotateSecret", "POST", "principals/{name}/rotate", rotate, _require_admin),
        route("grantRole", "POST", "principals/{name}/grants", grant_role),
        route("revokeRole", "POST", "principals/{name}/revoke", revoke_role),
        route("listTokens", "GET", "principals/{name}/tokens", list_tokens, _require_admin),
        route("createToken", "POST", "principals/{name}/tokens", create_token, _require_admin),
        route("deleteToken", "DELETE", "principals/{name}/tokens/{item}", delete_token, _require_admin),
        route("listGroups", "GET", "groups", list_groups, _require_any_admin),
        route("createGroup", "POST", "groups", create_group, _require_admin),
        route("loadGroup", "GET", "groups/{name}", load_group, _require_any_admin),
        route("deleteGroup", "DELETE", "groups/{name}", delete_group, _require_admin),
        route("changeMembers", "POST", "groups/{name}/members", change_members, _require_admin),
        route("whoCan", "GET", "who-can", who_can),
    ]


def _require_admin(call: Call) -> None:
    if not call.caller.identity.is_admin_everywhere:
        raise PermissionDeniedError(f"{call.caller.identity.name} is no admin of every warehouse")


def _require_admin_of(call: Call, scope: Scope) -> None:
    warehouse, levels, table = scope
    if scope == EVERYWHERE:
        _require_admin(call)
    elif warehouse is None:
        raise InvalidInputError("a grant on a namespace or table names its warehouse too")
    else:
        call.caller.identity.require_role(Role.ADMIN, warehouse, levels, table)


def _require_any_admin(call: Call) -> None:
    if not any(grant.role >= Role.ADMIN for grant in call.caller.identity.grants):
        raise PermissionDeniedError(f"{call.caller.identity.name} is no admin of anything here")


def _grants_json(identity: Identity, grants: Sequence[Grant]) -> list[Json]:
    """Return those grants that an admin may see: the ones on what they administer."""
    return [
        grant_to_json(grant)
        for grant in grants
        if identity.is_admin_everywhere
        or (grant.warehouse and identity.has_role(Role.ADMIN, grant.warehouse, grant.levels, grant.table))
    ]


def _page_response(
    call: Call, key: str, find: Callable[[str, int], Sequence[H]], to_json: Callable[[Call, H], Json]
) -> Response:
    """Return a page of principals or groups, which are ordered by name."""
    token, requested_size = call.page_request()
    size = min(requested_size or DEFAULT_PAGE, LARGEST_PAGE)
    holders = find(decode_token(token) or "", size + 1)
    next_token = encode_token(holders[size - 1].name) if len(holders) > size else None
    return responses.json({key: [to_json(call, holder) for holder in holders[:size]], "next-page-token": next_token})


def _principal_json(call: Call, principal: Principal) -> Json:
    is_admin = call.caller.identity.is_admin_everywhere
    return {
        "name": principal.name,
        "external": principal.is_external,
        "created-at": format_time(principal.created_ms),
        "created-ms": principal.created_ms,
        "grants": _grants_json(call.caller.identity, principal.grants),
        **({"client-id": principal.client_id, "groups": list(principal.groups)} if is_admin else {}),
    }


def list_principals(principals: Principals, call: Call) -> Response:
    """List principals by name, with their own grants."""
    return _page_response(call, "principals", principals.list, _principal_json)


def create_principals(principals: Principals, call: Call) -> Response:
    """Create principals, all or none; their secrets are in the response, and nowhere else ever."""
    request = call.parse_model(CreatePrincipalsRequest)
    new = [
        NewPrincipal(principal.name, [grant.grant for grant in principal.grants], principal.external, principal.groups)
        for principal in request.principals
    ]
    results = principals.create_many(new, exist_ok=request.exist_ok)
    created = [
        {"name": principal.name, "created": principal.is_new, **_credential_json(principal.credential)}
        for principal in results
    ]
    return responses.json({"principals": created})


def _credential_json(credential: Credential | None) -> Json:
    if credential is None:
        return {}
    return {"client-id": credential.client_id, "client-secret": credential.client_secret}


def load_principal(principals: Principals, call: Call) -> Response:
    """Return a principal with its own grants and groups."""
    return responses.json(_principal_json(call, principals.describe(call.match.name)))


def delete_principal(principals: Principals, call: Call) -> Response:
    """Delete a principal with its grants and tokens."""
    principals.delete(call.match.name)
    return responses.no_content()


def rotate(principals: Principals, call: Call) -> Response:
    """Give a principal a new secret; the old one and all its tokens end."""
    return responses.json(_credential_json(principals.rotate_secret(call.match.name)))


def grant_role(principals: Principals, call: Call) -> Response:
    """Grant a role to a principal or group, instead of the one on the same scope."""
    grant = call.parse_model(GrantRequest).grant
    _require_admin_of(call, grant.scope)
    principals.grant(call.match.name, grant)
    return responses.json(grant_to_json(grant))


def revoke_role(principals: Principals, call: Call) -> Response:
    """Revoke the role that a principal or group has on exactly this scope."""
    request = call.parse_model(ScopeRequest)
    _require_admin_of(call, request.scope)
    warehouse, levels, table = request.scope
    role = Role[request.role.upper()] if request.role else None
    return responses.json(grant_to_json(principals.revoke(call.match.name, warehouse, levels, role, table=table)))


def list_tokens(principals: Principals, call: Call) -> Response:
    """List what is known of a principal's static tokens."""
    issued_tokens = principals.list_tokens(call.match.name)
    tokens = [
        {"label": token.label, "created-ms": token.created_ms, "expires-ms": token.expires_ms}
        for token in issued_tokens
    ]
    return responses.json({"tokens": tokens})


def create_token(principals: Principals, call: Call) -> Response:
    """Create a static token; it is in the response, and nowhere else ever."""
    request = call.parse_model(TokenRequest)
    token = principals.create_token(call.match.name, request.label, request.expires_ms)
    return responses.json({"label": request.label, "token": token, "expires-ms": request.expires_ms})


def delete_token(principals: Principals, call: Call) -> Response:
    """Delete a static token."""
    principals.delete_token(call.match.name, call.match.index)
    return responses.no_content()


def _group_json(call: Call, group: Group) -> Json:
    return {
        "name": group.name,
        "created-at": format_time(group.created_ms),
        "created-ms": group.created_ms,
        "grants": _grants_json(call.caller.identity, group.grants),
        **({} if group.members is None else {"members": list(group.members)}),
    }


def list_groups(principals: Principals, call: Call) -> Response:
    """List groups by name, with their grants."""
    return _page_response(call, "groups", principals.list_groups, _group_json)


def create_group(principals: Principals, call: Call) -> Response:
    """Create a group."""
    request = call.parse_model(CreateGroupRequest)
    principals.create_group(request.name, [grant_request.grant for grant_request in request.grants])
    return responses.json(_group_json(call, principals.describe_group(request.name)))


def load_group(principals: Principals, call: Call) -> Response:
    """Return a group with its members and grants."""
    return responses.json(_group_json(call, principals.describe_group(call.match.name)))


def delete_group(principals: Principals, call: Call) -> Response:
    """Delete a group with its grants."""
    principals.delete_group(call.match.name)
    return responses.no_content()


def change_members(principals: Principals, call: Call) -> Response:
    """Add principals to a group, then take others out; all or none."""
    request = call.parse_model(MembersRequest)
    principals.change_members(call.match.name, add=request.add, remove=request.remove)
    return responses.json(_group_json(call, principals.describe_group(call.match.name)))


def who_can(principals: Principals, call: Call) -> Response:
    """List who may use a table or namespace, by which grant, and through which group."""
    warehouse, table = call.query.get("warehouse"), call.query.get("table")
    if not warehouse:
        raise InvalidInputError("warehouse is missing in the query")
    namespace = call.query.get("namespace")
    levels = split_namespace(namespace) if namespace else ()
    _require_admin_of(call, (warehouse, levels, table))
    accesses = principals.who_can(warehouse, levels, table)
    access = [
        {"principal": entry.principal, "group": entry.group, "grant": grant_to_json(entry.grant)} for entry in accesses
    ]
    return responses.json({"access": access})
