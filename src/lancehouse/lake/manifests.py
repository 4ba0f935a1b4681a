"""Parse Lance manifests, find conflicts that Lance missed, and publish staged manifests: move them to their final path.

Lance stages a manifest next to its final path, under a temporary name. Any process that knows that the catalog accepted
it may publish it, once or many times: the writer itself, the next reader, or both at the same time.
"""

from __future__ import annotations

import logging
import os
import re
import struct
import tempfile
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import lru_cache
from hashlib import blake2b
from pathlib import Path, PurePosixPath
from threading import Thread
from types import MappingProxyType
from uuid import UUID

import lance
from lance.file import LanceFileSession
from lance_namespace.errors import InvalidInputError, InvalidTableStateError, LanceNamespaceError

from lancehouse.lake.dataset import (
    LAST_VERSION,
    StorageOptions,
    delete_file,
    manifest_folder,
    open_files,
    parse_version,
    require_below,
)
from lancehouse.lake.errors import translate_errors
from lancehouse.lake.history import to_iceberg_schema
from lancehouse.locations import local_folder
from lancehouse.properties import TOTAL_BYTES, TOTAL_FILES, TOTAL_ROWS
from lancehouse.schema.iceberg import Json

logger = logging.getLogger(__name__)

DISCARD = "lancehouse-discard"
"""Name of the threads that delete staged manifests in object stores."""
STAGING = "_staging"
"""Folder below a table's location for the manifests of a transaction, which Lance does not read."""

_STAGED = re.compile(r"(\d+\.manifest)-[\w-]+")
_FOOTER = struct.Struct("<q4x4s")
"""The last 16 bytes of a manifest: offset of its message, two version numbers, a magic number."""
_LENGTH = struct.Struct("<I")
_MARK = b"LANC"

_FIELD, _FRAGMENT, _VERSION, _LAST_FRAGMENT = 1, 2, 3, 11
_TRANSACTION_FILE, _BASE, _BRANCH, _TRANSACTION_AT = 12, 18, 20, 23
"""Field numbers of Lance's protobuf message `Manifest`."""

_OPERATIONS: Mapping[int, str] = MappingProxyType(
    {
        100: "Append",
        101: "Delete",
        102: "Overwrite",
        103: "CreateIndex",
        104: "Rewrite",
        105: "Merge",
        106: "Restore",
        107: "ReserveFragments",
        108: "Update",
        109: "Project",
        110: "UpdateConfig",
        111: "DataReplacement",
        112: "UpdateMemWalState",
        113: "Clone",
        114: "UpdateBases",
    }
)
"""Field numbers of Lance's protobuf message `Transaction`, and pylance's names for the operations."""

_FEW = 3
"""Up to this number of files are looked for one by one, more by listing their folder."""


