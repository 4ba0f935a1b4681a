"""The command `lancehouse`: options that all commands share, and what becomes of their errors."""

from __future__ import annotations

import platform
from dataclasses import dataclass
from importlib.metadata import version as version_of
from typing import Any

import click
from lance_namespace.errors import LanceNamespaceError

from lancehouse.cli.conformance import conformance
from lancehouse.cli.db import db
from lancehouse.cli.ingest import ingest
from lancehouse.cli.output import FAILED, INTERRUPTED, OUTPUTS, Output
from lancehouse.cli.principal import principal
from lancehouse.cli.run import run
from lancehouse.cli.serve import serve
from lancehouse.cli.table import table


@dataclass(frozen=True)
class App:
    """What every command is given."""

    output: Output
    debug: bool


class Group(click.Group):
    """Errors of the catalog become one sentence and an exit code, here and nowhere else."""

    def invoke(self, ctx: click.Context) -> Any:
        """Run a command."""
        try:
            return super().invoke(ctx)
        except LanceNamespaceError as error:
            if ctx.obj.debug:
                raise
            ctx.obj.output.error(str(error))
            ctx.exit(FAILED)
        except KeyboardInterrupt:
            ctx.exit(INTERRUPTED)


@click.group(cls=Group, context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--output", type=click.Choice(list(OUTPUTS)), default="text", help="For people, or for programs.")
@click.option("--debug", is_flag=True, help="Show the whole trace of an error.")
@click.pass_context
def main(ctx: click.Context, output: str, debug: bool) -> None:
    """Lance tables in the catalog you already run."""
    ctx.obj = App(OUTPUTS[output](), debug)


@main.command()
@click.pass_obj
def version(app: App) -> None:
    """Show the versions of lancehouse and of what it stands on."""
    packages = {name: version_of(name) for name in ("lancehouse", "pylance", "lance-namespace", "pyarrow")}
    app.output.record("", {**packages, "python": platform.python_version()})


for command in (conformance, db, ingest, principal, run, serve, table):
    main.add_command(command)
