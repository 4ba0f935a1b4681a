"""Suggestions for unknown names: "did you mean …?"."""

from __future__ import annotations

from collections.abc import Sequence
from difflib import get_close_matches


def find_close(word: str, known: Sequence[str]) -> list[str]:
    """Return the known word closest to `word` as a list of one, or an empty list."""
    return get_close_matches(word, known, 1, 0.6)


def suggest(word: str, known: Sequence[str]) -> str:
    """Return the end of an error message about an unknown word: the closest known word, or all of them."""
    if near := find_close(word, known):
        return f"did you mean {near[0]}?"
    return f"it is one of {', '.join(known)}" if known else "there is none"
