"""Old versions of a table, and files below its place that no version names: found, and removed.

A writer that is killed leaves such files, and so does every task whose result nobody used. The files of a writer that
is still at work look the same; only their age tells them apart.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Collection, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from itertools import groupby, islice
from typing import NamedTuple

import lance
from lance.file import LanceFileSession
from lance_namespace import BatchDeleteTableVersionsRequest
from lance_namespace.errors import InvalidInputError, InvalidTableStateError, LanceNamespaceError
from lance_namespace_urllib3_client.models.version_range import VersionRange

from lancehouse.jobs.job_progress import FOLDER as RECORDS
from lancehouse.lake.dataset import MAIN, TableRef, delete_file, local_folder
from lancehouse.lake.errors import translate_errors
from lancehouse.lake.fragments import TableLocation, locate_table
from lancehouse.lake.manifests import Manifest, ManifestStore
from lancehouse.lake.versions import list_manifests, parse_version

logger = logging.getLogger(__name__)

DAY = timedelta(days=1)
OLDEST = 365_000 * DAY
LEAST_AGE = timedelta(hours=1)
"""Younger files may belong to somebody who is about to commit them."""
DEFAULT_AGE = 7 * DAY
"""How old files are that surely belong to nobody, and the last note of a job that nobody will resume."""
FILES_AT_ONCE = 1000
"""How many files one call of `execute` removes."""
MAX_NAMES = 1000

_AT_ONCE = 16
_CANDIDATE = re.compile(
    r"(_staging|_transactions|_deletions|_indices|_lancehouse)/.+|data/[^/]+\.lance|data/[^/]+/[^/]+\.blob"
    r"|_versions/\d+\.manifest-[\w-]+|(data|_versions)/(.+/)?\.tmp[^/]+"
)
"""What Lance and we write before there is a version of it, on the main branch or below the folder of another. On a
local disk a file is called `.tmp…` until it is whole."""
_NOTE = re.compile(rf"{RECORDS}/jobs/([^/]+)/.+")
_ON_ITS_WAY = re.compile(r"(?:.*/)?(\d+\.manifest)-[\w-]+")
_DETACHED = re.compile(r".*/d(\d+)\.manifest")
_DATA_FILE = re.compile(rb"([\w-]+)\.lance")


@dataclass(frozen=True, slots=True)
class CleanupResult:
    """What cleaning up old versions has removed, or would remove."""

    versions: int
    bytes: int
    tagged: tuple[str, ...] = ()
    """The tags because of which versions stay that are old enough to go."""


class StoredFile(NamedTuple):
    """A file below a table's location."""

    name: str
    size: int
    modified: datetime


@dataclass(frozen=True, slots=True)
class Orphans:
    """Files that no version names."""

    files: int = 0
    bytes: int = 0
    names: tuple[str, ...] = ()
    """Below the table's location; the first thousand of them."""

    def __add__(self, more: Orphans) -> Orphans:
        names = (*self.names, *more.names)[:MAX_NAMES]
        return Orphans(self.files + more.files, self.bytes + more.bytes, names)


def cleanup(table: TableRef, older_than: timedelta = 14 * DAY, *, dry_run: bool = False) -> CleanupResult:
    """Remove old versions and the data that no other version needs. The current version and tagged ones stay.

    Where the catalog manages versions, it forgets them too.

    Args:
        table: on the branch whose versions are meant.
        older_than: what may go.
        dry_run: whether to remove nothing and only tell.

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
    before = _stored_versions(table, at)
    with table.dataset() as dataset:
        if at.is_managed and before and max(before) > dataset.version:
            raise InvalidTableStateError(
                f"{table}: storage has a version {max(before)}, but the catalog is at {dataset.version}: a writer went "
                "past the catalog; `lancehouse table manage --by impl --adopt` accepts what is there"
            )
        tagged = _old_tags(table, dataset, older_than)
        act = dataset.explain_cleanup_old_versions if dry_run else dataset.cleanup_old_versions
        result = act(older_than=older_than, error_if_tagged_old_versions=False)
    stats = result.stats if dry_run else result
    if at.is_managed and not dry_run:
        _forget_versions(table, sorted(before - _stored_versions(table, at)))
    return CleanupResult(versions=stats.old_versions, bytes=stats.bytes_removed, tagged=tagged)


def remove_orphans(
    table: TableRef, older_than: timedelta | None = None, *, dry_run: bool = False, no_writers: bool = False
) -> Orphans:
    """Remove the files that no version of any branch names, all in this process. See `plan` for the arguments.

    Args:
        table: with all its branches.
        older_than: what may go.
        dry_run: whether to remove nothing and only tell.
        no_writers: the caller knows that nobody writes to the table now.

    Raises:
        InvalidInputError: an age at which a file may still belong to a writer.
    """
    orphans = Orphans()
    for chunk in plan(table, older_than, no_writers=no_writers):
        orphans += parse_orphans(chunk) if dry_run else execute(table, chunk)
    return orphans


def plan(table: TableRef, older_than: timedelta | None = None, *, no_writers: bool = False) -> Iterator[str]:
    """Find files that no version of any branch names: pieces for `execute`, each of them a thousand at most.

    The files are listed while the pieces are taken; what is kept in memory are the names that versions and jobs know.
    What a job has noted, and the files that it names, stay until its last note is old enough: it may go on until then.

    Args:
        table: with all its branches.
        older_than: what may go; by default what is older than a week.
        no_writers: the caller knows that nobody writes to the table now. Then files may go at once, but for those of
            jobs that can go on, unless `older_than` says how old these have to be.

    Raises:
        InvalidInputError: an age at which a file may still belong to a writer.
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
    return _plan_chunks(_without_branch(table), now - age, now - (DEFAULT_AGE if older_than is None else older_than))


