"""lance-spark 0.4.0 on Spark 3.5.9, in an environment of its own: a process that runs SQL.

`python -m bench.lance_spark` builds the environment and brings the jars.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from bench.spark_process import Worker, start
from tests.servers import jars
from tests.servers.jars import Jar
from tests.servers.spark41 import environment, variables

REQUIREMENTS = Path(__file__).with_name("lance_spark.txt")
SESSION = Path(__file__).with_name("spark_sql.py")
CATALOG = "org.lance.spark.LanceNamespaceSparkCatalog"
EXTENSIONS = "org.lance.spark.extensions.LanceSparkSessionExtensions"
ARROW = "15.0.2"
PARTS = ("c-data", "dataset", "memory-core", "memory-netty", "vector")
FIRST = ("arrow", "eclipse-collections", "flatbuffers")
"""What goes before the older Arrow that Spark brings."""
JARS = (
    Jar("org.lance", "lance-spark-3.5_2.12", "0.4.0"),
    *(Jar("org.apache.arrow", f"arrow-{part}", ARROW) for part in PARTS),
)


@contextmanager
def start_lance_spark(folder: Path, cores: int, settings: Mapping[str, str]) -> Iterator[Worker]:
    """A session until the block ends; `folder` is for its log and its scratch files."""
    brought = jars.bring(JARS)
    arrow = [jar for prefix in FIRST for jar in sorted(brought.glob(f"{prefix}-*.jar"))]
    chosen = {
        **settings,
        "spark.driver.extraClassPath": ":".join(map(str, arrow)),
        "spark.jars": ",".join(map(str, sorted({*brought.glob("*.jar")} - {*arrow}))),
        "spark.sql.extensions": EXTENSIONS,
    }
    command = [str(environment(REQUIREMENTS) / "bin" / "python"), str(SESSION), json.dumps(chosen)]
    with start(command, folder, cores, variables()) as worker:
        yield worker


if __name__ == "__main__":
    environment(REQUIREMENTS)
    jars.bring(JARS)
