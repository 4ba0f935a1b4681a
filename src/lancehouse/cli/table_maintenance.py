"""`lancehouse table compact`, `index`, `cleanup` and so on: maintenance of tables, in this process or on Spark."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import timedelta
from functools import wraps
from typing import TYPE_CHECKING, Any

import click

from lancehouse.cli.local_spark import JobWork, parse_age, with_values, with_work
from lancehouse.cli.options import COUNT, Command, get_catalog, parse_id_with_parent, with_table
from lancehouse.cli.output import FAILED, OutputColumn, format_count, format_names, format_size, output_columns

if TYPE_CHECKING:
    from lancehouse.cli.main import CliContext
    from lancehouse.jobs import TableJobs
    from lancehouse.jobs.compaction import CompactionResult
    from lancehouse.jobs.orphans import CleanupResult, Orphans

TABLES = (
    OutputColumn("table", "Table"),
    OutputColumn("result", "Result", width=6),
    OutputColumn("words", "What was done"),
)
FILES = output_columns(name="File")

DONE, EMPTY, FAILS = "done", "empty", "fails"
"""Results of a table. An empty one has no version yet, or was dropped after it was listed."""

ResultFormatter = Callable[[Any], str]


@dataclass(frozen=True)
class MaintenanceScope:
    """One table, or all tables in a namespace and below it."""

    table: tuple[str, ...]
    namespace: tuple[str, ...]
    parent: tuple[str, ...] = ()
    """The catalog's `parent`, levels that the user does not type."""

    @property
    def arguments(self) -> dict[str, Any]:
        """Keyword arguments for the methods of `TableJobs`."""
        return {"table": self.table} if self.table else {"namespace": self.namespace}

    def check_exists(self, work: JobWork) -> None:
        """Check that the table or namespace exists, before the work begins.

        Raises:
            LanceNamespaceError: it does not, or the catalog does not respond.
        """
        if self.table:
            check_table(work, self.table)
            return
        from lance_namespace import ListNamespacesRequest, ListTablesRequest
        from lance_namespace.errors import InvalidInputError

        client = work.connect_client()
        try:
            client.list_namespaces(ListNamespacesRequest(id=list(self.namespace)))
        except InvalidInputError as error:
            if not self.namespace:
                raise InvalidInputError(
                    f"this catalog does not list what it holds: give --namespace ({error})"
                ) from error
            client.list_tables(ListTablesRequest(id=list(self.namespace)))  # the catalog may have no deeper level

    @contextmanager
    def start_jobs(self, work: JobWork, words: str) -> Iterator[TableJobs]:
        """Start an engine for the work, after checking that the table or namespace exists."""
        self.check_exists(work)
        with work.start_jobs(f"{words} {self}", lambda: self.measure(work)) as catalog:
            yield catalog

    def measure(self, work: JobWork) -> int:
        """Return the size in bytes of the table, or of the largest one of several."""
        from lancehouse.jobs.address import TableAddress
        from lancehouse.jobs.table_jobs import measure_largest_table, measure_table

        if self.table:
            return measure_table(TableAddress.parse(work.target, self.table))
        return measure_largest_table(work.target, self.namespace)

    def __str__(self) -> str:
        from lancehouse.identifiers import format_levels

        return format_levels((self.table or self.namespace)[len(self.parent) :]) or "the whole catalog"

    def format_table(self, table: str) -> str:
        """Format the id of one of several tables as the user types it."""
        from lancehouse.identifiers import format_levels

        return table.removeprefix(f"{format_levels(self.parent)}." if self.parent else "")


def check_table(work: JobWork, table: tuple[str, ...]) -> None:
    """Check that a table exists and has a version, before the work begins."""
    from lancehouse.lake.dataset import TableRef

    TableRef.in_namespace(work.connect_client(), table).open()


def with_scope(command: Command) -> Command:
    """Add the argument for a table, and the options for several, to a command, which gets them as `where`."""

    @click.argument("table", metavar="[ID]", required=False, default="", callback=parse_id_with_parent)
    @click.option(
        "--namespace",
        metavar="NS",
        default="",
        callback=parse_id_with_parent,
        help="All tables in this namespace and those below.",
    )
    @click.option("--all", "everything", is_flag=True, help="All tables of the catalog.")
    @wraps(command)
    def wrapper(table: tuple[str, ...], namespace: tuple[str, ...], everything: bool, **options: Any) -> Any:
        if [bool(table), bool(namespace), everything].count(True) != 1:
            raise click.UsageError("give the ID of a table, or --namespace NS, or --all")
        parent = get_catalog(click.get_current_context()).parent
        return command(where=MaintenanceScope(table, parent if everything else namespace, parent), **options)

    return wrapper


with_dry_run = click.option("--dry-run", is_flag=True, help="Only show what would be removed.")


RECALL = output_columns(
    nprobes="nprobes",
    refine_factor="refine_factor",
    recall="Recall",
    median_ms="Median ms",
    p95_ms="95 % ms",
    numbers=("nprobes", "refine_factor", "recall", "median_ms", "p95_ms"),
)


