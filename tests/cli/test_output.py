from __future__ import annotations

from io import StringIO

import pytest
from rich.console import Console

from lancehouse.cli.output import JsonOutput, ProgressDisplay, TextOutput


def text(*, terminal: bool) -> tuple[TextOutput, StringIO]:
    output, shown = TextOutput(), StringIO()
    output._err = Console(file=shown, force_terminal=terminal, width=80, highlight=False)
    return output, shown


def work(progress: ProgressDisplay) -> None:
    progress.say("starting")
    progress.count(0, 0)
    progress.say("")
    progress.count(3, 8)


def test_a_bar_for_those_who_watch() -> None:
    output, shown = text(terminal=True)
    with output.progress("compacting wh.db.docs") as progress:
        assert progress.is_seen
        work(progress)
    last = shown.getvalue().split("\r")[-1]
    assert "compacting wh.db.docs" in shown.getvalue()
    assert "3/8" in shown.getvalue()
    assert "3/8" not in last.rsplit("\x1b[2K", 1)[-1], "the line stays"


def test_long_words_stay_on_their_line() -> None:
    output, shown = text(terminal=True)
    with output.progress("compacting " + "x" * 200) as progress:
        work(progress)
    assert "…" in shown.getvalue()
    assert shown.getvalue().count("\n") == 1, "more than the line that is removed again"


@pytest.mark.parametrize("kind", ["text", "json"])
def test_nothing_for_nobody(kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    output, shown = text(terminal=False)
    with (JsonOutput() if kind == "json" else output).progress("compacting") as progress:
        assert not progress.is_seen
        work(progress)
    assert shown.getvalue() == ""
    assert capsys.readouterr() == ("", "")


def test_lists_are_readable(capsys: pytest.CaptureFixture[str]) -> None:
    TextOutput().record({"tags": ["a", "b"], "none": (), "version": None})
    assert capsys.readouterr().out.splitlines() == ["tags     a, b", "none     none", "version  none"]
