"""Lists in pages."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

from lance_namespace.errors import InvalidInputError

Key = TypeVar("Key", int, str)
Item = TypeVar("Item")


@dataclass(frozen=True, slots=True)
class Page(Generic[Key, Item]):
    """Part of a list, and what to ask for the next with; None after the last."""

    items: dict[Key, Item]
    token: str | None


def page(
    items: Mapping[Key, Item], limit: int | None, token: str | None, *, descending: bool = False
) -> Page[Key, Item]:
    """The items in the order of their keys, from behind the one that the token names, which need not be there any more.

    Raises:
        InvalidInputError: a token that this did not give out, or a negative limit.
    """
    if limit is not None and limit < 0:
        raise InvalidInputError(f"limit {limit} is negative")
    keys = sorted(items, reverse=descending)
    if token:
        last = _key(keys, token)
        keys = [key for key in keys if (key < last if descending else key > last)]
    shown = keys[:limit]
    return Page({key: items[key] for key in shown}, str(shown[-1]) if 0 < len(shown) < len(keys) else None)


def _key(keys: list[Key], token: str) -> Key:
    if not keys or isinstance(keys[0], str):
        return token  # type: ignore[return-value]
    if not token.isdecimal():
        raise InvalidInputError(f"page token {token!r} did not come from this list")
    return int(token)
