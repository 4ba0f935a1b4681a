"""Options and arguments that commands share: catalogs, ids, properties, versions, and the confirmation of removals.

Slow imports happen only where they are used: options are also read to print help and for shell completion.
"""

from __future__ import annotations

import os
import re
import shlex
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from functools import wraps
from typing import TYPE_CHECKING, Any

import click

from lancehouse.cli.lazy_commands import CatalogOption, complete_catalog
from lancehouse.cli.output import FAILED

if TYPE_CHECKING:
    from lance_namespace import LanceNamespace

    from lancehouse.admin.checked_catalog import Shell
    from lancehouse.admin.copy import NamedCatalog
    from lancehouse.cli.client import Client
    from lancehouse.cli.main import CliContext
    from lancehouse.connection import Connection
    from lancehouse.store.database import Database


Command = Callable[..., Any]
Levels = tuple[str, ...]

CONSTRUCTING = re.compile(r"^Failed to construct namespace impl \S+: ")
"""Prefix that `lance_namespace.connect` adds to the reason of an error."""


@contextmanager
def requires_extra(extra: str) -> Iterator[None]:
    """Report an import that fails because an optional dependency is missing, with the extra that installs it."""
    from lance_namespace.errors import InvalidInputError

    try:
        yield
    except ModuleNotFoundError as error:
        if error.name is None or error.name.startswith("lancehouse"):
            raise
        module = error.name.partition(".")[0]
        raise InvalidInputError(f"this needs {module}: pip install 'lancehouse[{extra}]'") from None


def parse_id(ctx: click.Context, param: click.Parameter, value: str) -> tuple[str, ...]:
    """Parse an id as the user types it."""
    from lance_namespace.errors import InvalidInputError

    from lancehouse.identifiers import parse_levels

    try:
        return parse_levels(value)
    except InvalidInputError as error:
        raise click.BadParameter(str(error), ctx, param) from None


def parse_id_with_parent(ctx: click.Context, param: click.Parameter, value: str) -> tuple[str, ...]:
    """Parse an id, and put the catalog's `parent` before it; an empty text gives an empty id."""
    typed_id = parse_id(ctx, param, value)
    return (*get_catalog(ctx).parent, *typed_id) if typed_id else ()


def parse_required_id(ctx: click.Context, param: click.Parameter, value: str) -> tuple[str, ...]:
    """Parse an id with the catalog's `parent`; refuse an empty one, which an unset variable of a script may cause."""
    return _check_not_empty(ctx, param, parse_id_with_parent(ctx, param, value))


def parse_optional_name(ctx: click.Context, param: click.Parameter, value: str | None) -> tuple[str, ...] | None:
    """Parse an id without the catalog's `parent`; refuse an empty one, and return None for none."""
    return None if value is None else parse_required_name(ctx, param, value)


def parse_required_name(ctx: click.Context, param: click.Parameter, value: str) -> tuple[str, ...]:
    """Parse an id without the catalog's `parent`; refuse an empty one."""
    return _check_not_empty(ctx, param, parse_id(ctx, param, value))


def _check_not_empty(ctx: click.Context, param: click.Parameter, id: tuple[str, ...]) -> tuple[str, ...]:
    if not id:
        raise click.BadParameter("it is empty: a name is missing", ctx, param)
    return id


def format_id(target: Connection, id: Sequence[str]) -> str:
    """Format an id as the user types it: without the catalog's `parent`."""
    from lancehouse.identifiers import format_levels

    above = len(target.parent)
    return format_levels(id[above:] if tuple(id[:above]) == target.parent else id)


def parse_properties(ctx: click.Context, param: click.Parameter, values: Sequence[str]) -> dict[str, str]:
    """Parse KEY=VALUE options; errors do not repeat the text, which may hold a secret."""
    from lance_namespace.errors import InvalidInputError

    from lancehouse.connection import parse_property

    try:
        return dict(map(parse_property, values))
    except InvalidInputError as error:
        raise click.BadParameter(str(error), ctx, param) from None


