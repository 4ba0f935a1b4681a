"""Check that an Iceberg table's manifests lie in the table, before the server reads them.

The server reads manifests itself, so metadata that a client wrote must not make it open other files.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Mapping, Sequence

from lance_namespace.errors import InvalidInputError
from pyiceberg.exceptions import ResolveError

from lancehouse.catalog.errors import IllegalArgumentError
from lancehouse.locations import key as location_key

METADATA_PATH = "write.metadata.path"
"""Property with the folder of a table's metadata files, if it is not below the table's location."""

UNREADABLE = (
    *(OSError, ValueError, EOFError, LookupError, TypeError, AttributeError, AssertionError, ArithmeticError),
    *(
        NotImplementedError,
        RecursionError,
        MemoryError,
        ImportError,
        SystemError,
        ResolveError,
        struct.error,
        zlib.error,
    ),
)
"""Errors that reading a missing or broken manifest may raise."""


def manifest_roots(location: str, properties: Mapping[str, str]) -> tuple[str, ...]:
    """Return the keys of the folders in which a table's manifests may lie."""
    return tuple(key for place in (location, properties.get(METADATA_PATH)) if place and (key := _location_key(place)))


def is_below(roots: Sequence[str], file: str) -> bool:
    """Return whether a file lies below one of these keys, however its location is written."""
    key = _location_key(file)
    return key is not None and any(key.startswith(root) and key != root for root in roots)


def outside_error(snapshot_id: int | None, what: str) -> IllegalArgumentError:
    """Build the error about a manifest or manifest list that lies elsewhere."""
    return IllegalArgumentError(
        f"snapshot {snapshot_id}: its {what} lies neither below the table's location nor below its {METADATA_PATH}, "
        "and this server takes manifests from nowhere else"
    )


def _location_key(place: str) -> str | None:
    try:
        return location_key(place, "iceberg")
    except (InvalidInputError, ValueError, OSError):
        return None
