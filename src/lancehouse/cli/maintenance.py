"""`lancehouse maintenance`: set and show policies, see what is due and done, and work on it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from lancehouse.cli.lazy_commands import LazyGroup
from lancehouse.cli.options import parse_properties, parse_required_id, requires_extra, with_client
from lancehouse.cli.output import OutputColumn

if TYPE_CHECKING:
    from lancehouse.cli.client import Client
    from lancehouse.cli.main import CliContext
    from lancehouse.maintenance_policy import Level

VALUES = (
    OutputColumn("key", "Property"),
    OutputColumn("value", "Value"),
    OutputColumn("source", "Comes from"),
    OutputColumn("help", "What it is"),
)

with_name = click.argument("name", metavar="ID", callback=parse_required_id)
with_config = click.option(
    "--config",
    metavar="FILE",
    envvar="LANCEHOUSE_SERVER_CONFIG",
    help="The server's file, which has the policies of warehouses and backends.",
)


@click.group(cls=LazyGroup)
def maintenance() -> None:
    """Set how tables are maintained; see what is done.

    Nothing is, until maintenance.enabled is true for a table, a namespace above it, or its warehouse.
    """


def parse_policy(ctx: click.Context, param: click.Parameter, values: Sequence[str]) -> dict[str, str]:
    """Parse KEY=VALUE; keys may stand without their prefix."""
    return {_with_prefix(key): value for key, value in parse_properties(ctx, param, values).items()}


def _with_prefix(key: str) -> str:
    from lancehouse.maintenance_policy import PREFIX

    return key if key.startswith(PREFIX) else PREFIX + key


@maintenance.command("set")
@with_name
@click.argument("updates", metavar="[KEY=VALUE]...", nargs=-1, callback=parse_policy)
@click.option("--unset", "removals", metavar="KEY", multiple=True, help="Property to remove. Repeatable.")
@with_client
@click.pass_obj
def set_policy(
    app: CliContext, name: tuple[str, ...], updates: dict[str, str], removals: tuple[str, ...], client: Client
) -> None:
    """Set maintenance properties of a table or namespace.

    Such as enabled=true, window=01:00-05:00, compact.min-fragments=16; `show` lists them all.
    """
    from lancehouse.maintenance.policies import change_properties
    from lancehouse.maintenance_policy import check_keys, check_properties

    keys = list(map(_with_prefix, removals))
    if not updates and not keys:
        raise click.UsageError("nothing to set: give KEY=VALUE, or --unset KEY")
    check_keys(keys)
    check_properties(updates)
    with client.translate_errors(name):
        kind = change_properties(client.namespace, name, updates, keys)
    app.output.record("", {kind: client.format_id(name), "set": updates, "unset": keys})


@maintenance.command()
@with_name
@with_config
@with_client
@click.pass_obj
def show(app: CliContext, name: tuple[str, ...], config: str | None, client: Client) -> None:
    """Show which maintenance properties count for a table or namespace.

    And where each comes from. What the server's file says of a warehouse needs --config.
    """
    from lancehouse.maintenance.policies import read_namespace_levels, read_table_level
    from lancehouse.maintenance_policy import explain_policy

    with client.translate_errors(name):
        table = read_table_level(client.namespace, name)
    if table is None:
        client.call("describe_namespace", name)
    with client.translate_errors(name):
        above = read_namespace_levels(client.namespace, name[:-1] if table else name)
    levels: list[Level] = [*_configured_levels(config, name), *above, *([table] if table else [])]
    values = explain_policy(levels)
    rows = [{"key": v.key, "value": v.value, "source": v.source, "help": v.help} for v in values]
    is_enabled = values[0].value.strip().lower() == "true"
    words = f"{client.format_id(name)}: maintenance is {'on' if is_enabled else 'off'}"
    summary = {"name": client.format_id(name), "kind": "table" if table else "namespace", "enabled": is_enabled}
    app.output.table(VALUES, rows, summary, words, name="properties")


def _configured_levels(config: str | None, name: Sequence[str]) -> list[Level]:
    """Return what the server's file says of the warehouse or backend that a name begins with."""
    if config is None:
        return []
    with requires_extra("server"):
        from lancehouse.server.settings import configured_maintenance
    properties = configured_maintenance(config).get(name[0], {})
    return [(f"{name[0]} in {config}", properties)]
