"""`lancehouse doctor`: a catalog checked against storage."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import click

from lancehouse.cli.asking import confirm, with_yes
from lancehouse.cli.catalogs import with_client
from lancehouse.cli.local import age
from lancehouse.cli.namespace import below
from lancehouse.cli.output import FAILED, Column
from lancehouse.cli.words import counted

if TYPE_CHECKING:
    from lancehouse.care.findings import Finding, Report
    from lancehouse.cli.client import Client
    from lancehouse.cli.main import App

FINDINGS = (
    Column("number", "#", is_number=True),
    Column("severity", "Severity"),
    Column("about", "Table or place"),
    Column("words", "What is wrong"),
)


def least(ctx: click.Context, param: click.Parameter, value: str) -> timedelta:
    """An age at which no writer is still at it."""
    from lancehouse.lake.orphans import LEAST_AGE

    wanted = age(ctx, param, value)
    if wanted < LEAST_AGE:
        raise click.BadParameter("a writer may need an hour to commit: give 1h or more", ctx, param)
    return wanted


@click.command()
@click.argument("table", metavar="[ID]", required=False, default="", callback=below)
@click.option("--namespace", metavar="NS", default="", callback=below, help="All tables there and below.")
@click.option("--root", "roots", metavar="PLACE", multiple=True, help="Look here too for datasets without an entry.")
@click.option(
    "--older-than",
    metavar="AGE",
    default="7d",
    show_default=True,
    callback=least,
    help="Staged manifests, and files that no version names, whose writers have surely died.",
)
@click.option("--skip-files", is_flag=True, help="Do not list the files of every table: faster where there are many.")
@click.option("--fix", is_flag=True, help="Mend what is safe to mend; asks before.")
@with_yes
@with_client
@click.pass_context
def doctor(
    ctx: click.Context,
    table: tuple[str, ...],
    namespace: tuple[str, ...],
    roots: tuple[str, ...],
    older_than: timedelta,
    skip_files: bool,
    fix: bool,
    yes: bool,
    client: Client,
) -> None:
    """Check a catalog against storage, or one table of it.

    ID is wh.db.docs, all levels joined by dots; without it the whole catalog is checked, or a namespace. For each
    finding it says what to type. It exits with 1 where something needs care; one table that cannot be read does not
    stop the others.
    """
    from lancehouse.care.doctor import Doctor

    app: App = ctx.obj
    is_table = table != client.target.parent
    if is_table and (roots or namespace != client.target.parent):
        raise click.UsageError("give the ID of a table, or --namespace NS, or neither; --root goes with the last two")
    with app.output.progress("checking") as progress:
        visit = Doctor(client, roots, older_than, not skip_files, progress.count)
        with _explained(client, table if is_table else namespace, is_table=is_table):
            report = visit.table(table) if is_table else visit.namespace(namespace)
    if fix and report.mendable:
        report = _mended(app, client, report, yes=yes)
    show(app, report)
    if report.needs_care:
        ctx.exit(FAILED)


@contextmanager
def _explained(client: Client, id: tuple[str, ...], *, is_table: bool) -> Iterator[None]:
    """What to type where an id has too few levels."""
    from lance_namespace.errors import InvalidInputError

    try:
        yield
    except InvalidInputError as error:
        if "id is [warehouse or catalog" in str(error):
            words = ["--namespace", client.shown(id)] if is_table else ["--namespace", "WAREHOUSE"]
            what = "a namespace with all its tables" if is_table else "one warehouse: this catalog does not list them"
            error.add_note(f"`{client.shell.command('doctor', *words)}` checks {what}")
        raise


def _mended(app: App, client: Client, report: Report, *, yes: bool) -> Report:
    from lancehouse.care.doctor import mended

    doomed = "\n".join(f"  {each.about}: {each.what}" for each in report.mendable)
    confirm(app, f"{doomed}\nMend {counted(len(report.mendable), 'finding')}?", yes=yes)
    with app.output.progress("mending") as progress:
        return replace(report, findings=mended(report.findings, client, progress.count))


def show(app: App, report: Report) -> None:
    """Hand over what was found."""
    rows = [_row(number, each) for number, each in enumerate(report.findings, 1)]
    counts = _counts(report.findings)
    said = ", ".join(counted(count, severity) for severity, count in counts.items() if count) or "all is well"
    fixed = sum(each.is_fixed for each in report.findings)
    words = f"{counted(report.tables, 'table')}: {said}{f', {fixed} of them mended' if fixed else ''}"
    next_ones = [f"{row['number']}  {row['command']}" for row in rows if row["command"] and not row["fixed"]]
    typed = "\n".join(["", "What to type:", *next_ones]) if next_ones else ""
    summary = {"tables": report.tables, "counts": counts, "fixed": fixed}
    app.output.table(FINDINGS, rows, summary, f"{words}{typed}", name="findings")


def _counts(findings: Sequence[Finding]) -> dict[str, int]:
    from lancehouse.care.findings import Severity

    return {str(each): sum(found.severity is each for found in findings) for each in Severity}


def _row(number: int, found: Finding) -> dict[str, Any]:
    words = found.what
    if found.is_fixed:
        words = f"mended: {words}"
    elif found.failure:
        words = f"{words}; not mended: {found.failure}"
    return {
        "number": number,
        "severity": str(found.severity),
        "kind": str(found.kind),
        "about": found.about,
        "what": found.what,
        "words": words,
        "command": found.command,
        "can_fix": found.mend is not None,
        "fixed": found.is_fixed,
        **({"failure": found.failure} if found.failure else {}),
    }
