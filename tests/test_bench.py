"""The benchmarks run, small, and put into the documents what they found."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import nullcontext
from itertools import pairwise
from pathlib import Path
from xml.etree import ElementTree

import pytest

from bench import chart, commits, report
from bench.commits import FOREIGN, PLAIN, SQLITE, Curve, Level, Place, Round, Row
from bench.writers import Run, Table

ROOT = Path(__file__).parent.parent
SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """One that every user can enter: run by root, Postgres is another user's."""
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o755)
        yield Path(name)


def test_commits_run_to_their_end_and_leave_nothing(open_folder: Path) -> None:
    ran = subprocess.run(
        [sys.executable, "-m", "bench.commits", "--quick"],
        cwd=ROOT,
        env={**os.environ, "TMPDIR": str(open_folder)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    appends, _, overwrites = ran.stdout.partition("Overwrites")
    lines = [line for line in appends.splitlines() if "by name" in line or "held dataset" in line]
    assert len(lines) == 5 * len(commits.WAYS) * len(commits.QUICK.writers)
    assert all(name in overwrites for name in commits.GROWING)
    assert list(open_folder.iterdir()) == []


@pytest.mark.parametrize(
    ("rows", "versions", "given_up", "is_right"),
    [(2, 2, 0, True), (3, 2, 0, False), (1, 2, 0, False), (2, 3, 0, False), (2, 1, 0, False), (1, 1, 1, True)],
)
def test_every_commit_must_be_there_once(
    rows: int, versions: int, given_up: int, is_right: bool, tmp_path: Path
) -> None:
    table = Table([str(tmp_path / "t")]).create()
    table.write(None, "append")
    with nullcontext() if is_right else pytest.raises(AssertionError, match="here: version 2 with 200 rows"):
        commits.check(Place("here", lambda: table), table, rows=rows, versions=versions, given_up=given_up)


def one(rate: float, writers: int = 1) -> Round:
    """Writers that each made ten commits, as fast as it takes for so many a second together."""
    step = writers / rate
    made = [(number * step, (number + 1) * step) for number in range(10)]
    return Round([Run(0.0, 10 * step, 0.5, made) for _ in range(writers)], 0.1)


def curve(place: str, growth: float) -> Curve:
    return Curve(place, [Level(1, [], [0.01]), Level(1000, [0.01 * growth], [0.01])])


@pytest.mark.parametrize(
    ("ours", "growths", "missed"),
    [
        (51.0, (1.5, 1.8), []),
        (49.0, (1.5, 1.8), ["ours, SQLite, by name, one writer: 2.04 instead of 2 times as long"]),
        (51.0, (1.0, 1.3), ["growth up to 1,000 versions: 1.30 instead of 1.25 times plain Lance's"]),
    ],
)
def test_marks(ours: float, growths: tuple[float, float], missed: list[str]) -> None:
    plain = Row(PLAIN, "by name", 1, None, [one(100.0)])
    row = Row(SQLITE, "by name", 1, plain, [one(ours)])
    curves = [curve(PLAIN, growths[0]), curve(SQLITE, growths[1]), curve(FOREIGN, 3.0)]
    assert commits.findings([plain, row], curves, commits.FULL) == [f"- Missed: {line}." for line in missed]
    assert ("✗" in row.cells()[5]) is (ours < 50)


def test_a_rate_ends_when_a_writer_has_nothing_left_to_do() -> None:
    slow, fast = Run(0.0, 9.0, 0.0, [(0.0, 1.0), (1.0, 9.0)]), Run(0.0, 2.0, 0.0, [(0.0, 0.5), (0.5, 1.0), (1.0, 2.0)])
    assert Round([slow, fast], 0.0).rate == 4 / 2.0


def test_what_was_found_is_put_into_its_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    document, picture = tmp_path / "benchmarks.md", tmp_path / "commits.svg"
    document.write_text(report.DOCUMENT.read_text())
    monkeypatch.setattr(report, "DOCUMENT", document)
    monkeypatch.setattr(commits, "PICTURE", picture)
    plain = Row(PLAIN, "by name", 8, None, [one(160.0, 8)])
    row = Row(SQLITE, "by name", 8, plain, [one(80.0, 8)])
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
