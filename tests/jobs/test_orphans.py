from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from time import time
from typing import Any
from unittest.mock import patch

import lance
import pyarrow as pa
import pytest
from lance.fragment import write_fragments
from lance_namespace import CreateTableVersionRequest
from lance_namespace.errors import InternalError, InvalidInputError, InvalidTableStateError, TableNotFoundError

from lancehouse.jobs import orphans
from lancehouse.jobs.orphans import CleanupResult, cleanup, execute, plan
from lancehouse.lake.dataset import TableRef
from lancehouse.lake.job_records import JobProgress
from lancehouse.lake.versions import list_manifests
from tests.clients.managed import (
    ManagedCatalog,
    killed_before_the_manifest_is_final,
    managed_by_lancehouse,
    stage_commit,
)
from tests.jobs.maintenance import Worn, remove_orphans, worn_in
from tests.lake.folder import rows
from tests.lake.test_removal import ICEBERG, THEIRS, fill
from tests.servers.lancehouse import Served
from tests.servers.moto import Bucket

NOW = timedelta(0)
WEEK = timedelta(days=7)


@pytest.fixture
def house(lancehouse_server: Served) -> ManagedCatalog:
    """A catalog that manages versions."""
    return managed_by_lancehouse(lancehouse_server)


def everything(table: Worn) -> set[str]:
    return {file for file in table.files(".") if not file.endswith("latest_version_hint.json")}


def age(table: Worn, days: int = 8) -> None:
    """Make all files look old."""
    for file in table.files("."):
        os.utime(table.folder / file, (time() - days * 86400,) * 2)


def on_branch(table: Worn, name: str = "side") -> Worn:
    return replace(table, ref=replace(table.ref, branch=name))


# Old versions


def test_cleaning_up(worn_table: Worn) -> None:
    worn_table.open().optimize.compact_files()
    before = everything(worn_table)
    planned = cleanup(worn_table.ref, NOW, dry_run=True)
    assert everything(worn_table) == before
    done = cleanup(worn_table.ref, NOW)
    assert done == planned
    assert (done.versions, done.tagged) == (7, ())
    assert done.bytes > 0
    assert len(worn_table.files("data")) == 1
    assert worn_table.open().count_rows() == 60
    worn_table.check()


def test_young_versions_stay(worn_table: Worn) -> None:
    assert cleanup(worn_table.ref) == CleanupResult(0, 0)
    assert len(worn_table.open().version_refs()) == 6


def test_tagged_versions_stay(worn_table: Worn) -> None:
    worn_table.open().tags.create("second", 2)
    worn_table.open().tags.create("latest", 6)
    assert cleanup(worn_table.ref, NOW, dry_run=True).tagged == ("second",)
    assert cleanup(worn_table.ref, timedelta(days=1)).tagged == ()
    done = cleanup(worn_table.ref, NOW)
    assert (done.versions, done.tagged) == (4, ("second",))
    assert [ref["version"] for ref in worn_table.open().version_refs()] == [2, 6]
    assert replace(worn_table.ref, tag="second").open().count_rows() == 20


def test_the_catalog_forgets_them_too(house: ManagedCatalog) -> None:
    table = worn_in(house)
    table.open().tags.create("second", 2)
    cleanup(table.ref, NOW)
    assert set(house.snapshots(list(table.ref.id))) == {2, 6}


def test_the_catalog_forgets_what_a_call_removed_that_failed(house: ManagedCatalog) -> None:
    table = worn_in(house)
    clean_up = lance.LanceDataset.cleanup_old_versions

    def fail(*args: Any, **options: Any) -> None:
        clean_up(*args, **options)
        raise OSError("the connection broke")

    with patch.object(lance.LanceDataset, "cleanup_old_versions", fail), pytest.raises(InternalError):
        cleanup(table.ref, NOW)
    cleanup(table.ref, NOW)
    assert set(house.snapshots(list(table.ref.id))) == {6}


def test_versions_that_the_catalog_does_not_know(house: ManagedCatalog) -> None:
    table = worn_in(house)
    lance.write_dataset(rows(1, 100), str(table.folder), mode="append")
    before = everything(table)
    with pytest.raises(InvalidTableStateError, match="bypassed the catalog"):
        cleanup(table.ref, NOW)
    assert everything(table) == before


