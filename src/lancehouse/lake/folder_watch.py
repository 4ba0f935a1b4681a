"""Detect whether a dataset on a local disk has changed, by the ctime of its folders, without reading files.

Lance adds each version, tag and branch by creating, renaming or deleting a file, which changes the ctime of its folder.
As with git's index, a ctime is reliable for a comparison only if it was old when it was read: the kernel's clock for
files ticks every few milliseconds, so a second change within the same tick leaves no trace.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote

from lancehouse.locations import local_folder

SETTLED_NS = 50_000_000
"""Age from which a ctime is reliable: five times the slowest tick of Linux."""

SETTLED_COARSE_NS = 2_500_000_000
"""The same for file systems that store whole seconds, or every other one."""

SECOND_NS = 1_000_000_000

LOCAL_DISKS = frozenset(
    {"ext2", "ext3", "ext4", "xfs", "btrfs", "zfs", "f2fs", "bcachefs", "tmpfs", "ramfs", "overlay", "vfat", "exfat"}
)
"""File systems of local disks. Others may be shared with other machines, and show their changes with a delay."""

MOUNTS = Path("/proc/self/mountinfo")

FolderState = tuple[tuple[int, int] | None, ...]
"""Inode and ctime in nanoseconds of each folder; None for one that cannot be read."""


@dataclass(frozen=True, slots=True)
class FolderWatch:
    """The folders of a dataset, and their state before the dataset was read."""

    folders: tuple[str, ...]
    initial: FolderState

    def is_unchanged(self) -> bool:
        """Return whether the dataset is still as it was read. Costs a few microseconds."""
        return _read_state(self.folders) == self.initial


def start_watch(location: str, *, versions: bool = True) -> FolderWatch | None:
    """Start to watch a dataset, or a location where one may be created. Call it before reading the dataset.

    Args:
        location: of the dataset.
        versions: whether to watch the versions of the main branch; else only tags and branches.

    Returns:
        None if changes cannot be detected: in object stores, on network disks, or because it changed just now.
    """
    # Taken before the folders are read, so that a change in between counts as too recent.
    now = time.time_ns()
    root = local_folder(location)
    if root is None or not _is_local_disk(root):
        return None
    folders = tuple(
        dict.fromkeys(_find_nearest_existing(str(root), folder) for folder in _list_watched_folders(root, versions))
    )
    state = _read_state(folders)
    can_tell = all(folder_state is None or is_settled(folder_state[1], now) for folder_state in state)
    return FolderWatch(folders, state) if can_tell else None


def _list_watched_folders(root: Path, versions: bool) -> Iterator[str]:
    if versions:
        yield "_versions"
    yield from ("_refs/tags", "_refs/branches")
    try:
        branches = [file.name for file in (root / "_refs" / "branches").iterdir()]
    except OSError:
        return
    yield from (f"tree/{unquote(file.removesuffix('.json'))}/_versions" for file in branches if file.endswith(".json"))


def _find_nearest_existing(root: str, folder: str) -> str:
    """Return a folder, or its nearest existing parent, which changes when the folder is created."""
    while folder and not os.path.isdir(path := f"{root}/{folder}"):  # noqa: PTH112
        folder = folder.rpartition("/")[0]
    return path if folder else root


def _read_state(folders: tuple[str, ...]) -> FolderState:
    """Return inode and ctime of each folder; no program can set a ctime."""
    state: list[tuple[int, int] | None] = []
    for folder in folders:
        try:
            info = os.stat(folder)  # noqa: PTH116
        except OSError:
            state.append(None)
        else:
            state.append((info.st_ino, info.st_ctime_ns))
    return tuple(state)


def is_settled(changed_ns: int, now_ns: int) -> bool:
    """Return whether a ctime is old enough that any later change would differ from it."""
    return changed_ns < now_ns - (SETTLED_NS if changed_ns % SECOND_NS else SETTLED_COARSE_NS)


def _is_local_disk(folder: Path) -> bool:
    for above in (folder, *folder.parents):
        try:
            device = above.stat().st_dev
        except OSError:
            continue
        if device not in _DEVICES:
            _DEVICES[device] = _file_system_type(above.resolve()) in LOCAL_DISKS
        return _DEVICES[device]
    return False


_DEVICES: dict[int, bool] = {}


def _file_system_type(folder: Path) -> str:
    """Return the type of the file system of a folder, by the innermost mount; a local one where there is no /proc."""
    if not MOUNTS.exists():
        return min(LOCAL_DISKS)
    innermost, kind = Path(), ""
    for line in MOUNTS.read_text().splitlines():
        left, _, right = line.partition(" - ")
        point = Path(left.split(" ")[4].replace("\\040", " "))
        if folder.is_relative_to(point) and len(point.parts) >= len(innermost.parts):
            innermost, kind = point, right.split(" ")[0]
    return kind
