"""Start a local Spark session, check that a session can be used, and measure its parallelism."""

from __future__ import annotations

import os
import re
import shutil
import sys
import warnings
from collections.abc import Mapping
from typing import Any
from weakref import WeakKeyDictionary

from lance_namespace.errors import InvalidInputError
from pyspark import __version__ as version
from pyspark.sql import SparkSession, functions
from pyspark.sql.types import StructType

from lancehouse.spark.java import find_java

OLDEST = (4, 2)
"""The oldest version of Spark that is supported."""
PROBE_ROWS = 1 << 16
"""Number of rows of the range that shows how many tasks a cluster runs at once."""

_tasks: WeakKeyDictionary[Any, int] = WeakKeyDictionary()


def prepare_environment() -> None:
    """Set the environment so that PySpark finds a Java and its workers run this Python, unless the user has set it."""
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    if "JAVA_HOME" not in os.environ and shutil.which("java") is None:
        os.environ["JAVA_HOME"] = str(find_java())


def local(cores: int | None = None, options: Mapping[str, str] | None = None) -> SparkSession:
    """Return the active session, or start a new one on this machine.

    Args:
        cores: number of cores to use, all by default.
        options: settings of Spark.
    """
    prepare_environment()
    os.environ["JAVA_HOME"] = str(find_java())
    builder = SparkSession.builder.master(f"local[{cores or '*'}]").appName("lancehouse")
    defaults = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.sql.execution.arrow.pyspark.enabled": "true",
    }
    for key, value in {**defaults, **(options or {})}.items():
        builder = builder.config(key, value)
    with warnings.catch_warnings():
        # Lance warns of every fork, and PySpark forks a process to start the JVM.
        warnings.filterwarnings("ignore", "lance is not fork-safe")
        return builder.getOrCreate()


def check_session(spark: SparkSession) -> None:
    """Check that a session is one, and that its Spark is new enough.

    Raises:
        InvalidInputError: it is not.
    """
    spark_version = getattr(spark, "version", None)
    numbers = re.match(r"(\d+)\.(\d+)", str(spark_version))
    if numbers is None:
        raise InvalidInputError(f"a SparkSession is needed, not {type(spark).__name__}")
    if (int(numbers[1]), int(numbers[2])) < OLDEST:
        oldest = ".".join(map(str, OLDEST))
        raise InvalidInputError(
            f"Spark {spark_version} is too old: {oldest} or newer is needed (PySpark here is {version})"
        )


def parallelism(spark: SparkSession) -> int:
    """Return how many tasks run at once, measured by a small query, as Spark Connect offers no other way."""
    if spark not in _tasks:
        numbers = spark.range(PROBE_ROWS).select(functions.spark_partition_id().alias("number"))
        _tasks[spark] = numbers.agg(functions.max("number")).first()[0] + 1
    return _tasks[spark]


def to_struct(json: Mapping[str, Any]) -> StructType:
    """Convert the JSON of a Spark schema to a StructType."""
    return StructType.fromJson(dict(json))
