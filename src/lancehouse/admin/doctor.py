"""`Doctor`: checks of a catalog against storage, for each table and for all tables together."""

from __future__ import annotations

import base64
import binascii
import json
import logging
import shlex
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import timedelta
from urllib.parse import unquote

from lance_namespace.errors import (
    InvalidInputError,
    LanceNamespaceError,
    PermissionDeniedError,
    UnauthenticatedError,
    UnsupportedOperationError,
)

from lancehouse.admin.checked_catalog import CheckedCatalog
from lancehouse.admin.table_checks import (
    ADOPT,
    DoctorReport,
    Finding,
    FindingKind,
    Severity,
    TableChecker,
    format_age,
    sort_findings,
    time_left,
)
from lancehouse.catalog_walk import Id, walk_namespaces
from lancehouse.clients.inspection import ForeignTable, InspectedTable, inspector_for
from lancehouse.credentials import SECRETS, canonical_options, merge_options
from lancehouse.identifiers import quote_name
from lancehouse.lake.dataset_files import list_datasets, relative_levels, split_location
from lancehouse.lake.foreign_tables import is_directory
from lancehouse.locations import local_folder
from lancehouse.properties import FENCED, STORAGE_PREFIX, UNGUARDED, storage_options

logger = logging.getLogger(__name__)

MAX_WORKERS = 8
WEEK = timedelta(days=7)
TOKEN = "auth_token"  # noqa: S105

ReportProgress = Callable[[int, int], None]
"""Called with the number of tables done, and of all."""


