"""The files of a table copied by tasks, a phase at a time."""

from __future__ import annotations

from uuid import uuid4

from pyspark.sql import SparkSession

from lancehouse.jobs import table_copy
from lancehouse.jobs.table_copy import CopyPlan
from lancehouse.spark.address import TableAddress
from lancehouse.spark.errors import translate_task_errors
from lancehouse.spark.tasks import collect_results


def copy(spark: SparkSession, source: TableAddress, target: TableAddress) -> CopyPlan:
    """Copy what a table's copy lacks. One that was interrupted goes on where it was.

    Args:
        spark: the session.
        source: the table.
        target: its copy, which its catalog knows already; credentials for both are asked for by each executor.

    Returns:
        What was done.

    Raises:
        LanceNamespaceError: a file could not be copied; what was done stays done.
    """
    job = uuid4().hex
    plan = table_copy.plan(source.to_ref(), target.write_location(job))
    for phase in plan.phases:
        with translate_task_errors():
            collect_results(
                spark,
                list(phase),
                lambda task: [table_copy.execute(source.write_location(job), target.write_location(job), task)],
            )
    return plan
