"""A catalog checked against storage: every table by itself, then all of them together."""

from __future__ import annotations

import base64
import binascii
import json
import logging
import shlex
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from urllib.parse import unquote

from lance_namespace import DescribeNamespaceRequest
from lance_namespace.errors import (
    InvalidInputError,
    LanceNamespaceError,
    PermissionDeniedError,
    UnauthenticatedError,
    UnsupportedOperationError,
)

from lancehouse.care.catalogs import Catalog
from lancehouse.care.findings import Finding, Kind, Report, Severity, ordered
from lancehouse.care.tables import SOON, Ward, age
from lancehouse.clients.inspection import Neighbour, Seen, inspector
from lancehouse.credentials import SECRETS, canonical, layered
from lancehouse.lake.dataset import local_folder
from lancehouse.lake.reaching import bare
from lancehouse.lake.survey import datasets, parts, relative
from lancehouse.properties import STORAGE_PREFIX
from lancehouse.trees import Id, tree

logger = logging.getLogger(__name__)

AT_ONCE = 8
WEEK = timedelta(days=7)
TOKEN = "auth_token"  # noqa: S105

Told = Callable[[int, int], None]
"""How far it is, and how far it has to go."""


@dataclass
class Doctor:
    """Looks at a catalog, or a part of it.

    Args:
        catalog: which.
        roots: more places below which every dataset should have an entry.
        older_than: how old a staged manifest, or a file that no version names, is that its writer has surely given up.
        lists_files: whether the files of every table are listed, to find those that no version names.
        told: is called as the work goes on.
    """

    catalog: Catalog
    roots: Sequence[str] = ()
    older_than: timedelta = WEEK
    lists_files: bool = True
    told: Told = lambda _done, _total: None

    def __post_init__(self) -> None:
        self._inspector = inspector(self.catalog.namespace)
        self._found: list[Finding] = []
        self._seen: dict[Id, Seen] = {}
        self._neighbours: list[Neighbour] = []
        self._namespaces: list[Id] = []
        self._is_blind = False

    def table(self, id: Id) -> Report:
        """One table by itself, and beside its neighbours in its namespace.

        Raises:
            LanceNamespaceError: there is no such table, or it is none of Lance's.
        """
        self._own_credentials()
        names = self._names(id[:-1])
        if id not in names:
            with self.catalog.explained(id):
                self._inspector.look(id)
        self._examine([id])
        if id not in self._seen and any(each.id == id for each in self._neighbours):
            raise InvalidInputError(f"{self.catalog.shown(id)} is not a Lance table")
        self._look_at(name for name in names if name != id)
        self._found += [each for each in self._beside() if each.about == self.catalog.shown(id)]
        return Report(1, ordered(self._found))

    def namespace(self, id: Id) -> Report:
        """All tables in a namespace and below it; where that is the whole catalog, what lies below its roots too.

        Raises:
            LanceNamespaceError: the catalog does not answer at all.
            InvalidInputError: roots are given, and this is only a part of the catalog.
        """
        is_whole = len(id) <= self._inspector.catalog_levels
        if self.roots and not is_whole:
            raise InvalidInputError(
                "datasets without an entry are looked for in a whole catalog only, for all entries have to be known: "
                "leave --root out, or --namespace"
            )
        self._require_root()
        self._own_credentials()
        try:
            self._require_namespace(id)
            self._namespaces = list(tree(self.catalog, id))
            names = [name for level in self._namespaces for name in self._listed(level, id)]
        except (UnauthenticatedError, PermissionDeniedError) as error:
            return Report(0, ordered([*self._found, self._refused(error)]))
        self._examine(names)
        self._found += self._beside()
        if is_whole:
            self._found += self._without_entries(id)
        self._found += self._missing_features(id)
        return Report(len(self._seen), ordered(self._found))

    def _require_root(self) -> None:
        """Lance's `dir` takes a folder that is not there for an empty one."""
        root = self.catalog.target.properties.get("root", "")
        folder = local_folder(root) if root and self._is_dir else None
        if folder is not None and not folder.is_dir():
            raise InvalidInputError(f"there is no folder {root}: is the property `root` of the catalog right?")

    def _require_namespace(self, id: Id) -> None:
        """Some catalogs list what does not exist as empty."""
        if len(id) > self._inspector.catalog_levels:
            with suppress(UnsupportedOperationError, InvalidInputError):
                self.catalog.ask("describe_namespace", DescribeNamespaceRequest(id=list(id)))

    @property
    def _is_dir(self) -> bool:
        return type(bare(self.catalog.namespace)).__name__ == "DirectoryNamespace"

    # Every table by itself

    def _listed(self, level: Id, top: Id) -> list[Id]:
        try:
            return self._names(level)
        except InvalidInputError:
            return []  # a warehouse, which holds namespaces only
        except LanceNamespaceError as error:
            if level == top:
                raise
            self._is_blind = True
            self._found.append(
                Finding(
                    Kind.UNREADABLE,
                    Severity.ERROR,
                    self.catalog.shown(level),
                    f"its tables cannot be listed: {error}",
                    self.catalog.shell.command("table", "list", self.catalog.shown(level)),
                )
            )
            return []

    def _names(self, namespace: Id) -> list[Id]:
        with self.catalog.explained(namespace, "list_tables"):
            found = self._inspector.listed(namespace)
        if found is None:
            return self.catalog.tables(namespace)
        names, neighbours = found
        self._neighbours += neighbours
        return [(*namespace, name) for name in names]

    def _examine(self, ids: Sequence[Id]) -> None:
        """Look at tables, several at once; one that fails does not stop the others."""
        wards = [Ward(self.catalog, self._inspector, each, self.older_than, self.lists_files) for each in ids]
        with ThreadPoolExecutor(AT_ONCE) as pool:
            futures = {pool.submit(ward.examined): ward.id for ward in wards}
            try:
                for done, future in enumerate(as_completed(futures), 1):
                    seen, findings = future.result()
                    self._found += findings
                    if isinstance(seen, Seen):
                        self._seen[futures[future]] = seen
                    elif seen is not None:
                        self._neighbours.append(seen)
                    else:
                        self._is_blind = True
                    self.told(done, len(wards))
            finally:
                pool.shutdown(cancel_futures=True)

    def _look_at(self, ids: Iterable[Id]) -> None:
        """See where tables lie; one that cannot be seen is not asked about here."""

        def look(table: Id) -> tuple[Id, Seen | Neighbour | None]:
            try:
                with self.catalog.explained(table):
                    return table, self._inspector.look(table)
            except LanceNamespaceError as error:
                logger.debug("no look at %s: %s", table, error)
                return table, None

        with ThreadPoolExecutor(AT_ONCE) as pool:
            for table, seen in pool.map(look, ids):
                if isinstance(seen, Seen):
                    self._seen[table] = seen
                elif seen is not None:
                    self._neighbours.append(seen)

    # All of them together

    def _beside(self) -> Iterator[Finding]:
        """Tables that lie in the same place, or one in the other."""
        places = {table: parts(seen.location) for table, seen in sorted(self._seen.items()) if seen.location}
        by_place: dict[tuple[str, ...], list[Id]] = {}
        for table, place in places.items():
            by_place.setdefault(place, []).append(table)
        for table, place in places.items():
            yield from self._in_one_place(table, by_place[place])
            for depth in range(1, len(place)):
                yield from (self._inside(table, other) for other in by_place.get(place[:depth], ()))
        yield from self._cleaned_up(places)

    def _in_one_place(self, id: Id, all_there: Sequence[Id]) -> Iterator[Finding]:
        if len(all_there) > 1 and id == all_there[-1]:
            others = ", ".join(self.catalog.shown(other) for other in all_there if other != id)
            what = f"it is the same data as {others}: whoever drops one drops both"
            yield self._of(id, Kind.OVERLAP, Severity.WARNING, what, "table", "deregister", self.catalog.shown(id))

    def _inside(self, id: Id, other: Id) -> Finding:
        what = f"it lies inside {self.catalog.shown(other)}, at {self._seen[id].location}"
        return self._of(id, Kind.OVERLAP, Severity.WARNING, what, "table", "describe", self.catalog.shown(id))

    def _cleaned_up(self, places: dict[Id, tuple[str, ...]]) -> Iterator[Finding]:
        """Lance tables in the place of tables whose upkeep deletes what it does not know, or around them."""
        for other in self._neighbours:
            if not other.location or other.is_guarded:
                continue
            around = parts(other.location)
            for table, place in places.items():
                if place[: len(around)] == around or around[: len(place)] == place:
                    yield self._in_danger(table, other, is_inside=len(place) >= len(around))

    def _in_danger(self, id: Id, other: Neighbour, *, is_inside: bool) -> Finding:
        name, named = self.catalog.shown(id), f"the {other.kind} {self.catalog.shown(other.id)}"
        what = (
            f"it lies inside {named}, whose orphan clean-up would destroy it"
            if is_inside
            else f"it lies around {named}: a purge of one may destroy the other"
        )
        command = _guarding(other.id) if other.is_iceberg else self.catalog.shell.command("table", "describe", name)
        where = "" if other.is_iceberg else "; never clean that up, or move one of them"
        return Finding(Kind.CLEAN_UP, Severity.ERROR, name, f"{what}{where}", command)

    def _without_entries(self, top: Id) -> Iterator[Finding]:
        """Datasets below the roots that no entry names."""
        known = {parts(seen.location) for seen in self._seen.values()}
        if self._is_blind:
            what = "datasets without an entry were not looked for: not all entries could be read"
            yield Finding(Kind.NO_ENTRY, Severity.NOTE, "", what)
            return
        for root in self._roots(top):
            vended = self._vended(root)
            try:
                found = [place for place in datasets(root, vended or self._storage()) if parts(place) not in known]
            except LanceNamespaceError as error:
                yield self._unseen(root, error, is_vended=bool(vended))
                continue
            known |= set(map(parts, found))
            for place in found:
                what = f"a dataset below {root} that the catalog does not know"
                command = self._registration(place, root, top)
                yield Finding(Kind.NO_ENTRY, Severity.WARNING, place, what, command)

    def _roots(self, top: Id) -> list[str]:
        own = self.catalog.target.properties.get("root")
        announced = self._inspector.roots(top[0]) if top and self._inspector.catalog_levels else []
        return list(dict.fromkeys(root.rstrip("/") for root in (*self.roots, *([own] if own else []), *announced)))

    def _unseen(self, root: str, error: LanceNamespaceError, *, is_vended: bool) -> Finding:
        if is_vended:
            what = (
                f"datasets without an entry were not looked for below {root}: the catalog's credentials are for its "
                f"tables; properties {STORAGE_PREFIX}<key> say how to reach the rest"
            )
            return Finding(Kind.UNREADABLE, Severity.NOTE, root, what)
        words = f"what lies below {root} cannot be seen: {self.catalog.target.redact(str(error))}"
        return Finding(Kind.UNREADABLE, Severity.WARNING, root, words)

    def _vended(self, root: str) -> dict[str, str]:
        """Options with the credentials that the catalog gave for a table below a root, if we have none of our own.

        Some catalogs vend keys for the whole warehouse, others for the folder of one table.
        """
        own = self._storage()
        if SECRETS & canonical(own).keys():
            return {}
        for seen in self._seen.values():
            if relative(seen.location, root) is not None and SECRETS & canonical(seen.storage_options).keys():
                return layered(own, seen.storage_options)
        return {}

    def _storage(self) -> dict[str, str]:
        """The client's own way to storage."""
        told = self.catalog.target.properties
        return {
            key.removeprefix(STORAGE_PREFIX): value for key, value in told.items() if key.startswith(STORAGE_PREFIX)
        }

    def _registration(self, place: str, root: str, top: Id) -> str:
        """What brings a dataset into the catalog, under a name that fits where it lies, with namespaces that lack."""
        *above, name = map(unquote, relative(place, root) or ("table",))
        levels = tuple(above[len(top) :] if tuple(above[: len(top)]) == top else above)
        namespace = (*top, *levels)[: self._inspector.deepest]
        needed = [namespace[:depth] for depth in range(len(top) + 1, len(namespace) + 1)]
        missing = [each for each in needed if each not in self._namespaces]
        if not levels:  # Lance's `dir` does not list what is registered at the top, and others have nothing there
            namespace = (*top, "NAMESPACE")
        fitting = (*namespace, name.removesuffix(".lance"))
        table = self.catalog.shown((*namespace, "NAME") if fitting in self._seen else fitting)
        made = [self.catalog.shell.command("namespace", "create", self.catalog.shown(each)) for each in missing]
        return " && ".join(
            [*made, self.catalog.shell.command("table", "register", table, self._place_for(place, root))]
        )

    def _place_for(self, place: str, root: str) -> str:
        """A location as the catalog takes it: Lance's `dir` wants the part below its root."""
        return "/".join(relative(place, root) or ()) if self._is_dir else place

    def _missing_features(self, id: Id) -> Iterator[Finding]:
        if not id or not self._inspector.catalog_levels:
            return
        with self.catalog.explained(id[:1]):
            lacks = self._inspector.lacks(id[0])
        managed = [self.catalog.shown(each) for each, seen in self._seen.items() if seen.is_managed]
        for call, use in lacks.items():
            is_needed = bool(managed) and use.startswith("versions")
            what = f"the server has no `{call}`, which {use} need"
            severity = Severity.ERROR if is_needed else Severity.NOTE
            command = self.catalog.shell.command("table", "manage", managed[0], "--by", "storage") if is_needed else ""
            yield Finding(Kind.FEATURES, severity, "", what, command)

    # Who we are

    def _own_credentials(self) -> None:
        """Whether the token that we show is over: a signed one tells."""
        ends = ends_at(self.catalog.target.properties.get(TOKEN, ""))
        if ends is None:
            return
        left = timedelta(seconds=ends - time.time())
        told = self.catalog.shell.command("doctor")
        words = f"get a new one, set {TOKEN} of the catalog to it, and look again"
        if left < timedelta(0):
            what = f"the token of this catalog ended {age(-left)} ago: {words}"
            self._found.append(Finding(Kind.CREDENTIALS, Severity.ERROR, "", what, told))
        elif left < SOON:
            what = f"the token of this catalog ends in {age(left)}: {words}"
            self._found.append(Finding(Kind.CREDENTIALS, Severity.WARNING, "", what, told))

    def _refused(self, error: LanceNamespaceError) -> Finding:
        what = f"the catalog refuses access: {error}; set `credential` or `{TOKEN}` of the catalog, and look again"
        return Finding(Kind.CREDENTIALS, Severity.ERROR, "", what, self.catalog.shell.command("doctor"))

    def _of(self, id: Id, kind: Kind, severity: Severity, what: str, *words: str) -> Finding:
        return Finding(kind, severity, self.catalog.shown(id), what, self.catalog.shell.command(*words))


