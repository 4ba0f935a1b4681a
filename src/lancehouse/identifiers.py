"""Ids of namespaces and tables: parsing, formatting, and encoding in URLs."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Self
from urllib.parse import quote, unquote

from lance_namespace.errors import InvalidInputError

LEVEL = re.compile(r"`((?:[^`]|``)+)`|([^.$`]+)")
"""One level as users write it: a level with a dot, a `$` or a backquote stands in backquotes, doubled inside."""
UNIT_SEPARATOR = "%1F"
"""Separator between the levels of a namespace in a URL, percent-encoded, unless the server announces another."""


@dataclass(frozen=True, slots=True)
class NamespaceId:
    """Id of a namespace: a warehouse or catalog, and the levels below it (none for the catalog itself)."""

    catalog: str
    levels: tuple[str, ...]

    @classmethod
    def parse(cls, parts: Sequence[str] | None, *, least: int = 1) -> Self:
        """Parse an id of the Lance interface.

        Args:
            parts: the levels, the catalog first.
            least: how many levels the operation needs: 2 if the catalog itself is not a possible target.

        Raises:
            InvalidInputError: too few levels, or an empty one.
        """
        levels = _check_levels(parts, least, "a namespace id is [warehouse or catalog, namespace, ...]")
        return cls(levels[0], levels[1:])

    @property
    def parts(self) -> list[str]:
        """The id as the Lance interface has it: a list that starts with the catalog."""
        return [self.catalog, *self.levels]

    @property
    def parent(self) -> NamespaceId:
        """The namespace one level up."""
        return NamespaceId(self.catalog, self.levels[:-1])

    def child(self, level: str) -> NamespaceId:
        """Return the namespace called `level` below this one."""
        return NamespaceId(self.catalog, (*self.levels, level))

    def contains(self, other: NamespaceId) -> bool:
        """Return whether `other` is this namespace or lies below it."""
        return self.catalog == other.catalog and other.levels[: len(self.levels)] == self.levels

    def to_path_segment(self, separator: str = UNIT_SEPARATOR) -> str:
        """Return the levels as one path segment or query value.

        Each level is percent-encoded exactly once; `separator` is expected to be encoded already.

        Raises:
            InvalidInputError: a level contains the separator, so that the segment would name another namespace.
        """
        decoded_separator = unquote(separator)
        if any(decoded_separator in level for level in self.levels):
            raise InvalidInputError(
                f"{self}: the server takes {decoded_separator!r} for the end of a level, no name may contain it"
            )
        return _escape_dot_segment(separator.join(_quote_level(level) for level in self.levels))

    def __str__(self) -> str:
        return "namespace " + ".".join(self.parts)


@dataclass(frozen=True, slots=True)
class TableId:
    """Id of a table: its namespace and its name."""

    namespace: NamespaceId
    name: str

    @classmethod
    def parse(cls, parts: Sequence[str] | None) -> Self:
        """Parse an id of the Lance interface.

        Raises:
            InvalidInputError: fewer than three levels, or an empty one.
        """
        levels = _check_levels(parts, 3, "a table id is [warehouse or catalog, namespace, ..., table]")
        return cls(NamespaceId(levels[0], levels[1:-1]), levels[-1])

    @property
    def parts(self) -> list[str]:
        """The id as the Lance interface has it: a list that starts with the catalog and ends with the table."""
        return [*self.namespace.parts, self.name]

    def to_path_segment(self) -> str:
        """Return the table's name as one path segment."""
        return _escape_dot_segment(_quote_level(self.name))

    def __str__(self) -> str:
        return "table " + ".".join(self.parts)


def parse_levels(text: str) -> tuple[str, ...]:
    """Parse an id as users write it: levels joined by dots (or `$`), a level with a dot in backquotes.

    Raises:
        InvalidInputError: an empty level, or a backquote without its partner.
    """
    levels: list[str] = []
    rest = text
    while rest:
        match = LEVEL.match(rest)
        if match is None or (rest[match.end() :] and rest[match.end()] not in ".$"):
            raise InvalidInputError(f"{text!r} is no id: levels are joined by dots, one with a dot is `quoted`")
        levels.append(match[1].replace("``", "`") if match[1] else match[2])
        rest = rest[match.end() :]
        if rest in (".", "$"):
            raise InvalidInputError(f"{text!r} is no id: it ends with a {rest!r}")
        rest = rest[1:]
    return tuple(levels)


def format_levels(levels: Iterable[str]) -> str:
    """Format an id as users write it: levels joined by dots, a level with a dot in backquotes."""
    return ".".join(level if LEVEL.fullmatch(level) and level[0] != "`" else quote_name(level) for level in levels)


def quote_name(name: str) -> str:
    """Put a name in backquotes, as the SQL of Lance and Spark does."""
    return f"`{name.replace('`', '``')}`"


def _check_levels(parts: Sequence[str] | None, least: int, form: str) -> tuple[str, ...]:
    levels = tuple(parts or ())
    if isinstance(parts, str) or not all(isinstance(level, str) for level in levels):
        raise InvalidInputError(f"{form}, a list of texts; got {parts!r}")
    if len(levels) < least:
        raise InvalidInputError(f"{form}, at least {least} {'level' if least == 1 else 'levels'}; got {list(levels)!r}")
    if "" in levels:
        raise InvalidInputError(f"{form}, no level may be empty; got {list(levels)!r}")
    try:
        "".join(levels).encode()
    except UnicodeEncodeError:
        raise InvalidInputError(f"{form}, and every level is Unicode text; got {list(levels)!r}") from None
    return levels


@lru_cache(4096)
def _quote_level(name: str) -> str:
    return quote(name, safe="")


def _escape_dot_segment(segment: str) -> str:
    """Encode the segments `.` and `..`, which would be resolved on the way, so that the call reached another object."""
    return segment.replace(".", "%2E") if segment in (".", "..") else segment


def is_plain(name: str) -> bool:
    """Return whether a name is the same after percent-encoding, so that no server can decode it wrongly."""
    return name not in (".", "..") and _quote_level(name) == name