def test_cleaning_up_a_branch(worn_table: Worn) -> None:
    worn_table.open().create_branch("side", 3)
    side = on_branch(worn_table)
    for number in range(3):
        side.append(rows(1, 100 + number))
    cleanup(side.ref, NOW)
    assert [ref["version"] for ref in side.open().version_refs()] == [6]
    assert len(worn_table.open().version_refs()) == 6
    cleanup(worn_table.ref, NOW)
    assert (side.open().count_rows(), worn_table.open().count_rows()) == (33, 60)
    assert sorted(side.open().to_table()["id"].to_pylist()) == [*range(30), 100, 101, 102]


def test_a_table_among_the_data_of_another_is_not_cleaned_away(plain: Worn) -> None:
    """Lance takes all below `data` for its own."""
    inner = plain.folder / "data" / "inner.lance"
    lance.write_dataset(rows(3), inner)
    age(plain)
    with pytest.raises(InvalidTableStateError, match=r"another table lies at data/inner\.lance"):
        cleanup(plain.ref, NOW)
    assert lance.dataset(inner).to_table().num_rows == 3


@pytest.mark.parametrize("older_than", ["14d", 14, None, timedelta(days=-1), timedelta(days=900_000)])
def test_what_is_no_age(plain: Worn, older_than: Any) -> None:
    with pytest.raises(InvalidInputError, match="older_than is an age"):
        cleanup(plain.ref, older_than)
    with pytest.raises(InvalidInputError, match="older_than is an age"):
        plan(plain.ref, older_than if older_than is not None else -WEEK, no_writers=True)


def test_what_cannot_be_cleaned_up(plain: Worn, tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match="is an age"):
        cleanup(plain.ref, -WEEK)
    with pytest.raises(InvalidInputError, match="not one of its versions"):
        cleanup(replace(plain.ref, version=1))
    with pytest.raises(TableNotFoundError):
        cleanup(TableRef(str(tmp_path / "none")))


# Files that no version names


def leave_litter(location: str) -> set[str]:
    """Leave, below a table's place, what killed writers leave there."""
    data = pa.table({"id": [7], "b": lance.blob_array([b"z" * 5_000_000])}, schema=lance.dataset(location).schema)
    folder = Path(location)
    before = {path for path in folder.rglob("*") if path.is_file()}
    write_fragments(data, location, mode="append", data_storage_version="2.2")
    main = lance.dataset(location)
    main.create_index_uncommitted("id", "BTREE", name="x", fragment_ids=[main.get_fragments()[0].fragment_id])
    side = main.checkout_version(("a/b", None))
    write_fragments(data, side, mode="append", data_storage_version="2.2")
    side.create_index_uncommitted("id", "BITMAP", name="x", fragment_ids=[side.get_fragments()[0].fragment_id])
    for file in (
        "_transactions/9-x.txn",
        "_deletions/0-9-x.arrow",
        "tree/a/b/_transactions/9-x.txn",
        "_staging/some.model",
        "_versions/18446744073709551614.manifest-0000-1111",
        "_versions/.tmpAbCdEf",
        "data/.tmpAbCdEf",
        "tree/a/b/data/.tmpAbCdEf",
        f"_indices/{main.describe_indices()[0].segments[0].uuid}/.tmpAbCdEf",
    ):
        (folder / file).parent.mkdir(exist_ok=True)
        (folder / file).write_text("x")
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file() and path not in before}


@pytest.fixture
def rich(tmp_path: Path) -> Worn:
    """A table with blobs, deleted rows, indices, tags and branches, one of which lies in the folder of another."""
    location = str(tmp_path / "t")
    fill(location)
    main = lance.dataset(location)
    more = pa.table({"id": [3, 4], "b": lance.blob_array([b"y" * 5_000_000, None])}, schema=main.schema)
    lance.write_dataset(more, main, mode="append")
    side = main.checkout_version(("a/b", None))
    lance.write_dataset(more, side, mode="append", data_storage_version="2.2")
    side = main.checkout_version(("a/b", None))
    side.create_scalar_index("id", "BTREE", name="own")
    side.create_branch("a").delete("id = 3")
    return Worn(TableRef(location), tmp_path / "t")


