"""`lancehouse run`: run a pipeline, which a YAML file describes, on Spark."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from lancehouse.cli.options import requires_extra, with_pairs
from lancehouse.cli.output import FAILED, output_columns

if TYPE_CHECKING:
    from lancehouse.cli.main import CliContext
    from lancehouse.pipelines import Pipeline, PipelinePlan, RunReport

PLAN = output_columns(step="Step", where="Where", does="Does", columns="Columns after it")
STEPS = output_columns(
    step="Step", where="Where", state="State", rows="Rows", version="Version", seconds="Seconds", says=""
)


@click.command()
@click.argument("file", metavar="FILE", type=click.Path(dir_okay=False))
@with_pairs("--set", "variables", metavar="NAME=VALUE", help="A variable of the file; repeat it for each.")
@click.option("--run", metavar="ID", help="Names this run: the same one again does nothing twice, and goes on.")
@click.option("--dry-run", is_flag=True, help="Check all of it and show the plan; write nothing.")
@click.option(
    "--engine",
    type=click.Choice(["spark", "local"]),
    default="spark",
    show_default=True,
    help="Spark, or threads of this process, for steps in Arrow.",
)
@click.option(
    "--report", type=click.Path(dir_okay=False, writable=True), metavar="FILE", help="Write the report as JSON."
)
@click.pass_obj
def run(
    app: CliContext,
    file: str,
    variables: dict[str, str],
    run: str | None,
    dry_run: bool,
    engine: str,
    report: str | None,
) -> None:
    """Run the pipeline in FILE.

    A pipeline brings rows from files or a table, through steps, into a Lance table, and can publish it with a tag.
    All of it is checked before anything is done. It exits with 1 if a step fails or an expectation does not hold.
    """
    pipeline = _load_pipeline(file, variables)
    _check_report_folder(report)
    with ExitStack() as stack:
        progress = stack.enter_context(app.output.progress(f"pipeline {pipeline.shape.name}"))
        lazy_spark = _LazySpark(app, pipeline, stack, progress, is_wanted=engine == "spark")
        progress.say("checking")
        plan = pipeline.plan(lazy_spark, run)
        if dry_run:
            stack.close()
            _show_plan(app, plan)
            return
        result = _run_plan(app, plan, lazy_spark, progress, report)
    _show_report(app, result)
    if not result.has_passed:
        for failure in result.failures:
            app.output.error(failure)
        raise click.exceptions.Exit(FAILED)


def _load_pipeline(file: str, variables: dict[str, str]) -> Pipeline:
    os.environ.setdefault("LANCE_LOG", "error")  # before pylance is imported, which logs warnings on stderr
    with requires_extra("spark"):
        from lancehouse.pipelines import load
    return load(file, variables)


class _LazySpark:
    """Starts Spark when it is first called; the exit stack stops it."""

    def __init__(
        self, app: CliContext, pipeline: Pipeline, stack: ExitStack, progress: Any, *, is_wanted: bool
    ) -> None:
        self.is_wanted = is_wanted
        self._app, self._settings, self._stack, self._progress = app, pipeline.shape.spark, stack, progress
        self._spark: Any = None

    def __call__(self) -> Any:
        if self._spark is None:
            from lancehouse.pipelines.pipeline import open_session, refuse_spark

            if not self.is_wanted:
                return refuse_spark()
            self._progress.say("starting Spark")
            self._spark = self._stack.enter_context(open_session(self._settings, shows_log=self._app.debug))
        return self._spark


def _run_plan(app: CliContext, plan: PipelinePlan, start: _LazySpark, progress: Any, file: str | None) -> RunReport:
    from lance_namespace.errors import LanceNamespaceError

    from lancehouse.pipelines import runner

    report = runner.create_report(plan)

    def report_step(step: str, tasks: Any) -> None:
        if tasks is None:
            progress.say(step)
            progress.count(0, 0)
        else:
            progress.count(tasks.done, tasks.total)

    with _write_report(report, file):
        try:
            runner.run_plan(
                plan, start() if start.is_wanted else None, report_step if progress.is_seen else None, report
            )
        except KeyboardInterrupt:
            app.output.error(f"interrupted; to go on where this run was: --run {plan.run}")
            raise
        except LanceNamespaceError as error:
            raise type(error)(f"{error}; to go on where this run was: --run {plan.run}") from error
    return report


def _check_report_folder(report: str | None) -> None:
    """Check that the folder of the report exists, before the pipeline runs."""
    if report is not None and not Path(report).absolute().parent.is_dir():
        from lance_namespace.errors import InvalidInputError

        raise InvalidInputError(f"the report cannot be written to {report}: there is no such folder")


@contextmanager
def _write_report(report: RunReport, file: str | None) -> Iterator[None]:
    """Write the report at the end, whether the run succeeds or fails."""
    try:
        yield
    except BaseException as error:
        if report.error is None:
            report.fail(error)
        raise
    finally:
        if file is not None:
            try:
                Path(file).write_text(json.dumps(report.to_json(), indent=2, ensure_ascii=False) + "\n", "utf-8")
            except OSError as error:
                from lance_namespace.errors import InvalidInputError

                raise InvalidInputError(f"the report cannot be written to {file}: {error.strerror}") from error


def _show_plan(app: CliContext, plan: PipelinePlan) -> None:
    rows = [{name: getattr(line, name) for name in line.__slots__} for line in plan.lines]
    summary = {
        "pipeline": plan.shape.name,
        "run": plan.run,
        "table": plan.shape.sink.table,
        "version": plan.state.version,
    }
    app.output.table(PLAN, rows, summary, f"{plan.shape.name}: nothing was written", name="steps")


def _show_report(app: CliContext, report: RunReport) -> None:
    fields = report.to_json()
    app.output.table(STEPS, fields.pop("steps"), fields, _format_summary(report), name="steps")


def _format_summary(report: RunReport) -> str:
    rows_in, rows_out = (_format_number(number) or "?" for number in (report.rows_in, report.rows_out))
    rows = f"{rows_in} rows in, {rows_out} out, {_format_number(report.rows)} in the table"
    versions = f"version {report.version_before or 'none'} before, {report.version_after} after"
    tag = f", tag {report.tag}" if report.tag and report.has_passed else ""
    return f"{report.pipeline}: {report.state} in {report.seconds:.1f} s; {rows}; {versions}{tag}; run {report.run}"


def _format_number(number: int | None) -> str:
    return "" if number is None else f"{number:,}"