def list_unnamed_files(table: TableRef, older_than: timedelta = DEFAULT_AGE) -> Iterator[StoredFile]:
    """All files of a table that no version of any branch names, whatever their age: some may be a writer's at work.

    Args:
        table: with all its branches.
        older_than: how old the last note of a job is that nobody will resume; what others have noted is not told.
    """
    now = datetime.now(UTC)
    with _without_branch(table).dataset() as dataset:
        branches = _open_branches(dataset)
        yield from _create_search(locate_table(table), branches, now, now - older_than).orphans(
            _list_all_files(dataset)
        )


def parse_orphans(chunk: str) -> Orphans:
    """What a piece of a plan names."""
    files: list[tuple[str, int]] = json.loads(chunk)["files"]
    return Orphans(len(files), sum(size for _, size in files), tuple(name for name, _ in files[:MAX_NAMES]))


def execute(table: TableRef, chunk: str) -> Orphans:
    """Remove the files of a piece of a plan, but for those that a version names which came since; what went."""
    task = json.loads(chunk)
    all_branches = _without_branch(table)
    at = locate_table(all_branches)
    with all_branches.dataset() as dataset:
        branches = _open_branches(dataset)
        referenced = _referenced_names(at, branches, task["seen"])
    for job, files in _read_job_files(at).items():
        referenced |= files if job not in task["over"] else set()
    doomed = [
        (name, size) for name, size in task["files"] if owner(_strip_branch_prefix(name, branches)) not in referenced
    ]
    _delete_files(at, [name for name, _ in doomed])
    return parse_orphans(json.dumps({"files": doomed}))


def discard(table: TableRef, owners: Collection[str], since: int) -> None:
    """Remove what was written for a commit that was not made; what cannot be is left to `remove_orphans`.

    Args:
        table: on its branch.
        owners: data files, segments of indices or files of `_staging`, as `owner` calls them.
        since: the version for which they were written; what it or a later one names stays.
    """
    try:
        if owners:
            _discard_owned(table, owners, since)
    except LanceNamespaceError as error:
        logger.warning("%s: files may be left, which remove_orphans names: %s", table, error)


def _discard_owned(table: TableRef, owners: Collection[str], since: int) -> None:
    at, above = locate_table(table), _branch_prefix(table.branch)
    with table.dataset() as dataset:
        named = set(_tracked_names(dataset, since))
    with translate_errors(table, at.storage_options):
        session = LanceFileSession(at.location, storage_options=dict(at.storage_options) or None)
        files: list[str] = []
        for each in set(owners) - named:
            folder = each.partition("/")[0]
            alone = f"{above}{each}.lance" if folder == "data" else each
            files += [*session.list(f"{above}{each}"), *([alone] if folder != "_indices" else [])]
    _delete_files(at, files)


def owner(file: str) -> str:
    """What a file below the folder of a branch is part of: a data file with its blobs, a segment of an index, itself.

    Such names are never given twice, whatever the branch. A temporary file is part of nothing.
    """
    folder, _, rest = file.partition("/")
    if _is_temporary(file):
        return file
    return f"{folder}/{rest.partition('/')[0].removesuffix('.lance')}" if folder in ("data", "_indices") else file