def _guarding(id: Id) -> str:
    """What lets Spark's upkeep of an Iceberg table delete nothing; names of tables are anybody's."""
    name = ".".join(f"`{level.replace('`', '``')}`" for level in id)
    return shlex.join(["spark-sql", "-e", f"ALTER TABLE {name} SET TBLPROPERTIES ('gc.enabled'='false')"])


def ends_at(token: str) -> float | None:
    """When a signed token (JWT) ends, in seconds since 1970; None if it is none or does not say."""
    pieces = token.split(".")
    if len(pieces) != len(("header", "claims", "signature")):
        return None
    try:
        claims = json.loads(base64.urlsafe_b64decode(pieces[1] + "=" * (-len(pieces[1]) % 4)))
    except (binascii.Error, ValueError):
        return None
    ends = claims.get("exp") if isinstance(claims, dict) else None
    return float(ends) if isinstance(ends, int | float) else None


def mended(findings: Iterable[Finding], catalog: Catalog, told: Told = lambda _done, _total: None) -> list[Finding]:
    """Do what is safe; what cannot be done keeps its finding, with the reason."""
    all_found = list(findings)
    done: list[Finding] = []
    for number, each in enumerate(all_found, 1):
        done.append(_mended(each, catalog) if each.mend is not None else each)
        told(number, len(all_found))
    return done


def _mended(each: Finding, catalog: Catalog) -> Finding:
    assert each.mend is not None
    try:
        with catalog.explained((), "doctor"):
            each.mend()
    except LanceNamespaceError as error:
        logger.debug("%s: not mended: %s", each.about, error)
        return each.failed(str(error))
    return each.fixed()
