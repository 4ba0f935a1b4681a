"""Writers whose commits a catalog arbitrates: many at once, dying, cut off from it, and over several tables."""

from __future__ import annotations

import json
import os
import random
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import replace
from itertools import count, cycle
from multiprocessing.connection import wait
from pathlib import Path
from time import monotonic, sleep
from typing import Any, Self
from uuid import uuid4

import lance
import pytest
from lance_namespace import (
    CreateNamespaceRequest,
    CreateTableVersionRequest,
    CreateTableVersionResponse,
    DescribeTableRequest,
    InsertIntoTableRequest,
)
from lance_namespace.errors import ConcurrentModificationError, ServiceUnavailableError
from pyiceberg.catalog.rest import RestCatalog

import lancehouse
from lancehouse.clients.iceberg import IcebergNamespace
from lancehouse.clients.managed_versions import SYNC_EVERY
from lancehouse.lake.manifests import ManifestStore
from lancehouse.locations import local_folder
from tests.catalogs import ICEBERG, LiveCatalog, open_catalog
from tests.live import writers
from tests.live.histories import (
    ACKNOWLEDGED,
    COMPACT,
    REFUSED,
    UNKNOWN,
    Made,
    RecordedOperation,
    TableHistory,
    read_faults,
    read_notes,
    torn,
    violations,
)
from tests.live.test_conformance import parse_variable
from tests.live.writers import (
    ACCEPTED,
    ANYWHERE,
    BY_CLOCK,
    BY_POINT,
    KEYS_OF_ONE,
    LINKED,
    POINTS,
    STAGED,
    UNFINISHED,
    WEIGHTS,
    Crew,
    Id,
    TableWriter,
    Work,
    add_to_all,
    rows_of,
    run,
    stream_of,
    table_of,
)
from tests.servers.faults import (
    ALWAYS,
    Fault,
    FaultProxy,
    Forward,
    answer_always,
    lost_answer,
    reset,
    slow,
    truncate_answer,
)
from tests.servers.lancehouse import start_lancehouse
from tests.servers.loopback import Answer, Request
from tests.servers.postgres import new_database

WRITERS = 8
EVERY_S = 1.5
"""How often a process dies."""
FAULTY, HAZY = 0.4, 0.02
"""The share of commits, and of looks at the table, that meet a fault."""
READ_TIMEOUT_S = 1.0
OVERTAKEN = re.compile(r"Retryable commit conflict|Too many concurrent writers|failed on retry_timeout")
"""What pylance says when it gives up, which it does for a compaction at once and for others after half a minute."""
LAST_VERSION = (1 << 64) - 1
"""Lance names the manifest of version n after how far it is from this one."""


