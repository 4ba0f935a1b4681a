"""Pagination of lists: opaque page tokens that work the same for every catalog."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

from lance_namespace.errors import InvalidInputError

Key = TypeVar("Key", int, str)
Item = TypeVar("Item")


@dataclass(frozen=True, slots=True)
class ListPage(Generic[Key, Item]):
    """One page of a list; `token` names the next page, None on the last one."""

    items: dict[Key, Item]
    token: str | None


def paginate(
    items: Mapping[Key, Item], limit: int | None, token: str | None, *, descending: bool = False
) -> ListPage[Key, Item]:
    """Return one page of `items` in the order of their keys.

    The page starts after the key that the token names; that key may have been deleted in the meantime.

    Raises:
        InvalidInputError: the token was not issued by a list call, or the limit is negative.
    """
    keys = remaining_keys(items, limit, token, descending=descending)
    page_keys = keys[:limit]
    return ListPage(
        {key: items[key] for key in page_keys}, encode_token(page_keys[-1]) if 0 < len(page_keys) < len(keys) else None
    )


def remaining_keys(keys: Iterable[Key], limit: int | None, token: str | None, *, descending: bool = False) -> list[Key]:
    """Return the keys of this page and of all later ones, in order.

    Raises:
        InvalidInputError: the token was not issued by a list call, or the limit is negative.
    """
    if limit is not None and limit < 0:
        raise InvalidInputError(f"limit {limit} is negative")
    ordered = sorted(set(keys), reverse=descending)
    text = decode_token(token)
    if text is None:
        return ordered
    try:
        # Tokens are text, but keys may be numbers, which are ordered differently.
        lasts = [type(key)(text) for key in ordered[:1]]
    except ValueError:
        raise _foreign_token_error(token) from None
    return [key for last in lasts for key in ordered if (key < last if descending else key > last)]


def decode_token(token: str | None) -> str | None:
    """Return the key after which the page of this token starts; None for the first page.

    Raises:
        InvalidInputError: the token was not issued by a list call.
    """
    if not token:
        return None
    try:
        padded = token.encode() + b"=" * (-len(token) % 4)
        return base64.b64decode(padded, altchars=b"-_", validate=True).decode()
    except (binascii.Error, ValueError):
        raise _foreign_token_error(token) from None


def encode_token(key: int | str) -> str:
    """Return the token of the page that starts after `key`."""
    return base64.urlsafe_b64encode(str(key).encode()).decode().rstrip("=")


def _foreign_token_error(token: str | None) -> InvalidInputError:
    return InvalidInputError(f"page_token {token!r} was not given out by a list call; start without one")
