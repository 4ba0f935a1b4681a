"""`lancehouse copy`: the tables of one catalog in another."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import click

from lancehouse.cli.asking import confirm, with_yes
from lancehouse.cli.catalogs import name
from lancehouse.cli.local import session, told, with_cores
from lancehouse.cli.output import FAILED, Column
from lancehouse.cli.pairs import side, with_namespace, with_side
from lancehouse.cli.words import counted, hidden, size, some

if TYPE_CHECKING:
    from lancehouse.care.copying import Copier, Step
    from lancehouse.cli.main import App

FAIL, SKIP, REPLACE = "fail", "skip", "replace"
STEPS = (Column("table", "Table"), Column("action", "Action"), Column("words", "What"))


def ids(ctx: click.Context, param: click.Parameter, values: Sequence[str]) -> tuple[tuple[str, ...], ...]:
    """Ids as people write them, taken apart."""
    return tuple(name(ctx, param, value) for value in values)


@click.command()
@with_side("source", "FROM")
@with_side("target", "TO")
@with_namespace
@click.option("--table", "tables", metavar="ID", multiple=True, callback=ids, help="Only this one; may be repeated.")
@click.option("--data", is_flag=True, help="Copy the data too, on Spark; else TO names the same places.")
@click.option("--root", metavar="PLACE", help="With --data: where the copies go; default: where TO puts tables.")
@click.option(
    "--on-conflict",
    type=click.Choice([FAIL, SKIP, REPLACE]),
    default=FAIL,
    show_default=True,
    help="Where TO has another table of that name; replace takes its entry away, not its data.",
)
@click.option("--dry-run", is_flag=True, help="Change nothing; show the plan.")
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
    """Bring the tables of one catalog into another.

    ~/.lancehouse.yaml names both, FROM and TO. Ids are the same in both, after the `parent` of each. All is planned
    before anything is done; the same command again goes on where it was. With --data all versions and tags of the main
    branch are kept; other branches stay behind, and are named.
    """
    from lancehouse.care.copying import Copier
    from lancehouse.care.sides import chosen

    app: App = ctx.obj
    if tables and namespace:
        raise click.UsageError("give --table or --namespace, not both")
    if root and not data:
        raise click.UsageError("--root goes with --data: without it, the data stays where it is")
    copier = Copier(side(app, source), side(app, target), data, root, replaces=on_conflict == REPLACE)
    with app.output.progress("planning") as progress:
        steps = copier.plan(chosen(copier.source, namespace, tables), progress.count)
    fails = [step for step in steps if step.action == "fails"]
    conflicts = [step for step in steps if step.action == "conflict"] if on_conflict == FAIL else []
    if dry_run or (on_conflict == FAIL and (conflicts or fails)):
        show(app, steps, source, target, dry_run=True)
        _end(ctx, app, conflicts, fails, dry_run=dry_run)
        return
    if replaced := [step.name for step in steps if step.replaces]:
        confirm(app, f"Take {some(replaced)} out of {target}? Their data stays.", yes=yes)
    done = _done(app, copier, steps, cores)
    show(app, done, source, target, dry_run=False)
    if any(step.action == "fails" for step in done):
        ctx.exit(FAILED)


def _end(ctx: click.Context, app: App, conflicts: Sequence[Step], fails: Sequence[Step], *, dry_run: bool) -> None:
    if not conflicts and not fails:
        return
    if not dry_run:
        failures = f"{counted(len(fails), 'table')} that cannot be copied" if fails else ""
        said = ", ".join(filter(None, (counted(len(conflicts), "conflict") if conflicts else "", failures)))
        hints = ["--on-conflict skip leaves them out; --on-conflict replace takes the entries in TO away"]
        names = some([step.name for step in (*conflicts, *fails)])
        app.output.error(
            f"nothing was done: {said}: {names}",
            hints if conflicts else ["--on-conflict skip copies the others; it exits with 1 then"],
        )
    ctx.exit(FAILED)


def _done(app: App, copier: Copier, steps: Sequence[Step], cores: int | None) -> list[Step]:
    """Carry out a plan; Spark is started only where there is something for it to do."""
    needs_spark = any(step.action == "copy" for step in steps)
    with app.output.progress("copying") as progress:
        if needs_spark:
            progress.say("starting Spark …")
        with session(app, cores) if needs_spark else nullcontext() as spark:
            if spark is None:
                return copier.execute(steps, None, progress.count)
            from lancehouse.spark import copying
            from lancehouse.spark.address import Catalog
            from lancehouse.spark.watching import watch

            here, there = (
                Catalog.of(each.catalog.target.impl, each.catalog.target.properties)  # type: ignore[attr-defined]
                for each in (copier.source, copier.target)
            )
            progress.say("")
            with watch(spark, told(progress)):
                return copier.execute(
                    steps, lambda table, copied: copying.copy(spark, here.table(table), there.table(copied))
                )


def show(app: App, steps: Sequence[Step], source: str, target: str, *, dry_run: bool) -> None:
    """Hand over a plan, or what came of it."""
    rows = [_row(step) for step in steps]
    counts: dict[str, int] = {}
    for row in rows:
        counts[row["action"]] = counts.get(row["action"], 0) + 1
    said = ", ".join(f"{count} {action}" for action, count in sorted(counts.items())) or "no tables"
    summary = {"from": source, "to": target, "dry_run": dry_run, "counts": counts}
    words = f"{source} to {target}{' (nothing was done)' * dry_run}: {said}"
    app.output.table(STEPS, rows, summary, f"{words}{_left(steps, source)}", name="tables")


def _left(steps: Sequence[Step], source: str) -> str:
    """A sentence about what is not copied, so that nobody removes the only one."""
    names = [f"{step.name} ({', '.join(step.branches)})" for step in steps if step.branches]
    if not names:
        return ""
    return f"\nOnly the main branch is copied. These branches are in {source} alone: {some(names)}"


def _row(step: Step) -> dict[str, Any]:
    amount = f"{counted(step.files, 'file')}, {size(step.bytes)}" if step.files else ""
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
        "properties": hidden(step.properties),
    }