@click.command()
@with_table
@click.option("--column", metavar="NAME", help="The vector column; default: the only one.")
@click.option(
    "--queries", type=COUNT, default=100, show_default=True, metavar="N", help="Number of random rows to search for."
)
@click.option(
    "-k", type=COUNT, default=10, show_default=True, metavar="N", help="Number of rows that a search returns."
)
@click.option("--nprobes", type=COUNT, multiple=True, metavar="N", help="Partitions to search. Repeatable.")
@click.option("--refine-factor", type=COUNT, multiple=True, metavar="N", help="Compare N times k rows. Repeatable.")
@click.option(
    "--plot",
    type=click.Path(dir_okay=False, writable=True),
    metavar="FILE.svg",
    help="Also draw the results as a picture.",
)
@click.option(
    "--keep/--no-keep", default=True, show_default=True, help="Store the results in the table, for the console."
)
@with_work
def recall(
    table: tuple[str, ...],
    column: str | None,
    queries: int,
    k: int,
    nprobes: tuple[int, ...],
    refine_factor: tuple[int, ...],
    plot: str | None,
    keep: bool,
    work: JobWork,
) -> None:
    """Measure how well and how fast a vector index finds rows.

    Searches for the vectors of random rows, in this process, and compares the results with the
    truly nearest rows, found by comparing all vectors. The row itself does not count.
    """
    from lancehouse.jobs.recall import RecallNotKeptWarning, to_rows

    name = work.format_id(table)
    with MaintenanceScope(table, (), work.target.parent).start_jobs(work, "measuring") as catalog:
        efforts = (nprobes or None, refine_factor or None)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", UserWarning)
            measurements = to_rows(catalog.recall(table, column, queries, k, *efforts, plot, keep))
    not_kept = [str(warning.message) for warning in caught if issubclass(warning.category, RecallNotKeptWarning)]
    lines = [
        {
            "nprobes": row["nprobes"] or "default",
            "refine_factor": row["refine_factor"] or "default",
            **{key: f"{row[key]:.3f}" for key in ("recall", "median_ms", "p95_ms")},
        }
        for row in measurements
    ]
    summary = {"table": name, "queries": queries, "k": k, "kept": keep and not not_kept}
    words = ". ".join([f"{name}: recall@{k} of {queries:,} searches", *not_kept])
    rows = measurements if work.app.kind == "json" else lines
    work.app.output.table(RECALL, rows, summary, words, is_data=True)


@click.command()
@with_scope
@with_values("--param", "Option of Lance's compaction: target_rows_per_fragment=N, … Repeatable.")
@with_work
def compact(where: MaintenanceScope, params: dict[str, Any], work: JobWork) -> None:
    """Merge small fragments, and drop deleted rows.

    ID is wh.db.docs, all levels joined by dots. If one of several tables fails, the others
    continue, and the exit code is 1.
    """
    with where.start_jobs(work, "compacting") as catalog:
        results = catalog.compact(**where.arguments, **params)
    show_results(work.app, where, results, _format_compaction)


@click.command()
@with_table
@click.option("--column", required=True, metavar="NAME", help="Column to index.")
@click.option("--kind", required=True, metavar="KIND", help="BTREE, BITMAP, INVERTED, IVF_PQ, IVF_HNSW_SQ, …")
@click.option("--name", metavar="NAME", help="Name of the index; default: COLUMN_idx.")
@click.option("--replace", is_flag=True, help="Replace an existing index of that name.")
@with_values("--param", "Parameter of the kind, as in pylance: num_partitions=256, metric=cosine, … Repeatable.")
@with_work
def index(
    table: tuple[str, ...],
    column: str,
    kind: str,
    name: str | None,
    replace: bool,
    params: dict[str, Any],
    work: JobWork,
) -> None:
    """Create an index on a column of the table ID."""
    with MaintenanceScope(table, (), work.target.parent).start_jobs(work, f"indexing {column} of") as catalog:
        result = catalog.create_index(table, column, kind, name, replace, **params)
    work.app.output.record({"table": work.format_id(table), "index": result.name, **_result_fields(result, "name")})


@click.command("optimize-indices")
@with_scope
@click.option("--name", "names", metavar="NAME", multiple=True, help="Only this index. Repeatable.")
@click.option("--retrain", is_flag=True, help="Rebuild them from all rows.")
@with_work
def optimize_indices(where: MaintenanceScope, names: tuple[str, ...], retrain: bool, work: JobWork) -> None:
    """Add new rows to existing indices."""
    with where.start_jobs(work, "optimizing the indices of") as catalog:
        results = catalog.optimize_indices(**where.arguments, names=names or None, retrain=retrain)
    show_results(work.app, where, results, lambda version: f"version {version} has them")


