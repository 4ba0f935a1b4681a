"""Our own page tokens: opaque to the caller, and good for every catalog."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Sequence
from typing import Protocol

from lance_namespace.errors import InvalidInputError


class ListRequest(Protocol):
    """What the list requests of the interface share."""

    page_token: str | None
    limit: int | None


def token_after(name: str) -> str:
    """The token of the page that starts after `name`."""
    return base64.urlsafe_b64encode(name.encode()).decode().rstrip("=")


def remaining(names: Sequence[str], request: ListRequest) -> list[str]:
    """The names of this page and of all later ones, sorted.

    Raises:
        InvalidInputError: the token is not ours, or the limit is not positive.
    """
    if request.limit is not None and request.limit < 1:
        raise InvalidInputError(f"limit must be 1 or more, got {request.limit}")
    after = _name_of(request.page_token) if request.page_token else None
    return sorted(name for name in set(names) if after is None or name > after)


def page(names: Sequence[str], request: ListRequest) -> tuple[list[str], str | None]:
    """One page of `names`, and the token of the next one."""
    rest = remaining(names, request)
    chosen = rest[: request.limit] if request.limit is not None else rest
    return chosen, token_after(chosen[-1]) if len(chosen) < len(rest) else None


def _name_of(token: str) -> str:
    try:
        padding = "=" * (-len(token) % 4)
        return base64.b64decode(token.encode() + padding.encode(), altchars=b"-_", validate=True).decode()
    except (binascii.Error, UnicodeDecodeError):
        raise InvalidInputError(f"page_token {token!r} was not given out by a list call; start without one") from None
