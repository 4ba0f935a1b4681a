"""What lies in storage, whatever catalogs say: datasets below a place, and manifests that never got to theirs."""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from urllib.parse import quote, unquote, urlsplit

from lance.file import LanceFileSession
from lance_namespace.errors import LanceNamespaceError

from lancehouse.lake.dataset import StorageOptions, TableRef, local_folder
from lancehouse.lake.errors import translate_errors
from lancehouse.lake.manifests import STAGING
from lancehouse.lake.versions import manifest_folder, parse_version

DEEPEST = 12
"""Levels of folders below a root that are looked into."""

VERSIONS = "_versions"
_OF_TABLES = frozenset({"data", "metadata", "tree"})
"""Folders of a table whose names are no different from those of a namespace."""
_STAGED = re.compile(r"(?:.*/)?(\d+\.manifest)-[\w-]+")
_SCHEMES = {"s3a": "s3", "s3n": "s3", "wasbs": "abfss"}

Parts = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class StagedManifest:
    """A manifest that lies beside its place, below a table's location."""

    file: str
    version: int | None
    """The one that it would make."""
    modified: datetime | None
    """None where storage does not tell."""


def split_location(location: str) -> Parts:
    """A location taken apart, so that one that lies in another begins with all of the other's parts."""
    if folder := local_folder(location):
        return ("file", *Path(os.path.abspath(folder)).parts)  # noqa: PTH100 - `resolve` would follow links
    split = urlsplit(location)
    levels = [unquote(level) for level in split.path.split("/") if level]
    return (f"{_SCHEMES.get(split.scheme, split.scheme)}://{split.netloc}", *levels)


def relative_levels(location: str, root: str) -> Parts | None:
    """The folders that lead from a root to a location; None if it is not below it."""
    place, above = split_location(location), split_location(root)
    return place[len(above) :] if place[: len(above)] == above else None


def list_datasets(root: str, options: StorageOptions | None = None) -> Iterator[str]:
    """The locations of all Lance datasets below a place; what begins with `_` or a dot is not looked into.

    Raises:
        LanceNamespaceError: the place cannot be looked at. None is there: nothing is found.
    """
    folder = local_folder(root)
    with translate_errors(root, options or {}):
        if folder is not None:
            all_levels: Iterable[Parts] = _walk_local(folder, ()) if folder.is_dir() else ()
        else:
            all_levels = _walk_remote(LanceFileSession(root, storage_options=dict(options or {}) or None), ())
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
    """The folders that may hold datasets: none of a table's own."""
    if len(levels) >= DEEPEST:
        return []
    own = _OF_TABLES if VERSIONS in names else {"data", "metadata"} if "metadata" in names else frozenset()
    return [name for name in names if name[0] not in "._" and name not in own]


def _has_manifest(folder: Path) -> bool:
    return any(_is_manifest(file.name) for file in folder.iterdir())


def _is_manifest(name: str) -> bool:
    return parse_version(name) is not None


def list_staged_manifests(table: TableRef, branches: Iterable[str] = ()) -> list[StagedManifest]:
    """The manifests of a table, addressed by its location, that lie beside their place."""
    with translate_errors(table, table.storage_options):
        files = _list_staged_files(table, [STAGING, *map(manifest_folder, (None, *branches))])
        ages = _modification_times(table, files) if files else {}
        return [StagedManifest(file, _parse_version(file), ages.get(file)) for file in files]


def is_staged(file: str) -> bool:
    """Whether a file below a table's location is one that `list_staged_manifests` tells of."""
    return file.startswith(f"{STAGING}/") or _STAGED.fullmatch(file) is not None


def _parse_version(file: str) -> int | None:
    match = _STAGED.fullmatch(file)
    return parse_version(match[1]) if match else None


def _list_staged_files(table: TableRef, folders: Iterable[str]) -> list[str]:
    staged_files: list[str] = []
    root = local_folder(str(table.location))
    session = LanceFileSession(str(table.location), storage_options=dict(table.storage_options) or None)
    for folder in folders:
        if root is not None:
            files = [path.relative_to(root).as_posix() for path in (root / folder).rglob("*") if path.is_file()]
        else:
            files = [str(file) for file in session.list(folder)]
        staged_files += [file for file in files if is_staged(file)]
    return sorted(staged_files)


def _modification_times(table: TableRef, files: Collection[str]) -> dict[str, datetime]:
    """When files were written: of an object store, only a dataset that opens can tell."""
    if root := local_folder(str(table.location)):
        with suppress(FileNotFoundError):
            return {file: datetime.fromtimestamp((root / file).stat().st_mtime, UTC) for file in files}
        return {}
    try:
        with table.dataset() as dataset:
            rows = [row for batch in dataset.all_files() for row in batch.to_pylist() if row["path"] in files]
    except LanceNamespaceError:
        return {}
    return {row["path"]: row["last_modified"] for row in rows}
