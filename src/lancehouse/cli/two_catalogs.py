"""Arguments and options that commands on two named catalogs share."""

from __future__ import annotations

import os
import shlex
from typing import TYPE_CHECKING

import click

from lancehouse.cli.catalog_options import CONSTRUCTING, Command, parse_id
from lancehouse.cli.lazy_commands import complete_catalog

if TYPE_CHECKING:
    from lancehouse.admin.named_catalog import NamedCatalog
    from lancehouse.cli.main import CliContext


def with_side(name: str, metavar: str) -> Command:
    """Return an argument that names a catalog of the configuration file."""
    return click.argument(name, metavar=metavar, shell_complete=complete_catalog)


with_namespace = click.option(
    "--namespace", metavar="NS", default="", callback=parse_id, help="Only what is in it and below; default: all."
)


def open_side(app: CliContext, name: str) -> NamedCatalog:
    """Connect to a named catalog.

    Raises:
        InvalidInputError: there is no catalog of that name, or its configuration is invalid.
    """
    from lance_namespace.errors import InvalidInputError

    from lancehouse.admin.checked_catalog import Shell
    from lancehouse.admin.named_catalog import NamedCatalog
    from lancehouse.cli.client import Client
    from lancehouse.lake.object_stores import with_storage_options

    os.environ.setdefault("LANCE_LOG", "error")  # before pylance is imported, which logs warnings on stderr
    target = app.config.catalog(name)
    try:
        shell = Shell(f"lancehouse --catalog {shlex.quote(name)}")
        return NamedCatalog(name, Client(with_storage_options(target.connect(), target.properties), target, shell))
    except InvalidInputError as error:
        from lancehouse.lake.errors import clean_message

        raise InvalidInputError(f"catalog {name}: {clean_message(CONSTRUCTING.sub('', str(error)))}") from None
