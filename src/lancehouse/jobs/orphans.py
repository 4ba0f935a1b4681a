"""Clean up a table: remove old versions, and orphaned files that no version references.

A writer that is killed leaves orphaned files, and so does every task whose result was not committed. The files of a
writer that is still at work look the same; only their age tells them apart.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Collection, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime, timedelta
from itertools import groupby, islice
from typing import NamedTuple
from uuid import uuid4

import lance
from lance_namespace import BatchDeleteTableVersionsRequest
from lance_namespace.errors import InvalidInputError, InvalidTableStateError, LanceNamespaceError
from lance_namespace_urllib3_client.models.version_range import VersionRange

from lancehouse.jobs.address import TableAddress
from lancehouse.jobs.engine import Engine
from lancehouse.lake.commits import TableLocation, locate_table
from lancehouse.lake.dataset import MAIN, TableRef, delete_file, open_files, parse_version
from lancehouse.lake.errors import translate_errors
from lancehouse.lake.job_records import FOLDER as RECORDS
from lancehouse.lake.manifests import Manifest, ManifestStore
from lancehouse.lake.versions import list_manifests
from lancehouse.locations import local_folder
from lancehouse.schema.definitions import definitions

logger = logging.getLogger(__name__)

DAY = timedelta(days=1)
OLDEST = 365_000 * DAY
"""Largest age that is accepted: about a thousand years."""
LEAST_AGE = timedelta(hours=1)
"""Younger files may belong to a writer that is about to commit them."""
DEFAULT_AGE = 7 * DAY
"""Default age from which an orphaned file may be removed, and a job without a newer record is taken for abandoned."""
FILES_AT_ONCE = 1000
"""How many files one call of `execute` removes at most."""
TASKS_AT_ONCE = 256
"""How many tasks are held in memory, as their number is not known in advance."""
MAX_NAMES = 1000
"""How many file names `Orphans.names` holds at most."""

_AT_ONCE = 16
_CANDIDATE = re.compile(
    r"(_staging|_transactions|_deletions|_indices)/.+|_lancehouse/(?!errors/).+|_lancehouse/errors/column-\d+/.+"
    r"|data/[^/]+\.lance|data/[^/]+/[^/]+\.blob"
    r"|_versions/\d+\.manifest-[\w-]+|(data|_versions)/(.+/)?\.tmp[^/]+"
)
"""Files that Lance and Lancehouse write before a version references them, relative to the folder of their branch.

On a local disk a file is called `.tmp…` until it is complete.
"""
_NOTE = re.compile(rf"{RECORDS}/jobs/([^/]+)/.+")
_ERRORS = re.compile(rf"{RECORDS}/errors/column-(\d+)/.+")
_ON_ITS_WAY = re.compile(r"(?:.*/)?(\d+\.manifest)-[\w-]+")
_DETACHED = re.compile(r".*/d(\d+)\.manifest")
_DATA_FILE = re.compile(rb"([\w-]+)\.lance")


@dataclass(frozen=True, slots=True)
class CleanupResult:
    """What a cleanup of old versions has removed, or would remove in a dry run."""

    versions: int
    bytes: int
    tagged: tuple[str, ...] = ()
    """Tags that keep versions which are old enough to be removed."""
    left: int = field(default=0, compare=False)
    """Versions that are left."""


class StoredFile(NamedTuple):
    """A file below a table's location: path relative to it, size in bytes, time of the last write (UTC)."""

    name: str
    size: int
    modified: datetime


@dataclass(frozen=True, slots=True)
class Orphans:
    """Number, total size and names of files that no version references."""

    files: int = 0
    bytes: int = 0
    names: tuple[str, ...] = ()
    """Paths relative to the table's location; the first `MAX_NAMES` of them."""

    def __add__(self, more: Orphans) -> Orphans:
        names = (*self.names, *more.names)[:MAX_NAMES]
        return Orphans(self.files + more.files, self.bytes + more.bytes, names)