def with_pairs(*names: str, help: str, metavar: str = "KEY=VALUE") -> Command:
    """Return a repeatable option whose values are KEY=VALUE; the command gets them as a dict."""
    return click.option(*names, metavar=metavar, multiple=True, callback=parse_properties, help=help)


with_properties = with_pairs(
    "--property", "properties", help="Property of the client, such as endpoint=URL. Repeatable."
)
with_columns = click.option("--column", "columns", metavar="NAME", multiple=True, help="Only this one. Repeatable.")
with_table = click.argument("table", metavar="ID", callback=parse_required_id)
with_db = click.option(
    "--db", metavar="URL", envvar="LANCEHOUSE_DB", help="Database; default: SQLite in the data folder."
)


def with_config(help: str) -> Command:
    """Return the option `--config`: the file of the catalog server."""
    return click.option("--config", metavar="FILE", envvar="LANCEHOUSE_SERVER_CONFIG", help=help)


@contextmanager
def open_database(url: str | None, *, creates: bool = False) -> Iterator[Database]:
    """Open the database of a catalog server.

    Args:
        url: where it is; default: in the data folder.
        creates: create it if it does not exist.

    Raises:
        InvalidInputError: it does not exist.
    """
    with requires_extra("server"):
        from lancehouse.catalog import bootstrap
    from lancehouse.settings import default_db

    url = url or default_db()
    if not creates:
        bootstrap.require_database(url)
    with closing(bootstrap.open_database(url)) as database:
        yield database


def find_named_catalog(ctx: click.Context) -> Connection | None:
    """Return the catalog that `--catalog`, its variable or the file's `default` names; None if none does.

    Raises:
        InvalidInputError: there is no catalog of that name, or its configuration is invalid.
    """
    app: CliContext = ctx.obj
    name = app.catalog or app.config.default
    return app.config.catalog(name) if name else None


def get_catalog(ctx: click.Context) -> Connection:
    """Return the catalog that a command works on, without its `--property` options.

    Raises:
        UsageError: both `--impl` and a catalog are given.
    """
    from lancehouse import CATALOGS
    from lancehouse.connection import Connection
    from lancehouse.named_catalogs import ICEBERG

    impl: str | None = ctx.params.get("impl")
    if impl is None:
        return find_named_catalog(ctx) or Connection(CATALOGS[ICEBERG])
    if ctx.obj.catalog:
        raise click.UsageError(
            f"the catalog {ctx.obj.catalog} (--catalog or LANCEHOUSE_CATALOG) has an implementation: "
            "leave --impl out, or the catalog",
            ctx,
        )
    return Connection(CATALOGS.get(impl, impl))


def connect(target: Connection, name: str | None = None) -> LanceNamespace:
    """Create the client of a catalog; errors have its name, by default that of the one that the command works on.

    Raises:
        InvalidInputError: there is no such client, or it does not accept these properties.
    """
    from lance_namespace.errors import InvalidInputError

    try:
        return target.connect()
    except InvalidInputError as error:
        from lancehouse.lake.errors import clean_message

        ctx = click.get_current_context()
        if name is None and not ctx.params.get("impl"):
            name = ctx.obj.catalog or ctx.obj.config.default
        words = clean_message(CONSTRUCTING.sub("", str(error)))
        raise InvalidInputError(f"catalog {name}: {words}" if name else words) from None


def with_target(command: Command) -> Command:
    """Add the options that name a catalog to a command, which gets the result as `target`."""

    @with_catalog
    @click.option(
        "--impl",
        metavar="NAME",
        is_eager=True,
        help="Client, where no catalog is named: alias or full class path; default: iceberg.",
    )
    @with_properties
    @wraps(command)
    def wrapper(*arguments: Any, properties: dict[str, str], **options: Any) -> Any:
        options.pop("impl")  # `get_catalog` reads it from the context, as ids do
        os.environ.setdefault("LANCE_LOG", "error")  # before pylance is imported, which logs warnings on stderr
        target = get_catalog(click.get_current_context())
        return command(*arguments, target=override_properties(target, properties), **options)

    return wrapper


def with_catalog(command: Command) -> Command:
    """Add the option `--catalog` to a command; its value is stored in the CliContext."""
    return click.option("--catalog", cls=CatalogOption)(command)


