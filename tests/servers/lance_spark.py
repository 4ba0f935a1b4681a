"""lance-spark 0.4.0 on Spark 3.5.9, in an environment of its own: a process that answers SQL.

`python -m tests.servers.lance_spark` builds the environment and brings the jars.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from lancehouse.spark.sql import EXTENSIONS
from tests.servers import jars, spark41
from tests.servers.jars import Jar
from tests.servers.spark41 import Spark, start_session

REQUIREMENTS = Path(__file__).with_name("lance_spark.txt")
ARROW = "15.0.2"
PARTS = ("c-data", "dataset", "memory-core", "memory-netty", "vector")
FIRST = ("arrow", "eclipse-collections", "flatbuffers")
"""What goes before the older Arrow that Spark brings."""
JARS = (
    Jar("org.lance", "lance-spark-3.5_2.12", "0.4.0"),
    *(Jar("org.apache.arrow", f"arrow-{part}", ARROW) for part in PARTS),
)


def environment() -> Path:
    """A virtual environment with Spark 3.5, from the cache or made now."""
    return spark41.environment(REQUIREMENTS)


def settings() -> dict[str, str]:
    """What Spark needs to find lance-spark."""
    brought = jars.bring(JARS)
    arrow = [jar for prefix in FIRST for jar in sorted(brought.glob(f"{prefix}-*.jar"))]
    return {
        "spark.driver.extraClassPath": ":".join(map(str, arrow)),
        "spark.jars": ",".join(map(str, sorted({*brought.glob("*.jar")} - {*arrow}))),
        "spark.sql.extensions": EXTENSIONS,
    }


@contextmanager
def start_lance_spark(folder: Path, more: Mapping[str, str]) -> Iterator[Spark]:
    """A session until the block ends; `folder` is for its log and its scratch files.

    Args:
        folder: where its log and its scratch files go.
        more: settings besides those that lance-spark needs.

    Raises:
        SparkError: it did not come up.
    """
    with start_session(folder, environment(), {**settings(), **more}) as spark:
        yield spark


if __name__ == "__main__":
    environment()
    jars.bring(JARS)
