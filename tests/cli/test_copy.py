from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import lance
import pytest
from click.testing import Result
from lance_namespace import CreateNamespaceRequest, DeclareTableRequest, DescribeTableRequest

from lancehouse.lake.dataset_files import split_location
from tests.cli.commands import TWO_ROWS, ConfiguredCatalog, error_text, open_small, run

PAIRS = [
    ("served", "reference"),
    ("served", "unity"),
    ("reference", "polaris"),
    ("polaris", "unity"),
    ("unity", "reference"),
    ("reference", "dir"),
    ("dir", "polaris"),
    ("unity", "dir"),
]


def both(
    request: pytest.FixtureRequest, tmp_path: Path, first: str, second: str
) -> tuple[ConfiguredCatalog, ConfiguredCatalog]:
    """Two catalogs in one file; the `dir` has a root that holds all tables of the test."""
    here, there = open_small(first, request, tmp_path), open_small(second, request, tmp_path)
    said = json.loads(here.file.read_text())
    if "dir" in said["catalogs"] and first != "dir":
        said["catalogs"]["dir"]["root"] = str(tmp_path)
        here.file.write_text(json.dumps(said))
        there = replace(there, properties={**there.properties, "root": str(tmp_path)})
    return here, there


def copy(first: ConfiguredCatalog, second: ConfiguredCatalog, *words: str) -> Result:
    command = ("--output", "json", "copy", first.name, second.name, "--namespace", first.ns, *words)
    return run(*command, LANCEHOUSE_CONFIG=str(first.file))


def actions_of(done: Result, status: int = 0) -> dict[str, str]:
    """What became of each table."""
    assert done.exit_code == status, done.output
    return {each["table"].split(".")[-1]: each["action"] for each in json.loads(done.stdout)["tables"]}


def describe_copy(home: ConfiguredCatalog, like: ConfiguredCatalog, name: str) -> Any:
    """A table of another catalog's namespace, here."""
    return home.connect().describe_table(DescribeTableRequest(id=[*home.levels[:-1], like.ns, name]))


