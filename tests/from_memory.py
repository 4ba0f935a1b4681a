"""What a function returns without blocking."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from lancehouse.catalog.errors import WouldBlockError

T = TypeVar("T")


def from_memory(load: Callable[..., T], *args: Any) -> T | None:
    """What `load` has in memory, or None where it would have to block."""
    try:
        return load(*args, blocking=False)
    except WouldBlockError:
        return None
