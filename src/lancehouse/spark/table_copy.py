"""Copy the files of a table to another location in Spark tasks, phase by phase."""

from __future__ import annotations

from uuid import uuid4

from pyspark.sql import SparkSession

from lancehouse.jobs import table_copy
from lancehouse.jobs.table_copy import CopyPlan
from lancehouse.spark.address import TableAddress
from lancehouse.spark.errors import translate_task_errors
from lancehouse.spark.tasks import collect_results


def copy(spark: SparkSession, source: TableAddress, target: TableAddress) -> CopyPlan:
    """Copy the files that a table's copy lacks. An interrupted copy is resumed.

    Args:
        spark: the session.
        source: the table.
        target: its copy, which must be declared in its catalog; each executor asks for the credentials of both.

    Returns:
        The plan that was carried out.

    Raises:
        LanceNamespaceError: a file could not be copied; files that were copied stay.
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
