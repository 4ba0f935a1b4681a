"""Suggestions for unknown names: "did you mean …?"."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches


def find_close(word: str, known: Iterable[str], cutoff: float = 0.6) -> str | None:
    """Return the known word that is most similar to `word`, ignoring case, or None if none is similar enough."""
    by_lowercase = {each.lower(): each for each in known}
    matches = get_close_matches(word.lower(), by_lowercase, 1, cutoff)
    return by_lowercase[matches[0]] if matches else None


def suggest(word: str, known: Iterable[str], otherwise: str | None = None) -> str:
    """Return the end of an error message about an unknown word: the most similar one, or else all known words.

    Args:
        word: the unknown word.
        known: the words that are allowed.
        otherwise: the text to return if no word is similar, in place of the list of all.
    """
    names = list(known)
    if (close := find_close(word, names)) is not None:
        return f"did you mean {close}?"
    if otherwise is not None:
        return otherwise
    return f"expected one of {', '.join(names)}" if names else "there is none"
