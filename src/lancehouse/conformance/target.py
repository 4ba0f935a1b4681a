"""`ConformanceTarget`: the catalog that the suite checks, and how it does."""

from __future__ import annotations

from dataclasses import dataclass

from lancehouse.connection import Connection
from lancehouse.deprecation import forward_names

DEAD_URL = "http://127.0.0.1:9"
"""A URL that nothing listens on: port 9 is the discard port."""


@dataclass(frozen=True)
class ConformanceTarget(Connection):
    """A connection to an implementation under test; `parent` is the namespace in which the suite makes its own.

    Args:
        root: a folder in which tables may lie, where the implementation lets its caller choose.
        entries: how many tables and namespaces a long list has.
        known: names of checks that are known to fail; they are reported, and do not count.
        areas: the areas to check; all of them if empty.
    """

    root: str | None = None
    entries: int = 12
    known: frozenset[str] = frozenset()
    areas: tuple[str, ...] = ()


__getattr__ = forward_names(__name__, {"Target": f"{__name__}.ConformanceTarget"})
