"""Manifests on their way: staged by Lance, accepted by a catalog, put in their final place.

Lance stages a manifest next to where it will lie, under a name of its own. Whoever knows that a catalog accepted it may
put it in its place: once or many times, the writer itself, the next reader, or both at once.
"""

from __future__ import annotations

import re
import struct
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path, PurePosixPath
from types import MappingProxyType

import lance
from lance.file import LanceFileSession
from lance_namespace.errors import InvalidInputError, InvalidTableStateError

from lancehouse.lake.dataset import MAIN, StorageOptions, delete_file, local_folder
from lancehouse.lake.errors import translated
from lancehouse.lake.history import schema_of
from lancehouse.lake.versions import version_of
from lancehouse.schema.iceberg import Json

STAGING = "_staging"
"""Where the manifests of a transaction lie, below a table's location: Lance does not look there."""

_STAGED = re.compile(r"(\d+\.manifest)-[\w-]+")
_FOOTER = struct.Struct("<q4x4s")
"""The last 16 bytes of a manifest: where its message begins, two version numbers, a mark."""
_LENGTH = struct.Struct("<I")
_MARK = b"LANC"

_FIELD, _VERSION, _TRANSACTION_FILE, _TRANSACTION_AT = 1, 3, 12, 23
"""Numbers in Lance's message `Manifest`."""

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
"""Numbers in Lance's message `Transaction`, and the words of pylance for them."""


@dataclass(frozen=True, slots=True)
class Manifest:
    """What a manifest says of the version that it makes, before anybody accepted it."""

    version: int
    transaction_file: str
    """The name of the file that holds the transaction."""
    operation: str | None
    """Lance's word for what the commit does, None if the manifest does not tell."""
    columns: str
    """A digest of the columns, which changes whenever they do."""
    message: bytes = field(repr=False)

    @classmethod
    def parse(cls, data: bytes) -> Manifest:
        """Read a manifest.

        Raises:
            InvalidInputError: it is none.
        """
        try:
            return cls._parse(data)
        except (struct.error, IndexError, UnicodeDecodeError) as error:
            raise InvalidInputError(f"this is no manifest of Lance: {error}") from error

    @classmethod
    def _parse(cls, data: bytes) -> Manifest:
        start, mark = _FOOTER.unpack(data[-_FOOTER.size :])
        if mark != _MARK:
            raise InvalidInputError("this is no manifest of Lance: it does not end like one")
        message = _message(data, start)
        numbers, texts, columns = {}, {}, blake2b(digest_size=8)
        for number, value in _fields(message):
            if number == _FIELD and isinstance(value, bytes):
                columns.update(value)
            elif isinstance(value, int):
                numbers[number] = value
            elif number == _TRANSACTION_FILE:
                texts[number] = value.decode()
        at = numbers.get(_TRANSACTION_AT)
        inline = () if at is None else (number for number, _ in _fields(_message(data, at)))
        return cls(
            version=numbers.get(_VERSION, 0),
            transaction_file=texts.get(_TRANSACTION_FILE, ""),
            operation=next((_OPERATIONS.get(number) for number in inline if number >= min(_OPERATIONS)), None),
            columns=columns.hexdigest(),
            message=message,
        )

    @property
    def transaction(self) -> str:
        """The uuid of the commit; the same when Lance tries again after a conflict."""
        return PurePosixPath(self.transaction_file).stem.partition("-")[2]

    def schema(self, location: str, storage_options: StorageOptions) -> Json:
        """The Iceberg schema of the version, though no reader can open it yet."""
        with translated(location, storage_options):
            return schema_of(self._open(location, storage_options))

    def files(self, location: str, storage_options: StorageOptions) -> set[str]:
        """The files below the table's location that hold the rows of the version, and the transaction that made it."""
        with translated(location, storage_options):
            fragments = self._open(location, storage_options).get_fragments()
            data = {f"data/{file.path}" for fragment in fragments for file in fragment.metadata.files}
            deletions = {file for fragment in fragments if (file := fragment.deletion_file()) is not None}
        return {*data, *deletions, f"_transactions/{self.transaction_file}"}

    def _open(self, location: str, storage_options: StorageOptions) -> lance.LanceDataset:
        options = dict(storage_options) or None
        return lance.LanceDataset(
            location, version=self.version, serialized_manifest=self.message, storage_options=options
        )


