"""Where the tables of a warehouse may lie: below its location or its other roots, and nowhere else.

Lance decodes a URI once; Iceberg's clients, in Python and in Java, take it as it stands; both take a plain path as it
stands. So what a location means depends on the kind of the table, and each is checked as its own readers read it.

On local disk a location is checked as the disk is now: no symlink may be on the way from the root. Whoever can write to
the disk past the server can make one later; call `checked` again where that matters, it costs a few system calls.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from types import MappingProxyType
from urllib.parse import quote, unquote

from lance_namespace.errors import InvalidInputError

from lancehouse.catalog.warehouses import Warehouse
from lancehouse.locations import below
from lancehouse.store.rows import Kind

CACHE = ".lancehouse"
"""The folder below a warehouse's location that is the server's own."""

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
"""Scheme → the one it is compared by, and whether Lance knows it."""

LANCE_ONLY = frozenset({"az"})
NAME_BYTES = 255
"""The longest name of a file or folder."""
LONGEST = MappingProxyType({"file": 3800, "": 900})
"""Bytes in a path, on disk and elsewhere, that leave room for the names of a table's files."""

_URI = re.compile(r"([a-zA-Z][a-zA-Z0-9+.-]*):(?://([^/]*))?(/.*)?", re.DOTALL)
_BUCKET = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_CONTAINER = re.compile(r"([A-Za-z0-9$][A-Za-z0-9$-]*)@([A-Za-z0-9-]+)((?:\.[A-Za-z0-9-]+)*)")
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")


@dataclass(frozen=True, slots=True)
class _Place:
    """A location, read: where it is kept, and the names on the way."""

    store: str
    segments: tuple[str, ...]

    @property
    def path(self) -> str:
        return "/" + "/".join(self.segments)


def checked(warehouse: Warehouse, location: str, kind: Kind | None = None) -> str:
    """A location that a client chose, in the form it was given but without a slash at its end.

    Args:
        kind: of the table; if it is not known yet, the location must be allowed for every kind.

    Raises:
        InvalidInputError: no table of this warehouse may lie there; it says why.
    """
    for reader in (kind,) if kind else ("lance", "iceberg"):
        _check(warehouse, location, reader)
    return location.rstrip("/")


def default(warehouse: Warehouse, levels: Sequence[str], name: str, kind: Kind = "lance") -> str:
    """Where a table lies that was created without a location: `{warehouse}/{level}/…/{table}`.

    Raises:
        InvalidInputError: a name is too long for a folder.
    """
    names = [*levels, name]
    if not all(map(_is_unicode, names)):
        raise InvalidInputError(f"{names!r} holds a character that is not Unicode")
    location = below(warehouse.location, names)
    if _meets(key(location, kind), key(cache(warehouse), kind)):
        location = _aside(warehouse.location, location)
    return checked(warehouse, location, kind)


def cache(warehouse: Warehouse) -> str:
    """Where the server keeps what it makes itself; no table lies there."""
    return warehouse.cache or below(warehouse.location, [CACHE])


def key(location: str, kind: Kind = "lance") -> str:
    """A location as one text for all its forms: equal for the same place, and a prefix of what lies below.

    Symlinks in a local path are followed, as far as it exists.

    Raises:
        InvalidInputError: it is no location at all.
    """
    place = _read(location, kind)
    path = os.path.realpath(place.path) if place.store == "file" else place.path
    return f"{'' if place.store == 'file' else place.store}{path.rstrip('/')}/"


def warehouse_location(text: str) -> str:
    """The location of a warehouse as a person writes it; a local folder is made if it is not there.

    Raises:
        InvalidInputError: nothing can be kept there; it says why.
    """
    if text.strip() and not _URI.fullmatch(text):
        home = os.path.expanduser(text)  # noqa: PTH111 - pathlib raises where nobody has that name
        if home.startswith("~"):
            raise _refused(text, "there is no such home folder")
        text = os.path.abspath(home)  # noqa: PTH100 - pathlib would leave `..` in
    place = _read(text, "lance")
    if place.store != "file":
        if "%" in text:
            raise _refused(text, "Lance and Iceberg's clients disagree on what % means there")
        return text.rstrip("/")
    if not place.segments:
        raise _refused(text, "a warehouse is not the whole disk")
    try:
        Path(place.path).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise _refused(text, f"the folder cannot be made: {error.strerror}") from error
    return place.path if "%" in text else text.rstrip("/")


