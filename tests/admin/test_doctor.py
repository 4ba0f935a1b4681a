from __future__ import annotations

import os
import shlex
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest
from lance.fragment import write_fragments
from lance_namespace import RegisterTableRequest
from pyiceberg.catalog import load_catalog
from pyiceberg.schema import Schema
from pyiceberg.types import LongType, NestedField

from tests.cli.commands import TWO_ROWS, ConfiguredCatalog, configure, error_text, kinds, open_small
from tests.servers.faults import FaultProxy, answer_always
from tests.servers.lancehouse import Served
from tests.servers.polaris import Polaris

WIDER = TWO_ROWS.append_column("later", pa.array([1, 2], pa.int8()))
ALL = ["dir", "served", "reference", "polaris", "unity"]
ICEBERG = ["served", "reference"]


@pytest.fixture
def home(request: pytest.FixtureRequest, tmp_path: Path) -> ConfiguredCatalog:
    return open_small(request.param, request, tmp_path)


def on(*catalogs: str) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("home", catalogs, indirect=True)


def type_next(finding: dict[str, Any], home: ConfiguredCatalog, *more: str) -> Any:
    """Do what a finding says."""
    words = shlex.split(finding["command"])
    assert words[:3] == ["lancehouse", "--catalog", home.name]
    done = home.run(*words[3:], *more)
    assert done.exit_code == 0, done.output
    return done


@on(*ALL)
def test_a_catalog_in_order(home: ConfiguredCatalog) -> None:
    home.write("a")
    home.write("b")
    done = home.run("doctor", "--namespace", home.ns)
    assert (done.exit_code, done.stdout) == (0, "2 tables: all is well\n"), done.output
    assert home.run_json("doctor", f"{home.ns}.a") == {
        "tables": 1,
        "counts": {"error": 0, "warning": 0, "note": 0},
        "fixed": 0,
        "findings": [],
    }


def lose(home: ConfiguredCatalog) -> None:
    """All data, but for what an Iceberg server keeps there of its own."""
    for each in home.folder("docs").iterdir():
        if each.name != "metadata":
            shutil.rmtree(each) if each.is_dir() else each.unlink()


@on(*ALL)
def test_an_entry_without_data(home: ConfiguredCatalog) -> None:
    table = home.write()
    home.write("whole")
    lose(home)
    [found] = home.findings_here()
    assert (found["kind"], found["about"], found["can_fix"]) == ("no-data", table, False)
    assert "no data" in found["what"]
    type_next(found, home, "--yes")
    assert home.findings_here() == []


@on(*ICEBERG)
def test_a_managed_entry_without_data(home: ConfiguredCatalog) -> None:
    home.declare(managed_by="impl")
    home.write(mode="append")
    lose(home)
    [found] = home.findings_here()
    assert kinds([found]) == [("error", "no-data")]
    assert "restore it from a backup" in found["what"]


def test_an_entry_that_the_catalog_cannot_load(request: pytest.FixtureRequest, tmp_path: Path) -> None:
    home = open_small("reference", request, tmp_path)
    home.write()
    home.write("whole")
    place, aside = home.folder("docs"), tmp_path / "aside"
    place.rename(aside)
    assert kinds(home.findings_here()) == [("error", "no-data")]
    aside.rename(place)  # the server is shared, and lists no namespace with a table that it cannot load
    assert home.findings_here() == []


def test_a_name_that_a_shell_would_take_for_something_else(request: pytest.FixtureRequest, tmp_path: Path) -> None:
    home = open_small("reference", request, tmp_path)
    for name in ("-dash", "a b", "$(touch pwned)"):
        home.declare(name)
    for found in home.findings_here():
        words = shlex.split(found["command"])[3:]
        names = words.index("--") if "--" in words else len(words)
        done = home.run(*words[:names], "--yes", *words[names:])
        assert done.exit_code == 0, done.output
    assert home.run_json("table", "list", home.ns)["tables"] == []


def test_what_is_not_there_at_all(request: pytest.FixtureRequest, tmp_path: Path) -> None:
    home = open_small("dir", request, tmp_path)
    home.write()
    assert "nowhere" in error_text(home.run("doctor", "--namespace", "nowhere"))
    words = error_text(home.run("doctor", "--property", "root=/nowhere/at all"))
    assert "there is no folder /nowhere/at all" in words


def test_ids_with_too_few_levels(request: pytest.FixtureRequest, tmp_path: Path) -> None:
    home = open_small("reference", request, tmp_path)
    home.write()
    words = error_text(home.run("doctor", home.ns))
    assert f"Hint: `lancehouse --catalog reference doctor --namespace {home.ns}` checks a namespace" in words


