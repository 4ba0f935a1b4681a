"""`lancehouse sql`: run SQL on the tables of a catalog, given as an argument or a file, or typed into a shell."""

from __future__ import annotations

import re
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

import click

from lancehouse.cli.local_spark import session, with_cores
from lancehouse.cli.options import COUNT, connect, parse_id_with_parent, requires_extra, with_target
from lancehouse.cli.output import format_count
from lancehouse.cli.table_rows import show_rows

if TYPE_CHECKING:
    from lancehouse.cli.main import CliContext
    from lancehouse.connection import Connection
    from lancehouse.spark import LanceCatalog

MOST = 100
MOST_TABLES = 50
"""Most tables whose columns the shell completes."""
PROMPT, CONTINUED = "lancehouse> ", "        ... "
NAME = re.compile(r"[\w`]+")
"""What a word is for completion."""
HISTORY = Path("~/.lancehouse_history")
WELCOME = "Type SQL that ends with a semicolon, help, or quit."
HELP = """\
SELECT …;                         rows of the catalog's tables
USE main.ml;                      the namespace in which shorter names are looked up
SHOW NAMESPACES; SHOW TABLES;     what there is
DESCRIBE docs; DESCRIBE HISTORY docs;
EXPLAIN SELECT …;                 what is read of each table, and which filters are applied there
quit                              ends the shell, as Ctrl-D does"""
OURS = ("BRANCH", "HISTORY", "NAMESPACES", "OPTIMIZE", "RESTORE", "TABLES", "TAG", "TBLPROPERTIES", "VACUUM")
"""Keywords that sqlglot does not have."""


@click.command()
@click.argument("text", metavar="[SQL]", required=False)
@click.option("--file", "-f", type=click.File(encoding="utf-8"), metavar="FILE", help="Read the statements from FILE.")
@click.option(
    "--namespace",
    metavar="ID",
    default="",
    callback=parse_id_with_parent,
    help="Namespace in which short names are looked up.",
)
@click.option(
    "--limit", "-n", type=COUNT, default=MOST, show_default=True, metavar="N", help="Maximum number of rows to show."
)
@click.option("--explain", is_flag=True, help="Show what would be read of each table, and run nothing.")
@click.option("--remote", metavar="URL", help="A Spark Connect server, sc://HOST:PORT; default: Spark on this machine.")
@with_cores
@with_target
@click.pass_obj
def sql(
    app: CliContext,
    text: str | None,
    file: TextIO | None,
    namespace: tuple[str, ...],
    limit: int,
    explain: bool,
    remote: str | None,
    cores: int | None,
    target: Connection,
) -> None:
    """Run SQL on the tables of a catalog.

    Semicolons separate statements; the first that fails ends the command. Without SQL, statements are read from
    standard input. On a terminal that is a shell, with completion and history.
    """
    if text is not None and file is not None:
        raise click.UsageError("give SQL or --file, not both")
    statements = _read_statements(text, file)
    if statements is not None and len(statements) != 1 and app.kind == "json":
        raise click.UsageError("--output json needs one statement")
    connect(target)  # what is wrong with the catalog is told before Spark starts
    with _open_catalog(app, target, remote, cores) as catalog:
        if start := namespace or target.parent:
            catalog.use(start)
        runner = StatementRunner(app, catalog, limit, explain)
        if statements is None:
            run_shell(runner)
        for statement in statements or ():
            runner.run(statement)


def _read_statements(text: str | None, file: TextIO | None) -> list[str] | None:
    """Return the statements that are given; None if the user is to type them."""
    if text is None and file is None and sys.stdin.isatty():
        return None
    script = text if text is not None else (file or sys.stdin).read()
    complete, rest = split_statements(script)
    statements = [*complete, *([rest.strip()] if rest else [])]
    if not statements:
        raise click.UsageError("there is no statement")
    with requires_extra("spark"):
        from lancehouse.spark.query_text import tokenize
    tokenize(rest)  # a text or comment that does not end is told before Spark starts
    return statements


def split_statements(text: str) -> tuple[list[str], str]:
    """Split text at the semicolons that end statements; return the statements, and what follows the last semicolon.

    Semicolons in texts, quoted names and comments end nothing.
    """
    with requires_extra("spark"):
        from sqlglot.dialects.spark import Spark
        from sqlglot.errors import TokenError
        from sqlglot.tokenizer_core import TokenType
    try:
        tokens = list(Spark().tokenize(text))
    except TokenError:  # a text or comment that does not end yet
        return [], text
    statements, first, has_words = [], 0, False
    for token in tokens:
        if token.token_type != TokenType.SEMICOLON:
            has_words = True
            continue
        if has_words:
            statements.append(text[first : token.start].strip())
        first, has_words = token.end + 1, False
    return statements, text[first:] if has_words else ""


