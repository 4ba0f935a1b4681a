"""A Spark session that answers each line of JSON with a line of JSON; runs in the environment of an older Spark."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from typing import Any

from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

SMALL = {
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.memory": "768m",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.session.timeZone": "UTC",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
}


def answer(spark: SparkSession, question: dict[str, Any]) -> list[dict[str, Any]]:
    """Do what is asked; rows come from SQL only."""
    if "sql" in question:
        return [row.asDict(recursive=True) for row in spark.sql(question["sql"]).collect()]
    for key, value in question["settings"].items():
        spark.conf.set(key, value)
    return []


def causes(error: Any) -> Iterator[str]:
    """What a Java exception says, and what led to it."""
    while error is not None:
        yield error.toString()
        error = error.getCause()


def main() -> None:
    """Until the input ends."""
    builder = SparkSession.builder.master("local[2]")
    for key, value in {**SMALL, **json.loads(sys.argv[1])}.items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    for line in sys.stdin:
        try:
            reply: dict[str, Any] = {"rows": answer(spark, json.loads(line))}
        except PySparkException as error:
            reply = {"error": str(error)}
        except Py4JJavaError as error:
            reply = {"error": "; ".join(causes(error.java_exception))}
        print(json.dumps(reply, default=str), flush=True)
    spark.stop()


if __name__ == "__main__":
    main()
