"""`lancehouse run` on the Spark that is there already."""

from __future__ import annotations

import json
from typing import Any
from unittest.mock import patch

import pytest
from click.testing import CliRunner, Result
from lance_namespace.errors import InvalidInputError

from lancehouse.cli.main import main
from lancehouse.jobs import ingest
from tests.pipelines.conftest import PipelineFolder


def run(place: PipelineFolder, *words: str, output: str = "text", **parts: Any) -> Result:
    place.pipeline(**parts)
    command = ["--output", output, "run", str(place.folder / "pipeline.yml"), *words]
    return CliRunner().invoke(main, command, env={"COLUMNS": "200"})


def test_a_report_for_people_and_one_for_programs(spark: Any, place: PipelineFolder) -> None:
    file = place.folder / "report.json"
    parts: dict[str, Any] = {"expect": {"rows": {"min": 1}}, "publish": {"tag": "good"}, "run": "monday"}
    shown = run(place, "--report", str(file), **parts)
    assert shown.exit_code == 0, shown.stderr
    assert "20 rows in, 20 out, 20 in the table; version none before, 1 after, tag good; run monday" in shown.stdout
    report = json.loads(file.read_text())
    assert [(step["step"], step["state"]) for step in report["steps"]] == [
        *(("write", "done"), ("expect", "done"), ("publish", "done")),
    ]
    again = json.loads(run(place, output="json", **parts).stdout)
    assert (again["state"], again["rows_in"], again["rows_out"], again["version_after"]) == ("done before", None, 20, 1)


def test_an_expectation_that_does_not_hold_is_the_exit_code(spark: Any, place: PipelineFolder) -> None:
    file = place.folder / "report.json"
    failed = run(place, "--report", str(file), expect={"rows": {"max": 7}, "unique": "lang"})
    assert failed.exit_code == 1
    assert failed.stderr.splitlines() == [
        "Error: there are 20 rows, more than 7",
        "Error: 20 rows are not alone with their lang, which should be unique",
    ]
    assert json.loads(file.read_text())["failures"] == [
        "there are 20 rows, more than 7",
        "20 rows are not alone with their lang, which should be unique",
    ]


def test_a_step_that_fails_tells_how_to_go_on(spark: Any, place: PipelineFolder) -> None:
    file = place.folder / "report.json"
    (place.folder / "late.py").write_text("def f(batch):\n    return batch if batch.num_rows == 0 else 1 / 0\n")
    failed = run(place, "--report", str(file), "--run", "monday", steps=[{"arrow": "late:f"}])
    assert failed.exit_code == 1
    assert failed.stderr == (
        "Error: late:f failed: ZeroDivisionError: division by zero; to go on where this run was: --run monday\n"
    )
    assert json.loads(file.read_text())["error"] == "late:f failed: ZeroDivisionError: division by zero"
    assert not (place.folder / "tables" / "t.lance" / "_versions").exists()


@pytest.mark.parametrize(
    ("error", "says"),
    [(KeyboardInterrupt(), "interrupted"), (RuntimeError("odd"), "odd"), (RuntimeError(), "RuntimeError")],
    ids=["interrupted", "odd", "silent"],
)
def test_what_ends_a_run_is_in_the_report(spark: Any, place: PipelineFolder, error: BaseException, says: str) -> None:
    file = place.folder / "report.json"
    with patch.object(ingest, "run_ingest", side_effect=error):
        assert run(place, "--report", str(file)).exit_code != 0
    report = json.loads(file.read_text())
    assert (report["state"], report["error"], report["steps"][0]["state"]) == ("failed", says, "failed")


def test_a_spark_that_does_not_start_is_no_run_that_is_done(spark: Any, place: PipelineFolder) -> None:
    file = place.folder / "report.json"
    with patch("lancehouse.pipelines.pipeline.open_session", side_effect=InvalidInputError("Spark does not start")):
        failed = run(place, "--report", str(file))
    assert (failed.exit_code, failed.stderr[:27]) == (1, "Error: Spark does not start")
    assert json.loads(file.read_text())["state"] == "failed"


def test_where_no_report_can_be_written_nothing_is_done(spark: Any, place: PipelineFolder) -> None:
    failed = run(place, "--report", str(place.folder / "nope" / "report.json"))
    assert failed.exit_code == 1
    assert "there is no such folder" in failed.stderr
    assert list((place.folder / "tables").iterdir()) == []