def _is_temporary(file: str) -> bool:
    return file.rpartition("/")[2].startswith(".tmp")


def require_latest(table: TableRef) -> None:
    """See that an address names no version: only what is current can be changed.

    Raises:
        InvalidInputError: it does.
    """
    if table.version is not None or table.tag is not None:
        raise InvalidInputError(f"{table}: only a table or a branch can be maintained, not one of its versions")


def require_age(older_than: timedelta) -> None:
    """See that something is an age.

    Raises:
        InvalidInputError: it is not.
    """
    if not isinstance(older_than, timedelta) or not timedelta(0) <= older_than <= OLDEST:
        raise InvalidInputError(f"older_than is an age, such as timedelta(days=14), not {older_than!r}")


def _plan_chunks(table: TableRef, until: datetime, jobs_until: datetime) -> Iterator[str]:
    at = locate_table(table)
    with table.dataset() as dataset:
        branches = _open_branches(dataset)
        versions = {name: branch.version for name, branch in branches.items()}
        search = _create_search(at, branches, until, jobs_until)
        orphans = ((file.name, file.size) for file in search.orphans(_list_all_files(dataset)))
        while chunk := list(islice(orphans, FILES_AT_ONCE)):
            yield json.dumps({"seen": versions, "over": sorted(search.finished_jobs), "files": chunk})


def _create_search(
    at: TableLocation, branches: dict[str, lance.LanceDataset], until: datetime, jobs_until: datetime
) -> _OrphanSearch:
    return _OrphanSearch(_referenced_names(at, branches, {}), _read_job_files(at), until, jobs_until, branches)


@dataclass
class _OrphanSearch:
    """Finds the orphans among all files of a table, in one pass.

    Args:
        named: what versions name, as `owner` calls it.
        recorded: what each job has noted, likewise.
        until: when a file was last written that may go.
        jobs_until: when a job wrote its last note, if nobody will resume it.
        branches: of the table.
    """

    referenced: set[str]
    noted_by_job: dict[str, set[str]]
    until: datetime
    jobs_until: datetime
    branches: Collection[str]
    finished_jobs: set[str] = field(default_factory=set)
    """Jobs that nobody will resume; they are known when all files were seen."""

    def orphans(self, files: Iterable[StoredFile]) -> Iterator[StoredFile]:
        """What may go; what jobs have noted comes last.

        Notes go before the files that they name, so that a job that starts meanwhile does not take over what is about
        to go.
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
            job for job, kept in notes.items() if max(file.modified for file in kept) < self.jobs_until
        }
        needed = set().union(*(names for job, names in self.noted_by_job.items() if job not in self.finished_jobs))
        for file in (*(file for job in self.finished_jobs for file in notes[job]), *noted):
            if owner(_strip_branch_prefix(file.name, self.branches)) not in needed:
                yield file


def _list_all_files(dataset: lance.LanceDataset) -> Iterator[StoredFile]:
    for batch in dataset.all_files():
        columns = (batch[name].to_pylist() for name in ("path", "size_bytes", "last_modified"))
        yield from map(StoredFile, *columns)


def _referenced_names(at: TableLocation, branches: dict[str, lance.LanceDataset], versions: dict[str, int]) -> set[str]:
    """What versions name, those that come after `versions`; as `owner` calls it."""
    referenced: set[str] = set()
    for name, branch in branches.items():
        referenced.update(_tracked_names(branch, versions.get(name, 0) + 1))
        if name != MAIN:
            referenced |= _inherited_indices(name, branch, versions.get(name, 0))
        referenced |= _names_of_detached(at, name, branch)
        referenced |= _names_of_staged(at, name, branch)
    return referenced


def _tracked_names(branch: lance.LanceDataset, since: int) -> Iterator[str]:
    for batch in branch.tracked_files(min_version=since):
        # Of an index it lists whatever lies in the folder.
        yield from (owner(file) for file in batch["path"].to_pylist() if not _is_temporary(file))


def _inherited_indices(name: str, branch: lance.LanceDataset, seen: int) -> set[str]:
    """Indices that a branch has from the one it came from: `tracked_files` does not tell them."""
    versions = [ref["version"] for ref in branch.version_refs() if ref["version"] > seen]
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        uuids = pool.map(lambda version: _index_names(branch.checkout_version((name, version))), versions)
        return set().union(*uuids)


def _index_names(dataset: lance.LanceDataset) -> set[str]:
    return {f"_indices/{segment.uuid}" for index in dataset.describe_indices() for segment in index.segments}


def _names_of_detached(at: TableLocation, name: str, branch: lance.LanceDataset) -> set[str]:
    """What versions outside the branch's line name: `tracked_files` does not tell them."""
    stored = ManifestStore(at.location, at.storage_options)
    named: set[str] = set()
    for file in _list_files(at, f"{_branch_prefix(name)}_versions"):
        if match := _DETACHED.fullmatch(file):
            version = branch.checkout_version((name, int(match[1])))
            named |= {f"_transactions/{Manifest.parse(stored.read(file)).transaction_file}", *_index_names(version)}
            for fragment in version.get_fragments():
                named |= {owner(f"data/{file.path}") for file in fragment.metadata.files}
                named |= {deleted} if (deleted := fragment.deletion_file()) else set()
    return named