@dataclass(frozen=True, slots=True)
class RemovalTask:
    """Some files to remove, and what was known when they were found; can be sent to other processes."""

    files: list[tuple[str, int]]
    """Names and sizes."""
    versions: dict[str, int]
    """Latest version of each branch."""
    finished_jobs: set[str]
    """Jobs that nobody will resume."""

    def summarize(self) -> Orphans:
        """Return the number, size and names of the files."""
        names = tuple(name for name, _ in self.files[:MAX_NAMES])
        return Orphans(len(self.files), sum(size for _, size in self.files), names)


def run_cleanup(
    engine: Engine, address: TableAddress, older_than: timedelta, *, dry_run: bool, keep: int = 1
) -> CleanupResult:
    """Remove old versions, as one piece. See `cleanup`."""
    require_age(older_than)

    def work(_: int) -> list[str]:
        return [json.dumps(asdict(cleanup(address.to_ref(), older_than, dry_run=dry_run, keep=keep)))]

    [text] = engine.run([0], work)
    result = json.loads(text)
    return CleanupResult(**{**result, "tagged": tuple(result["tagged"])})


def run_removal(
    engine: Engine, address: TableAddress, older_than: timedelta | None, *, dry_run: bool, no_writers: bool
) -> Orphans:
    """Remove the files that no version references: they are listed here, and removed in pieces. See `plan`."""
    tasks = plan(address.to_ref(), older_than, no_writers=no_writers)
    removed, job = Orphans(), uuid4().hex
    while some := list(islice(tasks, TASKS_AT_ONCE)):
        if dry_run:
            removed = sum(map(RemovalTask.summarize, some), removed)
            continue
        for text in engine.run(some, lambda task: [json.dumps(asdict(execute(address.to_ref(job), task)))]):
            result = json.loads(text)
            removed += Orphans(result["files"], result["bytes"], tuple(result["names"]))
    return removed


def cleanup(
    table: TableRef, older_than: timedelta = 14 * DAY, *, dry_run: bool = False, keep: int = 1
) -> CleanupResult:
    """Remove old versions and the data that no other version needs. The current version and tagged ones stay.

    Where the catalog manages versions, it removes its record of them too.

    Args:
        table: the table; its branch says whose versions are cleaned up.
        older_than: minimum age of the versions to remove.
        dry_run: remove nothing, and return what would be removed.
        keep: how many of the newest versions stay, whatever their age.

    Raises:
        InvalidTableStateError: storage has versions that the catalog which manages them never accepted, or another
            table lies among the data of this one.
    """
    require_latest(table)
    require_age(older_than)
    at = locate_table(table)
    if nested := next((file for file in _list_files(at, "data") if "/_versions/" in file), None):
        raise InvalidTableStateError(
            f"{table}: another table lies at {nested.partition('/_versions/')[0]} below it, where Lance would take its "
            "data for old files of this one; move one of them"
        )
    before = _list_stored_versions(table, at)
    with table.dataset() as dataset:
        if at.is_managed and before and max(before) > dataset.version:
            raise InvalidTableStateError(
                f"{table}: storage has a version {max(before)}, but the catalog is at {dataset.version}: a writer "
                "bypassed the catalog; `lancehouse table manage --by impl --adopt` accepts what is there"
            )
        tagged = _find_old_tags(table, dataset, older_than)
        act = dataset.explain_cleanup_old_versions if dry_run else dataset.cleanup_old_versions
        # Lance keeps the newest one anyway, and asks storage once more if told so.
        more = {"retain_versions": keep} if keep > 1 else {}
        result = act(older_than=older_than, error_if_tagged_old_versions=False, **more)
    stats = result.stats if dry_run else result
    if at.is_managed and not dry_run:
        stored = _list_stored_versions(table, at) if stats.old_versions else before
        # Not only those that were removed now: an earlier call may have failed after it had removed some.
        _forget_versions(table, sorted(set(range(1, max(before, default=1))) - stored))
    remaining = len(before) - stats.old_versions
    return CleanupResult(versions=stats.old_versions, bytes=stats.bytes_removed, tagged=tagged, left=remaining)


