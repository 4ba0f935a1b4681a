"""Locations of tables: building one from names, parsing, comparing and checking them.

Lance decodes a URI once; Iceberg's clients, in Python and in Java, take it as it is written; both take a plain path as
it is written. So what a location means depends on the kind of the table.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate, islice
from pathlib import Path
from types import MappingProxyType
from urllib.parse import quote, unquote, urlsplit

from lance_namespace.errors import InvalidInputError

SCHEMES: Mapping[str, tuple[str, bool]] = MappingProxyType(
    {
        "file": ("file", True),
        "s3": ("s3", True),
        "s3a": ("s3", False),
        "s3n": ("s3", False),
        "gs": ("gs", True),
        "az": ("az", True),
        "abfss": ("abfss", True),
        "abfs": ("abfss", False),
        "wasb": ("abfss", False),
        "wasbs": ("abfss", False),
    }
)
"""URI scheme → the scheme under which it is compared, and whether Lance supports it."""

LANCE_ONLY = frozenset({"az"})
LONGEST_SHOWN = 500
"""Longest location in an error message, in characters; the rest is cut."""
NAME_BYTES = 255
"""Longest name of a file or folder on a local disk, in bytes."""

_URI = re.compile(r"file:/|[a-zA-Z][a-zA-Z0-9+.-]*://")
_LOCATION = re.compile(r"([a-zA-Z][a-zA-Z0-9+.-]*):(?://([^/]*))?(/.*)?", re.DOTALL)
_BUCKET = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_CONTAINER = re.compile(r"([A-Za-z0-9$][A-Za-z0-9$-]*)@([A-Za-z0-9-]+)((?:\.[A-Za-z0-9-]+)*)")
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")


@dataclass(frozen=True, slots=True)
class ParsedLocation:
    """A parsed location: the store (`file`, or scheme and bucket), and the path's segments."""

    store: str
    segments: tuple[str, ...]

    @property
    def path(self) -> str:
        """The segments as one absolute path."""
        return "/" + "/".join(self.segments)


def child_location(root: str, levels: Sequence[str]) -> str:
    """Return `root` with one path segment for each level; no level can leave `root`, and no two ids share a location.

    Lance takes a plain path literally and decodes a URI once, so a URI is encoded once more than a path.
    """
    segments = [_encode_segment(level) for level in levels]
    if _URI.match(root):
        segments = [quote(segment, safe="") for segment in segments]
    return "/".join([root.rstrip("/"), *segments])


def to_uri(location: str) -> str:
    """Return a location as a complete URI; a plain path becomes `file://…`."""
    if not _URI.match(location):
        return Path(location).absolute().as_uri()
    return re.sub(r"^file:/(?!/)", "file:///", location)


@lru_cache(maxsize=1024)
def to_lance_uri(location: str) -> str:
    """Return a location with the scheme `lance`: Iceberg clients then fail with a clear error instead of reading it."""
    return "lance://" + to_uri(location.rstrip("/")).partition("://")[2]


def is_same(one: str, other: str) -> bool:
    """Return whether two locations are equal.

    A plain path equals its `file://` form, with or without a trailing slash.
    """
    return _normalize(one) == _normalize(other)


@lru_cache(maxsize=1024)
def local_folder(location: str) -> Path | None:
    """Return the local folder of a location, or None if it is in an object store."""
    if location.startswith("file:/"):
        return Path(unquote(urlsplit(location).path))
    return Path(location) if "://" not in location else None


def key(location: str, kind: str = "lance") -> str:
    """Return a normalized form of a location: equal for equal locations, and a prefix of the key of any location below.

    Symbolic links in a local path are followed, as far as the path exists.

    Raises:
        InvalidInputError: the text is not a location.
    """
    place = parse(location, kind)
    path = os.path.realpath(place.path) if place.store == "file" else place.path
    return f"{'' if place.store == 'file' else place.store}{path.rstrip('/')}/"


def is_inside(location: str, roots: Iterable[str]) -> bool:
    """Return whether a Lance location is one of `roots` or lies below one; False if it is not a valid location.

    Symbolic links in a local path are followed, as far as the path exists.
    """
    try:
        place = parse(location, "lance")
    except InvalidInputError:
        return False
    location_key = ""
    for root in roots:
        # Where nothing below the root is a link, the real path of the root does not matter: both begin with it.
        if _is_plainly_below(_parse_root(root, "lance"), place):
            return True
        location_key = location_key or key(location)
        if location_key.startswith(key(root)):
            return True
    return False


def _is_plainly_below(root: ParsedLocation, place: ParsedLocation) -> bool:
    """Return whether a location is written below a root, without a symbolic link on the way from there."""
    if root.store != place.store or not _is_below(place, root.segments):
        return False
    if root.store != "file":
        return True
    paths = accumulate(place.segments[len(root.segments) :], "{}/{}".format, initial=root.path.rstrip("/"))
    return not any(map(os.path.islink, islice(paths, 1, None)))


def find_link(location: str, roots: Iterable[str], kind: str = "lance") -> str | None:
    """Return a symbolic link on the path from one of `roots` to a location below it, or None.

    The location is compared as it is written, before links are followed.

    Raises:
        InvalidInputError: `location` or one of `roots` is not a location.
    """
    place = parse(location, kind)
    if place.store != "file":
        return None  # object stores have no links
    for root in roots:
        if (split := names_below(_parse_root(root, kind), place)) is not None:
            paths = accumulate(split[1], "{}/{}".format, initial=split[0].rstrip("/"))
            return next(filter(os.path.islink, islice(paths, 1, None)), None)  # the root itself may be a link
    return None


