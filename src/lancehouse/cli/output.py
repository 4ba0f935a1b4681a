"""Output of commands: text for people (rich) or JSON for programs; and formats of counts, sizes and times."""

from __future__ import annotations

import json
import re
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Literal

import click

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.progress import Progress as Bar
    from rich.progress import TaskID


OK, FAILED, INTERRUPTED = 0, 1, 130
"""Exit codes of commands; click uses 2 for wrong usage."""

Row = Mapping[str, object]

CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
LONG = 240
"""Longest cell in characters on a terminal; JSON is not cut."""

BETWEEN = 2
"""Characters between the columns of a table."""

WIDTHS = (40, 28, 20)
"""Widths to which cells of data may be cut: the first with which all columns fit, else the last."""
NAMED = 6
"""Most columns that are named in the note about columns that do not fit."""

STYLES = {
    **dict.fromkeys(("done", "holds"), "green"),
    "fails": "bold red",
    "known": "yellow",
    **dict.fromkeys(("empty", "not checked", "unsupported"), "dim"),
}
"""Styles of cells that consist of one of these words."""


@dataclass(frozen=True)
class OutputColumn:
    """A column of a table on a terminal; JSON has every key of a row."""

    key: str
    title: str
    width: int | None = None
    grouped: bool = False
    """Whether to leave a cell empty that repeats the value of the row above."""
    is_number: bool = False
    is_rigid: bool = False
    """Whether the value must not be cut, because a part of it would mislead."""


def output_columns(numbers: Collection[str] = (), **titles: str) -> tuple[OutputColumn, ...]:
    """Return columns by their keys and titles; those in `numbers` hold numbers."""
    return tuple(OutputColumn(key, title, is_number=key in numbers) for key, title in titles.items())


class ProgressDisplay:
    """Progress of a command; this base class displays nothing."""

    is_seen = False

    def say(self, words: str) -> None:
        """Show what the command is doing."""

    def count(self, done: int, total: int) -> None:
        """Show progress as a bar; none if `total` is 0."""


class Output(ABC):
    """How commands print their results."""

    @abstractmethod
    def record(self, fields: Row) -> None:
        """Print one object: its fields."""

    @abstractmethod
    def table(
        self,
        columns: Sequence[OutputColumn],
        rows: Sequence[Row],
        summary: Row,
        words: str,
        *,
        name: str = "rows",
        is_data: bool = False,
    ) -> None:
        """Print a list of objects.

        Args:
            columns: the columns of the text output.
            rows: the objects.
            summary: fields about the whole list, for JSON.
            words: the same as a sentence, for text.
            name: the key of the list in JSON.
            is_data: whether these are rows of data, with any number of columns: a terminal shows those that fit.
        """

    @abstractmethod
    def error(self, sentence: str, hints: Sequence[str] = ()) -> None:
        """Print an error and hints on what to do, to stderr."""

    def ask(self, question: str) -> bool:
        """Ask a yes-no question on stderr, and return the answer."""
        return click.confirm(strip_control(question), err=True)

    @abstractmethod
    def progress(self, words: str) -> AbstractContextManager[ProgressDisplay]:
        """Return a context in which progress is displayed."""


class TextOutput(Output):
    """Output for people. A table fits the width of the terminal, or 80 columns where there is none."""

    def __init__(self) -> None:
        from rich.console import Console

        self._out = Console(highlight=False, emoji=False)
        self._err = Console(stderr=True, highlight=False, emoji=False)

    def record(self, fields: Row) -> None:
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
        self,
        columns: Sequence[OutputColumn],
        rows: Sequence[Row],
        summary: Row,
        words: str,
        *,
        name: str = "rows",
        is_data: bool = False,
    ) -> None:
        fitting = columns
        if is_data:
            most, fitting = _fit_columns(columns, rows, self._out.width)
            rows = [_truncate_row(row, fitting, most) for row in rows]
        if rows:
            self._out.print(_render_table(fitting, rows))
        self._print_line(words)
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
    """Output for programs: one JSON document on stdout."""

    def record(self, fields: Row) -> None:
        _print_json(fields)

    def table(
        self,
        columns: Sequence[OutputColumn],
        rows: Sequence[Row],
        summary: Row,
        words: str,
        *,
        name: str = "rows",
        is_data: bool = False,
    ) -> None:
        _print_json({**summary, name: list(rows)})

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
    """Create a transient progress line: description, bar and count if the total is known, and elapsed time."""
    from rich.progress import BarColumn, MofNCompleteColumn, ProgressColumn, SpinnerColumn, Task, TimeElapsedColumn
    from rich.progress import Progress as Bar
    from rich.table import Column as Place
    from rich.text import Text as Words

    class DeterminateColumn(ProgressColumn):
        """A column that is empty as long as the total is unknown."""

        def __init__(self, column: ProgressColumn) -> None:
            super().__init__()
            self._column = column

        def render(self, task: Task) -> RenderableType:
            return Words() if task.total is None else self._column.render(task)

    class DescriptionColumn(ProgressColumn):
        """The description, cut to one line."""

        def render(self, task: Task) -> RenderableType:
            return Words.from_markup(task.description, overflow="ellipsis")

    description = DescriptionColumn(Place(ratio=1, no_wrap=True))
    bar = DeterminateColumn(BarColumn(20, complete_style="green", finished_style="green"))
    columns = (SpinnerColumn(), description, bar, DeterminateColumn(MofNCompleteColumn()), TimeElapsedColumn())
    # rich must not replace sys.stderr and sys.stdout: `quiet_session` redirects stderr itself in the meantime.
    return Bar(*columns, console=console, transient=True, expand=True, redirect_stderr=False, redirect_stdout=False)


def _format_value(value: object) -> str:
    """Format a value; "none" for None and empty collections."""
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
    """Return the width to which cells are cut, and the first columns that fit into a line with it; at least one."""
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
    """Return a row with cells cut to a width, where they may be cut."""
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
    """Replace control characters, which could move a terminal's cursor or change its colours."""
    return CONTROL.sub("�", text)


def _print_json(data: Row) -> None:
    click.echo(json.dumps(data, indent=2, ensure_ascii=False, default=str))


def format_count(count: int, noun: str) -> str:
    """Format a count with its noun, in the plural unless it is 1."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def format_size(number: int) -> str:
    """Format a number of bytes with a unit."""
    from rich.filesize import decimal

    return decimal(number)


def format_time(at_ms: int) -> str:
    """Format a time in milliseconds since 1970 as UTC, in a form that sorts."""
    return datetime.fromtimestamp(at_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%SZ")


def format_names(names: Sequence[str], most: int = 10) -> str:
    """Join names in a sentence: the first `most`, and how many more there are."""
    more = len(names) - most
    return ", ".join(names) if more <= 1 else f"{', '.join(names[:most])} and {more:,} more"
