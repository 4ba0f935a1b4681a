"""Which places may be opened for a table: a dataset names base paths, external blobs and, by links, other files.

Whoever writes a dataset chooses what it names. A server opens datasets of others, with rights of its own, so it opens
nothing outside of the places that its caller may read. A client in a user's own process is not confined.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Protocol

import lance
from lance_namespace.errors import PermissionDeniedError

from lancehouse import locations

FOLDERS = ("_versions", "_transactions", "_deletions", "_indices", "_refs", "data", "tree")
"""What Lance opens in a dataset's folder."""


class OutsideError(PermissionDeniedError):
    """A table, or a file that it names, lies in a place that is not to be opened."""


class Confinement(Protocol):
    """Decides which places are opened. Each call raises `OutsideError` for a place that is not."""

    def __hash__(self) -> int:
        """Equal ones decide alike."""

    def require_table(self, location: str, announced: Sequence[str] = ()) -> None:
        """Refuse a table that lies elsewhere than tables may.

        Args:
            location: of the table.
            announced: where its catalog says that tables lie.
        """

    def require_base(self, base: str) -> None:
        """Refuse a base path: a place, besides its own, from which a dataset takes files."""

    def require_blob(self, uri: str) -> None:
        """Refuse a file that is the value of an external blob."""


def refuse(what: str, location: str, remedy: str) -> OutsideError:
    """The error about a place that is not opened."""
    return OutsideError(f"{what} {locations.shorten(location)}, which this server does not open; {remedy}")


def require_inside(dataset: lance.LanceDataset, location: str, branch: str | None, confinement: Confinement) -> None:
    """Refuse a dataset that would take files from places that are not to be opened. Nothing but its manifest is read.

    Args:
        dataset: at some version.
        location: of the whole table.
        branch: the branch that the version is of; None for the main one.
        confinement: decides.

    Raises:
        PermissionDeniedError: it names such a place.
    """
    # Names of data files need no look: Lance encodes the slashes in them, so they stay in their folder.
    for base in dataset.base_paths().values():
        if not locations.is_inside(base.path, [location]):
            confinement.require_base(base.path)
    folder = locations.local_folder(location)
    if folder is None:
        return  # object stores have no links
    for part in (folder, folder / "tree" / branch) if branch else (folder,):
        if link := _find_link(part):
            raise refuse("the table has a symbolic link,", str(link), "put the file itself in its place")


def require_plain(file: Path) -> None:
    """Refuse a file of a table on local disk that is a symbolic link, or lies in a folder that is one.

    Raises:
        PermissionDeniedError: it is.
    """
    if file.is_symlink() or file.parent.is_symlink():
        raise refuse("the table has a symbolic link,", str(file), "put the file itself in its place")


def _find_link(folder: Path) -> Path | None:
    """A link in a dataset's folder that would lead its readers elsewhere: Lance follows links."""
    for name in FOLDERS:
        part = folder / name
        try:
            state = part.lstat()
        except FileNotFoundError:
            continue
        if stat.S_ISLNK(state.st_mode):
            return part
        if link := _find_link_in(part, state.st_ino, state.st_mtime_ns):
            return link
    return None


@lru_cache(4096)
def _find_link_in(folder: Path, inode: int, mtime_ns: int) -> Path | None:  # noqa: ARG001 - they tell that it changed
    """The same in one of its parts, which is looked at again when something was added to it or removed."""
    with suppress(FileNotFoundError, NotADirectoryError), os.scandir(folder) as entries:
        for entry in entries:
            if entry.is_symlink():
                return folder / entry.name
            if folder.name == "_indices" and entry.is_dir() and (link := _first_link(folder / entry.name)):
                return link
    return None


def _first_link(folder: Path) -> Path | None:
    return next((path for path in folder.iterdir() if path.is_symlink()), None)
