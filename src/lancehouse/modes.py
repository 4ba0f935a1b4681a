"""Modes and behaviours of the Lance interface, which come in any case, Pascal or snake."""

from __future__ import annotations

import re

from lance_namespace.errors import InvalidInputError


def parse_choice(what: str, value: str | None, *allowed: str) -> str:
    """The allowed word that `value` means; the first one if it is not given.

    Raises:
        InvalidInputError: it is none of them.
    """
    if value is None:
        return allowed[0]
    normalized = re.sub(r"[_\-\s]", "", value).lower()
    if (choice := next((word for word in allowed if word.lower() == normalized), None)) is None:
        raise InvalidInputError(f"{what} {value!r} is not known; it is one of {', '.join(allowed)}")
    return choice
