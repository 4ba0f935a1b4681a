"""How commands answer: one interface, for people (rich) and for programs (JSON)."""

from __future__ import annotations

import json
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import click

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.progress import Progress as Bar
    from rich.progress import TaskID

OK, FAILED, INTERRUPTED = 0, 1, 130
"""How commands end; 2 is wrong usage."""

Row = Mapping[str, object]

CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
LONG = 240
"""Where a cell is cut for people; programs get all of it."""

BETWEEN = 2
"""Characters between the columns of a table."""

WIDTHS = (40, 28, 20)
"""How wide a cell of a row of data may be; the first with which all columns fit, else the last."""
NAMED = 6
"""Columns that are named if there is no room for them."""

STYLES = {
    **dict.fromkeys(("done", "holds"), "green"),
    "fails": "bold red",
    "known": "yellow",
    **dict.fromkeys(("empty", "not checked", "unsupported"), "dim"),
}
"""Words that stand out where they are a whole cell."""


@dataclass(frozen=True)
class OutputColumn:
    """A column for people; programs get every key of a row."""

    key: str
    title: str
    width: int | None = None
    grouped: bool = False
    """Say a value once where it repeats from row to row."""
    is_number: bool = False
    is_rigid: bool = False
    """Half of a value would mislead."""


class ProgressDisplay:
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
        self, columns: Sequence[OutputColumn], rows: Sequence[Row], summary: Row, words: str, *, name: str = "rows"
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
    def rows(
        self,
        columns: Sequence[OutputColumn],
        display_rows: Callable[[], Sequence[Row]],
        values: Callable[[], Sequence[Row]],
        summary: Row,
        words: str,
    ) -> None:
        """Rows of data, of any number of columns.

        Args:
            columns: of the data.
            display_rows: what people see of the values.
            values: what programs get.
            summary: about all of them, for programs.
            words: the same for people.
        """

    @abstractmethod
    def error(self, sentence: str, hints: Sequence[str] = ()) -> None:
        """What went wrong, and what to do about it, on stderr."""

    def ask(self, question: str) -> bool:
        """Whether somebody at the terminal says yes; the question is on stderr."""
        return click.confirm(strip_control(question), err=True)

    @abstractmethod
    def progress(self, words: str) -> AbstractContextManager[ProgressDisplay]:
        """Something that takes a while."""


class TextOutput(Output):
    """For people. A table fits the terminal, or 80 columns where there is none."""

    def __init__(self) -> None:
        from rich.console import Console

        self._out = Console(highlight=False, emoji=False)
        self._err = Console(stderr=True, highlight=False, emoji=False)

    def record(self, title: str, fields: Row) -> None:
        if title:
            self._out.print(title, style="bold", markup=False)
        self._print_fields(fields, "")

    def _print_fields(self, fields: Row, indent: str) -> None:
        width = max(map(len, fields), default=0)
        for key, value in fields.items():
            if isinstance(value, Mapping) and value:
                self._print_line(f"{indent}{key}")
                self._print_fields(value, f"{indent}  ")
            else:
                self._print_line(f"{indent}{key:{width}}  {_format_value(value)}")

    def _print_line(self, text: str) -> None:
        self._out.print(strip_control(text), soft_wrap=True, markup=False)

    def table(
        self, columns: Sequence[OutputColumn], rows: Sequence[Row], summary: Row, words: str, *, name: str = "rows"
    ) -> None:
        if rows:
            self._out.print(_render_table(columns, rows))
        self._print_line(words)

    def rows(
        self,
        columns: Sequence[OutputColumn],
        display_rows: Callable[[], Sequence[Row]],
        values: Callable[[], Sequence[Row]],
        summary: Row,
        words: str,
    ) -> None:
        rows = display_rows()
        most, fitting = _fit_columns(columns, rows, self._out.width)
        self.table(fitting, [_truncate_row(row, fitting, most) for row in rows], summary, words)
        if left_out := [column.title for column in columns[len(fitting) :]]:
            more = f" and {len(left_out) - NAMED} more" if len(left_out) > NAMED else ""
            self._print_line(
                f"There is no room for {', '.join(left_out[:NAMED])}{more}: --column NAME shows what you choose."
            )

    def error(self, sentence: str, hints: Sequence[str] = ()) -> None:
        self._err.print("[bold red]Error:[/bold red]", end=" ")
        self._err.print(strip_control(sentence), soft_wrap=True, markup=False)
        for hint in hints:
            self._err.print("[bold]Hint:[/bold]", end=" ")
            self._err.print(strip_control(hint), soft_wrap=True, markup=False)

    @contextmanager
    def progress(self, words: str) -> Iterator[ProgressDisplay]:
        if not self._err.is_terminal:
            yield ProgressDisplay()
            return
        with _create_bar(self._err) as bar:
            yield _ProgressBar(bar, words)