@contextmanager
def _open_catalog(app: CliContext, target: Connection, remote: str | None, cores: int | None) -> Iterator[LanceCatalog]:
    with requires_extra("spark"):
        from lancehouse.spark import LanceCatalog
        from lancehouse.spark.session import remote_session
    with ExitStack() as stack:
        with app.output.progress("starting Spark"):
            spark = stack.enter_context(session(app, cores) if remote is None else remote_session(remote))
        yield LanceCatalog(spark, target.impl, target.properties)


@dataclass(frozen=True)
class StatementRunner:
    """Runs statements and prints their results."""

    app: CliContext
    catalog: LanceCatalog
    limit: int
    explains: bool = False

    def run(self, statement: str) -> None:
        """Run one statement.

        Raises:
            LanceNamespaceError: it failed.
        """
        if self.explains:
            click.echo(self.catalog.explain(statement))
            return
        from lancehouse.spark.engine import translate_task_errors

        with self.app.output.progress("running"), translate_task_errors():
            rows = self.catalog.sql(statement).limit(self.limit + 1).toArrow()
        has_more = rows.num_rows > self.limit
        rows = rows.slice(0, self.limit).rename_columns(number_duplicates(rows.column_names))
        words = format_count(rows.num_rows, "row") + ("; there are more: --limit N" if has_more else "")
        show_rows(self.app, rows, list(rows.schema), {"count": rows.num_rows, "has_more": has_more}, words)


def number_duplicates(names: Sequence[str]) -> list[str]:
    """Return names of columns with a number after those that came before: a join may give the same name twice."""
    seen: Counter[str] = Counter()
    unique = []
    for name in names:
        seen[name] += 1
        unique.append(name if seen[name] == 1 else f"{name} ({seen[name]})")
    return unique


def run_shell(runner: StatementRunner) -> None:
    """Run the statements that the user types until they quit; errors are printed, and the shell goes on."""
    with requires_extra("spark"):
        from prompt_toolkit import PromptSession
        from prompt_toolkit.completion import WordCompleter
        from prompt_toolkit.history import FileHistory

    history = HISTORY.expanduser()
    history.touch(mode=0o600)  # values in statements may be private
    words = CatalogWords(runner.catalog)
    completer = WordCompleter(words.list, ignore_case=True, pattern=NAME)
    prompts: PromptSession[str] = PromptSession(
        history=FileHistory(str(history)), completer=completer, complete_in_thread=True, complete_while_typing=False
    )
    click.echo(WELCOME, err=True)
    typed = ""
    while True:
        try:
            line = prompts.prompt(CONTINUED if typed else PROMPT)
        except KeyboardInterrupt:
            typed = ""
            continue
        except EOFError:
            return
        command = "" if typed else line.strip().rstrip(";").lower()
        if command in ("quit", "exit"):
            return
        if command == "help":
            click.echo(HELP)
            continue
        statements, typed = split_statements(f"{typed}{line}\n")
        _run_typed(runner, statements)
        words.forget()


def _run_typed(runner: StatementRunner, statements: Sequence[str]) -> None:
    """Run statements up to the first that fails or that the user interrupts."""
    from lance_namespace.errors import LanceNamespaceError

    try:
        for statement in statements:
            runner.run(statement)
    except KeyboardInterrupt:
        runner.catalog.spark.interruptAll()
    except LanceNamespaceError as error:
        from lancehouse.cli.client import find_hints

        runner.app.output.error(str(error), find_hints(error))


class CatalogWords:
    """Words that the shell completes: keywords, and names of the catalog, which are asked for once per statement."""

    def __init__(self, catalog: LanceCatalog) -> None:
        from sqlglot.dialects.spark import Spark

        self._catalog = catalog
        self._keywords = sorted({*OURS, *(word for word in Spark.tokenizer_class.KEYWORDS if word.isalpha())})
        self._names: list[str] | None = None

    def forget(self) -> None:
        """Ask for the names again next time."""
        self._names = None

    def list(self) -> list[str]:
        """Return the words."""
        if self._names is None:
            self._names = list_names(self._catalog)
        return [*self._keywords, *self._names]


def list_names(catalog: LanceCatalog) -> list[str]:
    """Return the names of namespaces and tables in the current namespace, and of columns, as they are typed."""
    from lance_namespace.errors import LanceNamespaceError

    from lancehouse.identifiers import format_levels, parse_levels

    here, names = catalog.current_namespace, set[str]()
    namespaces, tables = list[str](), list[str]()
    # Words are a help only: what cannot be listed, as the tables of a level that holds namespaces, is left out.
    with suppress(LanceNamespaceError):
        namespaces = catalog.namespaces(here)
    with suppress(LanceNamespaceError):
        tables = catalog.tables(here)
    for table in tables[:MOST_TABLES]:
        with suppress(LanceNamespaceError):
            names.update(catalog.schema(table).names)
    return sorted(names.union(format_levels(parse_levels(name)[-1:]) for name in (*namespaces, *tables)))
