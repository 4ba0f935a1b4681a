"""`lancehouse principal`: manage principals of the server, their secrets, tokens and grants."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from functools import partial, wraps
from typing import TYPE_CHECKING, Any

import click

from lancehouse.cli.lazy_commands import LazyGroup
from lancehouse.cli.options import (
    Command,
    open_database,
    parse_id,
    parse_required_name,
    requires_extra,
    with_config,
    with_db,
)
from lancehouse.cli.output import format_count, format_time, output_columns

if TYPE_CHECKING:
    from lancehouse.catalog.callers import Grant
    from lancehouse.catalog.principals import Credential, Group, Principal
    from lancehouse.catalog.principals import Principals as CatalogPrincipals
    from lancehouse.cli.main import CliContext
    from lancehouse.cli.remote_principals import RemotePrincipals

    Principals = CatalogPrincipals | RemotePrincipals

ROLES = ("reader", "writer", "admin")

PRINCIPALS = output_columns(name="Name", client_id="Client id", roles="May act as", created="Created")
TOKENS = output_columns(label="Label", created="Created", expires="Expires")
GROUPS = output_columns(name="Name", roles="May act as", created="Created")
ACCESS = output_columns(principal="Principal", role="Role", granted_on="Granted on", group="Through group")
UNITS = {"m": 60, "h": 3600, "d": 86400}

with_warehouse = click.option("--warehouse", metavar="NAME", help="Only in this warehouse; default: in all.")
with_backends = with_config("The server's file: roles can be granted on the backends that it names too.")
with_namespace = click.option(
    "--namespace", metavar="ID", default="", callback=parse_id, help="Only there and below: a.b or a.`b.c`."
)
with_table = click.option(
    "--table", metavar="ID", default="", callback=parse_id, help="Only this table or view: a.b.t. The grant is by name."
)


def parse_masks(ctx: click.Context, param: click.Parameter, values: tuple[str, ...]) -> dict[str, str]:
    """Parse masks, each `column=null`, `column=hash` or `column=TEXT`."""
    masks: dict[str, str] = {}
    for value in values:
        column, sign, mask = value.partition("=")
        if not column or not sign:
            raise click.BadParameter(
                f"{value!r} is not of the form column=null, column=hash or column=TEXT", ctx, param
            )
        if column in masks:
            raise click.BadParameter(f"column {column} is masked twice", ctx, param)
        masks[column] = mask if mask in ("null", "hash") or mask.startswith("text:") else f"text:{mask}"
    return masks


def with_restriction(command: Command) -> Command:
    """Add the options of a row filter and column masks."""
    where = click.option(
        "--where", metavar="SQL", help="Only rows that meet this condition, for a reader of one table: region = 'EU'."
    )
    mask = click.option(
        "--mask",
        "masks",
        metavar="COLUMN=MASK",
        multiple=True,
        callback=parse_masks,
        help="Mask a column: null, hash (a keyed hash), or a text instead of its values. Repeatable.",
    )
    return where(mask(command))


def with_role(*, required: bool, help: str = "Role to grant.") -> Callable[[Command], Command]:
    """Add the option `--role` to a command."""
    return click.option("--role", type=click.Choice(ROLES), required=required, help=help)


def parse_lifetime(ctx: click.Context, param: click.Parameter, value: str | None) -> int | None:
    """Parse how long something lasts, and return when it ends, in milliseconds since 1970."""
    if value is None:
        return None
    match = re.fullmatch(r"([1-9][0-9]{0,5})([mhd])", value.strip(), re.ASCII)
    if match is None:
        raise click.BadParameter("it is a number of minutes, hours or days, such as 30d", ctx, param)
    return int((time.time() + int(match[1]) * UNITS[match[2]]) * 1000)


def with_principals(command: Command, *, creates: bool = False) -> Command:
    """Add the options that say whose principals they are, those of a database or of a running server.

    The command gets them as `principals`. If `creates` is true, the database is created if it does not exist.
    """

    @with_db
    @click.option(
        "--server",
        metavar="URL",
        envvar="LANCEHOUSE_SERVER",
        help="Ask a running server: its URL, or a catalog of ~/.lancehouse.yaml.",
    )
    @wraps(command)
    def wrapper(*arguments: Any, db: str | None, server: str | None, config: str | None = None, **options: Any) -> Any:
        with open_principals(db, server, config, creates=creates) as principals:
            return command(*arguments, principals=principals, **options)

    return wrapper


@contextmanager
def open_principals(
    db: str | None, server: str | None, config: str | None, *, creates: bool
) -> Iterator[CatalogPrincipals | RemotePrincipals]:
    """Open the principals of a server, or of a database."""
    with requires_extra("server"):
        from lancehouse.catalog.principals import Principals as CatalogPrincipals
        from lancehouse.server.settings import configured_names

    ctx = click.get_current_context()
    if server is not None:
        if db is not None and ctx.get_parameter_source("db") is click.core.ParameterSource.COMMANDLINE:
            raise click.UsageError("--db or --server: principals are changed in one of them")
        with closing(connect_server(ctx, server)) as remote:
            yield remote
        return
    with open_database(db, creates=creates) as database:
        yield CatalogPrincipals(database, configured_names(config) if config else ())


def connect_server(ctx: click.Context, server: str) -> RemotePrincipals:
    """Return the principals of a running server; `server` is its URL, or the name of a catalog.

    With a URL, the environment authenticates the caller: LANCEHOUSE_TOKEN, or LANCEHOUSE_CREDENTIAL.
    """
    from lancehouse.cli.remote_principals import RemotePrincipals
    from lancehouse.settings import ClientSettings

    if "://" in server:
        variables = {"auth_token": "LANCEHOUSE_TOKEN", "credential": "LANCEHOUSE_CREDENTIAL"}
        credentials = {name: os.environ[variable] for name, variable in variables.items() if os.environ.get(variable)}
        properties = {"endpoint": server, **credentials}
    else:
        app: CliContext = ctx.obj
        properties = dict(app.config.catalog(server).properties)
    return RemotePrincipals(ClientSettings.parse("iceberg", properties))


@click.group(cls=LazyGroup)
def principal() -> None:
    """Manage who may use the server, and their roles.

    As soon as a principal exists, servers on this database require authentication. Changes take effect within 2
    seconds on every server.
    """


@principal.command()
@click.argument("name")
@with_role(required=False)
@with_warehouse
@with_namespace
@with_table
@click.option("--external", is_flag=True, help="Authenticated by an outside issuer; no secret is created.")
@with_backends
@partial(with_principals, creates=True)
@click.pass_obj
def create(
    app: CliContext,
    name: str,
    role: str | None,
    warehouse: str | None,
    namespace: tuple[str, ...],
    table: tuple[str, ...],
    external: bool,
    principals: Principals,
) -> None:
    """Create a principal and show its secret once.

    Iceberg's clients take what is shown as `credential`.
    """
    if role is None and (warehouse or namespace or table):
        raise click.UsageError("--warehouse, --namespace and --table say where a --role is given; give one")
    grants = [create_grant(role, warehouse, namespace, table)] if role else []
    credential = principals.create(name, grants, external=external)
    if credential is None:
        app.output.record({"name": name, "external": True})
    else:
        show_credential(app, name, credential)


@principal.command("list")
@with_principals
@click.pass_obj
def list_principals(app: CliContext, principals: Principals) -> None:
    """List all principals and their grants."""
    records = principals.list()
    rows = [
        {
            "name": record.name,
            "client_id": record.client_id or "",
            "external": record.is_external,
            **describe_grants(record),
        }
        for record in records
    ]
    app.output.table(PRINCIPALS, rows, {"count": len(rows)}, format_count(len(rows), "principal"))


@principal.command()
@click.argument("name")
@with_principals
@click.pass_obj
def delete(app: CliContext, name: str, principals: Principals) -> None:
    """Delete a principal with its grants and tokens."""
    principals.delete(name)
    app.output.record({"deleted": name})


@principal.command()
@click.argument("name")
@with_principals
@click.pass_obj
def rotate(app: CliContext, name: str, principals: Principals) -> None:
    """Replace the secret of a principal and show it once.

    The old secret ends, and so do all tokens of the principal, static ones too: create those anew.
    """
    credential = principals.rotate_secret(name)
    show_credential(app, name, credential)


@principal.command()
@click.argument("name")
@with_role(required=True)
@with_warehouse
@with_namespace
@with_table
@with_restriction
@with_backends
@with_principals
@click.pass_obj
def grant(
    app: CliContext,
    name: str,
    role: str,
    warehouse: str | None,
    namespace: tuple[str, ...],
    table: tuple[str, ...],
    where: str | None,
    masks: dict[str, str],
    principals: Principals,
) -> None:
    """Grant a role to a principal or group, replacing the one granted at the same place.

    The warehouse, the namespace and the table must exist. With --where or --mask, a reader sees only some rows of one
    Lance table, and masked values.
    """
    new_grant = restrict_grant(create_grant(role, warehouse, namespace, table), where, masks)
    principals.grant(name, new_grant)
    app.output.record({"name": name, "granted": describe_grant(new_grant)})


@principal.command()
@click.argument("name")
@with_role(required=False, help="Revoke only this role; default: whichever was granted there.")
@with_warehouse
@with_namespace
@with_table
@with_principals
@click.pass_obj
def revoke(
    app: CliContext,
    name: str,
    role: str | None,
    warehouse: str | None,
    namespace: tuple[str, ...],
    table: tuple[str, ...],
    principals: Principals,
) -> None:
    """Revoke the role that was granted at exactly this place."""
    from lancehouse.catalog.callers import Role

    where = create_grant(role or ROLES[0], warehouse, namespace, table)
    revoked = principals.revoke(
        name, where.warehouse, where.levels, Role[role.upper()] if role else None, table=where.table
    )
    app.output.record({"name": name, "revoked": str(revoked)})


@principal.group()
def token() -> None:
    """Manage static bearer tokens."""


@token.command("create")
@click.argument("name")
@click.option("--label", required=True, help="What it is for; the token is deleted by it.")
@click.option("--expires", metavar="TIME", callback=parse_lifetime, help="When it ends: 30d, 12h or 90m from now.")
@with_principals
@click.pass_obj
def create_token(app: CliContext, name: str, label: str, expires: int | None, principals: Principals) -> None:
    """Create a token and show it once. It is sent as `Authorization: Bearer lh_…`.

    It is valid until it expires, or is deleted, or the principal's secret is rotated.
    """
    token_text = principals.create_token(name, label, expires)
    record = {"name": name, "label": label, "token": token_text}
    app.output.record({**record, **({"expires": format_time(expires)} if expires else {})})


@token.command("list")
@click.argument("name")
@with_principals
@click.pass_obj
def list_tokens(app: CliContext, name: str, principals: Principals) -> None:
    """List a principal's tokens: their labels, and when they expire."""
    rows = [
        {
            "label": token_record.label,
            "created": format_time(token_record.created_ms),
            "expires": format_time(token_record.expires_ms) if token_record.expires_ms else "",
        }
        for token_record in principals.list_tokens(name)
    ]
    app.output.table(TOKENS, rows, {"name": name, "count": len(rows)}, format_count(len(rows), "token"))