def _check(warehouse: Warehouse, location: str, kind: Kind) -> None:
    place = _read(location, kind)
    roots = [warehouse.location, *warehouse.roots]
    rest = next(filter(None, (_rest(_read(root, kind), place) for root in roots)), None)
    if rest is None:
        raise _refused(location, f"tables of warehouse {warehouse.name} lie below {' or '.join(roots)}")
    root, names = rest
    if place.store == "file" and any(map(os.path.islink, accumulate(names, os.path.join, initial=root))):
        raise _refused(location, "there is a symlink on the way")
    here = f"{root.rstrip('/')}/{'/'.join(names)}/"
    if _meets(here if place.store == "file" else place.store + here, key(cache(warehouse), kind)):
        raise _refused(location, "that is where the server keeps files of its own")
    size = len(place.path.encode())
    longest = LONGEST.get(place.store, LONGEST[""])
    if size > longest:
        raise _refused(location, f"a path of {size} bytes is too long, {longest} is the most")


def _rest(root: _Place, place: _Place) -> tuple[str, tuple[str, ...]] | None:
    """The root without symlinks, and the names from there to the place; None if it is not below."""
    if root.store != place.store:
        return None
    real = os.path.realpath(root.path) if root.store == "file" else root.path
    for start in (root.segments, tuple(filter(None, real.split("/")))):
        if len(place.segments) > len(start) and place.segments[: len(start)] == start:
            return real, place.segments[len(start) :]
    return None


def _read(location: str, kind: Kind) -> _Place:
    """Take a location apart, as the readers of this kind do."""
    if not _is_unicode(location):
        raise _refused(location, "it holds a character that is not Unicode")
    if match := _URI.fullmatch(location):
        store, path = _uri(location, kind, match[1], match[2] or "", match[3] or "")
    elif location.startswith("/"):
        store, path = "file", location
    else:
        raise _refused(location, "it is neither an absolute path nor a URI")
    names = path.rstrip("/").split("/")[1:]
    if fault := next(_faults(path, names, store), None):
        raise _refused(location, fault)
    return _Place(store, tuple(names))


def _uri(location: str, kind: Kind, scheme: str, authority: str, path: str) -> tuple[str, str]:
    store, lance = SCHEMES.get(scheme, ("", False))
    if scheme != scheme.lower():
        raise _refused(location, f"write {scheme.lower()}: in small letters")
    if not store or (kind == "lance" and not lance) or (kind != "lance" and scheme in LANCE_ONLY):
        known = [name for name, (_, lance) in SCHEMES.items() if (lance if kind == "lance" else name not in LANCE_ONLY)]
        raise _refused(location, f"no {kind} table can lie there; the schemes are {', '.join(known)}")
    if re.search(r"[?#]", location):
        raise _refused(location, "a location has no query and no fragment; encode ? as %3F and # as %23")
    if location != location.rstrip(" "):
        raise _refused(location, "a space at its end has to be encoded as %20")
    if kind == "lance":
        try:
            path = unquote(path, errors="strict")
        except UnicodeDecodeError:
            raise _refused(location, "what it encodes is not UTF-8") from None
    if store == "file":
        if authority:
            raise _refused(location, "a file URI has no host: write file:///")
        return "file", path
    return f"{store}://{_authority(location, store, authority)}", path


def _authority(location: str, store: str, authority: str) -> str:
    """The bucket, or the container and its account, in one form."""
    if store == "abfss":
        if not (match := _CONTAINER.fullmatch(authority)):
            raise _refused(location, "write abfss://container@account.dfs.core.windows.net/")
        return f"{match[1]}@{match[2]}{re.sub(r'^[.](dfs|blob)(?=[.])', '', match[3])}".lower()
    if "@" in authority:
        raise _refused(location, "credentials do not belong in a location")
    if not _BUCKET.fullmatch(authority):
        raise _refused(location, "it names no bucket")
    return authority


def _faults(path: str, names: Sequence[str], store: str) -> Iterator[str]:
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


def _refused(location: str, reason: str) -> InvalidInputError:
    shown = re.sub(r"//[^/]*@", "//***@", location) if "credentials" in reason else location
    shown = shown if len(shown) <= 500 else f"{shown[:500]}…"
    return InvalidInputError(f"location {shown!r} is not allowed: {reason}")


def _is_unicode(text: str) -> bool:
    return not re.search(r"[\ud800-\udfff]", text)


def _meets(one: str, other: str) -> bool:
    """Whether one key lies in the other, either way."""
    return one.startswith(other) or other.startswith(one)


def _aside(root: str, location: str) -> str:
    """Another place for a name that the server's own folder has: its first letter encoded, which no other name has."""
    start = len(root.rstrip("/")) + 1
    letter = "".join(f"%{byte:02X}" for byte in location[start].encode())
    encoded = quote(letter, safe="") if "://" in root or root.startswith("file:") else letter
    return f"{location[:start]}{encoded}{location[start + 1 :]}"
