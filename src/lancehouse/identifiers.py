"""Names of namespaces and tables: parsed once at the edge, encoded in one place."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Self
from urllib.parse import quote

from lance_namespace.errors import InvalidInputError

LEVEL = re.compile(r"`((?:[^`]|``)+)`|([^.$`]+)")
"""A level as people write it: one with a dot, a `$` or a backquote in backquotes, which are doubled inside."""
UNIT_SEPARATOR = "%1F"
"""What joins levels on the wire where the server announces nothing else; it comes encoded."""


@dataclass(frozen=True, slots=True)
class NamespaceId:
    """A warehouse or catalog, and the levels below it (none for the catalog itself)."""

    catalog: str
    levels: tuple[str, ...]

    @classmethod
    def parse(cls, parts: Sequence[str] | None, *, least: int = 1) -> Self:
        """Take an id of the Lance interface apart.

        Args:
            parts: the levels, the catalog first.
            least: how many levels the operation needs: 2 where the catalog itself will not do.

        Raises:
            InvalidInputError: too few levels, or an empty one.
        """
        levels = _check_levels(parts, least, "a namespace id is [warehouse or catalog, namespace, ...]")
        return cls(levels[0], levels[1:])

    @property
    def parts(self) -> list[str]:
        """The id as the Lance interface has it."""
        return [self.catalog, *self.levels]

    @property
    def parent(self) -> NamespaceId:
        """The namespace one level up."""
        return NamespaceId(self.catalog, self.levels[:-1])

    def child(self, level: str) -> NamespaceId:
        """The namespace called `level` below this one."""
        return NamespaceId(self.catalog, (*self.levels, level))

    def contains(self, other: NamespaceId) -> bool:
        """Whether `other` is this namespace or lies below it."""
        return self.catalog == other.catalog and other.levels[: len(self.levels)] == self.levels

    def to_path_segment(self, separator: str = UNIT_SEPARATOR) -> str:
        """The levels as one path segment or query value: each is encoded exactly once, the separator comes encoded."""
        return _escape_dot_segment(separator.join(_quote_level(level) for level in self.levels))

    def __str__(self) -> str:
        return "namespace " + ".".join(self.parts)


@dataclass(frozen=True, slots=True)
class TableId:
    """A table in a namespace."""

    namespace: NamespaceId
    name: str

    @classmethod
    def parse(cls, parts: Sequence[str] | None) -> Self:
        """Take an id of the Lance interface apart.

        Raises:
            InvalidInputError: fewer than three levels, or an empty one.
        """
        levels = _check_levels(parts, 3, "a table id is [warehouse or catalog, namespace, ..., table]")
        return cls(NamespaceId(levels[0], levels[1:-1]), levels[-1])

    @property
    def parts(self) -> list[str]:
        """The id as the Lance interface has it."""
        return [*self.namespace.parts, self.name]

    def to_path_segment(self) -> str:
        """The table's name as one path segment."""
        return _escape_dot_segment(_quote_level(self.name))

    def __str__(self) -> str:
        return "table " + ".".join(self.parts)


def parse_levels(text: str) -> tuple[str, ...]:
    """The levels of an id as people write it: joined by dots (or `$`), a level with a dot in backquotes.

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
    """An id as people write it: levels joined by dots, one with a dot in backquotes."""
    return ".".join(
        level if LEVEL.fullmatch(level) and level[0] != "`" else _quote_backticks(level) for level in levels
    )


def _quote_backticks(level: str) -> str:
    return f"`{level.replace('`', '``')}`"


def _check_levels(parts: Sequence[str] | None, least: int, form: str) -> tuple[str, ...]:
    levels = tuple(parts or ())
    if len(levels) < least:
        raise InvalidInputError(f"{form}, at least {least} {'level' if least == 1 else 'levels'}; got {list(levels)!r}")
    if "" in levels:
        raise InvalidInputError(f"{form}, no level may be empty; got {list(levels)!r}")
    return levels


@lru_cache(4096)
def _quote_level(name: str) -> str:
    return quote(name, safe="")


def _escape_dot_segment(segment: str) -> str:
    """A path segment; a bare dot segment would be resolved away on the wire, and the call would hit another object."""
    return segment.replace(".", "%2E") if segment in (".", "..") else segment


def is_plain(name: str) -> bool:
    """Whether a name looks the same on the wire, so that no server can stumble over it."""
    return name not in (".", "..") and _quote_level(name) == name
