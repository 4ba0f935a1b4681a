"""Open the Spark session that a pipeline asks for: local, a cluster or Spark Connect."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from lance_namespace.errors import InvalidInputError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from lancehouse.pipelines.spec import SparkPart
from lancehouse.spark.quiet_session import quiet_session
from lancehouse.spark.session import prepare_environment

LOCAL, REMOTE = "local", "sc://"


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
    prepare_environment()
    builder = SparkSession.builder.appName("lancehouse")
    builder = builder.remote(master) if master.startswith(REMOTE) else builder.master(master)
    try:
        spark = builder.config(map=options).getOrCreate()
    except PySparkException as error:
        raise InvalidInputError(f"Spark does not start at {master}: {str(error).splitlines()[0]}") from error
    try:
        yield spark
    finally:
        spark.stop()
