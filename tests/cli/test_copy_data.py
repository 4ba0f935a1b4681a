from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import lance
import pytest
from lance_namespace import DescribeTableRequest

from lancehouse.locations import local_folder
from tests.cli.commands import TWO_ROWS, ConfiguredCatalog, open_small, run
from tests.servers.lancehouse import PROGRAM
from tests.spark.conftest import spark  # noqa: F401 - one Spark for all tests

pytestmark = [
    pytest.mark.filterwarnings("ignore:PySpark does not yet fully support pandas:FutureWarning"),
    pytest.mark.filterwarnings("ignore:lance is not fork-safe:UserWarning"),
]


@pytest.fixture
def homes(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[ConfiguredCatalog, ConfiguredCatalog]:
    """A catalog with two tables of two versions, and another one."""
    here, there = open_small("reference", request, tmp_path), open_small("served", request, tmp_path)
    for name in ("a", "b"):
        here.write(name)
        here.write(name, mode="append")
    return here, there


def place(here: ConfiguredCatalog, there: ConfiguredCatalog, name: str) -> Path:
    found = there.connect().describe_table(DescribeTableRequest(id=["main", here.ns, name])).location
    folder = local_folder(str(found))
    assert folder is not None
    return folder


@pytest.mark.usefixtures("spark")
def test_copies_by_tasks(homes: tuple[ConfiguredCatalog, ConfiguredCatalog]) -> None:
    here, there = homes
    words = ("--output", "json", "copy", "reference", "served", "--namespace", here.ns, "--data")

    def run_copy() -> Any:
        done = run(*words, LANCEHOUSE_CONFIG=str(here.file))
        assert done.exit_code == 0, done.output
        return {each["table"].split(".")[1]: each for each in json.loads(done.stdout)["tables"]}

    first = run_copy()
    assert {name: each["action"] for name, each in first.items()} == {"a": "done", "b": "done"}
    assert all((each["files"], each["version"]) == (6, 2) for each in first.values())
    for name in ("a", "b"):
        copy = lance.dataset(str(place(here, there, name)))
        assert (len(copy.versions()), copy.count_rows()) == (2, 2 * TWO_ROWS.num_rows)
    gone = next(place(here, there, "b").glob("data/*.lance"))
    gone.unlink()
    again = run_copy()
    assert (again["a"]["action"], again["b"]["action"], again["b"]["files"]) == ("present", "done", 1)
    assert lance.dataset(str(place(here, there, "b"))).to_table().num_rows == 2 * TWO_ROWS.num_rows
    assert {each["action"] for each in run_copy().values()} == {"present"}


def test_needs_no_spark_where_nothing_is_to_be_copied(
    homes: tuple[ConfiguredCatalog, ConfiguredCatalog], monkeypatch: pytest.MonkeyPatch
) -> None:
    here, _ = homes
    monkeypatch.setattr("lancehouse.cli.copy.session", lambda *_: pytest.fail("Spark was started"))
    words = ("copy", "reference", "served", "--namespace", here.ns, "--data", "--dry-run")
    done = run(*words, LANCEHOUSE_CONFIG=str(here.file))
    assert done.exit_code == 0, done.output
    assert "6 files" in done.stdout


@pytest.mark.soak
def test_as_people_call_it(homes: tuple[ConfiguredCatalog, ConfiguredCatalog]) -> None:
    here, there = homes
    words = [str(PROGRAM), "copy", "reference", "served", "--namespace", here.ns, "--data", "--cores", "1"]
    env = {**os.environ, "LANCEHOUSE_CONFIG": str(here.file)}
    done = subprocess.run(words, env=env, capture_output=True, text=True, timeout=280, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines()[-1] == "reference to served: 2 done"
    assert lance.dataset(str(place(here, there, "a"))).count_rows() == 2 * TWO_ROWS.num_rows
