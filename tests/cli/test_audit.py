from __future__ import annotations

import json
from pathlib import Path

import pytest

from lancehouse.catalog.bootstrap import open_database, record_warehouses
from lancehouse.catalog.callers import Caller, Grant, Identity, Role
from lancehouse.catalog.catalog import Catalog
from lancehouse.catalog.warehouses import Warehouse
from tests.cli.commands import error_text, lines, parse_json, run


@pytest.fixture
def db(tmp_path: Path) -> str:
    """A catalog in which ada made two namespaces."""
    url = f"sqlite:///{tmp_path / 'catalog.db'}"
    database = open_database(url)
    warehouse = Warehouse(0, "main", str(tmp_path / "main"))
    catalog = Catalog(database, record_warehouses(database, [warehouse], warehouse))
    ada = Caller(Identity("ada", (Grant(Role.ADMIN),)), peer="10.0.0.7")
    for name in ("ml", "ads"):
        catalog.namespaces.create(ada, catalog.warehouses["main"], (name,), {"owner": name})
    database.close()
    return url


def test_changes_are_shown(db: str) -> None:
    shown = lines(run("audit", "--db", db, COLUMNS="200"))
    assert shown[-1] == "2 changes"
    assert [line.split()[1:5] for line in shown[2:4]] == [
        ["ada", "10.0.0.7", "namespace.create", "main.ads"],
        ["ada", "10.0.0.7", "namespace.create", "main.ml"],
    ]


@pytest.mark.parametrize(
    ("words", "found"),
    [
        ([], ["ads", "ml"]),
        (["--namespace", "ml"], ["ml"]),
        (["--limit", "1"], ["ads"]),
        (["--action", "table"], []),
        (["--principal", "bob"], []),
        (["--until", "2020-01"], []),
        (["--since", "2020-01-01T10:00"], ["ads", "ml"]),
    ],
)
def test_filters(db: str, words: list[str], found: list[str]) -> None:
    changes = parse_json(run("--output", "json", "audit", "--db", db, *words))["changes"]
    assert [change["namespace"][0] for change in changes] == found


def test_json_lines(db: str) -> None:
    changes = [json.loads(line) for line in lines(run("audit", "--db", db, "--json-lines"))]
    assert [change["after"] for change in changes] == [{"properties": {"owner": name}} for name in ("ads", "ml")]


def test_prune(db: str) -> None:
    assert "add --yes" in error_text(run("audit", "prune", "--db", db, "--before", "2030-01"), 2)
    assert "whole months" in error_text(run("audit", "prune", "--db", db, "--before", "2030-01-02", "--yes"), 2)
    assert parse_json(run("--output", "json", "audit", "prune", "--db", db, "--before", "2020-01", "--yes")) == {
        "before": "2020-01",
        "deleted": 0,
    }
    run("audit", "prune", "--db", db, "--before", "2100-01", "--yes")
    assert lines(run("audit", "--db", db)) == ["0 changes"]


def test_wrong_times(db: str) -> None:
    assert "'soon' is no time: give 2026-11" in error_text(run("audit", "--db", db, "--since", "soon"), 2)
