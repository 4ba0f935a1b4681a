"""`lancehouse namespace`: list, create, describe and drop namespaces of any catalog."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from lancehouse.cli.lazy_commands import LazyGroup
from lancehouse.cli.options import (
    confirm,
    get_catalog,
    parse_id_with_parent,
    parse_required_id,
    with_client,
    with_set,
    with_yes,
)
from lancehouse.cli.output import format_count, output_columns

if TYPE_CHECKING:
    from lancehouse.cli.client import Client
    from lancehouse.cli.main import CliContext

NAMESPACES = output_columns(namespace="Namespace")

with_namespace_id = click.argument("namespace", metavar="ID", callback=parse_required_id)


def parse_namespace(ctx: click.Context, param: click.Parameter, value: str) -> tuple[str, ...]:
    """Parse the id of a namespace; an empty text gives the catalog's `parent`, or the whole catalog."""
    return parse_id_with_parent(ctx, param, value) or get_catalog(ctx).parent


with_optional_namespace = click.argument(
    "namespace", metavar="[ID]", required=False, default="", callback=parse_namespace
)
with_recursive = click.option("--recursive", "-r", is_flag=True, help="Include all levels below.")


@click.group(cls=LazyGroup)
def namespace() -> None:
    """List, create and drop namespaces.

    ID is wh.db, all levels joined by dots; put a level with a dot in backquotes: 'wh.`my.db`'.
    """


@namespace.command("list")
@with_optional_namespace
@with_recursive
@with_client
@click.pass_obj
def list_namespaces(app: CliContext, namespace: tuple[str, ...], recursive: bool, client: Client) -> None:
    """Show the namespaces below ID, or those of the whole catalog."""
    from lancehouse.catalog_walk import walk_namespaces

    with app.output.progress("listing namespaces"):
        namespaces = list(walk_namespaces(client, namespace))[1:] if recursive else client.namespaces(namespace)
    rows = [{"namespace": client.format_id(levels), "id": list(levels)} for levels in namespaces]
    where = f" below {client.format_id(namespace)}" if client.format_id(namespace) else ""
    summary = {"below": list(namespace), "count": len(rows)}
    app.output.table(NAMESPACES, rows, summary, f"{format_count(len(rows), 'namespace')}{where}", name="namespaces")


@namespace.command()
@with_namespace_id
@with_set("namespace")
@click.option("--exist-ok", is_flag=True, help="Succeed if the namespace exists.")
@with_client
@click.pass_obj
def create(app: CliContext, namespace: tuple[str, ...], stored: dict[str, str], exist_ok: bool, client: Client) -> None:
    """Create the namespace ID."""
    _show(app, client, namespace, client.create_namespace(namespace, stored, exist_ok=exist_ok))


@namespace.command()
@with_namespace_id
@with_client
@click.pass_obj
def describe(app: CliContext, namespace: tuple[str, ...], client: Client) -> None:
    """Show the properties of the namespace ID."""
    response = client.call("describe_namespace", namespace)
    _show(app, client, namespace, response.properties)


def _show(app: CliContext, client: Client, namespace: tuple[str, ...], properties: dict[str, str] | None) -> None:
    from lancehouse.secrets import redact_properties

    app.output.record({"namespace": client.format_id(namespace), "properties": redact_properties(properties)})


@namespace.command()
@with_namespace_id
@click.option("--cascade", is_flag=True, help="Drop all tables and namespaces in it too, if the catalog supports it.")
@with_yes
@with_client
@click.pass_obj
def drop(app: CliContext, namespace: tuple[str, ...], cascade: bool, yes: bool, client: Client) -> None:
    """Drop the namespace ID, which must be empty."""
    namespace_text = client.format_id(namespace)
    confirm(app, f"Drop the namespace {namespace_text}{' and all that is in it' if cascade else ''}?", yes=yes)
    client.drop_namespace(namespace, cascade=cascade)
    app.output.record({"dropped": namespace_text})
