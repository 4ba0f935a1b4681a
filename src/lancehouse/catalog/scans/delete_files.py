"""Find the delete files that apply to each data file of an Iceberg table."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping

from pyiceberg.manifest import DataFile, DataFileContent, ManifestEntry
from pyiceberg.partitioning import PartitionSpec

from lancehouse.catalog.scans.content_files import content_offset, referenced_file

PATH_ID = 2147483546
"""Field id of the path column in position delete files."""

SequencedFile = tuple[int, DataFile]
"""A delete file with its sequence number."""
Partition = tuple[object, ...]
"""Spec id and partition values."""


class DeleteFiles:
    """The delete files of a snapshot, indexed by what they apply to."""

    def __init__(self, entries: Iterable[ManifestEntry], specs: Mapping[int, PartitionSpec]) -> None:
        self._vectors: dict[str, list[SequencedFile]] = defaultdict(list)
        self._by_path: dict[str, list[SequencedFile]] = defaultdict(list)
        self._positions: dict[Partition, list[SequencedFile]] = defaultdict(list)
        self._equality: dict[Partition, list[SequencedFile]] = defaultdict(list)
        self._everywhere: list[SequencedFile] = []
        for entry in entries:
            self._add(entry.sequence_number or 0, entry.data_file, specs)

    def _add(self, sequence: int, file: DataFile, specs: Mapping[int, PartitionSpec]) -> None:
        numbered = sequence, file
        if file.content == DataFileContent.EQUALITY_DELETES:
            if specs[file.spec_id].is_unpartitioned():
                self._everywhere.append(numbered)
            else:
                self._equality[_partition(file)].append(numbered)
        elif content_offset(file) is not None:
            self._vectors[referenced_file(file) or ""].append(numbered)
        elif (path := referenced_file(file) or _single_path(file)) is not None:
            self._by_path[path].append(numbered)
        else:
            self._positions[_partition(file)].append(numbered)

    def list_for(self, entry: ManifestEntry) -> list[DataFile]:
        """Return the delete files that apply to a data file.

        Position deletes apply from the same commit or a later one, equality deletes only from a later one. A deletion
        vector holds all deleted positions of its data file, so position deletes are then ignored.
        """
        sequence, file = entry.sequence_number or 0, entry.data_file
        partition = _partition(file)
        deletes = [delete for number, delete in self._vectors.get(file.file_path, ()) if number >= sequence]
        if not deletes:
            by_position = (*self._by_path.get(file.file_path, ()), *self._positions.get(partition, ()))
            deletes = [
                delete for number, delete in by_position if number >= sequence and _can_name(delete, file.file_path)
            ]
        by_value = (*self._everywhere, *self._equality.get(partition, ()))
        return deletes + [delete for number, delete in by_value if number > sequence]


def _partition(file: DataFile) -> Partition:
    return file.spec_id, *file.partition._data


def _single_path(file: DataFile) -> str | None:
    lower, upper = _path_bounds(file)
    return lower.decode() if lower is not None and lower == upper else None


def _can_name(delete: DataFile, path: str) -> bool:
    lower, upper = _path_bounds(delete)
    # Bounds may be truncated: an upper one was then increased, a lower one is a prefix. Both still enclose the path.
    return lower is None or upper is None or lower <= path.encode() <= upper


def _path_bounds(file: DataFile) -> tuple[bytes | None, bytes | None]:
    return (file.lower_bounds or {}).get(PATH_ID), (file.upper_bounds or {}).get(PATH_ID)