@dataclass
class Doctor:
    """Checks a catalog, or a part of it. An instance is for one check.

    Args:
        catalog: the catalog to check.
        roots: further locations below which every dataset should have an entry.
        older_than: minimum age of a staged manifest, or of a file that no version names, to be considered abandoned.
        lists_files: whether to list the files of every table, to find those that no version names.
        report_progress: is called with the number of tables done, and of all.
    """

    catalog: CheckedCatalog
    roots: Sequence[str] = ()
    older_than: timedelta = WEEK
    lists_files: bool = True
    report_progress: ReportProgress = lambda _done, _total: None

    def __post_init__(self) -> None:
        self._inspector = inspector_for(self.catalog.namespace)
        self._findings: list[Finding] = []
        self._tables: dict[Id, InspectedTable] = {}
        self._foreign_tables: list[ForeignTable] = []
        self._namespaces: list[Id] = []
        self._is_incomplete = False
        self._is_fenced = False

    def examine_table(self, id: Id) -> DoctorReport:
        """Check one table, and whether its location overlaps with other tables of its namespace.

        Raises:
            LanceNamespaceError: the table does not exist, or is not a Lance table.
        """
        self._check_own_token()
        self._findings += self._find_fence(id)
        names = self._list_tables(id[:-1])
        if id not in names:
            with self.catalog.translate_errors(id):
                self._inspector.inspect_table(id)
        self._examine_tables([id])
        if id not in self._tables and any(foreign.id == id for foreign in self._foreign_tables):
            raise InvalidInputError(f"{self.catalog.format_id(id)} is not a Lance table")
        self._inspect_tables(name for name in names if name != id)
        self._findings += [finding for finding in self._find_overlaps() if finding.about == self.catalog.format_id(id)]
        return DoctorReport(1, sort_findings(self._findings))

    def examine_namespace(self, id: Id) -> DoctorReport:
        """Check all tables in a namespace and below it; for a whole catalog, also look for datasets without an entry.

        Raises:
            LanceNamespaceError: the catalog does not respond at all.
            InvalidInputError: `roots` are given, but this is only a part of the catalog.
        """
        is_whole = len(id) <= self._inspector.catalog_levels
        if self.roots and not is_whole:
            raise InvalidInputError(
                "datasets without an entry are looked for in a whole catalog only, for all entries have to be known: "
                "leave --root out, or --namespace"
            )
        self._require_root()
        self._check_own_token()
        try:
            self._require_namespace(id)
            self._findings += self._find_fence(id)
            self._namespaces = list(walk_namespaces(self.catalog, id))
            names = [name for level in self._namespaces for name in self._try_list_tables(level, id)]
        except (UnauthenticatedError, PermissionDeniedError) as error:
            return DoctorReport(0, sort_findings([*self._findings, self._access_denied(error)]))
        self._examine_tables(names)
        self._findings += self._find_overlaps()
        if is_whole:
            self._findings += self._find_unregistered(id)
        self._findings += self._find_missing_features(id)
        return DoctorReport(len(self._tables), sort_findings(self._findings))

    def _require_root(self) -> None:
        """Check that the root of Lance's `dir` exists: `dir` itself treats a missing folder as an empty catalog."""
        root = self.catalog.target.properties.get("root", "")
        folder = local_folder(root) if root and self._is_dir else None
        if folder is not None and not folder.is_dir():
            raise InvalidInputError(f"there is no folder {root}: is the property `root` of the catalog right?")

    def _require_namespace(self, id: Id) -> None:
        """Check that a namespace exists: some catalogs return an empty list for a missing one."""
        if len(id) > self._inspector.catalog_levels:
            with suppress(UnsupportedOperationError, InvalidInputError):
                self.catalog.call("describe_namespace", id)

    @property
    def _is_dir(self) -> bool:
        return is_directory(self.catalog.namespace)

    # Checks of each table

    def _try_list_tables(self, level: Id, top: Id) -> list[Id]:
        try:
            return self._list_tables(level)
        except InvalidInputError:
            return []  # a warehouse holds namespaces only
        except LanceNamespaceError as error:
            if level == top:
                raise
            self._is_incomplete = True
            what, name = f"its tables cannot be listed: {error}", self.catalog.format_id(level)
            finding = self._finding(level, FindingKind.UNREADABLE, Severity.ERROR, what, "table", "list", name)
            self._findings.append(finding)
            return []

    def _list_tables(self, namespace: Id) -> list[Id]:
        with self.catalog.translate_errors(namespace, "list_tables"):
            listing = self._inspector.list_tables(namespace)
        if listing is None:
            return self.catalog.tables(namespace)
        names, neighbours = listing
        self._foreign_tables += neighbours
        return [(*namespace, name) for name in names]

    def _examine_tables(self, ids: Sequence[Id]) -> None:
        """Check tables, several at once; one that fails does not stop the others."""
        checkers = [
            TableChecker(self.catalog, self._inspector, table_id, self.older_than, self.lists_files, self._is_fenced)
            for table_id in ids
        ]
        with ThreadPoolExecutor(MAX_WORKERS) as pool:
            futures = {pool.submit(checker.examine): checker.id for checker in checkers}
            try:
                for done, future in enumerate(as_completed(futures), 1):
                    inspected, findings = future.result()
                    self._findings += findings
                    if isinstance(inspected, InspectedTable):
                        self._tables[futures[future]] = inspected
                    elif inspected is not None:
                        self._foreign_tables.append(inspected)
                    else:
                        self._is_incomplete = True
                    self.report_progress(done, len(checkers))
            finally:
                pool.shutdown(cancel_futures=True)

    def _inspect_tables(self, ids: Iterable[Id]) -> None:
        """Load the entries of tables, to know their locations; tables that cannot be loaded are ignored here."""

        def inspect_one(table: Id) -> tuple[Id, InspectedTable | ForeignTable | None]:
            try:
                with self.catalog.translate_errors(table):
                    return table, self._inspector.inspect_table(table)
            except LanceNamespaceError as error:
                logger.debug("cannot read %s: %s", table, error)
                return table, None

        with ThreadPoolExecutor(MAX_WORKERS) as pool:
            for table, inspected in pool.map(inspect_one, ids):
                if isinstance(inspected, InspectedTable):
                    self._tables[table] = inspected
                elif inspected is not None:
                    self._foreign_tables.append(inspected)

    # Checks of all tables together

    def _find_overlaps(self) -> Iterator[Finding]:
        """Yield findings about tables that share a location, or lie inside each other."""
        places = {
            table: split_location(inspected.location)
            for table, inspected in sorted(self._tables.items())
            if inspected.location
        }
        by_place: dict[tuple[str, ...], list[Id]] = {}
        for table, place in places.items():
            by_place.setdefault(place, []).append(table)
        for table, place in places.items():
            yield from self._find_shared_location(table, by_place[place])
            for depth in range(1, len(place)):
                yield from (self._nested_location(table, other) for other in by_place.get(place[:depth], ()))
        yield from self._find_gc_risks(places)

    def _find_shared_location(self, id: Id, all_there: Sequence[Id]) -> Iterator[Finding]:
        if len(all_there) > 1 and id == all_there[-1]:
            others = ", ".join(self.catalog.format_id(other) for other in all_there if other != id)
            what = f"it is the same data as {others}: whoever drops one drops both"
            yield self._finding(
                id, FindingKind.OVERLAP, Severity.WARNING, what, "table", "deregister", self.catalog.format_id(id)
            )

    def _nested_location(self, id: Id, other: Id) -> Finding:
        what = f"it lies inside {self.catalog.format_id(other)}, at {self._tables[id].location}"
        return self._finding(
            id, FindingKind.OVERLAP, Severity.WARNING, what, "table", "describe", self.catalog.format_id(id)
        )

    def _find_gc_risks(self, places: dict[Id, tuple[str, ...]]) -> Iterator[Finding]:
        """Yield findings about Lance tables inside or around tables whose maintenance deletes unknown files."""
        for other in self._foreign_tables:
            if not other.location or other.is_gc_protected:
                continue
            around = split_location(other.location)
            for table, place in places.items():
                if place[: len(around)] == around or around[: len(place)] == place:
                    yield self._gc_risk(table, other, is_inside=len(place) >= len(around))

    def _gc_risk(self, id: Id, other: ForeignTable, *, is_inside: bool) -> Finding:
        name, foreign_name = self.catalog.format_id(id), f"the {other.kind} {self.catalog.format_id(other.id)}"
        what = (
            f"it lies inside {foreign_name}, whose orphan clean-up would destroy it"
            if is_inside
            else f"it lies around {foreign_name}: a purge of one may destroy the other"
        )
        command = (
            _gc_protection_command(other.id)
            if other.is_iceberg
            else self.catalog.shell.command("table", "describe", name)
        )
        where = "" if other.is_iceberg else "; never clean that up, or move one of them"
        return Finding(FindingKind.CLEAN_UP, Severity.ERROR, name, f"{what}{where}", command)

    def _find_unregistered(self, top: Id) -> Iterator[Finding]:
        """Yield findings about datasets below the roots that have no entry."""
        known_locations = {split_location(inspected.location) for inspected in self._tables.values()}
        if self._is_incomplete:
            what = "datasets without an entry were not looked for: not all entries could be read"
            yield Finding(FindingKind.NO_ENTRY, Severity.NOTE, "", what)
            return
        for root in self._search_roots(top):
            vended = self._vended_options(root)
            try:
                unregistered = [
                    place
                    for place in list_datasets(root, vended or self._storage_options())
                    if split_location(place) not in known_locations
                ]
            except LanceNamespaceError as error:
                yield self._unlistable_root(root, error, is_vended=bool(vended))
                continue
            known_locations |= set(map(split_location, unregistered))
            for place in unregistered:
                what = f"a dataset below {root} that the catalog does not know"
                command = self._registration_command(place, root, top)
                yield Finding(FindingKind.NO_ENTRY, Severity.WARNING, place, what, command)

    def _search_roots(self, top: Id) -> list[str]:
        own = self.catalog.target.properties.get("root")
        announced = self._inspector.roots(top[0]) if top and self._inspector.catalog_levels else []
        return list(dict.fromkeys(root.rstrip("/") for root in (*self.roots, *([own] if own else []), *announced)))

    def _unlistable_root(self, root: str, error: LanceNamespaceError, *, is_vended: bool) -> Finding:
        if is_vended:
            what = (
                f"datasets without an entry were not looked for below {root}: the catalog's credentials are for its "
                f"tables; properties {STORAGE_PREFIX}<key> say how to reach the rest"
            )
            return Finding(FindingKind.UNREADABLE, Severity.NOTE, root, what)
        words = f"what lies below {root} cannot be seen: {self.catalog.target.redact(str(error))}"
        return Finding(FindingKind.UNREADABLE, Severity.WARNING, root, words)

    def _vended_options(self, root: str) -> dict[str, str]:
        """Return storage options with credentials vended for a table below a root.

        Empty if we have credentials of our own.

        Some catalogs vend keys for the whole warehouse, others for the folder of one table.
        """
        own = self._storage_options()
        if SECRETS & canonical_options(own).keys():
            return {}
        for inspected in self._tables.values():
            has_secrets = SECRETS & canonical_options(inspected.storage_options).keys()
            if has_secrets and relative_levels(inspected.location, root) is not None:
                return merge_options(own, inspected.storage_options)
        return {}

    def _storage_options(self) -> dict[str, str]:
        """Return the storage options among the client's own properties."""
        return storage_options(self.catalog.target.properties)

    def _registration_command(self, place: str, root: str, top: Id) -> str:
        """Return the commands that register a dataset under a name that fits its location, with missing namespaces."""
        *above, name = map(unquote, relative_levels(place, root) or ("table",))
        levels = tuple(above[len(top) :] if tuple(above[: len(top)]) == top else above)
        namespace = (*top, *levels)[: self._inspector.max_namespace_levels]
        needed = [namespace[:depth] for depth in range(len(top) + 1, len(namespace) + 1)]
        missing = [namespace_id for namespace_id in needed if namespace_id not in self._namespaces]
        if not levels:  # `dir` does not list tables registered at the top, and others allow none there
            namespace = (*top, "NAMESPACE")
        fitting = (*namespace, name.removesuffix(".lance"))
        table = self.catalog.format_id((*namespace, "NAME") if fitting in self._tables else fitting)
        commands: list[tuple[str, ...]] = [
            ("namespace", "create", self.catalog.format_id(namespace_id)) for namespace_id in missing
        ]
        # Lance's `dir` needs the part of a location below its root.
        location = "/".join(relative_levels(place, root) or ()) if self._is_dir else place
        commands.append(("table", "register", table, location))
        return " && ".join(self.catalog.shell.command(*words) for words in commands)

    def _find_fence(self, id: Id) -> Iterator[Finding]:
        """Yield a finding if the server takes no changes to a warehouse, or would not notice that it must not."""
        if not id or not self._inspector.catalog_levels:
            return
        with self.catalog.translate_errors(id[:1]):
            announced = self._inspector.announced_properties(id[0])
        if (reason := announced.get(FENCED)) is not None:
            self._is_fenced = True
            what = f"the server refuses all changes to {id[0]}: {reason}; stop the other server if there is one"
            yield Finding(FindingKind.FENCED, Severity.ERROR, id[0], what, ADOPT)
        elif (reason := announced.get(UNGUARDED)) is not None:
            what = f"nobody would notice a server on another copy of the database, for {reason}"
            yield Finding(FindingKind.FENCED, Severity.NOTE, id[0], what)

    def _find_missing_features(self, id: Id) -> Iterator[Finding]:
        if not id or not self._inspector.catalog_levels:
            return
        with self.catalog.translate_errors(id[:1]):
            lacks = self._inspector.missing_endpoints(id[0])
        managed = [
            self.catalog.format_id(table_id) for table_id, inspected in self._tables.items() if inspected.is_managed
        ]
        for call, use in lacks.items():
            is_needed = bool(managed) and use.startswith("versions")
            what = f"the server has no `{call}`, which {use} need"
            severity = Severity.ERROR if is_needed else Severity.NOTE
            command = self.catalog.shell.command("table", "manage", managed[0], "--by", "storage") if is_needed else ""
            yield Finding(FindingKind.FEATURES, severity, "", what, command)

    # Credentials

    def _check_own_token(self) -> None:
        """Add a finding if the client's token has expired or will soon, which only a JWT tells."""
        expires_at = token_expires_at(self.catalog.target.properties.get(TOKEN, ""))
        left = None if expires_at is None else time_left(expires_at)
        if left is None:
            return
        command = self.catalog.shell.command("doctor")
        advice = f"get a new one, set {TOKEN} of the catalog to it, and look again"
        if left < timedelta(0):
            what = f"the token of this catalog ended {format_age(-left)} ago: {advice}"
            self._findings.append(Finding(FindingKind.CREDENTIALS, Severity.ERROR, "", what, command))
        else:
            what = f"the token of this catalog ends in {format_age(left)}: {advice}"
            self._findings.append(Finding(FindingKind.CREDENTIALS, Severity.WARNING, "", what, command))

    def _access_denied(self, error: LanceNamespaceError) -> Finding:
        what = f"the catalog refuses access: {error}; set `credential` or `{TOKEN}` of the catalog, and look again"
        return Finding(FindingKind.CREDENTIALS, Severity.ERROR, "", what, self.catalog.shell.command("doctor"))

    def _finding(self, id: Id, kind: FindingKind, severity: Severity, what: str, *words: str) -> Finding:
        return Finding(kind, severity, self.catalog.format_id(id), what, self.catalog.shell.command(*words))