@dataclass(frozen=True, slots=True)
class Manifest:
    """The parts of a manifest that a commit needs, also before it is published."""

    version: int
    transaction_file: str
    """Name of the file that holds the transaction."""
    operation: str | None
    """Lance's name for the operation; None if the manifest has no copy of its transaction."""
    columns: str
    """Digest of the columns, which changes whenever they do."""
    data: bytes = field(repr=False)
    branch: str | None = None
    """None for the main branch."""
    indices: tuple[str, ...] = ()
    """Uuids of the indices that the commit creates."""
    has_bases: bool = False
    """Whether files of the version may be at other locations than the table's own."""
    transaction: bytes = field(default=b"", repr=False)
    """Lance's message `Transaction`; empty if the manifest has no copy of it."""

    @classmethod
    def parse(cls, data: bytes) -> Manifest:
        """Parse a manifest.

        Raises:
            InvalidInputError: the data is not a Lance manifest.
        """
        with _translate_malformed():
            return cls._parse(data)

    @classmethod
    def _parse(cls, data: bytes) -> Manifest:
        start, mark = _FOOTER.unpack(data[-_FOOTER.size :])
        if mark != _MARK:
            raise InvalidInputError("this is no manifest of Lance: it does not end like one")
        message = _read_message(data, start)
        numbers, texts, columns, has_bases = {}, {}, blake2b(digest_size=8), False
        for number, value in _parse_fields(message, without=_FRAGMENT):
            if number == _FIELD and isinstance(value, bytes):
                columns.update(value)
            elif isinstance(value, int):
                numbers[number] = value
            elif number in (_TRANSACTION_FILE, _BRANCH):
                texts[number] = value.decode()
            has_bases = has_bases or number == _BASE
        at = numbers.get(_TRANSACTION_AT)
        manifest = cls(
            version=numbers.get(_VERSION, 0),
            transaction_file=texts.get(_TRANSACTION_FILE, ""),
            operation=None,
            columns=columns.hexdigest(),
            data=data,
            branch=texts.get(_BRANCH),
            has_bases=has_bases,
        )
        return manifest if at is None else manifest.with_transaction(_read_message(data, at))

    @property
    def message(self) -> bytes:
        """Lance's message `Manifest`."""
        return _read_message(self.data, _FOOTER.unpack(self.data[-_FOOTER.size :])[0])

    @property
    def read_version(self) -> int:
        """Version that the commit was made from, or was rebased to."""
        read_version = self.transaction_file.partition("-")[0]
        return int(read_version) if read_version.isdecimal() else self.version - 1

    @property
    def transaction_uuid(self) -> str:
        """Uuid of the transaction; it stays the same when Lance retries after a conflict."""
        return _parse_uuid(self.transaction_file)

    def with_transaction(self, transaction: bytes) -> Manifest:
        """Return a copy completed from the transaction's file: older versions of Lance keep no copy in the manifest."""
        return replace(
            self,
            operation=_find_operation(transaction),
            indices=_parse_created_indices(transaction),
            transaction=transaction,
        )

    def totals(self) -> dict[str, str]:
        """Return rows, data files and bytes of the version, as Iceberg's summary of a snapshot has them."""
        with self._open_alone() as dataset:
            totals = dataset.get_version()["metadata"]
        keys = {TOTAL_ROWS: "total_rows", TOTAL_FILES: "total_data_files", TOTAL_BYTES: "total_files_size"}
        return {key: str(totals.get(name, 0)) for key, name in keys.items()}

    def schema(self) -> Json:
        """Return the Iceberg schema of the version, also before it is published."""
        with self._open_alone() as dataset:
            return to_iceberg_schema(dataset)

    def files(self, location: str, storage_options: StorageOptions) -> set[str]:
        """List the version's files below the table's location, without those inherited from the branch's origin."""
        above = f"tree/{self.branch}/" if self.branch else ""
        paths = {transaction_path(self)}
        with translate_errors(location, storage_options), self._open_alone() as dataset:
            session = open_files(location, storage_options)
            for fragment in dataset.get_fragments():
                for file in (file.path for file in fragment.metadata.files if file.base_id is None):
                    paths |= {f"{above}data/{file}", *session.list(f"{above}data/{PurePosixPath(file).stem}")}
                if (deletions := fragment.deletion_file()) is not None:
                    paths.add(f"{above}{deletions}")
            for index in self.indices:
                paths |= set(session.list(f"{above}_indices/{index}"))
        return paths

    @contextmanager
    def _open_alone(self) -> Iterator[lance.LanceDataset]:
        """Open the version in a temporary folder with nothing but its manifest, because it is not published yet."""
        with tempfile.TemporaryDirectory() as alone:
            folder = Path(alone) / "_versions"
            folder.mkdir()
            (folder / f"{self.version}.manifest").write_bytes(self.data)
            with translate_errors(f"the manifest of version {self.version}"):
                yield lance.dataset(alone, version=self.version)