@dataclass(frozen=True, slots=True)
class Manifests:
    """The manifests of one table, as files below its location."""

    location: str
    storage_options: StorageOptions = field(default_factory=dict, repr=False)

    def read(self, file: str) -> bytes:
        """All of a manifest.

        Raises:
            InvalidTableStateError: there is no such file.
        """
        data = self.find(file)
        if data is None:
            raise InvalidTableStateError(f"there is no manifest at {self.location}/{file}")
        return data

    def find(self, file: str) -> bytes | None:
        """All of a manifest; None if it is not there."""
        with translated(f"{self.location}/{file}", self.storage_options):
            if folder := local_folder(self.location):
                with suppress(FileNotFoundError):
                    return (folder / file).read_bytes()
                return None
            if not self.exists(file):
                return None
            with tempfile.TemporaryDirectory() as scratch:
                copy = Path(scratch) / "manifest"
                self._session().download_file(file, copy)
                return copy.read_bytes()

    def exists(self, file: str) -> bool:
        """Whether a manifest is there."""
        with translated(f"{self.location}/{file}", self.storage_options):
            if folder := local_folder(self.location):
                return (folder / file).exists()
            return bool(self._session().contains(file))

    def finish(self, staged: str, final: str) -> None:
        """Put an accepted manifest in its final place, unless that is done; what was staged goes.

        Raises:
            InvalidTableStateError: another manifest is there, or neither of them.
        """
        with translated(f"{self.location}/{final}", self.storage_options):
            if folder := local_folder(self.location):
                self._finish_locally(folder / staged, folder / final)
            elif not self.exists(final):
                self._copy(staged, final)
                self.discard(staged)
            elif self.exists(staged):
                self._require_same(staged, final)
                self.discard(staged)

    def move(self, staged: str, target: str) -> None:
        """Give a manifest that nobody knows of yet another name."""
        with translated(f"{self.location}/{staged}", self.storage_options):
            if folder := local_folder(self.location):
                (folder / target).parent.mkdir(parents=True, exist_ok=True)
                (folder / staged).rename(folder / target)
            else:
                self._copy(staged, target)
                self.discard(staged)

    def discard(self, file: str) -> None:
        """Delete a file that no version needs."""
        with translated(f"{self.location}/{file}", self.storage_options):
            delete_file(self.location, dict(self.storage_options), file)
        if folder := local_folder(self.location):
            _remove_empty(folder / file)

    def _finish_locally(self, staged: Path, final: Path) -> None:
        try:
            final.hardlink_to(staged)
        except FileNotFoundError:
            if not final.exists():
                raise InvalidTableStateError(
                    f"the catalog accepted a version whose manifest is neither at {final} nor at {staged}: "
                    "restore the file from a backup"
                ) from None
            return
        except FileExistsError:
            with suppress(FileNotFoundError):  # somebody else finishes it too
                self._require_same(staged.name, final.name, staged, final)
        except OSError:  # a file system without links
            if not final.exists():
                staged.rename(final)
                return
        staged.unlink(missing_ok=True)
        _remove_empty(staged)

    def _require_same(self, staged: str, final: str, *paths: Path) -> None:
        """Two manifests may have one name only if they are the same."""
        ours, theirs = (path.read_bytes() for path in paths) if paths else (self.read(staged), self.read(final))
        if ours != theirs:
            raise InvalidTableStateError(
                f"{self.location}: storage has another version at {final} than the catalog accepted: a writer went "
                "past the catalog; move that file away and open the table by its name, which puts the right one there"
            )

    def _copy(self, staged: str, target: str) -> None:
        with tempfile.TemporaryDirectory() as scratch:
            copy = Path(scratch) / "manifest"
            copy.write_bytes(self.read(staged))
            self._session().upload_file(copy, target)

    def _session(self) -> LanceFileSession:
        return LanceFileSession(self.location, storage_options=dict(self.storage_options) or None)


def _remove_empty(staged: Path) -> None:
    """Remove the folders of a transaction that have become empty."""
    with suppress(OSError):
        for folder in staged.parents:
            if STAGING not in folder.parts:
                return
            folder.rmdir()


def folder_of(branch: str | None) -> str:
    """Where the manifests of a branch lie, below the table's location."""
    return "_versions" if branch in (None, MAIN) else f"tree/{branch}/_versions"


def staged_file(manifest_path: str, branch: str | None, version: int) -> tuple[str, str, str]:
    """What Lance's path of a staged manifest says: the table's root in the store, the file, and its final name.

    Raises:
        InvalidInputError: the path is none of this version of this branch.
    """
    folder, _, name = manifest_path.rpartition("/")
    match = _STAGED.fullmatch(name)
    if match is None or not f"/{folder}".endswith(f"/{folder_of(branch)}") or version_of(match[1]) != version:
        raise InvalidInputError(f"{manifest_path!r} is no staged manifest of version {version}")
    root = folder.removesuffix(folder_of(branch)).rstrip("/")
    return root, f"{folder_of(branch)}/{name}", f"{folder_of(branch)}/{match[1]}"


def _message(data: bytes, start: int) -> bytes:
    (length,) = _LENGTH.unpack_from(data, start)
    return data[start + _LENGTH.size : start + _LENGTH.size + length]


def _fields(message: bytes) -> Iterator[tuple[int, int | bytes]]:
    """The fields of a protobuf message: numbers, and texts or messages as bytes."""
    at = 0
    while at < len(message):
        tag, at = _varint(message, at)
        number, kind = tag >> 3, tag & 7
        if kind == 0:
            value, at = _varint(message, at)
            yield number, value
        else:
            size, at = _varint(message, at) if kind == 2 else ({1: 8, 5: 4}.get(kind, 0), at)
            yield number, message[at : at + size]
            at += size


def _varint(message: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = message[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
