from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from unittest.mock import patch

import lance
import pyarrow as pa
import pytest
from lance_namespace import DescribeTableRequest
from lance_namespace.errors import InternalError, ServiceUnavailableError

from lancehouse import CATALOGS
from lancehouse.admin.copy import Action, Copier, CopyStep, NamedCatalog
from lancehouse.cli.client import Client
from lancehouse.conformance.target import ConformanceTarget
from lancehouse.jobs import table_copy
from lancehouse.jobs.table_copy import CopyPlan
from lancehouse.lake.commits import locate_table
from lancehouse.lake.dataset import TableRef
from lancehouse.lake.job_records import JobProgress
from tests.cli.commands import TWO_ROWS, ConfiguredCatalog, open_small
from tests.servers.moto import Bucket

PAIRS = [("reference", "served"), ("served", "polaris"), ("dir", "unity"), ("unity", "dir")]
IDS = ["-".join(pair) for pair in PAIRS]


def side(home: ConfiguredCatalog, **more: str) -> NamedCatalog:
    target = ConformanceTarget(CATALOGS.get(home.impl, home.impl), {**home.properties, **more}, home.parent)
    return NamedCatalog(home.name, Client(target.connect(), target))


class Here:
    """Copies without Spark, as tasks would; stops after some tasks, if told so."""

    def __init__(self, copier: Copier, limit: int = 1000) -> None:
        self._source, self._target = copier.source.catalog.namespace, copier.target.catalog.namespace
        self._limit = limit

    def __call__(self, source: tuple[str, ...], target: tuple[str, ...]) -> CopyPlan:
        here, there = TableRef.in_namespace(self._source, source), TableRef.in_namespace(self._target, target)
        plan = table_copy.plan(here, locate_table(there))
        for phase in plan.phases:
            for task in phase:
                for file in json.loads(task):
                    if not self._limit:
                        raise InternalError("the machine was switched off")
                    self._limit -= 1
                    table_copy.execute(locate_table(here), locate_table(there), json.dumps([file]))
        return plan


def copy_tables(copier: Copier, tables: list[tuple[str, ...]], limit: int = 1000) -> list[CopyStep]:
    return copier.execute(copier.plan(tables), Here(copier, limit))


def create_history(home: ConfiguredCatalog) -> tuple[str, ...]:
    """A table with versions, a tag, an index, deleted rows; what it is called in both catalogs."""
    home.write("docs", TWO_ROWS)
    for number in range(3):
        rows = pa.table({"id": pa.array([10 + number], pa.int64()), "text": [f"more {number}"]})
        home.write("docs", rows, mode="append")
    dataset = home_dataset(home)
    dataset.create_scalar_index("id", "BTREE")
    dataset.delete("id = 2")
    dataset.tags.create("first", 1)
    return (home.ns, "docs")


def home_dataset(home: ConfiguredCatalog) -> Any:
    return lance.dataset(namespace_client=home.connect(), table_id=home.id("docs"))


def the_copy(home: ConfiguredCatalog, table: tuple[str, ...], **at: Any) -> Any:
    id_there = [*home.parent, *table]
    return lance.dataset(namespace_client=home.connect(), table_id=id_there, **at)