@pytest.mark.parametrize(("first", "second"), PAIRS, ids=["-".join(pair) for pair in PAIRS])
def test_entries_alone(first: str, second: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    here, there = both(request, tmp_path, first, second)
    here.declare("a", owner="me", **{"storage.secret_access_key": "s3cr3t"})
    here.write("a", mode="append" if first != "dir" else "overwrite")
    here.write("b")
    here.declare("empty")
    wanted = {"a": "register", "b": "register", "empty": "skip"}
    assert actions_of(copy(here, there, "--dry-run")) == wanted
    done = copy(here, there)
    assert actions_of(done) == {**wanted, "a": "done", "b": "done"}
    assert "s3cr3t" not in done.output
    found = describe_copy(there, here, "a")
    assert split_location(found.location) == split_location(str(here.folder("a")))
    if "dir" not in (first, second):
        assert (found.properties["owner"], found.properties["storage.secret_access_key"]) == ("me", "s3cr3t")
    table = [*there.levels[:-1], here.ns, "a"]
    assert lance.dataset(namespace_client=there.connect(), table_id=table).count_rows() == TWO_ROWS.num_rows
    assert actions_of(copy(here, there)) == {"a": "present", "b": "present", "empty": "skip"}
    same = run("diff", first, second, "--namespace", here.ns, LANCEHOUSE_CONFIG=str(here.file))
    assert f"2 tables the same, 0 different, 1 only in {first}" in same.stdout
    assert same.exit_code == 1


def test_deep_namespaces(request: pytest.FixtureRequest, tmp_path: Path) -> None:
    here, there = both(request, tmp_path, "served", "reference")
    here.connect().create_namespace(CreateNamespaceRequest(id=[*here.levels, "deep"]))
    lance.write_dataset(TWO_ROWS, namespace_client=here.connect(), table_id=[*here.levels, "deep", "v1.2"])
    assert actions_of(copy(here, there)) == {"2`": "done"}
    found = there.connect().describe_table(DescribeTableRequest(id=["wh", here.ns, "deep", "v1.2"]))
    assert found.properties is not None


def test_what_unity_has_no_room_for(request: pytest.FixtureRequest, tmp_path: Path) -> None:
    here, there = both(request, tmp_path, "served", "unity")
    here.connect().create_namespace(CreateNamespaceRequest(id=[*here.levels, "deep"]))
    lance.write_dataset(TWO_ROWS, namespace_client=here.connect(), table_id=[*here.levels, "deep", "docs"])
    here.write("fits")
    done = copy(here, there)
    assert actions_of(done, 1) == {"docs": "fails", "fits": "register"}
    assert "nothing was done: 1 table that cannot be copied" in done.stderr
    assert actions_of(copy(here, there, "--dry-run", "--on-conflict", "skip"), 1) == {
        "docs": "fails",
        "fits": "register",
    }
    assert actions_of(copy(here, there, "--on-conflict", "skip"), 1) == {"docs": "fails", "fits": "done"}


def create_conflict(
    request: pytest.FixtureRequest, tmp_path: Path, second: str = "reference"
) -> tuple[ConfiguredCatalog, ConfiguredCatalog, str]:
    """A table that both have, and which is not the same; and one that only the first has."""
    here, there = both(request, tmp_path, "served", second)
    here.write("docs")
    here.write("new")
    there.connect().create_namespace(CreateNamespaceRequest(id=[*there.levels[:-1], here.ns]))
    table = [*there.levels[:-1], here.ns, "docs"]
    lance.write_dataset(TWO_ROWS.slice(1), namespace_client=there.connect(), table_id=table)
    return here, there, str(describe_copy(there, here, "docs").location)


def test_a_conflict_is_named_before_anything_is_done(request: pytest.FixtureRequest, tmp_path: Path) -> None:
    here, there, location = create_conflict(request, tmp_path)
    done = copy(here, there)
    assert actions_of(done, 1) == {"docs": "conflict", "new": "register"}
    assert f"another table of that name, at {location}" in done.stdout
    assert json.loads(done.stderr)["error"].startswith("nothing was done: 1 conflict")
    assert actions_of(copy(here, there, "--dry-run"), 1) == {"docs": "conflict", "new": "register"}
    assert there.run_json("table", "list", here.ns)["count"] == 1


def test_conflicts_that_are_left_out(request: pytest.FixtureRequest, tmp_path: Path) -> None:
    here, there, location = create_conflict(request, tmp_path)
    assert actions_of(copy(here, there, "--on-conflict", "skip")) == {"docs": "conflict", "new": "done"}
    assert describe_copy(there, here, "docs").location == location


@pytest.mark.parametrize("second", ["reference", "polaris", "unity"])
def test_conflicts_that_are_replaced(second: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    here, there, location = create_conflict(request, tmp_path, second)
    replacing = ("--on-conflict", "replace")
    assert copy(here, there, *replacing).exit_code == 2  # nobody to ask
    assert describe_copy(there, here, "docs").location == location
    assert actions_of(copy(here, there, *replacing, "--yes")) == {"docs": "done", "new": "done"}
    assert split_location(describe_copy(there, here, "docs").location) == split_location(str(here.folder("docs")))
    assert lance.dataset(location).count_rows() == 1


def test_a_table_whose_versions_are_managed(request: pytest.FixtureRequest, tmp_path: Path) -> None:
    here, there = both(request, tmp_path, "served", "reference")
    here.declare(managed_by="impl")
    here.write(mode="append")
    done = copy(here, there, "--dry-run")
    assert "served manages its versions: write through it alone" in done.stdout
    said = json.loads(here.file.read_text())
    said["catalogs"]["reference"]["managed_by"] = "impl"
    here.file.write_text(json.dumps(said))
    refused = copy(here, there)
    assert actions_of(refused, 1) == {"docs": "conflict"}
    assert f"lancehouse --catalog served table manage {here.ns}.docs --by storage" in refused.stdout
    del said["catalogs"]["reference"]["managed_by"]
    here.file.write_text(json.dumps(said))
    assert actions_of(copy(here, there)) == {"docs": "done"}
    assert not describe_copy(there, here, "docs").managed_versioning


def test_a_dir_has_tables_below_its_root_only(request: pytest.FixtureRequest, tmp_path: Path) -> None:
    here, there = open_small("reference", request, tmp_path), open_small("dir", request, tmp_path)
    here.write()
    done = copy(here, there)
    assert actions_of(done, 1) == {"docs": "conflict"}
    assert "--data copies it there" in done.stdout


def test_single_tables(request: pytest.FixtureRequest, tmp_path: Path) -> None:
    here, _ = both(request, tmp_path, "served", "reference")
    for name in ("a", "b", "c"):
        here.write(name)
    words = ("copy", "served", "reference", "--table", f"{here.ns}.a", "--table", f"{here.ns}.c")
    done = run("--output", "json", *words, LANCEHOUSE_CONFIG=str(here.file))
    assert actions_of(done) == {"a": "done", "c": "done"}
    missing = run(*words, "--table", f"{here.ns}.nowhere", LANCEHOUSE_CONFIG=str(here.file))
    assert missing.exit_code == 1
    assert "served has no table" in " ".join(missing.stdout.split())


def test_one_table_that_fails_does_not_stop_the_others(request: pytest.FixtureRequest, tmp_path: Path) -> None:
    here, there = both(request, tmp_path, "reference", "served")
    here.write("outside")
    inside = str(there.root / f"{here.ns}-inside")
    lance.write_dataset(TWO_ROWS, inside)
    here.run("table", "register", f"{here.ns}.inside", inside)
    done = copy(here, there)
    assert actions_of(done, 1) == {"inside": "done", "outside": "fails"}
    assert actions_of(copy(here, there), 1) == {"inside": "present", "outside": "fails"}


def test_what_people_see(request: pytest.FixtureRequest, tmp_path: Path) -> None:
    here, _ = both(request, tmp_path, "served", "reference")
    here.write()
    words = ("copy", "served", "reference", "--namespace", here.ns)
    done = run(*words, "--dry-run", LANCEHOUSE_CONFIG=str(here.file))
    lines = done.stdout.splitlines()
    assert lines[0].split() == ["Table", "Action", "What"]
    assert lines[-1] == "served to reference (nothing was done): 1 register"
    assert all(len(line) <= 80 for line in lines)
    done = run(*words, LANCEHOUSE_CONFIG=str(here.file))
    assert done.stdout.splitlines()[-1] == "served to reference: 1 done"


@pytest.mark.parametrize(
    ("words", "status", "said"),
    [
        (["nowhere", "served"], 1, "there is no catalog 'nowhere'"),
        (["served"], 2, "'TO'"),
        (["served", "served", "--table", "a.b", "--namespace", "a"], 2, "--table or --namespace"),
        (["served", "served", "--root", "/tmp"], 2, "--root goes with --data"),
        (["served", "served", "--table", "a..b"], 2, "is no id"),
        (["served", "wrong"], 1, "catalog wrong: polaris: property 'endpoint' is required"),
        (["served", "served", "--namespace", "nowhere"], 1, "nowhere"),
    ],
)
def test_wrong_words(words: list[str], status: int, said: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    home = open_small("served", request, tmp_path)
    file = json.loads(home.file.read_text())
    file["catalogs"]["wrong"] = {"impl": "polaris"}
    home.file.write_text(json.dumps(file))
    done = run("copy", *words, LANCEHOUSE_CONFIG=str(home.file))
    assert done.exit_code == status, done.output
    assert said in done.stderr
    assert "Traceback" not in done.output


def test_a_target_that_does_not_answer_is_no_conflict(request: pytest.FixtureRequest, tmp_path: Path) -> None:
    home = open_small("served", request, tmp_path)
    home.write()
    file = json.loads(home.file.read_text())
    file["catalogs"]["dead"] = {"endpoint": "http://127.0.0.1:9/iceberg", "parent": "main"}
    home.file.write_text(json.dumps(file))
    done = run("copy", "served", "dead", "--namespace", home.ns, LANCEHOUSE_CONFIG=str(home.file))
    assert "no connection to 127.0.0.1:9" in error_text(done)
    assert "Hint: check that `endpoint` is right and the server is running" in done.stderr


def test_many_conflicts_are_not_all_named(request: pytest.FixtureRequest, tmp_path: Path) -> None:
    here, there = both(request, tmp_path, "dir", "served")
    for number in range(12):
        here.declare(f"t{number:02}")
        there.connect().create_namespace(CreateNamespaceRequest(id=["main", here.ns], mode="exist_ok"))
        there.connect().declare_table(DeclareTableRequest(id=["main", here.ns, f"t{number:02}"]))
        lance.write_dataset(TWO_ROWS, str(here.folder(f"t{number:02}")))
    done = run("copy", "dir", "served", "--namespace", here.ns, LANCEHOUSE_CONFIG=str(here.file))
    assert done.exit_code == 1
    assert f", {here.ns}.t09 and 2 more\n" in done.stderr
    assert "t11" in done.stdout
    assert "t11" not in done.stderr


def test_branches_that_stay_behind_are_named(request: pytest.FixtureRequest, tmp_path: Path) -> None:
    here, _ = both(request, tmp_path, "reference", "served")
    table = here.write()
    dataset = lance.dataset(str(here.folder("docs")))
    dataset.create_branch("trial")
    dataset.tags.create("of-trial", ("trial", 1))
    words = ("copy", "reference", "served", "--namespace", here.ns, "--data", "--dry-run")
    done = run(*words, LANCEHOUSE_CONFIG=str(here.file))
    told = f"Only the main branch is copied. These branches are in reference alone: {table} (trial)"
    assert " ".join(done.stdout.split()).endswith(told)
    [found] = json.loads(run("--output", "json", *words, LANCEHOUSE_CONFIG=str(here.file)).stdout)["tables"]
    assert (found["branches_left"], found["tags_left"]) == (["trial"], ["of-trial"])
    alone = run(*words[:-2], "--dry-run", LANCEHOUSE_CONFIG=str(here.file))
    assert "main branch" not in alone.stdout  # the data stays where it is, with all its branches


def test_a_declared_table_of_the_target_is_no_copy(request: pytest.FixtureRequest, tmp_path: Path) -> None:
    here, there = both(request, tmp_path, "served", "reference")
    here.write()
    there.connect().create_namespace(CreateNamespaceRequest(id=["wh", here.ns]))
    there.connect().declare_table(DeclareTableRequest(id=["wh", here.ns, "docs"]))
    assert actions_of(copy(here, there), 1) == {"docs": "conflict"}
    assert actions_of(copy(here, there, "--data"), 1) == {"docs": "conflict"}