@on("dir", "polaris", "unity")
def test_a_dataset_without_an_entry(home: ConfiguredCatalog) -> None:
    home.write("known")
    lance.write_dataset(TWO_ROWS, str(home.root / home.ns / "stray"))
    found = [each for each in home.findings() if each["kind"] == "no-entry"]
    assert [each["about"] for each in found] == [str(home.root / home.ns / "stray")]
    type_next(found[0], home)
    assert [each for each in home.findings() if each["kind"] == "no-entry"] == []
    shown = home.run_json("table", "list", home.ns)["tables"]
    assert [each["id"][-1] for each in shown] == ["known", "stray"]


def test_a_dataset_without_an_entry_on_our_server(serving: Callable[..., Served], tmp_path: Path) -> None:
    served = serving()
    home = configure("served", "iceberg", {"endpoint": served.iceberg}, served.location, tmp_path)
    home.write("known")
    stray = home.folder("known").parent / "stray"
    shutil.copytree(home.folder("known"), stray)
    [found] = home.findings()
    assert (found["kind"], found["about"]) == ("no-entry", str(stray))
    assert home.findings_here() == []
    type_next(found, home)
    assert home.findings() == []
    assert home.run_json("table", "list", home.ns)["count"] == 2


def test_a_dataset_without_an_entry_on_an_iceberg_server(tmp_path: Path) -> None:
    root = tmp_path / "tables"
    with Polaris("test_catalog", root=root.as_uri()) as server:
        said = {"endpoint": server.iceberg_uri, "credential": server.credential}
        said |= {"scope": "PRINCIPAL_ROLE:ALL", "root": root.as_uri()}
        home = configure("polaris", "iceberg", said, root, tmp_path)
        home.write("known")
        lance.write_dataset(TWO_ROWS, str(root / "test_catalog" / home.ns / "a stray"))
        found, *others = home.findings()
        assert kinds(others) == [("note", "features")]
        assert (found["kind"], found["about"]) == ("no-entry", f"{root.as_uri()}/test_catalog/{home.ns}/a%20stray")
        assert f"table register '{home.ns}.a stray' " in found["command"]


def test_more_roots(request: pytest.FixtureRequest, tmp_path: Path) -> None:
    home = open_small("unity", request, tmp_path)
    lance.write_dataset(TWO_ROWS, str(tmp_path / "elsewhere" / "db" / "stray"))
    assert kinds(home.findings("--root", str(tmp_path / "elsewhere"))) == [("warning", "no-entry")]
    assert home.findings() == []
    part = home.run("doctor", "--namespace", home.ns, "--root", str(tmp_path / "elsewhere"))
    assert (part.exit_code, part.stdout) == (1, "")
    assert "in a whole catalog only" in part.stderr


@on("dir", "polaris", "unity")
def test_a_dataset_where_there_is_no_namespace(home: ConfiguredCatalog) -> None:
    lance.write_dataset(TWO_ROWS, str(home.root / "new" / "deep" / "stray"))
    [found] = home.findings()
    made = [command.split("namespace create ")[1] for command in found["command"].split(" && ")[:-1]]
    assert made == (["new"] if home.name == "unity" else ["new", "new.deep"])
    for command in found["command"].split(" && "):
        type_next({"command": command}, home)
    assert home.findings() == []


def test_no_guess_where_not_all_entries_are_known(
    request: pytest.FixtureRequest, tmp_path: Path, faults: Callable[[str], FaultProxy]
) -> None:
    home = open_small("unity", request, tmp_path)
    home.write("a")
    home.write("b")
    proxy = faults(home.properties["endpoint"])
    proxy.add(answer_always(500), path=f"{home.ns}.b", times=100)
    found = home.findings("--property", f"endpoint={proxy.uri}", "--property", "max_retries=0")
    assert kinds(found) == [("error", "unreadable"), ("note", "no-entry")]
    assert "not all entries could be read" in found[1]["what"]


def test_a_stale_schema_of_iceberg(request: pytest.FixtureRequest, tmp_path: Path) -> None:
    home = open_small("reference", request, tmp_path)
    table = home.declare(managed_by="impl")
    home.write(mode="append")
    home.run("table", "manage", table, "--by", "storage")
    lance.write_dataset(WIDER, str(home.folder("docs")), mode="overwrite")
    [found] = home.findings_here()
    assert kinds([found]) == [("warning", "stale-schema")]
    assert found["what"] == "the catalog's schema is not the table's: it lacks later"
    assert found["can_fix"]
    type_next(found, home, "--yes")
    assert home.findings_here() == []


