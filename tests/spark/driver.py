"""A process with a Spark session that answers each line of JSON with a line of JSON; see `cluster.Driver`."""

from __future__ import annotations

import json
import sys
from importlib import import_module

from pyspark.sql import SparkSession

from lancehouse.jobs import index_building
from lancehouse.jobs.sources import ingest_source
from lancehouse.lake import scans
from tests.servers.jars import LIGHT
from tests.spark.cluster import ANSWER, ROOT
from tests.spark.conftest import SETTINGS

SMALL = {
    "spark.cores.max": "16",
    "spark.default.parallelism": "2",
    "spark.driver.memory": "512m",
    "spark.driver.extraJavaOptions": " ".join(LIGHT),
    "spark.executor.extraJavaOptions": " ".join(LIGHT),
    "spark.executor.memory": "512m",
    "spark.executorEnv.PYTHONPATH": str(ROOT),
    "spark.python.daemon.module": "tests.spark.faults",
}


def session(master: str, settings: dict[str, str]) -> SparkSession:
    """A session on a cluster, or with a server of Spark Connect."""
    if master.startswith("sc://"):
        return SparkSession.builder.remote(master).getOrCreate()
    return SparkSession.builder.master(master).config(map={**SETTINGS, **SMALL, **settings}).getOrCreate()


def main() -> None:
    """Until the input ends. What goes wrong ends the process."""
    # Several tasks though there are few rows.
    scans.MIN_TASK_ROWS, ingest_source.LEAST_BYTES = 1, 64
    index_building.plan.__kwdefaults__ = {**(index_building.plan.__kwdefaults__ or {}), "rows_per_task": 100}
    spark = session(sys.argv[1], json.loads(sys.argv[2]))
    for line in sys.stdin:
        question = json.loads(line)
        module, _, name = question["work"].partition(":")
        answer = getattr(import_module(module), name)(spark, **question["arguments"])
        print(ANSWER + json.dumps(answer), flush=True)
    spark.stop()


if __name__ == "__main__":
    main()
