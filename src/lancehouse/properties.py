"""Table properties with a meaning, such as `table_type` and `managed_by`, and the test for Lance tables.

`lance_namespace` is imported only where one of its errors is raised: commands read these keys to print their help, and
that import is slow.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

TABLE_TYPE = "table_type"
LANCE = "lance"
MANAGED_BY = "managed_by"
STORAGE = "storage"
IMPL = "impl"
GC_ENABLED = "gc.enabled"
PROTECTED = "protected"
"""Property of a table or namespace: with `true` our server refuses to drop, purge or overwrite it."""
FEW_METADATA_FILES: Mapping[str, str] = MappingProxyType(
    {"write.metadata.delete-after-commit.enabled": "true", "write.metadata.previous-versions-max": "10"}
)
"""Properties that ask a server which writes a metadata file at each commit to delete old ones."""
PUBLISHED = "lancehouse.published"
"""Setting in the response of LoadTable: the version whose manifest is known to be at its final path."""
PUBLISHED_HEADER = "X-Lancehouse-Published"
"""Header field by which a client reports that version: the table's uuid, the version, and its staged path."""
RESTRICTED = "lancehouse.restricted"
"""Setting in the response of LoadTable: the table has data, of which the caller sees a part, through the server."""
STAGED = "lance.manifest.staged"
"""Key of a snapshot's summary: path of the staged manifest below the table's location."""
TOTAL_ROWS, TOTAL_FILES, TOTAL_BYTES = "total-records", "total-data-files", "total-files-size"
"""Keys of a snapshot's summary, as Iceberg has them."""
COPY_OF = "lancehouse.copy-of"
"""Property of a table that `lancehouse copy --data` made: location of the original."""
FENCED = "lancehouse.fenced"
"""Setting in the response of `/v1/config`: why the warehouse refuses all changes."""
UNGUARDED = "lancehouse.unguarded"
"""Setting in the response of `/v1/config`: why a server on another copy of the database would not be noticed."""
DOC = "doc"
STORAGE_PREFIX = "storage."


def is_lance(properties: Mapping[str, str] | None) -> bool:
    """Return whether an entry with these properties is a Lance table."""
    return (properties or {}).get(TABLE_TYPE, "").lower() == LANCE


def managed_by(properties: Mapping[str, str] | None) -> str:
    """Return who decides which version of a Lance table is current: `storage` (the default), or `impl`, the catalog.

    Raises:
        InvalidInputError: the property has another value.
    """
    manager = (properties or {}).get(MANAGED_BY, STORAGE)
    if manager.lower() not in (STORAGE, IMPL):
        from lance_namespace.errors import InvalidInputError

        raise InvalidInputError(f"{MANAGED_BY} is {manager!r}, expected {STORAGE!r} or {IMPL!r}")
    return manager.lower()


def require_lance(about: object, properties: Mapping[str, str] | None) -> None:
    """Raise unless these are the properties of a Lance table.

    Raises:
        InvalidInputError: `table_type` is missing or is not `lance`.
    """
    if not is_lance(properties):
        from lance_namespace.errors import InvalidInputError

        kind = (properties or {}).get(TABLE_TYPE)
        reason = f"{TABLE_TYPE} is {kind!r}" if kind else f"it has no {TABLE_TYPE} property"
        raise InvalidInputError(f"{about} is not a Lance table: {reason}, expected {LANCE!r}")


def storage_options(properties: Mapping[str, str] | None) -> dict[str, str]:
    """Return the `storage.*` properties, without their prefix."""
    return {
        key.removeprefix(STORAGE_PREFIX): value
        for key, value in (properties or {}).items()
        if key.startswith(STORAGE_PREFIX) and key != STORAGE_PREFIX
    }
