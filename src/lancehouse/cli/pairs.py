"""What commands share that work on two named catalogs."""

from __future__ import annotations

import os
import shlex
from typing import TYPE_CHECKING

import click

from lancehouse.cli.catalogs import CONSTRUCTING, Command, levels
from lancehouse.cli.lazy import complete_catalog

if TYPE_CHECKING:
    from lancehouse.care.sides import Side
    from lancehouse.cli.main import App


def with_side(name: str, metavar: str) -> Command:
    """An argument that names a catalog of the config file."""
    return click.argument(name, metavar=metavar, shell_complete=complete_catalog)


with_namespace = click.option(
    "--namespace", metavar="NS", default="", callback=levels, help="Only what is in it and below; default: all."
)


def side(app: App, name: str) -> Side:
    """A catalog by its name.

    Raises:
        InvalidInputError: there is none, or what is said of it is wrong.
    """
    from lance_namespace.errors import InvalidInputError

    from lancehouse.care.catalogs import Shell
    from lancehouse.care.sides import Side
    from lancehouse.cli.client import Client
    from lancehouse.lake.reaching import reaching

    os.environ.setdefault("LANCE_LOG", "error")  # read when pylance is imported, which warns on stderr
    target = app.config.catalog(name)
    try:
        shell = Shell(f"lancehouse --catalog {shlex.quote(name)}")
        return Side(name, Client(reaching(target.connect(), target.properties), target, shell))
    except InvalidInputError as error:
        from lancehouse.lake.errors import readable

        raise InvalidInputError(f"catalog {name}: {readable(CONSTRUCTING.sub('', str(error)))}") from None