def plan(table: TableRef, older_than: timedelta | None = None, *, no_writers: bool = False) -> Iterator[RemovalTask]:
    """Find the files that no version of any branch references, and yield tasks for `execute`, each of at most 1000
    files.

    Files are listed while the tasks are consumed; only the names that versions and jobs reference are held in memory.
    The records of a job, and the files that they name, stay until its last record is old enough: until then it may be
    resumed.

    Args:
        table: the table, with all its branches.
        older_than: minimum age of the files to remove; a week by default.
        no_writers: the caller guarantees that nobody writes to the table now. Files may then be removed whatever their
            age, except those of jobs that can be resumed, unless `older_than` gives an age for these.

    Raises:
        InvalidInputError: files of this age may still belong to a writer.
    """
    require_latest(table)
    age = older_than if older_than is not None else timedelta(0) if no_writers else DEFAULT_AGE
    require_age(age)
    if age < LEAST_AGE and not no_writers:
        raise InvalidInputError(
            f"{table}: files that are younger than an hour may belong to somebody who is about to commit them, so "
            f"older_than={older_than} is refused; wait, or stop all writers and say so with no_writers"
        )
    now = datetime.now(UTC)
    return _plan_tasks(_strip_branch(table), now - age, now - (DEFAULT_AGE if older_than is None else older_than))


def list_unnamed_files(table: TableRef, older_than: timedelta = DEFAULT_AGE) -> Iterator[StoredFile]:
    """Yield all files of a table that no version of any branch references, whatever their age.

    Some of them may belong to a writer that is still at work.

    Args:
        table: the table, with all its branches.
        older_than: a job whose last record is older is taken for abandoned; the files of other jobs are left out.
    """
    now = datetime.now(UTC)
    with _strip_branch(table).dataset() as dataset:
        branches = _open_branches(dataset)
        yield from _create_search(locate_table(table), branches, now, now - older_than).orphans(
            _list_all_files(dataset)
        )


def execute(table: TableRef, task: RemovalTask) -> Orphans:
    """Remove the files of a task, and return what was removed.

    Files stay that a version or a job has come to reference since the plan was made.
    """
    all_branches = _strip_branch(table)
    at = locate_table(all_branches)
    with all_branches.dataset() as dataset:
        branches = _open_branches(dataset)
        referenced = _find_referenced_names(at, branches, task.versions)
    # Checked again here, because versions may have been committed and jobs started since the plan was made.
    for job, files in _read_job_files(at).items():
        referenced |= files if job not in task.finished_jobs else set()
    unreferenced = [file for file in task.files if owner(_strip_branch_prefix(file[0], branches)) not in referenced]
    _delete_files(at, [name for name, _ in unreferenced])
    return replace(task, files=unreferenced).summarize()


def discard(table: TableRef, owners: Collection[str], since: int) -> None:
    """Remove files that were written for a commit that was not made. Failures are logged; `remove_orphans` finds the
    rest.

    Args:
        table: the table, on the branch that the files were written for.
        owners: data files, index segments or files of `_staging`, in the form that `owner` returns.
        since: the version for which they were written; what it or a later version references stays.
    """
    try:
        if owners:
            _discard_owned(table, owners, since)
    except LanceNamespaceError as error:
        logger.warning("%s: files may be left over; remove_orphans deletes them: %s", table, error)


def _discard_owned(table: TableRef, owners: Collection[str], since: int) -> None:
    at, above = locate_table(table), _branch_prefix(table.branch)
    with table.dataset() as dataset:
        referenced = set(_list_tracked_names(dataset, since))
    with translate_errors(table, at.storage_options):
        session = open_files(at.location, at.storage_options)
        files: list[str] = []
        for name in set(owners) - referenced:
            folder = name.partition("/")[0]
            alone = f"{above}{name}.lance" if folder == "data" else name
            files += [*session.list(f"{above}{name}"), *([alone] if folder != "_indices" else [])]
    _delete_files(at, files)