def names_below(root: ParsedLocation, place: ParsedLocation) -> tuple[str, tuple[str, ...]] | None:
    """Return the path of a root and the segments from there to a location below it; None if it is not below.

    A location may be written below the root as configured, or below the root's real path, which is returned then.
    """
    if root.store != place.store:
        return None
    if _is_below(place, root.segments):
        return root.path, place.segments[len(root.segments) :]
    path = os.path.realpath(root.path) if root.store == "file" else root.path
    start = tuple(filter(None, path.split("/")))
    return (path, place.segments[len(start) :]) if _is_below(place, start) else None


def _is_below(place: ParsedLocation, start: tuple[str, ...]) -> bool:
    return len(place.segments) > len(start) and place.segments[: len(start)] == start


def parse(location: str, kind: str) -> ParsedLocation:
    """Parse a location as the readers of a kind of table (`lance`, `iceberg`, `view`) do.

    Raises:
        InvalidInputError: the text is not a location.
    """
    if not is_unicode(location):
        raise location_error(location, "it holds a character that is not Unicode")
    if match := _LOCATION.fullmatch(location):
        store, path = _parse_uri(location, kind, match[1], match[2] or "", match[3] or "")
    elif location.startswith("/"):
        store, path = "file", location
    else:
        raise location_error(location, "it is neither an absolute path nor a URI")
    names = path.rstrip("/").split("/")[1:]
    if fault := next(_find_faults(path, names, store), None):
        raise location_error(location, fault)
    return ParsedLocation(store, tuple(names))


_parse_root = lru_cache(256)(parse)


def _parse_uri(location: str, kind: str, scheme: str, authority: str, path: str) -> tuple[str, str]:
    store, is_lance = SCHEMES.get(scheme, ("", False))
    if scheme != scheme.lower():
        raise location_error(location, f"write {scheme.lower()}: in small letters")
    if not store or (kind == "lance" and not is_lance) or (kind != "lance" and scheme in LANCE_ONLY):
        schemes = [
            name for name, (_, is_lance) in SCHEMES.items() if (is_lance if kind == "lance" else name not in LANCE_ONLY)
        ]
        raise location_error(location, f"no {kind} table can lie there; the schemes are {', '.join(schemes)}")
    if re.search(r"[?#]", location):
        raise location_error(location, "a location has no query and no fragment; encode ? as %3F and # as %23")
    if location != location.rstrip(" "):
        raise location_error(location, "a space at its end has to be encoded as %20")
    if kind == "lance":
        try:
            path = unquote(path, errors="strict")
        except UnicodeDecodeError:
            raise location_error(location, "what it encodes is not UTF-8") from None
    if store == "file":
        if authority:
            raise location_error(location, "a file URI has no host: write file:///")
        return "file", path
    return f"{store}://{_parse_authority(location, store, authority)}", path


def _parse_authority(location: str, store: str, authority: str) -> str:
    """Return the bucket, or the Azure container and account, in normalized form."""
    if store == "abfss":
        if not (match := _CONTAINER.fullmatch(authority)):
            raise location_error(location, "write abfss://container@account.dfs.core.windows.net/")
        return f"{match[1]}@{match[2]}{re.sub(r'^[.](dfs|blob)(?=[.])', '', match[3])}".lower()
    if "@" in authority:
        raise location_error(location, "credentials do not belong in a location")
    if not _BUCKET.fullmatch(authority):
        raise location_error(location, "it names no bucket")
    return authority


def _find_faults(path: str, names: Sequence[str], store: str) -> Iterator[str]:
    if "" in names or (path and not path.startswith("/")):
        yield "it has an empty name on the way"
    if "." in names or ".." in names:
        yield "it goes over . or .."
    if _CONTROL.search(path):
        yield "it holds a control character"
    if "\\" in path:
        yield "it holds a backslash"
    if store == "file" and any(len(name.encode()) > NAME_BYTES for name in names):
        yield f"it has a name of more than {NAME_BYTES} bytes on the way"


def location_error(location: str, reason: str) -> InvalidInputError:
    """Build the error for a location that is refused; credentials in the location are masked."""
    text = re.sub(r"//[^/]*@", "//***@", location) if "credentials" in reason else location
    return InvalidInputError(f"location {shorten(text)!r} is not allowed: {reason}")


def shorten(location: str) -> str:
    """Cut a location to the length that is shown in messages."""
    return location if len(location) <= LONGEST_SHOWN else f"{location[:LONGEST_SHOWN]}…"


def is_uri(location: str) -> bool:
    """Return whether a location has a scheme."""
    return _LOCATION.fullmatch(location) is not None


def is_unicode(text: str) -> bool:
    """Return whether a text has no lone surrogate, which cannot be encoded as UTF-8."""
    return not re.search(r"[\ud800-\udfff]", text)


def _encode_segment(level: str) -> str:
    if level in (".", ".."):
        return level.replace(".", "%2E")
    return re.sub(r"[%/\\\x00-\x1f\x7f]", lambda match: f"%{ord(match[0]):02X}", level)


def _normalize(location: str) -> str:
    return re.sub(r"^file:(//)?(?=/)", "", location).rstrip("/")
