"""The benchmarks run, small, and put into the documents what they found."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from xml.etree import ElementTree

import pytest

from bench import chart, commits, gateway, report, scale, search, spark, sql
from bench.commits import FOREIGN, PLAIN, SQLITE, CommitsRow, CommitTarget, Curve, Round, VersionsLevel
from bench.gateway_sides import ADAPTER, DIRECT, FOLDER, GATEWAY, REFERENCE, WAREHOUSE, WIRE
from bench.spark import Cost
from bench.spark_cases import LANCE_SPARK, OURS, PARQUET, PYLANCE, SparkCase, cases, same
from bench.spark_data import Amount, Contents, Data
from bench.spark_process import TICKS, WorkAnswer
from bench.writers import BenchTable, WriterRun

ROOT = Path(__file__).parent.parent
SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """One that every user can enter: run by root, Postgres is another user's."""
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o755)
        yield Path(name)


def run_quickly(benchmark: str, folder: Path, *options: str) -> str:
    """What it prints; all that it makes is in the folder."""
    ran = subprocess.run(
        [sys.executable, "-m", benchmark, "--quick", *options],
        cwd=ROOT,
        env={**os.environ, "TMPDIR": str(folder)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


def test_commits_run_to_their_end_and_leave_nothing(open_folder: Path) -> None:
    appends, _, overwrites = run_quickly("bench.commits", open_folder).partition("Overwrites")
    lines = [line for line in appends.splitlines() if "by name" in line or "held dataset" in line]
    assert len(lines) == 5 * len(commits.WAYS) * len(commits.QUICK.writers)
    assert all(name in overwrites for name in commits.GROWING)
    assert list(open_folder.iterdir()) == []


def test_the_http_client_is_set_beside_urllib3(tmp_path: Path) -> None:
    lines = run_quickly("bench.http_client", tmp_path).splitlines()
    assert [line.split("|")[1].strip() for line in lines[2:]] == ["1", "1", "16", "16"]
    assert list(tmp_path.iterdir()) == []


def test_spark_runs_to_its_end_and_leaves_nothing(tmp_path: Path) -> None:
    printed = run_quickly("bench.spark", tmp_path, "--no-lance-spark")
    seconds, _, rest = printed.partition("Seconds of processor time")
    ways = ["aggregate", "read", "count", "ingest", "create", "merge", "add_columns", "compact", "create_index"]
    shown = [line.split("│")[2].strip() for line in seconds.splitlines() if line.startswith("│")]
    assert sorted(shown) == sorted(ways)
    assert "98,304 rows" in rest
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("rows", "versions", "given_up", "is_right"),
    [(2, 2, 0, True), (3, 2, 0, False), (1, 2, 0, False), (2, 3, 0, False), (2, 1, 0, False), (1, 1, 1, True)],
)
def test_every_commit_must_be_there_once(
    rows: int, versions: int, given_up: int, is_right: bool, tmp_path: Path
) -> None:
    table = BenchTable([str(tmp_path / "t")]).create()
    table.write(None, "append")
    with nullcontext() if is_right else pytest.raises(AssertionError, match="here: version 2 with 200 rows"):
        commits.check(CommitTarget("here", lambda: table), table, rows=rows, versions=versions, given_up=given_up)


def one(rate: float, writers: int = 1) -> Round:
    """Writers that each made ten commits, as fast as it takes for so many a second together."""
    step = writers / rate
    made = [(number * step, (number + 1) * step) for number in range(10)]
    return Round([WriterRun(0.0, 10 * step, 0.5, made) for _ in range(writers)], 0.1)


def curve(place: str, growth: float) -> Curve:
    return Curve(place, [VersionsLevel(1, [], [0.01]), VersionsLevel(1000, [0.01 * growth], [0.01])])


@pytest.mark.parametrize(
    ("ours", "growths", "missed"),
    [
        (17.0, (1.5, 1.8), []),
        (16.0, (1.5, 1.8), ["ours, SQLite, by name, one writer: 6.25 instead of 6 times as long"]),
        (17.0, (1.0, 1.3), ["growth up to 1,000 versions: 1.30 instead of 1.25 times plain Lance's"]),
    ],
)
def test_marks(ours: float, growths: tuple[float, float], missed: list[str]) -> None:
    plain = CommitsRow(PLAIN, "by name", 1, None, [one(100.0)])
    row = CommitsRow(SQLITE, "by name", 1, plain, [one(ours)])
    curves = [curve(PLAIN, growths[0]), curve(SQLITE, growths[1]), curve(FOREIGN, 3.0)]
    assert commits.findings([plain, row], curves, commits.FULL) == [f"- Missed: {line}." for line in missed]
    assert ("✗" in row.cells()[5]) is (ours < 16.6)


def test_a_rate_ends_when_a_writer_has_nothing_left_to_do() -> None:
    slow, fast = (
        WriterRun(0.0, 9.0, 0.0, [(0.0, 1.0), (1.0, 9.0)]),
        WriterRun(0.0, 2.0, 0.0, [(0.0, 0.5), (0.5, 1.0), (1.0, 2.0)]),
    )
    assert Round([slow, fast], 0.0).rate == 4 / 2.0


def test_what_was_found_is_put_into_its_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    document, picture = tmp_path / "benchmarks.md", tmp_path / "commits.svg"
    document.write_text(report.DOCUMENT.read_text())
    monkeypatch.setattr(report, "DOCUMENT", document)
    monkeypatch.setattr(commits, "PICTURE", picture)
    plain = CommitsRow(PLAIN, "by name", 8, None, [one(160.0, 8)])
    row = CommitsRow(SQLITE, "by name", 8, plain, [one(80.0, 8)])
    commits.write([plain, row], [curve(PLAIN, 1.0), curve(SQLITE, 1.2), curve(FOREIGN, 3.0)], commits.FULL)
    section = document.read_text().partition("<!-- bench-commits: start -->")[2]
    assert "| ours, SQLite | by name | 8 | 80 | **2.00** | – | 100.0 | 100 | 50.0 | 1.2 | 0 |" in section
    assert "| ours, SQLite | 10.0 ms (1.00) | 12.0 ms (1.20) | **1.20** | ≤ 1.25 ✓ | 1.20 |" in section
    assert picture.name in section
    assert len(ElementTree.fromstring(picture.read_text()).findall(f"{SVG}polyline")) == 3


def test_lines_that_end_together_have_names_that_can_be_read() -> None:
    drawn = ElementTree.fromstring(chart.lines("A & B", [(name, [(1, 2.0), (9, 3.0)]) for name in ("<a>", "b", "c")]))
    heights = [float(text.attrib["y"]) for text in drawn.iter(f"{SVG}text") if text.text in ("<a>", "b", "c")]
    assert [round(later - earlier) for earlier, later in pairwise(heights)] == [16, 16]


def took(seconds: float) -> list[WorkAnswer]:
    return [WorkAnswer(None, seconds, seconds * 2)] * 3


def measured_row(ours: str = "ingest", **seconds: float) -> spark.SparkRow:
    names = {"parquet": PARQUET, "lance_spark": LANCE_SPARK, "pylance": PYLANCE}
    runs = {OURS: took(2.0), **{names[side]: took(each) for side, each in seconds.items()}}
    return spark.SparkRow(SparkCase("write", ours, dict.fromkeys(runs, None)), 2, runs)  # type: ignore[arg-type]


def level(rows: int, seconds: float, memory: float) -> spark.RowsLevel:
    return spark.RowsLevel(rows, {"ingest": Cost([seconds], memory, 100.0)})


@pytest.mark.parametrize(
    ("row", "met"),
    [
        (measured_row(parquet=5.0, lance_spark=2.8), {PARQUET: True, LANCE_SPARK: True}),
        (measured_row(parquet=4.9, lance_spark=2.7), {PARQUET: False, LANCE_SPARK: False}),
        (measured_row(parquet=6.0), {PARQUET: True}),
        (measured_row("aggregate", pylance=1.2, parquet=0.1), {PYLANCE: True}),
        (measured_row("aggregate", pylance=1.1, parquet=0.1), {PYLANCE: False}),
        (measured_row("merge", pylance=0.1, parquet=0.1), {}),
    ],
)
def test_marks_of_spark(row: spark.SparkRow, met: dict[str, bool]) -> None:
    assert {side: row.is_met(side) for side in row.marks} == met
    assert [line.startswith("- Met") for line in spark.findings([row], [])] == list(met.values())


def test_processor_time_of_less_than_a_tick() -> None:
    row = measured_row("aggregate", pylance=1.0)
    row.runs[OURS] = [WorkAnswer(None, 0.001, 0.0)]
    assert row.cpu_cells()[2] == "0.0 ms"
    assert any(cell.endswith(f"**{2.0 * TICKS:.2f}**") for cell in row.cpu_cells())


@pytest.mark.parametrize(
    ("most", "is_met"), [((4.0, 100.0), True), ((4.7, 100.0), False), ((4.0, 120.0), False), ((2.0, 90.0), True)]
)
def test_time_grows_with_the_rows_and_memory_does_not(most: tuple[float, float], is_met: bool) -> None:
    [line] = spark.findings([], [level(1000, 1.0, 100.0), level(4000, *most)])
    assert line.startswith("- Met") is is_met


@pytest.mark.parametrize(
    ("one", "other", "is_same"),
    [
        ([1, 2.0], [1, 2.0000000001], True),
        ([1, 2.0], [1, 2.1], False),
        ([1], [1, 1], False),
        (Contents(5, 10), Contents(5, 10), True),
        (Contents(5, 10), Contents(5, 10, 1), False),
        (Contents(5, 0.1), Contents(6, 0.1), False),
    ],
)
def test_what_sides_find_is_compared(one: object, other: object, is_same: bool) -> None:
    assert same(one, other) is is_same


def test_what_spark_found_is_put_into_its_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    document, picture = tmp_path / "benchmarks.md", tmp_path / "spark.svg"
    document.write_text(report.DOCUMENT.read_text())
    monkeypatch.setattr(report, "DOCUMENT", document)
    monkeypatch.setattr(spark, "PICTURE", picture)
    row = measured_row(parquet=6.2, pylance=1.0)
    row.refused[LANCE_SPARK] = "it cannot\nat all"
    spark.write([row], [level(1000, 1.0, 100.0), level(4000, 4.0, 100.0)], Amount(12, 1, 0.5))
    section = document.read_text().partition("<!-- bench-spark: start -->")[2].partition("<!-- bench-spark: end")[0]
    assert "| write | `ingest` | 2.00 s | 6.20 s **3.10** | refused | 1.00 s **0.50** | – | " in section
    assert "| `ingest` | 1.00 s, 100 MB, heap 100 MB | 4.00 s, 100 MB, heap 100 MB | × 1.00, ≤ 1.15 ✓ |" in section
    assert "- lance-spark refuses: write: it cannot\n" in section
    assert picture.name in section
    assert len(ElementTree.fromstring(picture.read_text()).findall(f"{SVG}rect")) == 1 + 4 + 2


def test_a_quick_run_has_one_case_for_each_way(tmp_path: Path) -> None:
    data = Data(tmp_path, spark.QUICK.amount)
    assert len(spark.choose_cases(data, spark.QUICK)) == len({case.ours for case in cases(data)})
    assert [case.name for case in spark.choose_cases(data, replace(spark.FULL, only="compact"))] == [
        "compaction of 64 pieces"
    ]


def test_the_gateway_runs_to_its_end_and_leaves_nothing(tmp_path: Path) -> None:
    printed = run_quickly("bench.gateway", tmp_path)
    lines = [[cell.strip() for cell in line.split("│")[1:-1]] for line in printed.splitlines() if line[:1] == "│"]
    assert len(lines) == 4 * 3
    assert {line[1].partition(",")[0] for line in lines} == {
        *("DescribeTable", "ListTables", "InsertIntoTable", "QueryTable"),
    }
    assert all(re.match(r"[\d.]+ m?s\b", cell) for line in lines for cell in line[2:4])
    assert [line[0] for line in lines if line[6] != "–"] == ["dir"] * 4
    assert [line[6] for line in lines if line[6].startswith("too")] == ["too large for it"]
    assert list(tmp_path.iterdir()) == []


def hop(catalog: str, size: int = 0, peak_mb: float = 100.0, **seconds: float) -> gateway.GatewayRow:
    sides = {"direct": DIRECT, "gateway": GATEWAY, "adapter": ADAPTER, "wire": WIRE}
    runs = {sides[name]: [gateway.GatewayRun(each, each / 2, peak_mb)] for name, each in seconds.items()}
    return gateway.GatewayRow(catalog, "Operation", 1, size, runs)


@pytest.mark.parametrize(
    ("row", "missed"),
    [
        (hop(WAREHOUSE, direct=0.002, gateway=0.003), []),
        (hop(WAREHOUSE, direct=0.002, gateway=0.0031), ["1.55 instead of 1.5 times direct"]),
        (hop(WAREHOUSE, direct=0.001, wire=0.001, gateway=0.0031), ["1.55 instead of 1.5 times (direct + wire)"]),
        (hop(REFERENCE, direct=0.001, wire=0.001, gateway=0.0035), []),
        (hop(REFERENCE, direct=0.001, wire=0.001, gateway=0.0036), ["1.80 instead of 1.75 times (direct + wire)"]),
        (hop(FOLDER, direct=0.001, gateway=0.9, adapter=0.1), []),
        (hop(REFERENCE, 1 << 20, direct=1.0, wire=0.5, gateway=1.7), []),
        (hop(REFERENCE, 1 << 20, direct=1.0, wire=0.5, gateway=1.8), ["1.20 instead of 1.15 times (direct + wire)"]),
    ],
)
def test_marks_of_the_gateway(row: gateway.GatewayRow, missed: list[str]) -> None:
    first, *others = gateway.findings([row])
    assert "100 MB (expected under 300: met)" in first
    assert [line.partition(": ")[2].partition(": ")[2].rstrip(".") for line in others] == missed
    assert ("✗" in row.cells()[5]) is bool(missed)
    assert "missed" in gateway.findings([hop(WAREHOUSE, 1, peak_mb=300.0, direct=1, wire=1, gateway=1)])[0]


def test_what_the_gateway_costs_is_put_into_its_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    document = tmp_path / "benchmarks.md"
    document.write_text(report.DOCUMENT.read_text())
    monkeypatch.setattr(report, "DOCUMENT", document)
    rows = [
        hop(WAREHOUSE, direct=0.002, gateway=0.003),
        hop(FOLDER, 100 << 20, direct=1, wire=0.5, gateway=2, adapter=4),
    ]
    gateway.write(rows, "Once.")
    section = document.read_text().partition("<!-- bench-gateway: start -->")[2].partition("<!-- bench-gateway: end")[0]
    assert "| a warehouse of the server | Operation | 2 ms | 3 ms | **1.50** | direct × 1.5 ✓ | – | – | – |" in section
    assert "| `dir` | Operation | 1.00 s, 100 MB/s | 2.00 s, 50 MB/s | **2.00** | (direct + wire) × 1.15 ✗ |" in section
    assert "4.00 s, 25 MB/s | **0.50** | 500 ms, 200 MB/s | 1.00 s | 100 MB |" in section


def test_sql_runs_to_its_end_and_leaves_nothing(tmp_path: Path) -> None:
    printed = run_quickly("bench.sql", tmp_path, "--no-lance-spark")
    lines = [[cell.strip() for cell in line.split("│")[1:-1]] for line in printed.splitlines() if line[:1] == "│"]
    queries = [f"TPC-H {number}" for number in sql.QUICK_QUERIES]
    assert [line[0] for line in lines] == [sql.ONE_COLUMN, *queries, sql.MERGE, sql.ALL_QUERIES]
    assert all(re.fullmatch(r"[\d.]+ s", line[1]) for line in lines), printed
    assert re.fullmatch(r"[\d.]+ s, [\d.]+", lines[-2][4]), "Parquet was written again"
    assert f"{sql.ONE_COLUMN}: " in printed
    assert list(tmp_path.iterdir()) == []


def test_search_runs_to_its_end_and_leaves_nothing(tmp_path: Path) -> None:
    lines = [line.split(" | ") for line in run_quickly("bench.search", tmp_path).splitlines() if " | " in line]
    assert len(lines) == 2 + 7
    recall = {line[0].strip("| "): float(line[-1].strip("| ")) for line in lines[2:]}
    assert recall[search.OURS] == 1.0
    assert recall[search.BY_INDEX] == pytest.approx(recall[search.SAME_EFFORT], abs=0.1)
    assert list(tmp_path.iterdir()) == []


def test_columns_run_to_their_end_and_leave_nothing(tmp_path: Path) -> None:
    printed = run_quickly("bench.columns", tmp_path)
    lines = [line for line in printed.splitlines() if re.search(r": (met|missed)$", line)]
    assert len(lines) == 8
    assert all(line.endswith(": met") for line in lines if "bytes" in line), printed
    assert list(tmp_path.iterdir()) == []


def test_maintenance_runs_to_its_end_and_leaves_nothing(tmp_path: Path) -> None:
    printed = run_quickly("bench.maintenance", tmp_path)
    assert "Runs: 12 compact.done, 2 index.done." in printed
    assert "look, and find nothing to do" in printed
    assert list(tmp_path.iterdir()) == []


def test_scale_runs_to_its_end_and_leaves_nothing(open_folder: Path) -> None:
    printed = run_quickly("bench.scale", open_folder)
    lines = [[cell.strip() for cell in line.split("│")[1:-1]] for line in printed.splitlines() if line[:1] == "│"]
    assert [line[0] for line in lines] == [
        *(case.title.replace("`", "") for case in scale.cases(scale.QUICK[0])),
        scale.HOUR,
    ]
    assert all(re.fullmatch(r"[\d.,]+", cell) for line in lines for cell in line[1:8])
    assert "principals with secrets" in printed
    assert list(open_folder.iterdir()) == []


@pytest.mark.parametrize(("large_s", "is_missed"), [(0.0029, False), (0.0032, True)])
def test_marks_of_scale(large_s: float, is_missed: bool) -> None:
    small, large = scale.ScaleRun(0.001, 0.001, 0.003), scale.ScaleRun(large_s - 0.001, 0.001, 0.006)
    row = scale.ScaleRow("LoadTable", True, [[small], [large]])
    assert row.is_missed is is_missed
    assert row.cells()[-2:] == [f"≤ 1.5 {'✗' if is_missed else '✓'}", "2.00"]
    assert not scale.ScaleRow("LoadTable", False, row.runs).is_missed