@token.command("delete")
@click.argument("name")
@click.option("--label", required=True, help="Which one.")
@with_principals
@click.pass_obj
def delete_token(app: CliContext, name: str, label: str, principals: Principals) -> None:
    """Delete a token."""
    principals.delete_token(name, label)
    app.output.record({"name": name, "deleted": label})


@principal.group()
def group() -> None:
    """Manage groups, whose members have their grants."""


@group.command("create")
@click.argument("name")
@partial(with_principals, creates=True)
@click.pass_obj
def create_group(app: CliContext, name: str, principals: Principals) -> None:
    """Create a group.

    `lancehouse principal grant` gives it roles. An outside issuer may say who is in it, by its `groups_claim`.
    """
    principals.create_group(name)
    app.output.record({"name": name})


@group.command("delete")
@click.argument("name")
@with_principals
@click.pass_obj
def delete_group(app: CliContext, name: str, principals: Principals) -> None:
    """Delete a group with its grants; its members stay."""
    principals.delete_group(name)
    app.output.record({"deleted": name})


@group.command("list")
@with_principals
@click.pass_obj
def list_groups(app: CliContext, principals: Principals) -> None:
    """List all groups and their grants."""
    records = principals.list_groups()
    rows = [
        {
            "name": record.name,
            **describe_grants(record),
        }
        for record in records
    ]
    app.output.table(GROUPS, rows, {"count": len(rows)}, format_count(len(rows), "group"))


