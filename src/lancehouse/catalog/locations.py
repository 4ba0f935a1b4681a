"""Where the tables of a warehouse may lie: below its location or its other roots, and nowhere else.

What a location means depends on the kind of the table, so each is checked as its own readers read it.

On local disk a location is checked as the disk is now: no symlink may be on the way from the root. Whoever can write to
the disk past the server can make one later; call `check_location` again where that matters: it costs a few system
calls.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from types import MappingProxyType
from urllib.parse import quote

from lance_namespace.errors import InvalidInputError

from lancehouse.catalog.warehouses import Warehouse
from lancehouse.locations import child_location, find_link, is_unicode, is_uri, location_error, names_below, parse
from lancehouse.locations import key as key
from lancehouse.store.rows import Kind

CACHE = ".lancehouse"
"""The folder below a warehouse's location that is the server's own."""

LONGEST = MappingProxyType({"file": 3800, "": 900})
"""Bytes in a path, on disk and elsewhere, that leave room for the names of a table's files."""


def check_location(warehouse: Warehouse, location: str, kind: Kind | None = None) -> str:
    """A location that a client chose, in the form it was given but without a slash at its end.

    Args:
        kind: of the table; if it is not known yet, the location must be allowed for every kind.

    Raises:
        InvalidInputError: no table of this warehouse may lie there; it says why.
    """
    for reader in (kind,) if kind else ("lance", "iceberg"):
        _check_for_kind(warehouse, location, reader)
    return location.rstrip("/")


def default_location(warehouse: Warehouse, levels: Sequence[str], name: str, kind: Kind = "lance") -> str:
    """Where a table lies that was created without a location: `{warehouse}/{level}/…/{table}`.

    Raises:
        InvalidInputError: a name is too long for a folder.
    """
    names = [*levels, name]
    if not all(map(is_unicode, names)):
        raise InvalidInputError(f"{names!r} holds a character that is not Unicode")
    location = child_location(warehouse.location, names)
    if _overlaps(key(location, kind), key(cache_location(warehouse), kind)):
        location = _escape_first_letter(warehouse.location, location)
    return check_location(warehouse, location, kind)


def cache_location(warehouse: Warehouse) -> str:
    """Where the server keeps what it makes itself; no table lies there."""
    return warehouse.cache or child_location(warehouse.location, [CACHE])


def prepare_warehouse_location(text: str) -> str:
    """The location of a warehouse as a person writes it; a local folder is made if it is not there.

    Raises:
        InvalidInputError: nothing can be kept there; it says why.
    """
    if text.strip() and not is_uri(text):
        home = os.path.expanduser(text)  # noqa: PTH111 - pathlib raises where nobody has that name
        if home.startswith("~"):
            raise location_error(text, "there is no such home folder")
        text = os.path.abspath(home)  # noqa: PTH100 - pathlib would leave `..` in
    parsed = parse(text, "lance")
    if parsed.store != "file":
        if "%" in text:
            raise location_error(text, "Lance and Iceberg's clients disagree on what % means there")
        return text.rstrip("/")
    if not parsed.segments:
        raise location_error(text, "a warehouse is not the whole disk")
    try:
        Path(parsed.path).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise location_error(text, f"the folder cannot be made: {error.strerror}") from error
    return parsed.path if "%" in text else text.rstrip("/")


def require_no_link(warehouse: Warehouse, location: str, kind: Kind) -> None:
    """Refuse a location with a symlink on the way from the warehouse's roots: one that was checked may have got one.

    Raises:
        InvalidInputError: there is one.
    """
    if find_link(location, (warehouse.location, *warehouse.roots), kind):
        raise location_error(location, "there is a symlink on the way")


def _check_for_kind(warehouse: Warehouse, location: str, kind: Kind) -> None:
    parsed = parse(location, kind)
    roots = [warehouse.location, *warehouse.roots]
    split = next(filter(None, (names_below(parse(root, kind), parsed) for root in roots)), None)
    if split is None:
        raise location_error(location, f"tables of warehouse {warehouse.name} lie below {' or '.join(roots)}")
    root, names = split
    require_no_link(warehouse, location, kind)
    own_key = f"{root.rstrip('/')}/{'/'.join(names)}/"
    if _overlaps(own_key if parsed.store == "file" else parsed.store + own_key, key(cache_location(warehouse), kind)):
        raise location_error(location, "that is where the server keeps files of its own")
    size = len(parsed.path.encode())
    longest = LONGEST.get(parsed.store, LONGEST[""])
    if size > longest:
        raise location_error(location, f"a path of {size} bytes is too long, {longest} is the most")


def _overlaps(left: str, right: str) -> bool:
    """Whether one key lies in the other, either way."""
    return left.startswith(right) or right.startswith(left)


def _escape_first_letter(root: str, location: str) -> str:
    """Another place for a name that the server's own folder has: its first letter encoded, which no other name has."""
    start = len(root.rstrip("/")) + 1
    letter = "".join(f"%{byte:02X}" for byte in location[start].encode())
    encoded = quote(letter, safe="") if "://" in root or root.startswith("file:") else letter
    return f"{location[:start]}{encoded}{location[start + 1 :]}"
