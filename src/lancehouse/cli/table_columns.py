"""`lancehouse table columns`, `backfill`, `errors`, `refresh`, `lineage`: computed columns and materialized views."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from lancehouse.cli.local_spark import JobWork, with_values, with_work
from lancehouse.cli.options import with_client, with_pairs, with_table
from lancehouse.cli.output import OutputColumn, format_count, output_columns
from lancehouse.cli.table_maintenance import MaintenanceScope, check_table

if TYPE_CHECKING:
    from lancehouse.cli.client import Client
    from lancehouse.cli.main import CliContext
    from lancehouse.jobs import TableJobs
    from lancehouse.jobs.column_filling import FillResult
    from lancehouse.jobs.views import RefreshResult

COLUMNS = output_columns(
    column="Column",
    function="Function",
    version="Version",
    inputs="Inputs",
    filled="Filled",
    missing="Missing",
    failed="Failed",
    numbers=("filled", "missing", "failed"),
)
ERRORS = output_columns(_rowid="Row id", state="State", version="Version", exception="Exception", numbers=("_rowid",))
FILLS = output_columns(
    column="Column",
    filled="Filled",
    failed="Failed",
    skipped="Skipped",
    seconds="Seconds",
    rows_per_s="Rows/s",
    bytes="Bytes",
    numbers=("filled", "failed", "skipped", "seconds", "rows_per_s", "bytes"),
)


LINEAGE = output_columns(what="Table or column", of="Made of", by="By")
DEEPEST = 20
"""Levels of a tree up to which lines are indented further."""

with_optimize = click.option(
    "--optimize-indices", is_flag=True, help="At the end, add the rows to the indices on the filled columns."
)
with_modules = click.option(
    "--modules",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    default=".",
    help="Folder of the modules of functions; default: the current one.",
)


with_allow = click.option(
    "--allow",
    metavar="MODULE",
    multiple=True,
    help="Import only this module, or MODULE:FUNCTION, of those that the table names. Repeatable.",
)


@click.command()
@with_table
@with_work
def columns(table: tuple[str, ...], work: JobWork) -> None:
    """Show the computed columns of the table ID.

    For each: how many rows the current version of its function filled, are missing, or failed.
    """
    from lancehouse.jobs.columns import list_columns
    from lancehouse.lake.dataset import TableRef

    rows = list_columns(TableRef.in_namespace(work.connect_client(), table)).to_pylist()
    lines = [{**row, "inputs": ", ".join(row["inputs"])} for row in rows]
    name = work.format_id(table)
    work.app.output.table(COLUMNS, lines, {"table": name}, f"{name}: {format_count(len(rows), 'computed column')}")


@click.command()
@with_table
@click.argument("column", metavar="[COLUMN]", required=False)
@click.option("--column", "keys", metavar="NAME", multiple=True, help="Show this column of the rows too. Repeatable.")
@with_work
def errors(table: tuple[str, ...], column: str | None, keys: tuple[str, ...], work: JobWork) -> None:
    """Show the rows for which a computed column failed.

    Without COLUMN, ID is a materialized view: show the rows of its source for which its function
    failed.
    """
    from lancehouse.jobs import TableJobs

    jobs, name = TableJobs(work.connect_client()), work.format_id(table)
    failures = jobs.view_errors(table, keys) if column is None else jobs.column_errors(table, column, keys)
    rows = failures.to_pylist()
    row_id, *details = (header for header in ERRORS if column is not None or header.key != "state")
    headers = [row_id, *(OutputColumn(key, key) for key in keys), *details]
    words = f"{name}: {format_count(len(rows), 'row')} " + (f"without {column}" if column else "of its source left out")
    work.app.output.table(headers, rows, {"table": name, "column": column}, words)


@click.command()
@with_table
@click.option("--column", "names", metavar="NAME", multiple=True, help="Fill only this column. Repeatable.")
@with_pairs("--define", metavar="NAME=MODULE:FUNCTION", help="Define a column first, or define it anew. Repeatable.")
@click.option("--where", metavar="SQL", help="Fill only rows that match.")
@click.option("--recompute", is_flag=True, help="Fill rows that are up to date, too.")
@click.option("--failed", "where_failed", is_flag=True, help="Fill only rows for which the function has failed.")
@click.option(
    "--on-error",
    type=click.Choice(["fail", "null", "skip"]),
    default="fail",
    show_default=True,
    help="What to do with a row for which the function fails: stop, set it to null, or leave it.",
)
@click.option("--allow-changed", is_flag=True, help="Accept a function whose code has changed, but not its version.")
@with_optimize
@with_allow
@with_modules
@with_values("--param", "batch_rows=N, commit_every=N, max_concurrency=N, retries=N, timeout_s=N, …")
@with_work
def backfill(
    table: tuple[str, ...],
    names: tuple[str, ...],
    define: dict[str, str],
    where: str | None,
    allow_changed: bool,
    allow: tuple[str, ...],
    modules: Path,
    params: dict[str, Any],
    work: JobWork,
    **how: Any,
) -> None:
    """Fill computed columns of the table ID.

    This fills rows without a value, rows that another version of the function filled, and rows whose inputs have
    changed since. After a failure, the same command continues.
    """
    check_table(work, table)
    _find_modules_in(modules)
    scope = MaintenanceScope(table, ())
    name = work.format_id(table)
    allowed = [*allow, *define.values()] if allow else None
    with _start_jobs(work, f"filling {name}", scope, allowed) as (catalog, report):
        if define:
            catalog.define_columns(table, _load_functions(define), allow_changed=allow_changed)
        result = catalog.backfill(table, names or None, where, report_progress=report, **{**how, **params})
    total = _summarize(result)
    words = f"{name}: version {result.version}, {format_count(result.rows, 'row')} in {total['seconds']:g} s"
    rows = [{"column": column, **_summarize(part)} for column, part in result.columns.items()]
    work.app.output.table(FILLS, rows, {"table": name, **total}, words, name="columns")


@click.command()
@with_table
@click.option("--failed", "where_failed", is_flag=True, help="Try again the rows of the source that failed.")
@click.option(
    "--on-error",
    type=click.Choice(["fail", "skip"]),
    default="fail",
    show_default=True,
    help="What to do if the function fails for a row: stop, or leave out its results.",
)
@with_optimize
@with_allow
@with_modules
@with_values("--param", "batch_rows=N, max_concurrency=N, retries=N, timeout_s=N, …")
@with_work
def refresh(
    table: tuple[str, ...], allow: tuple[str, ...], modules: Path, params: dict[str, Any], work: JobWork, **how: Any
) -> None:
    """Update the materialized view ID.

    One commit applies what was inserted, changed or deleted in its source since the last refresh.
    """
    check_table(work, table)
    _find_modules_in(modules)
    scope = MaintenanceScope(table, ())
    with _start_jobs(work, f"refreshing {work.format_id(table)}", scope, allow or None) as (catalog, report):
        result = catalog.refresh(table, report_progress=report, **{**how, **params})
    work.app.output.record({"table": work.format_id(table), **_summarize(result)})


@contextmanager
def _start_jobs(
    work: JobWork, words: str, scope: MaintenanceScope, allowed: Sequence[str] | None
) -> Iterator[tuple[TableJobs, Any]]:
    """Start an engine; yield what runs jobs on it, and what shows how many rows are done, if anybody sees that."""
    with (
        work.app.output.progress(words) as progress,
        work.start_jobs_with(progress, lambda: scope.measure(work), allowed) as catalog,
    ):
        yield catalog, (lambda now: progress.say(str(now))) if progress.is_seen else None


def _summarize(result: FillResult | RefreshResult) -> dict[str, Any]:
    """Return a result as it is printed."""
    fields = {key: value for key, value in asdict(result).items() if key not in ("columns", "function_s")}
    return {**fields, "seconds": round(result.seconds, 3), "rows_per_s": round(result.rows_per_s, 1)}


@click.command()
@with_table
@with_client
@click.pass_obj
def lineage(app: CliContext, table: tuple[str, ...], client: Client) -> None:
    """Show the sources and computed columns of the table ID.

    Its computed columns, the sources of a view, their sources and so on. The console also shows
    what is computed from the table.
    """
    from lancehouse.identifiers import format_levels
    from lancehouse.jobs.address import TableAddress
    from lancehouse.jobs.views import list_lineage

    with client.translate_errors(table):
        rows = list_lineage(TableAddress(client.namespace, table)).to_pylist()
    name = client.format_id(table)
    lines = rows if app.kind == "json" else list(_draw_tree(rows, format_levels(table)))
    words = f"{name}: {format_count(len(rows), 'definition')}"
    app.output.table(LINEAGE, lines, {"table": name}, words, is_data=True)


def _draw_tree(rows: Sequence[Mapping[str, Any]], name: str) -> Iterator[dict[str, str]]:
    """Yield a line for each table, with its computed columns, then its source, below it."""
    depth, drawn = 0, set[str]()
    while True:
        indent = "  " * min(depth, DEEPEST)
        own = [row for row in rows if row["table"] == name]
        view = next((row for row in own if row["column"] is None), None)
        maker = _format_maker(view) if view else ""
        yield {"what": f"{indent}{name}", "of": view["source"] if view else "", "by": maker}
        for row in own:
            if row["column"] is not None:
                inputs = ", ".join(row["inputs"])
                yield {"what": f"{indent}  .{row['column']}", "of": inputs, "by": _format_maker(row)}
        drawn.add(name)
        if view is None or view["source"] in drawn:
            return
        name, depth = view["source"], depth + 1


def _format_maker(row: Mapping[str, Any]) -> str:
    return row["function"] if row["function"].startswith("SQL") else f"{row['function']} {row['version']}"


def _find_modules_in(modules: Path) -> None:
    """Let this process, and those that Spark starts, find modules in a folder."""
    folder = str(modules.resolve())
    sys.path.insert(0, folder)
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [folder, os.environ.get("PYTHONPATH")]))


def _load_functions(named: Mapping[str, str]) -> dict[str, Any]:
    from lancehouse.jobs.column_functions import ColumnFunction

    return {column: ColumnFunction.load(name).target for column, name in named.items()}
