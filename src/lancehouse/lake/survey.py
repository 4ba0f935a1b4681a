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
from lancehouse.lake.errors import translated
from lancehouse.lake.manifests import STAGING
from lancehouse.lake.versions import folder_of, version_of

DEEPEST = 12
"""Levels of folders below a root that are looked into."""

VERSIONS = "_versions"
_OF_TABLES = frozenset({"data", "metadata", "tree"})
"""Folders of a table whose names are no different from those of a namespace."""
_STAGED = re.compile(r"(?:.*/)?(\d+\.manifest)-[\w-]+")
_SCHEMES = {"s3a": "s3", "s3n": "s3", "wasbs": "abfss"}

Parts = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Staged:
    """A manifest that lies beside its place, below a table's location."""

    file: str
    version: int | None
    """The one that it would make."""
    modified: datetime | None
    """None where storage does not tell."""


def parts(location: str) -> Parts:
    """A location taken apart, so that one that lies in another begins with all of the other's parts."""
    if folder := local_folder(location):
        return ("file", *Path(os.path.abspath(folder)).parts)  # noqa: PTH100 - `resolve` would follow links
    split = urlsplit(location)
    levels = [unquote(level) for level in split.path.split("/") if level]
    return (f"{_SCHEMES.get(split.scheme, split.scheme)}://{split.netloc}", *levels)


def relative(location: str, root: str) -> Parts | None:
    """The folders that lead from a root to a location; None if it is not below it."""
    place, above = parts(location), parts(root)
    return place[len(above) :] if place[: len(above)] == above else None


def datasets(root: str, options: StorageOptions | None = None) -> Iterator[str]:
    """The locations of all Lance datasets below a place; what begins with `_` or a dot is not looked into.

    Raises:
        LanceNamespaceError: the place cannot be looked at. None is there: nothing is found.
    """
    folder = local_folder(root)
    with translated(root, options or {}):
        if folder is not None:
            found: Iterable[Parts] = _local(folder, ()) if folder.is_dir() else ()
        else:
            found = _remote(LanceFileSession(root, storage_options=dict(options or {}) or None), ())
        for levels in found:
            yield _below(root, levels)


def _below(root: str, levels: Parts) -> str:
    encoded = [quote(level, safe="") for level in levels] if "://" in root or root.startswith("file:/") else levels
    return "/".join([root.rstrip("/"), *encoded])


def _local(folder: Path, levels: Parts) -> Iterator[Parts]:
    with suppress(FileNotFoundError), os.scandir(folder.joinpath(*levels)) as entries:
        names = sorted(entry.name for entry in entries if entry.is_dir(follow_symlinks=False))
        if VERSIONS in names and _holds_manifest(folder.joinpath(*levels, VERSIONS)):
            yield levels
        for name in _worth(names, levels):
            yield from _local(folder, (*levels, name))


def _remote(session: LanceFileSession, levels: Parts) -> Iterator[Parts]:
    at = "/".join(levels)
    names = sorted(prefix.rstrip("/").rpartition("/")[2] for prefix in session.list_with_delimiter(at).common_prefixes)
    if VERSIONS in names:
        files = session.list_with_delimiter(f"{at}/{VERSIONS}".lstrip("/")).objects
        if any(_is_manifest(file.rpartition("/")[2]) for file in files):
            yield levels
    for name in _worth(names, levels):
        yield from _remote(session, (*levels, name))


def _worth(names: Collection[str], levels: Parts) -> list[str]:
    """The folders that may hold datasets: none of a table's own."""
    if len(levels) >= DEEPEST:
        return []
    own = _OF_TABLES if VERSIONS in names else {"data", "metadata"} if "metadata" in names else frozenset()
    return [name for name in names if name[0] not in "._" and name not in own]


def _holds_manifest(folder: Path) -> bool:
    return any(_is_manifest(file.name) for file in folder.iterdir())


def _is_manifest(name: str) -> bool:
    return version_of(name) is not None


def staged(table: TableRef, branches: Iterable[str] = ()) -> list[Staged]:
    """The manifests of a table, addressed by its location, that lie beside their place."""
    with translated(table, table.storage_options):
        files = _staged_files(table, [STAGING, *map(folder_of, (None, *branches))])
        ages = _modified(table, files) if files else {}
        return [Staged(file, _version(file), ages.get(file)) for file in files]


def is_staged(file: str) -> bool:
    """Whether a file below a table's location is one that `staged` tells of."""
    return file.startswith(f"{STAGING}/") or _STAGED.fullmatch(file) is not None


def _version(file: str) -> int | None:
    match = _STAGED.fullmatch(file)
    return version_of(match[1]) if match else None


def _staged_files(table: TableRef, folders: Iterable[str]) -> list[str]:
    found: list[str] = []
    root = local_folder(str(table.location))
    session = LanceFileSession(str(table.location), storage_options=dict(table.storage_options) or None)
    for folder in folders:
        if root is not None:
            files = [path.relative_to(root).as_posix() for path in (root / folder).rglob("*") if path.is_file()]
        else:
            files = [str(file) for file in session.list(folder)]
        found += [file for file in files if is_staged(file)]
    return sorted(found)


def _modified(table: TableRef, files: Collection[str]) -> dict[str, datetime]:
    """When files were written: of an object store, only a dataset that opens can tell."""
    if root := local_folder(str(table.location)):
        with suppress(FileNotFoundError):
            return {file: datetime.fromtimestamp((root / file).stat().st_mtime, UTC) for file in files}
        return {}
    try:
        with table.opened() as dataset:
            rows = [row for batch in dataset.all_files() for row in batch.to_pylist() if row["path"] in files]
    except LanceNamespaceError:
        return {}
    return {row["path"]: row["last_modified"] for row in rows}
