"""Checks of one table, its entry in the catalog against its data in storage; and the findings that they report."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from functools import partial

from lance_namespace.errors import (
    InvalidInputError,
    LanceNamespaceError,
    PermissionDeniedError,
    TableNotFoundError,
    UnauthenticatedError,
)

from lancehouse.admin.checked_catalog import CheckedCatalog
from lancehouse.catalog_walk import Id
from lancehouse.clients.inspection import ForeignTable, InspectedTable, Inspector
from lancehouse.credentials import EXPIRES
from lancehouse.jobs.orphans import StoredFile, list_unnamed_files
from lancehouse.lake.dataset import TableRef
from lancehouse.lake.dataset_files import StagedManifest, is_staged, list_staged_manifests
from lancehouse.lake.history import find_latest_version
from lancehouse.lake.manifests import ManifestStore
from lancehouse.lake.versions import list_branches, list_manifests


class Severity(StrEnum):
    """How serious a finding is."""

    ERROR = "error"
    """Data cannot be read, or may be lost."""
    WARNING = "warning"
    """Something is out of order, but no data is at risk yet."""
    NOTE = "note"
    """For information only."""


class FindingKind(StrEnum):
    """Kinds of problems."""

    NO_DATA = "no-data"
    NO_ENTRY = "no-entry"
    STALE_SCHEMA = "stale-schema"
    VERSIONS = "versions"
    UNFINISHED = "unfinished"
    STAGED = "staged"
    ORPHANS = "orphans"
    OVERLAP = "overlap"
    CLEAN_UP = "clean-up"
    CREDENTIALS = "credentials"
    FEATURES = "features"
    FENCED = "fenced"
    UNREADABLE = "unreadable"


@dataclass(frozen=True, slots=True)
class Finding:
    """One problem of a table or of the catalog."""

    kind: FindingKind
    severity: Severity
    about: str
    """The table as the user types it, or a location; empty for the catalog itself."""
    what: str
    command: str = ""
    """The command to type next; empty if there is none."""
    fix: Callable[[], None] | None = field(default=None, repr=False, compare=False)
    """Repairs the problem, where that is safe; else None."""
    is_fixed: bool = False
    failure: str = ""
    """Why the fix failed; empty if it did not."""

    @property
    def needs_action(self) -> bool:
        """Whether the user has to do something."""
        return self.severity is not Severity.NOTE and not self.is_fixed


@dataclass(frozen=True, slots=True)
class DoctorReport:
    """The result of a check."""

    tables: int
    findings: Sequence[Finding]

    @property
    def needs_action(self) -> bool:
        """Whether any finding needs action."""
        return any(finding.needs_action for finding in self.findings)

    @property
    def fixable(self) -> list[Finding]:
        """Findings that have a fix and are not fixed yet."""
        return [finding for finding in self.findings if finding.fix is not None and not finding.is_fixed]


ORDER = list(Severity)


def sort_findings(findings: Sequence[Finding]) -> list[Finding]:
    """Return findings by severity, the worst first, then by table."""
    return sorted(
        findings, key=lambda finding: (ORDER.index(finding.severity), finding.about, finding.kind, finding.what)
    )


SOON = timedelta(minutes=10)
"""Credentials that end within this time are reported."""
ADOPT = "lancehouse db adopt"
"""Typed where the database of the catalog server is."""
MAX_NAMES = 5

Versions = Mapping[str | None, int]


@dataclass(frozen=True)
class TableChecker:
    """Checks one table."""

    catalog: CheckedCatalog
    inspector: Inspector
    id: Id
    older_than: timedelta
    lists_files: bool = True
    """Whether to list all files, to find those that no version names."""
    is_fenced: bool = False
    """Whether the catalog takes no changes, because its database is older than its storage or a copy of it is used."""

    @property
    def name(self) -> str:
        """The id as the user types it."""
        return self.catalog.format_id(self.id)

    def finding(self, kind: FindingKind, severity: Severity, what: str, *words: str) -> Finding:
        """Create a finding about this table; `words` are the command to type next."""
        return Finding(kind, severity, self.name, what, self.catalog.shell.command(*words) if words else "")

    def examine(self) -> tuple[InspectedTable | ForeignTable | None, list[Finding]]:
        """Return the table's entry, or None if it cannot be loaded, and the findings."""
        try:
            with self.catalog.translate_errors(self.id):
                inspected = self.inspector.inspect_table(self.id)
        except TableNotFoundError:
            what = "the catalog lists it but cannot load it: what it keeps beside the data is gone; restore that"
            return None, [self.finding(FindingKind.NO_DATA, Severity.ERROR, what, "table", "describe", self.name)]
        except (UnauthenticatedError, PermissionDeniedError) as error:
            return None, [self._access_denied_finding("the catalog", error)]
        except LanceNamespaceError as error:
            return None, [self._unreadable_finding(error)]
        if isinstance(inspected, ForeignTable):
            return inspected, []
        findings: list[Finding] = []
        try:
            with self.catalog.translate_errors(self.id):
                for finding in self._find_problems(inspected):
                    findings.append(finding)  # one by one, to keep the findings before an error
                # Files of a version whose manifest is lost look like orphans, but are all that is left of it.
                if not {FindingKind.VERSIONS, FindingKind.UNFINISHED} & {finding.kind for finding in findings}:
                    findings += self._find_orphans(inspected)
        except (UnauthenticatedError, PermissionDeniedError) as error:
            findings.append(self._access_denied_finding("storage", error))
        except LanceNamespaceError as error:
            findings.append(self._unreadable_finding(error))
        return inspected, findings

    def _find_problems(self, entry: InspectedTable) -> Iterator[Finding]:
        yield from find_expired_credentials(self, entry.storage_options)
        if not entry.location:
            yield self._no_data_finding("the entry has no location")
            return
        if not entry.is_gc_protected:
            yield self._unprotected_finding()
        place = TableRef(entry.location, entry.storage_options)
        if find_latest_version(place) is None:
            yield from self._find_missing_data(entry, place)
            return
        names = list_branches(place)
        yield from self._find_version_mismatches(entry, names)
        yield from self._find_stale_schema(entry)
        yield from self._find_staged_files(entry, place, names)

    # Data

    def _find_missing_data(self, entry: InspectedTable, place: TableRef) -> Iterator[Finding]:
        accepted = (entry.versions or {}).get(None)
        if accepted is not None and (fresh := self._inspect_again()) is not None and self._is_unpublished(fresh):
            yield self._unpublished_finding(fresh)
        elif accepted is not None and find_latest_version(place) is None:
            what = (
                f"the catalog is at version {accepted}, but there is no data at {entry.location}: "
                "restore it from a backup"
            )
            yield self.finding(FindingKind.NO_DATA, Severity.ERROR, what, "table", "deregister", self.name)
        else:
            yield self._no_data_finding(f"there is no data at {entry.location}: it was never written, or is gone")

    def _no_data_finding(self, what: str) -> Finding:
        return self.finding(FindingKind.NO_DATA, Severity.WARNING, what, "table", "deregister", self.name)

    # Versions

    def _find_version_mismatches(self, entry: InspectedTable, names: list[str]) -> Iterator[Finding]:
        if not entry.is_managed or not self._mismatched_versions(entry, names):
            return
        fresh = self._inspect_again()  # a commit may have come between the two reads
        if fresh is None:
            return
        if self._is_unpublished(fresh):
            yield self._unpublished_finding(fresh)
            return
        for branch, (accepted, stored) in self._mismatched_versions(fresh, names).items():
            yield self._version_mismatch_finding(fresh, branch, accepted, stored)

    def _inspect_again(self) -> InspectedTable | None:
        with suppress(TableNotFoundError):
            inspected = self.inspector.inspect_table(self.id, all_snapshots=True)
            return inspected if isinstance(inspected, InspectedTable) else None
        return None

    def _mismatched_versions(
        self, entry: InspectedTable, names: list[str]
    ) -> dict[str | None, tuple[int | None, int | None]]:
        """Return the versions of catalog and storage, by branch, where they differ."""
        accepted = entry.versions if entry.versions is not None else self._catalog_versions()
        mismatches: dict[str | None, tuple[int | None, int | None]] = {}
        for branch in (None, *(name for name in names if entry.versions is not None)):
            stored = find_latest_version(TableRef(entry.location, entry.storage_options, branch=branch))
            is_inherited = branch is not None and branch not in accepted  # created before the catalog managed the table
            if stored != accepted.get(branch) and not is_inherited:
                mismatches[branch] = accepted.get(branch), stored
        return mismatches

    def _catalog_versions(self) -> Versions:
        """Return the latest version that the catalog lists through the namespace interface."""
        versions = self.catalog.call("list_table_versions", self.id, limit=1, descending=True).versions
        return {None: versions[0].version} if versions else {}

    def _is_unpublished(self, entry: InspectedTable) -> bool:
        """Return whether the manifest of the last accepted version is still staged instead of published."""
        files = ManifestStore(entry.location, entry.storage_options)
        return any(
            not files.exists(final) and files.exists(staged) for staged, final in entry.accepted_manifests.items()
        )

    def _unpublished_finding(self, entry: InspectedTable) -> Finding:
        what = f"version {(entry.versions or {}).get(None)} was accepted, but its manifest is not in its place yet"
        finding = self.finding(FindingKind.UNFINISHED, Severity.WARNING, what, "doctor", self.name, "--fix")
        return replace(finding, fix=self._publish)

    def _publish(self) -> None:
        self.catalog.call("describe_table_version", self.id)

    def _version_mismatch_finding(
        self, entry: InspectedTable, branch: str | None, accepted: int | None, stored: int | None
    ) -> Finding:
        of = f" of branch {branch}" if branch else ""
        descriptions = [
            f"no version{of}" if version is None else f"version {version}{of}" for version in (accepted, stored)
        ]
        what = f"the catalog has {descriptions[0]}, storage has {descriptions[1]}: "
        if (stored or 0) > (accepted or 0) and self.is_fenced:
            what += "the catalog's database is older than its storage, or was copied, and takes no changes"
            return replace(self.finding(FindingKind.VERSIONS, Severity.ERROR, what), command=ADOPT)
        if (stored or 0) > (accepted or 0):
            what += "a writer bypassed the catalog; stop it, then accept what is there"
            return self.finding(
                FindingKind.VERSIONS, Severity.ERROR, what, "table", "manage", self.name, "--by", "impl", "--adopt"
            )
        what += f"the manifest of version {accepted} is gone from {entry.location}; restore it from a backup"
        return self.finding(FindingKind.VERSIONS, Severity.ERROR, what, "doctor", self.name)

    # Schema

    def _find_stale_schema(self, entry: InspectedTable) -> Iterator[Finding]:
        if entry.columns is None or self._schema_difference(entry) is None:
            return
        fresh = self._inspect_again()
        difference = self._schema_difference(fresh) if fresh is not None else None
        if difference is None:
            return
        what = f"the catalog's schema is not the table's: {difference}"
        if type(self.inspector).refresh_schema is Inspector.refresh_schema:
            command = ("table", "register", self.name, entry.location, "--overwrite")
            yield self.finding(FindingKind.STALE_SCHEMA, Severity.WARNING, what, *command)
        else:
            finding = self.finding(FindingKind.STALE_SCHEMA, Severity.WARNING, what, "doctor", self.name, "--fix")
            yield replace(finding, fix=partial(self.inspector.refresh_schema, self.id))

    def _schema_difference(self, entry: InspectedTable) -> str | None:
        latest_version = (entry.versions or {}).get(None)
        ref = TableRef(entry.location, entry.storage_options)
        version = latest_version if latest_version is not None and latest_version in list_manifests(ref) else None
        expected = self.inspector.expected_columns(TableRef(entry.location, entry.storage_options, version=version))
        if expected is None or entry.columns is None or list(expected.items()) == list(entry.columns.items()):
            return None
        return format_column_difference(entry.columns, expected)

    # Staging

    def _find_staged_files(self, entry: InspectedTable, place: TableRef, names: list[str]) -> Iterator[Finding]:
        files = list_staged_manifests(place, names)
        if not files:
            return
        inspected = self._inspect_again() if entry.is_managed else entry
        if inspected is None:
            return
        unaccepted = [file for file in files if file.file not in inspected.accepted_manifests]
        until = datetime.now(UTC) - self.older_than
        old = [file for file in unaccepted if file.modified is not None and file.modified < until]
        young = [file for file in unaccepted if file not in old]
        if young:  # a writer may have committed since: what is left of them now is listed again, once
            staged = {file.file for file in list_staged_manifests(place, names)}
            young = [file for file in young if file.file in staged]
        if young:
            what = f"{_format_manifest_count(young)} in staging: a writer may be about to commit"
            yield self.finding(FindingKind.STAGED, Severity.NOTE, what, "doctor", self.name, "--older-than", "1h")
        if old:
            count, age = _format_manifest_count(old), format_age(self.older_than)
            what = f"{count} left in staging for more than {age} by writers that died"
            finding = self.finding(FindingKind.STAGED, Severity.WARNING, what, "doctor", self.name, "--fix")
            yield replace(finding, fix=partial(self._discard_staged, [file.file for file in old]))

    def _discard_staged(self, files: list[str]) -> None:
        """Delete staged manifests, except those that the catalog has accepted in the meantime."""
        inspected = self._inspect_again()
        if inspected is None:
            raise InvalidInputError(f"{self.name} is not a Lance table any more")
        store = ManifestStore(inspected.location, inspected.storage_options)
        for file in files:
            if file not in inspected.accepted_manifests:
                store.discard(file)

    # Files

    def _find_orphans(self, entry: InspectedTable) -> Iterator[Finding]:
        place = TableRef(entry.location, entry.storage_options)
        if not self.lists_files or not entry.location or find_latest_version(place) is None:
            return
        orphans = [file for file in list_unnamed_files(place, self.older_than) if not is_staged(file.name)]
        until = datetime.now(UTC) - self.older_than
        old = [file for file in orphans if file.modified < until]
        if young := [file for file in orphans if file.modified >= until]:
            what = f"{_format_orphans(young)}: a writer may be about to commit"
            yield self.finding(
                FindingKind.ORPHANS, Severity.NOTE, what, "table", "remove-orphans", self.name, "--dry-run"
            )
        if old:
            what = f"{_format_orphans(old)}, for more than {format_age(self.older_than)}: writers that died left them"
            yield self.finding(FindingKind.ORPHANS, Severity.WARNING, what, "table", "remove-orphans", self.name)

    # Risks by other tools

    def _unprotected_finding(self) -> Finding:
        what = (
            "the entry lets Iceberg's orphan clean-up (remove_orphan_files) and purge delete all data: it lacks "
            "gc.enabled=false"
        )
        finding = self.finding(FindingKind.CLEAN_UP, Severity.ERROR, what, "doctor", self.name, "--fix")
        return replace(finding, fix=partial(self.inspector.protect_from_gc, self.id))

    def _access_denied_finding(self, by: str, error: LanceNamespaceError) -> Finding:
        return self.finding(
            FindingKind.CREDENTIALS, Severity.ERROR, f"{by} refuses access: {error}", "table", "describe", self.name
        )

    def _unreadable_finding(self, error: LanceNamespaceError) -> Finding:
        return self.finding(
            FindingKind.UNREADABLE, Severity.ERROR, str(error), "table", "describe", self.name, "--debug"
        )


