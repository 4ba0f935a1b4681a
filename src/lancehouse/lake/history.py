"""The versions, tags and branches of a dataset, with what a catalog tells of them.

A version never changes once it is there, so each manifest is read once: whoever has a history passes it on when
reading the next one.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from typing import Any
from zlib import crc32

import lance
from lance_namespace.errors import (
    ConcurrentModificationError,
    InternalError,
    InvalidTableStateError,
    TableNotFoundError,
    TableVersionNotFoundError,
)

from lancehouse.lake.confinement import require_no_link
from lancehouse.lake.dataset import MAIN, TableRef, local_folder
from lancehouse.lake.errors import translate_errors
from lancehouse.lake.versions import find_manifest, find_transaction, list_manifests, operation_name, to_millis
from lancehouse.schema.iceberg import Json, last_column_id, to_iceberg
from lancehouse.schema.walk import field_ids

SCHEMA_ID = 1
"""Of the one schema that a Lance table has in Iceberg's metadata."""

OTHER = "Other"
"""What made a version, where pylance has no word for it: Lance's own book-keeping."""

FEW = 8
"""Up to so many manifests are read one after the other."""

READERS = 16
ATTEMPTS = 5

ICEBERG_OPERATION_NAMES: Mapping[str | None, str] = {
    "Append": "append",
    "Delete": "delete",
    **dict.fromkeys(("Overwrite", "Update", "Merge", "Restore", "DataReplacement"), "overwrite"),
    None: "overwrite",
}
"""Iceberg's word for Lance's operations; what is not here changes no row, which Iceberg calls `replace`."""

BRANCH_BITS = 31
VERSION_BITS = 32


@dataclass(frozen=True, slots=True)
class Version:
    """A version of a branch, None for the main one, and the manifest below the dataset's location that holds it."""

    branch: str | None
    version: int
    manifest: str
    timestamp_ms: int
    operation: str | None
    """Lance's word for what made it, None if Lance does not know any more."""
    rows: int
    files: int
    bytes: int

    @property
    def snapshot_id(self) -> int:
        """Its number among all versions of the table."""
        return snapshot_id(self.branch, self.version)


@dataclass(frozen=True, slots=True)
class Branch:
    """Where a branch came from. Of two branches of one name, one after the other, each has its own identifier."""

    identifier: str
    parent: int
    """The snapshot id of the version that it came from."""


@dataclass(frozen=True, slots=True)
class History:
    """What a dataset was and is. `versions` are those of the main branch, then of each other one, oldest first."""

    version: int
    """The version of the main branch that was opened; `read_schema` is its schema."""
    schema: Json
    last_column_id: int
    versions: Sequence[Version]
    tags: Mapping[str, int]
    """Snapshot ids."""
    branches: Mapping[str, Branch]

    @property
    def on_main(self) -> Sequence[Version]:
        """The versions of the main branch."""
        return self.versions[: self._main_count]

    @property
    def on_branches(self) -> Sequence[Version]:
        """The versions of the other branches."""
        return self.versions[self._main_count :]

    def versions_on(self, branch: str | None) -> dict[int, Version]:
        """The versions of a branch by number."""
        among = self.on_branches if branch else self.on_main
        return {each.version: each for each in among if each.branch == branch}

    def find_on_main(self, version: int) -> Version | None:
        """A version of the main branch; it is looked for, not walked to."""
        at = bisect_left(self.versions, version, hi=self._main_count, key=lambda each: each.version)
        return self.versions[at] if at < self._main_count and self.versions[at].version == version else None

    def version_before(self, version: int) -> int:
        """The version of the main branch that came before; 0 if none did."""
        at = bisect_left(self.versions, version, hi=self._main_count, key=lambda each: each.version)
        return self.versions[at - 1].version if at else 0

    @property
    def _main_count(self) -> int:
        return bisect_left(self.versions, True, key=lambda each: each.branch is not None)


