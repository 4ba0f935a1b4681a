"""Files of datasets, as storage lists them: find datasets and staged manifests, delete those of a table."""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from urllib.parse import quote, unquote, urlsplit

from lance.file import LanceFileSession
from lance_namespace.errors import LanceNamespaceError

from lancehouse.lake.dataset import StorageOptions, TableRef, delete_file, manifest_folder, open_files, parse_version
from lancehouse.lake.errors import translate_errors
from lancehouse.lake.manifests import STAGING
from lancehouse.locations import local_folder

DEEPEST = 12
"""Levels of folders below a root that are searched."""

VERSIONS = "_versions"
_OF_TABLES = frozenset({"data", "metadata", "tree"})
"""Folders of a table whose names could also be those of a namespace: where there is a table, they are its own."""
_STAGED = re.compile(r"(?:.*/)?(\d+\.manifest)-[\w-]+")
_SCHEMES = {"s3a": "s3", "s3n": "s3", "wasbs": "abfss"}

Parts = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class StagedManifest:
    """A manifest below a table's location that was not published."""

    file: str
    version: int | None
    """Version that it would become; None if that is not in its name."""
    modified: datetime | None
    """Time of its last modification; None if it is not known."""


def split_location(location: str) -> Parts:
    """Split a location into parts, so that a location inside another one starts with all parts of the other."""
    if folder := local_folder(location):
        return ("file", *Path(os.path.abspath(folder)).parts)  # noqa: PTH100 - `resolve` would follow links
    split = urlsplit(location)
    levels = [unquote(level) for level in split.path.split("/") if level]
    return (f"{_SCHEMES.get(split.scheme, split.scheme)}://{split.netloc}", *levels)


def relative_levels(location: str, root: str) -> Parts | None:
    """Return the folders that lead from a root to a location; None if it is not below the root."""
    place, above = split_location(location), split_location(root)
    return place[len(above) :] if place[: len(above)] == above else None


def list_datasets(root: str, options: StorageOptions | None = None) -> Iterator[str]:
    """Yield the locations of all Lance datasets below a root; folders that start with `_` or a dot are not searched.

    Raises:
        LanceNamespaceError: the root cannot be read. A root that does not exist just yields nothing.
    """
    folder = local_folder(root)
    with translate_errors(root, options or {}):
        if folder is not None:
            all_levels: Iterable[Parts] = _walk_local(folder, ()) if folder.is_dir() else ()
        else:
            all_levels = _walk_remote(open_files(root, options), ())
        for levels in all_levels:
            yield _join_location(root, levels)


def _join_location(root: str, levels: Parts) -> str:
    encoded = [quote(level, safe="") for level in levels] if "://" in root or root.startswith("file:/") else levels
    return "/".join([root.rstrip("/"), *encoded])


def _walk_local(folder: Path, levels: Parts) -> Iterator[Parts]:
    with suppress(FileNotFoundError), os.scandir(folder.joinpath(*levels)) as entries:
        names = sorted(entry.name for entry in entries if entry.is_dir(follow_symlinks=False))
        if VERSIONS in names and _has_manifest(folder.joinpath(*levels, VERSIONS)):
            yield levels
        for name in _folders_to_search(names, levels):
            yield from _walk_local(folder, (*levels, name))


def _walk_remote(session: LanceFileSession, levels: Parts) -> Iterator[Parts]:
    at = "/".join(levels)
    names = sorted(prefix.rstrip("/").rpartition("/")[2] for prefix in session.list_with_delimiter(at).common_prefixes)
    if VERSIONS in names:
        files = session.list_with_delimiter(f"{at}/{VERSIONS}".lstrip("/")).objects
        if any(_is_manifest(file.rpartition("/")[2]) for file in files):
            yield levels
    for name in _folders_to_search(names, levels):
        yield from _walk_remote(session, (*levels, name))


def _folders_to_search(names: Collection[str], levels: Parts) -> list[str]:
    """Return the folders that may hold datasets, without a table's own."""
    if len(levels) >= DEEPEST:
        return []
    own = _OF_TABLES if VERSIONS in names else {"data", "metadata"} if "metadata" in names else frozenset()
    return [name for name in names if name[0] not in "._" and name not in own]


def _has_manifest(folder: Path) -> bool:
    return any(_is_manifest(file.name) for file in folder.iterdir())


def _is_manifest(name: str) -> bool:
    return parse_version(name) is not None


def list_staged_manifests(table: TableRef, branches: Iterable[str] = ()) -> list[StagedManifest]:
    """List the unpublished manifests of a table that is addressed by its location."""
    with translate_errors(table, table.storage_options):
        files = _list_staged_files(table, [STAGING, *map(manifest_folder, (None, *branches))])
        ages = _modification_times(table, files) if files else {}
        return [StagedManifest(file, _parse_version(file), ages.get(file)) for file in files]


