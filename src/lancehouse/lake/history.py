"""Read the history of a dataset: its versions, tags and branches, as Iceberg metadata needs them.

A version never changes, so each manifest is read only once: pass the previous history when reading the next one.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from typing import Any

import lance
from lance_namespace.errors import (
    ConcurrentModificationError,
    InternalError,
    InvalidTableStateError,
    TableNotFoundError,
    TableVersionNotFoundError,
)

from lancehouse import tracing
from lancehouse.lake.confinement import require_no_link
from lancehouse.lake.dataset import MAIN, TableRef, read_tags, snapshot_id, to_millis
from lancehouse.lake.errors import translate_errors
from lancehouse.lake.versions import (
    find_manifest,
    find_recorded_transaction,
    list_manifests,
    operation_name,
)
from lancehouse.locations import local_folder
from lancehouse.schema.iceberg import Json, last_column_id, to_iceberg
from lancehouse.schema.walk import field_ids

SCHEMA_ID = 1
"""Id of the one schema that a Lance table has in Iceberg's metadata."""

FEW = 8
"""Number of manifests up to which they are read one after the other, without threads."""

READERS = 16
ATTEMPTS = 5

ICEBERG_OPERATION_NAMES: Mapping[str | None, str] = {
    "Append": "append",
    "Delete": "delete",
    **dict.fromkeys(("Overwrite", "Update", "Merge", "Restore", "DataReplacement"), "overwrite"),
    None: "overwrite",
}
"""Iceberg's name for Lance's operations; those not listed change no rows, which Iceberg calls `replace`."""


@dataclass(frozen=True, slots=True)
class Version:
    """A version of a branch (None for the main one) and the path of its manifest below the dataset's location."""

    branch: str | None
    version: int
    manifest: str
    timestamp_ms: int
    operation: str | None
    """Lance's name of the operation that created it; None if Lance has no record of it any more."""
    rows: int
    files: int
    bytes: int
    is_told: bool = False
    """Whether all this came from a catalog, so that the manifest was not read."""

    @property
    def snapshot_id(self) -> int:
        """Id that is unique among the versions of all branches."""
        return snapshot_id(self.branch, self.version)


@dataclass(frozen=True, slots=True)
class Branch:
    """Origin of a branch. The identifier tells apart two branches that had the same name one after the other."""

    identifier: str
    parent: int
    """Snapshot id of the version that the branch was created from."""


@dataclass(frozen=True, slots=True)
class History:
    """Versions, tags and branches of a dataset. `versions` holds the main branch, then each other one, oldest first."""

    version: int
    """Version of the main branch that was opened; `schema` is its schema."""
    schema: Json
    last_column_id: int
    versions: Sequence[Version]
    tags: Mapping[str, int]
    """Snapshot ids by name."""
    branches: Mapping[str, Branch]

    @property
    def on_main(self) -> Sequence[Version]:
        """Versions of the main branch."""
        return self.versions[: self._main_count]

    @property
    def on_branches(self) -> Sequence[Version]:
        """Versions of the other branches."""
        return self.versions[self._main_count :]

    def versions_on(self, branch: str | None) -> dict[int, Version]:
        """Return the versions of a branch by number."""
        among = self.on_branches if branch else self.on_main
        return {version.version: version for version in among if version.branch == branch}

    def find_on_main(self, version: int) -> Version | None:
        """Return a version of the main branch, by binary search; None if there is none."""
        at = bisect_left(self.versions, version, hi=self._main_count, key=lambda item: item.version)
        return self.versions[at] if at < self._main_count and self.versions[at].version == version else None

    def version_before(self, version: int) -> int:
        """Return the number of the preceding version on the main branch; 0 if there is none."""
        at = bisect_left(self.versions, version, hi=self._main_count, key=lambda item: item.version)
        return self.versions[at - 1].version if at else 0

    @property
    def _main_count(self) -> int:
        return bisect_left(self.versions, True, key=lambda item: item.branch is not None)


@tracing.trace_calls("store read")
def read_history(
    table: TableRef,
    *,
    known: History | None = None,
    at: int | None = None,
    told: Mapping[int, Version] | None = None,
    listed: Mapping[int, str] | None = None,
) -> History | None:
    """Read the history of a dataset.

    Args:
        table: address of the dataset.
        known: an earlier history, whose manifests are not read again. It may belong to another dataset: that one was
            deleted and created anew is detected.
        at: version that counts as the latest. Later ones are ignored; if its manifest is missing, the one before it is
            opened.
        told: versions of the main branch as a catalog knows them, whose manifests are not read.
        listed: what `list_manifests` has just returned, if the caller has called it.

    Returns:
        The history; None if there is no dataset.

    Raises:
        LanceNamespaceError: the dataset is broken, or the storage cannot be reached.
    """
    for _ in range(ATTEMPTS):
        manifests = list_manifests(table) if listed is None else listed
        listed = None
        files = {version: file for version, file in manifests.items() if at is None or version <= at}
        if not files:
            return None
        # Clean-up may delete the listed version before it is opened: list again.
        with suppress(TableVersionNotFoundError):
            return _read_listed(table, files, known, told or {})
    raise ConcurrentModificationError(f"{table}: versions are deleted faster than they can be read")