def _names_of_staged(at: TableLocation, name: str, branch: lance.LanceDataset) -> set[str]:
    """Staged manifests that a catalog may have accepted, with what they name: they come after all that is in place."""
    above = _branch_prefix(name)
    stored = ManifestStore(at.location, at.storage_options)
    named: set[str] = set()
    for file in (*_list_files(at, f"{above}_versions"), *_list_files(at, "_staging")):
        match = _ON_ITS_WAY.fullmatch(file)
        if match is None or (parse_version(match[1]) or 0) <= branch.version or (data := stored.find(file)) is None:
            continue
        try:
            manifest = Manifest.parse(data)
        except InvalidInputError:  # a writer died while it wrote this: no catalog can have accepted it
            continue
        if (manifest.branch or MAIN) == name:
            files = manifest.files(at.location, at.storage_options)
            named |= {file.removeprefix(above), *(owner(each.removeprefix(above)) for each in files)}
    return named


def _read_job_files(at: TableLocation) -> dict[str, set[str]]:
    """Data files that jobs have noted, by job: those that died may go on where they were."""
    notes = {file: note[1] for file in _list_files(at, RECORDS) if (note := _NOTE.fullmatch(file))}
    stored = ManifestStore(at.location, at.storage_options)
    files_by_job: dict[str, set[str]] = {job: set() for job in notes.values()}
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        for job, data in zip(notes.values(), pool.map(stored.find, notes), strict=True):
            files_by_job[job] |= {f"data/{name.decode()}" for name in _DATA_FILE.findall(data or b"")}
    return files_by_job


def _list_files(at: TableLocation, folder: str) -> list[str]:
    with translate_errors(at.location, at.storage_options):
        session = LanceFileSession(at.location, storage_options=dict(at.storage_options) or None)
        return [str(file) for file in session.list(folder)]


def _open_branches(dataset: lance.LanceDataset) -> dict[str, lance.LanceDataset]:
    """All branches by name, each at its latest version."""
    named = {name: dataset.checkout_version((name, None)) for name in dataset.branches.list()}
    return {MAIN: dataset, **named}


def _branch_prefix(branch: str | None) -> str:
    return "" if branch in (None, MAIN) else f"tree/{branch}/"


def _strip_branch_prefix(file: str, branches: Collection[str]) -> str:
    """A file's name below the folder of its branch; that of a branch called `a/b` lies in that of one called `a`."""
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
        ):  # Lance leaves the first in indices of text
            with suppress(OSError):  # it is not there, or not empty
                folder.rmdir()


def _without_branch(table: TableRef) -> TableRef:
    return replace(table, branch=None)


def _stored_versions(table: TableRef, at: TableLocation) -> set[int]:
    return set(list_manifests(TableRef(at.location, at.storage_options, branch=table.branch)))


def _old_tags(table: TableRef, dataset: lance.LanceDataset, older_than: timedelta) -> tuple[str, ...]:
    """The tags of old versions of a branch, its current one aside."""
    branch, until = table.branch or MAIN, datetime.now() - older_than
    old = []
    for name, tag in dataset.tags.list().items():
        if (tag["branch"] or MAIN) == branch and tag["version"] != dataset.version:
            dataset_at_tag = dataset.checkout_version((branch, tag["version"]))
            old += [name] if dataset_at_tag.get_version()["timestamp"] < until else []
    return tuple(sorted(old))


def _forget_versions(table: TableRef, versions: list[int]) -> None:
    """Tell the namespace that versions are gone. If it does not listen, nothing is lost: they are gone all the same."""
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
        logger.warning("%s: the catalog may still name versions that were cleaned up: %s", table, error)