@dataclass(frozen=True, slots=True)
class ManifestStore:
    """The manifests of one table, as files below its location."""

    location: str
    storage_options: StorageOptions = field(default_factory=dict, repr=False)

    def read(self, file: str) -> bytes:
        """Read a manifest.

        Raises:
            InvalidTableStateError: there is no such file.
        """
        data = self.find(file)
        if data is None:
            raise InvalidTableStateError(f"there is no manifest at {self.location}/{file}")
        return data

    def find(self, file: str) -> bytes | None:
        """Read a manifest; return None if there is no such file."""
        with translate_errors(f"{self.location}/{file}", self.storage_options):
            if (path := self._local(file)) is not None:
                with suppress(FileNotFoundError):
                    return path.read_bytes()
                return None
            with tempfile.TemporaryDirectory() as scratch:
                copy = Path(scratch) / "manifest"
                try:
                    self._open_session().download_file(file, copy)
                except (OSError, ValueError):
                    if not self.exists(file):
                        return None
                    self._open_session().download_file(file, copy)  # published between the two requests
                return copy.read_bytes()

    def exists(self, file: str) -> bool:
        """Return whether a manifest exists."""
        with translate_errors(f"{self.location}/{file}", self.storage_options):
            if (path := self._local(file)) is not None:
                return path.exists()
            return bool(self._open_session().contains(file))

    def count_missing(self, final: str, versions: range, own: Collection[int] = ()) -> int:
        """Count the versions that have no manifest any more.

        Args:
            final: path of the manifest of another version of the same branch.
            versions: the versions to look for.
            own: versions that do not count.
        """
        if len(versions) <= _FEW:
            return sum(
                version not in own and not self.exists(manifest_of_version(final, version)) for version in versions
            )
        folder = PurePosixPath(final).parent
        with translate_errors(f"{self.location}/{folder}", self.storage_options):
            path = self._local(str(folder))
            listed = self._open_session().list(str(folder)) if path is None else path.iterdir()
            present = {parse_version(PurePosixPath(file).name) for file in listed}
        return len(versions) - sum(version in versions for version in {*present, *own})

    @property
    def is_remote(self) -> bool:
        """Whether it is an object store, in which each operation costs requests."""
        return local_folder(self.location) is None

    def publish(self, staged: str, final: str, data: bytes | None = None) -> None:
        """Move an accepted manifest to its final path, unless that is done, and remove the staged file.

        Args:
            staged: path of the staged manifest.
            final: its final path.
            data: what it holds, if the caller has seen that nothing was at the final path. In an object store it is
                then put there by one request, and the staged file is removed in the background.

        Raises:
            InvalidTableStateError: another manifest is at the final path, or neither of the two files exists.
        """
        with translate_errors(f"{self.location}/{final}", self.storage_options):
            source, target = self._local(staged), self._local(final)
            if source is not None and target is not None:
                self._publish_locally(source, target)
                self._remove_empty(staged)
            elif data is not None:
                self._upload(data, final)
                self._discard_later(staged)
            else:
                self._publish_remotely(staged, final)

    def move(self, staged: str, target: str) -> None:
        """Rename a staged manifest that has not been committed."""
        with translate_errors(f"{self.location}/{staged}", self.storage_options):
            source, place = self._local(staged), self._local(target)
            if source is not None and place is not None:
                place.parent.mkdir(parents=True, exist_ok=True)
                source.rename(place)
            else:
                self._upload(self.read(staged), target)
                self.discard(staged)

    def discard(self, file: str) -> None:
        """Delete a file that no version needs."""
        with translate_errors(f"{self.location}/{file}", self.storage_options):
            delete_file(self.location, dict(self.storage_options), file)
        self._remove_empty(file)

    def _local(self, file: str) -> Path | None:
        """Return the path of a file on this machine; None in an object store.

        The name is checked because those of staged files come from the catalog.

        Raises:
            InvalidInputError: the name leads out of the table's location.
        """
        require_below(self.location, file)
        folder = local_folder(self.location)
        return None if folder is None else folder / file

    def _publish_locally(self, staged: Path, final: Path) -> None:
        try:
            # A link is atomic and fails if the target exists: no reader sees half a manifest, and none is overwritten.
            final.hardlink_to(staged)
        except FileNotFoundError:
            if not final.exists():
                raise _missing_error(staged, final) from None
            return
        except FileExistsError:
            with suppress(FileNotFoundError):  # another process has just published it and removed the staged file
                _require_same(staged.read_bytes(), final.read_bytes(), str(final))
        except OSError:  # a file system without hard links
            self._rename_into_place(staged, final)
        staged.unlink(missing_ok=True)

    def _rename_into_place(self, staged: Path, final: Path) -> None:
        if final.exists():
            with suppress(FileNotFoundError):
                _require_same(staged.read_bytes(), final.read_bytes(), str(final))
            return
        try:
            staged.rename(final)
        except FileNotFoundError:
            if not final.exists():
                raise _missing_error(staged, final) from None

    def _publish_remotely(self, staged: str, final: str) -> None:
        # pylance's file sessions have no copy and no put-if-absent. Two processes may therefore upload at the same
        # time, which is harmless: they upload the same bytes.
        is_there = self.exists(final)
        if is_there and not self.exists(staged):
            return  # the usual case costs no more than these two requests
        ours = self.find(staged)
        if ours is None:
            if not is_there and not self.exists(final):
                raise _missing_error(f"{self.location}/{staged}", f"{self.location}/{final}")
            return
        if is_there:
            _require_same(ours, self.read(final), f"{self.location}/{final}")
        else:
            self._upload(ours, final)
        self._discard_later(staged)

    def _discard_later(self, file: str) -> None:
        """Delete a file in the background: nobody reads it any more, and whoever finds it deletes it, too."""

        def discard() -> None:
            try:
                self.discard(file)
            except LanceNamespaceError as error:
                logger.info("%s/%s stays until `lancehouse doctor --fix` removes it: %s", self.location, file, error)

        try:
            # Not a daemon: the interpreter waits for it before it exits.
            Thread(target=discard, name=DISCARD).start()
        except RuntimeError:  # no more threads, or the interpreter is about to exit
            discard()

    def _upload(self, data: bytes, file: str) -> None:
        with tempfile.TemporaryDirectory() as scratch:
            copy = Path(scratch) / "manifest"
            copy.write_bytes(data)
            self._open_session().upload_file(copy, file)

    def _remove_empty(self, staged: str) -> None:
        """Remove the folders of a transaction that have become empty."""
        root = local_folder(self.location)
        if root is None or not staged.startswith(f"{STAGING}/"):
            return
        with suppress(OSError):
            for folder in (root / staged).parents:
                if not folder.is_relative_to(root / STAGING):
                    return
                folder.rmdir()

    def _open_session(self) -> LanceFileSession:
        return _open_session(self.location, tuple(sorted(self.storage_options.items())))


