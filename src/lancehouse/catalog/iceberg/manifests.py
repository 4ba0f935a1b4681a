"""Where an Iceberg table's manifests lie: what a client writes into metadata must not make the server open others."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Mapping, Sequence

from lance_namespace.errors import InvalidInputError
from pyiceberg.exceptions import ResolveError

from lancehouse.catalog import locations
from lancehouse.catalog.errors import IllegalArgumentError

METADATA_PATH = "write.metadata.path"

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
"""What reading a manifest that is gone or broken may raise."""


def manifest_roots(location: str, properties: Mapping[str, str]) -> tuple[str, ...]:
    """The folders of a table's manifests, as keys."""
    return tuple(key for place in (location, properties.get(METADATA_PATH)) if place and (key := _location_key(place)))


def is_below(roots: Sequence[str], file: str) -> bool:
    """Whether a file lies below one of these keys, however its address is written."""
    key = _location_key(file)
    return key is not None and any(key.startswith(root) and key != root for root in roots)


def outside_error(snapshot_id: int | None, what: str) -> IllegalArgumentError:
    """The error about a manifest, or a list of them, that lies elsewhere."""
    return IllegalArgumentError(
        f"snapshot {snapshot_id}: its {what} lies neither below the table's location nor below its {METADATA_PATH}, "
        "and this server takes manifests from nowhere else"
    )


def _location_key(place: str) -> str | None:
    try:
        return locations.key(place, "iceberg")
    except (InvalidInputError, ValueError, OSError):
        return None
