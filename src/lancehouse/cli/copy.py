"""`lancehouse copy` and `diff`: copy the tables of one catalog to another, and compare those of two."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import click

from lancehouse.cli.local_spark import progress_callback, session, with_cores
from lancehouse.cli.options import confirm, open_side, parse_required_name, with_namespace, with_side, with_yes
from lancehouse.cli.output import FAILED, format_count, format_names, format_size, output_columns

if TYPE_CHECKING:
    from lancehouse.admin.copy import Copier, CopyStep, Difference
    from lancehouse.cli.main import CliContext

FAIL, SKIP, REPLACE = "fail", "skip", "replace"
STEPS = output_columns(table="Table", action="Action", words="What")


def parse_ids(ctx: click.Context, param: click.Parameter, values: Sequence[str]) -> tuple[tuple[str, ...], ...]:
    """Parse ids as the user types them."""
    return tuple(parse_required_name(ctx, param, value) for value in values)


@click.command()
@with_side("source", "FROM")
@with_side("target", "TO")
@with_namespace
@click.option("--table", "tables", metavar="ID", multiple=True, callback=parse_ids, help="Only this one. Repeatable.")
@click.option(
    "--data", is_flag=True, help="Copy the data too, on Spark; otherwise both catalogs refer to the same data."
)
@click.option("--root", metavar="PLACE", help="With --data: where the copies go; default: where TO puts tables.")
@click.option(
    "--on-conflict",
    type=click.Choice([FAIL, SKIP, REPLACE]),
    default=FAIL,
    show_default=True,
    help="What to do if TO has another table of that name; replace removes its entry, not its data.",
)
@click.option("--dry-run", is_flag=True, help="Show the plan without changing anything.")
@with_cores
@with_yes
@click.pass_context
def copy(
    ctx: click.Context,
    source: str,
    target: str,
    namespace: tuple[str, ...],
    tables: tuple[tuple[str, ...], ...],
    data: bool,
    root: str | None,
    on_conflict: str,
    dry_run: bool,
    cores: int | None,
    yes: bool,
) -> None:
    """Copy the tables of one catalog to another.

    FROM and TO are catalogs of ~/.lancehouse.yaml. Ids are the same in both, after the `parent` of
    each. Everything is planned before anything is done; after a failure, the same command
    continues. With --data, all versions and tags of the main branch are copied; other branches are
    not, and are listed.
    """
    from lancehouse.admin.copy import Copier, select_tables

    app: CliContext = ctx.obj
    if tables and namespace:
        raise click.UsageError("give --table or --namespace, not both")
    if root and not data:
        raise click.UsageError("--root goes with --data: without it, the data stays where it is")
    copier = Copier(open_side(app, source), open_side(app, target), data, root, replaces=on_conflict == REPLACE)
    with app.output.progress("planning") as progress:
        steps = copier.plan(select_tables(copier.source, namespace, tables), progress.count)
    fails = [step for step in steps if step.action == "fails"]
    conflicts = [step for step in steps if step.action == "conflict"] if on_conflict == FAIL else []
    if dry_run or (on_conflict == FAIL and (conflicts or fails)):
        show_steps(app, steps, source, target, dry_run=True)
        _exit_on_conflicts(ctx, app, conflicts, fails, dry_run=dry_run)
        return
    if replaced := [step.name for step in steps if step.replaces]:
        confirm(app, f"Take {format_names(replaced)} out of {target}? Their data stays.", yes=yes)
    results = _execute(app, copier, steps, cores)
    show_steps(app, results, source, target, dry_run=False)
    if any(step.action == "fails" for step in results):
        ctx.exit(FAILED)


def _exit_on_conflicts(
    ctx: click.Context, app: CliContext, conflicts: Sequence[CopyStep], fails: Sequence[CopyStep], *, dry_run: bool
) -> None:
    if not conflicts and not fails:
        return
    if not dry_run:
        failures = f"{format_count(len(fails), 'table')} that cannot be copied" if fails else ""
        counts = ", ".join(filter(None, (format_count(len(conflicts), "conflict") if conflicts else "", failures)))
        hints = ["--on-conflict skip leaves them out; --on-conflict replace takes the entries in TO away"]
        names = format_names([step.name for step in (*conflicts, *fails)])
        app.output.error(
            f"nothing was done: {counts}: {names}",
            hints if conflicts else ["--on-conflict skip copies the others; it exits with 1 then"],
        )
    ctx.exit(FAILED)


def _execute(app: CliContext, copier: Copier, steps: Sequence[CopyStep], cores: int | None) -> list[CopyStep]:
    """Carry out a plan; Spark is started only if there is data to copy."""
    needs_spark = any(step.action == "copy" for step in steps)
    with app.output.progress("copying") as progress:
        if needs_spark:
            progress.say("starting Spark …")
        with session(app, cores) if needs_spark else nullcontext() as spark:
            if spark is None:
                return copier.execute(steps, None, progress.count)
            from lancehouse.jobs import table_copy
            from lancehouse.jobs.address import TableAddress
            from lancehouse.spark.engine import SparkEngine, watch_tasks

            here, there = copier.source.catalog.target, copier.target.catalog.target
            progress.say("")
            with watch_tasks(spark, progress_callback(progress)):
                return copier.execute(
                    steps,
                    lambda table, copied: table_copy.copy(
                        SparkEngine(spark), TableAddress.parse(here, table), TableAddress.parse(there, copied)
                    ),
                )


def show_steps(app: CliContext, steps: Sequence[CopyStep], source: str, target: str, *, dry_run: bool) -> None:
    """Print a plan, or its result."""
    rows = [_step_row(step) for step in steps]
    counts: dict[str, int] = {}
    for row in rows:
        counts[row["action"]] = counts.get(row["action"], 0) + 1
    count_words = ", ".join(f"{count} {action}" for action, count in sorted(counts.items())) or "no tables"
    summary = {"from": source, "to": target, "dry_run": dry_run, "counts": counts}
    words = f"{source} to {target}{' (nothing was done)' * dry_run}: {count_words}"
    app.output.table(STEPS, rows, summary, f"{words}{_format_branches_left(steps, source)}", name="tables")


def _format_branches_left(steps: Sequence[CopyStep], source: str) -> str:
    """Return a sentence about branches that are not copied, so that nobody deletes the only copy."""
    names = [f"{step.name} ({', '.join(step.branches)})" for step in steps if step.branches]
    if not names:
        return ""
    return f"\nOnly the main branch is copied. These branches are in {source} alone: {format_names(names)}"


def _step_row(step: CopyStep) -> dict[str, Any]:
    from lancehouse.secrets import redact_properties

    amount = f"{format_count(step.files, 'file')}, {format_size(step.bytes)}" if step.files else ""
    words = "; ".join(filter(None, (step.why, amount, step.target if step.action != "conflict" else "")))
    return {
        "table": step.name,
        "action": str(step.action),
        "words": words,
        "why": step.why,
        "from": step.location,
        "to": step.target,
        "files": step.files,
        "bytes": step.bytes,
        "version": step.version,
        "branches_left": list(step.branches),
        "tags_left": list(step.tags),
        "properties": redact_properties(step.properties),
    }


FIELDS = ("location", "version", "rows", "schema", "properties")
"""Fields that are compared."""


@click.command()
@with_side("first", "A")
@with_side("second", "B")
@with_namespace
@click.option(
    "--ignore",
    "ignored",
    metavar="FIELD",
    type=click.Choice(FIELDS),
    multiple=True,
    help=f"Do not compare this: {', '.join(FIELDS)}. Repeatable.",
)
@click.pass_context
def diff(ctx: click.Context, first: str, second: str, namespace: tuple[str, ...], ignored: tuple[str, ...]) -> None:
    """Compare the tables of two catalogs.

    A and B are catalogs of ~/.lancehouse.yaml. A table is the same if location, version, rows,
    columns and properties are. The exit code is 0 if all tables are the same, otherwise 1.
    """
    from lancehouse.admin.copy import compare

    app: CliContext = ctx.obj
    one, other = open_side(app, first), open_side(app, second)
    with app.output.progress(f"comparing {first} and {second}") as progress:
        comparison = compare(one, other, namespace, ignored, progress.count)
    rows = [_difference_row(difference, first, second) for difference in comparison.different]
    columns = output_columns(table="Table", result="Where", words="What differs")
    counts = {
        "same": comparison.same,
        "only_in_a": sum(not difference.is_in_second for difference in comparison.different),
        "only_in_b": sum(not difference.is_in_first for difference in comparison.different),
        "different": sum(difference.is_in_first and difference.is_in_second for difference in comparison.different),
    }
    words = (
        f"{format_count(counts['same'], 'table')} the same, {counts['different']} different, "
        f"{counts['only_in_a']} only in "
        f"{first}, {counts['only_in_b']} only in {second}"
    )
    app.output.table(columns, rows, {"a": first, "b": second, "counts": counts}, words, name="tables")
    if rows:
        ctx.exit(FAILED)


def _difference_row(difference: Difference, first: str, second: str) -> dict[str, Any]:
    where = (
        "both"
        if difference.is_in_first and difference.is_in_second
        else f"only in {first if difference.is_in_first else second}"
    )
    fields = {name: [_redact_value(name, value) for value in values] for name, values in difference.fields.items()}
    words = [f"{name}: {_format_value(one)} / {_format_value(other)}" for name, (one, other) in fields.items()]
    return {"table": difference.table, "result": where, "words": "; ".join(words), "fields": fields}


def _redact_value(name: str, value: Any) -> Any:
    from lancehouse.secrets import redact_properties

    return redact_properties(value) if name == "properties" and value is not None else value


def _format_value(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{key} {item}" for key, item in value.items()) or "none"
    return "none" if value is None else str(value)
