"""The options `--version` and `--tag` of commands that read a table."""

from __future__ import annotations

from dataclasses import dataclass
from functools import wraps
from typing import Any

import click

from lancehouse.cli.catalog_options import Command

VERSION = click.IntRange(1, 2**63 - 1)


@dataclass(frozen=True)
class VersionOptions:
    """A version by its number or by a tag; the latest if neither is given."""

    version: int | None
    tag: str | None

    @property
    def arguments(self) -> dict[str, Any]:
        """Keyword arguments for `Client.open_table`."""
        return {"version": self.version, "tag": self.tag}


def with_version_options(command: Command) -> Command:
    """Add `--version` and `--tag` to a command, which gets them as `at`."""

    @click.option("--version", type=VERSION, metavar="N", help="Of this version; default: the latest.")
    @click.option("--tag", metavar="NAME", help="Of the version that has this tag.")
    @wraps(command)
    def wrapper(*arguments: Any, version: int | None, tag: str | None, **options: Any) -> Any:
        if version is not None and tag is not None:
            raise click.UsageError("give --version or --tag, not both")
        return command(*arguments, at=VersionOptions(version, tag), **options)

    return wrapper
