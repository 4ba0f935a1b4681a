"""What commands that work on a catalog share: the options that name it, and ids as people write them."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Sequence
from functools import wraps
from typing import Any

import click
from lance_namespace.errors import InvalidInputError

from lancehouse.conformance.target import Target, parse_parent, parse_property

Command = Callable[..., Any]

CLASS_PATHS = {
    "iceberg": "lancehouse.IcebergNamespace",
    "polaris": "lancehouse.PolarisNamespace",
    "unity": "lancehouse.UnityNamespace",
}
"""Our own aliases, which another package may register too."""

PLAIN = re.compile(r"[^.$`]+")
"""A level that is written as it is; any other one in backquotes."""


def levels(ctx: click.Context, param: click.Parameter, value: str) -> tuple[str, ...]:
    """A namespace id as people write it, taken apart."""
    try:
        return parse_parent(value)
    except InvalidInputError as error:
        raise click.BadParameter(str(error), ctx, param) from None


def table_levels(ctx: click.Context, param: click.Parameter, value: str) -> tuple[str, ...]:
    """A table id as people write it, taken apart."""
    try:
        return parse_parent(value)
    except InvalidInputError:
        words = f"{value!r} is no table id: levels are joined by dots, one with a dot is `quoted`"
        raise click.BadParameter(words, ctx, param) from None


def written(id: Iterable[str]) -> str:
    """An id as people write it: levels joined by dots, one with a dot in backquotes."""
    return ".".join(level if PLAIN.fullmatch(level) else f"`{level.replace('`', '``')}`" for level in id)


def pairs(ctx: click.Context, param: click.Parameter, values: Sequence[str]) -> dict[str, str]:
    """Properties taken apart; what is wrong with one is said without repeating it, for it may hold a secret."""
    try:
        return dict(map(parse_property, values))
    except InvalidInputError as error:
        raise click.BadParameter(str(error), ctx, param) from None


with_properties = click.option(
    "--property",
    "properties",
    metavar="KEY=VALUE",
    multiple=True,
    callback=pairs,
    help="Of the client: endpoint=URL, …; repeat it for each.",
)
with_table = click.argument("table", metavar="ID", callback=table_levels)


def with_namespace(command: Command) -> Command:
    """The options that name a catalog. The command gets the client that they make, as `namespace`."""

    @click.option(
        "--impl", default="iceberg", metavar="NAME", help="Client: alias or full class path; default: iceberg."
    )
    @with_properties
    @wraps(command)
    def connected(*arguments: Any, impl: str, properties: dict[str, str], **options: Any) -> Any:
        os.environ.setdefault("LANCE_LOG", "error")  # read when pylance is imported, which warns on stderr
        namespace = Target(CLASS_PATHS.get(impl, impl), properties).connect()
        return command(*arguments, namespace=namespace, **options)

    return connected