def owner(file: str) -> str:
    """Return what a file is part of: a data file together with its blobs, an index segment, or the file itself.

    These names are unique over all branches. A temporary file is part of nothing else.

    Args:
        file: path relative to the folder of its branch.
    """
    folder, _, rest = file.partition("/")
    if _is_temporary(file):
        return file
    return f"{folder}/{rest.partition('/')[0].removesuffix('.lance')}" if folder in ("data", "_indices") else file


def _is_temporary(file: str) -> bool:
    return file.rpartition("/")[2].startswith(".tmp")


def require_latest(table: TableRef) -> None:
    """Check that a table reference names no version or tag: only the latest version can be changed.

    Raises:
        InvalidInputError: it names one.
    """
    if table.version is not None or table.tag is not None:
        raise InvalidInputError(f"{table}: only a table or a branch can be maintained, not one of its versions")


def require_age(older_than: timedelta) -> None:
    """Check that `older_than` is a timedelta that is not negative and not absurdly large.

    Raises:
        InvalidInputError: it is not.
    """
    if not isinstance(older_than, timedelta) or not timedelta(0) <= older_than <= OLDEST:
        raise InvalidInputError(f"older_than is an age, such as timedelta(days=14), not {older_than!r}")


def _plan_tasks(table: TableRef, until: datetime, jobs_until: datetime) -> Iterator[RemovalTask]:
    at = locate_table(table)
    with table.dataset() as dataset:
        branches = _open_branches(dataset)
        versions = {name: branch.version for name, branch in branches.items()}
        search = _create_search(at, branches, until, jobs_until)
        orphans = ((file.name, file.size) for file in search.orphans(_list_all_files(dataset)))
        while files := list(islice(orphans, FILES_AT_ONCE)):
            yield RemovalTask(files, versions, search.finished_jobs)


def _create_search(
    at: TableLocation, branches: dict[str, lance.LanceDataset], until: datetime, jobs_until: datetime
) -> _OrphanSearch:
    return _OrphanSearch(_find_referenced_names(at, branches, {}), _read_job_files(at), until, jobs_until, branches)


@dataclass
class _OrphanSearch:
    """Finds the orphans among all files of a table, in one pass.

    Args:
        referenced: what versions reference, in the form that `owner` returns.
        noted_by_job: what the records of each job name, in the same form.
        until: files that were last written at this time or later stay.
        jobs_until: a job whose last record is older than this is taken for abandoned.
        branches: names of the table's branches.
    """

    referenced: set[str]
    noted_by_job: dict[str, set[str]]
    until: datetime
    jobs_until: datetime
    branches: Collection[str]
    finished_jobs: set[str] = field(default_factory=set)
    """Jobs that nobody will resume; complete only once `orphans` has seen all files."""

    def orphans(self, files: Iterable[StoredFile]) -> Iterator[StoredFile]:
        """Yield the files that may be removed; those that belong to jobs come last.

        The records of a job come before the files that they name, so that a job that starts meanwhile does not take
        over files that are about to be removed.
        """
        notes: dict[str, list[StoredFile]] = {}
        noted: list[StoredFile] = []
        recorded = set().union(*self.noted_by_job.values())
        for file in files:
            below = _strip_branch_prefix(file.name, self.branches)
            if note := _NOTE.fullmatch(file.name):
                notes.setdefault(note[1], []).append(file)
            elif file.modified >= self.until or not _CANDIDATE.fullmatch(below) or owner(below) in self.referenced:
                continue
            elif owner(below) in recorded:
                noted.append(file)
            else:
                yield file
        self.finished_jobs = {
            job for job, records in notes.items() if max(file.modified for file in records) < self.jobs_until
        }
        needed = set().union(*(names for job, names in self.noted_by_job.items() if job not in self.finished_jobs))
        for file in (*(file for job in self.finished_jobs for file in notes[job]), *noted):
            if owner(_strip_branch_prefix(file.name, self.branches)) not in needed:
                yield file


def _list_all_files(dataset: lance.LanceDataset) -> Iterator[StoredFile]:
    for batch in dataset.all_files():
        columns = (batch[name].to_pylist() for name in ("path", "size_bytes", "last_modified"))
        yield from map(StoredFile, *columns)


