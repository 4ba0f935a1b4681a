"""The conformance suite on each client: on the servers that tests start, and on live ones that are given.

A live server is given by a variable, `LANCEHOUSE_TEST_ICEBERG`, `LANCEHOUSE_TEST_POLARIS` or `LANCEHOUSE_TEST_UNITY`:
the properties of its client, and `parent`, the namespace in which the suite makes its own ones, as a JSON object or as
`key=value` pairs that commas or line ends part:

    LANCEHOUSE_TEST_POLARIS='endpoint=http://localhost:8181,credential=root:s3cr3t,parent=test_catalog' make test
    LANCEHOUSE_TEST_UNITY='{"endpoint": "http://localhost:8080", "catalog": "unity", "parent": "unity"}' make test

`location` says where tables of the suite may lie; else it is `root`, else a temporary folder of this machine.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from click.testing import CliRunner

from lancehouse.cli.conformance import LARGE, SMALL
from lancehouse.cli.main import main
from lancehouse.conformance.checks import AREAS
from lancehouse.conformance.results import CheckOutcome, ConformanceReport
from lancehouse.conformance.runner import run
from lancehouse.conformance.target import ConformanceTarget
from lancehouse.connection import parse_property
from lancehouse.identifiers import parse_levels
from tests.catalogs import ICEBERG, POLARIS, UNITY, LiveCatalog, Shared, open_catalog

RENAMES = {
    *("entries.rename", "entries.rename_across"),
    *("entries.rename_missing", "entries.rename_to_existing"),
}
UNSUPPORTED: dict[str, set[str]] = {
    "iceberg": set(),
    "iceberg-polaris": set(),
    "iceberg-lancehouse": set(),
    "polaris": RENAMES,  # there is no call that renames a generic table
    "unity": RENAMES,  # nor one that renames a table
    "lakekeeper": set(),
}
"""What a catalog's API has no call for; everything else is there."""

NOT_CHECKED: dict[str, set[str]] = {
    "iceberg": {"tables.too_many_levels"},  # namespaces nest
    "iceberg-polaris": {"tables.too_many_levels"},
    "iceberg-lancehouse": {"tables.too_many_levels"},
    "polaris": {"tables.too_many_levels"},
    "unity": {"namespaces.drop_with_namespace", "namespaces.list_empty"},  # they do not
    "lakekeeper": {"tables.too_many_levels"},
}

LIVE = {"LANCEHOUSE_TEST_ICEBERG": ICEBERG, "LANCEHOUSE_TEST_POLARIS": POLARIS, "LANCEHOUSE_TEST_UNITY": UNITY}


def checks(report: ConformanceReport, outcome: CheckOutcome) -> dict[str, str]:
    return {result.check: result.seen for result in report.with_outcome(outcome)}


def test_every_client(catalog: LiveCatalog, shared_servers: Shared, tmp_path: Path, soak: bool) -> None:
    tables = (tmp_path / "tables").as_uri()
    if catalog.name == "iceberg-polaris":  # this server allows its own folder only
        tables = f"{catalog.properties['root']}/{catalog.parent[0]}"
    if catalog.name == "iceberg-lancehouse":  # and so does this one
        tables = str(shared_servers.served.location / "tables")
    entries = LARGE if soak else SMALL
    report = run(ConformanceTarget(catalog.impl, catalog.properties, catalog.parent, root=tables, entries=entries))
    assert checks(report, CheckOutcome.FAILS) == {}
    assert (report.ok, report.trouble) == (True, [])
    assert {result.area for result in report.results} == set(AREAS)
    assert set(checks(report, CheckOutcome.UNSUPPORTED)) == UNSUPPORTED[catalog.name]
    assert set(checks(report, CheckOutcome.SKIPPED)) == NOT_CHECKED[catalog.name]
    for folder in (tmp_path, shared_servers.served.location / "tables"):
        assert [file for file in folder.rglob("*") if file.is_file()] == []


@pytest.mark.parametrize("variable", LIVE)
def test_live_server(variable: str, soak: bool) -> None:
    if not os.environ.get(variable):
        pytest.skip(f"no live server: set {variable} to its properties, such as endpoint=…,parent=…")
    properties, parent, location = parse_variable(os.environ[variable])
    report = run(ConformanceTarget(LIVE[variable], properties, parent, root=location, entries=LARGE if soak else SMALL))
    assert checks(report, CheckOutcome.FAILS) == {}
    assert (report.ok, report.trouble) == (True, [])
    assert set(checks(report, CheckOutcome.UNSUPPORTED)) <= RENAMES


def parse_variable(text: str) -> tuple[dict[str, str], tuple[str, ...], str | None]:
    """The properties, the parent and the place for tables that a variable holds."""
    if text.lstrip().startswith("{"):
        properties = {key: str(value) for key, value in json.loads(text).items()}
    else:
        pairs = [pair.strip() for pair in text.replace("\n", ",").split(",")]
        properties = dict(parse_property(pair) for pair in pairs if pair)
    location = properties.pop("location", properties.get("root"))
    return properties, parse_levels(properties.pop("parent", "")), location


@pytest.mark.parametrize(
    ("text", "properties", "parent", "location"),
    [
        ("endpoint=http://h:1/a?b=c", {"endpoint": "http://h:1/a?b=c"}, (), None),
        ("endpoint=e, parent=a.b,root=r", {"endpoint": "e", "root": "r"}, ("a", "b"), "r"),
        ("endpoint=e\nparent=`a.b`.c\n", {"endpoint": "e"}, ("a.b", "c"), None),
        ('{"endpoint": "e", "header.x": "1,2", "location": "l"}', {"endpoint": "e", "header.x": "1,2"}, (), "l"),
    ],
)
def test_how_a_server_is_given(
    text: str, properties: dict[str, str], parent: tuple[str, ...], location: str | None
) -> None:
    assert parse_variable(text) == (properties, parent, location)


def test_command(shared_servers: Shared, tmp_path: Path) -> None:
    """As the README has it, with an alias."""
    with open_catalog("polaris", shared_servers, tmp_path) as catalog:
        properties = [f"--property={key}={value}" for key, value in catalog.properties.items()]
        command = ["conformance", "--impl", "polaris", *properties, "--parent", "test_catalog", "--area", "namespaces"]
        done = CliRunner().invoke(main, command)
    assert done.exit_code == 0, done.output
    assert "polaris in test_catalog" in done.stdout
    assert "s3cr3t" not in done.output