@pytest.mark.parametrize(("first", "second"), PAIRS, ids=IDS)
def test_with_all_its_versions(first: str, second: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    here, there = open_small(first, request, tmp_path), open_small(second, request, tmp_path)
    table = create_history(here)
    copier = Copier(side(here), side(there), with_data=True)
    [planned] = copier.plan([table])
    assert (planned.action, planned.version) == (Action.COPY, home_dataset(here).version)
    assert planned.files > 10
    [done] = copy_tables(copier, [table])
    assert (done.action, done.files) == (Action.DONE, planned.files), done.why
    original, copy = home_dataset(here), the_copy(there, table)
    assert copy.uri != original.uri
    assert [each["version"] for each in copy.versions()] == [each["version"] for each in original.versions()]
    assert copy.to_table() == original.to_table()
    assert the_copy(there, table, version="first").count_rows() == TWO_ROWS.num_rows
    assert [each.name for each in copy.describe_indices()] == ["id_idx"]
    files = {path.relative_to(tmp_path) for path in tmp_path.rglob("*.part")}
    assert files == set()
    assert [step.action for step in copier.plan([table])] == [Action.PRESENT]


@pytest.mark.parametrize("limit", [0, 1, 5, 12])
def test_goes_on_where_it_was(limit: int, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    here, there = open_small("reference", request, tmp_path), open_small("served", request, tmp_path)
    table = create_history(here)
    copier = Copier(side(here), side(there), with_data=True)
    [broken] = copy_tables(copier, [table], limit)
    assert (broken.action, broken.why) == (Action.FAILS, "the machine was switched off")
    at = Path(str(there.connect().describe_table(DescribeTableRequest(id=["main", *table])).location))
    before = {path: path.stat().st_mtime_ns for path in at.rglob("*") if is_immutable(path)}
    assert len(before) == limit
    [planned] = copier.plan([table])
    assert planned.action is Action.COPY
    [done] = copy_tables(copier, [table])
    assert (done.action, done.files) == (Action.DONE, planned.files)
    assert before == {path: path.stat().st_mtime_ns for path in before}
    assert the_copy(there, table).to_table() == home_dataset(here).to_table()
    assert not (at / "_lancehouse").exists()
    assert [step.action for step in copier.plan([table])] == [Action.PRESENT]


def test_a_store_that_fails_before_anything_is_copied(request: pytest.FixtureRequest, tmp_path: Path) -> None:
    """The new entry goes again: the next copy would take it for another table."""
    here, there = open_small("reference", request, tmp_path), open_small("served", request, tmp_path)
    table = create_history(here)
    copier = Copier(side(here), side(there), with_data=True)
    with patch.object(JobProgress, "record", side_effect=ServiceUnavailableError("no answer")):
        [broken] = copy_tables(copier, [table])
    assert (broken.action, broken.why) == (Action.FAILS, "no answer")
    [done] = copy_tables(copier, [table])
    assert done.action is Action.DONE, done.why


def is_immutable(path: Path) -> bool:
    return path.is_file() and path.suffix in (".lance", ".txn", ".manifest", ".idx", ".bin", ".arrow")


def test_a_copy_is_never_seen_half(request: pytest.FixtureRequest, tmp_path: Path) -> None:
    """Wherever it stops: there is no table yet, or a version of it that can be read."""
    here, there = open_small("reference", request, tmp_path), open_small("dir", request, tmp_path)
    table = create_history(here)
    copier = Copier(side(here), side(there), with_data=True)
    seen: list[int | None] = []
    for limit in range(1, 40):
        [step] = copy_tables(copier, [table], limit)
        try:
            copy = the_copy(there, table)
        except ValueError:
            seen.append(None)
        else:
            seen.append(copy.to_table().num_rows)
        if step.action is Action.DONE:
            break
    assert step.action is Action.DONE
    assert seen[0] is None
    assert len(set(seen)) > 1
    assert seen[-1] == home_dataset(here).count_rows()


def test_what_came_since(request: pytest.FixtureRequest, tmp_path: Path) -> None:
    here, there = open_small("reference", request, tmp_path), open_small("served", request, tmp_path)
    table = create_history(here)
    copier = Copier(side(here), side(there), with_data=True)
    copy_tables(copier, [table])
    here.write(mode="append")
    home_dataset(here).tags.update("first", 2)
    [planned] = copier.plan([table])
    assert (planned.action, planned.files) == (Action.COPY, 3)  # data, transaction, manifest
    [done] = copy_tables(copier, [table])
    assert done.action is Action.DONE
    assert the_copy(there, table).to_table() == home_dataset(here).to_table()
    assert the_copy(there, table, version="first").version == 2


def test_a_copy_that_somebody_has_changed(request: pytest.FixtureRequest, tmp_path: Path) -> None:
    here, there = open_small("reference", request, tmp_path), open_small("served", request, tmp_path)
    table = create_history(here)
    copier = Copier(side(here), side(there), with_data=True)
    copy_tables(copier, [table])
    lance.write_dataset(TWO_ROWS, namespace_client=there.connect(), table_id=["main", *table], mode="append")
    [planned] = copier.plan([table])
    assert planned.action is Action.CONFLICT
    assert "another table of that name" in planned.why


def test_branches_stay_behind(request: pytest.FixtureRequest, tmp_path: Path) -> None:
    here, there = open_small("reference", request, tmp_path), open_small("served", request, tmp_path)
    here.write()
    dataset = home_dataset(here)
    dataset.create_branch("trial")
    dataset.tags.create("of-trial", ("trial", 1))
    table = (here.ns, "docs")
    [done] = copy_tables(Copier(side(here), side(there), with_data=True), [table])
    assert (done.action, done.why) == (Action.DONE, "branches stay behind: trial; tags of theirs too: of-trial")
    assert (done.branches, done.tags) == (["trial"], ["of-trial"])
    copy = the_copy(there, table)
    assert (copy.branches.list(), copy.tags.list()) == ({}, {})


def test_a_shallow_clone_is_refused(request: pytest.FixtureRequest, tmp_path: Path) -> None:
    here, there = open_small("reference", request, tmp_path), open_small("served", request, tmp_path)
    here.write()
    home_dataset(here).shallow_clone(str(tmp_path / "clone"), 1)
    here.run("table", "register", f"{here.ns}.clone", str(tmp_path / "clone"))
    [planned] = Copier(side(here), side(there), with_data=True).plan([(here.ns, "clone")])
    assert planned.action is Action.FAILS
    assert "shallow clone" in planned.why


@pytest.mark.parametrize("is_told", [False, True])
def test_versions_are_managed_as_before(is_told: bool, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    here, there = open_small("reference", request, tmp_path), open_small("served", request, tmp_path)
    here.declare(managed_by="storage" if is_told else "impl")
    here.write(mode="append")
    here.write(mode="append")
    table = (here.ns, "docs")
    target = side(there, managed_by="impl") if is_told else side(there)
    [done] = copy_tables(Copier(side(here), target, with_data=True), [table])
    assert done.action is Action.DONE, done.why
    found = there.connect().describe_table(DescribeTableRequest(id=["main", *table]))
    assert found.managed_versioning
    assert there.findings(f"{here.ns}.docs") == []
    lance.write_dataset(TWO_ROWS, namespace_client=there.connect(), table_id=["main", *table], mode="append")
    assert the_copy(there, table).version == 3


def test_a_place_of_its_own(request: pytest.FixtureRequest, tmp_path: Path) -> None:
    here, there = open_small("served", request, tmp_path), open_small("reference", request, tmp_path)
    here.write()
    copier = Copier(side(here), side(there), with_data=True, root=str(tmp_path / "copies"))
    [done] = copy_tables(copier, [(here.ns, "docs")])
    assert done.target == str(tmp_path / "copies" / "wh" / here.ns / "docs")
    assert lance.dataset(done.target).count_rows() == TWO_ROWS.num_rows


def test_data_that_a_table_has_left(request: pytest.FixtureRequest, tmp_path: Path) -> None:
    here, there = open_small("served", request, tmp_path), open_small("reference", request, tmp_path)
    here.write()
    left = tmp_path / "copies" / "wh" / here.ns / "docs"
    lance.write_dataset(TWO_ROWS.slice(1), str(left))
    copier = Copier(side(here), side(there), with_data=True, root=str(tmp_path / "copies"))
    [failed] = copy_tables(copier, [(here.ns, "docs")])
    assert (failed.action, failed.why) == (
        Action.FAILS,
        f"another dataset lies at {left}: remove it, or give another --root for {here.ns}.docs",
    )
    assert lance.dataset(str(left)).count_rows() == 1
    assert there.run_json("table", "list", here.ns)["count"] == 0


def test_in_an_object_store(s3: Bucket, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    here, there = open_small("served", request, tmp_path), open_small("unity", request, tmp_path)
    here.write()
    here.write(mode="append")
    table = (here.ns, "docs")
    options = {f"storage.{key}": value for key, value in s3.options.items()}
    copier = Copier(side(here), side(there, **options), with_data=True, root=f"{s3.uri}/copies")
    [broken] = copy_tables(copier, [table], 2)
    assert (broken.action, broken.files) == (Action.FAILS, 6), broken.why
    [planned] = copier.plan([table])
    assert (planned.action, planned.files) == (Action.COPY, 4)
    [done] = copy_tables(copier, [table])
    assert (done.action, done.files) == (Action.DONE, 4), done.why
    copy = lance.dataset(done.target, storage_options=dict(s3.options))
    assert (copy.count_rows(), len(copy.versions())) == (2 * TWO_ROWS.num_rows, 2)
    assert [step.action for step in copier.plan([table])] == [Action.PRESENT]
    said = [word for key, value in options.items() for word in ("--property", f"{key}={value}")]
    lance.write_dataset(TWO_ROWS, f"{s3.uri}/copies/stray/docs", storage_options=dict(s3.options))
    found = there.findings("--root", f"{s3.uri}/copies", *said)
    assert [(each["kind"], each["about"]) for each in found] == [("no-entry", f"{s3.uri}/copies/stray/docs")]
