"""`lancehouse doctor`: check a catalog against storage, and repair what is safe to repair."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import click

from lancehouse.cli.local_spark import parse_age
from lancehouse.cli.namespace import parse_namespace
from lancehouse.cli.options import confirm, with_client, with_yes
from lancehouse.cli.output import FAILED, format_count, output_columns

if TYPE_CHECKING:
    from lancehouse.admin.table_checks import DoctorReport, Finding
    from lancehouse.cli.client import Client
    from lancehouse.cli.main import CliContext

FINDINGS = output_columns(
    number="#", severity="Severity", about="Table or place", words="What is wrong", numbers=("number",)
)


def parse_min_age(ctx: click.Context, param: click.Parameter, value: str) -> timedelta:
    """Parse an age; refuse one so short that a writer may still be at work."""
    from lancehouse.jobs.orphans import LEAST_AGE

    min_age = parse_age(ctx, param, value)
    if min_age < LEAST_AGE:
        raise click.BadParameter("a writer may need an hour to commit: give 1h or more", ctx, param)
    return min_age


@click.command()
@click.argument("table", metavar="[ID]", required=False, default="", callback=parse_namespace)
@click.option(
    "--namespace",
    metavar="NS",
    default="",
    callback=parse_namespace,
    help="All tables in this namespace and those below.",
)
@click.option("--root", "roots", metavar="PLACE", multiple=True, help="Also search here for datasets without an entry.")
@click.option(
    "--older-than",
    metavar="AGE",
    default="7d",
    show_default=True,
    callback=parse_min_age,
    help="Age from which staged manifests, and files that no version names, count as abandoned.",
)
@click.option(
    "--skip-files", is_flag=True, help="Do not list the files of every table, which takes long for many files."
)
@click.option("--fix", is_flag=True, help="Fix what can be fixed safely, after confirmation.")
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

    ID is wh.db.docs, all levels joined by dots; without it, the whole catalog is checked, or a
    namespace. Each finding comes with the command that fixes it. The exit code is 1 if an error or
    a warning was not fixed. A table that cannot be read does not stop the check of the others.
    """
    from lancehouse.admin.doctor import Doctor

    app: CliContext = ctx.obj
    is_table = table != client.target.parent
    if is_table and (roots or namespace != client.target.parent):
        raise click.UsageError("give the ID of a table, or --namespace NS, or neither; --root goes with the last two")
    with app.output.progress("checking") as progress:
        checker = Doctor(client, roots, older_than, not skip_files, progress.count)
        with _explain_short_ids(client, table if is_table else namespace, is_table=is_table):
            report = checker.examine_table(table) if is_table else checker.examine_namespace(namespace)
    if fix and report.fixable:
        report = _confirm_and_repair(app, client, report, yes=yes)
    show_report(app, report)
    if report.needs_action:
        ctx.exit(FAILED)


@contextmanager
def _explain_short_ids(client: Client, id: tuple[str, ...], *, is_table: bool) -> Iterator[None]:
    """Add a hint to the error about an id with too few levels."""
    from lance_namespace.errors import InvalidInputError

    try:
        yield
    except InvalidInputError as error:
        if "id is [warehouse or catalog" in str(error):
            words = ["--namespace", client.format_id(id)] if is_table else ["--namespace", "WAREHOUSE"]
            what = "a namespace with all its tables" if is_table else "one warehouse: this catalog does not list them"
            error.add_note(f"`{client.shell.command('doctor', *words)}` checks {what}")
        raise


def _confirm_and_repair(app: CliContext, client: Client, report: DoctorReport, *, yes: bool) -> DoctorReport:
    from lancehouse.admin.doctor import fix_all

    listing = "\n".join(f"  {finding.about}: {finding.what}" for finding in report.fixable)
    confirm(app, f"{listing}\nMend {format_count(len(report.fixable), 'finding')}?", yes=yes)
    with app.output.progress("mending") as progress:
        return replace(report, findings=fix_all(report.findings, client, progress.count))


def show_report(app: CliContext, report: DoctorReport) -> None:
    """Print the findings."""
    rows = [_finding_row(number, finding) for number, finding in enumerate(report.findings, 1)]
    counts = _count_by_severity(report.findings)
    count_words = (
        ", ".join(format_count(count, severity) for severity, count in counts.items() if count) or "all is well"
    )
    fixed = sum(finding.is_fixed for finding in report.findings)
    words = f"{format_count(report.tables, 'table')}: {count_words}{f', {fixed} of them mended' if fixed else ''}"
    next_ones = [f"{row['number']}  {row['command']}" for row in rows if row["command"] and not row["fixed"]]
    typed = "\n".join(["", "What to type:", *next_ones]) if next_ones else ""
    summary = {"tables": report.tables, "counts": counts, "fixed": fixed}
    app.output.table(FINDINGS, rows, summary, f"{words}{typed}", name="findings")


def _count_by_severity(findings: Sequence[Finding]) -> dict[str, int]:
    from lancehouse.admin.table_checks import Severity

    return {str(severity): sum(finding.severity is severity for finding in findings) for severity in Severity}


def _finding_row(number: int, finding: Finding) -> dict[str, Any]:
    words = finding.what
    if finding.is_fixed:
        words = f"mended: {words}"
    elif finding.failure:
        words = f"{words}; not mended: {finding.failure}"
    return {
        "number": number,
        "severity": str(finding.severity),
        "kind": str(finding.kind),
        "about": finding.about,
        "what": finding.what,
        "words": words,
        "command": finding.command,
        "can_fix": finding.fix is not None,
        "fixed": finding.is_fixed,
        **({"failure": finding.failure} if finding.failure else {}),
    }
