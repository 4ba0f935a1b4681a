"""Check locations against a warehouse: tables lie below its location or its other roots, and nowhere else.

How a location is parsed depends on the kind of the table, so each is checked as the table's own readers parse it.

On local disk a location is checked against the disk as it is now: there must be no symlink below the root. Whoever can
write to the disk directly can create one later; call `check_location` again where that matters: it costs a few system
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
"""Folder below a warehouse's location that is reserved for the server."""

LONGEST = MappingProxyType({"file": 3800, "": 900})
"""Longest path in bytes, on disk and elsewhere, so that the names of a table's files still fit."""


def check_location(warehouse: Warehouse, location: str, kind: Kind | None = None) -> str:
    """Return a location that a client chose, as it was given but without a trailing slash.

    Args:
        warehouse: the warehouse of the table.
        location: the location to check.
        kind: the kind of the table; if it is not known yet, the location must be allowed for every kind.

    Raises:
        InvalidInputError: tables of this warehouse must not lie there; the message says why.
    """
    for reader in (kind,) if kind else ("lance", "iceberg"):
        _check_for_kind(warehouse, location, reader)
    return location.rstrip("/")


def default_location(warehouse: Warehouse, levels: Sequence[str], name: str, kind: Kind = "lance") -> str:
    """Return the location of a table that is created without one: `{warehouse}/{level}/…/{table}`.

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
    """Return where the server stores its own files; no table may lie there."""
    return warehouse.cache or child_location(warehouse.location, [CACHE])


def prepare_warehouse_location(text: str) -> str:
    """Return a warehouse's location from the form in which a user writes it, and create a local folder.

    Raises:
        InvalidInputError: the location cannot be used; the message says why.
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
    """Raise if there is a symlink between the warehouse's root and a location.

    A location that was checked before may have got one since.

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
    """Return whether one key is a prefix of the other."""
    return left.startswith(right) or right.startswith(left)


def _escape_first_letter(root: str, location: str) -> str:
    """Return another location for a name that would be the server's own folder: its first letter percent-encoded.

    No other name is encoded like that.
    """
    start = len(root.rstrip("/")) + 1
    letter = "".join(f"%{byte:02X}" for byte in location[start].encode())
    encoded = quote(letter, safe="") if "://" in root or root.startswith("file:") else letter
    return f"{location[:start]}{encoded}{location[start + 1 :]}"