@lru_cache(64)
def _open_session(location: str, storage_options: tuple[tuple[str, str], ...]) -> LanceFileSession:
    """Return a session for the files of a table; a new one would connect to the store again."""
    return open_files(location, dict(storage_options))


os.register_at_fork(after_in_child=_open_session.cache_clear)  # two processes must not share connections


def _require_same(ours: bytes, theirs: bytes, final: str) -> None:
    """Raise InvalidTableStateError unless two manifests for the same path are equal."""
    if ours != theirs:
        raise InvalidTableStateError(
            f"storage has another version at {final} than the catalog accepted: a writer bypassed the catalog; move "
            "that file away and open the table by its name, which puts the right one there"
        )


def _missing_error(staged: object, final: object) -> InvalidTableStateError:
    return InvalidTableStateError(
        f"the catalog accepted a version whose manifest is neither at {final} nor at {staged}: restore the file from a "
        "backup"
    )


# Conflicts that Lance missed
#
# Lance compares a commit with the versions that others have made since the one it was made from, and silently skips
# those that a clean-up has removed. Rows that others deleted would come back with a compaction, and a delete of rows
# that a compaction has moved would do nothing. Only a writer that takes longer than clean-ups keep versions meets this.

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
    made_from: int
    """The version that its deletions were made from. Lance writes them anew when it merges them with others'."""

    @classmethod
    def parse(cls, message: bytes) -> _Fragment:
        fields = list(_parse_fields(message))
        texts = [(number, value) for number, value in fields if isinstance(value, bytes)]
        deletions = next((value for number, value in texts if number == _DELETIONS), b"")
        return cls(
            id=next((value for number, value in fields if number == _ID and isinstance(value, int)), 0),
            files=tuple(value for number, value in texts if number == _FILE),
            deletions=deletions,
            made_from=next((int(value) for number, value in _parse_fields(deletions) if number == _MADE_FROM), 0),
        )


