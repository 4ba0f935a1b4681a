"""Find conflicts of a commit that Lance missed, because a clean-up had removed the versions in conflict.

Lance compares a commit with the versions that others have made since the one it was made from, and silently skips those
that are gone. Rows that others deleted would come back with a compaction, and a delete of rows that a compaction has
moved would do nothing. Only a writer that takes longer than clean-ups keep versions can meet this.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from lancehouse.lake.manifests import (
    FRAGMENT,
    OPERATIONS,
    Manifest,
    ManifestStore,
    parse_fields,
    parse_varints,
    previous_manifest,
)

_CHECKED = ("Delete", "Update", "Rewrite", "Merge", "Project", "DataReplacement")
"""Operations that undo what others did if they are committed without regard to it. The rest adds to a table or
replaces all of it."""

_ID, _FILE, _DELETIONS = 1, 2, 3
"""Field numbers of Lance's protobuf message `DataFragment`."""
_MADE_FROM = 2
"""Field number of the version that a `DeletionFile` was made from."""
_GROUP, _OLD = 3, 1
"""Field numbers of the groups of a `Rewrite`, and of the fragments that each replaces."""
_REBASED = MappingProxyType({"Delete": (1, 2), "Update": (2, 1)})
"""Operations that Lance commits over others' changes of the same fragments, with the field numbers of the fragments
that they change and of the ids of those that they remove."""


@dataclass(frozen=True, slots=True)
class _Fragment:
    """A fragment in a manifest or a transaction."""

    id: int
    files: tuple[bytes, ...]
    deletions: bytes
    """Lance's message `DeletionFile`; empty if no row is deleted."""

    @classmethod
    def parse(cls, message: bytes) -> _Fragment:
        fields = list(parse_fields(message))
        texts = [(number, value) for number, value in fields if isinstance(value, bytes)]
        return cls(
            id=next((value for number, value in fields if number == _ID and isinstance(value, int)), 0),
            files=tuple(value for number, value in texts if number == _FILE),
            deletions=next((value for number, value in texts if number == _DELETIONS), b""),
        )

    @property
    def deletions_made_from(self) -> int:
        """The version that its deletions were made from. Lance writes them anew when it merges them with others'."""
        return next((int(value) for number, value in parse_fields(self.deletions) if number == _MADE_FROM), 0)


def find_missed_conflict(files: ManifestStore, manifest: Manifest, final: str, own: Collection[int] = ()) -> str | None:
    """Return, for a message, why a staged version may conflict with versions that are gone; None if it does not.

    Versions that are there now were there when Lance looked. So the check needs no request if nobody else has committed
    meanwhile, except for a commit that only removes whole fragments: it reads the preceding manifest.

    Args:
        files: the table's manifests.
        manifest: of the staged version.
        final: where its manifest will be.
        own: other versions of the same branch that are committed with it.
    """
    if manifest.operation not in _CHECKED:
        return None

    def count_missing(base: int) -> int:
        others = [version for version in range(base + 1, manifest.version) if version not in own]
        return len(files.find_missing(final, others)) if others else 0

    changes = _Changes.parse(manifest)
    # Lance replaces the version that a delete or an update was made from when it commits them later. The files of
    # deletions still tell; for fragments that are removed as a whole, nothing does.
    is_known = manifest.operation not in _REBASED or any(each.deletions for each in changes.fragments)
    if is_known and not count_missing(changes.find_base(manifest.read_version, {})):
        return None
    if manifest.version - 1 in own:
        return None
    before = _read_fragments(files, previous_manifest(final))
    if moved := {*changes.removed, *(each.id for each in changes.fragments)} - before.keys():
        return f"{len(moved)} fragments that it changes are gone"
    if manifest.operation == "Rewrite":
        changed = sum(before[each.id] != each for each in changes.fragments)
        return f"{changed} fragments that it replaces were changed" if changed else None
    missing = count_missing(changes.find_base(manifest.read_version, before))
    return f"{missing} versions that others have made meanwhile are cleaned up already" if missing else None


@dataclass(frozen=True, slots=True)
class _Changes:
    """What a transaction does to fragments that were there before."""

    fragments: tuple[_Fragment, ...] = ()
    """As they are afterwards, or those that a compaction replaces."""
    removed: frozenset[int] = frozenset()
    """Ids of those that are removed as a whole."""

    @classmethod
    def parse(cls, manifest: Manifest) -> _Changes:
        body = next(bytes(value) for number, value in parse_fields(manifest.transaction) if number in OPERATIONS)
        if manifest.operation == "Rewrite":
            groups = (group for number, group in parse_fields(body) if number == _GROUP)
            return cls(tuple(each for group in groups for each in _parse_fragments(bytes(group), _OLD)))
        if manifest.operation is None or manifest.operation not in _REBASED:
            return cls()
        fragments, removed = _REBASED[manifest.operation]
        ids = (value for number, value in parse_fields(body) if number == removed)
        return cls(_parse_fragments(body, fragments), frozenset(each for value in ids for each in parse_varints(value)))

    def find_base(self, read_version: int, before: Mapping[int, _Fragment]) -> int:
        """Return the version that the changes were made from.

        Args:
            read_version: what the transaction says.
            before: fragments of the preceding version, as far as known; what is the same there is no change.
        """
        new = (each for each in self.fragments if each.deletions and before.get(each.id) != each)
        return min([read_version, *(each.deletions_made_from for each in new)])


def _read_fragments(files: ManifestStore, file: str) -> dict[int, _Fragment]:
    return {each.id: each for each in _parse_fragments(Manifest.parse(files.read(file)).message, FRAGMENT)}


def _parse_fragments(message: bytes, field: int) -> tuple[_Fragment, ...]:
    return tuple(_Fragment.parse(bytes(value)) for number, value in parse_fields(message) if number == field)