@click.command()
@with_scope
@click.option(
    "--older-than",
    metavar="AGE",
    default="14d",
    show_default=True,
    callback=parse_age,
    help="Age from which versions are removed: 12h, 14d, 2w.",
)
@with_dry_run
@with_work
def cleanup(where: MaintenanceScope, older_than: timedelta, dry_run: bool, work: JobWork) -> None:
    """Remove old versions and files that only they use.

    The current version and tagged versions are kept.
    """
    with where.start_jobs(work, "cleaning up") as catalog:
        results = catalog.cleanup(**where.arguments, older_than=older_than, dry_run=dry_run)
    show_results(work.app, where, results, _removal_formatter(dry_run, _format_cleanup), dry_run=dry_run)


@click.command("remove-orphans")
@with_scope
@click.option(
    "--older-than",
    metavar="AGE",
    callback=lambda ctx, param, value: None if value is None else parse_age(ctx, param, value),
    help="Remove only older files; others may belong to a writer at work. Default: 7d; none with --no-writers.",
)
@click.option(
    "--no-writers",
    is_flag=True,
    help="Nobody is writing: remove young files too. Jobs that can be resumed keep theirs for 7d, or --older-than.",
)
@with_dry_run
@with_work
def remove_orphans(
    where: MaintenanceScope, older_than: timedelta | None, no_writers: bool, dry_run: bool, work: JobWork
) -> None:
    """Remove files of failed jobs that no version refers to.

    These are data, indices and temporary files of killed writers, and records of jobs that nobody
    resumed.
    """
    from lancehouse.jobs.orphans import LEAST_AGE

    if older_than is not None and older_than < LEAST_AGE and not no_writers:
        raise click.UsageError("a writer may need an hour to commit: give --older-than 1h or more, or --no-writers")
    with where.start_jobs(work, "looking for orphans of") as catalog:
        results = catalog.remove_orphans(
            **where.arguments, older_than=older_than, dry_run=dry_run, no_writers=no_writers
        )
    if where.table and dry_run:
        summary = {"table": str(where), "files": results.files, "bytes": results.bytes, "dry_run": True}
        words = _removal_formatter(dry_run, _format_orphans)(results)
        work.app.output.table(FILES, [{"name": name} for name in results.names], summary, f"{where}: {words}")
    else:
        show_results(work.app, where, results, _removal_formatter(dry_run, _format_orphans), dry_run=dry_run)


def show_results(app: CliContext, where: MaintenanceScope, results: Any, words: ResultFormatter, **more: Any) -> None:
    """Print the result of one table or of several; exit with 1 if one of several failed.

    Args:
        app: context with the output.
        where: the table or namespace.
        results: as `TableJobs` returned them.
        words: formats the result of one table.
        more: fields about all of them, for JSON.
    """
    if where.table:
        app.output.record({"table": str(where), **more, **_result_fields(results)})
        return
    rows = [_result_row(where.format_table(table), result, words) for table, result in results.items()]
    counts = {result: sum(row["result"] == result for row in rows) for result in (DONE, EMPTY, FAILS)}
    count_words = ", ".join(f"{count} {result}" for result, count in counts.items() if count) or "no tables"
    app.output.table(
        TABLES, rows, {"namespace": list(where.namespace), **more, "counts": counts}, f"{where}: {count_words}"
    )
    if failed := [row["table"] for row in rows if row["result"] == FAILS]:
        app.output.error(f"{len(failed)} of {len(rows)} tables failed: {format_names(failed)}")
        raise click.exceptions.Exit(FAILED)


def _result_row(table: str, result: Any, words: ResultFormatter) -> dict[str, Any]:
    from lance_namespace.errors import LanceNamespaceError, TableNotFoundError

    if isinstance(result, TableNotFoundError):
        return {"table": table, "result": EMPTY, "words": "has no data"}
    if isinstance(result, LanceNamespaceError):
        return {"table": table, "result": FAILS, "words": str(result)}
    return {"table": table, "result": DONE, "words": words(result), **_result_fields(result)}


def _result_fields(result: Any, *without: str) -> Mapping[str, Any]:
    """Return the fields of a result, for JSON."""
    fields = {"version": result} if isinstance(result, int) else asdict(result)
    return {key: value for key, value in fields.items() if key not in (*without, "names")}


def _removal_formatter(dry_run: bool, words: ResultFormatter) -> ResultFormatter:
    return lambda result: f"{'would remove' if dry_run else 'removed'} {words(result)}"


def _format_compaction(result: CompactionResult) -> str:
    if not result.fragments_removed:
        return "nothing to do"
    return f"{format_count(result.fragments_removed, 'fragment')} became {result.fragments_added}"


def _format_cleanup(result: CleanupResult) -> str:
    tag_note = f"; kept by tags: {', '.join(result.tagged)}" if result.tagged else ""
    return f"{format_count(result.versions, 'version')}, {format_size(result.bytes)}{tag_note}"


def _format_orphans(result: Orphans) -> str:
    return f"{format_count(result.files, 'file')}, {format_size(result.bytes)}"
