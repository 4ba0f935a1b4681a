"""What somebody may have meant by a word that is not known."""

from __future__ import annotations

from collections.abc import Sequence
from difflib import get_close_matches


def find_close(word: str, known: Sequence[str]) -> list[str]:
    """The word that is most like another one, if one is."""
    return get_close_matches(word, known, 1, 0.6)


def suggest(word: str, known: Sequence[str]) -> str:
    """What somebody may have meant by a word that is not known."""
    if near := find_close(word, known):
        return f"did you mean {near[0]}?"
    return f"it is one of {', '.join(known)}" if known else "there is none"
