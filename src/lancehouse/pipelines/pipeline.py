"""A pipeline, from its file to what came of it."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from pyspark.sql import SparkSession

from lancehouse.pipelines import planner, runner
from lancehouse.pipelines.planner import PipelinePlan
from lancehouse.pipelines.problems import Problems
from lancehouse.pipelines.run_report import RunReport
from lancehouse.pipelines.runner import Listener
from lancehouse.pipelines.spec import PipelineSpec, parse_spec
from lancehouse.pipelines.yaml_document import read_document


@dataclass(frozen=True, slots=True)
class Pipeline:
    """A file whose shape is right."""

    shape: PipelineSpec
    folder: Path
    """Where files and functions are looked for."""
    problems: Problems = field(repr=False)

    def plan(self, spark: SparkSession | Callable[[], SparkSession], run: str | None = None) -> PipelinePlan:
        """See that all of it can be done, and how. Nothing is written.

        Args:
            spark: the session, or what starts one: it is asked only if a step needs it, after all other checks.
            run: the run's id, by default that of the file, or a new one.

        Raises:
            PipelineError: it cannot be done; says all that is wrong, with its lines.
        """
        start = spark if callable(spark) else lambda: spark
        fresh = Problems(self.problems.file, self.problems.lines)
        return planner.plan_pipeline(self.shape, fresh, self.folder, run, start)

    def run(self, spark: SparkSession, run: str | None = None, said: Listener | None = None) -> RunReport:
        """Check it, then carry it out. `report.failures` tells of expectations that do not hold.

        Args:
            spark: the session.
            run: the run's id; the same one again does nothing twice, and goes on where it was.
            said: told of each step, and of its tasks.

        Raises:
            PipelineError: it cannot be done; nothing was.
            LanceNamespaceError: a step failed. What came before it is done, and stays so.
        """
        plan = self.plan(spark, run)
        report = runner.create_report(plan)
        runner.run_plan(plan, spark, said, report)
        return report


def load(file: str | os.PathLike[str], variables: Mapping[str, str] | None = None) -> Pipeline:
    """Read a pipeline.

    Args:
        file: its path.
        variables: values that win over those in the file.

    Raises:
        PipelineError: it is none; says all that is wrong, with its lines.
        InvalidInputError: the file cannot be read, or has no such variable.
    """
    path = Path(file)
    document = read_document(path, os.fspath(file), variables or {})
    return Pipeline(parse_spec(document), path.absolute().parent, document.problems)
