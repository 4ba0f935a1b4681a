"""Numbers, times and properties as people read them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime

SIZES = ("bytes", "kB", "MB", "GB", "TB", "PB")


def format_count(count: int, noun: str) -> str:
    """How many there are."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def format_size(number: int) -> str:
    """Bytes, as people say it."""
    amount, unit = float(number), 0
    while amount >= 1000 and unit < len(SIZES) - 1:
        amount, unit = amount / 1000, unit + 1
    return f"{amount:.1f} {SIZES[unit]}" if unit else f"{number} bytes"


def format_time(at_ms: int) -> str:
    """A time, in words that sort."""
    return datetime.fromtimestamp(at_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%SZ")


def redact_properties(properties: Mapping[str, str] | None) -> dict[str, str]:
    """Properties without their secrets."""
    from lancehouse.conformance.target import HIDDEN, SECRET_KEY

    return {key: HIDDEN if SECRET_KEY.search(key) else value for key, value in sorted((properties or {}).items())}


def format_names(names: Sequence[str], most: int = 10) -> str:
    """Names in a sentence: the first of many, and how many more there are."""
    more = len(names) - most
    return ", ".join(names) if more <= 1 else f"{', '.join(names[:most])} and {more:,} more"
