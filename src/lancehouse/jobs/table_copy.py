"""Copy a table to another location, file by file, so that an interrupted copy can be resumed.

Data files are copied first and manifests after them, so an interrupted copy is no table yet, or an older version of it;
the next attempt continues from there. Lance's files never change once they are written, so one of the same name and
length is not copied twice.

Branches are not copied: what they share with the main branch is referenced by an absolute path, which would lead back
to the location that was copied.
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

from lancehouse.jobs.address import TableAddress
from lancehouse.jobs.engine import Engine
from lancehouse.jobs.job import Job
from lancehouse.lake.chunked_scan import group_up_to
from lancehouse.lake.commits import TableLocation, locate_table
from lancehouse.lake.dataset import TableRef, open_files
from lancehouse.lake.dataset_files import is_table_file
from lancehouse.lake.errors import translate_errors
from lancehouse.lake.manifests import Manifest, ManifestStore
from lancehouse.lake.versions import list_manifests
from lancehouse.locations import local_folder

BYTES_A_TASK = 256 * 2**20
"""Largest total size of the files of a task, unless a single file is larger."""
FILES_A_TASK = 1000
"""Largest number of files of a task."""

_DATA = re.compile(r"(data|_transactions|_deletions|_indices)/.+")
_REFS = re.compile(r"_refs/tags/.+")
_VERSION = re.compile(r"_versions/\d+\.manifest")
_HINT = re.compile(r"_versions/[\w.-]+\.json")
"""Hint for readers about the latest version; it changes with every version."""
PHASES = (_DATA, _VERSION, _REFS, _HINT)
"""Files by the order in which they are copied: a reader never finds a version whose files are missing."""


@dataclass(frozen=True, slots=True)
class CopyPlan:
    """The files that have to be copied, in phases of tasks for `execute`."""

    version: int
    files: int
    bytes: int
    phases: Sequence[Sequence[str]] = field(repr=False)
    existing: int = 0
    """Number of files that the target has already."""
    branches: Sequence[str] = ()
    """Branches that are not copied."""
    tags: Sequence[str] = ()
    """Tags of branches, which are not copied either."""


def copy(engine: Engine, source: TableAddress, target: TableAddress) -> CopyPlan:
    """Copy the files that a table's copy lacks, phase by phase. An interrupted copy is resumed.

    Args:
        engine: runs the tasks.
        source: the table.
        target: its copy, which must be declared in its catalog; each process asks for the credentials of both.

    Returns:
        The plan that was carried out.

    Raises:
        LanceNamespaceError: a file could not be copied; files that were copied stay.
    """
    here, there = Job(source), Job(target)
    copy_plan = plan(source.to_ref(), there.write_location())
    for phase in copy_plan.phases:
        engine.run(phase, lambda task: [execute(here.write_location(), there.write_location(), task)])
    return copy_plan


def plan(source: TableRef, target: TableLocation | None) -> CopyPlan:
    """Find the files of a table's current version and its history that the copy lacks.

    Args:
        source: the table to copy.
        target: location of the copy; None for a location that is empty.

    Raises:
        TableNotFoundError: there is no such table, or it is only declared.
        InvalidTableStateError: some files of the table lie outside its location.
    """
    at = locate_table(source)
    with source.dataset() as dataset:
        version, branches = dataset.version, sorted(dataset.branches.list())
        branch_of = {name: tag["branch"] for name, tag in dataset.tags.list().items()}
        tags = {name for name, branch in branch_of.items() if not branch}
        versions = {number: file for number, file in _manifest_files(at).items() if number <= version}
        _require_own_files(source, at, versions)
        listed = [(row["path"], row["size_bytes"]) for batch in dataset.all_files() for row in batch.to_pylist()]
    manifest_files = set(versions.values())
    sizes = {
        file: size
        for file, size in listed
        if is_copied_file(file, tags) and (file in manifest_files or not _VERSION.fullmatch(file))
    }
    existing = {file for file in (list_existing_files(target, sizes) if target else ()) if not _is_mutable(file)}
    missing = [(file, size) for file, size in sizes.items() if file not in existing]
    new = [size for file, size in missing if not _is_mutable(file)]
    phases = [_split_into_tasks([file for file in missing if phase.fullmatch(file[0])]) for phase in PHASES]
    return CopyPlan(version, len(new), sum(new), phases, len(existing), branches, sorted(branch_of.keys() - tags))


def is_copied_file(file: str, tags: Iterable[str]) -> bool:
    """Return whether a file below a table's location is copied; only tags of the main branch are."""
    if _REFS.fullmatch(file):
        return file.removeprefix("_refs/tags/").removesuffix(".json") in tags
    return is_table_file(file) and any(phase.fullmatch(file) for phase in PHASES)