def override_properties(target: Connection, properties: Mapping[str, str]) -> Connection:
    """Return the same catalog with properties that override its own."""
    return replace(target, properties={**target.properties, **properties})


def with_client(command: Command) -> Command:
    """Add the options that name a catalog to a command, which gets a connected client as `client`."""

    @with_target
    @wraps(command)
    def wrapper(*arguments: Any, target: Connection, **options: Any) -> Any:
        client = create_client(target, create_shell(click.get_current_context(), target))
        return command(*arguments, client=client, **options)

    return wrapper


def create_client(target: Connection, shell: Shell, name: str | None = None) -> Client:
    """Connect to a catalog."""
    from lancehouse.cli.client import Client
    from lancehouse.lake.foreign_tables import with_storage_options

    return Client(with_storage_options(connect(target, name), target.properties), target, shell)


def create_shell(ctx: click.Context, target: Connection) -> Shell:
    """Return how commands on the same catalog start and end, without secrets."""
    from lancehouse.admin.checked_catalog import Shell
    from lancehouse.secrets import redact_properties

    impl: str | None = ctx.params.get("impl")
    name = None if impl else ctx.obj.catalog or ctx.obj.config.default
    properties = redact_properties(ctx.params.get("properties") or {} if name else target.properties)
    words = ["--impl", impl] if impl else []
    for key, value in properties.items():
        words += ["--property", f"{key}={value}"]
    explicit = f"lancehouse --catalog {shlex.quote(ctx.obj.catalog)}" if name and ctx.obj.catalog else "lancehouse"
    return Shell(explicit, shlex.join(words))


def with_set(what: str) -> Command:
    """Add the option `--set` for properties of the object that a command creates."""
    return with_pairs("--set", "stored", help=f"A property of the {what}. Repeatable.")


VERSION = click.IntRange(1, 2**63 - 1)
COUNT = click.IntRange(1, 2**31 - 1)


def with_version_options(command: Command) -> Command:
    """Add `--version` and `--tag` to a command, which gets them as `at`: keyword arguments for `Client.open_table`."""

    @click.option("--version", type=VERSION, metavar="N", help="Version to read; default: the latest.")
    @click.option("--tag", metavar="NAME", help="Tag of the version to read.")
    @wraps(command)
    def wrapper(*arguments: Any, version: int | None, tag: str | None, **options: Any) -> Any:
        if version is not None and tag is not None:
            raise click.UsageError("give --version or --tag, not both")
        return command(*arguments, at={"version": version, "tag": tag}, **options)

    return wrapper


with_yes = click.option("--yes", "-y", is_flag=True, help="Do not ask for confirmation; required without a terminal.")


def confirm(app: CliContext, question: str, *, yes: bool) -> None:
    """Ask the user, and exit unless the answer is yes.

    Raises:
        UsageError: there is no terminal, and `--yes` was not given.
    """
    if yes:
        return
    if not sys.stdin.isatty():
        raise click.UsageError("this command asks for confirmation, but there is no terminal: add --yes")
    if not app.output.ask(question):
        app.output.error("nothing was done")
        raise click.exceptions.Exit(FAILED)


def with_side(name: str, metavar: str) -> Command:
    """Return an argument that names a catalog of the configuration file."""
    return click.argument(name, metavar=metavar, shell_complete=complete_catalog)


with_namespace = click.option(
    "--namespace",
    metavar="NS",
    default="",
    callback=parse_id,
    help="Only this namespace and those below; default: all.",
)


def open_side(app: CliContext, name: str) -> NamedCatalog:
    """Connect to a named catalog.

    Raises:
        InvalidInputError: there is no catalog of that name, or its configuration is invalid.
    """
    from lancehouse.admin.checked_catalog import Shell
    from lancehouse.admin.copy import NamedCatalog

    os.environ.setdefault("LANCE_LOG", "error")  # before pylance is imported, which logs warnings on stderr
    shell = Shell(f"lancehouse --catalog {shlex.quote(name)}")
    return NamedCatalog(name, create_client(app.config.catalog(name), shell, name))
