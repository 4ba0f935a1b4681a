from __future__ import annotations

import pytest
from lance_namespace.errors import InvalidInputError

from lancehouse.modes import parse_choice

MODES = ("Create", "ExistOk", "Overwrite")


@pytest.mark.parametrize(
    ("said", "meant"),
    [
        (None, "Create"),
        ("Create", "Create"),
        ("create", "Create"),
        ("ExistOk", "ExistOk"),
        ("exist_ok", "ExistOk"),
        ("EXIST_OK", "ExistOk"),
        ("existok", "ExistOk"),
        ("OVERWRITE", "Overwrite"),
    ],
)
def test_any_spelling(said: str | None, meant: str) -> None:
    assert parse_choice("mode", said, *MODES) == meant


@pytest.mark.parametrize("said", ["", "creat", "Append"])
def test_none_of_them(said: str) -> None:
    with pytest.raises(InvalidInputError, match="one of Create, ExistOk, Overwrite"):
        parse_choice("mode", said, *MODES)