def snapshot_id(branch: str | None, version: int) -> int:
    """The number of a version among those of all branches, each of which counts on its own.

    On the main branch it is the version's own number.
    """
    return version if branch in (None, MAIN) else _branch_number(str(branch)) << VERSION_BITS | version


def version_of_snapshot(branch: str | None, snapshot_id: int) -> int | None:
    """The version of a branch that a snapshot id stands for; None if it is one of another branch."""
    number, version = divmod(snapshot_id, 1 << VERSION_BITS)
    expected = 0 if branch in (None, MAIN) else _branch_number(str(branch))
    return version if number == expected else None


def from_snapshot_id(snapshot_id: int, branches: Iterable[str]) -> tuple[str | None, int]:
    """The branch, None for the main one, and the version that a snapshot id stands for."""
    number, version = divmod(snapshot_id, 1 << VERSION_BITS)
    name = next((branch for branch in branches if number and _branch_number(branch) == number), None)
    return (None, snapshot_id) if name is None else (name, version)


def read_history(table: TableRef, *, known: History | None = None, at: int | None = None) -> History | None:
    """The history of a dataset.

    Args:
        table: its address.
        known: what was read before; only manifests that are not in it are read. It need not be of the same dataset:
            one that was deleted and made again is found out.
        at: the version that counts as the latest. Later ones do not count; if its manifest is not there, the one
            before it is opened.

    Returns:
        None where there is no dataset.

    Raises:
        LanceNamespaceError: the dataset is broken, or the storage cannot be reached.
    """
    for _ in range(ATTEMPTS):
        files = {version: file for version, file in list_manifests(table).items() if at is None or version <= at}
        if not files:
            return None
        with suppress(TableVersionNotFoundError):
            return _read_listed(table, files, known)
    raise ConcurrentModificationError(f"{table}: versions are deleted faster than they can be read")