def test_a_stale_schema_of_unity(request: pytest.FixtureRequest, tmp_path: Path) -> None:
    home = open_small("unity", request, tmp_path)
    table = home.write()
    home.run("table", "register", table, str(home.folder("docs")), "--overwrite")
    lance.write_dataset(WIDER.drop_columns("text"), str(home.folder("docs")), mode="overwrite")
    [found] = home.findings_here()
    assert found["what"].endswith("it lacks later; it has in excess text")
    type_next(found, home)
    assert home.findings_here() == []


@on(*ICEBERG)
def test_a_writer_that_went_past_the_catalog(home: ConfiguredCatalog) -> None:
    table = home.declare(managed_by="impl")
    home.write(mode="append")
    lance.write_dataset(TWO_ROWS, str(home.folder("docs")), mode="append")
    [found] = home.findings_here()
    assert kinds([found]) == [("error", "versions")]
    assert "the catalog has version 1, storage has version 2" in found["what"]
    assert found["command"].endswith(f"table manage {table} --by impl --adopt")
    type_next(found, home)
    assert home.findings_here() == []


@on(*ICEBERG)
def test_a_version_that_storage_lost(home: ConfiguredCatalog) -> None:
    home.declare(managed_by="impl")
    home.write(mode="append")
    home.write(mode="append")
    min((home.folder("docs") / "_versions").glob("*.manifest")).unlink()
    [found] = home.findings_here()
    assert kinds([found]) == [("error", "versions")]
    assert "the manifest of version 2 is gone" in found["what"]


@on(*ICEBERG)
def test_an_accepted_version_that_is_not_in_its_place(home: ConfiguredCatalog) -> None:
    home.declare(managed_by="impl")
    home.write(mode="append")
    home.write(mode="append")
    staged = accepted_manifest(home)
    newest = min((home.folder("docs") / "_versions").glob("*.manifest"))
    newest.rename(home.folder("docs") / staged)
    [found] = home.findings_here()
    assert kinds([found]) == [("warning", "unfinished")]
    type_next(found, home, "--yes")
    assert newest.exists()
    assert home.findings_here() == []


def accepted_manifest(home: ConfiguredCatalog) -> str:
    """Where the manifest of the latest version lay when the catalog accepted it."""
    from lancehouse.clients.inspection import InspectedTable, inspector_for

    seen = inspector_for(home.connect()).inspect_table(home.id("docs"), all_snapshots=True)
    assert isinstance(seen, InspectedTable)
    return list(seen.accepted_manifests)[-1]


@on("dir", *ICEBERG)
def test_manifests_left_in_staging(home: ConfiguredCatalog) -> None:
    table = home.write()
    versions = home.folder("docs") / "_versions"
    left = versions / f"{next(versions.glob('*.manifest')).name}-0c9d9b1e-left"
    left.write_bytes(b"left")
    [found] = home.findings_here()
    assert kinds([found]) == [("note", "staged")]
    old = time.time() - 8 * 86400
    os.utime(left, (old, old))
    [found] = home.findings_here()
    assert kinds([found]) == [("warning", "staged")]
    assert home.run("doctor", table, "--fix").exit_code == 2
    assert left.exists()
    [mended] = home.findings(table, "--fix", "--yes")
    assert mended["fixed"]
    assert not left.exists()
    assert home.findings_here() == []


@on("dir", "served", "unity")
def test_files_that_no_version_names(home: ConfiguredCatalog) -> None:
    table = home.write()
    place = home.folder("docs")
    [left] = write_fragments(TWO_ROWS, str(place), mode="append")
    data, temporary = place / "data" / left.files[0].path, place / "data" / ".tmpAbCdEf"
    temporary.write_bytes(b"left")
    [found] = home.findings(table)
    assert (found["severity"], found["kind"]) == ("note", "orphans")
    assert "2 files" in found["what"]
    assert "a writer may be about to commit" in found["what"]
    old = time.time() - 8 * 86400
    os.utime(data, (old, old))
    young, found = sorted(home.findings(table), key=lambda each: str(each["severity"]))
    assert (young["severity"], found["severity"], found["kind"]) == ("note", "warning", "orphans")
    assert f"that no version names, such as data/{data.name}, for more than 7d" in found["what"]
    assert f"table remove-orphans {table}" in found["command"]
    assert home.findings(table, "--skip-files") == []
    assert data.exists()


