"""A table copied to another place, file by file: data first, what makes it a version last.

A copy that is interrupted is no table yet, or an older version of it; the next one goes on where it was. Files of Lance
never change once they are there, so one of the same name and length is not copied twice.

Branches stay behind: what they share with the main one is named by its whole address, which would lead back to the
place that was copied.
"""

from __future__ import annotations

import json
import re
import shutil
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from uuid import uuid4

from lance.file import LanceFileSession
from lance_namespace.errors import InvalidTableStateError

from lancehouse.lake.dataset import TableRef, local_folder
from lancehouse.lake.errors import translated
from lancehouse.lake.fragments import Place, place
from lancehouse.lake.manifests import Manifest, Manifests
from lancehouse.lake.removal import is_ours
from lancehouse.lake.versions import manifests

BYTES_A_TASK = 256 * 2**20
FILES_A_TASK = 1000

_DATA = re.compile(r"(data|_transactions|_deletions|_indices)/.+")
_REFS = re.compile(r"_refs/tags/.+")
_VERSION = re.compile(r"_versions/\d+\.manifest")
_HINT = re.compile(r"_versions/[\w.-]+\.json")
"""Tells readers where to begin to look; it changes with every version."""
PHASES = (_DATA, _VERSION, _REFS, _HINT)
"""What is copied before what: a reader never finds a version whose files are not there."""


@dataclass(frozen=True, slots=True)
class Copying:
    """What has to be copied of a table, in phases of tasks for `execute`."""

    version: int
    files: int
    bytes: int
    phases: Sequence[Sequence[str]] = field(repr=False)
    there: int = 0
    """Files that are there already."""
    branches: Sequence[str] = ()
    """Those that stay behind."""
    tags: Sequence[str] = ()
    """Those of branches, which stay behind too."""


def plan(source: TableRef, target: Place | None) -> Copying:
    """See what of a table, as it is now, its copy lacks.

    Args:
        source: by its name or its location.
        target: where the copy goes; None for a place where nothing is.

    Raises:
        TableNotFoundError: there is no such table, or it is only declared.
        InvalidTableStateError: files of the table lie in another place than its own.
    """
    at = place(source)
    with source.opened() as dataset:
        version, branches = dataset.version, sorted(dataset.branches.list())
        branch_of = {name: tag["branch"] for name, tag in dataset.tags.list().items()}
        tags = {name for name, branch in branch_of.items() if not branch}
        versions = {number: file for number, file in _versions(at).items() if number <= version}
        _require_own_files(source, at, versions)
        listed = [(row["path"], row["size_bytes"]) for batch in dataset.all_files() for row in batch.to_pylist()]
    known = set(versions.values())
    wanted = {
        file: size for file, size in listed if is_copied(file, tags) and (file in known or not _VERSION.fullmatch(file))
    }
    there = {file for file in (present(target, wanted) if target else ()) if not _may_change(file)}
    missing = [(file, size) for file, size in wanted.items() if file not in there]
    new = [size for file, size in missing if not _may_change(file)]
    phases = [_tasks([each for each in missing if phase.fullmatch(each[0])]) for phase in PHASES]
    return Copying(version, len(new), sum(new), phases, len(there), branches, sorted(branch_of.keys() - tags))


def is_copied(file: str, tags: Iterable[str]) -> bool:
    """Whether a file below a table's location goes with it; of tags, only those of the main branch do."""
    if _REFS.fullmatch(file):
        return file.removeprefix("_refs/tags/").removesuffix(".json") in tags
    return is_ours(file) and any(phase.fullmatch(file) for phase in PHASES)


def execute(source: Place, target: Place, task: str) -> str:
    """Copy the files of a task; how many bytes they have."""
    files: list[tuple[str, int]] = json.loads(task)
    with translated(target.location, {**source.storage_options, **target.storage_options}):
        for file, _ in files:
            _copy(source, target, file)
    return str(sum(size for _, size in files))


def is_part(source: TableRef, target: Place) -> bool | None:
    """Whether what is at a place is a copy of a table, at the same version or an older one; None if nothing is."""
    ours = _versions(target)
    if not ours:
        return None
    at, newest = place(source), ours[max(ours)]
    there = Manifests(target.location, target.storage_options).find(newest)
    return there is not None and Manifests(at.location, at.storage_options).find(newest) == there


def present(target: Place, wanted: Mapping[str, int]) -> set[str]:
    """Files that are there as a whole. In an object store nothing else is; on a disk the length tells."""
    if folder := local_folder(target.location):
        found = ((file, folder / file) for file in wanted)
        return {file for file, path in found if path.is_file() and path.stat().st_size == wanted[file]}
    with translated(target.location, target.storage_options):
        return wanted.keys() & set(map(str, _session(target).list()))


def _versions(at: Place) -> dict[int, str]:
    return manifests(TableRef(at.location, at.storage_options))


def _require_own_files(source: TableRef, at: Place, versions: Mapping[int, str]) -> None:
    """A clone has bases from its first version on; a table that was given one has it in its latest."""
    stored = Manifests(at.location, at.storage_options)
    for version in {min(versions), max(versions)} if versions else set():
        if Manifest.parse(stored.read(versions[version])).has_bases:
            raise InvalidTableStateError(
                f"{source}: some of its files lie in another place, as those of a shallow clone do, and a copy would "
                "still need them there: read it and write it anew instead"
            )


def _may_change(file: str) -> bool:
    return bool(_REFS.fullmatch(file) or _HINT.fullmatch(file))


def _tasks(files: Sequence[tuple[str, int]]) -> list[str]:
    """Files in tasks of a size that is worth a task."""
    tasks: list[list[tuple[str, int]]] = []
    room = 0
    for file, size in sorted(files):
        if not tasks or room < size or len(tasks[-1]) >= FILES_A_TASK:
            tasks.append([])
            room = BYTES_A_TASK
        tasks[-1].append((file, size))
        room -= size
    return [json.dumps(task) for task in tasks]


def _copy(source: Place, target: Place, file: str) -> None:
    """Copy one file: nobody sees half of it."""
    here, there = local_folder(source.location), local_folder(target.location)
    with tempfile.TemporaryDirectory() as scratch:
        if here is None:
            copy = Path(scratch) / "file"
            _session(source).download_file(file, copy)
        else:
            copy = here / file
        if there is None:
            _session(target).upload_file(copy, file)
            return
        (there / file).parent.mkdir(parents=True, exist_ok=True)
        part = (there / file).parent / f".{uuid4().hex}.part"
        try:
            shutil.copyfile(copy, part)
            part.replace(there / file)
        finally:
            part.unlink(missing_ok=True)


def _session(place: Place) -> LanceFileSession:
    return LanceFileSession(place.location, storage_options=dict(place.storage_options) or None)