class ManagedTable:
    """A table with three rows whose versions the catalog manages, and notes of what is done to it."""

    def __init__(self, catalog: LiveCatalog, folder: Path, name: str = "t") -> None:
        self.catalog = catalog
        self.notes = folder / f"notes of {name}"
        self.notes.mkdir(parents=True)
        level = f"commits_{uuid4().hex[:8]}"
        self.id: Id = (*catalog.parent, level, name)
        catalog.connect().create_namespace(CreateNamespaceRequest(id=[*catalog.parent, level]))

    @classmethod
    def create(cls, catalog: LiveCatalog, folder: Path, name: str = "t") -> Self:
        """One that is there."""
        table = cls(catalog, folder, name)
        assert TableWriter(table.work(0)).create() == ACKNOWLEDGED
        return table

    @property
    def location(self) -> Path:
        """The folder that it is in."""
        told = self.catalog.connect().describe_table(DescribeTableRequest(id=list(self.id))).location or ""
        return local_folder(told) or pytest.skip(f"{told} is not on this machine")

    def work(self, number: int, *, through: str | None = None, **more: Any) -> Work:
        """For a process, whose way to the catalog may lead through a proxy."""
        endpoint = through or self.catalog.properties["endpoint"]
        properties = {**self.catalog.properties, "endpoint": endpoint, "managed_by": "impl"}
        properties |= {key: more.pop(key) for key in ("max_retries", "read_timeout") if key in more}
        return Work(properties, (self.id,), self.notes, number, **more)

    def open(self) -> lance.LanceDataset:
        """By its name, with a client that knows nothing yet."""
        return lance.dataset(namespace_client=self.catalog.connect(), table_id=list(self.id))

    def plain(self) -> lance.LanceDataset:
        """As somebody sees it who knows no catalog."""
        return lance.dataset(str(self.location))

    def snapshots(self) -> dict[int, Made]:
        """As another client of Iceberg sees them."""
        known = self.catalog.properties
        names = {"endpoint": "uri", "credential": "credential", "scope": "scope", "auth_token": "token"}
        same = {theirs: known[ours] for ours, theirs in names.items() if ours in known}
        theirs = RestCatalog("theirs", warehouse=self.id[0], **same)
        found = {}
        for snapshot in theirs.load_table(self.id[1:]).metadata.snapshots:
            assert snapshot.summary is not None
            words = (snapshot.summary[f"lance.{name}"] or "" for name in ("transaction", "operation"))
            found[snapshot.snapshot_id] = Made(*words)
        return found

    def manifests(self) -> set[int]:
        """The versions that storage has."""
        return {LAST_VERSION - int(file.stem) for file in (self.location / "_versions").glob("*.manifest")}

    def staged_manifests(self) -> set[str]:
        """What lies there and is no version."""
        files = [*self.location.rglob("*.manifest-*"), *self.location.glob("_staging/**/*.manifest")]
        return {file.relative_to(self.location).as_posix() for file in files}

    def history(self, *others: RecordedOperation) -> TableHistory:
        """What was done to it, and what it is now: the same, whatever way one looks at it."""
        now = self.open()
        versions, rows, plain = self.snapshots(), rows_of(now), self.plain()
        assert (plain.version, rows_of(plain)) == (now.version, rows)
        assert max(versions) == now.version
        assert self.manifests() == set(versions)
        told = {version: plain.read_transaction(version).uuid for version in versions}
        assert told == {version: made.transaction for version, made in versions.items()}
        return TableHistory([*read_notes(self.notes), *others], versions, rows)


@pytest.fixture
def seconds(soak: bool) -> float:
    """How long processes work, where many do."""
    return 60 if soak else 10


def on_shared(name: str) -> Callable[[pytest.FixtureRequest, Path], Iterator[LiveCatalog]]:
    def start(request: pytest.FixtureRequest, folder: Path) -> Iterator[LiveCatalog]:
        with open_catalog(name, request.getfixturevalue("shared_servers"), folder / "dätä of 100 %") as catalog:
            yield catalog

    return start


def on_postgres(request: pytest.FixtureRequest, folder: Path) -> Iterator[LiveCatalog]:
    with start_lancehouse(folder / "served", db=new_database(request.getfixturevalue("postgres"))) as server:
        yield LiveCatalog("postgres", ICEBERG, {"endpoint": server.iceberg}, (server.warehouse,))


def on_live(
    variable: str, path: str = "", **defaults: str
) -> Callable[[pytest.FixtureRequest, Path], Iterator[LiveCatalog]]:
    def start(_: pytest.FixtureRequest, folder: Path) -> Iterator[LiveCatalog]:
        if not os.environ.get(variable):
            pytest.skip(f"no live server: set {variable} to its properties, such as endpoint=…,parent=…")
        properties, parent, location = parse_variable(os.environ[variable])
        where = {"endpoint": properties["endpoint"] + path, **({"root": location} if location else {})}
        yield LiveCatalog(variable, ICEBERG, {**defaults, **properties, **where}, parent)

    return start


SERVERS = {
    "reference": on_shared("iceberg"),
    "sqlite": on_shared("iceberg-lancehouse"),
    "postgres": on_postgres,
    "live iceberg": on_live("LANCEHOUSE_TEST_ICEBERG"),
    "live polaris": on_live("LANCEHOUSE_TEST_POLARIS", "/api/catalog", scope="PRINCIPAL_ROLE:ALL"),
}


