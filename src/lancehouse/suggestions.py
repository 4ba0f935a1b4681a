"""Suggestions for unknown names: "did you mean …?"."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches


def find_close(word: str, words: Iterable[str], cutoff: float = 0.6) -> str | None:
    """Return the one of some words that is most similar to `word`, ignoring case; None if none is similar enough."""
    by_lowercase = {name.lower(): name for name in words}
    matches = get_close_matches(word.lower(), by_lowercase, 1, cutoff)
    return by_lowercase[matches[0]] if matches else None


def suggest(word: str, words: Iterable[str], otherwise: str | None = None) -> str:
    """Return the end of an error message about an unknown word: the most similar one, or else all words.

    Args:
        word: the unknown word.
        words: those that are allowed.
        otherwise: the text to return if no word is similar, in place of the list of all.
    """
    names = list(words)
    if (close := find_close(word, names)) is not None:
        return f"did you mean {close}?"
    if otherwise is not None:
        return otherwise
    return f"expected one of {', '.join(names)}" if names else "there is none"