def time_left(at_s: float) -> timedelta | None:
    """Return how long it is until a time, in seconds since 1970, negative if it is over; None if more than `SOON`."""
    # Compared as numbers: what never ends may be said to end at the largest integer, which is no date.
    left_s = max(at_s, 0.0) - time.time()
    return timedelta(seconds=left_s) if left_s < SOON.total_seconds() else None


def find_expired_credentials(checker: TableChecker, options: Mapping[str, str]) -> Iterator[Finding]:
    """Yield a finding if the credentials for a table's storage have expired, or will soon."""
    expires_ms = options.get(EXPIRES, "")
    left = time_left(int(expires_ms) / 1000) if expires_ms.isdecimal() else None
    if left is None:
        return
    describe = ("table", "describe", checker.name)
    if left < timedelta(0):
        what = (
            f"the credentials for its storage ended {format_age(-left)} ago: "
            "the server or the catalog's properties are stale"
        )
        yield checker.finding(FindingKind.CREDENTIALS, Severity.ERROR, what, *describe)
    else:
        what = f"the credentials for its storage end in {format_age(left)}"
        yield checker.finding(FindingKind.CREDENTIALS, Severity.WARNING, what, *describe)


def format_column_difference(recorded: Mapping[str, str], actual: Mapping[str, str]) -> str:
    """Describe how columns differ, in a few words."""
    parts = [
        ("it lacks", [name for name in actual if name not in recorded]),
        ("it has in excess", [name for name in recorded if name not in actual]),
        ("other types", [name for name in recorded if name in actual and recorded[name] != actual[name]]),
    ]
    words = [
        f"{what} {', '.join(names[:MAX_NAMES])}{' …' * (len(names) > MAX_NAMES)}" for what, names in parts if names
    ]
    return "; ".join(words) or "another order of columns"


def _format_manifest_count(files: list[StagedManifest]) -> str:
    return f"{len(files)} manifest{'s' * (len(files) != 1)}"


def _format_orphans(files: list[StoredFile]) -> str:
    count, size = len(files), sum(file.size for file in files)
    return f"{count} file{'s' * (count != 1)} ({size:,} bytes) that no version names, such as {files[0].name}"


def format_age(length: timedelta) -> str:
    """Format a duration in its largest whole unit: `3d`, `5h`, `20m`, `10s`."""
    for unit, seconds in (("d", 86400), ("h", 3600), ("m", 60)):
        if length.total_seconds() >= seconds:
            return f"{int(length.total_seconds() // seconds)}{unit}"
    return f"{int(length.total_seconds())}s"
