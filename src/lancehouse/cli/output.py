"""How commands answer: one interface, for people (rich) and for programs (JSON)."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass

import click
from rich import box
from rich.console import Console
from rich.markup import escape
from rich.status import Status
from rich.table import Table

OK, FAILED, INTERRUPTED = 0, 1, 130
"""How commands end; 2 is wrong usage."""

Row = Mapping[str, object]

LONG = 240
"""Where a cell is cut for people; programs get all of it."""

STYLES = {"holds": "green", "fails": "bold red", "known": "yellow", "unsupported": "dim", "not checked": "dim"}
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

    def say(self, words: str) -> None:
        """Tell how far it is."""


class Output(ABC):
    """Commands hand over data; how they look is decided here."""

    @abstractmethod
    def record(self, title: str, fields: Row) -> None:
        """One thing and what is known of it."""

    @abstractmethod
    def table(self, columns: Sequence[Column], rows: Sequence[Row], summary: Row, words: str) -> None:
        """Many things of a kind.

        Args:
            columns: what people see of them.
            rows: the things.
            summary: about all of them, for programs.
            words: the same for people.
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
            said = "none" if value is None else value
            self._out.print(f"{key:{width}}  {said}", soft_wrap=True, markup=False)

    def table(self, columns: Sequence[Column], rows: Sequence[Row], summary: Row, words: str) -> None:
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
        with self._err.status(escape(words)) as status:
            yield _Line(status, words)


class Json(Output):
    """For programs: one JSON document on stdout."""

    def record(self, title: str, fields: Row) -> None:
        _print(fields)

    def table(self, columns: Sequence[Column], rows: Sequence[Row], summary: Row, words: str) -> None:
        _print({**summary, "rows": list(rows)})

    def error(self, sentence: str) -> None:
        click.echo(json.dumps({"error": sentence}, ensure_ascii=False), err=True)

    def progress(self, words: str) -> AbstractContextManager[Progress]:
        return nullcontext(Progress())


OUTPUTS: dict[str, type[Output]] = {"text": Text, "json": Json}


class _Line(Progress):
    def __init__(self, status: Status, words: str) -> None:
        self._status = status
        self._words = words

    def say(self, words: str) -> None:
        self._status.update(escape(f"{self._words}: {words}"))


def _cell(column: Column, row: Row, before: Row) -> str:
    value = str(row[column.key])
    if column.grouped and row[column.key] == before.get(column.key):
        return ""
    value = value if len(value) <= LONG else value[:LONG] + "…"
    style = STYLES.get(value)
    return f"[{style}]{escape(value)}[/{style}]" if style else escape(value)


def _print(data: Row) -> None:
    click.echo(json.dumps(data, indent=2, ensure_ascii=False, default=str))
