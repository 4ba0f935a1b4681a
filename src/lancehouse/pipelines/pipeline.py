"""Load a pipeline from its file, plan it, open the Spark session that it asks for, and run it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from lance_namespace.errors import InvalidInputError
from pyspark.sql import SparkSession

from lancehouse.documents import Problems
from lancehouse.pipelines import planner, runner
from lancehouse.pipelines.planner import PipelinePlan
from lancehouse.pipelines.runner import Listener, RunReport
from lancehouse.pipelines.spec import PipelineError, PipelineSpec, SparkPart, parse_spec, read_document
from lancehouse.spark.session import quiet_session, start_session


@dataclass(frozen=True, slots=True)
class Pipeline:
    """A pipeline whose file has valid keys and values."""

    shape: PipelineSpec
    folder: Path
    """Folder of the file, where relative paths and functions are looked up."""
    problems: Problems = field(repr=False)

    def plan(self, spark: SparkSession | Callable[[], SparkSession], run: str | None = None) -> PipelinePlan:
        """Check that the pipeline can run, and return how. Nothing is written.

        Args:
            spark: the session, or a function that starts one: it is called only if a step needs it, after all other
                checks.
            run: id of the run, by default that of the file, or a new one.

        Raises:
            PipelineError: the pipeline cannot run; the error lists all problems, with their lines.
        """
        start = spark if callable(spark) else lambda: spark
        fresh = Problems(self.problems.file, self.problems.lines, PipelineError)
        return planner.plan_pipeline(self.shape, fresh, self.folder, run, start)

    def run(self, spark: SparkSession | None = None, run: str | None = None, said: Listener | None = None) -> RunReport:
        """Plan the pipeline, then run it. `report.failures` lists expectations that are not met.

        Args:
            spark: the session; without one, threads of this process do the work, if all steps are in Arrow.
            run: id of the run; a run that is repeated does nothing twice, and resumes where it stopped.
            said: called with each step, and with the progress of its tasks.

        Raises:
            PipelineError: the pipeline cannot run; nothing was done.
            LanceNamespaceError: a step failed. The steps before it are done, and stay so.
        """
        plan = self.plan(spark or refuse_spark, run)
        report = runner.create_report(plan)
        runner.run_plan(plan, spark, said, report)
        return report


def refuse_spark() -> SparkSession:
    """Stand in for a function that starts a session, where there is to be none.

    Raises:
        InvalidInputError: always.
    """
    raise InvalidInputError("steps in SQL or Python, and a merge, need Spark: without it, steps are in Arrow only")


def load(file: str | os.PathLike[str], variables: Mapping[str, str] | None = None) -> Pipeline:
    """Load a pipeline from a file.

    Args:
        file: path of the file.
        variables: values that override those in the file.

    Raises:
        PipelineError: the file is no valid pipeline; the error lists all problems, with their lines.
        InvalidInputError: the file cannot be read, or has no such variable.
    """
    path = Path(file)
    document = read_document(path, os.fspath(file), variables or {})
    return Pipeline(parse_spec(document), path.absolute().parent, document.problems)


LOCAL = "local"


@contextmanager
def open_session(settings: SparkPart, *, shows_log: bool = False) -> Iterator[SparkSession]:
    """Return the active session, or a new one, which is stopped at the end.

    Args:
        settings: settings of the pipeline; without a master the session is local.
        shows_log: let Spark's log output go to the terminal.

    Raises:
        InvalidInputError: Spark does not start; the message says why.
    """
    master, options = settings.master, dict(settings.options)
    if master is None or master.startswith(LOCAL):
        with quiet_session(
            None, {**({"spark.master": master} if master else {}), **options}, shows_log=shows_log
        ) as spark:
            yield spark
        return
    before = SparkSession.getActiveSession()
    spark = start_session(master, "lancehouse", options)
    try:
        yield spark
    finally:
        if before is None:
            spark.stop()