def contents(table: Worn) -> list[object]:
    """All rows of all versions, with their blobs, and what indices find."""
    found: list[object] = []
    main = table.open()
    for branch in ("main", "a/b", "a"):
        for ref in main.checkout_version((branch, None)).version_refs():
            version = main.checkout_version((branch, ref["version"]))
            ids = version.to_table(columns=["id"])["id"].to_pylist()
            there = [index for index, id_ in enumerate(ids) if id_ != 4]
            blobs = [blob.readall() for blob in version.take_blobs("b", indices=there)] if there else []
            found += [branch, ref["version"], ids, blobs, version.to_table(filter="id = 2", columns=["id"]).num_rows]
    return found


def test_orphans(rich: Worn) -> None:
    before, held = everything(rich), contents(rich)
    litter = leave_litter(str(rich.folder))
    assert len(litter) == 2 * 2 + 2 + 1 + 9
    for file in (*THEIRS, *ICEBERG):
        (rich.folder / file).parent.mkdir(exist_ok=True)
        (rich.folder / file).write_text("x")
    age(rich)
    found = remove_orphans(rich.ref, dry_run=True)
    assert (set(found.names), found.files) == (litter, len(litter))
    assert found.bytes == sum((rich.folder / file).stat().st_size for file in litter)
    assert litter <= everything(rich)
    assert remove_orphans(rich.ref) == found
    assert everything(rich) == before | {*THEIRS, *ICEBERG}
    assert contents(rich) == held
    assert remove_orphans(rich.ref).files == 0


def test_nothing_of_a_table_in_use(worn_table: Worn) -> None:
    worn_table.open().create_scalar_index("id", "BTREE")
    worn_table.open().delete("id < 5")
    worn_table.open().create_branch("side")
    on_branch(worn_table).open().delete("id > 50")
    before = everything(worn_table)
    age(worn_table)
    assert remove_orphans(worn_table.ref).files == 0
    assert everything(worn_table) == before
    worn_table.check()


def test_age(plain: Worn) -> None:
    old = write_fragments(rows(1), str(plain.folder), mode="append")[0].files[0].path
    age(plain)
    young = write_fragments(rows(1), str(plain.folder), mode="append")[0].files[0].path
    assert remove_orphans(plain.ref, timedelta(days=9)).files == 0
    assert remove_orphans(plain.ref).names == (f"data/{old}",)
    assert remove_orphans(plain.ref, timedelta(hours=1)).files == 0
    with pytest.raises(InvalidInputError, match=r"about to commit them.*no_writers"):
        remove_orphans(plain.ref, timedelta(minutes=59))
    with pytest.raises(InvalidInputError):
        remove_orphans(plain.ref, -WEEK, no_writers=True)
    assert remove_orphans(plain.ref, NOW, no_writers=True).names == (f"data/{young}",)


