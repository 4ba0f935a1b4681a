"""Delete the files of a table, and nothing else below its location."""

from __future__ import annotations

import re
from collections.abc import Collection
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.parse import unquote

from lance.file import LanceFileSession

from lancehouse.lake.dataset import StorageOptions, delete_file, local_folder
from lancehouse.lake.errors import translate_errors

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
        all_files = LanceFileSession(location, storage_options=options or None).list()
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
        return not any(map(_DATA.match, LanceFileSession(location, storage_options=options or None).list()))


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
        if path.is_dir() and not path.is_symlink() and not any(path.iterdir()):
            path.rmdir()
