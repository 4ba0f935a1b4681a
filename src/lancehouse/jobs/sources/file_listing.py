"""List the data files of a path, folder, glob or list of those, with Hive-style partition values of folders."""

from __future__ import annotations

import os
import pathlib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from urllib.parse import unquote

from lance_namespace.errors import InvalidInputError
from pyarrow.fs import FileInfo, FileSelector, FileSystem, FileType, LocalFileSystem

from lancehouse.jobs.sources.errors import translate_read_errors
from lancehouse.jobs.sources.file_stores import Store, locate

Path = str | os.PathLike[str]

_GLOB = re.compile(r"[*?\[]")
_PARTITION = re.compile(r"([^=]+)=(.*)", re.DOTALL)
_NULL = "__HIVE_DEFAULT_PARTITION__"
"""Hive's name for null in the name of a partition folder."""


@dataclass(frozen=True, slots=True)
class SourceFile:
    """A file, with the size and time of change that it had when it was listed."""

    store: Store
    path: str
    size: int
    modified_ns: int
    partition: tuple[tuple[str, str | None], ...] = ()
    """Partition columns and values from the names of the folders above it, such as `year=2024`."""
    is_named: bool = False
    """Whether the user named the file, by its path or by a glob, rather than a folder that contains it."""

    @property
    def name(self) -> str:
        """The address of the file as the user writes it."""
        return self.store.to_address(self.path)

    @property
    def key(self) -> str:
        """The same as long as the file is unchanged."""
        return f"{self.name} {self.size} {self.modified_ns}"


def list_files(source: Path | Iterable[Path], options: Mapping[str, str]) -> list[SourceFile]:
    """Return the files of a source, sorted by address.

    A path that exists is taken literally, whatever characters it has.

    Raises:
        InvalidInputError: a path matches no file, or the list is empty.
    """
    places = [source] if isinstance(source, str | os.PathLike) or not isinstance(source, Iterable) else list(source)
    files: dict[str, SourceFile] = {}
    for place in places:
        store, path = locate(place, options)
        with translate_read_errors(store.to_address(path), options):
            matches = list(_list_matches(store, path))
        if not matches:
            raise InvalidInputError(f"there is no file at {store.to_address(path)}")
        for file in matches:
            files.setdefault(file.name, file)
    if not files:
        raise InvalidInputError("the source is an empty list: give a file, a folder or a glob")
    return sorted(files.values(), key=lambda file: file.name)


def _list_matches(store: Store, path: str) -> Iterator[SourceFile]:
    system = store.file_system()
    info = system.get_file_info(path)
    if info.type == FileType.File:
        yield _to_file(store, info, named=True)
    elif info.type == FileType.Directory:
        yield from _list_folder(store, system, path, root=path)
    elif _GLOB.search(path):
        root, pattern = _split_glob(system, path)
        for match in _match_glob(system, root, pattern):
            if match.type == FileType.File:
                yield _to_file(store, match, root=root, named=True)
            else:
                yield from _list_folder(store, system, match.path, root=root)


def _split_glob(system: FileSystem, path: str) -> tuple[str, list[str]]:
    """Split a path into the literal folder at its start and the pattern below it."""
    segments = path.split("/")
    for place, segment in enumerate(segments):
        above = "/".join(segments[:place]) or "/"
        if _GLOB.search(segment) and system.get_file_info(f"{above}/{segment}").type != FileType.Directory:
            return above, segments[place:]
    raise AssertionError(f"{path} exists")


def _list_folder(store: Store, system: FileSystem, folder: str, *, root: str) -> Iterator[SourceFile]:
    for info in _walk(system, folder):
        if info.type == FileType.File and not any(map(_is_hidden, _relative_segments(info.path, folder))):
            yield _to_file(store, info, root=root)


def _walk(system: FileSystem, folder: str) -> Iterator[FileInfo]:
    # Arrow's own recursion is not used on a local disk, where links may form cycles.
    is_local = isinstance(system, LocalFileSystem)
    for info in system.get_file_info(FileSelector(folder, recursive=not is_local)):
        yield info
        if is_local and info.type == FileType.Directory and not _is_link_cycle(system, info.path):
            yield from _walk(system, info.path)


def _is_link_cycle(system: FileSystem, folder: str) -> bool:
    """Return whether a folder is a link to one that contains it, whose content has been listed before."""
    way = pathlib.Path(folder)
    return isinstance(system, LocalFileSystem) and way.resolve() in {above.resolve() for above in way.parents}


def _match_glob(system: FileSystem, folder: str, segments: Sequence[str]) -> Iterator[FileInfo]:
    """Yield what a pattern matches below a folder, level by level, so that only folders that can match are listed."""
    pattern, *rest = segments
    if pattern == "**":
        yield from _match_glob(system, folder, rest or ["*"])
    for info in system.get_file_info(FileSelector(folder, allow_not_found=True)):
        name = info.path.rstrip("/").rpartition("/")[2]
        is_folder = info.type == FileType.Directory
        if is_folder and _is_link_cycle(system, info.path):
            continue
        if pattern == "**":
            if is_folder and not _is_hidden(name):
                yield from _match_glob(system, info.path, segments)
        elif fnmatchcase(name, pattern) and (pattern[0] == name[0] or not _is_hidden(name)):
            if not rest:
                yield info
            elif is_folder:
                yield from _match_glob(system, info.path, rest)


def _to_file(store: Store, info: FileInfo, *, root: str | None = None, named: bool = False) -> SourceFile:
    folders = [] if root is None else _relative_segments(info.path, root)[:-1]
    matches = [match for folder in folders if (match := _PARTITION.fullmatch(folder))]
    partition = tuple((match[1], None if match[2] == _NULL else unquote(match[2])) for match in matches)
    return SourceFile(store, info.path, info.size or 0, info.mtime_ns or 0, partition, named)


def _relative_segments(path: str, folder: str) -> list[str]:
    return path.removeprefix(folder.rstrip("/")).strip("/").split("/")


def _is_hidden(name: str) -> bool:
    return name.startswith((".", "_"))
