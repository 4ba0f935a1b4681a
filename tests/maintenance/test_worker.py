from __future__ import annotations

import shutil
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from uuid import uuid4

import lance
import pyarrow as pa
import pytest
from lance_namespace import RegisterTableRequest, connect

from lancehouse.catalog.callers import Caller, Grant, Identity, Role
from lancehouse.maintenance.policies import change_properties
from lancehouse.server.settings import BackendSettings
from tests.catalogs import Shared, open_catalog
from tests.maintenance.places import QUICK, Place, age_files, open_place
from tests.servers.lancehouse import Served
from tests.servers.reference import Reference


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    with open_place(tmp_path) as place:
        yield place


def test_a_table_is_compacted_and_cleaned_up(place: Place) -> None:
    place.create("docs", commits=6)
    place.plan()
    place.work()
    assert place.runs() == [("docs", "compact", "done"), ("docs", "cleanup", "done")]
    dataset = place.open("docs")
    assert len(dataset.get_fragments()) == 1
    assert sorted(dataset.to_table()["id"].to_pylist()) == list(range(60))
    cleanup, compact = place.records()
    assert (compact.message, compact.version_before, compact.version_after) == (
        "6 fragments became 1",
        6,
        8,
    )  # Lance reserves a number first
    assert compact.bytes_before is not None
    assert compact.bytes_after is not None
    assert compact.bytes_after < compact.bytes_before
    assert cleanup.message.startswith("7 versions removed")
    assert cleanup.bytes_removed > 0
    assert len(list((place.folder / "main").rglob("*.manifest"))) == 1
    assert compact.worker == "one"
    assert place.table("docs").due_ms is not None  # orphans, in a week


def test_a_worker_leaves_no_connection_open(place: Place) -> None:
    """Lance calls the catalog from threads of its own, each time as a new one to Python."""

    def count_open() -> int:
        links = list(Path("/proc/self/fd").iterdir())
        return sum(link.is_symlink() and link.readlink().name == "catalog.db" for link in links)

    place.create("docs", commits=5)
    before = count_open()
    for number in range(40):
        place.write("docs", start=number)
    assert count_open() < before + 30


def test_nothing_is_done_unless_it_is_switched_on(tmp_path: Path) -> None:
    with open_place(tmp_path, policy={}) as place:
        place.create("docs", commits=6)
        place.create("one", commits=6, properties=QUICK)
        place.plan()
        place.work()
        assert {name for name, _, _ in place.runs()} == {"one"}


def test_commits_are_planned_by_what_they_record(place: Place) -> None:
    place.create("docs")
    place.plan()
    place.work()
    assert place.runs() == []
    looked = place.table("docs").looked_ms
    for number in range(3):
        place.write("docs", start=number)
        place.maintenance.plan_commits()
    place.work()
    assert place.table("docs").looked_ms == looked  # three commits: not looked at
    place.write("docs")
    place.work()
    assert place.runs()[0] == ("docs", "compact", "done")


def test_a_table_that_storage_manages_is_looked_at_in_time(place: Place) -> None:
    place.create("docs", by="storage", commits=1)
    place.plan()
    place.work()
    for _ in range(6):
        place.write("docs")
    place.work()
    assert place.runs() == []
    place.plan()
    place.work()
    assert ("docs", "compact", "done") in place.runs()


def test_deleted_rows_and_indices(place: Place, tmp_path: Path) -> None:
    own = {"maintenance.index.unindexed-rows": "20", "maintenance.compact.min-fragments": "100"}
    place.create("docs", properties=own)
    place.write("docs", rows=1000)
    place.open("docs").create_scalar_index("id", "BTREE")
    place.plan()
    place.work()
    place.write("docs", rows=30, start=5000)
    place.work()
    assert ("docs", "index", "done") in place.runs()
    assert place.open("docs").describe_indices()[0].num_rows_indexed == 1040
    place.open("docs").delete("id < 500")
    place.work()
    assert ("docs", "compact", "done") in place.runs()
    assert sum(each.metadata.num_deletions or 0 for each in place.open("docs").get_fragments()) == 0


def test_orphans_are_removed(place: Place) -> None:
    place.create("docs")
    place.plan()
    folder = next((place.folder / "main").rglob("_versions")).parent
    (folder / "data" / "ffffffff-dead.lance").write_bytes(b"orphan")
    age_files(folder, 8 * 86400)
    place.work()
    assert ("docs", "orphans", "done") in place.runs()
    assert not (folder / "data" / "ffffffff-dead.lance").exists()
    assert place.open("docs").count_rows() == 10