def find_missed_conflict(files: ManifestStore, manifest: Manifest, final: str, own: Collection[int] = ()) -> str | None:
    """Return, for a message, why a staged version may conflict with versions that are gone; None if it does not.

    Versions that are there now were there when Lance looked. So the check needs no request if others have made at most
    one version meanwhile, except for a commit that only removes whole fragments: it reads the preceding manifest.

    Args:
        files: the table's manifests.
        manifest: of the staged version.
        final: where its manifest will be.
        own: other versions of the same branch that are committed with it.
    """
    if manifest.operation not in _CHECKED:
        return None

    def count_missing(base: int) -> int:
        # Lance has made this version of the one before it, so that one was there.
        return files.count_missing(final, range(base + 1, manifest.version - 1), own)

    changes = _Changes.parse(manifest)
    if manifest.operation in _REBASED and not changes.fragments and not changes.removed:
        return None
    # Lance replaces the version that a delete or an update was made from when it commits them later. The files of
    # deletions still tell; for fragments that are removed as a whole, nothing does.
    is_known = manifest.operation not in _REBASED or any(fragment.deletions for fragment in changes.fragments)
    if is_known and not count_missing(changes.find_base(manifest.read_version, {})):
        return None
    if manifest.version - 1 in own:
        return None
    before = _read_fragments(files, previous_manifest(final))
    if {*changes.removed, *(fragment.id for fragment in changes.fragments)} - before.keys():
        return "fragments that it changes are gone"
    if manifest.operation == "Rewrite":
        is_changed = any(before[fragment.id] != fragment for fragment in changes.fragments)
        return "fragments that it replaces were changed" if is_changed else None
    missing = count_missing(changes.find_base(manifest.read_version, before))
    return "versions that may conflict with it are cleaned up already" if missing else None


@dataclass(frozen=True, slots=True)
class _Changes:
    """What a transaction does to fragments that were there before."""

    fragments: tuple[_Fragment, ...] = ()
    """As they are afterwards, or those that a compaction replaces."""
    removed: frozenset[int] = frozenset()
    """Ids of those that are removed as a whole."""

    @classmethod
    def parse(cls, manifest: Manifest) -> _Changes:
        """Parse the transaction of a manifest.

        Raises:
            InvalidInputError: it is malformed.
        """
        with _translate_malformed():
            return cls._parse(manifest)

    @classmethod
    def _parse(cls, manifest: Manifest) -> _Changes:
        body = next(bytes(value) for number, value in _parse_fields(manifest.transaction) if number in _OPERATIONS)
        if manifest.operation == "Rewrite":
            groups = (group for number, group in _parse_fields(body) if number == _GROUP)
            return cls(tuple(fragment for group in groups for fragment in _parse_fragments(bytes(group), _OLD)))
        if manifest.operation is None or manifest.operation not in _REBASED:
            return cls()
        fragments, removed = _REBASED[manifest.operation]
        packed = (value for number, value in _parse_fields(body) if number == removed)
        ids = frozenset(fragment_id for value in packed for fragment_id in _parse_varints(value))
        # Our merges claim to remove a fragment that no table has.
        fields = _parse_fields(manifest.message, without=_FRAGMENT)
        last = next((value for number, value in fields if number == _LAST_FRAGMENT and isinstance(value, int)), 0)
        return cls(
            _parse_fragments(body, fragments), frozenset(fragment_id for fragment_id in ids if fragment_id <= last)
        )

    def find_base(self, read_version: int, before: Mapping[int, _Fragment]) -> int:
        """Return the version that the changes were made from.

        Args:
            read_version: what the transaction says.
            before: fragments of the preceding version, as far as known; deletions that it has are no change.
        """
        old = {fragment.deletions for fragment in before.values()}
        new = (fragment for fragment in self.fragments if fragment.deletions and fragment.deletions not in old)
        return min([read_version, *(fragment.made_from for fragment in new)])


def _read_fragments(files: ManifestStore, file: str) -> dict[int, _Fragment]:
    manifest = Manifest.parse(files.read(file))
    with _translate_malformed():
        return {fragment.id: fragment for fragment in _parse_fragments(manifest.message, _FRAGMENT)}


def _parse_fragments(message: bytes, field: int) -> tuple[_Fragment, ...]:
    return tuple(_Fragment.parse(bytes(value)) for number, value in _parse_fields(message) if number == field)


def transaction_path(manifest: Manifest) -> str:
    """Return the path of a version's transaction file below the table's location."""
    return f"{f'tree/{manifest.branch}/' if manifest.branch else ''}_transactions/{manifest.transaction_file}"


