"""Confirmation before commands that remove something."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from lancehouse.cli.output import FAILED

if TYPE_CHECKING:
    from lancehouse.cli.main import CliContext

with_yes = click.option("--yes", "-y", is_flag=True, help="Do not ask; without a terminal nobody could answer.")


def confirm(app: CliContext, question: str, *, yes: bool) -> None:
    """Ask the user, and exit unless the answer is yes.

    Raises:
        UsageError: there is no terminal, and `--yes` was not given.
    """
    if yes:
        return
    if not sys.stdin.isatty():
        raise click.UsageError("this asks before it removes anything, and there is no terminal to ask at: add --yes")
    if not app.output.ask(question):
        app.output.error("nothing was done")
        raise click.exceptions.Exit(FAILED)
