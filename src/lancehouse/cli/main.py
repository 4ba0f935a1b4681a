"""The program `lancehouse`: its commands, global options, and the handling of errors."""

from __future__ import annotations

import errno
import os
import sys
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import click

from lancehouse.cli import lazy_commands
from lancehouse.cli.lazy_commands import CATALOG, KINDS, LazyCommand, complete_catalog
from lancehouse.cli.output import FAILED, INTERRUPTED, OUTPUTS, Output

if TYPE_CHECKING:
    from lancehouse.named_catalogs import NamedCatalogs

START = """
Catalogs are configured in ~/.lancehouse.yaml:

\b
default: prod
catalogs:
  prod: {endpoint: https://…, parent: WAREHOUSE}
"""
TYPED = "lancehouse.typed"
UNFORESEEN = "run it again with --debug and report the traceback"
COMMANDS = (
    LazyCommand("audit", "lancehouse.cli.audit", "Show who changed what in a server's catalog.", is_group=True),
    LazyCommand(
        "conformance",
        "lancehouse.cli.conformance",
        "Check an implementation of lance_namespace on a live server.",
    ),
    LazyCommand("copy", "lancehouse.cli.copy", "Copy the tables of one catalog to another."),
    LazyCommand("db", "lancehouse.cli.serve", "Manage the database of the catalog server.", is_group=True),
    LazyCommand("demo", "lancehouse.cli.demo.command", "Show a catalog, a pipeline and a table in a few steps."),
    LazyCommand("diff", "lancehouse.cli.copy", "Compare the tables of two catalogs."),
    LazyCommand("doctor", "lancehouse.cli.doctor", "Check a catalog against storage, or one table of it."),
    LazyCommand("ingest", "lancehouse.cli.ingest", "Load files or an Iceberg table into a Lance table."),
    LazyCommand(
        "maintenance",
        "lancehouse.cli.maintenance",
        "Set how tables are maintained; see what is done.",
        is_group=True,
    ),
    LazyCommand("namespace", "lancehouse.cli.namespace", "List, create and drop namespaces.", is_group=True),
    LazyCommand(
        "principal", "lancehouse.cli.principal", "Manage who may use the server, and their roles.", is_group=True
    ),
    LazyCommand("run", "lancehouse.cli.run", "Run the pipeline in FILE."),
    LazyCommand("serve", "lancehouse.cli.serve", "Serve an Iceberg REST catalog with Lance tables in it."),
    LazyCommand("sql", "lancehouse.cli.sql", "Run SQL on the tables of a catalog."),
    LazyCommand("table", "lancehouse.cli.table", "List, inspect, change and maintain tables.", is_group=True),
)


@dataclass
class CliContext:
    """State that every command gets; global options change it, before or after the command's name."""

    kind: str = KINDS[0]
    debug: bool = False
    catalog: str | None = None
    """The name that `--catalog` or its variable gives."""

    @cached_property
    def output(self) -> Output:
        """Where results are printed."""
        return OUTPUTS[self.kind]()

    @cached_property
    def config(self) -> NamedCatalogs:
        """The named catalogs.

        Raises:
            InvalidInputError: their configuration cannot be read.
        """
        from lancehouse import named_catalogs

        return named_catalogs.load()


