"""How commands answer: one interface, for people (rich) and for programs (JSON)."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING

import click
from rich import box
from rich.console import Console, RenderableType
from rich.markup import escape
from rich.table import Table

if TYPE_CHECKING:
    from rich.progress import Progress as Bar
    from rich.progress import TaskID

OK, FAILED, INTERRUPTED = 0, 1, 130
"""How commands end; 2 is wrong usage."""

Row = Mapping[str, object]

LONG = 240
"""Where a cell is cut for people; programs get all of it."""

STYLES = {
    **dict.fromkeys(("done", "holds"), "green"),
    "fails": "bold red",
    "known": "yellow",
    **dict.fromkeys(("empty", "not checked", "unsupported"), "dim"),
}
"""Words that stand out where they are a whole cell."""


@dataclass(frozen=True)
class Column:
    """A column for people; programs get every key of a row."""

    key: str
    title: str
    width: int | None = None
    grouped: bool = False
    """Say a value once where it repeats from row to row."""


class Progress:
    """What a command says while it works; nothing, unless someone watches."""

    is_seen = False

    def say(self, words: str) -> None:
        """Tell what it does."""

    def count(self, done: int, total: int) -> None:
        """Tell how far it is, as a bar; without a total there is none."""


class Output(ABC):
    """Commands hand over data; how they look is decided here."""

    @abstractmethod
    def record(self, title: str, fields: Row) -> None:
        """One thing and what is known of it."""

    @abstractmethod
    def table(
        self, columns: Sequence[Column], rows: Sequence[Row], summary: Row, words: str, *, name: str = "rows"
    ) -> None:
        """Many things of a kind.

        Args:
            columns: what people see of them.
            rows: the things.
            summary: about all of them, for programs.
            words: the same for people.
            name: what programs find the things under.
        """

    @abstractmethod
    def error(self, sentence: str) -> None:
        """What went wrong, on stderr."""

    @abstractmethod
    def progress(self, words: str) -> AbstractContextManager[Progress]:
        """Something that takes a while."""


class Text(Output):
    """For people. A table fits the terminal, or 80 columns where there is none."""

    def __init__(self) -> None:
        self._out = Console(highlight=False)
        self._err = Console(stderr=True, highlight=False)

    def record(self, title: str, fields: Row) -> None:
        if title:
            self._out.print(f"[bold]{escape(title)}[/bold]")
        width = max(map(len, fields), default=0)
        for key, value in fields.items():
            self._out.print(f"{key:{width}}  {_said(value)}", soft_wrap=True, markup=False)

    def table(
        self, columns: Sequence[Column], rows: Sequence[Row], summary: Row, words: str, *, name: str = "rows"
    ) -> None:
        table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0))
        for column in columns:
            table.add_column(column.title, width=column.width, overflow="fold")
        before: Row = {}
        for row in rows:
            table.add_row(*(_cell(column, row, before) for column in columns))
            before = row
        self._out.print(table)
        self._out.print(words, soft_wrap=True, markup=False)

    def error(self, sentence: str) -> None:
        self._err.print(f"[bold red]Error:[/bold red] {escape(sentence)}", soft_wrap=True)

    @contextmanager
    def progress(self, words: str) -> Iterator[Progress]:
        if not self._err.is_terminal:
            yield Progress()
            return
        with _bar(self._err) as bar:
            yield _Line(bar, words)


class Json(Output):
    """For programs: one JSON document on stdout."""

    def record(self, title: str, fields: Row) -> None:
        _print(fields)

    def table(
        self, columns: Sequence[Column], rows: Sequence[Row], summary: Row, words: str, *, name: str = "rows"
    ) -> None:
        _print({**summary, name: list(rows)})

    def error(self, sentence: str) -> None:
        click.echo(json.dumps({"error": sentence}, ensure_ascii=False), err=True)

    def progress(self, words: str) -> AbstractContextManager[Progress]:
        return nullcontext(Progress())


OUTPUTS: dict[str, type[Output]] = {"text": Text, "json": Json}


class _Line(Progress):
    is_seen = True

    def __init__(self, bar: Bar, words: str) -> None:
        self._bar = bar
        self._words = words
        self._task: TaskID = bar.add_task(escape(words), total=None)

    def say(self, words: str) -> None:
        self._bar.update(self._task, description=escape(f"{self._words}: {words}" if words else self._words))

    def count(self, done: int, total: int) -> None:
        self._bar.update(self._task, completed=done, total=total or None)


def _bar(console: Console) -> Bar:
    """A line that goes away: words, how far it is where that is known, and for how long it has been at it."""
    from rich.progress import BarColumn, MofNCompleteColumn, ProgressColumn, SpinnerColumn, Task, TimeElapsedColumn
    from rich.progress import Progress as Bar
    from rich.table import Column as Place
    from rich.text import Text as Words

    class Known(ProgressColumn):
        """A column that is empty as long as nobody knows how much there is."""

        def __init__(self, column: ProgressColumn) -> None:
            super().__init__()
            self._column = column

        def render(self, task: Task) -> RenderableType:
            return Words() if task.total is None else self._column.render(task)

    class Said(ProgressColumn):
        """The words, cut where they would need a second line."""

        def render(self, task: Task) -> RenderableType:
            return Words.from_markup(task.description, overflow="ellipsis")

    said, bar = Said(Place(ratio=1, no_wrap=True)), BarColumn(20, complete_style="green", finished_style="green")
    columns = (SpinnerColumn(), said, Known(bar), Known(MofNCompleteColumn()), TimeElapsedColumn())
    # Whoever has stderr for himself meanwhile, as `quiet` does, would not find it in its place.
    return Bar(*columns, console=console, transient=True, expand=True, redirect_stderr=False, redirect_stdout=False)


def _said(value: object) -> object:
    if isinstance(value, list | tuple):
        return ", ".join(map(str, value)) or "none"
    return "none" if value is None else value


def _cell(column: Column, row: Row, before: Row) -> str:
    value = "" if row[column.key] is None else str(row[column.key])
    if column.grouped and row[column.key] == before.get(column.key):
        return ""
    value = value if len(value) <= LONG else value[:LONG] + "…"
    style = STYLES.get(value)
    return f"[{style}]{escape(value)}[/{style}]" if style else escape(value)


def _print(data: Row) -> None:
    click.echo(json.dumps(data, indent=2, ensure_ascii=False, default=str))
