"""Parsing of the modes and behaviours in Lance requests, which come as PascalCase or snake_case, in any case."""

from __future__ import annotations

import re

from lance_namespace.errors import InvalidInputError


def parse_choice(what: str, value: str | None, *allowed: str) -> str:
    """Return the allowed word that `value` stands for; the first one if `value` is None.

    Raises:
        InvalidInputError: it is none of them.
    """
    if value is None:
        return allowed[0]
    normalized = re.sub(r"[_\-\s]", "", value).lower()
    if (choice := next((word for word in allowed if word.lower() == normalized), None)) is None:
        raise InvalidInputError(f"{what} {value!r} is not known; it is one of {', '.join(allowed)}")
    return choice