class JsonOutput(Output):
    """For programs: one JSON document on stdout."""

    def record(self, title: str, fields: Row) -> None:
        _print_json(fields)

    def table(
        self, columns: Sequence[OutputColumn], rows: Sequence[Row], summary: Row, words: str, *, name: str = "rows"
    ) -> None:
        _print_json({**summary, name: list(rows)})

    def rows(
        self,
        columns: Sequence[OutputColumn],
        display_rows: Callable[[], Sequence[Row]],
        values: Callable[[], Sequence[Row]],
        summary: Row,
        words: str,
    ) -> None:
        _print_json({**summary, "rows": list(values())})

    def error(self, sentence: str, hints: Sequence[str] = ()) -> None:
        document = {"error": sentence, **({"hints": list(hints)} if hints else {})}
        click.echo(json.dumps(document, ensure_ascii=False), err=True)

    def progress(self, words: str) -> AbstractContextManager[ProgressDisplay]:
        return nullcontext(ProgressDisplay())


OUTPUTS: dict[str, type[Output]] = {"text": TextOutput, "json": JsonOutput}


class _ProgressBar(ProgressDisplay):
    is_seen = True

    def __init__(self, bar: Bar, words: str) -> None:
        from rich.markup import escape

        self._escape = escape
        self._bar = bar
        self._words = words
        self._task: TaskID = bar.add_task(escape(words), total=None)

    def say(self, words: str) -> None:
        self._bar.update(self._task, description=self._escape(f"{self._words}: {words}" if words else self._words))

    def count(self, done: int, total: int) -> None:
        self._bar.update(self._task, completed=done, total=total or None)


def _create_bar(console: Console) -> Bar:
    """A line that goes away: words, how far it is where that is known, and for how long it has been at it."""
    from rich.progress import BarColumn, MofNCompleteColumn, ProgressColumn, SpinnerColumn, Task, TimeElapsedColumn
    from rich.progress import Progress as Bar
    from rich.table import Column as Place
    from rich.text import Text as Words

    class DeterminateColumn(ProgressColumn):
        """A column that is empty as long as nobody knows how much there is."""

        def __init__(self, column: ProgressColumn) -> None:
            super().__init__()
            self._column = column

        def render(self, task: Task) -> RenderableType:
            return Words() if task.total is None else self._column.render(task)

    class DescriptionColumn(ProgressColumn):
        """The words, cut where they would need a second line."""

        def render(self, task: Task) -> RenderableType:
            return Words.from_markup(task.description, overflow="ellipsis")

    description, bar = (
        DescriptionColumn(Place(ratio=1, no_wrap=True)),
        BarColumn(20, complete_style="green", finished_style="green"),
    )
    columns = (
        SpinnerColumn(),
        description,
        DeterminateColumn(bar),
        DeterminateColumn(MofNCompleteColumn()),
        TimeElapsedColumn(),
    )
    # Whoever has stderr for himself meanwhile, as `quiet` does, would not find it in its place.
    return Bar(*columns, console=console, transient=True, expand=True, redirect_stderr=False, redirect_stdout=False)


def _format_value(value: object) -> str:
    """What is known, or that nothing is."""
    if isinstance(value, list | tuple | Mapping):
        return ", ".join(map(str, value)) or "none"
    return "none" if value is None else str(value)


def _render_table(columns: Sequence[OutputColumn], rows: Sequence[Row]) -> RenderableType:
    from rich import box
    from rich.table import Table
    from rich.text import Text as Words

    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0))
    for column in columns:
        justify: Literal["left", "right"] = "right" if column.is_number else "left"
        table.add_column(Words(column.title), width=column.width, overflow="fold", justify=justify)
    before: Row = {}
    for row in rows:
        cells = [_format_cell(column, row, before) for column in columns]
        table.add_row(*(Words(cell, style=STYLES.get(cell, "")) for cell in cells))
        before = row
    return table


def _fit_columns(
    columns: Sequence[OutputColumn], rows: Sequence[Row], width: int
) -> tuple[int, Sequence[OutputColumn]]:
    """How wide a cell may be, and the columns that a line then has room for, the first ones; one at least."""
    for most in WIDTHS:
        room = width + BETWEEN
        for place, column in enumerate(columns):
            room -= _column_width(column, rows, most) + BETWEEN
            if room < 0 and place:
                break
        else:
            return most, columns
    return most, columns[:place]


def _column_width(column: OutputColumn, rows: Sequence[Row], most: int) -> int:
    from rich.cells import cell_len

    widest = max((cell_len(_format_cell(column, row, {})) for row in rows), default=0)
    return max(cell_len(column.title), widest if column.is_rigid else min(widest, most))


def _truncate_row(row: Row, columns: Sequence[OutputColumn], most: int) -> Row:
    """A row whose cells are no wider than that, where they can be cut."""
    from rich.cells import cell_len, set_cell_size

    cells = {column.key: _format_cell(column, row, {}) for column in columns}
    return {
        column.key: cells[column.key]
        if column.is_rigid or cell_len(cells[column.key]) <= max(most, cell_len(column.title))
        else set_cell_size(cells[column.key], max(most, cell_len(column.title)) - 1).rstrip() + "…"
        for column in columns
    }


def _format_cell(column: OutputColumn, row: Row, before: Row) -> str:
    if column.grouped and row[column.key] == before.get(column.key):
        return ""
    value = strip_control(_format_value(row[column.key])) if row[column.key] not in (None, [], ()) else ""
    return value if len(value) <= LONG else value[:LONG] + "…"


def strip_control(text: str) -> str:
    """The text without what would move a terminal's cursor or colour it."""
    return CONTROL.sub("�", text)


def _print_json(data: Row) -> None:
    click.echo(json.dumps(data, indent=2, ensure_ascii=False, default=str))
