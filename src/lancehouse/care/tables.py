"""One table, as its catalog has it and as storage has it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import partial

from lance_namespace import DescribeTableVersionRequest, ListTableVersionsRequest
from lance_namespace.errors import (
    InvalidInputError,
    LanceNamespaceError,
    PermissionDeniedError,
    TableNotFoundError,
    UnauthenticatedError,
)

from lancehouse.care.catalogs import Catalog
from lancehouse.care.findings import Finding, Kind, Severity
from lancehouse.clients.inspection import Inspector, Neighbour, Seen
from lancehouse.credentials import EXPIRES
from lancehouse.lake.dataset import TableRef
from lancehouse.lake.history import latest
from lancehouse.lake.manifests import Manifests
from lancehouse.lake.orphans import File, unnamed
from lancehouse.lake.survey import Staged, is_staged, staged
from lancehouse.lake.versions import branches, manifests
from lancehouse.trees import Id

SOON = timedelta(minutes=10)
NAMES_TOLD = 5

Versions = Mapping[str | None, int]


@dataclass(frozen=True)
class Ward:
    """A table that is looked at."""

    catalog: Catalog
    inspector: Inspector
    id: Id
    older_than: timedelta
    lists_files: bool = True
    """Whether all files are listed, to find those that no version names."""

    @property
    def name(self) -> str:
        """As it is typed."""
        return self.catalog.shown(self.id)

    def finding(self, kind: Kind, severity: Severity, what: str, *words: str) -> Finding:
        """Something that is wrong with it; the words are what to type next."""
        return Finding(kind, severity, self.name, what, self.catalog.shell.command(*words) if words else "")

    def examined(self) -> tuple[Seen | Neighbour | None, list[Finding]]:
        """What the catalog has of it, if that can be seen, and what is wrong."""
        try:
            with self.catalog.explained(self.id):
                seen = self.inspector.look(self.id)
        except TableNotFoundError:
            what = "the catalog lists it but cannot load it: what it keeps beside the data is gone; restore that"
            return None, [self.finding(Kind.NO_DATA, Severity.ERROR, what, "table", "describe", self.name)]
        except (UnauthenticatedError, PermissionDeniedError) as error:
            return None, [self._refused("the catalog", error)]
        except LanceNamespaceError as error:
            return None, [self._unreadable(error)]
        if isinstance(seen, Neighbour):
            return seen, []
        found: list[Finding] = []
        try:
            with self.catalog.explained(self.id):
                for each in self._compared(seen):
                    found.append(each)  # one by one: what was found before an error stays
                # Files of a version whose manifest is lost look like orphans, and are all that is left of it.
                if not {Kind.VERSIONS, Kind.UNFINISHED} & {each.kind for each in found}:
                    found += self._orphans(seen)
        except (UnauthenticatedError, PermissionDeniedError) as error:
            found.append(self._refused("storage", error))
        except LanceNamespaceError as error:
            found.append(self._unreadable(error))
        return seen, found

    def _compared(self, seen: Seen) -> Iterator[Finding]:
        yield from expiry(self, seen.storage_options)
        if not seen.location:
            yield self._no_data("the entry has no location")
            return
        if not seen.is_guarded:
            yield self._unguarded()
        place = TableRef(seen.location, seen.storage_options)
        if latest(place) is None:
            yield from self._without_data(seen, place)
            return
        names = branches(place)
        yield from self._versions(seen, names)
        yield from self._schema(seen)
        yield from self._staged(seen, place, names)

    # Data

    def _without_data(self, seen: Seen, place: TableRef) -> Iterator[Finding]:
        told = (seen.versions or {}).get(None)
        if told is not None and (fresh := self._seen_again()) is not None and self._on_its_way(fresh):
            yield self._unfinished(fresh)
        elif told is not None and latest(place) is None:
            what = (
                f"the catalog is at version {told}, but there is no data at {seen.location}: restore it from a backup"
            )
            yield self.finding(Kind.NO_DATA, Severity.ERROR, what, "table", "deregister", self.name)
        else:
            yield self._no_data(f"there is no data at {seen.location}: it was never written, or is gone")

    def _no_data(self, what: str) -> Finding:
        return self.finding(Kind.NO_DATA, Severity.WARNING, what, "table", "deregister", self.name)

    # Versions

    def _versions(self, seen: Seen, names: list[str]) -> Iterator[Finding]:
        if not seen.is_managed:
            return
        if not self._disagreeing(seen, names):
            return
        fresh = self._seen_again()  # somebody may have committed between the two looks
        if fresh is None:
            return
        if self._on_its_way(fresh):
            yield self._unfinished(fresh)
            return
        for branch, (told, stored) in self._disagreeing(fresh, names).items():
            yield self._disagreement(fresh, branch, told, stored)

    def _seen_again(self) -> Seen | None:
        with suppress(TableNotFoundError):
            seen = self.inspector.look(self.id, whole=True)
            return seen if isinstance(seen, Seen) else None
        return None

    def _disagreeing(self, seen: Seen, names: list[str]) -> dict[str | None, tuple[int | None, int | None]]:
        """What the catalog says and what storage has, of the branches on which they differ."""
        told = seen.versions if seen.versions is not None else self._told()
        found: dict[str | None, tuple[int | None, int | None]] = {}
        for branch in (None, *(name for name in names if seen.versions is not None)):
            stored = latest(TableRef(seen.location, seen.storage_options, branch=branch))
            is_inherited = branch is not None and branch not in told  # from before the catalog took over
            if stored != told.get(branch) and not is_inherited:
                found[branch] = told.get(branch), stored
        return found

    def _told(self) -> Versions:
        """The latest version, by the interface."""
        request = ListTableVersionsRequest(id=list(self.id), limit=1, descending=True)
        found = self.catalog.ask("list_table_versions", request).versions
        return {None: found[0].version} if found else {}

    def _on_its_way(self, seen: Seen) -> bool:
        """Whether what the catalog accepted last waits to be put in its place."""
        files = Manifests(seen.location, seen.storage_options)
        lost = [staged for staged, final in seen.accepted.items() if not files.exists(final) and files.exists(staged)]
        return bool(lost)

    def _unfinished(self, seen: Seen) -> Finding:
        what = f"version {(seen.versions or {}).get(None)} was accepted, but its manifest is not in its place yet"
        found = self.finding(Kind.UNFINISHED, Severity.WARNING, what, "doctor", self.name, "--fix")
        return replace(found, mend=self._finish)

    def _finish(self) -> None:
        self.catalog.ask("describe_table_version", DescribeTableVersionRequest(id=list(self.id)))

    def _disagreement(self, seen: Seen, branch: str | None, told: int | None, stored: int | None) -> Finding:
        of = f" of branch {branch}" if branch else ""
        said = [f"no version{of}" if version is None else f"version {version}{of}" for version in (told, stored)]
        what = f"the catalog has {said[0]}, storage has {said[1]}: "
        if (stored or 0) > (told or 0):
            what += "a writer went past the catalog; stop it, then accept what is there"
            return self.finding(
                Kind.VERSIONS, Severity.ERROR, what, "table", "manage", self.name, "--by", "impl", "--adopt"
            )
        what += f"the manifest of version {told} is gone from {seen.location}; restore it from a backup"
        return self.finding(Kind.VERSIONS, Severity.ERROR, what, "doctor", self.name)

    # Schema

    def _schema(self, seen: Seen) -> Iterator[Finding]:
        if seen.columns is None or self._schema_difference(seen) is None:
            return
        fresh = self._seen_again()
        difference = self._schema_difference(fresh) if fresh is not None else None
        if difference is None:
            return
        what = f"the catalog's schema is not the table's: {difference}"
        if type(self.inspector).refresh_schema is Inspector.refresh_schema:
            again = ("table", "register", self.name, seen.location, "--overwrite")
            yield self.finding(Kind.STALE_SCHEMA, Severity.WARNING, what, *again)
        else:
            found = self.finding(Kind.STALE_SCHEMA, Severity.WARNING, what, "doctor", self.name, "--fix")
            yield replace(found, mend=partial(self.inspector.refresh_schema, self.id))

    def _schema_difference(self, seen: Seen) -> str | None:
        at = (seen.versions or {}).get(None)
        place = TableRef(seen.location, seen.storage_options)
        version = at if at is not None and at in manifests(place) else None
        expected = self.inspector.expected(TableRef(seen.location, seen.storage_options, version=version))
        if expected is None or seen.columns is None or list(expected.items()) == list(seen.columns.items()):
            return None
        return difference(seen.columns, expected)

    # Staging

    def _staged(self, seen: Seen, place: TableRef, names: list[str]) -> Iterator[Finding]:
        files = staged(place, names)
        if not files:
            return
        whole = self._seen_again() if seen.is_managed else seen
        if whole is None:
            return
        left = [file for file in files if file.file not in whole.accepted]
        until = datetime.now(UTC) - self.older_than
        old = [file for file in left if file.modified is not None and file.modified < until]
        if young := [file for file in left if file not in old and file.file in _still_there(place, names)]:
            what = f"{_files(young)} in staging: a writer may be about to commit"
            yield self.finding(Kind.STAGED, Severity.NOTE, what, "doctor", self.name, "--older-than", "1h")
        if old:
            what = f"{_files(old)} left in staging for more than {age(self.older_than)} by writers that died"
            found = self.finding(Kind.STAGED, Severity.WARNING, what, "doctor", self.name, "--fix")
            yield replace(found, mend=partial(self._discard, [file.file for file in old]))

    def _discard(self, files: list[str]) -> None:
        """Remove staged manifests, unless the catalog has accepted one since."""
        seen = self._seen_again()
        if seen is None:
            raise InvalidInputError(f"{self.name} is not a Lance table any more")
        stored = Manifests(seen.location, seen.storage_options)
        for file in files:
            if file not in seen.accepted:
                stored.discard(file)

    # Files

    def _orphans(self, seen: Seen) -> Iterator[Finding]:
        place = TableRef(seen.location, seen.storage_options)
        if not self.lists_files or not seen.location or latest(place) is None:
            return
        left = [file for file in unnamed(place, self.older_than) if not is_staged(file.name)]
        until = datetime.now(UTC) - self.older_than
        old = [file for file in left if file.modified < until]
        if young := [file for file in left if file.modified >= until]:
            what = f"{_unnamed(young)}: a writer may be about to commit"
            yield self.finding(Kind.ORPHANS, Severity.NOTE, what, "table", "remove-orphans", self.name, "--dry-run")
        if old:
            what = f"{_unnamed(old)}, for more than {age(self.older_than)}: writers that died left them"
            yield self.finding(Kind.ORPHANS, Severity.WARNING, what, "table", "remove-orphans", self.name)

    # What others would do

    def _unguarded(self) -> Finding:
        what = (
            "the entry lets Iceberg's orphan clean-up (remove_orphan_files) and purge delete all data: it lacks "
            "gc.enabled=false"
        )
        found = self.finding(Kind.CLEAN_UP, Severity.ERROR, what, "doctor", self.name, "--fix")
        return replace(found, mend=partial(self.inspector.guard, self.id))

    def _refused(self, by: str, error: LanceNamespaceError) -> Finding:
        return self.finding(
            Kind.CREDENTIALS, Severity.ERROR, f"{by} refuses access: {error}", "table", "describe", self.name
        )

    def _unreadable(self, error: LanceNamespaceError) -> Finding:
        return self.finding(Kind.UNREADABLE, Severity.ERROR, str(error), "table", "describe", self.name, "--debug")


def expiry(ward: Ward, options: Mapping[str, str]) -> Iterator[Finding]:
    """Whether credentials for a table's storage are over, or soon will be."""
    at = options.get(EXPIRES, "")
    if not at.isdecimal():
        return
    left = datetime.fromtimestamp(int(at) / 1000, UTC) - datetime.now(UTC)
    describe = ("table", "describe", ward.name)
    if left < timedelta(0):
        what = (
            f"the credentials for its storage ended {age(-left)} ago: the server or the catalog's properties are stale"
        )
        yield ward.finding(Kind.CREDENTIALS, Severity.ERROR, what, *describe)
    elif left < SOON:
        what = f"the credentials for its storage end in {age(left)}"
        yield ward.finding(Kind.CREDENTIALS, Severity.WARNING, what, *describe)


def difference(said: Mapping[str, str], real: Mapping[str, str]) -> str:
    """How columns differ, in a few words."""
    parts = [
        ("it lacks", [name for name in real if name not in said]),
        ("it has in excess", [name for name in said if name not in real]),
        ("other types", [name for name in said if name in real and said[name] != real[name]]),
    ]
    words = [
        f"{what} {', '.join(names[:NAMES_TOLD])}{' …' * (len(names) > NAMES_TOLD)}" for what, names in parts if names
    ]
    return "; ".join(words) or "another order of columns"


def _still_there(place: TableRef, names: list[str]) -> set[str]:
    return {file.file for file in staged(place, names)}


def _files(files: list[Staged]) -> str:
    return f"{len(files)} manifest{'s' * (len(files) != 1)}"


def _unnamed(files: list[File]) -> str:
    count, size = len(files), sum(file.size for file in files)
    return f"{count} file{'s' * (count != 1)} ({size:,} bytes) that no version names, such as {files[0].name}"


def age(length: timedelta) -> str:
    for unit, seconds in (("d", 86400), ("h", 3600), ("m", 60)):
        if length.total_seconds() >= seconds:
            return f"{int(length.total_seconds() // seconds)}{unit}"
    return f"{int(length.total_seconds())}s"
