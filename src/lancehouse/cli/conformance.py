"""`lancehouse conformance`: check any LanceNamespace implementation on a live server."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

import click

from lancehouse.cli.options import (
    connect,
    find_named_catalog,
    get_catalog,
    override_properties,
    parse_id,
    with_catalog,
    with_properties,
)
from lancehouse.cli.output import FAILED, INTERRUPTED, OK, OutputColumn
from lancehouse.conformance import checks as suite
from lancehouse.conformance.checks import AREAS

if TYPE_CHECKING:
    from lancehouse.cli.main import CliContext
    from lancehouse.conformance.results import CheckResult, ConformanceReport
    from lancehouse.conformance.target import ConformanceTarget
    from lancehouse.connection import Connection

SMALL = 12
SUITE = Path(suite.__file__).parent
LARGE = 205
"""More than two pages of a server that returns at most 100 entries per page."""

COLUMNS = (
    OutputColumn("area", "Area", width=10, grouped=True),
    OutputColumn("sentence", "Check"),
    OutputColumn("outcome", "Result", width=11),
    OutputColumn("seen", "What was seen"),
)


def parse_checks(ctx: click.Context, param: click.Parameter, values: tuple[str, ...]) -> tuple[str, ...]:
    """Validate names of checks, which are functions in the suite's files."""
    for value in values:
        area, _, check = value.partition("[")[0].partition(".")
        if not any(f"def check_{area}_{check}(" in file.read_text("utf-8") for file in SUITE.glob("*.py")):
            raise click.BadParameter(f"there is no check called {value}", ctx, param)
    return values


@click.command()
@with_catalog
@click.option("--impl", metavar="NAME", is_eager=True, help="Alias (iceberg, dir, …) or full class path.")
@with_properties
@click.option(
    "--parent",
    metavar="ID",
    default="",
    callback=parse_id,
    help="Namespace to work in, a.b or a.`b.c`; default: the root.",
)
@click.option(
    "--root", "--location", metavar="FOLDER", help="Folder or URI for the tables; default: a temporary folder."
)
@click.option("--entries", type=click.IntRange(6), help=f"Length of a long list; default {SMALL}, {LARGE} with --full.")
@click.option("--full", is_flag=True, help="Test long lists (205 entries), where servers tend to fail.")
@click.option(
    "--area",
    "areas",
    type=click.Choice(AREAS),
    metavar="AREA",
    multiple=True,
    help=f"Only this one; repeatable: {', '.join(AREAS)}.",
)
@click.option(
    "--known",
    metavar="CHECK",
    multiple=True,
    callback=parse_checks,
    help="A check known to fail: reported, not counted.",
)
@click.pass_context
def conformance(
    ctx: click.Context,
    impl: str | None,
    properties: dict[str, str],
    parent: tuple[str, ...],
    root: str | None,
    entries: int | None,
    full: bool,
    areas: tuple[str, ...],
    known: tuple[str, ...],
) -> None:
    """Check an implementation of lance_namespace on a live server.

    The suite creates namespaces and tables with unique names below --parent, and removes them at
    the end. The exit code is 1 if a check fails.
    """
    from lancehouse.conformance.target import ConformanceTarget

    app: CliContext = ctx.obj
    size = entries or (LARGE if full else SMALL)
    catalog = override_properties(resolve_connection(ctx, impl), properties)
    target = ConformanceTarget(
        catalog.impl, catalog.properties, parent or catalog.parent, root, size, frozenset(known), areas
    )
    with app.output.progress(f"checking {target.impl}") as progress, interrupt_on_sigterm():
        connect(target)
        report = run_suite(target, lambda result: progress.say(result.check))
    show_report(app, report)
    ctx.exit(INTERRUPTED if report.interrupted else OK if report.ok else FAILED)


def resolve_connection(ctx: click.Context, impl: str | None) -> Connection:
    """Return the implementation to check, with the properties of its catalog.

    Raises:
        UsageError: neither `--impl` nor `--catalog` is given, or both are.
    """
    from lancehouse.connection import Connection

    if impl and not ctx.obj.catalog:
        return Connection(impl)
    catalog = get_catalog(ctx) if impl else find_named_catalog(ctx)
    if catalog is None or not (impl or ctx.obj.catalog):  # never write to the `default` catalog unless it is named
        raise click.UsageError("give --impl with its --property options, or --catalog", ctx)
    return catalog


def run_suite(target: ConformanceTarget, on_result: Callable[[CheckResult], None]) -> ConformanceReport:
    """Run the suite; it needs pytest, which is an optional dependency."""
    os.environ.setdefault("LANCE_LOG", "error")  # pylance would log warnings about errors that the checks provoke
    try:
        from lancehouse.conformance import runner
    except ModuleNotFoundError as error:
        if error.name != "pytest":
            raise
        raise click.ClickException("conformance needs pytest: pip install 'lancehouse[conformance]'") from None
    return runner.run(target, on_result)


def show_report(app: CliContext, report: ConformanceReport) -> None:
    """Print the results."""
    counts = report.count_by_outcome()
    where = ".".join(report.parent) or "the root"
    words = ", ".join(f"{count} {format_outcome(outcome, count)}" for outcome, count in counts.items() if count)
    summary = {
        "implementation": report.impl,
        "parent": list(report.parent),
        "ok": report.ok,
        "interrupted": report.interrupted,
        "counts": counts,
    }
    app.output.table(COLUMNS, report.to_rows(), summary, f"{report.impl} in {where}: {words}")
    for trouble in report.trouble:
        app.output.error(trouble)
    if report.interrupted:
        app.output.error("interrupted; what the suite had made is removed")


def format_outcome(outcome: str, count: int) -> str:
    """Return an outcome as a verb that fits the number."""
    from lancehouse.conformance.results import CheckOutcome

    plural = {CheckOutcome.HOLDS.value: "hold", CheckOutcome.FAILS.value: "fail"}
    return plural.get(outcome, outcome) if count != 1 else outcome


@contextmanager
def interrupt_on_sigterm() -> Iterator[None]:
    """Handle SIGTERM like Ctrl-C, so that the suite removes what it created."""

    def interrupt(_number: int, _frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
