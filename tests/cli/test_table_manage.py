from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest
from click.testing import CliRunner, Result
from lance_namespace import (
    DeclareTableRequest,
    DescribeTableRequest,
)

from lancehouse.cli.main import main
from tests.catalogs import ICEBERG, LiveCatalog
from tests.cli.commands import error_text
from tests.servers.lancehouse import Served
from tests.servers.polaris import Polaris
from tests.servers.unity import Unity

ROWS = pa.table({"id": [1, 2]})


def run(*words: str, output: str = "text") -> Result:
    return CliRunner().invoke(main, ["--output", output, "table", *words], env={"COLUMNS": "80"})


class ManageNamespace(LiveCatalog):
    """An Iceberg server whose tables are given to the catalog, and taken back."""

    def declare(self, name: str = "docs", **properties: str) -> list[str]:
        table = self.id(name)
        self.connect().declare_table(DeclareTableRequest(id=table, properties=properties))
        return table

    def write(self, table: list[str]) -> int:
        """Two more rows, as any user of the table writes them; the version that this makes."""
        return int(lance.write_dataset(ROWS, namespace_client=self.connect(), table_id=table, mode="append").version)

    def write_past(self, table: list[str]) -> int:
        """The same by somebody who knows nothing of the catalog."""
        return int(lance.write_dataset(ROWS, self.location(table), mode="append").version)

    def newest(self, table: list[str]) -> Path:
        """The manifest of the latest version: the numbers in their names count down."""
        return min((Path(self.location(table)) / "_versions").glob("*.manifest"))

    def count(self, table: list[str]) -> int:
        return int(lance.dataset(namespace_client=self.connect(), table_id=table).count_rows())

    def is_managed(self, table: list[str]) -> bool:
        return bool(self.connect().describe_table(DescribeTableRequest(id=table)).managed_versioning)

    def manage(self, table: list[str], *options: str, output: str = "text") -> Result:
        given = [word for key, value in self.properties.items() for word in ("--property", f"{key}={value}")]
        return run("manage", *given, *options, ".".join(table), output=output)


@pytest.fixture(params=["reference", "served"])
def home(request: pytest.FixtureRequest, tmp_path: Path) -> ManageNamespace:
    if request.param == "served":
        server: Served = request.getfixturevalue("lancehouse_server")
        properties, warehouse = {"endpoint": server.iceberg}, server.warehouse
    else:
        properties, warehouse = {"endpoint": request.getfixturevalue("reference"), "root": str(tmp_path)}, "wh"
    return ManageNamespace(request.param, ICEBERG, properties, (warehouse,)).create_namespace()


def lines(done: Result) -> dict[str, str]:
    assert done.exit_code == 0, done.output
    return dict(line.split(maxsplit=1) for line in done.stdout.splitlines())


def test_to_the_catalog_and_back(home: ManageNamespace) -> None:
    table = home.declare()
    home.write(table)
    assert not home.is_managed(table)
    assert lines(home.manage(table, "--by", "impl")) == {"table": ".".join(table), "managed_by": "impl", "version": "1"}
    assert home.is_managed(table)
    assert home.write(table) == 2
    assert home.manage(table, "--by", "impl").exit_code == 0
    back = lines(home.manage(table, "--by", "storage"))
    assert (back["managed_by"], back["version"]) == ("storage", "2")
    assert not home.is_managed(table)
    assert home.write_past(table) == 3
    assert lines(home.manage(table, "--by", "impl"))["version"] == "3"
    assert home.write(table) == 4
    assert home.count(table) == 8


def test_for_programs(home: ManageNamespace) -> None:
    table = home.declare()
    told = {"table": ".".join(table), "managed_by": "impl", "version": None}
    assert json.loads(home.manage(table, "--by", "impl", output="json").stdout) == told
    assert lines(home.manage(table, "--by", "impl"))["version"] == "none"
    home.write(table)
    assert json.loads(home.manage(table, "--by", "storage", output="json").stdout)["version"] == 1


def test_refused_while_versions_disagree(home: ManageNamespace) -> None:
    table = home.declare(managed_by="impl")
    home.write(table)
    assert home.write_past(table) == 2
    for by in ("storage", "impl"):
        words = error_text(home.manage(table, "--by", by))
        assert "the catalog has version 1, storage has version 2" in words
        assert "`lancehouse table manage --by impl --adopt`" in words
    assert home.is_managed(table)
    assert "error" in json.loads(home.manage(table, "--by", "storage", output="json").stderr)


def test_adopting_what_was_written_past_the_catalog(home: ManageNamespace) -> None:
    table = home.declare(managed_by="impl")
    home.write(table)
    home.write_past(table)
    home.write_past(table)
    assert home.count(table) == 2
    assert lines(home.manage(table, "--by", "impl", "--adopt"))["version"] == "3"
    assert home.count(table) == 6
    assert home.write(table) == 4
    assert lines(home.manage(table, "--by", "storage"))["version"] == "4"