def is_staged(file: str) -> bool:
    """Return whether a file below a table's location is one that `list_staged_manifests` returns."""
    return file.startswith(f"{STAGING}/") or _STAGED.fullmatch(file) is not None


def _parse_version(file: str) -> int | None:
    match = _STAGED.fullmatch(file)
    return parse_version(match[1]) if match else None


def _list_staged_files(table: TableRef, folders: Iterable[str]) -> list[str]:
    staged_files: list[str] = []
    root = local_folder(str(table.location))
    session = open_files(str(table.location), table.storage_options)
    for folder in folders:
        if root is not None:
            files = [path.relative_to(root).as_posix() for path in (root / folder).rglob("*") if path.is_file()]
        else:
            files = [str(file) for file in session.list(folder)]
        staged_files += [file for file in files if is_staged(file)]
    return sorted(staged_files)


def _modification_times(table: TableRef, files: Collection[str]) -> dict[str, datetime]:
    """Return when files were written; in an object store, only a dataset that can be opened lists these times."""
    if root := local_folder(str(table.location)):
        times: dict[str, datetime] = {}
        for file in files:
            with suppress(FileNotFoundError):  # published or removed since it was listed
                times[file] = datetime.fromtimestamp((root / file).stat().st_mtime, UTC)
        return times
    try:
        with table.dataset() as dataset:
            rows = [row for batch in dataset.all_files() for row in batch.to_pylist() if row["path"] in files]
    except LanceNamespaceError:
        return {}
    return {row["path"]: row["last_modified"] for row in rows}


# Deleting the files of a table, and nothing else below its location

_DELETES_AT_ONCE = 16

_TABLE = re.compile(
    r"(_versions|_staging|_transactions|_deletions|_indices|_lancehouse)/.+|data/[^/]+\.lance|data/[^/]+/[^/]+\.blob",
)
"""Files of versions, on the main branch or below the folder of another branch."""

_DATA = re.compile("data/|_versions/")
_REFS = re.compile(r"(_refs|_mem_wal)/.+|\.lance-(reserved|deregistered)")
_BRANCH = re.compile(r"_refs/branches/(.+)\.json")
_METADATA = re.compile(
    r"metadata/([^/]+(\.metadata\.json(\.gz)?|\.avro|\.stats|\.puffin)(\.crc)?|\.?version-hint\.text(\.crc)?)"
)
"""Iceberg's metadata files, with the checksums that Hadoop writes as hidden files."""


def remove_dataset(location: str, storage_options: StorageOptions | None = None, *, metadata: bool = False) -> None:
    """Delete a dataset with its branches. It is no error if there is none.

    Other files below the location stay, including datasets. Manifests are deleted first, so that no interruption leaves
    a table that opens but cannot be read; the names of the branches last, so that a second attempt finds them.

    Args:
        location: of the table.
        storage_options: to access it.
        metadata: whether the catalog wrote Iceberg metadata next to the table, which is deleted too.
    """
    options = dict(storage_options or {})
    with translate_errors(location, options):
        all_files = open_files(location, options).list()
        branches = {unquote(match[1]) for file in all_files if (match := _BRANCH.fullmatch(file))}
        table_files = {file for file in all_files if is_table_file(file, branches, metadata=metadata)}
        versions = {file for file in table_files if "_versions/" in file}
        names = {file for file in table_files if file.startswith("_refs/")}
        with ThreadPoolExecutor(_DELETES_AT_ONCE) as pool:
            for files in (versions, table_files - versions - names, names):
                list(pool.map(lambda file: delete_file(location, options, file), files))
        if table_files and (folder := local_folder(location)):
            _remove_empty_folders(folder, table_files)


def is_empty_location(location: str, storage_options: StorageOptions | None = None) -> bool:
    """Return whether a location holds no data of a table, not even data that is not committed yet."""
    options = dict(storage_options or {})
    with translate_errors(location, options):
        return not any(map(_DATA.match, open_files(location, options).list()))


def is_table_file(file: str, branches: Collection[str] = (), *, metadata: bool = False) -> bool:
    """Return whether a file below a table's location belongs to the table, given its branches."""
    below = max((len(f"tree/{branch}/") for branch in branches if file.startswith(f"tree/{branch}/")), default=0)
    if _TABLE.fullmatch(file, below) or _REFS.fullmatch(file):
        return True
    return metadata and _METADATA.fullmatch(file) is not None


def _remove_empty_folders(folder: Path, removed: Collection[str]) -> None:
    """Remove the folders that held the removed files, and `data`, if they are empty now."""
    folders = {parent for file in removed for parent in (folder / file).parents if parent.is_relative_to(folder)}
    folders.add(folder / "data")
    for path in sorted(folders, key=lambda path: len(path.parts), reverse=True):
        # The system refuses to remove a folder that is not empty, is a link, or is gone. A look before would not help:
        # somebody else may write there, or drop the same table, in between.
        with suppress(OSError):
            path.rmdir()
