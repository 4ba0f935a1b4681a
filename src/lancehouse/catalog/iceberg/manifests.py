"""Read an Iceberg table's manifests: only from the table's own folders, and within limits.

Clients write metadata and manifests, so neither may make the server open other files, take all of its memory, or tell
what its memory holds.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from lance_namespace.errors import InvalidInputError
from pyiceberg.manifest import (
    MANIFEST_ENTRY_SCHEMAS,
    MANIFEST_LIST_FILE_SCHEMAS,
    DataFile,
    DataFileContent,
    FileFormat,
    ManifestContent,
    ManifestEntry,
    ManifestEntryStatus,
    ManifestFile,
    PartitionFieldSummary,
    _inherit_from_manifest,
)

from lancehouse.catalog.errors import IllegalArgumentError, MetadataNotFoundError
from lancehouse.catalog.iceberg import avro
from lancehouse.catalog.iceberg.avro import AvroLimitError, Budget, RecordShape
from lancehouse.locations import key as location_key

logger = logging.getLogger(__name__)

METADATA_PATH = "write.metadata.path"
"""Property with the folder of a table's metadata files, if it is not below the table's location."""

ReadFile = Callable[[str], bytes]
"""Returns the content of a file, as `WarehouseFiles.read` does."""

MAX_BYTES = 256 << 20
"""Most bytes of manifests that one reader decodes, after decompression."""
MAX_VALUES = 6_000_000
"""Most values that one reader decodes of what its caller keeps; they take up to 60 bytes each."""
MAX_ENTRY_VALUES = 1_000_000
"""Most values of one entry."""

STATISTICS = frozenset({108, 109, 110, 137, 125, 128})
"""Field ids of an entry's statistics: sizes, counts of values, nulls and NaN, lower and upper bounds."""
BOUNDS = frozenset({125, 128})

_VERSION = 3
"""Format version whose schema is used to read manifests of all versions."""
_LIST = RecordShape(
    MANIFEST_LIST_FILE_SCHEMAS[_VERSION],
    {-1: ManifestFile, 508: PartitionFieldSummary},
    {517: ManifestContent},
    nullable=(504, 505, 506, 512, 513, 514),  # counts, which are optional in version 1
)
_ENTRIES = RecordShape(
    MANIFEST_ENTRY_SCHEMAS[_VERSION],
    {-1: ManifestEntry, 2: DataFile},
    {0: ManifestEntryStatus, 101: FileFormat, 134: DataFileContent},
)


class ManifestReader:
    """Reads manifest lists and manifests, within limits on what they become in memory."""

    def __init__(self, read_file: ReadFile) -> None:
        self._read_file = read_file
        self._kept = Budget(MAX_VALUES)
        self._block_bytes = Budget(MAX_BYTES, "bytes")

    def read_list(self, path: str) -> Iterator[ManifestFile]:
        """Yield the manifests that a manifest list names.

        Raises:
            MetadataNotFoundError: the file is missing or broken.
            InvalidInputError: it exceeds a limit, or its name is not valid.
            ServiceUnavailableError: the storage cannot be read now.
        """
        return self._read(path, _LIST, self._kept, renew=False)

    def read_entries(
        self, manifest: ManifestFile, *, skip: frozenset[int] = frozenset(), keep: bool = False
    ) -> Iterator[ManifestEntry]:
        """Yield the entries of a manifest, also those of deleted files.

        Args:
            manifest: the manifest.
            skip: ids of optional fields that the caller does not need.
            keep: whether the caller keeps the entries: then all that this reader decodes count together.

        Raises:
            LanceNamespaceError: as `read_list`.
        """
        values = self._kept if keep else Budget(MAX_ENTRY_VALUES)
        for entry in self._read(manifest.manifest_path, replace(_ENTRIES, skipped=skip), values, renew=not keep):
            yield _inherit_from_manifest(entry, manifest)

    def read_paths(self, path: str) -> Iterator[str]:
        """Yield the paths of the files in a manifest, except deleted ones.

        Raises:
            LanceNamespaceError: as `read_list`.
        """
        for entry in self._read(path, replace(_ENTRIES, skipped=STATISTICS), Budget(MAX_ENTRY_VALUES), renew=True):
            if entry.status != ManifestEntryStatus.DELETED:
                yield entry.data_file.file_path

    def _read(self, path: str, shape: RecordShape, values: Budget, *, renew: bool) -> Iterator[Any]:
        data = self._read_file(path)
        try:
            yield from avro.read_records(data, shape, values, self._block_bytes, renew=renew)
        except AvroLimitError as error:
            raise IllegalArgumentError(f"{path} is larger than this server reads: {error}") from error
        except avro.INVALID as error:
            logger.warning("manifest %s cannot be read: %s", path, error)
            raise MetadataNotFoundError(f"Failed to open input stream for file: {path}") from error


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
