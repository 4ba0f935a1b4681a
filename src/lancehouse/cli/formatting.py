"""Formatting of counts, sizes, times and names for people."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

SIZES = ("bytes", "kB", "MB", "GB", "TB", "PB")


def format_count(count: int, noun: str) -> str:
    """Format a count with its noun, in the plural unless it is 1."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def format_size(number: int) -> str:
    """Format a number of bytes with a unit."""
    amount, unit = float(number), 0
    while amount >= 1000 and unit < len(SIZES) - 1:
        amount, unit = amount / 1000, unit + 1
    return f"{amount:.1f} {SIZES[unit]}" if unit else f"{number} bytes"


def format_time(at_ms: int) -> str:
    """Format a time in milliseconds since 1970 as UTC, in a form that sorts."""
    return datetime.fromtimestamp(at_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%SZ")


def format_names(names: Sequence[str], most: int = 10) -> str:
    """Join names in a sentence: the first `most`, and how many more there are."""
    more = len(names) - most
    return ", ".join(names) if more <= 1 else f"{', '.join(names[:most])} and {more:,} more"
