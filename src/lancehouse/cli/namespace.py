"""`lancehouse namespace`: the namespaces of any catalog that the clients reach."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from lancehouse.cli.asking import confirm, with_yes
from lancehouse.cli.catalogs import chosen, needed, placed, with_client, with_set
from lancehouse.cli.lazy import Group
from lancehouse.cli.output import Column
from lancehouse.cli.words import counted, hidden

if TYPE_CHECKING:
    from lancehouse.cli.client import Client
    from lancehouse.cli.main import App

NAMESPACES = (Column("namespace", "Namespace"),)

with_namespace_id = click.argument("namespace", metavar="ID", callback=needed)


def below(ctx: click.Context, param: click.Parameter, value: str) -> tuple[str, ...]:
    """A namespace; the whole catalog, or what its `parent` says, where none is written."""
    return placed(ctx, param, value) or chosen(ctx).parent


with_below = click.argument("namespace", metavar="[ID]", required=False, default="", callback=below)
with_recursive = click.option("--recursive", "-r", is_flag=True, help="All below it too, at any depth.")


@click.group(cls=Group)
def namespace() -> None:
    """Look at namespaces, make and drop them.

    ID is wh.db, all levels joined by dots; a level with a dot stands in backquotes: 'wh.`my.db`'.
    """


@namespace.command("list")
@with_below
@with_recursive
@with_client
@click.pass_obj
def list_all(app: App, namespace: tuple[str, ...], recursive: bool, client: Client) -> None:
    """Show the namespaces below ID, or those of the whole catalog."""
    from lancehouse.trees import tree

    with app.output.progress("listing namespaces"):
        found = list(tree(client, namespace))[1:] if recursive else client.namespaces(namespace)
    rows = [{"namespace": client.shown(each), "id": list(each)} for each in found]
    where = f" below {client.shown(namespace)}" if client.shown(namespace) else ""
    summary = {"below": list(namespace), "count": len(rows)}
    app.output.table(NAMESPACES, rows, summary, f"{counted(len(rows), 'namespace')}{where}", name="namespaces")


@namespace.command()
@with_namespace_id
@with_set("namespace")
@click.option("--exist-ok", is_flag=True, help="One that is there already will do.")
@with_client
@click.pass_obj
def create(app: App, namespace: tuple[str, ...], stored: dict[str, str], exist_ok: bool, client: Client) -> None:
    """Make the namespace ID."""
    mode = "ExistOk" if exist_ok else "Create"
    made = client.call("create_namespace", namespace, mode=mode, properties=stored or None)
    app.output.record("", {"namespace": client.shown(namespace), "properties": hidden(made.properties)})


@namespace.command()
@with_namespace_id
@with_client
@click.pass_obj
def describe(app: App, namespace: tuple[str, ...], client: Client) -> None:
    """Show the properties of the namespace ID."""
    found = client.call("describe_namespace", namespace)
    app.output.record("", {"namespace": client.shown(namespace), "properties": hidden(found.properties)})


@namespace.command()
@with_namespace_id
@click.option("--cascade", is_flag=True, help="With all tables and namespaces in it, where the catalog can.")
@with_yes
@with_client
@click.pass_obj
def drop(app: App, namespace: tuple[str, ...], cascade: bool, yes: bool, client: Client) -> None:
    """Drop the namespace ID, which has to be empty."""
    shown = client.shown(namespace)
    confirm(app, f"Drop the namespace {shown}{' and all that is in it' if cascade else ''}?", yes=yes)
    behavior = "Cascade" if cascade else "Restrict"
    client.call("drop_namespace", namespace, mode="Fail", behavior=behavior)
    app.output.record("", {"dropped": shown})