def test_tags_and_the_newest_versions_stay(tmp_path: Path) -> None:
    with open_place(tmp_path, policy={**QUICK, "maintenance.cleanup.keep-versions": "3"}) as place:
        place.create("docs", commits=10, properties={"maintenance.compact": "false"})
        place.open("docs").tags.create("kept", 2)
        place.plan()
        place.work()
        versions = {int(each["version"]) for each in lance.dataset(str(place.open("docs").uri)).versions()}
        assert versions == {2, 8, 9, 10}


def test_more_versions_than_allowed(tmp_path: Path) -> None:
    policy = {**QUICK, "maintenance.cleanup.older-than": "7d", "maintenance.cleanup.max-versions": "4"}
    with open_place(tmp_path, policy=policy) as place:
        place.create("docs", commits=9, properties={"maintenance.compact": "false"})
        place.plan()
        place.work()
        left = [int(each["version"]) for each in lance.dataset(str(place.open("docs").uri)).versions()]
        assert left[-1] == 9
        assert 3 <= len(left) <= 4


def test_failures_back_off(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    from lance_namespace.errors import InternalError

    from lancehouse.jobs import compaction

    def fail(*_: object) -> None:
        raise InternalError("the disk is on fire")

    monkeypatch.setattr(compaction, "compact", fail)
    place.create("docs", commits=6)
    place.plan()
    pauses = []
    for _ in range(3):
        place.work()
        table = place.table("docs")
        assert table.due_ms is not None
        assert table.looked_ms is not None
        pauses.append(round((table.due_ms - table.looked_ms) / 1000))
        place.ask("docs")
    assert pauses == [60, 120, 240]
    assert table.error == "compact: the disk is on fire"
    failed = ("docs", "compact", "failed")
    assert place.runs() == [failed, ("docs", "cleanup", "done"), failed, failed]


def test_what_somebody_asked_for_is_done_in_the_end(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    from lance_namespace.errors import ServiceUnavailableError

    from lancehouse.jobs import compaction

    def fail(*_: object) -> None:
        raise ServiceUnavailableError("the store is away")

    place.create("docs", commits=2, properties={"maintenance.enabled": "false"})
    me = Caller(Identity("me", (Grant(Role.WRITER),)))
    place.maintenance.request(me, "main", ("db", "docs"), ["compact"])
    place.maintenance.request(me, "main", ("db", "docs"), ["cleanup"])
    with monkeypatch.context() as patch:
        patch.setattr(compaction, "compact", fail)
        place.work()
    table = place.table("docs")
    assert (table.requested, table.requested_by, table.failures) == ("compact,cleanup", "me", 1)
    place.ask("docs", *table.requested.split(","))  # its pause is over
    place.work()
    cleaned = ("docs", "cleanup", "done")
    done = [("docs", "compact", "failed"), cleaned, ("docs", "compact", "done"), cleaned]
    assert place.runs() == done


def test_a_function_that_fails_does_not_keep_files_from_being_compacted(tmp_path: Path) -> None:
    from lancehouse.jobs import TableJobs
    from tests.maintenance.functions import double

    with open_place(tmp_path, policy={**QUICK, "maintenance.fill": "true"}) as place:
        place.create("docs")
        TableJobs(place.client).define_columns(["main", "db", "docs"], {"double": double})
        for number in range(5):
            place.write("docs", start=number)
        place.plan()
        place.work()  # no function is allowed
        assert place.runs()[:2] == [("docs", "fill", "failed"), ("docs", "compact", "done")]
        assert place.table("docs").error.startswith("fill: ")


def test_a_view_shows_its_source(tmp_path: Path) -> None:
    from lancehouse.jobs import TableJobs
    from tests.maintenance.functions import copies

    with open_place(tmp_path, policy={**QUICK, "maintenance.refresh": "true"}) as place:
        jobs, (source, view) = TableJobs(place.client), (["main", "db", name] for name in ("docs", "shown"))
        jobs.create_table(source, pa.schema([pa.field("id", pa.int64())]))
        place.write("docs")
        jobs.create_materialized_view(view, source, copies, columns=["id"])
        place.plan()
        options = {"functions": ("tests.maintenance.functions",), "sources": ("main.db.*",)}
        place.work(**options)
        assert ("shown", "refresh", "done") not in place.runs()  # it shows all
        place.write("docs", start=100)
        place.ask("shown", "refresh")
        place.work(**options)
        assert ("shown", "refresh", "done") in place.runs()
        assert sorted(place.open("shown").to_table()["copy"].to_pylist()) == [*range(10), *range(100, 110)]


def test_a_view_does_not_choose_what_the_server_reads_for_it(tmp_path: Path) -> None:
    """Whoever writes a view names its source; maintenance reads with the rights of the server."""
    from lancehouse.jobs import TableJobs

    with open_place(tmp_path, policy={**QUICK, "maintenance.refresh": "true"}) as place:
        jobs, (source, view) = TableJobs(place.client), (["main", "db", name] for name in ("docs", "shown"))
        jobs.create_table(source, pa.schema([pa.field("id", pa.int64())]))
        jobs.create_materialized_view(view, source, columns=["id"])
        place.write("docs")
        place.plan()
        place.ask("shown", "refresh")
        place.work(sources=("main.db.other", "main.db"))
        assert place.runs()[0] == ("shown", "refresh", "failed")
        assert "shows rows of main.db.docs" in place.table("shown").error
        assert place.open("shown").count_rows() == 0


def test_a_table_does_not_choose_what_the_server_copies_for_it(place: Place, tmp_path: Path) -> None:
    place.create("docs")
    place.write("docs")
    clone = tmp_path / "main" / "clone.lance"
    lance.dataset(place.open("docs").uri).shallow_clone(str(clone), place.open("docs").version)
    place.client.register_table(RegisterTableRequest(id=["main", "db", "clone"], location=str(clone)))
    place.plan()
    place.ask("clone", "compact")
    place.work()
    assert "takes files from" in place.table("clone").error
    assert lance.dataset(clone).version == place.open("docs").version, "nothing was copied"


def test_an_unforeseen_error_does_not_end_the_worker(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    from lancehouse.maintenance import worker

    def fail(*_: object) -> None:
        raise ZeroDivisionError("no")

    monkeypatch.setattr(worker, "read_facts", fail)
    place.create("docs", commits=6)
    place.plan()
    place.work()
    assert place.table("docs").error == "ZeroDivisionError: no"


def test_windows(tmp_path: Path) -> None:
    from datetime import UTC, datetime, timedelta

    now = datetime.now(UTC)
    window = f"{now + timedelta(hours=2):%H:%M}-{now + timedelta(hours=3):%H:%M}"
    with open_place(tmp_path, policy={**QUICK, "maintenance.window": window}) as place:
        place.create("docs", commits=6)
        place.plan()
        place.work()
        assert place.runs() == []
        due_ms = place.table("docs").due_ms
        assert due_ms is not None
        assert timedelta(hours=1) < datetime.fromtimestamp(due_ms / 1000, UTC) - now < timedelta(hours=2, minutes=1)
        place.ask("docs", "compact")
        place.work()
        assert place.runs() == [("docs", "compact", "done")]


def test_two_workers_share_tables(place: Place) -> None:
    names = [f"t{number}" for number in range(12)]
    for name in names:
        place.create(name, commits=5)
    place.plan()
    workers = [place.worker(name, threads=2) for name in ("one", "two")]
    threads = [threading.Thread(target=worker.run_until_idle) for worker in workers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    compactions = [name for name, operation, outcome in place.runs() if (operation, outcome) == ("compact", "done")]
    assert sorted(compactions) == sorted(names)
    assert {outcome for _, _, outcome in place.runs()} == {"done"}


def test_functions_are_allowed_by_the_server_only(tmp_path: Path) -> None:
    from lancehouse.jobs import TableJobs
    from tests.maintenance.functions import double

    with open_place(tmp_path, policy={**QUICK, "maintenance.fill": "true"}) as place:
        place.create("docs")
        TableJobs(place.client).define_columns(["main", "db", "docs"], {"double": double})
        place.plan()
        place.work()
        assert ("docs", "fill", "failed") in place.runs()
        assert "tests.maintenance.functions" in place.table("docs").error
        place.ask("docs")
        place.work(functions=("tests.maintenance.functions",))
        assert ("docs", "fill", "done") in place.runs()
        assert place.open("docs").to_table()["double"].to_pylist() == [2 * each for each in range(10)]


def test_a_table_of_another_catalog(tmp_path: Path) -> None:
    root = tmp_path / "other"
    other = BackendSettings(
        "other", "dir", {"root": str(root)}, (str(root),), maintenance={**QUICK, "maintenance.orphans": "false"}
    )
    rows = pa.table({"id": [1, 2]})
    for number in range(6):
        lance.write_dataset(rows, str(root / "docs.lance"), mode="append" if number else "create")
    with open_place(tmp_path, backends=[other]) as place:
        place.work()
        assert place.runs() == [("docs", "compact", "done"), ("docs", "cleanup", "done")]
        assert lance.dataset(str(root / "docs.lance")).count_rows() == 12


@pytest.mark.parametrize("kind", ["iceberg", "iceberg, managed", "polaris", "unity", "lakekeeper"])
def test_a_table_with_a_policy_in_another_catalog(
    tmp_path: Path, reference_server: Reference, lancehouse_server: Served, kind: str
) -> None:
    """Its policy is stored with its data, since not every catalog can change an entry."""
    name, _, managed = kind.partition(", ")
    with open_catalog(name, Shared(reference_server, lancehouse_server), tmp_path / "tables") as catalog:
        catalog.create_namespace()
        properties = {**catalog.properties, **({"managed_by": "impl"} if managed else {})}
        client = connect(catalog.impl, properties)
        for table in ("docs", "left"):
            for number in range(6):
                rows, mode = pa.table({"id": [number]}), "append" if number else "create"
                lance.write_dataset(rows, namespace_client=client, table_id=catalog.id(table), mode=mode)
        change_properties(client, catalog.id("docs"), QUICK, [])
        other = BackendSettings(
            "other",
            catalog.impl,
            properties,
            ("/",),
            maintenance={"maintenance.enabled": "false"},
            catalogs=catalog.parent,
        )
        with open_place(tmp_path, backends=[other]) as place:
            place.work(catalogs={"other": catalog.parent})
            assert place.runs() == [("docs", "compact", "done"), ("docs", "cleanup", "done")]
        assert len(catalog.open("docs").get_fragments()) == 1
        assert len(catalog.open("left").get_fragments()) == 6
        assert catalog.open("docs").count_rows() == 6


def test_a_table_that_cannot_be_loaded_stops_no_other(
    tmp_path: Path, reference_server: Reference, lancehouse_server: Served, caplog: pytest.LogCaptureFixture
) -> None:
    with open_catalog("iceberg", Shared(reference_server, lancehouse_server), tmp_path / "tables") as catalog:
        broken, whole = (replace(catalog, ns=f"db_{uuid4().hex[:8]}").create_namespace() for _ in range(2))
        client = catalog.connect()
        for levels in (broken.levels, whole.levels):
            for number in range(6):
                rows, mode = pa.table({"id": [number]}), "append" if number else "create"
                lance.write_dataset(rows, namespace_client=client, table_id=[*levels, "docs"], mode=mode)
        change_properties(client, whole.id("docs"), QUICK, [])
        shutil.rmtree(broken.folder("docs"))
        off = {"maintenance.enabled": "false"}
        other = BackendSettings(
            "other", catalog.impl, catalog.properties, ("/",), maintenance=off, catalogs=catalog.parent
        )
        with open_place(tmp_path, backends=[other]) as place:
            place.work(catalogs={"other": catalog.parent})
            assert place.runs() == [("docs", "compact", "done"), ("docs", "cleanup", "done")]
        assert f"namespace wh.{broken.ns}: " in caplog.text


def test_on_postgres(tmp_path: Path, postgres: str) -> None:
    from tests.servers.postgres import new_database
    from tests.store.conftest import drop

    url = new_database(postgres)
    with open_place(tmp_path, db=url) as place:
        names = [f"t{number}" for number in range(4)]
        for name in names:
            place.create(name, commits=5)
        place.plan()
        workers = [place.worker(name, threads=2) for name in ("one", "two")]
        threads = [threading.Thread(target=worker.run_until_idle) for worker in workers]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(name for name, operation, _ in place.runs() if operation == "compact") == names
        assert {outcome for _, _, outcome in place.runs()} == {"done"}
        for name in names:
            place.write(name)
        place.maintenance.plan_commits()
        soon_ms = place.maintenance.read_clock() + 3_700_000
        # Their next clean-ups, within the hour, and not only the next search for orphans.
        assert all((place.table(name).due_ms or soon_ms) < soon_ms for name in names)
        place.open("t0").delete("id < 20")
        place.work()
        assert place.runs()[-1][:2] in (("t0", "cleanup"), ("t0", "compact"))
    drop(url)
