"""Spark 4.1 with Iceberg's connector, in an environment of its own: a process that answers SQL.

`python -m tests.servers.spark41` builds the environment and brings the jars.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from lancehouse.spark.java import cache_folder, find_java
from tests.servers import jars

REQUIREMENTS = Path(__file__).with_name("spark41.txt")
SESSION = Path(__file__).with_name("spark41_session.py")
OWN_UV = Path(__file__).parents[2] / ".cache" / "uv" / "bin" / "uv"
CATALOG = "org.apache.iceberg.spark.SparkCatalog"
EXTENSIONS = "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions"

Row = dict[str, Any]


class SparkError(RuntimeError):
    """Spark refused a statement, in its words, or is gone."""


class Spark:
    """A session in another process; not for several threads."""

    def __init__(self, process: subprocess.Popen[str], log: Path) -> None:
        self._process = process
        self.log = log

    def catalog(self, name: str, properties: Mapping[str, str]) -> None:
        """Make a catalog of Iceberg's known under a name that no other test has."""
        known = {"": CATALOG, ".type": "rest", **{f".{key}": value for key, value in properties.items()}}
        self.set({f"spark.sql.catalog.{name}{key}": value for key, value in known.items()})

    def set(self, settings: Mapping[str, str]) -> None:
        """Change settings that can be changed while a session runs."""
        self._ask({"settings": dict(settings)})

    def sql(self, text: str) -> list[Row]:
        """The rows of a statement; times, decimals and the like as text.

        Raises:
            SparkError: Spark refused it.
        """
        return [dict(row) for row in self._ask({"sql": text})]

    def _ask(self, question: Mapping[str, object]) -> Any:
        assert self._process.stdin
        assert self._process.stdout
        try:
            self._process.stdin.write(json.dumps(question) + "\n")
            self._process.stdin.flush()
        except BrokenPipeError as error:
            raise self._exit_error() from error
        line = self._process.stdout.readline()
        if not line:
            raise self._exit_error()
        answer = json.loads(line)
        if "error" in answer:
            raise SparkError(answer["error"])
        return answer["rows"]

    def _exit_error(self) -> SparkError:
        return SparkError(f"Spark is gone; its log ends:\n{self.log.read_text(errors='replace')[-4000:]}")


@contextmanager
def start_spark(folder: Path) -> Iterator[Spark]:
    """A session with Iceberg's connector until the block ends; `folder` is for its log and its scratch files.

    Raises:
        SparkError: it did not come up.
    """
    settings = {
        "spark.jars": ",".join(str(jar) for jar in sorted(jars.bring(jars.SPARK_RUNTIME).glob("*.jar"))),
        "spark.sql.extensions": EXTENSIONS,
    }
    with start_session(folder, environment(), settings) as spark:
        yield spark


@contextmanager
def start_session(folder: Path, environment: Path, settings: Mapping[str, str]) -> Iterator[Spark]:
    """A session of the Spark in an environment, until the block ends; `folder` is for its log and its scratch files.

    Raises:
        SparkError: it did not come up.
    """
    folder.mkdir(parents=True, exist_ok=True)
    log = folder / "spark.log"
    chosen = {"spark.sql.warehouse.dir": str(folder / "spark-warehouse"), **settings}
    with log.open("wb") as output:
        process = subprocess.Popen(
            [environment / "bin" / "python", SESSION, json.dumps(chosen)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=output,
            text=True,
            cwd=folder,
            env=variables(),
        )
    try:
        spark = Spark(process, log)
        spark.sql("SELECT 1")
        yield spark
    finally:
        process.communicate()


def environment(requirements: Path = REQUIREMENTS) -> Path:
    """A virtual environment with a Spark, from the cache or made now."""
    key = f"{sys.version_info.major}.{sys.version_info.minor} {requirements.read_text()}"
    folder = cache_folder() / requirements.stem / hashlib.sha256(key.encode()).hexdigest()[:16]
    return jars.once(folder, lambda folder: _build(folder, requirements))


def _build(folder: Path, requirements: Path) -> None:
    python = folder / "bin" / "python"
    if uv := os.environ.get("UV") or shutil.which("uv") or (OWN_UV.exists() and OWN_UV):
        jars.run([uv, "venv", "--python", sys.executable, "--allow-existing", folder], error="no environment for Spark")
        install: list[jars.Word] = [uv, "pip", "install", "--python", python]
    else:
        jars.run([sys.executable, "-m", "venv", folder], error="no environment for Spark")
        install = [python, "-m", "pip", "install", "--quiet"]
    jars.run([*install, "-r", requirements], error=f"{requirements.name} could not be installed")


def variables() -> dict[str, str]:
    """Nothing of the Python that runs us, and no other Spark."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("PYTHON", "SPARK", "VIRTUAL_ENV"))}
    return {**kept, "JAVA_HOME": str(find_java()), "SPARK_LOCAL_IP": "127.0.0.1"}


if __name__ == "__main__":
    environment()
    jars.bring(jars.SPARK_RUNTIME)