def test_pieces(plain: Worn, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(orphans, "FILES_AT_ONCE", 2)
    for _ in range(5):
        write_fragments(rows(1), str(plain.folder), mode="append")
    tasks = list(plan(plain.ref, NOW, no_writers=True))
    assert [len(task.files) for task in tasks] == [2, 2, 1]
    assert sum(execute(plain.ref, task).files for task in tasks) == 5
    assert sum(execute(plain.ref, task).files for task in tasks[:1]) == 2  # a task that is run again
    assert plain.open().to_table().num_rows == 60


@pytest.mark.parametrize("branch", [None, "side", "new"])
def test_what_is_committed_meanwhile(worn_table: Worn, branch: str | None) -> None:
    worn_table.open().create_branch("side")
    written = write_fragments(rows(3, 100), worn_table.open(), mode="append")
    tasks = list(plan(worn_table.ref, NOW, no_writers=True))
    assert sum(task.summarize().files for task in tasks) == 1
    if branch == "new":
        worn_table.open().create_branch("new")
    table = replace(worn_table.ref, branch=branch)
    operation = lance.LanceOperation.Append(written)
    if branch is None:
        at = table.open()
        lance.LanceDataset.commit(at, operation, read_version=at.version)
        assert [execute(worn_table.ref, task).files for task in tasks] == [0]
        assert table.open().to_table().num_rows == 63
    else:
        again = write_fragments(rows(3, 100), table.open(), mode="append")
        lance.LanceDataset.commit(table.open(), lance.LanceOperation.Append(again), read_version=table.open().version)
        assert [execute(worn_table.ref, task).files for task in tasks] == [1]
        assert table.open().to_table().num_rows == 63


def test_indices_that_only_a_branch_has_left(plain: Worn) -> None:
    plain.open().create_scalar_index("id", "BTREE")
    plain.open().create_branch("side")
    plain.open().drop_index("id_idx")
    cleanup(plain.ref, NOW)
    [*old, _] = list_manifests(plain.ref).values()
    for file in old:  # pylance 14 keeps what a branch came from, but not every writer does
        (plain.folder / file).unlink()
    age(plain)
    remove_orphans(plain.ref)
    found = on_branch(plain).open().scanner(filter="id = 33", columns=["id"])
    assert "ScalarIndexQuery" in found.explain_plan()
    assert found.to_table()["id"].to_pylist() == [33]


def test_detached_versions(plain: Worn) -> None:
    [written] = write_fragments(rows(3, 100), str(plain.folder), mode="append")
    operation = lance.LanceOperation.Append([written])
    apart = lance.LanceDataset.commit(str(plain.folder), operation, read_version=6, detached=True)
    before = everything(plain)
    age(plain)
    assert remove_orphans(plain.ref).files == 0
    assert everything(plain) == before
    assert plain.open().checkout_version(apart.version).to_table().num_rows == 63


def add(main: lance.LanceDataset, branch: str | None = None) -> None:
    """Add three rows."""
    lance.write_dataset(rows(3, 100), main.checkout_version((branch, None)) if branch else main, mode="append")


def record_file(table: Worn, job: str, key: str = "a.parquet") -> str:
    """Have a job write a data file and take note of it; the file."""
    [written] = write_fragments(rows(3, 100), str(table.folder), mode="append")
    JobProgress(str(table.folder), {}, job).record(key, [json.dumps(written.to_json())])
    return f"data/{written.files[0].path}"


def test_jobs_that_can_go_on(plain: Worn) -> None:
    first = record_file(plain, "ingest", "a.parquet")
    age(plain)
    second = record_file(plain, "ingest", "b.parquet")
    assert remove_orphans(plain.ref).files == 0, "its last note is young, so all that it noted stays"
    assert len(JobProgress(str(plain.folder), {}, "ingest").read_records()) == 2
    age(plain)
    names = remove_orphans(plain.ref, dry_run=True).names
    assert [name.startswith("_lancehouse/jobs/ingest/") for name in names] == [True, True, False, False]
    assert set(remove_orphans(plain.ref).names) == {*names} >= {first, second}
    assert JobProgress(str(plain.folder), {}, "ingest").read_records() == {}
    assert not {first, second} & everything(plain)
    assert remove_orphans(plain.ref).files == 0


def test_a_file_of_two_jobs(plain: Worn) -> None:
    file = record_file(plain, "dead")
    [pieces] = JobProgress(str(plain.folder), {}, "dead").read_records().values()
    age(plain)
    JobProgress(str(plain.folder), {}, "alive").record("a.parquet", pieces)
    assert [name.split("/")[2] for name in remove_orphans(plain.ref).names] == ["dead"]
    assert file in everything(plain)


def test_nobody_writes(plain: Worn) -> None:
    """No age is waited for then, but for jobs that can go on."""
    kept = record_file(plain, "ingest")
    [left] = write_fragments(rows(1), str(plain.folder), mode="append")
    (plain.folder / "data" / ".tmpAbCdEf").write_text("x")
    assert remove_orphans(plain.ref).files == 0
    gone = {f"data/{left.files[0].path}", "data/.tmpAbCdEf"}
    assert set(remove_orphans(plain.ref, no_writers=True).names) == gone
    assert kept in everything(plain)
    assert kept in remove_orphans(plain.ref, NOW, no_writers=True).names
    assert remove_orphans(plain.ref, NOW, no_writers=True).files == 0
    plain.check()


def test_a_job_that_is_resumed_keeps_its_files(plain: Worn) -> None:
    """Between plan and execution it is known by its name alone, so one that is not over keeps all it has noted."""
    file = record_file(plain, "ingest")
    age(plain)
    stray = write_fragments(rows(1), str(plain.folder), mode="append")
    age(plain)
    JobProgress(str(plain.folder), {}, "ingest").record("b.parquet", [])
    tasks = list(plan(plain.ref))
    assert [task.finished_jobs for task in tasks] == [set()]
    assert [execute(plain.ref, task).names for task in tasks] == [(f"data/{stray[0].files[0].path}",)]
    assert file in everything(plain)


def by_name(table: Worn) -> TableRef:
    return table.ref


def by_path(table: Worn) -> TableRef:
    return TableRef(str(table.folder))


@pytest.mark.parametrize("address", [by_name, by_path])
@pytest.mark.parametrize("branch", [None, "side"])
def test_versions_on_their_way(house: ManagedCatalog, address: Callable[[Worn], TableRef], branch: str | None) -> None:
    table = worn_in(house)
    if branch:
        table.open().create_branch(branch)
    ours = replace(table, ref=replace(table.ref, branch=branch))
    request = CreateTableVersionRequest(
        **stage_commit(house.namespace, list(table.ref.id), lambda main: add(main, branch))
    )
    with killed_before_the_manifest_is_final():
        house.connect().create_table_version(request)
    age(table)
    assert remove_orphans(address(table)).files == 0
    assert ours.open().to_table().num_rows == 63


def test_a_manifest_that_is_torn(plain: Worn) -> None:
    torn = f"_versions/{2**64 - 1 - 99:020}.manifest-0000-1111"
    (plain.folder / torn).write_bytes(b"torn")
    assert remove_orphans(plain.ref).files == 0
    age(plain)
    assert remove_orphans(plain.ref).names == (torn,)
    plain.check()


def test_versions_that_were_refused(house: ManagedCatalog) -> None:
    table = worn_in(house)
    stage_commit(house.namespace, list(table.ref.id), add)
    age(table)
    assert remove_orphans(table.ref).files == 0  # somebody may yet accept it
    table.append(rows(1, 100))
    age(table)
    found = remove_orphans(table.ref)
    assert sorted(name.partition("/")[0] for name in found.names) == ["_transactions", "_versions", "data"]
    assert table.open().to_table().num_rows == 61
    table.check()


def test_orphans_in_a_store(s3: Bucket) -> None:
    location, options = f"{s3.uri}/a b/t", dict(s3.options)
    main = lance.write_dataset(rows(30), location, storage_options=options)
    main.create_scalar_index("id", "BTREE")
    main = lance.dataset(location, storage_options=options)
    side = main.create_branch("a/b", storage_options=options)
    side.delete("id < 5")
    side = main.checkout_version(("a/b", None))
    before = set(s3.keys())
    write_fragments(rows(1), location, mode="append", storage_options=options)
    side.create_index_uncommitted("b", "BITMAP", name="x", fragment_ids=[0])
    litter = set(s3.keys()) - before
    assert {key.split("/")[2] for key in litter} == {"data", "tree"}
    table = TableRef(location, s3.options)
    assert remove_orphans(table).files == 0
    found = remove_orphans(table, NOW, no_writers=True)
    assert {f"a b/t/{name}" for name in found.names} == litter
    assert set(s3.keys()) == before
    assert table.open().to_table(filter="id = 3").num_rows == 1
    assert replace(table, branch="a/b").open().to_table().num_rows == 25


def test_what_has_no_orphans(plain: Worn, tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match="not one of its versions"):
        remove_orphans(replace(plain.ref, tag="x"))
    with pytest.raises(TableNotFoundError):
        remove_orphans(TableRef(str(tmp_path / "none")))
