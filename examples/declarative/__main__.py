"""Run the pipeline of this folder with `spark-pipelines`, twice: the second run processes what was added since.

Run it with `python -m examples.declarative`. It needs no network and leaves nothing behind.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import lance
import pyarrow as pa
from rich.console import Console

from lancehouse.spark.java import find_java

HERE = Path(__file__).parent
PLACE = "/tmp/lancehouse-declarative"
"""The value in the specification, which the copy replaces."""
PROGRAM = Path(sys.executable).parent / "spark-pipelines"

COUNTRIES = pa.table({"country": ["DE", "NG", "PE"], "name": ["Germany", "Nigeria", "Peru"]})

console = Console(highlight=False)


def main() -> None:
    """Run the example, from orders in one Lance table to the large ones in another."""
    console.print("[bold]Declarative pipelines: a Lance table as source and as sink[/]")
    with tempfile.TemporaryDirectory(prefix="lancehouse-declarative-") as folder:
        project = prepare(Path(folder))
        tables = Path(folder) / "tables"
        lance.write_dataset(COUNTRIES, tables / "countries.lance")
        for first in (0, 1000):
            lance.write_dataset(orders(first, 1000), tables / "orders.lance", mode="append" if first else "create")
            with console.status(f"1000 orders more; {PROGRAM.name} run …"):
                run(project)
            made = lance.dataset(tables / "large_orders.lance")
            console.print(f"  large_orders is at version {made.version}, with {made.count_rows()} rows")
        console.print(made.to_table(limit=3).to_pylist())
    console.print("The folder is gone. Next: docs/spark.md")


def orders(first: int, count: int) -> pa.Table:
    """Return some orders; one of ten is large."""
    ids = range(first, first + count)
    countries = COUNTRIES["country"].to_pylist()
    return pa.table(
        {
            "id": pa.array(ids, pa.int64()),
            "country": [countries[number % len(countries)] for number in ids],
            "amount": pa.array([100 + number if number % 10 == 0 else number % 10 for number in ids], pa.int64()),
        }
    )


def prepare(folder: Path) -> Path:
    """Copy the project, with all its data in one folder; return the path of the specification."""
    project = folder / "project"
    shutil.copytree(HERE, project, ignore=shutil.ignore_patterns("__*"))
    specification = project / "spark-pipeline.yml"
    specification.write_text(specification.read_text().replace(PLACE, str(folder)))
    return specification


def run(specification: Path) -> str:
    """Run a pipeline as a user would; return its output."""
    environment = {"JAVA_HOME": str(find_java()), "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
    done = subprocess.run(
        [PROGRAM, "--conf", "spark.ui.enabled=false", "run", "--spec", specification],
        env={**os.environ, **environment},
        cwd=specification.parent,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        console.print(done.stdout, done.stderr)
        sys.exit(f"{PROGRAM.name} ended with {done.returncode}")
    return done.stdout + done.stderr


if __name__ == "__main__":
    main()