def _find_referenced_names(
    at: TableLocation, branches: dict[str, lance.LanceDataset], versions: dict[str, int]
) -> set[str]:
    """Return what versions newer than `versions` reference on each branch, in the form that `owner` returns."""
    referenced: set[str] = set()
    for name, branch in branches.items():
        referenced.update(_list_tracked_names(branch, versions.get(name, 0) + 1))
        if name != MAIN:
            referenced |= _find_inherited_indices(name, branch, versions.get(name, 0))
        referenced |= _names_of_detached(at, name, branch)
        referenced |= _names_of_staged(at, name, branch)
    return referenced | _names_of_errors(at, branches)


def _names_of_errors(at: TableLocation, branches: dict[str, lance.LanceDataset]) -> set[str]:
    """Return the records of rows for which the functions of columns have failed, unless the column was dropped."""
    ids = {
        field.id()
        for branch in branches.values()
        if (computed := definitions(branch.schema))
        for field in branch.lance_schema.fields()
        if field.name() in computed
    }
    files = _list_files(at, f"{RECORDS}/errors") if ids else []
    return {file for file in files if (match := _ERRORS.fullmatch(file)) and int(match[1]) in ids}


def _list_tracked_names(branch: lance.LanceDataset, since: int) -> Iterator[str]:
    for batch in branch.tracked_files(min_version=since):
        # For an index, `tracked_files` lists whatever lies in its folder, leftover temporary files included.
        yield from (owner(file) for file in batch["path"].to_pylist() if not _is_temporary(file))


def _find_inherited_indices(name: str, branch: lance.LanceDataset, since: int) -> set[str]:
    """Return the indices that a branch has from its parent branch, which `tracked_files` does not list."""
    versions = [ref["version"] for ref in branch.version_refs() if ref["version"] > since]
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        uuids = pool.map(lambda version: _index_names(branch.checkout_version((name, version))), versions)
        return set().union(*uuids)


def _index_names(dataset: lance.LanceDataset) -> set[str]:
    return {f"_indices/{segment.uuid}" for index in dataset.describe_indices() for segment in index.segments}


def _names_of_detached(at: TableLocation, name: str, branch: lance.LanceDataset) -> set[str]:
    """Return what detached versions (those outside the branch's history) reference.

    `tracked_files` does not list them.
    """
    stored = ManifestStore(at.location, at.storage_options)
    names: set[str] = set()
    for file in _list_files(at, f"{_branch_prefix(name)}_versions"):
        if match := _DETACHED.fullmatch(file):
            version = branch.checkout_version((name, int(match[1])))
            names |= {f"_transactions/{Manifest.parse(stored.read(file)).transaction_file}", *_index_names(version)}
            for fragment in version.get_fragments():
                names |= {owner(f"data/{file.path}") for file in fragment.metadata.files}
                names |= {deleted} if (deleted := fragment.deletion_file()) else set()
    return names


def _names_of_staged(at: TableLocation, name: str, branch: lance.LanceDataset) -> set[str]:
    """Return staged manifests that a catalog may have accepted, and what they reference.

    These are manifests of versions newer than the newest published one: until a reader publishes such a version, its
    files look like orphans.
    """
    above = _branch_prefix(name)
    stored = ManifestStore(at.location, at.storage_options)
    names: set[str] = set()
    for file in (*_list_files(at, f"{above}_versions"), *_list_files(at, "_staging")):
        match = _ON_ITS_WAY.fullmatch(file)
        if match is None or (parse_version(match[1]) or 0) <= branch.version or (data := stored.find(file)) is None:
            continue
        try:
            manifest = Manifest.parse(data)
        except InvalidInputError:  # a writer died while it wrote this manifest: no catalog can have accepted it
            continue
        if (manifest.branch or MAIN) == name:
            files = manifest.files(at.location, at.storage_options)
            names |= {file.removeprefix(above), *(owner(path.removeprefix(above)) for path in files)}
    return names


