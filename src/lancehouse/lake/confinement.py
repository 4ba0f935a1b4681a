"""Which places may be opened for a table: a dataset names base paths, external blobs and, by links, other files.

Whoever writes a dataset chooses what it names. A server opens datasets of others, with rights of its own, so it opens
nothing outside of the places that its caller may read. A client in a user's own process is not confined.
"""

from __future__ import annotations

import os
import stat
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from functools import lru_cache
from itertools import accumulate
from pathlib import Path
from typing import Protocol

import lance
from lance_namespace.errors import PermissionDeniedError

from lancehouse import locations
from lancehouse.lake.folder_watch import is_settled

FOLDERS = ("_versions", "_transactions", "_deletions", "_indices", "_refs", "_staging", "data", "tree")
"""What Lance, and who puts manifests in their place, opens in a dataset's folder."""
REFS = ("_refs",)
"""The same where no rows are read, apart from manifests: whoever opens those one by one looks at each."""
BASE_DEPTH = 2
"""Folders of a base path that holds data files and no dataset: itself, and those with the blobs of one file."""


class OutsideConfinementError(PermissionDeniedError):
    """A table, or a file that it names, lies in a place that is not to be opened."""


class Confinement(Protocol):
    """Decides which places are opened. Each call raises `OutsideConfinementError` for a place that is not."""

    @property
    def reads_rows(self) -> bool:
        """Whether more is opened than manifests, tags and branches."""

    def __hash__(self) -> int:
        """Equal ones decide alike."""

    def require_table(self, location: str, announced: Sequence[str] = ()) -> None:
        """Refuse a table that lies elsewhere than tables may.

        Args:
            location: of the table.
            announced: where its catalog says that tables lie.
        """

    def require_choice(self, location: str, announced: Sequence[str] = ()) -> None:
        """Refuse a place that a caller may not choose for a table, before anything there is looked at."""

    def require_base(self, base: str) -> None:
        """Refuse a base path: a place, besides its own, from which a dataset takes files."""

    def require_blob(self, uri: str) -> None:
        """Refuse a file that is the value of an external blob."""


class ManifestsAlone:
    """Opens manifests, tags and branches of any table, and nothing that they name. It is a `Confinement`."""

    reads_rows = False

    def require_table(self, location: str, announced: Sequence[str] = ()) -> None:
        """Nothing to refuse: who asks has looked at the location."""

    def require_choice(self, location: str, announced: Sequence[str] = ()) -> None:
        """Nothing to refuse."""

    def require_base(self, base: str) -> None:
        """Nothing to refuse: no file is taken from there."""

    def require_blob(self, uri: str) -> None:
        """Nothing to refuse."""


def outside_error(what: str, location: str, remedy: str) -> OutsideConfinementError:
    """The error about a place that is not opened."""
    return OutsideConfinementError(f"{what} {locations.shorten(location)}, which this server does not open; {remedy}")


def require_inside(dataset: lance.LanceDataset, location: str, confinement: Confinement) -> None:
    """Refuse a dataset that would take files from places that are not to be opened. Nothing but its manifest is read.

    Args:
        dataset: at some version.
        location: of the whole table.
        confinement: decides.

    Raises:
        PermissionDeniedError: it names such a place.
    """
    require_no_links(location, reads_rows=confinement.reads_rows)
    if not confinement.reads_rows:
        return
    # Names of data files need no look: Lance encodes the slashes in them, so they stay in their folder.
    for base in dataset.base_paths().values():
        if not locations.is_inside(base.path, [location]):
            confinement.require_base(base.path)
        if base.is_dataset_root:
            require_no_links(base.path)
        else:
            _require_no_links(base.path, ("",), BASE_DEPTH)


def require_no_links(location: str, *, reads_rows: bool = True) -> None:
    """Refuse a dataset's folder that has symbolic links in it: Lance would follow them, wherever they lead.

    Args:
        location: of the folder; object stores have no links.
        reads_rows: whether more is opened there than manifests, tags and branches.

    Raises:
        PermissionDeniedError: there is one.
    """
    _require_no_links(location, FOLDERS if reads_rows else REFS, sys.maxsize)


def _require_no_links(location: str, parts: Sequence[str], depth: int) -> None:
    folder = locations.local_folder(location)
    for part in parts if folder is not None else ():
        if link := _find_link(Path(folder or "", part), depth):
            raise _refuse_link(link)


def require_no_link(folder: Path, file: str) -> None:
    """Refuse a file below a folder that is a symbolic link, or that one leads to.

    Raises:
        PermissionDeniedError: it is.
    """
    for part in accumulate(file.split("/"), Path, initial=folder):
        if part != folder and part.is_symlink():
            raise _refuse_link(part)


def _refuse_link(link: Path) -> OutsideConfinementError:
    return outside_error("the table has a symbolic link,", str(link), "put the file itself in its place")


def _find_link(path: Path, depth: int) -> Path | None:
    try:
        state = path.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return None
    if stat.S_ISLNK(state.st_mode):
        return path
    if not stat.S_ISDIR(state.st_mode) or not depth:
        return None
    # A folder that changed just now may change again without a trace: what is seen of it is not kept.
    look = _look_into if is_settled(state.st_ctime_ns, time.time_ns()) else _look_into.__wrapped__
    link, folders = look(path, state.st_ino, state.st_ctime_ns)
    return link or next(filter(None, (_find_link(each, depth - 1) for each in folders)), None)


@lru_cache(4096)
def _look_into(folder: Path, inode: int, ctime_ns: int) -> tuple[Path | None, tuple[Path, ...]]:  # noqa: ARG001 - they tell that it changed
    """A link in a folder, and the folders in it. No program can set the time of its last change."""
    with suppress(FileNotFoundError, NotADirectoryError), os.scandir(folder) as entries:
        folders = []
        for entry in entries:
            if entry.is_symlink():
                return folder / entry.name, ()
            if entry.is_dir():
                folders.append(folder / entry.name)
        return None, tuple(folders)
    return None, ()
