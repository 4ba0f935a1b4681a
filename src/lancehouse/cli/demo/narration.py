"""Output of the demo: a heading and progress for each step, then its result."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.markup import escape
from rich.padding import Padding
from rich.text import Text

from lancehouse.cli.lazy_commands import KINDS

if TYPE_CHECKING:
    from lancehouse.cli.main import CliContext
    from lancehouse.cli.output import OutputColumn, ProgressDisplay, Row

INDENT = 2


class DemoOutput:
    """Prints the demo as text while it runs, or collects `facts` for JSON."""

    def __init__(self, app: CliContext) -> None:
        self.facts: dict[str, Any] = {}
        """Results of the steps, by name."""
        self.is_read = app.kind == KINDS[0]
        self._output = app.output
        self._console = Console(highlight=False, emoji=False, quiet=not self.is_read)
        self._steps = 0

    @property
    def is_seen(self) -> bool:
        """Whether the output is a terminal."""
        return self.is_read and self._console.is_terminal

    def title(self, words: str) -> None:
        """Print a line in bold."""
        self._console.print(f"[bold]{escape(words)}[/]")

    @contextmanager
    def step(self, words: str) -> Iterator[ProgressDisplay]:
        """Print the heading of a step, and show its progress."""
        self._steps += 1
        self._console.print(f"\n[bold cyan]{self._steps}[/] [bold]{escape(words)}[/]")
        with self._output.progress("working") as progress:
            yield progress

    def say(self, words: str) -> None:
        """Print a sentence about the result."""
        self._console.print(Padding(Text(words), (0, 0, 0, INDENT)))

    def show(self, columns: Sequence[OutputColumn], rows: Sequence[Row], words: str) -> None:
        """Print a result as a table."""
        if self.is_read:
            self._output.table(columns, rows, {}, words)

    def line(self, words: str = "") -> None:
        """Print a line for copying, without wrapping it."""
        self._console.print(words, markup=False, soft_wrap=True)