class MainGroup(lazy_commands.LazyGroup):
    """The top-level group. It turns errors of the catalog and of this machine into one sentence and an exit code."""

    group_class = lazy_commands.LazyGroup

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Store the arguments: an error in them may occur before `--output json` is parsed."""
        ctx.meta[TYPED] = list(args)
        return super().parse_args(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        """Run a command, and print its errors."""
        try:
            return super().invoke(ctx)
        except catalog_error_types() as error:
            if ctx.obj.debug:
                raise
            from lancehouse.cli.client import find_hints

            ctx.obj.output.error(str(error), find_hints(error))
            ctx.exit(FAILED)
        except click.ClickException as error:
            if not _wants_json(ctx):
                raise
            OUTPUTS["json"]().error(error.format_message(), [])
            ctx.exit(error.exit_code)
        except OSError as error:
            # click exits silently if the output is closed.
            if ctx.obj is None or ctx.obj.debug or error.errno == errno.EPIPE:
                raise
            reason = error.strerror or str(error)
            ctx.obj.output.error(f"{error.filename}: {reason}" if error.filename else reason, [])
            ctx.exit(FAILED)
        except KeyboardInterrupt:
            ctx.exit(INTERRUPTED)
        except (click.exceptions.Exit, click.Abort):
            raise
        except Exception as error:
            if ctx.obj is None or ctx.obj.debug:
                raise
            ctx.obj.output.error(f"internal error: {type(error).__name__}: {error}", [UNFORESEEN])
            ctx.exit(FAILED)


def _wants_json(ctx: click.Context) -> bool:
    """Return whether errors are printed as JSON; if options were not parsed completely, the raw arguments decide."""
    typed: list[str] = ctx.meta.get(TYPED, [])
    if ctx.obj is not None and ctx.obj.kind == "json":
        return True
    return "--output=json" in typed or ("--output", "json") in pairwise(typed)


def catalog_error_types() -> tuple[type[Exception], ...]:
    """Return the errors that are printed as one sentence: none as long as `lance_namespace` is not imported."""
    errors = sys.modules.get("lance_namespace.errors")
    return (errors.LanceNamespaceError,) if errors else ()


def show_version(ctx: click.Context, _: click.Parameter, value: bool) -> None:
    """Print the version for `--version`; the command `version` prints more."""
    if value and not ctx.resilient_parsing:
        from importlib.metadata import version as version_of

        click.echo(f"lancehouse {version_of('lancehouse')}")
        ctx.exit()


@click.group(cls=MainGroup, lazy=COMMANDS, epilog=START, context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--catalog",
    metavar="NAME",
    envvar="LANCEHOUSE_CATALOG",
    shell_complete=complete_catalog,
    help=CATALOG,
)
@click.option("--output", type=click.Choice(KINDS), default=KINDS[0], help="Format of the output.")
@click.option("--debug", is_flag=True, help="Show the traceback of an error.")
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=show_version,
    help="Show the version and exit.",
)
@click.pass_context
def main(ctx: click.Context, catalog: str | None, output: str, debug: bool) -> None:
    """Lance tables in the catalog you already run."""
    ctx.obj = CliContext(output, debug, catalog or None)
    if output == "json":
        _log_json()
    if any(name.startswith("OTEL_") for name in os.environ):
        from lancehouse import tracing

        tracing.configure("lancehouse" if ctx.invoked_subcommand == "serve" else "lancehouse-cli")


def _log_json() -> None:
    """Let what the libraries log come as JSON too, on stderr."""
    import logging

    from lancehouse.log_lines import JsonFormatter

    if logging.lastResort is not None:  # what Python prints records with, as long as nobody sets up more
        logging.lastResort.setFormatter(JsonFormatter())


@main.command()
@click.pass_obj
def version(app: CliContext) -> None:
    """Show the versions of lancehouse and its main dependencies."""
    import platform
    from importlib.metadata import version as version_of

    packages = {name: version_of(name) for name in ("lancehouse", "pylance", "lance-namespace", "pyarrow")}
    app.output.record({**packages, "python": platform.python_version()})


@main.command()
@click.argument("shell", type=click.Choice(("bash", "zsh", "fish")))
@click.pass_context
def completion(ctx: click.Context, shell: str) -> None:
    """Print the shell code for tab completion.

    It completes commands, options and the names of catalogs.

    \b
    bash:  eval "$(lancehouse completion bash)"      in ~/.bashrc
    zsh:   eval "$(lancehouse completion zsh)"       in ~/.zshrc
    fish:  lancehouse completion fish | source       in ~/.config/fish/config.fish
    """  # noqa: D301 - click reads \b as the mark of lines that stay as they are
    from click.shell_completion import get_completion_class

    kind = get_completion_class(shell)
    assert kind is not None
    click.echo(kind(ctx.find_root().command, {}, "lancehouse", "_LANCEHOUSE_COMPLETE").source())
