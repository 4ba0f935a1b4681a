"""`lancehouse table preview` and `count`: show and count rows of a table."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

from lancehouse.cli.catalog_options import Command, with_client, with_table
from lancehouse.cli.formatting import format_count
from lancehouse.cli.output import OutputColumn, Row
from lancehouse.cli.version_options import VersionOptions, with_version_options
from lancehouse.suggestions import suggest

if TYPE_CHECKING:
    import pyarrow as pa

    from lancehouse.cli.client import Client
    from lancehouse.cli.main import CliContext
    from lancehouse.lake.dataset import TableRef

Levels = tuple[str, ...]

FEW = 10
COUNT = click.IntRange(1, 2**31 - 1)
RIGID = ("number", "time", "bool")
BLOBS = "blobs_descriptions"
"""Makes a scan return descriptions of blobs instead of their content."""

with_where = click.option("--where", metavar="SQL", help="Only rows for which this holds: 'year > 2020'.")


def with_columns(command: Command) -> Command:
    """Add the option `--column` to a command."""
    return click.option("--column", "columns", metavar="NAME", multiple=True, help="Only this one; may be repeated.")(
        command
    )


@click.command()
@with_table
@with_where
@with_version_options
@with_client
@click.pass_obj
def count(app: CliContext, table: Levels, where: str | None, at: VersionOptions, client: Client) -> None:
    """Count the rows of the table ID."""
    with client.open_table(table, **at.arguments) as (_, dataset), translate_filter_errors(where):
        rows, version = dataset.count_rows(where), dataset.version
    app.output.record("", {"table": client.format_id(table), "version": version, "rows": rows})


@click.command()
@with_table
@click.option("--limit", "-n", type=COUNT, default=FEW, show_default=True, metavar="N", help="How many.")
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
    at: VersionOptions,
    client: Client,
) -> None:
    """Show the first rows of the table ID.

    For people, long text, vectors and bytes are cut short, and columns that do not fit are left out; with --output
    json they are whole, bytes in Base64. Blobs are not read.
    """
    with client.open_table(table, **at.arguments) as (ref, dataset):
        names = resolve_columns(ref, dataset.schema, columns)
        with translate_filter_errors(where):
            rows = dataset.scanner(
                columns=names, filter=where, limit=limit, scan_in_order=True, blob_handling=BLOBS
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
    from lancehouse.server.console.filters import UNKNOWN, format_filter_error

    try:
        with translate_errors("the filter"):
            yield
    except (InvalidInputError, TableColumnNotFoundError) as error:
        message = format_filter_error(str(error))
        if message.startswith(UNKNOWN):
            raise
        raise type(error)(message[0].lower() + message[1:].removesuffix(".")) from None


def resolve_columns(table: TableRef, schema: pa.Schema, columns: Sequence[str]) -> list[str]:
    """Return the columns that are named; all columns if none are.

    Raises:
        TableColumnNotFoundError: a column does not exist.
    """
    from lance_namespace.errors import TableColumnNotFoundError

    if missing := [name for name in columns if name not in schema.names]:
        hint = suggest(missing[0], schema.names)
        raise TableColumnNotFoundError(f"{table} has no column {', '.join(missing)}; {hint}")
    return list(dict.fromkeys(columns)) or schema.names


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

    def collect_rows(values: Callable[[Any, Any], Sequence[Any]]) -> list[dict[str, Any]]:
        by_column = [values(table.column(place), field) for place, field in enumerate(fields)]
        names = [field.name for field in fields]
        return [dict(zip(names, row, strict=True)) for row in zip(*by_column, strict=True)]

    app.output.rows(
        columns, lambda: collect_rows(format_short_cells), lambda: collect_rows(to_json_values), summary, words
    )
