"""A Spark session that runs the SQL of each line of JSON and answers with the rows and how long it took.

It needs nothing but PySpark, of any version: it runs in other environments too.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from statistics import median
from typing import Any

from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

Question = dict[str, Any]


def rows(spark: SparkSession, text: str) -> list[list[Any]]:
    """What a statement gives."""
    return [list(row) for row in spark.sql(text).collect()]


def serve(answer: Callable[[Question], Any]) -> None:
    """Until the input ends, each question as often as it says. What Spark refuses is an answer; all else is the end."""
    for line in sys.stdin:
        question = json.loads(line)
        times = []
        try:
            for _ in range(question.pop("times", 1)):
                begun = time.perf_counter()
                found = answer(question)
                times.append(time.perf_counter() - begun)
            reply: dict[str, Any] = {"seconds": median(times), "found": found}
        except PySparkException as error:
            reply = {"error": str(error)}
        except Py4JJavaError as error:
            reply = {"error": error.java_exception.toString()}
        print(json.dumps(reply, default=str), flush=True)


def main() -> None:
    """Settings of the session come as JSON."""
    builder = SparkSession.builder
    for key, value in json.loads(sys.argv[1]).items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    serve(lambda question: rows(spark, question["sql"]))
    spark.stop()


if __name__ == "__main__":
    main()