@on("reference", "polaris", "unity")
def test_locations_that_overlap(home: ConfiguredCatalog) -> None:
    home.write("a")
    home.connect().register_table(RegisterTableRequest(id=home.id("b"), location=str(home.folder("a"))))
    lance.write_dataset(TWO_ROWS, str(home.folder("a") / "inner"))
    home.connect().register_table(RegisterTableRequest(id=home.id("c"), location=str(home.folder("a") / "inner")))
    found = home.findings_here()
    said = [(each["about"], each["what"]) for each in found]
    assert (f"{home.ns}.b", f"it is the same data as {home.ns}.a: whoever drops one drops both") in said
    assert [about for about, what in said if what.startswith(f"it lies inside {home.ns}.a")] == [f"{home.ns}.c"]
    same = next(each for each in found if "same data" in each["what"])
    type_next(same, home, "--yes")
    assert all("same data" not in each["what"] for each in home.findings_here())


def iceberg_table(home: ConfiguredCatalog, name: str, location: str | None = None, **properties: str) -> str:
    """An Iceberg table beside; where it lies."""
    schema = Schema(NestedField(1, "id", LongType(), required=False))
    catalog = load_catalog("beside", type="rest", uri=home.properties["endpoint"])
    return str(catalog.create_table((home.ns, name), schema, location, properties=properties).location())


def beside(home: ConfiguredCatalog, request: pytest.FixtureRequest) -> Path:
    """The place of a table of another kind, `facts`."""
    place = home.root / "facts"
    if home.name == "polaris":
        request.getfixturevalue("polaris").seed_iceberg("test_catalog", home.ns, "facts", location=place.as_uri())
    elif home.name == "unity":
        request.getfixturevalue("unity").seed_table("lance_test", home.ns, "facts", location=place.as_uri())
    else:
        iceberg_table(home, "facts", str(place))
    return place


@on("reference", "polaris", "unity")
def test_a_table_inside_another_kind_of_table(home: ConfiguredCatalog, request: pytest.FixtureRequest) -> None:
    inside = beside(home, request) / "data" / "lance"
    lance.write_dataset(TWO_ROWS, str(inside))
    home.connect().register_table(RegisterTableRequest(id=home.id("docs"), location=str(inside)))
    [found] = home.findings_here()
    assert kinds([found]) == [("error", "clean-up")]
    kind = "external" if home.name == "unity" else "Iceberg"
    where = f"it lies inside the {kind} table {home.ns}.facts, whose orphan clean-up would destroy it"
    assert found["what"].startswith(where)
    if home.name != "unity":
        quoted = ".".join(f"`{level}`" for level in home.id("facts"))
        statement = f"ALTER TABLE {quoted} SET TBLPROPERTIES ('gc.enabled'='false')"
        assert shlex.split(found["command"]) == ["spark-sql", "-e", statement]
    assert home.findings(f"{home.ns}.docs") == [found]


def test_a_table_inside_one_that_is_never_cleaned_up(request: pytest.FixtureRequest, tmp_path: Path) -> None:
    home = open_small("reference", request, tmp_path)
    inside = iceberg_table(home, "facts", **{"gc.enabled": "false"}).removeprefix("file://") + "/data/lance"
    lance.write_dataset(TWO_ROWS, inside)
    home.connect().register_table(RegisterTableRequest(id=home.id("docs"), location=inside))
    assert home.findings_here() == []


def test_a_table_around_an_iceberg_table(request: pytest.FixtureRequest, tmp_path: Path) -> None:
    home = open_small("reference", request, tmp_path)
    home.write()
    iceberg_table(home, "facts", str(home.folder("docs") / "facts"))
    [found] = home.findings_here()
    assert found["what"].startswith(f"it lies around the Iceberg table {home.ns}.facts")


def test_an_entry_that_lets_iceberg_clean_up(request: pytest.FixtureRequest, tmp_path: Path) -> None:
    home = open_small("reference", request, tmp_path)
    lance.write_dataset(TWO_ROWS, str(tmp_path / "docs"))
    iceberg_table(home, "docs", str(tmp_path / "docs"), table_type="lance")
    found = home.findings_here()
    assert ("error", "clean-up") in kinds(found)
    assert "it lacks gc.enabled=false" in found[0]["what"]
    type_next(found[0], home, "--yes")
    assert [each for each in home.findings_here() if each["kind"] == "clean-up"] == []