@pytest.fixture
def catalog(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[LiveCatalog]:
    """A server by its name here, by default ours."""
    yield from SERVERS[getattr(request, "param", "sqlite")](request, tmp_path)


@pytest.fixture
def table(catalog: LiveCatalog, tmp_path: Path) -> ManagedTable:
    """A new one."""
    return ManagedTable.create(catalog, tmp_path)


def on(*servers: Any) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("catalog", servers, indirect=True)


def kinds(history: TableHistory, outcome: str) -> set[str]:
    """What ended so."""
    return {each.kind for each in history.operations if each.outcome == outcome}


def check_work(history: TableHistory) -> None:
    """Enough was done: all kinds of operations, and all succeeded but for compactions, which Lance does not repeat when
    they were overtaken."""
    assert {each.kind for each in history.operations} >= set(WEIGHTS)
    assert kinds(history, ACKNOWLEDGED) >= set(WEIGHTS) - {COMPACT}


def unreasonable(history: TableHistory) -> list[str]:
    """What was refused for another reason than that others were faster."""
    return [each.error for each in history.operations if each.outcome == REFUSED and not OVERTAKEN.search(each.error)]


# Many at once


@on(*SERVERS)
@pytest.mark.timeout(600)
def test_many_writers(table: ManagedTable, seconds: float) -> None:
    works = [table.work(number + 1, seconds=seconds * 0.4) for number in range(WRITERS)]
    assert run(writers.write, *works) == [0] * WRITERS
    history = table.history()
    assert violations(history) == []
    assert table.staged_manifests() == set()
    check_work(history)
    assert unreasonable(history) == []
    assert kinds(history, UNKNOWN) == set()


# Death


@on("sqlite", "reference")
@pytest.mark.parametrize("point", POINTS)
def test_killed_in_a_commit(table: ManagedTable, point: str) -> None:
    assert run(writers.append, table.work(1, dies_at=point)) == [BY_POINT]
    assert table.plain().version == (2 if point == LINKED else 1)
    assert run(writers.visit, table.work(2)) == [0]
    history = table.history()
    assert violations(history) == []
    [killed] = (each for each in history.operations if each.outcome == UNKNOWN)
    transactions = {made.transaction for made in history.versions.values()}
    assert bool(killed.offered & transactions) == (point != STAGED)
    assert table.staged_manifests() == (killed.staged if point == STAGED else set())


@pytest.mark.parametrize("point", POINTS)
def test_killed_in_the_first_commit(catalog: LiveCatalog, tmp_path: Path, point: str) -> None:
    table = ManagedTable(catalog, tmp_path)
    assert run(writers.create, table.work(0, dies_at=point)) == [BY_POINT]
    assert run(writers.append, table.work(1)) == [0]
    history = table.history()
    assert violations(history) == []
    assert len(history.versions) == (1 if point == STAGED else 2)
    assert kinds(history, REFUSED) == set()


def by_reading(table: ManagedTable, held: lance.LanceDataset) -> None:
    assert table.open().version == 2


def by_looking_for_news(table: ManagedTable, held: lance.LanceDataset) -> None:
    held.checkout_latest()
    assert held.version == 2


def by_committing_without_news(table: ManagedTable, held: lance.LanceDataset) -> None:
    held.delete("id = 0")
    assert held.version == 3


@pytest.mark.parametrize("point", [ACCEPTED, UNFINISHED, LINKED])
@pytest.mark.parametrize("comes", [by_reading, by_looking_for_news, by_committing_without_news])
def test_whoever_comes_next_finishes_it(
    table: ManagedTable, point: str, comes: Callable[[ManagedTable, lance.LanceDataset], None]
) -> None:
    held = table.open()
    assert run(writers.append, table.work(1, dies_at=point)) == [BY_POINT]
    comes(table, held)
    assert table.manifests() >= {1, 2}
    assert (
        table.staged_manifests() == set() or point == LINKED
    )  # there, another name of a file that is in its place does no harm
    assert rows_of(table.plain()) == rows_of(table.open())


@on("sqlite", pytest.param("reference", marks=pytest.mark.soak), pytest.param("postgres", marks=pytest.mark.soak))
@pytest.mark.timeout(600)
def test_many_writers_that_die(table: ManagedTable, seconds: float) -> None:
    numbers, points, seconds = count(1), cycle([*POINTS, ANYWHERE]), seconds * 0.8

    def doomed_work(seconds: float, dies_after_s: float) -> Work:
        return table.work(next(numbers), seconds=seconds, dies_at=next(points), dies_after_s=dies_after_s)

    with Crew() as crew:
        for place in range(1, WRITERS + 1):
            crew.start(writers.write, doomed_work(seconds, place * EVERY_S))
        crew.go()
        end = monotonic() + seconds
        while (left := end - monotonic()) > 0:
            alive = [process.sentinel for process in crew.processes if process.exitcode is None]
            wait(alive, left)
            for _ in range(WRITERS - sum(process.exitcode is None for process in crew.processes)):
                crew.start(writers.write, doomed_work(max(0, end - monotonic()), WRITERS * EVERY_S))
        ends = crew.ends()
    assert set(ends) == {0, BY_POINT, BY_CLOCK}
    assert set(read_faults(table.notes).values()) == set(POINTS)
    history = table.history()
    assert violations(history) == []
    check_work(history)
    assert unreasonable(history) == []
    died = [each for each in history.operations if each.outcome == UNKNOWN]
    assert len(died) <= len(ends) - ends.count(0)
    offered = {file for each in died for file in each.staged}
    # Who dies by the clock may have written a manifest that it has not offered yet.
    assert len(table.staged_manifests() - offered) <= ends.count(BY_CLOCK)


# Bad days of the network


def late(delay_s: float) -> Fault:
    """The server gets the request when nobody waits for the answer any more."""

    def fault(request: Request, forward: Forward) -> Answer:
        sleep(delay_s)
        return forward(request)

    return fault


def made_but(status: int) -> Fault:
    """The server does it, and what is in front of the server says that something went wrong."""

    def fault(request: Request, forward: Forward) -> Answer:
        forward(request)
        return answer_always(status)(request, forward)

    return fault


BEFORE: Mapping[str, Fault] = {
    **{str(status): answer_always(status) for status in (500, 502, 504, 503, 429)},
    "reset": reset,
}
"""The server never sees the request."""
AFTER: Mapping[str, Fault] = {
    **{f"made, but {status}": made_but(status) for status in (500, 502, 504)},
    "lost answer": lost_answer,
    "half an answer": truncate_answer(),
    "slow": slow(0.2),
    "too slow": slow(READ_TIMEOUT_S + 0.2),
}
"""The server does it."""
LATE: Mapping[str, Fault] = {"late": late(READ_TIMEOUT_S + 0.2)}
FAULTS = {**BEFORE, **AFTER, **LATE}

CONFLICT = '{"error": {"message": "busy", "type": "CommitFailedException", "code": 409}}'

IN_TIME = {"read_timeout": str(int(READ_TIMEOUT_S * 1000))}
"""For clients that are to run out of patience."""
PATIENCE = {"too slow": IN_TIME, "late": IN_TIME}
PYLANCE, REQUEST = 0, 1
WAYS = pytest.mark.parametrize("way", [PYLANCE, REQUEST], ids=["pylance", "request"])
"""To append."""


@pytest.fixture
def proxy(catalog: LiveCatalog, faults: Callable[[str], FaultProxy]) -> FaultProxy:
    """In front of the catalog."""
    return faults(catalog.properties["endpoint"])


def spoil(proxy: FaultProxy, table: ManagedTable, fault: Fault, *, method: str = "POST", times: int = 1) -> None:
    """Spoil commits of the table, or looks at it."""
    proxy.add(fault, method=method, path=rf"/tables/{table.id[-1]}($|\?)", times=times)


@WAYS
@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_survived(table: ManagedTable, proxy: FaultProxy, fault: str, way: int) -> None:
    spoil(proxy, table, FAULTS[fault])
    assert TableWriter(table.work(1, through=proxy.uri, **PATIENCE.get(fault, {}))).append(way) == ACKNOWLEDGED
    history = table.history()
    assert violations(history) == []
    assert len(history.versions) == 2
    assert table.staged_manifests() == set()


@pytest.mark.parametrize("fault", AFTER)
def test_what_was_made_is_not_sent_again(table: ManagedTable, proxy: FaultProxy, fault: str) -> None:
    spoil(proxy, table, FAULTS[fault])
    assert TableWriter(table.work(1, through=proxy.uri, **PATIENCE.get(fault, {}))).append() == ACKNOWLEDGED
    assert proxy.count("POST") == 1


@pytest.mark.parametrize(
    "fault", [answer_always(500), answer_always(502), answer_always(504), reset], ids=["500", "502", "504", "reset"]
)
@WAYS
def test_unknown(table: ManagedTable, proxy: FaultProxy, fault: Fault, way: int) -> None:
    spoil(proxy, table, fault, times=ALWAYS)
    writer = TableWriter(table.work(1, through=proxy.uri, max_retries="1"))
    assert writer.append(way) == UNKNOWN
    assert run(writers.visit, table.work(2)) == [0]
    history = table.history()
    [unknown] = (each for each in history.operations if each.outcome == UNKNOWN)
    kind = "OSError: " if way == PYLANCE else "CommitStateUnknownError: "
    assert unknown.error.startswith(kind)
    assert "Commit result for version 2 is unknown" in unknown.error
    assert violations(history) == []
    assert table.staged_manifests() == unknown.staged  # it may still be on its way


def test_the_code_of_unknown(table: ManagedTable, proxy: FaultProxy) -> None:
    spoil(proxy, table, answer_always(500), times=ALWAYS)
    client = IcebergNamespace(**table.work(1, through=proxy.uri, max_retries="0").properties)
    with pytest.raises(lancehouse.CommitStateUnknownError) as raised:
        client.insert_into_table(InsertIntoTableRequest(id=list(table.id)), stream_of([(1, 1, 1)]))
    assert raised.value.code == 18


def afterwards(proxy: FaultProxy, fault: Fault, times: int) -> Fault:
    """Spoil the first requests after a commit was tried."""
    left = times

    def spoil(request: Request, forward: Forward) -> Answer:
        nonlocal left
        if left == 0 or proxy.count("POST") == 0:
            return forward(request)
        left -= 1
        return fault(request, forward)

    return spoil


@WAYS
def test_unknown_to_the_client_but_seen_by_lance(table: ManagedTable, proxy: FaultProxy, way: int) -> None:
    """The client sends it twice and looks twice, in vain; then Lance looks itself and finds its commit."""
    spoil(proxy, table, made_but(500), times=ALWAYS)
    spoil(proxy, table, afterwards(proxy, answer_always(500), 2), method="GET", times=ALWAYS)
    assert TableWriter(table.work(1, through=proxy.uri, max_retries="1")).append(way) == ACKNOWLEDGED
    assert proxy.count("POST") == 2
    history = table.history()
    assert violations(history) == []
    assert len(history.versions) == 2


@WAYS
@pytest.mark.parametrize(
    ("status", "times"), [(401, 1), (403, 1), (404, 1), (403, ALWAYS)], ids=["401", "403", "404", "403 for good"]
)
def test_a_lost_answer_and_a_refused_look(
    table: ManagedTable, proxy: FaultProxy, status: int, times: int, way: int
) -> None:
    """What was perhaps accepted is not thrown away, nor called refused, because looking at it is not allowed."""
    spoil(proxy, table, lost_answer)
    spoil(proxy, table, afterwards(proxy, answer_always(status), times), method="GET", times=ALWAYS)
    TableWriter(table.work(1, through=proxy.uri, max_retries="1")).append(way)
    history = table.history()
    assert violations(history) == []
    assert len(history.versions) == 2


@pytest.mark.parametrize("body", ["", "{}", "<html>Please sign in.</html>"], ids=["nothing", "empty", "page"])
def test_a_yes_that_is_not_the_catalogs(table: ManagedTable, proxy: FaultProxy, body: str) -> None:
    """Captive portals and misrouted proxies answer 200 to anything."""
    spoil(proxy, table, answer_always(200, body))
    TableWriter(table.work(1, through=proxy.uri)).append()
    assert violations(table.history()) == []


@WAYS
def test_a_conflict_that_nobody_caused(table: ManagedTable, proxy: FaultProxy, way: int) -> None:
    """Servers say so too when something else of the entry was changed."""
    spoil(proxy, table, answer_always(409, CONFLICT))
    TableWriter(table.work(1, through=proxy.uri)).append(way)
    assert violations(table.history()) == []
    assert table.staged_manifests() == set()
    assert run(writers.visit, table.work(2)) == [0]


def full(after: int = 0) -> Callable[..., None]:
    """Puts manifests in their place until the store is full."""
    finish, left = ManifestStore.publish, after

    def failing(self: ManifestStore, staged: str, final: str, data: bytes | None = None) -> None:
        nonlocal left
        if not self.exists(final):
            if left == 0:
                raise ServiceUnavailableError("the store is full")
            left -= 1
        finish(self, staged, final, data)

    return failing


@WAYS
def test_storage_fails_after_the_catalogs_yes_to_one(
    table: ManagedTable, monkeypatch: pytest.MonkeyPatch, way: int
) -> None:
    writer = TableWriter(table.work(1))
    with monkeypatch.context() as patch:
        patch.setattr(ManifestStore, "publish", full())
        assert writer.append(way) == ACKNOWLEDGED  # committed: the next reader puts the manifest in its place
    history = table.history()
    assert violations(history) == []
    assert len(history.versions) == 2


@on("reference", pytest.param("sqlite", marks=pytest.mark.soak), pytest.param("postgres", marks=pytest.mark.soak))
@pytest.mark.timeout(600)
def test_many_writers_cut_off(table: ManagedTable, proxy: FaultProxy, seconds: float) -> None:
    chance, met = random.Random(5), Counter[str]()

    def commits(request: Request, forward: Forward) -> Answer:
        name = chance.choice(list(FAULTS)) if chance.random() < FAULTY else ""
        met[name] += 1
        return FAULTS[name](request, forward) if name else forward(request)

    def looks(request: Request, forward: Forward) -> Answer:
        spoiled = chance.random() < HAZY
        return (
            chance.choice([reset, answer_always(502), answer_always(500)])(request, forward)
            if spoiled
            else forward(request)
        )

    spoil(proxy, table, commits, times=ALWAYS)
    spoil(proxy, table, looks, method="GET", times=ALWAYS)
    works = [table.work(each + 1, through=proxy.uri, seconds=seconds * 0.6, **IN_TIME) for each in range(WRITERS)]
    assert run(writers.write, *works) == [0] * WRITERS
    history = table.history()
    assert violations(history) == []
    check_work(history)
    assert len(met) > len(FAULTS) / 2
    unknown = [each for each in history.operations if each.outcome == UNKNOWN]
    assert table.staged_manifests() <= {file for each in unknown for file in each.staged}


# The same request again


class Recording(IcebergNamespace):
    """A client that keeps the requests by which Lance commits."""

    def __init__(self, **properties: str) -> None:
        super().__init__(**properties)
        self.requests: list[CreateTableVersionRequest] = []
        self.is_cut_off = False

    def create_table_version(self, request: CreateTableVersionRequest) -> CreateTableVersionResponse:
        self.requests.append(request)
        if self.is_cut_off:
            raise ServiceUnavailableError("nobody is there")
        return super().create_table_version(request)


@on("sqlite", "reference")
def test_the_same_request_twice(table: ManagedTable) -> None:
    client = Recording(**table.work(1).properties)
    lance.write_dataset(table_of([(1, 1, 1)]), namespace_client=client, table_id=list(table.id), mode="append")
    [request] = client.requests
    first = client.create_table_version(request)
    assert first.version is not None
    assert (first.version.version, table.open().version) == (2, 2)
    lance.write_dataset(table_of([(2, 2, 2)]), namespace_client=client, table_id=list(table.id), mode="append")
    for again in (client, Recording(**table.work(2).properties)):
        assert again.create_table_version(request) == first
    assert (table.open().version, table.plain().version) == (3, 3)
    assert table.staged_manifests() == set()


@on("sqlite", "reference")
def test_another_payload_for_the_same_version(table: ManagedTable) -> None:
    late, rows = Recording(**table.work(1).properties), table_of([(1, 1, 1)])
    late.is_cut_off = True
    with pytest.raises(OSError, match="is unknown"):
        lance.write_dataset(rows, namespace_client=late, table_id=list(table.id), mode="append")
    [request] = late.requests
    assert len(table.staged_manifests()) == 1
    assert TableWriter(table.work(2)).append() == ACKNOWLEDGED
    late.is_cut_off = False
    for _ in range(2):
        with pytest.raises(ConcurrentModificationError) as raised:
            late.create_table_version(request)
        assert raised.value.code == 14
    assert violations(table.history()) == []
    assert table.staged_manifests() == set()


# Several tables


@pytest.fixture
def three(catalog: LiveCatalog, tmp_path: Path) -> list[ManagedTable]:
    """Tables to which only transactions write."""
    return [ManagedTable.create(catalog, tmp_path, name) for name in "abc"]


def work_on(tables: Sequence[ManagedTable], number: int, **more: Any) -> Work:
    """For a process that knows them all; it notes what it does in the folder above."""
    ids = tuple(table.id for table in tables)
    return replace(tables[0].work(number, **more), tables=ids, notes=tables[0].notes.parent)


def histories(tables: Sequence[ManagedTable]) -> dict[str, TableHistory]:
    """Of each table: what was done to all of them, and the reads of this one."""
    noted = read_notes(tables[0].notes.parent)
    return {
        table.id[-1]: table.history(*(each for each in noted if each.table in ("", table.id[-1]))) for table in tables
    }


def check_whole(tables: Sequence[ManagedTable]) -> dict[str, TableHistory]:
    """Each table for itself, and all together."""
    found = histories(tables)
    assert [violations(history) for history in found.values()] == [[]] * len(tables)
    assert torn(found) == []
    return found


@on("sqlite", pytest.param("postgres", marks=pytest.mark.soak), "live polaris")
@pytest.mark.timeout(600)
def test_transactions_are_seen_whole(three: list[ManagedTable], seconds: float) -> None:
    tasks = [writers.transact, writers.transact, writers.poll, writers.poll]
    with Crew() as crew:
        for number, task in enumerate(tasks, 1):
            crew.start(task, work_on(three, number, seconds=seconds * 0.4))
        crew.go()
        assert crew.ends() == [0] * len(tasks)
    for name, history in check_whole(three).items():
        assert kinds(history, UNKNOWN) == set()
        read = {each.version for each in history.operations if each.table == name}
        assert len(read) > 1, "no read saw anything happen"
    assert [table.staged_manifests() for table in three] == [set()] * 3


@on("reference")
def test_transactions_on_a_server_that_takes_one_table_after_the_other(
    three: list[ManagedTable], seconds: float
) -> None:
    """Iceberg's own server «does not guarantee true transactional atomicity», as it says; then all end up whole."""
    assert run(writers.transact, work_on(three, 1, seconds=seconds * 0.2)) == [0]
    assert run(writers.poll, work_on(three, 2)) == [0]
    lengths = [len(history.versions) for history in check_whole(three).values()]
    assert lengths == [max(lengths)] * 3
    assert max(lengths) > 1


@pytest.mark.parametrize(
    ("catalog", "point", "spared"),
    [
        *(("sqlite", point, 0) for point in POINTS),
        *(("sqlite", point, spared) for point in (UNFINISHED, LINKED) for spared in (1, 2)),
        *(("reference", point, 1) for point in (UNFINISHED, LINKED)),
    ],
    indirect=["catalog"],
)
def test_killed_in_a_transaction(three: list[ManagedTable], point: str, spared: int) -> None:
    assert run(writers.transact, work_on(three, 1, dies_at=point, spared=spared)) == [BY_POINT]
    assert run(writers.poll, work_on(three, 2)) == [0]
    landed = 1 if point == STAGED else 2
    assert {len(history.versions) for history in check_whole(three).values()} == {landed}
    assert run(writers.transact, work_on(three, 3)) == [0]
    assert {len(history.versions) for history in check_whole(three).values()} == {landed + 1}


@on("sqlite", "reference")
def test_killed_in_a_transaction_of_several_versions(three: list[ManagedTable]) -> None:
    """Also the versions in between stay, which nobody ever opens."""
    first, second, _ = three
    doubled = replace(work_on([first, first, second], 1), dies_at=UNFINISHED)
    assert run(writers.transact, doubled) == [BY_POINT]
    writer = TableWriter(first.work(2))
    for _ in range(SYNC_EVERY):
        assert writer.append() == ACKNOWLEDGED
    assert first.manifests() == set(range(1, SYNC_EVERY + 4))
    assert set(first.snapshots()) == first.manifests()
    assert first.staged_manifests() == set()
    assert (first.open().checkout_version(2).count_rows(), second.open().count_rows()) == (4, 4)


@pytest.mark.parametrize("fault", ["500", "reset", "429", "made, but 504", "lost answer", "half an answer", "late"])
def test_a_transaction_survives_a_fault(three: list[ManagedTable], proxy: FaultProxy, fault: str) -> None:
    proxy.add(FAULTS[fault], method="POST", path="/transactions/commit$")
    assert run(writers.transact, work_on(three, 1, through=proxy.uri, **PATIENCE.get(fault, {}))) == [0]
    found = check_whole(three)
    assert {len(history.versions) for history in found.values()} == {2}
    assert [table.staged_manifests() for table in three] == [set()] * 3


def first_only(request: Request, forward: Forward) -> Answer:
    """Do the first change of a transaction, and forget the others."""
    body = json.dumps({"table-changes": json.loads(request.body)["table-changes"][:1]}).encode()
    headers = deepcopy(request.headers)
    headers.replace_header("Content-Length", str(len(body)))
    return forward(replace(request, body=body, headers=headers))


def half_refused(request: Request, forward: Forward) -> Answer:
    """What Iceberg's own server does when somebody commits to the second table just then."""
    first_only(request, forward)
    return answer_always(409, CONFLICT)(request, forward)


@pytest.mark.parametrize("fault", [half_refused, first_only])
def test_a_server_that_does_half_a_transaction(three: list[ManagedTable], proxy: FaultProxy, fault: Fault) -> None:
    """That cannot be mended; but what it accepted stays whole, what it did not accept is not there, and nobody is told
    that nothing was done, or all."""
    proxy.add(fault, method="POST", path="/transactions/commit$")
    assert run(writers.transact, work_on(three, 1, through=proxy.uri)) == [0]
    found = histories(three)
    assert [len(history.versions) for history in found.values()] == [2, 1, 1]
    assert [violations(history) for history in found.values()] == [[]] * 3


@on("sqlite", "reference")
def test_a_server_that_says_yes_to_a_transaction_that_was_overtaken(
    three: list[ManagedTable], proxy: FaultProxy
) -> None:
    """What Iceberg's own server does when somebody commits to all the tables just then."""

    def overtaken(request: Request, forward: Forward) -> Answer:
        assert run(writers.transact, work_on(three, 2)) == [0]
        return answer_always(204)(request, forward)

    proxy.add(overtaken, method="POST", path="/transactions/commit$")
    assert run(writers.transact, work_on(three, 1, through=proxy.uri)) == [0]
    outcomes = {each.outcome: each.error for each in read_notes(three[0].notes.parent)}
    assert set(outcomes) == {ACKNOWLEDGED, REFUSED}
    assert outcomes[REFUSED].startswith("ConcurrentModificationError: ")
    assert {len(history.versions) for history in check_whole(three).values()} == {2}
    assert [table.staged_manifests() for table in three] == [set()] * 3


def test_a_server_that_says_yes_to_a_transaction_and_does_nothing(three: list[ManagedTable], proxy: FaultProxy) -> None:
    proxy.add(answer_always(204), method="POST", path="/transactions/commit$")
    assert run(writers.transact, work_on(three, 1, through=proxy.uri)) == [0]
    [unknown] = read_notes(three[0].notes.parent)
    assert (unknown.outcome, unknown.error[:25]) == (UNKNOWN, "CommitStateUnknownError: ")
    assert {len(history.versions) for history in check_whole(three).values()} == {1}


@pytest.mark.parametrize("good", [0, 1, 2])
def test_storage_fails_after_the_catalogs_yes(
    three: list[ManagedTable], monkeypatch: pytest.MonkeyPatch, good: int
) -> None:
    """The transaction is made, whatever becomes of the manifests; the next reader puts them in their place."""
    notes, namespace = work_on(three, 1).client()
    with monkeypatch.context() as patch:
        patch.setattr(ManifestStore, "publish", full(after=good))
        add_to_all(namespace, notes, [table.id for table in three], (KEYS_OF_ONE, 1, 1))
    assert {len(history.versions) for history in check_whole(three).values()} == {2}


def test_a_transaction_of_which_nothing_is_known(three: list[ManagedTable], proxy: FaultProxy) -> None:
    proxy.add(answer_always(500), method="POST", path="/transactions/commit$", times=ALWAYS)
    assert run(writers.transact, work_on(three, 1, through=proxy.uri, max_retries="1")) == [0]
    [unknown] = read_notes(three[0].notes.parent)
    assert (unknown.outcome, unknown.error[:25]) == (UNKNOWN, "CommitStateUnknownError: ")
    assert {len(history.versions) for history in check_whole(three).values()} == {1}
    assert run(writers.transact, work_on(three, 2)) == [0]
    assert {len(history.versions) for history in check_whole(three).values()} == {2}
