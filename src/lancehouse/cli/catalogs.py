"""What commands that work on a catalog share: the options that name it, and ids as people write them."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any

import click
from lance_namespace.errors import InvalidInputError

from lancehouse.conformance.target import Target, parse_property
from lancehouse.identifiers import parse_levels

Command = Callable[..., Any]

CLASS_PATHS = {
    "iceberg": "lancehouse.IcebergNamespace",
    "polaris": "lancehouse.PolarisNamespace",
    "unity": "lancehouse.UnityNamespace",
}
"""Our own aliases, which another package may register too."""


def levels(ctx: click.Context, param: click.Parameter, value: str) -> tuple[str, ...]:
    """An id as people write it, taken apart."""
    try:
        return parse_levels(value)
    except InvalidInputError as error:
        raise click.BadParameter(str(error), ctx, param) from None


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
with_table = click.argument("table", metavar="ID", callback=levels)


def with_target(command: Command) -> Command:
    """The options that name a catalog. The command gets what they say, as `target`."""

    @click.option(
        "--impl", default="iceberg", metavar="NAME", help="Client: alias or full class path; default: iceberg."
    )
    @with_properties
    @wraps(command)
    def named(*arguments: Any, impl: str, properties: dict[str, str], **options: Any) -> Any:
        os.environ.setdefault("LANCE_LOG", "error")  # read when pylance is imported, which warns on stderr
        return command(*arguments, target=Target(CLASS_PATHS.get(impl, impl), properties), **options)

    return named


def with_namespace(command: Command) -> Command:
    """The options that name a catalog. The command gets the client that they make, as `namespace`."""

    @with_target
    @wraps(command)
    def connected(*arguments: Any, target: Target, **options: Any) -> Any:
        return command(*arguments, namespace=target.connect(), **options)

    return connected