def _gc_protection_command(id: Id) -> str:
    """Return the command that keeps Spark's Iceberg maintenance from deleting files of a table; the name is quoted."""
    name = ".".join(map(quote_name, id))
    return shlex.join(["spark-sql", "-e", f"ALTER TABLE {name} SET TBLPROPERTIES ('gc.enabled'='false')"])


def token_expires_at(token: str) -> float | None:
    """Return when a signed token (JWT) expires, in seconds since 1970; None if it is none, or does not say."""
    pieces = token.split(".")
    if len(pieces) != len(("header", "claims", "signature")):
        return None
    try:
        claims = json.loads(base64.urlsafe_b64decode(pieces[1] + "=" * (-len(pieces[1]) % 4)))
    except (binascii.Error, ValueError):
        return None
    ends = claims.get("exp") if isinstance(claims, dict) else None
    return float(ends) if isinstance(ends, int | float) else None


def fix_all(
    findings: Iterable[Finding], catalog: CheckedCatalog, report_progress: ReportProgress = lambda _done, _total: None
) -> list[Finding]:
    """Run the fixes of findings; a finding whose fix fails is kept, with the reason."""
    all_findings = list(findings)
    done: list[Finding] = []
    for number, finding in enumerate(all_findings, 1):
        done.append(_fix(finding, catalog) if finding.fix is not None else finding)
        report_progress(number, len(all_findings))
    return done


def _fix(finding: Finding, catalog: CheckedCatalog) -> Finding:
    assert finding.fix is not None
    try:
        with catalog.translate_errors((), "doctor"):
            finding.fix()
    except LanceNamespaceError as error:
        logger.debug("%s: cannot be repaired: %s", finding.about, error)
        return replace(finding, failure=str(error))
    return replace(finding, is_fixed=True, failure="")
