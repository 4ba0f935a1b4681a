"""Where a table lies that was declared without a location."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import quote

_URI = re.compile(r"file:/|[a-zA-Z][a-zA-Z0-9+.-]*://")


def below(root: str, levels: Sequence[str]) -> str:
    """`root` with one path segment for each level; no name leaves it, and no two names share a place.

    Lance takes a plain path literally and decodes a URI once, so a URI is encoded once more than a path.
    """
    segments = [_segment(level) for level in levels]
    if _URI.match(root):
        segments = [quote(segment, safe="") for segment in segments]
    return "/".join([root.rstrip("/"), *segments])


def uri(location: str) -> str:
    """A location as a complete URI."""
    if not _URI.match(location):
        return Path(location).absolute().as_uri()
    return re.sub(r"^file:/(?!/)", "file:///", location)


def unreadable(location: str) -> str:
    """A location under a scheme that no Iceberg reader takes for one of its own files, so that it says so."""
    return "lance://" + uri(location.rstrip("/")).partition("://")[2]


def is_same(one: str, other: str) -> bool:
    """Whether two locations are one place: a plain path and its `file://` form are, with or without a last slash."""
    return _plain(one) == _plain(other)


def _segment(level: str) -> str:
    if level in (".", ".."):
        return level.replace(".", "%2E")
    return re.sub(r"[%/\\\x00-\x1f\x7f]", lambda match: f"%{ord(match[0]):02X}", level)


def _plain(location: str) -> str:
    return re.sub(r"^file:(//)?(?=/)", "", location).rstrip("/")
