"""lance-spark 0.4.0 on Spark 3.5.9, in an environment of its own: a process that runs SQL."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from bench.spark_process import Worker, start
from tests.servers.lance_spark import environment
from tests.servers.lance_spark import settings as needed
from tests.servers.spark41 import variables

SESSION = Path(__file__).with_name("spark_sql.py")


@contextmanager
def start_lance_spark(folder: Path, cores: int, settings: Mapping[str, str]) -> Iterator[Worker]:
    """A session until the block ends; `folder` is for its log and its scratch files."""
    chosen = json.dumps({**settings, **needed()})
    with start([str(environment() / "bin" / "python"), str(SESSION), chosen], folder, cores, variables()) as worker:
        yield worker