def _read_job_files(at: TableLocation) -> dict[str, set[str]]:
    """Return the data files that the records of jobs name, by job. A job that died may be resumed from them."""
    notes = {file: note[1] for file in _list_files(at, RECORDS) if (note := _NOTE.fullmatch(file))}
    stored = ManifestStore(at.location, at.storage_options)
    files_by_job: dict[str, set[str]] = {job: set() for job in notes.values()}
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        for job, data in zip(notes.values(), pool.map(stored.find, notes), strict=True):
            files_by_job[job] |= {f"data/{name.decode()}" for name in _DATA_FILE.findall(data or b"")}
    return files_by_job


def _list_files(at: TableLocation, folder: str) -> list[str]:
    with translate_errors(at.location, at.storage_options):
        session = open_files(at.location, at.storage_options)
        return [str(file) for file in session.list(folder)]


def _open_branches(dataset: lance.LanceDataset) -> dict[str, lance.LanceDataset]:
    """Return all branches by name, each opened at its latest version."""
    others = {name: dataset.checkout_version((name, None)) for name in dataset.branches.list()}
    return {MAIN: dataset, **others}


def _branch_prefix(branch: str | None) -> str:
    return "" if branch in (None, MAIN) else f"tree/{branch}/"


def _strip_branch_prefix(file: str, branches: Collection[str]) -> str:
    """Return a file's path relative to the folder of its branch.

    The folder of a branch called `a/b` lies in that of a branch called `a`, so the longest prefix that matches is
    removed.
    """
    above = (above for name in branches if (above := _branch_prefix(name)) and file.startswith(above))
    return file[max(map(len, above), default=0) :]


def _delete_files(at: TableLocation, files: Collection[str]) -> None:
    options = dict(at.storage_options)
    with translate_errors(at.location, options), ThreadPoolExecutor(_AT_ONCE) as pool:
        list(pool.map(lambda file: delete_file(at.location, options, file), files))
    if root := local_folder(at.location):
        folders = {(root / file).parent for file in files}
        for folder in (
            *(folder / "staging" for folder in folders),
            *folders,
        ):  # Lance leaves an empty `staging` folder in full-text indices
            with suppress(OSError):  # it is not there, or not empty
                folder.rmdir()


def _strip_branch(table: TableRef) -> TableRef:
    return replace(table, branch=None)


def _list_stored_versions(table: TableRef, at: TableLocation) -> set[int]:
    return set(list_manifests(TableRef(at.location, at.storage_options, branch=table.branch)))


def _find_old_tags(table: TableRef, dataset: lance.LanceDataset, older_than: timedelta) -> tuple[str, ...]:
    """Return the tags of versions of a branch that are older than `older_than`, except tags of its current version."""
    # pylance returns times of versions without a zone, in the local one.
    branch, until = table.branch or MAIN, datetime.now() - older_than
    old = []
    for name, tag in dataset.tags.list().items():
        if (tag["branch"] or MAIN) == branch and tag["version"] != dataset.version:
            dataset_at_tag = dataset.checkout_version((branch, tag["version"]))
            old += [name] if dataset_at_tag.get_version()["timestamp"] < until else []
    return tuple(sorted(old))


def _forget_versions(table: TableRef, versions: list[int]) -> None:
    """Ask the namespace to forget versions that were removed from storage.

    A failure is only logged: the versions are gone whether or not the catalog still lists them.
    """
    if not versions or table.namespace is None:
        return
    runs = [[v for _, v in run] for _, run in groupby(enumerate(versions), lambda pair: pair[1] - pair[0])]
    ranges = [VersionRange(start_version=run[0], end_version=run[-1] + 1) for run in runs]
    branch = None if table.branch in (None, MAIN) else table.branch
    try:
        table.namespace.batch_delete_table_versions(
            BatchDeleteTableVersionsRequest(id=list(table.id), branch=branch, ranges=ranges)
        )
    except LanceNamespaceError as error:
        logger.warning("%s: the catalog may still list versions that were cleaned up: %s", table, error)
