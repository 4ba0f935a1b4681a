"""Where the tables of a warehouse may lie: below its location or its other roots, and nowhere else.

What a location means depends on the kind of the table, so each is checked as its own readers read it.

On local disk a location is checked as the disk is now: no symlink may be on the way from the root. Whoever can write to
the disk past the server can make one later; call `checked` again where that matters, it costs a few system calls.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from types import MappingProxyType
from urllib.parse import quote

from lance_namespace.errors import InvalidInputError

from lancehouse.catalog.warehouses import Warehouse
from lancehouse.locations import below, find_link, is_unicode, is_uri, names_below, parse, refuse_location
from lancehouse.locations import key as key
from lancehouse.store.rows import Kind

CACHE = ".lancehouse"
"""The folder below a warehouse's location that is the server's own."""

LONGEST = MappingProxyType({"file": 3800, "": 900})
"""Bytes in a path, on disk and elsewhere, that leave room for the names of a table's files."""


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
    if not all(map(is_unicode, names)):
        raise InvalidInputError(f"{names!r} holds a character that is not Unicode")
    location = below(warehouse.location, names)
    if _meets(key(location, kind), key(cache(warehouse), kind)):
        location = _aside(warehouse.location, location)
    return checked(warehouse, location, kind)


def cache(warehouse: Warehouse) -> str:
    """Where the server keeps what it makes itself; no table lies there."""
    return warehouse.cache or below(warehouse.location, [CACHE])


def warehouse_location(text: str) -> str:
    """The location of a warehouse as a person writes it; a local folder is made if it is not there.

    Raises:
        InvalidInputError: nothing can be kept there; it says why.
    """
    if text.strip() and not is_uri(text):
        home = os.path.expanduser(text)  # noqa: PTH111 - pathlib raises where nobody has that name
        if home.startswith("~"):
            raise refuse_location(text, "there is no such home folder")
        text = os.path.abspath(home)  # noqa: PTH100 - pathlib would leave `..` in
    place = parse(text, "lance")
    if place.store != "file":
        if "%" in text:
            raise refuse_location(text, "Lance and Iceberg's clients disagree on what % means there")
        return text.rstrip("/")
    if not place.segments:
        raise refuse_location(text, "a warehouse is not the whole disk")
    try:
        Path(place.path).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise refuse_location(text, f"the folder cannot be made: {error.strerror}") from error
    return place.path if "%" in text else text.rstrip("/")


def require_no_link(warehouse: Warehouse, location: str, kind: Kind) -> None:
    """Refuse a location with a symlink on the way from the warehouse's roots: one that was checked may have got one.

    Raises:
        InvalidInputError: there is one.
    """
    if find_link(location, (warehouse.location, *warehouse.roots), kind):
        raise refuse_location(location, "there is a symlink on the way")


def _check(warehouse: Warehouse, location: str, kind: Kind) -> None:
    place = parse(location, kind)
    roots = [warehouse.location, *warehouse.roots]
    rest = next(filter(None, (names_below(parse(root, kind), place) for root in roots)), None)
    if rest is None:
        raise refuse_location(location, f"tables of warehouse {warehouse.name} lie below {' or '.join(roots)}")
    root, names = rest
    require_no_link(warehouse, location, kind)
    here = f"{root.rstrip('/')}/{'/'.join(names)}/"
    if _meets(here if place.store == "file" else place.store + here, key(cache(warehouse), kind)):
        raise refuse_location(location, "that is where the server keeps files of its own")
    size = len(place.path.encode())
    longest = LONGEST.get(place.store, LONGEST[""])
    if size > longest:
        raise refuse_location(location, f"a path of {size} bytes is too long, {longest} is the most")


def _meets(one: str, other: str) -> bool:
    """Whether one key lies in the other, either way."""
    return one.startswith(other) or other.startswith(one)


def _aside(root: str, location: str) -> str:
    """Another place for a name that the server's own folder has: its first letter encoded, which no other name has."""
    start = len(root.rstrip("/")) + 1
    letter = "".join(f"%{byte:02X}" for byte in location[start].encode())
    encoded = quote(letter, safe="") if "://" in root or root.startswith("file:") else letter
    return f"{location[:start]}{encoded}{location[start + 1 :]}"
