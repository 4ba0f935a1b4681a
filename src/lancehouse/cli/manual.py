"""Generates the reference of all commands: `python -m lancehouse.cli.manual docs/cli.md` updates that page."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from lancehouse.cli.lazy_commands import LazyGroup
from lancehouse.cli.main import main

MARK = "<!-- What follows is written by `python -m lancehouse.cli.manual docs/cli.md`. -->\n"
WIDTH = 80


def command_contexts(group: LazyGroup, ctx: click.Context) -> Iterator[click.Context]:
    """Yield the contexts of a group and of every command below it."""
    yield ctx
    for name in group.list_commands(ctx):
        command = group.load(name)
        child = click.Context(command, parent=ctx, info_name=name, terminal_width=WIDTH, max_content_width=WIDTH)
        if isinstance(command, LazyGroup):
            yield from command_contexts(command, child)
        else:
            yield child


def all_command_contexts() -> Iterator[click.Context]:
    """Yield the contexts of the program and of all its commands."""
    settings: dict[str, Any] = {**main.context_settings, "terminal_width": WIDTH, "max_content_width": WIDTH}
    return command_contexts(main, click.Context(main, info_name="lancehouse", **settings))


def render_manual() -> str:
    """Return the help of all commands as Markdown."""
    return "\n".join(
        f"### `{ctx.command_path}`\n\n```text\n{ctx.command.get_help(ctx).rstrip()}\n```\n"
        for ctx in all_command_contexts()
    )


def update_page(page: str) -> str:
    """Replace the part of a page below the mark by the current help."""
    return f"{page.partition(MARK)[0]}{MARK}\n{render_manual()}"


if __name__ == "__main__":
    file = Path(sys.argv[1])
    file.write_text(update_page(file.read_text("utf-8")), "utf-8")