@tracing.trace_calls("store read")
def extend_history(table: TableRef, known: History, at: int) -> History | None:
    """Add the few versions of the main branch up to `at` to a known history, without listing versions.

    The cost does not depend on the number of versions; in return, a version in the middle may have been deleted. Tags
    and branches are read again.

    Returns:
        None if only `read_history` can tell: too many new versions, another dataset, clean-up since then, or a dataset
        that is not on this machine's disk.

    Raises:
        LanceNamespaceError: as `read_history`.
    """
    newest = known.find_on_main(known.version)
    if newest is None or not 0 <= at - known.version <= FEW or not _is_in_place(table, newest):
        return None
    later = {version: find_manifest(table, version) for version in range(known.version + 1, at + 1)}
    files = {version: file for version, file in later.items() if file is not None}
    with suppress(TableNotFoundError, TableVersionNotFoundError), _translate_unreadable():
        history = _HistoryReader(table, max(files, default=known.version), known).extend(newest, files)
        return None if history is None or _is_cleaned_up(table, history) else history
    return None


def is_consistent(table: TableRef, history: History, versions: Collection[int]) -> bool:
    """Return whether storage and a history agree on which of some versions of the main branch exist.

    The version before each is checked too, because its snapshot refers to it as the parent.
    """
    numbers = {number for version in versions for number in (version, version - 1, history.version_before(version))}
    return all(
        find_manifest(table, number) == (listed.manifest if (listed := history.find_on_main(number)) else None)
        for number in numbers
    )


def find_latest_version(table: TableRef) -> int | None:
    """Return the latest version of a dataset, None if there is none; costs one listing."""
    return max(list_manifests(table), default=None)


def read_schema(table: TableRef) -> Json:
    """Read the Iceberg schema of a dataset, with field ids that are stable when columns are added or dropped.

    Raises:
        TableNotFoundError, TableVersionNotFoundError: there is no such dataset, or it has no such version.
        InvalidTableStateError: it cannot be read.
    """
    if table.version is not None:
        _require_plain(table, find_manifest(table, table.version))
    with _translate_unreadable(), table.dataset() as dataset:
        return to_iceberg_schema(dataset)


def to_iceberg_schema(dataset: lance.LanceDataset) -> Json:
    """Return the Iceberg schema of an open dataset."""
    return to_iceberg(dataset.schema, field_ids(dataset.lance_schema.fields()), schema_id=SCHEMA_ID)


def _read_listed(
    table: TableRef, files: Mapping[int, str], known: History | None, told: Mapping[int, Version]
) -> History:
    with _translate_unreadable():
        return _HistoryReader(table, max(files), known, told).read_listed(files)


@contextmanager
def _translate_unreadable() -> Iterator[None]:
    """Raise InvalidTableStateError for an error of pylance that has no translation: the dataset is broken."""
    try:
        yield
    except InternalError as error:
        raise InvalidTableStateError(f"the dataset cannot be read: {error}") from error.__cause__


def _is_cleaned_up(table: TableRef, history: History) -> bool:
    """Return whether old versions were deleted.

    Lance starts with the oldest one that no tag or branch needs, so it is enough to look for that one.
    """
    needed = {*history.tags.values(), *(branch.parent for branch in history.branches.values())}
    oldest = next((version for version in history.versions if version.snapshot_id not in needed), None)
    return oldest is not None and oldest.branch is None and not _is_in_place(table, oldest)


def _is_in_place(table: TableRef, version: Version) -> bool:
    return find_manifest(table, version.version) == version.manifest


