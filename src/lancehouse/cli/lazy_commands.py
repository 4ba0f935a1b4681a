"""Click commands that are imported when they are called, so that help and completion are fast."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from importlib import import_module
from typing import Any

import click

from lancehouse.suggestions import find_close

KINDS = ("text", "json")
"""Output formats of commands."""

OTHER_WORDS = {
    "ls": ("list",),
    **dict.fromkeys(("rm", "remove", "delete"), ("drop", "delete")),
    **dict.fromkeys(("show", "info", "get"), ("describe", "status")),
    **dict.fromkeys(("head", "select", "rows", "cat"), ("preview",)),
    "mv": ("rename",),
    **dict.fromkeys(("add", "new", "make"), ("create", "register")),
    **dict.fromkeys(("versions", "log"), ("history",)),
    "columns": ("schema",),
    "tags": ("tag",),
    **dict.fromkeys(("server", "start"), ("serve",)),
}
"""Names that other programs use for the same commands."""

CATALOG = "Name of a catalog in ~/.lancehouse.yaml."
EVERYWHERE = "Every command takes --output text|json and --debug too."
"""Last line of each command's help."""


class LazyCommand(click.Command):
    """Placeholder for a command: its name, summary and module.

    Args:
        name: of the command, and of the function unless `attribute` is given.
        module: the module with the function.
        does: the first sentence of its help.
        attribute: the name of the function.
        is_group: whether it has subcommands.
    """

    def __init__(
        self, name: str, module: str, does: str, *, attribute: str | None = None, is_group: bool = False
    ) -> None:
        super().__init__(name, help=does)
        self.does = does
        self.is_group = is_group
        self._module = module
        self._attribute = attribute or name.replace("-", "_")

    def load(self) -> click.Command:
        """Import and return the command itself."""
        command: click.Command = getattr(import_module(self._module), self._attribute)
        return command


class LazyGroup(click.Group):
    """A group whose commands may be imported when they are called; adds the global options to each of them."""

    group_class: type[click.Group] | type[type] | None = type

    def __init__(self, *arguments: Any, lazy: Sequence[LazyCommand] = (), **named: Any) -> None:
        super().__init__(*arguments, **named)
        for command in lazy:
            self.add_command(command)

    def load(self, name: str) -> click.Command:
        """Return a command of this group, imported if necessary, with the global options."""
        command = self.commands[name]
        return with_global_options(command.load() if isinstance(command, LazyCommand) else command)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Load the command that is called; suggest similar ones if it does not exist."""
        if args[0] in self.commands:
            return args[0], self.load(args[0]), args[1:]
        if args[0].startswith("-") or ctx.resilient_parsing:
            return super().resolve_command(ctx, args)
        suggestions = self._similar_commands(ctx, args[0]) or self._subcommands_named(ctx, args[0])
        hint = f" Did you mean `{'` or `'.join(suggestions)}`?" if suggestions else ""
        raise click.UsageError(f"No such command {args[0]!r}.{hint}", ctx)

    def _similar_commands(self, ctx: click.Context, name: str) -> list[str]:
        synonyms = [synonym for synonym in OTHER_WORDS.get(name.lower(), ()) if synonym in self.commands]
        close = find_close(name, self.commands, 0.7)
        return [f"{ctx.command_path} {command}" for command in synonyms or ([close] if close else [])]

    def _subcommands_named(self, ctx: click.Context, name: str) -> list[str]:
        """Return the subcommands of this name in the groups below."""
        groups = [
            self.load(group) for group, lazy in self.commands.items() if isinstance(lazy, LazyCommand) and lazy.is_group
        ]
        return [
            f"{ctx.command_path} {group.name} {name}"
            for group in groups
            if isinstance(group, click.Group) and name in group.commands
        ]


class GlobalOption(click.Option):
    """An option that sets an attribute of the CliContext, before or after a command's name; the last one wins."""

    def __init__(self, names: Sequence[str], *, attribute: str, is_shown: bool = False, **named: Any) -> None:
        def on_value(ctx: click.Context, _: click.Parameter, value: Any) -> None:
            if value and ctx.obj is not None:
                setattr(ctx.obj, attribute, value)

        super().__init__(names, expose_value=False, is_eager=True, callback=on_value, **named)
        self._is_shown = is_shown

    def get_help_record(self, ctx: click.Context) -> tuple[str, str] | None:
        """Hide the option where the last line of the help mentions it for all commands."""
        return super().get_help_record(ctx) if self._is_shown else None


def complete_catalog(_ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[str]:
    """Complete the names of catalogs; return none if the configuration file is invalid."""
    from lance_namespace.errors import InvalidInputError

    from lancehouse import named_catalogs

    try:
        return [name for name in named_catalogs.load().names if name.startswith(incomplete)]
    except InvalidInputError:
        return []


class CatalogOption(GlobalOption):
    """The option `--catalog`; commands that work on a catalog show it in their help."""

    def __init__(self, names: Sequence[str], *, is_shown: bool = True, **named: Any) -> None:
        super().__init__(
            names,
            metavar="NAME",
            attribute="catalog",
            shell_complete=complete_catalog,
            help=CATALOG,
            is_shown=is_shown,
            **named,
        )


def with_global_options(command: click.Command) -> click.Command:
    """Return a copy of a command that also accepts the global options after its name."""
    is_group = isinstance(command, click.Group)
    existing = {name for param in command.params for name in param.opts}
    output = GlobalOption(["--output"], type=click.Choice(KINDS), attribute="kind")
    debug = GlobalOption(["--debug"], is_flag=True, attribute="debug")
    options = (output, debug, *([CatalogOption(["--catalog"], is_shown=False)] if is_group else ()))
    extended = copy(command)
    extended.params = [*command.params, *(option for option in options if not existing.intersection(option.opts))]
    if not is_group:
        extended.epilog = command.epilog or EVERYWHERE
    return extended
