"""`lancehouse completion`: print the shell code that completes commands, options and names of catalogs."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

PROGRAM = "lancehouse"
VARIABLE = "_LANCEHOUSE_COMPLETE"
SHELLS = ("bash", "zsh", "fish")


@click.command()
@click.argument("shell", type=click.Choice(SHELLS))
@click.pass_context
def completion(ctx: click.Context, shell: str) -> None:
    """Print what makes a shell complete commands.

    And options, and the names of catalogs.

    \b
    bash:  eval "$(lancehouse completion bash)"      in ~/.bashrc
    zsh:   eval "$(lancehouse completion zsh)"       in ~/.zshrc
    fish:  lancehouse completion fish | source       in ~/.config/fish/config.fish
    """  # noqa: D301 - click reads \b as the mark of lines that stay as they are
    kind = get_completion_class(shell)
    assert kind is not None
    click.echo(kind(ctx.find_root().command, {}, PROGRAM, VARIABLE).source())