def parse_staged_path(manifest_path: str, branch: str | None, version: int) -> tuple[str, str, str]:
    """Split Lance's path of a staged manifest into the table's root in the store, the staged path and the final path.

    Raises:
        InvalidInputError: it is not the path of a staged manifest of this version and branch.
    """
    folder, _, name = manifest_path.rpartition("/")
    match = _STAGED.fullmatch(name)
    if match is None or not f"/{folder}".endswith(f"/{manifest_folder(branch)}") or parse_version(match[1]) != version:
        raise InvalidInputError(f"{manifest_path!r} is no staged manifest of version {version}")
    root = folder.removesuffix(manifest_folder(branch)).rstrip("/")
    return root, f"{manifest_folder(branch)}/{name}", f"{manifest_folder(branch)}/{match[1]}"


def previous_manifest(file: str) -> str:
    """Return the path of the preceding version's manifest, under the same naming scheme."""
    version = parse_version(PurePosixPath(file).name)
    if version is None:
        raise InvalidInputError(f"{file!r} is not the path of a manifest")
    return manifest_of_version(file, version - 1)


def manifest_of_version(file: str, version: int) -> str:
    """Return the path of another version's manifest, under the same naming scheme."""
    folder, _, name = file.rpartition("/")
    is_descending = len(name.removesuffix(".manifest")) == len(str(LAST_VERSION))
    return f"{folder}/{f'{LAST_VERSION - version:020}' if is_descending else version}.manifest"


@contextmanager
def _translate_malformed() -> Iterator[None]:
    """Raise InvalidInputError for what parsing raises, whatever the bytes are."""
    try:
        yield
    except (struct.error, IndexError, KeyError, MemoryError, OverflowError, TypeError, ValueError) as error:
        raise InvalidInputError(f"this is no manifest of Lance: {error}") from error


def _parse_created_indices(transaction: bytes) -> tuple[str, ...]:
    """Return the uuids of the new indices in Lance's message `CreateIndex`."""
    bodies = [body for number, body in _parse_fields(transaction) if _OPERATIONS.get(number) == "CreateIndex"]
    new = [body for message in bodies for number, body in _parse_fields(bytes(message)) if number == 1]
    ids = [body for message in new for number, body in _parse_fields(bytes(message)) if number == 1]
    return tuple(str(UUID(bytes=bytes(dict(_parse_fields(bytes(message)))[1]))) for message in ids)


def _find_operation(transaction: bytes) -> str | None:
    return next((_OPERATIONS[number] for number, _ in _parse_fields(transaction) if number in _OPERATIONS), None)


def _read_message(data: bytes, start: int) -> bytes:
    (length,) = _LENGTH.unpack_from(data, start)
    return data[start + _LENGTH.size : start + _LENGTH.size + length]


def _parse_uuid(transaction_file: str) -> str:
    return PurePosixPath(transaction_file).stem.partition("-")[2]


def _parse_fields(message: bytes, *, without: int = 0) -> Iterator[tuple[int, int | bytes]]:
    """Yield the fields of a protobuf message: integers, and strings or messages as bytes.

    Messages with the field number `without` are skipped unparsed: there may be many thousands of them.
    """
    at, end, passed_over = 0, len(message), without << 3 | 2
    while at < end:
        if message[at] == passed_over:
            size, at = _parse_varint(message, at + 1)
            at += size
            continue
        tag, at = _parse_varint(message, at)
        number, kind = tag >> 3, tag & 7
        if kind == 0:
            value, at = _parse_varint(message, at)
            yield number, value
        else:
            size, at = _parse_varint(message, at) if kind == 2 else ({1: 8, 5: 4}.get(kind, 0), at)
            yield number, message[at : at + size]
            at += size


def read_transaction_uuid(dataset: lance.LanceDataset) -> str:
    """Return the uuid of the transaction of an open version, without any I/O; empty if its manifest has none."""
    message = bytes(dataset._ds.serialized_manifest())
    names = (value for number, value in _parse_fields(message, without=_FRAGMENT) if number == _TRANSACTION_FILE)
    return _parse_uuid(bytes(next(names, b"")).decode())


def _parse_varints(value: int | bytes) -> Iterator[int]:
    """Yield the integers of a repeated field of a protobuf message, which may be packed."""
    if isinstance(value, int):
        yield value
        return
    at = 0
    while at < len(value):
        number, at = _parse_varint(value, at)
        yield number


def _parse_varint(message: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = message[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
