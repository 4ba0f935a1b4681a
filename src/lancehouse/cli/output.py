"""How commands answer: one interface, for people (rich) and for programs (JSON)."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import click
from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

Row = Mapping[str, object]

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

    @contextmanager
    def progress(self, words: str) -> Iterator[Progress]:
        """Something that takes a while."""
        yield Progress()


class Progress:
    """What a command says while it works; nothing, unless someone watches."""

    def say(self, words: str) -> None:
        """Tell how far it is."""


class Text(Output):
    """For people. Without a terminal there are no colours and no line is wrapped below 80 columns."""

    def __init__(self) -> None:
        self._out = Console(highlight=False)
        self._err = Console(stderr=True, highlight=False)

    def record(self, title: str, fields: Row) -> None:
        """One thing and what is known of it."""
        if title:
            self._out.print(f"[bold]{escape(title)}[/bold]")
        for key, value in fields.items():
            self._out.print(f"  {escape(key)}  {escape(str(value))}", soft_wrap=True)

    def table(self, columns: Sequence[Column], rows: Sequence[Row], summary: Row, words: str) -> None:
        """Many things of a kind."""
        table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1))
        for column in columns:
            table.add_column(column.title, width=column.width, overflow="fold")
        before: Row = {}
        for row in rows:
            cells = [
                "" if column.grouped and row[column.key] == before.get(column.key) else _cell(row[column.key])
                for column in columns
            ]
            table.add_row(*cells)
            before = row
        self._out.print(table)
        self._out.print(words, soft_wrap=True, markup=False)

    def error(self, sentence: str) -> None:
        """What went wrong, on stderr."""
        self._err.print(f"[bold red]Error:[/bold red] {escape(sentence)}", soft_wrap=True)

    @contextmanager
    def progress(self, words: str) -> Iterator[Progress]:
        """A line that changes, on a terminal."""
        with self._err.status(escape(words)) as status:
            yield _Status(status.update, words)


class _Status(Progress):
    def __init__(self, update: object, words: str) -> None:
        self._update = update
        self._words = words

    def say(self, words: str) -> None:
        """Tell how far it is."""
        if callable(self._update):
            self._update(escape(f"{self._words}: {words}"))


class Json(Output):
    """For programs: one JSON document on stdout."""

    def record(self, title: str, fields: Row) -> None:
        """One thing and what is known of it."""
        self._print(fields)

    def table(self, columns: Sequence[Column], rows: Sequence[Row], summary: Row, words: str) -> None:
        """Many things of a kind."""
        self._print({**summary, "rows": list(rows)})

    def error(self, sentence: str) -> None:
        """What went wrong, on stderr."""
        click.echo(json.dumps({"error": sentence}, ensure_ascii=False), err=True)

    def _print(self, data: Row) -> None:
        click.echo(json.dumps(data, indent=2, ensure_ascii=False, default=str))


def _cell(value: object) -> str:
    text = escape(str(value))
    style = STYLES.get(str(value))
    return f"[{style}]{text}[/{style}]" if style else text


OUTPUTS: dict[str, type[Output]] = {"text": Text, "json": Json}
