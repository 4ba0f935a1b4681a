"""`lancehouse table preview`, `count` and `search`: show, count and find rows of a table."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from lancehouse.cli.options import COUNT, Command, Levels, with_client, with_columns, with_table, with_version_options
from lancehouse.cli.output import OutputColumn, Row, format_count
from lancehouse.suggestions import suggest

if TYPE_CHECKING:
    import pyarrow as pa
    from lance import LanceDataset

    from lancehouse.cli.client import Client
    from lancehouse.cli.main import CliContext
    from lancehouse.lake.dataset import TableRef


FEW = 10
RIGID = ("number", "time", "bool")
BLOBS = "blobs_descriptions"
"""Makes a scan return descriptions of blobs instead of their content."""

with_where = click.option("--where", metavar="SQL", help="Only rows that match, such as 'year > 2020'.")


@click.command()
@with_table
@with_where
@with_version_options
@with_client
@click.pass_obj
def count(app: CliContext, table: Levels, where: str | None, at: dict[str, Any], client: Client) -> None:
    """Count the rows of the table ID."""
    from lancehouse.lake.dataset import enclose_sql

    with client.open_table(table, **at) as (_, dataset), translate_filter_errors(where):
        rows, version = dataset.count_rows(enclose_sql(where)), dataset.version
    app.output.record({"table": client.format_id(table), "version": version, "rows": rows})


@click.command()
@with_table
@click.option("--limit", "-n", type=COUNT, default=FEW, show_default=True, metavar="N", help="Number of rows.")
@with_columns
@with_where
@with_version_options
@with_client
@click.pass_obj
def preview(
    app: CliContext,
    table: Levels,
    limit: int,
    columns: tuple[str, ...],
    where: str | None,
    at: dict[str, Any],
    client: Client,
) -> None:
    """Show the first rows of the table ID.

    Long texts, vectors and bytes are cut, and columns that do not fit are left out; --output json
    prints complete values, bytes in Base64. Blobs are not read.
    """
    from lancehouse.lake.dataset import enclose_sql

    with client.open_table(table, **at) as (ref, dataset):
        names = resolve_columns(ref, dataset.schema, columns)
        with translate_filter_errors(where):
            rows = dataset.scanner(
                columns=names, filter=enclose_sql(where), limit=limit, scan_in_order=True, blob_handling=BLOBS
            ).to_table()
        fields, version = [dataset.schema.field(name) for name in names], dataset.version
    summary = {"table": client.format_id(table), "version": version, "count": rows.num_rows}
    show_rows(
        app,
        rows,
        fields,
        summary,
        f"{client.format_id(table)}, version {version}: {format_count(rows.num_rows, 'row')}",
    )


@contextmanager
def translate_filter_errors(where: str | None) -> Iterator[None]:
    """Reword errors about a filter for the user; other errors, and all errors without a filter, pass unchanged."""
    if where is None:
        yield
        return
    from lance_namespace.errors import InvalidInputError, TableColumnNotFoundError

    from lancehouse.lake.errors import translate_errors
    from lancehouse.server.console.rows import UNKNOWN, format_filter_error

    try:
        with translate_errors("the filter"):
            yield
    except (InvalidInputError, TableColumnNotFoundError) as error:
        message = format_filter_error(str(error))
        if message.startswith(UNKNOWN):
            raise
        raise type(error)(message[0].lower() + message[1:].removesuffix(".")) from None


def resolve_columns(table: TableRef, schema: pa.Schema, columns: Sequence[str]) -> list[str]:
    """Return the columns that are named; if none are, all but those that Lancehouse keeps beside computed ones.

    Raises:
        TableColumnNotFoundError: a column does not exist.
    """
    from lance_namespace.errors import TableColumnNotFoundError

    from lancehouse.schema.definitions import shown_columns

    if missing := [name for name in columns if name not in schema.names]:
        hint = suggest(missing[0], schema.names)
        raise TableColumnNotFoundError(f"{table} has no column {', '.join(missing)}; {hint}")
    return list(dict.fromkeys(columns)) or shown_columns(schema)


def show_rows(app: CliContext, table: pa.Table, fields: Sequence[pa.Field[Any]], summary: Row, words: str) -> None:
    """Print rows.

    Args:
        app: context with the output.
        table: the rows.
        fields: their columns, as the schema of the Lance table has them.
        summary: fields about all rows, for JSON.
        words: the same as a sentence, for text.
    """
    from lancehouse.cli.cell_values import format_short_cells, to_json_values
    from lancehouse.schema.display import value_kind

    kinds = {field.name: value_kind(field) for field in fields}
    columns = [
        OutputColumn(name, name, is_number=kind == "number", is_rigid=kind in RIGID) for name, kind in kinds.items()
    ]
    format_values = to_json_values if app.kind == "json" else format_short_cells
    by_column = [format_values(table.column(place), field) for place, field in enumerate(fields)]
    rows = [dict(zip(kinds, row, strict=True)) for row in zip(*by_column, strict=True)]
    app.output.table(columns, rows, summary, words, is_data=True)


METRICS = ("l2", "cosine", "dot")
DISTANCE, SCORE = "_distance", "_score"
LARGEST = 3.4e38
"""Largest 32-bit float, the type in which vectors are compared."""


@dataclass(frozen=True)
class SearchOptions:
    """What to search for: a vector, the vector of a row, or words."""

    near: tuple[float, ...] | None
    like: str | None
    words: str | None
    on: str | None
    k: int
    metric: str | None
    nprobes: int | None
    refine_factor: int | None
    ef: int | None
    where: str | None

    def check(self) -> None:
        """Check that exactly one of the three is given.

        Raises:
            UsageError: none is given, or several.
        """
        if [self.near is None, self.like is None, self.words is None].count(False) != 1:
            raise click.UsageError("give --vector NUMBERS, or --like SQL, or --text WORDS")
        of_vectors = {
            "--metric": self.metric,
            "--nprobes": self.nprobes,
            "--refine-factor": self.refine_factor,
            "--ef": self.ef,
        }
        if self.words is not None and (
            conflicting := [name for name, value in of_vectors.items() if value is not None]
        ):
            raise click.UsageError(f"{conflicting[0]} goes with --vector and --like")

    @property
    def score_column(self) -> str:
        """Name of the column with the distance or score of a row."""
        return DISTANCE if self.words is None else SCORE

    def run(self, table: TableRef, dataset: LanceDataset, names: Sequence[str]) -> pa.Table:
        """Return the matching rows, the best first."""
        rows = (
            self._search_by_vector(table, dataset, names)
            if self.words is None
            else self._search_by_text(table, dataset, names)
        )
        return rows.select([self.score_column, *names])

    def _search_by_vector(self, table: TableRef, dataset: LanceDataset, names: Sequence[str]) -> pa.Table:
        from lancehouse.lake.vector_search import SearchEffort, VectorSearch, resolve_vector_column

        column = resolve_vector_column(table, dataset.schema, self.on)
        near = self.near if self.near is not None else self._vector_of_row(table, dataset, column)
        effort = SearchEffort(self.nprobes, self.refine_factor, self.ef)
        vector_search = VectorSearch(near, self.k, column, self.where, tuple(names), self.metric, effort)
        vector_search.check(table, dataset)
        return vector_search.search_index(table, dataset)

    def _vector_of_row(self, table: TableRef, dataset: LanceDataset, column: str) -> tuple[float, ...]:
        from lance_namespace.errors import InvalidInputError

        from lancehouse.lake.dataset import enclose_sql

        like = f"{enclose_sql(self.like)} AND {_quote_column(column)} IS NOT NULL"
        rows = dataset.scanner(columns=[column], filter=like, limit=1, scan_in_order=True).to_table()
        if not rows.num_rows:
            raise InvalidInputError(f"{table}: no row with a vector in {column} is like that: {self.like}")
        return tuple(map(float, rows.column(0)[0].as_py()))

    def _search_by_text(self, table: TableRef, dataset: LanceDataset, names: Sequence[str]) -> pa.Table:
        from lance_namespace.errors import InvalidInputError

        from lancehouse.lake.dataset import enclose_sql

        indexed = [index for index in dataset.describe_indices() if index.index_type == "Inverted"]
        if not any(self.on is None or self.on in index.field_names for index in indexed):
            error = InvalidInputError(f"{table} has no full-text index{f' of {self.on}' * bool(self.on)}")
            error.add_note("`lancehouse table index ID --column NAME --kind INVERTED` builds one")
            raise error
        query = {"query": self.words, "columns": [self.on] if self.on else None}
        rows: pa.Table = dataset.scanner(
            columns=[*names, SCORE], full_text_query=query, filter=enclose_sql(self.where), prefilter=True, limit=self.k
        ).to_table()
        return rows


def parse_vector(ctx: click.Context, param: click.Parameter, value: str | None) -> tuple[float, ...] | None:
    """Parse a vector: JSON or numbers joined by commas; `@FILE` reads them from a file, `-` from standard input."""
    if value is None:
        return None
    try:
        text = sys.stdin.read() if value == "-" else Path(value[1:]).read_text("utf-8") if value[:1] == "@" else value
        numbers = json.loads(f"[{text.strip().removeprefix('[').removesuffix(']')}]")
        if not all(type(each) in (int, float) and abs(each) <= LARGEST for each in numbers):  # also False for NaN
            raise ValueError
        return tuple(map(float, numbers))
    except OSError as error:
        raise click.BadParameter(f"{value[1:]} cannot be read: {error.strerror}", ctx, param) from None
    except (ValueError, TypeError, RecursionError):
        raise click.BadParameter("a vector is numbers such as 0.1,0.2,0.3", ctx, param) from None


def _quote_column(column: str) -> str:
    return ".".join(f"`{level}`" for level in column.split("."))


def with_search_options(command: Command) -> Command:
    """Add the search options to a command, which gets them as `question`."""

    @click.option(
        "--vector",
        "near",
        metavar="NUMBERS",
        callback=parse_vector,
        help="Vector to search for: 0.1,0.2,…; @FILE, or - for stdin.",
    )
    @click.option("--like", metavar="SQL", help="Search for the vector of the first row that matches: 'id = 7'.")
    @click.option("--text", "words", metavar="WORDS", help="Words to search for, by a full-text index.")
    @click.option("--on", metavar="COLUMN", help="Column to search; default: the only one that fits.")
    @click.option("-k", type=COUNT, default=FEW, show_default=True, metavar="N", help="Number of rows.")
    @click.option("--metric", type=click.Choice(METRICS), help="Distance; default: that of the index, or l2.")
    @click.option("--nprobes", type=COUNT, metavar="N", help="Partitions of the index to search; default: 20 or more.")
    @click.option(
        "--refine-factor",
        type=COUNT,
        metavar="N",
        help="Compare N times k vectors exactly; default: 10, 200 rows or more.",
    )
    @click.option("--ef", type=COUNT, metavar="N", help="Number of candidates that an HNSW index keeps.")
    @with_where
    @wraps(command)
    def wrapper(*arguments: Any, **options: Any) -> Any:
        question = SearchOptions(**{name: options.pop(name) for name in SearchOptions.__dataclass_fields__})
        question.check()
        return command(*arguments, question=question, **options)

    return wrapper


@click.command()
@with_table
@with_search_options
@with_columns
@with_version_options
@with_client
@click.pass_obj
def search(
    app: CliContext,
    table: Levels,
    question: SearchOptions,
    columns: tuple[str, ...],
    at: dict[str, Any],
    client: Client,
) -> None:
    """Search rows by vector similarity or full text.

    An index is used if there is one; otherwise all vectors are compared. Blobs are not shown unless
    --column names them.
    """
    from lancehouse.schema.display import value_kind

    with client.open_table(table, **at) as (ref, dataset):
        names = resolve_columns(ref, dataset.schema, columns)
        if not columns:
            names = [name for name in names if value_kind(dataset.schema.field(name)) != "blob"]
        with translate_filter_errors(question.where or question.like):
            rows, version = question.run(ref, dataset, names), dataset.version
    summary = {"table": client.format_id(table), "version": version, "count": rows.num_rows}
    words = f"{client.format_id(table)}, version {version}: {format_count(rows.num_rows, 'row')}"
    show_rows(app, rows, list(rows.schema), summary, words)