def test_giving_up_what_was_written_past_the_catalog(home: ManageNamespace) -> None:
    table = home.declare(managed_by="impl")
    home.write(table)
    home.write_past(table)
    home.newest(table).unlink()
    assert lines(home.manage(table, "--by", "impl"))["version"] == "1"
    assert home.write(table) == 2
    assert home.count(table) == 4


def test_a_version_that_storage_lost(home: ManageNamespace) -> None:
    table = home.declare(managed_by="impl")
    home.write(table)
    home.write(table)
    home.newest(table).unlink()
    for options in (["--by", "storage"], ["--by", "impl"], ["--by", "impl", "--adopt"]):
        assert "restore" in error_text(home.manage(table, *options))


def test_a_level_with_a_dot(home: ManageNamespace) -> None:
    table = home.declare("v1.2")
    done = home.manage([*home.levels, "`v1.2`"], "--by", "impl")
    assert lines(done)["table"] == ".".join([*home.levels, "`v1.2`"])
    assert home.is_managed(table)


def test_what_is_not_there(home: ManageNamespace) -> None:
    assert "is not a Lance table" not in (words := error_text(home.manage([*home.levels, "gone"], "--by", "impl")))
    assert "table " + ".".join([*home.levels, "gone"]) in words


@pytest.mark.parametrize(
    ("words", "status", "said"),
    [
        (["--by", "impl", "wh.docs"], 1, "a table id is [warehouse or catalog, namespace, ..., table]"),
        (["--by", "impl", "wh..docs"], 2, "is no id: levels are joined by dots"),
        (["--by", "impl", "wh.`db.docs"], 2, "is no id"),
        (["--by", "impl"], 2, "'ID'"),
        (["--by", "catalog", "wh.db.docs"], 2, "'catalog' is not one of 'impl', 'storage'"),
        (["wh.db.docs"], 2, "--by"),
        (["--by", "storage", "--adopt", "wh.db.docs"], 2, "--adopt goes with --by impl"),
        (["--by", "impl", "--property", "s3cr3t-t0ken", "wh.db.docs"], 2, "a property is key=value"),
        (["--by", "impl", "--property", "endpont=http://h", "wh.db.docs"], 1, "did you mean endpoint"),
        (["--by", "impl", "--impl", "nowhere.Namespace", "wh.db.docs"], 1, "No module named 'nowhere'"),
        (["--by", "impl", "wh.db.docs", "--property", "max_retries=0"], 1, "Connection refused"),
    ],
)
def test_wrong_words(words: list[str], status: int, said: str) -> None:
    done = run("manage", "--property", "endpoint=http://127.0.0.1:9", *words)
    assert done.exit_code == status, done.output
    assert said in done.stderr
    assert "Traceback" not in done.output
    assert "s3cr3t" not in done.output


def polaris_of(request: pytest.FixtureRequest) -> tuple[str, dict[str, str]]:
    server: Polaris = request.getfixturevalue("polaris")
    return "polaris", {"endpoint": server.uri, "credential": server.credential}


def unity_of(request: pytest.FixtureRequest) -> tuple[str, dict[str, str]]:
    server: Unity = request.getfixturevalue("unity")
    return "unity", {"endpoint": server.uri, "catalog": "lance_test"}


def dir_of(request: pytest.FixtureRequest) -> tuple[str, dict[str, str]]:
    return "dir", {"root": str(request.getfixturevalue("tmp_path"))}


@pytest.mark.parametrize("by", ["impl", "storage"])
@pytest.mark.parametrize(
    ("catalog", "said"),
    [
        (polaris_of, "not possible with polaris, whose tables have no ref that a commit could move; Polaris' own"),
        (polaris_of, "use the `iceberg` client with the endpoint of Polaris and /api/catalog"),
        (unity_of, "not possible with unity, whose tables have no ref that a commit could move; use an Iceberg table"),
        (dir_of, "not possible with DirectoryNamespace"),
    ],
)
def test_catalogs_that_cannot(
    catalog: Callable[[pytest.FixtureRequest], tuple[str, dict[str, str]]],
    said: str,
    by: str,
    request: pytest.FixtureRequest,
) -> None:
    impl, properties = catalog(request)
    given = [word for key, value in properties.items() for word in ("--property", f"{key}={value}")]
    done = run("manage", "--impl", impl, *given, "--by", by, "lance_test.db.docs")
    assert said in error_text(done)


def test_our_aliases_are_ours(home: ManageNamespace, monkeypatch: pytest.MonkeyPatch) -> None:
    taken: dict[str, Any] = {"iceberg": "tests.nowhere.Namespace"}
    monkeypatch.setattr("lance_namespace._REGISTERED_IMPLS", taken)
    table = home.declare()
    assert home.manage(table, "--impl", "iceberg", "--by", "impl").exit_code == 0
