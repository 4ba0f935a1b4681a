"""`lancehouse table compact`, `index` and the like: upkeep of tables, on local Spark."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from datetime import timedelta
from functools import wraps
from typing import TYPE_CHECKING, Any

import click

from lancehouse.cli.catalogs import Command, chosen, placed, with_table
from lancehouse.cli.local import Work, age, with_values, with_work
from lancehouse.cli.output import FAILED, Column
from lancehouse.cli.words import counted, size, some

if TYPE_CHECKING:
    from lancehouse.cli.main import App
    from lancehouse.lake.compaction import Compacted
    from lancehouse.lake.orphans import Cleaned, Orphans

TABLES = (Column("table", "Table"), Column("result", "Result", width=6), Column("words", "What was done"))
FILES = (Column("name", "File"),)

DONE, EMPTY, FAILS = "done", "empty", "fails"
"""What came of a table. An empty one has no version yet, or is gone since it was listed."""

Words = Callable[[Any], str]


@dataclass(frozen=True)
class Where:
    """One table, or all of a namespace and below it."""

    table: tuple[str, ...]
    namespace: tuple[str, ...]
    parent: tuple[str, ...] = ()
    """The levels that are not typed."""

    @property
    def arguments(self) -> dict[str, Any]:
        """As `LanceCatalog` takes them."""
        return {"table": self.table} if self.table else {"namespace": self.namespace}

    def look(self, work: Work) -> None:
        """See that it is there before Spark is started.

        Raises:
            LanceNamespaceError: it is not, or the catalog does not answer.
        """
        if self.table:
            look(work, self.table)
            return
        from lance_namespace import ListNamespacesRequest, ListTablesRequest
        from lance_namespace.errors import InvalidInputError

        client = work.look()
        try:
            client.list_namespaces(ListNamespacesRequest(id=list(self.namespace)))
        except InvalidInputError as error:
            if not self.namespace:
                raise InvalidInputError(
                    f"this catalog does not list what it holds: give --namespace ({error})"
                ) from error
            client.list_tables(ListTablesRequest(id=list(self.namespace)))  # the catalog's levels may end there

    def __str__(self) -> str:
        from lancehouse.identifiers import write_levels

        return write_levels((self.table or self.namespace)[len(self.parent) :]) or "the whole catalog"

    def shown(self, table: str) -> str:
        """A table of several, as it is typed."""
        from lancehouse.identifiers import write_levels

        return table.removeprefix(f"{write_levels(self.parent)}." if self.parent else "")


def look(work: Work, table: tuple[str, ...]) -> None:
    """See that a table is there and has a version, before Spark is started."""
    from lancehouse.lake.dataset import TableRef

    TableRef.of(work.look(), table).open()


def with_where(command: Command) -> Command:
    """The argument that names a table, or an option for more of them. The command gets them as `where`."""

    @click.argument("table", metavar="[ID]", required=False, default="", callback=placed)
    @click.option("--namespace", metavar="NS", default="", callback=placed, help="All tables there and below.")
    @click.option("--all", "everything", is_flag=True, help="All tables of the catalog.")
    @wraps(command)
    def located(table: tuple[str, ...], namespace: tuple[str, ...], everything: bool, **options: Any) -> Any:
        if [bool(table), bool(namespace), everything].count(True) != 1:
            raise click.UsageError("give the ID of a table, or --namespace NS, or --all")
        parent = chosen(click.get_current_context()).parent
        return command(where=Where(table, parent if everything else namespace, parent), **options)

    return located


def with_older_than(default: str, help: str) -> Callable[[Command], Command]:
    """The option for an age."""
    return click.option("--older-than", metavar="AGE", default=default, show_default=True, callback=age, help=help)


with_dry_run = click.option("--dry-run", is_flag=True, help="Remove nothing; tell what would go.")


@click.command()
@with_where
@with_values("--param", "Of Lance's compaction: target_rows_per_fragment=N, …; repeat it for each.")
@with_work
def compact(where: Where, params: dict[str, Any], work: Work) -> None:
    """Make fewer, larger fragments without deleted rows.

    ID is wh.db.docs, all levels joined by dots. Of several tables, one that fails does not stop the others; it exits
    with 1 then.
    """
    where.look(work)
    with work.begin(f"compacting {where}") as catalog:
        found = catalog.compact(**where.arguments, **params)
    show(work.app, where, found, _compacted)


@click.command()
@with_table
@click.option("--column", required=True, metavar="NAME", help="What to index.")
@click.option("--kind", required=True, metavar="KIND", help="BTREE, BITMAP, INVERTED, IVF_PQ, IVF_HNSW_SQ, …")
@click.option("--name", metavar="NAME", help="Of the index; default: the column's with _idx.")
@click.option("--replace", is_flag=True, help="Build an index of that name anew.")
@with_values("--param", "Of the kind, as pylance has it: num_partitions=256, metric=cosine, …; repeat it for each.")
@with_work
def index(
    table: tuple[str, ...],
    column: str,
    kind: str,
    name: str | None,
    replace: bool,
    params: dict[str, Any],
    work: Work,
) -> None:
    """Build an index of a column of the table ID."""
    look(work, table)
    with work.begin(f"indexing {column} of {work.shown(table)}") as catalog:
        made = catalog.create_index(table, column, kind, name, replace, **params)
    work.app.output.record("", {"table": work.shown(table), "index": made.name, **_numbers(made, "name")})


@click.command("optimize-indices")
@with_where
@click.option("--name", "names", metavar="NAME", multiple=True, help="Only this index; may be repeated.")
@click.option("--retrain", is_flag=True, help="Build them anew from all rows.")
@with_work
def optimize_indices(where: Where, names: tuple[str, ...], retrain: bool, work: Work) -> None:
    """Take rows into the indices that came after them."""
    where.look(work)
    with work.begin(f"optimizing the indices of {where}") as catalog:
        found = catalog.optimize_indices(**where.arguments, names=names or None, retrain=retrain)
    show(work.app, where, found, lambda version: f"version {version} has them")


@click.command()
@with_where
@with_older_than("14d", "Versions that may go: 12h, 14d, 2w.")
@with_dry_run
@with_work
def cleanup(where: Where, older_than: timedelta, dry_run: bool, work: Work) -> None:
    """Remove old versions and what only they need.

    The current version stays, and those that have a tag.
    """
    where.look(work)
    with work.begin(f"cleaning up {where}") as catalog:
        found = catalog.cleanup(**where.arguments, older_than=older_than, dry_run=dry_run)
    show(work.app, where, found, _removal(dry_run, _cleaned), dry_run=dry_run)


@click.command("remove-orphans")
@with_where
@click.option(
    "--older-than",
    metavar="AGE",
    callback=lambda ctx, param, value: None if value is None else age(ctx, param, value),
    help="Files that may go; younger ones may be those of a writer at work. Default: 7d; none with --no-writers.",
)
@click.option(
    "--no-writers",
    is_flag=True,
    help="I know that nobody writes: do not wait. Jobs that can go on keep files for 7d, or --older-than.",
)
@with_dry_run
@with_work
def remove_orphans(where: Where, older_than: timedelta | None, no_writers: bool, dry_run: bool, work: Work) -> None:
    """Remove files of killed jobs, which no version names.

    Such are data, indices and temporary files of writers that died, and notes of jobs that nobody has resumed.
    """
    from lancehouse.lake.orphans import LEAST_AGE

    if older_than is not None and older_than < LEAST_AGE and not no_writers:
        raise click.UsageError("a writer may need an hour to commit: give --older-than 1h or more, or --no-writers")
    where.look(work)
    with work.begin(f"looking for orphans of {where}") as catalog:
        found = catalog.remove_orphans(**where.arguments, older_than=older_than, dry_run=dry_run, no_writers=no_writers)
    if where.table and dry_run:
        summary = {"table": str(where), "files": found.files, "bytes": found.bytes, "dry_run": True}
        words = _removal(dry_run, _orphans)(found)
        work.app.output.table(FILES, [{"name": name} for name in found.names], summary, f"{where}: {words}")
    else:
        show(work.app, where, found, _removal(dry_run, _orphans), dry_run=dry_run)


def show(app: App, where: Where, found: Any, words: Words, **more: Any) -> None:
    """Hand over what came of a table or of several; one that failed makes the command fail.

    Args:
        app: where to.
        where: what was worked on.
        found: what `LanceCatalog` gave.
        words: what was done to a table, for people.
        more: to say of all.
    """
    if where.table:
        app.output.record("", {"table": str(where), **more, **_numbers(found)})
        return
    rows = [_row(where.shown(table), result, words) for table, result in found.items()]
    counts = {result: sum(row["result"] == result for row in rows) for result in (DONE, EMPTY, FAILS)}
    said = ", ".join(f"{count} {result}" for result, count in counts.items() if count) or "no tables"
    app.output.table(TABLES, rows, {"namespace": list(where.namespace), **more, "counts": counts}, f"{where}: {said}")
    if failed := [row["table"] for row in rows if row["result"] == FAILS]:
        app.output.error(f"{len(failed)} of {len(rows)} tables failed: {some(failed)}")
        raise click.exceptions.Exit(FAILED)


def _row(table: str, result: Any, words: Words) -> dict[str, Any]:
    from lance_namespace.errors import LanceNamespaceError, TableNotFoundError

    if isinstance(result, TableNotFoundError):
        return {"table": table, "result": EMPTY, "words": "has no data"}
    if isinstance(result, LanceNamespaceError):
        return {"table": table, "result": FAILS, "words": str(result)}
    return {"table": table, "result": DONE, "words": words(result), **_numbers(result)}


def _numbers(result: Any, *without: str) -> Mapping[str, Any]:
    """What is known of a result, for programs."""
    found = {"version": result} if isinstance(result, int) else asdict(result)
    return {key: value for key, value in found.items() if key not in (*without, "names")}


def _removal(dry_run: bool, words: Words) -> Words:
    return lambda found: f"{'would remove' if dry_run else 'removed'} {words(found)}"


def _compacted(found: Compacted) -> str:
    if not found.fragments_removed:
        return "nothing to do"
    return f"{counted(found.fragments_removed, 'fragment')} became {found.fragments_added}"


def _cleaned(found: Cleaned) -> str:
    kept = f"; kept by tags: {', '.join(found.tagged)}" if found.tagged else ""
    return f"{counted(found.versions, 'version')}, {size(found.bytes)}{kept}"


def _orphans(found: Orphans) -> str:
    return f"{counted(found.files, 'file')}, {size(found.bytes)}"