def extend_history(table: TableRef, known: History, at: int) -> History | None:
    """A history that is known, and the few versions of the main branch that came after it, up to `at`.

    It costs the same however many versions there are: they are not listed, so that one in the middle may be gone. Tags
    and branches are read anew.

    Returns:
        None where only `read_history` can tell: if there is too much that is new, if the dataset is another one or was
        cleaned up, or if it is not on this machine.

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
    """Whether storage has those of these versions of the main branch that a history has, and no other of them.

    The same is asked of the version before each, which its snapshot names.
    """
    numbers = {number for each in versions for number in (each, each - 1, history.version_before(each))}
    return all(
        find_manifest(table, each) == (known.manifest if (known := history.find_on_main(each)) else None)
        for each in numbers
    )


def find_latest_version(table: TableRef) -> int | None:
    """The latest version of a dataset, None where there is none; costs one listing."""
    return max(list_manifests(table), default=None)


def read_schema(table: TableRef) -> Json:
    """The Iceberg schema of a dataset, with ids that stay when columns come and go.

    Raises:
        TableNotFoundError, TableVersionNotFoundError: there is no such dataset, or it has no such version.
        InvalidTableStateError: it cannot be read.
    """
    if table.version is not None:
        _require_plain(table, find_manifest(table, table.version))
    with _translate_unreadable(), table.dataset() as dataset:
        return to_iceberg_schema(dataset)


def to_iceberg_schema(dataset: lance.LanceDataset) -> Json:
    """The Iceberg schema of a dataset that is open."""
    return to_iceberg(dataset.schema, field_ids(dataset.lance_schema.fields()), schema_id=SCHEMA_ID)


def _read_listed(table: TableRef, files: Mapping[int, str], known: History | None) -> History:
    with _translate_unreadable():
        return _HistoryReader(table, max(files), known).read_listed(files)


@contextmanager
def _translate_unreadable() -> Iterator[None]:
    try:
        yield
    except InternalError as error:
        raise InvalidTableStateError(f"the dataset cannot be read: {error}") from error.__cause__


def _is_cleaned_up(table: TableRef, history: History) -> bool:
    """Whether old versions were deleted: Lance begins with the oldest that no tag and no branch needs."""
    needed = {*history.tags.values(), *(branch.parent for branch in history.branches.values())}
    oldest = next((each for each in history.versions if each.snapshot_id not in needed), None)
    return oldest is not None and oldest.branch is None and not _is_in_place(table, oldest)


def _is_in_place(table: TableRef, version: Version) -> bool:
    return find_manifest(table, version.version) == version.manifest


class _HistoryReader:
    def __init__(self, table: TableRef, version: int, known: History | None) -> None:
        self.table = table
        _require_plain(table, find_manifest(table, version))
        self.dataset = replace(table, version=version).open()
        self.known = known

    def read_listed(self, files: Mapping[int, str]) -> History:
        with translate_errors(self.table, self.table.storage_options):
            self._forget_other_dataset(files)
            return self._assemble(self._list_versions(None, files))

    def extend(self, newest: Version, files: Mapping[int, str]) -> History | None:
        """What is known, up to its newest version, and these manifests; None if it is of another dataset."""
        with translate_errors(self.table, self.table.storage_options):
            if self.known is None or not self._is_unchanged(newest):
                return None
            later = sorted(self._read_all(None, files), key=lambda each: each.version)
            return self._assemble((*self.known.on_main, *later))

    def _assemble(self, on_main: Iterable[Version]) -> History:
        """All of it, told these versions of the main branch."""
        tags, branches = self.dataset.tags.list(), self.dataset.branches.list()
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
        """Forget what is known if it is of another dataset, which was here before: the newest version tells."""
        known = self.known.versions_on(None) if self.known else {}
        if shared := known.keys() & files.keys():
            newest = known[max(shared)]
            if files[newest.version] != newest.manifest or not self._is_unchanged(newest):
                self.known = None

    def _is_unchanged(self, version: Version) -> bool:
        """Whether a version of the main branch is what it was."""
        return self._read_version(None, version.version, version.manifest, version.operation) == version

    def _is_known(self, name: str, branch: Branch) -> bool:
        return self.known is not None and self.known.branches.get(name) == branch

    def _list_versions(
        self, branch: str | None, files: Mapping[int, str], *, is_known: bool = True
    ) -> Iterator[Version]:
        known = self.known.versions_on(branch) if self.known and is_known else {}
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
            # One that was deleted meanwhile is simply gone.
            with suppress(TableVersionNotFoundError), translate_errors(self.table, self.table.storage_options):
                return self._read_version(branch, version, files[version])
            return None

        if len(files) <= FEW:
            return [version for version in map(read_one, files) if version]
        # The open dataset itself, at its own version, cannot be used by two threads.
        newest, *others = sorted(files, reverse=True)
        read = [read_one(newest)]
        with ThreadPoolExecutor(READERS) as readers:
            read += readers.map(read_one, others)
        return [version for version in read if version]

    def _read_version(self, branch: str | None, version: int, file: str, made_by: str | None = None) -> Version:
        """Read a manifest; and what made it, unless that is known."""
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
    """Refuse a manifest that links lead to, where a table is confined."""
    folder = local_folder(str(table.location))
    if table.confinement is not None and folder is not None and manifest is not None:
        require_no_link(folder, manifest)


def _parse_branch(info: Mapping[str, Any]) -> Branch:
    identifier = "/".join(f"{version}-{uuid}" for version, uuid in info["branch_identifier"])
    return Branch(identifier, snapshot_id(info["parent_branch"], info["parent_version"]))


def _find_operation(dataset: lance.LanceDataset) -> str | None:
    try:
        transaction = find_transaction(dataset, dataset.version)
    except (OSError, ValueError) as error:
        if "not found" not in str(error).lower():
            raise
        return None
    if transaction is None:
        return None
    word = operation_name(transaction)
    return OTHER if word == lance.LanceOperation.BaseOperation.__name__ else word


def _branch_number(branch: str) -> int:
    return crc32(branch.encode()) & (1 << BRANCH_BITS) - 1 or 1