class _HistoryReader:
    def __init__(
        self, table: TableRef, version: int, known: History | None, told: Mapping[int, Version] | None = None
    ) -> None:
        self.table = table
        self.told = told or {}
        _require_plain(table, find_manifest(table, version))
        self.dataset = replace(table, version=version).open()
        self.known = known

    def read_listed(self, files: Mapping[int, str]) -> History:
        with translate_errors(self.table, self.table.storage_options):
            self._forget_other_dataset(files)
            return self._assemble(self._list_versions(None, files))

    def extend(self, newest: Version, files: Mapping[int, str]) -> History | None:
        """Return the known history plus these manifests; None if it belongs to another dataset."""
        with translate_errors(self.table, self.table.storage_options):
            if self.known is None or not self._is_unchanged(newest):
                return None
            later = sorted(self._read_all(None, files), key=lambda version: version.version)
            return self._assemble((*self.known.on_main, *later))

    def _assemble(self, on_main: Iterable[Version]) -> History:
        """Build the history from the versions of the main branch, reading tags and the other branches."""
        tags, branches = read_tags(self.dataset), self.dataset.branches.list()
        branch_refs = {name: _parse_branch(branches[name]) for name in sorted(branches)}
        versions = [*on_main]
        for name in branch_refs:
            of_branch = list_manifests(replace(self.table, branch=name))
            versions += self._list_versions(name, of_branch, is_known=self._is_known(name, branch_refs[name]))
        schema_now = to_iceberg_schema(self.dataset)
        return History(
            version=self.dataset.version,
            schema=schema_now,
            last_column_id=max(last_column_id(schema_now), self.dataset.max_field_id + 1),
            versions=tuple(versions),
            tags={name: snapshot_id(tag["branch"], tag["version"]) for name, tag in sorted(tags.items())},
            branches=branch_refs,
        )

    def _forget_other_dataset(self, files: Mapping[int, str]) -> None:
        """Drop the known history if it belongs to another dataset, which was here before.

        That shows in the newest version that both have: a manifest of another name, or with other content.
        """
        known = self.known.versions_on(None) if self.known else {}
        # What came from a catalog may differ from the manifest, such as the time of the commit.
        if shared := {version for version in known.keys() & files.keys() if not known[version].is_told}:
            newest = known[max(shared)]
            if files[newest.version] != newest.manifest or not self._is_unchanged(newest):
                self.known = None

    def _is_unchanged(self, version: Version) -> bool:
        """Return whether a version of the main branch is still the same."""
        return self._read_version(None, version.version, version.manifest, version.operation) == version

    def _is_known(self, name: str, branch: Branch) -> bool:
        return self.known is not None and self.known.branches.get(name) == branch

    def _list_versions(
        self, branch: str | None, files: Mapping[int, str], *, is_known: bool = True
    ) -> Iterator[Version]:
        known = self.known.versions_on(branch) if self.known and is_known else {}
        if branch is None:
            known = {**self.told, **known}
        by_number = {
            version: known[version]
            for version, file in files.items()
            if version in known and known[version].manifest == file
        }
        missing = [version for version in files if version not in by_number]
        for version in self._read_all(branch, {version: files[version] for version in missing}):
            by_number[version.version] = version
        return (by_number[version] for version in sorted(by_number))

    def _read_all(self, branch: str | None, files: Mapping[int, str]) -> list[Version]:
        def read_one(version: int) -> Version | None:
            # A version that was deleted in the meantime is left out.
            with suppress(TableVersionNotFoundError), translate_errors(self.table, self.table.storage_options):
                return self._read_version(branch, version, files[version])
            return None

        if len(files) <= FEW:
            return [version for version in map(read_one, files) if version]
        # `_checkout` returns the open dataset itself for its own version, which two threads must not use at once.
        newest, *others = sorted(files, reverse=True)
        read = [read_one(newest)]
        with ThreadPoolExecutor(READERS) as readers:
            read += readers.map(read_one, others)
        return [version for version in read if version]

    def _read_version(self, branch: str | None, version: int, file: str, made_by: str | None = None) -> Version:
        """Read a manifest; its operation is read from the transaction unless `made_by` gives it."""
        _require_plain(self.table, file)
        dataset = self.dataset.checkout_version((branch or MAIN, version)) if branch else self._checkout(version)
        info = dataset.get_version()
        totals = info["metadata"]
        return Version(
            branch=branch,
            version=version,
            manifest=file,
            timestamp_ms=to_millis(info["timestamp"]),
            operation=made_by or _find_operation(dataset),
            rows=int(totals.get("total_rows", 0)),
            files=int(totals.get("total_data_files", 0)),
            bytes=int(totals.get("total_files_size", 0)),
        )

    def _checkout(self, version: int) -> lance.LanceDataset:
        return self.dataset if version == self.dataset.version else self.dataset.checkout_version((MAIN, version))


def _require_plain(table: TableRef, manifest: str | None) -> None:
    """Refuse a manifest that is reached through a symbolic link, if the table is confined."""
    folder = local_folder(str(table.location))
    if table.confinement is not None and folder is not None and manifest is not None:
        require_no_link(folder, manifest)


def _parse_branch(info: Mapping[str, Any]) -> Branch:
    identifier = "/".join(f"{version}-{uuid}" for version, uuid in info["branch_identifier"])
    return Branch(identifier, snapshot_id(info["parent_branch"], info["parent_version"]))


def _find_operation(dataset: lance.LanceDataset) -> str | None:
    if (transaction := find_recorded_transaction(dataset)) is None:
        return None
    return operation_name(transaction)
