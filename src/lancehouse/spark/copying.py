"""The files of a table copied by tasks, a phase at a time."""

from __future__ import annotations

from uuid import uuid4

from pyspark.sql import SparkSession

from lancehouse.lake import copies
from lancehouse.lake.copies import Copying
from lancehouse.spark.address import Address
from lancehouse.spark.errors import translated
from lancehouse.spark.tasks import results


def copy(spark: SparkSession, source: Address, target: Address) -> Copying:
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
    plan = copies.plan(source.ref(), target.place(job))
    for phase in plan.phases:
        with translated():
            results(spark, list(phase), lambda task: [copies.execute(source.place(job), target.place(job), task)])
    return plan