@group.command("show")
@click.argument("name")
@with_principals
@click.pass_obj
def show_group(app: CliContext, name: str, principals: Principals) -> None:
    """Show the members and grants of a group."""
    record = principals.describe_group(name)
    members, grants = list(record.members or ()), list(map(grant_to_dict, record.grants))
    app.output.record({"name": name, "members": members, "grants": grants})


@group.command("add")
@click.argument("name")
@click.argument("members", metavar="PRINCIPAL...", nargs=-1, required=True)
@with_principals
@click.pass_obj
def add_members(app: CliContext, name: str, members: tuple[str, ...], principals: Principals) -> None:
    """Make principals members of a group."""
    principals.add_members(name, members)
    app.output.record({"name": name, "added": list(members)})


@group.command("remove")
@click.argument("name")
@click.argument("members", metavar="PRINCIPAL...", nargs=-1, required=True)
@with_principals
@click.pass_obj
def remove_members(app: CliContext, name: str, members: tuple[str, ...], principals: Principals) -> None:
    """Take principals out of a group."""
    principals.remove_members(name, members)
    app.output.record({"name": name, "removed": list(members)})


@principal.command("who-can")
@click.argument("id", metavar="TABLE", callback=parse_required_name)
@click.option("--namespace", "is_namespace", is_flag=True, help="The id names a namespace.")
@with_backends
@with_principals
@click.pass_obj
def who_can(app: CliContext, id: tuple[str, ...], is_namespace: bool, principals: Principals) -> None:
    """Show who may read or write a table, by which grant, and through which group.

    TABLE begins with the warehouse: main.db.docs.
    """
    warehouse, *levels = id
    table = None if is_namespace or not levels else levels.pop()
    accesses = principals.who_can(warehouse, tuple(levels), table)
    rows = [
        {
            "principal": access.principal or "",
            "role": access.grant.role.name.lower(),
            "granted_on": format_grant(access.grant),
            "grant": grant_to_dict(access.grant),
            "group": access.group or "",
        }
        for access in accesses
    ]
    app.output.table(ACCESS, rows, {"count": len(rows)}, format_count(len(rows), "grant"))


