"""Decide which locations may be opened for a table: base paths, external blobs, targets of symbolic links.

Whoever writes a dataset chooses the files it refers to. A server opens datasets of others with its own rights, so it
opens nothing outside the locations that its caller may read. A client in a user's own process is not confined.
"""

from __future__ import annotations

import os
import stat
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from lance_namespace.errors import PermissionDeniedError

from lancehouse import locations
from lancehouse.caches import BoundedCache
from lancehouse.lake.folder_watch import is_settled

if TYPE_CHECKING:
    import lance

FOLDERS = ("_versions", "_transactions", "_deletions", "_indices", "_refs", "_staging", "data", "tree")
"""Folders of a dataset in which Lance, or the publishing of manifests, opens files."""
REFS = ("_refs",)
"""The same if no rows are read, except manifests: code that opens those one by one checks each."""
BASE_DEPTH = 2
"""Levels of folders in a base path that holds data files and no dataset: itself, and one per file with blobs."""


class OutsideConfinementError(PermissionDeniedError):
    """A table, or a file that it refers to, is at a location that must not be opened."""


class Confinement(Protocol):
    """Decides which locations may be opened. Each method raises `OutsideConfinementError` for one that may not."""

    @property
    def reads_rows(self) -> bool:
        """Whether more than manifests, tags and branches is opened."""

    def __hash__(self) -> int:
        """Hash it; equal confinements must decide alike."""

    def require_table(self, location: str, announced: Sequence[str] = ()) -> None:
        """Refuse a table at a location where tables must not be.

        Args:
            location: of the table.
            announced: locations that its catalog announces for tables.
        """

    def require_choice(self, location: str, announced: Sequence[str] = ()) -> None:
        """Refuse a location that a caller may not choose for a table, before anything there is opened."""

    def require_base(self, base: str) -> None:
        """Refuse a base path: a location other than its own from which a dataset takes files."""

    def require_blob(self, uri: str) -> None:
        """Refuse a file that is the value of an external blob."""


class ManifestsAlone:
    """A `Confinement` that opens manifests, tags and branches of any table, and nothing that they refer to."""

    reads_rows = False

    def require_table(self, location: str, announced: Sequence[str] = ()) -> None:
        """Refuse nothing: the caller has checked the location."""

    def require_choice(self, location: str, announced: Sequence[str] = ()) -> None:
        """Refuse nothing."""

    def require_base(self, base: str) -> None:
        """Refuse nothing: no file is taken from there."""

    def require_blob(self, uri: str) -> None:
        """Refuse nothing."""


@dataclass(frozen=True, slots=True)
class OwnFilesAlone:
    """A `Confinement` of a table to its own folder, for work that nobody asks for, and that no rights limit."""

    reads_rows = True

    def require_table(self, location: str, announced: Sequence[str] = ()) -> None:
        """Refuse nothing: the caller has checked the location."""

    def require_choice(self, location: str, announced: Sequence[str] = ()) -> None:
        """Refuse nothing."""

    def require_base(self, base: str) -> None:
        """Refuse all: whoever wrote the table may have had no right to read there."""
        raise outside_error("the table takes files from", base, "maintain it yourself, with rights to read there")

    def require_blob(self, uri: str) -> None:
        """Refuse all."""
        raise outside_error("the table refers to", uri, "maintain it yourself, with rights to read there")


def outside_error(what: str, location: str, remedy: str) -> OutsideConfinementError:
    """Return the error for a location that must not be opened."""
    return OutsideConfinementError(f"{what} {locations.shorten(location)}, which this server does not open; {remedy}")


def require_inside(dataset: lance.LanceDataset, location: str, confinement: Confinement) -> None:
    """Refuse a dataset that takes files from locations that must not be opened. Only its manifest is read.

    Args:
        dataset: at some version.
        location: of the whole table.
        confinement: decides.

    Raises:
        PermissionDeniedError: it refers to such a location.
    """
    require_no_links(location, reads_rows=confinement.reads_rows)
    if not confinement.reads_rows:
        return
    # Names of data files need no check: Lance encodes slashes in them, so they cannot leave their folder.
    for base in dataset.base_paths().values():
        if not locations.is_inside(base.path, [location]):
            confinement.require_base(base.path)
        if base.is_dataset_root:
            require_no_links(base.path)
        else:
            _require_no_links(base.path, ("",), BASE_DEPTH)


def require_no_links(location: str, *, reads_rows: bool = True) -> None:
    """Refuse a dataset's folder that contains symbolic links, because Lance would follow them anywhere.

    Args:
        location: of the folder; object stores have no links.
        reads_rows: whether more than manifests, tags and branches is opened there.

    Raises:
        PermissionDeniedError: there is a link.
    """
    _require_no_links(location, FOLDERS if reads_rows else REFS, sys.maxsize)


def _require_no_links(location: str, parts: Sequence[str], depth: int) -> None:
    for folder in _local_folders(location, parts):
        if link := _find_link(folder, depth):
            raise _refuse_link(link)


def _local_folders(location: str, parts: Sequence[str]) -> Iterator[str]:
    """Yield the paths of subfolders of a local folder, an empty part being the folder itself; none in object stores."""
    if (folder := locations.local_folder(location)) is not None:
        yield from (f"{folder}/{part}" if part else str(folder) for part in parts)


def require_no_link(folder: Path, file: str) -> None:
    """Refuse a file below a folder that is a symbolic link, or is reached through one.

    Raises:
        PermissionDeniedError: it is.
    """
    for part in accumulate(file.split("/"), Path, initial=folder):
        if part != folder and part.is_symlink():
            raise _refuse_link(str(part))


def _refuse_link(link: str) -> OutsideConfinementError:
    return outside_error("the table has a symbolic link,", link, "put the file itself in its place")


FolderContent = tuple[str | None, tuple[str, ...]]
"""A symbolic link in a folder, or None, and its subfolders; text is faster than `Path`."""

_seen_folders: BoundedCache[tuple[str, int, int], FolderContent] = BoundedCache(4096)
"""By path, inode and ctime. No program can set a ctime, so an unchanged one proves that no entry of the folder was
added, removed or replaced."""


def _find_link(path: str, depth: int) -> str | None:
    try:
        state = os.lstat(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    if stat.S_ISLNK(state.st_mode):
        return path
    if not stat.S_ISDIR(state.st_mode) or not depth:
        return None
    link, folders = _read_folder(path, state)
    return link or next(filter(None, (_find_link(folder, depth - 1) for folder in folders)), None)


def _read_folder(folder: str, state: os.stat_result) -> FolderContent:
    key = (folder, state.st_ino, state.st_ctime_ns)
    if (cached_content := _seen_folders.get(key)) is not None:
        return cached_content
    # A folder that changed just now may change again within the same tick of the file system's clock, and its ctime
    # would stay the same: what is seen of such a folder is not cached.
    can_cache = is_settled(state.st_ctime_ns, time.time_ns())
    content = _list_folder(folder)
    return _seen_folders.put(key, content) if can_cache else content


def _list_folder(folder: str) -> FolderContent:
    with suppress(FileNotFoundError, NotADirectoryError), os.scandir(folder) as entries:
        folders = []
        for entry in entries:
            if entry.is_symlink():
                return entry.path, ()
            if entry.is_dir():
                folders.append(entry.path)
        return None, tuple(folders)
    return None, ()
