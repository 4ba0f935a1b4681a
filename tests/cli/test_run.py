from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from time import monotonic, sleep
from typing import Any

import lance
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner, Result

from lancehouse.cli.main import main

PROGRAM = Path(sys.executable).parent / "lancehouse"
PATIENCE_S = 300
ROWS = 150_000
"""More than a megabyte: each file is a task of its own."""

PIPELINE = """\
name: numbers
variables: {least: 0}
catalog: {impl: dir, properties: {root: "${here}/tables"}}
spark: {master: "local[2]"}
source: {files: data}
steps:
  - where: id >= ${least}
  - arrow: slow:wait
sink: {table: numbers}
expect: {unique: id}
publish: {tag: checked}
"""

SLOW = '''
import time
from pathlib import Path


def wait(batch):
    """The second half of the rows does not come as long as somebody holds it up."""
    while batch.num_rows and batch["id"][0].as_py() >= 150_000 and (Path(__file__).parent / "hold").exists():
        time.sleep(0.1)
    return batch
'''


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "data").mkdir()
    for number in range(2):
        ids = pa.array(range(number * ROWS, number * ROWS + ROWS))
        noise = np.random.default_rng(number).integers(0, 2**62, ROWS)
        pq.write_table(pa.table({"id": ids, "noise": noise}), tmp_path / "data" / f"{number}.parquet")
    (tmp_path / "slow.py").write_text(SLOW)
    (tmp_path / "pipeline.yml").write_text(PIPELINE)
    return tmp_path


def run(*words: str, output: str = "text") -> Result:
    return CliRunner().invoke(main, ["--output", output, "run", *words], env={"COLUMNS": "200"})


def test_a_plan_needs_no_spark_and_writes_nothing(folder: Path) -> None:
    file = str(folder / "pipeline.yml")
    shown = run(file, "--dry-run", "--set", "least=7")
    assert shown.exit_code == 0, shown.stderr
    assert "id >= 7" in shown.stdout
    assert "numbers: nothing was written" in shown.stdout
    told = json.loads(run(file, "--dry-run", "--run", "monday", output="json").stdout)
    assert (told["pipeline"], told["run"], told["version"]) == ("numbers", "monday", None)
    assert [row["step"] for row in told["steps"]] == ["source", "where", "arrow", "sink", "expect", "publish"]
    assert {row["where"] for row in told["steps"]} == {"Arrow", "driver"}
    assert not (folder / "tables").exists()


@pytest.mark.parametrize(
    ("old", "new", "words", "says"),
    [
        ("sink:", "snk:", (), "pipeline.yml:9: there is no key snk here; did you mean sink?"),
        ("slow:wait", "slow:wat", (), "pipeline.yml:8: slow has no wat; it has Path, wait"),
        ("id >=", "idd >=", (), "pipeline.yml:7: 'idd >= 0': there is no column idd; there are id, noise"),
        ("", "", ("--set", "leest=1"), "has no such variable; did you mean least?"),
        ("{files: data}", "{files: nope}", (), "pipeline.yml:5: there is no file at "),
    ],
)
def test_a_slip_of_the_pen_is_told_with_its_line(
    folder: Path, old: str, new: str, words: tuple[str, ...], says: str
) -> None:
    (folder / "pipeline.yml").write_text(PIPELINE.replace(old, new, 1))
    told = run(str(folder / "pipeline.yml"), *words)
    assert told.exit_code == 1
    assert says in told.stderr
    assert told.stdout == ""


def test_a_file_that_is_not_there() -> None:
    told = run("nope.yml")
    assert (told.exit_code, told.stderr) == (1, "Error: nope.yml cannot be read: No such file or directory\n")


@pytest.mark.timeout(3 * PATIENCE_S)
def test_who_is_killed_goes_on_where_it_was(folder: Path) -> None:
    """The first half is written when the driver dies; the second start writes only the rest."""
    (folder / "hold").touch()
    command = [str(PROGRAM), "--output", "json", "run", "pipeline.yml", "--report", "report.json"]
    data = folder / "tables" / "numbers.lance" / "data"
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(command, cwd=folder, stdout=log, stderr=log, start_new_session=True)
        try:
            _wait(lambda: len(list(folder.rglob("_lancehouse/jobs/*/*.json"))) == 2, process, folder / "log")
        finally:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    written = {path.name: path.stat().st_mtime_ns for path in data.iterdir()}
    (folder / "hold").unlink()
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=PATIENCE_S)
    assert done.returncode == 0, done.stderr
    report = json.loads((folder / "report.json").read_text())
    assert report == json.loads(done.stdout)
    assert (report["rows_in"], report["rows_out"], report["version_after"]) == (2 * ROWS, 2 * ROWS, 1)
    table = lance.dataset(folder / "tables" / "numbers.lance", version="checked")
    assert table.count_rows() == 2 * ROWS
    kept = {fragment.data_files()[0].path for fragment in table.get_fragments()} & set(written)
    assert len(kept) == 1
    assert {name: (data / name).stat().st_mtime_ns for name in kept}.items() <= written.items()


def _wait(is_so: Any, process: subprocess.Popen[bytes], log: Path) -> None:
    until = monotonic() + PATIENCE_S
    while not is_so():
        assert process.poll() is None, log.read_text()
        assert monotonic() < until, log.read_text()
        sleep(0.1)