def show_credential(app: CliContext, name: str, credential: Credential) -> None:
    """Print a new credential; the secret is shown this one time only."""
    app.output.record(
        {
            "name": name,
            "client_id": credential.client_id,
            "client_secret": credential.client_secret,
            "credential": f"{credential.client_id}:{credential.client_secret}",
        },
    )


def create_grant(role: str, warehouse: str | None, namespace: tuple[str, ...], table: tuple[str, ...]) -> Grant:
    """Create a grant from command-line options."""
    from lancehouse.catalog.callers import Grant, Role

    if not table:
        return Grant(Role[role.upper()], warehouse, namespace)
    if namespace:
        raise click.UsageError("--table names its namespace too: leave --namespace out")
    return Grant(Role[role.upper()], warehouse, table[:-1], table[-1])


def restrict_grant(grant: Grant, where: str | None, masks: dict[str, str]) -> Grant:
    """Return a grant with a row filter and masks, if there are any."""
    if where is None and not masks:
        return grant
    with requires_extra("server"):
        from lancehouse.gateway.restricted import parse_restriction

    return replace(grant, restriction=parse_restriction(where, masks))


def describe_grants(record: Principal | Group) -> dict[str, object]:
    """Return what a list shows of a principal or group besides its name."""
    return {
        "grants": list(map(grant_to_dict, record.grants)),
        "roles": "; ".join(map(describe_grant, record.grants)) or "nothing",
        "created": format_time(record.created_ms),
    }


def describe_grant(grant: Grant) -> str:
    """Return a grant in words: the role, what it is on, and how it is restricted."""
    return f"{grant.role.name.lower()} of {format_grant(grant)}"


def format_grant(grant: Grant) -> str:
    """Return in words what a grant is on, and how it is restricted."""
    from lancehouse.catalog.callers import format_scope

    where = format_scope(*grant.scope)
    return where if grant.restriction is None else f"{where}, {grant.restriction}"


def grant_to_dict(grant: Grant) -> dict[str, object]:
    """Convert a grant to JSON."""
    from lancehouse.catalog.principals import grant_to_json

    return grant_to_json(grant)