def execute(source: TableLocation, target: TableLocation, task: str) -> str:
    """Copy the files of a task; return their total size in bytes."""
    files: list[tuple[str, int]] = json.loads(task)
    with translate_errors(target.location, {**source.storage_options, **target.storage_options}):
        for file, _ in files:
            _copy_file(source, target, file)
    return str(sum(size for _, size in files))


def is_copy(source: TableRef, target: TableLocation) -> bool | None:
    """Return whether the target is a copy of a table, at the same version or an older one; None if nothing is there."""
    target_versions = _manifest_files(target)
    if not target_versions:
        return None
    at, newest = locate_table(source), target_versions[max(target_versions)]
    target_manifest = ManifestStore(target.location, target.storage_options).find(newest)
    return (
        target_manifest is not None and ManifestStore(at.location, at.storage_options).find(newest) == target_manifest
    )


def list_existing_files(target: TableLocation, sizes: Mapping[str, int]) -> set[str]:
    """Return the files that the target has completely.

    An object store never shows partial files; on a disk the length is compared.
    """
    if folder := local_folder(target.location):
        paths = ((file, folder / file) for file in sizes)
        return {file for file, path in paths if path.is_file() and path.stat().st_size == sizes[file]}
    with translate_errors(target.location, target.storage_options):
        return sizes.keys() & set(map(str, _open_session(target).list()))


def _manifest_files(at: TableLocation) -> dict[int, str]:
    return list_manifests(TableRef(at.location, at.storage_options))


def _require_own_files(source: TableRef, at: TableLocation, versions: Mapping[int, str]) -> None:
    """Check that all files of a table lie below its location.

    The first and the last version are enough: a clone has base paths from its first version on, and a table that was
    given one later has it in its latest.
    """
    stored = ManifestStore(at.location, at.storage_options)
    for version in {min(versions), max(versions)} if versions else set():
        if Manifest.parse(stored.read(versions[version])).has_bases:
            raise InvalidTableStateError(
                f"{source}: some of its files lie in another place, as those of a shallow clone do, and a copy would "
                "still need them there: read it and write it anew instead"
            )


def _is_mutable(file: str) -> bool:
    return bool(_REFS.fullmatch(file) or _HINT.fullmatch(file))


def _split_into_tasks(files: Sequence[tuple[str, int]]) -> list[str]:
    """Group files into tasks of up to `BYTES_A_TASK` bytes and `FILES_A_TASK` files."""
    tasks = group_up_to(sorted(files), lambda file: file[1], BYTES_A_TASK, FILES_A_TASK)
    return [json.dumps(task) for task in tasks]


def _copy_file(source: TableLocation, target: TableLocation, file: str) -> None:
    """Copy one file, so that no reader of the target sees half of it."""
    here, there = local_folder(source.location), local_folder(target.location)
    with tempfile.TemporaryDirectory() as scratch:
        if here is None:
            copy = Path(scratch) / "file"
            _open_session(source).download_file(file, copy)
        else:
            copy = here / file
        if there is None:
            _open_session(target).upload_file(copy, file)
            return
        (there / file).parent.mkdir(parents=True, exist_ok=True)
        part = (there / file).parent / f".{uuid4().hex}.part"
        try:
            shutil.copyfile(copy, part)
            part.replace(there / file)
        finally:
            part.unlink(missing_ok=True)


def _open_session(place: TableLocation) -> LanceFileSession:
    return open_files(place.location, place.storage_options)
