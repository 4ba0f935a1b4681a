from __future__ import annotations

from pathlib import Path

import pytest

from lancehouse.suggestions import find_close, suggest

SOURCE = Path(__file__).parent.parent / "src"


@pytest.mark.parametrize(
    ("word", "known", "text"),
    [
        ("prot", ["host", "port"], "did you mean port?"),
        ("PORT", ["host", "port"], "did you mean port?"),
        ("rootdir", ["rootDir"], "did you mean rootDir?"),
        ("xyz", ["host", "port"], "expected one of host, port"),
        ("xyz", [], "there is none"),
    ],
)
def test_suggest(word: str, known: list[str], text: str) -> None:
    assert suggest(word, known) == text


def test_suggest_something_else() -> None:
    assert suggest("xyz", ["host"], "see the manual") == "see the manual"
    assert suggest("hots", ["host"], "see the manual") == "did you mean host?"


def test_a_higher_cutoff_finds_less() -> None:
    assert find_close("lst", ["list"], 0.8) == "list"
    assert find_close("sit", ["list"], 0.8) is None


def test_no_other_module_compares_words() -> None:
    users = [file for file in SOURCE.rglob("*.py") if "difflib" in file.read_text()]
    assert [file.name for file in users] == ["suggestions.py"]
