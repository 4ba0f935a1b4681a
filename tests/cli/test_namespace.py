from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.commands import ConfiguredCatalog, error_text, lines, open_configured


@pytest.fixture(params=["dir", "served", "unity", "polaris"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> ConfiguredCatalog:
    return open_configured(request.param, request, tmp_path)


def test_from_making_to_dropping(place: ConfiguredCatalog) -> None:
    name = f"{place.ns}_two"
    assert lines(place.run("namespace", "create", name, "--set", "owner=me"))[0] == f"namespace   {name}"
    assert place.run_json("namespace", "describe", name)["namespace"] == name
    if place.name != "dir":  # which forgets them
        assert place.run_json("namespace", "describe", name)["properties"]["owner"] == "me"
    listed = place.run_json("namespace", "list")
    assert {place.ns, name} <= {each["namespace"] for each in listed["namespaces"]}
    assert listed["count"] == len(listed["namespaces"])
    assert name in lines(place.run("namespace", "list"))
    assert lines(place.run("namespace", "drop", name, "--yes")) == [f"dropped  {name}"]
    assert name not in place.run("namespace", "list").stdout


def test_one_that_is_there_already(place: ConfiguredCatalog) -> None:
    assert "already exists" in error_text(place.run("namespace", "create", place.ns)).lower()
    if place.name != "dir":  # which reads no modes
        assert place.run("namespace", "create", place.ns, "--exist-ok").exit_code == 0


def test_what_is_not_there(place: ConfiguredCatalog) -> None:
    words = error_text(place.run("namespace", "describe", "nowhere"))
    assert "nowhere" in words
    assert f"Hint: `{place.typed} namespace list` shows the namespaces that are there\n" in words


def test_one_that_is_not_empty(place: ConfiguredCatalog) -> None:
    place.write()
    words = error_text(place.run("namespace", "drop", place.ns, "--yes"))
    assert "empty" in words or "Cannot delete schema with tables" in words
    if "empty" in words:
        assert "Hint: `lancehouse table list NAMESPACE --recursive` shows the tables in it\n" in words
    assert place.run_json("table", "list", place.ns)["count"] == 1
    if place.name == "unity":
        assert place.run("namespace", "drop", place.ns, "--yes", "--cascade").exit_code == 0


def test_any_depth(request: pytest.FixtureRequest, tmp_path: Path) -> None:
    place = open_configured("served", request, tmp_path)
    deep = f"{place.ns}.`a.b`.c"
    for each in (f"{place.ns}.`a.b`", deep):
        assert place.run("namespace", "create", each).exit_code == 0
    assert place.run_json("namespace", "list", place.ns)["namespaces"] == [
        {"namespace": f"{place.ns}.`a.b`", "id": ["main", place.ns, "a.b"]}
    ]
    shown = lines(place.run("namespace", "list", "-r", place.ns))
    assert shown[2:] == [f"{place.ns}.`a.b`", deep, f"2 namespaces below {place.ns}"]
    assert place.run_json("namespace", "describe", deep.replace(".", "$").replace("a$b", "a.b"))["namespace"] == deep


def test_none(place: ConfiguredCatalog) -> None:
    if place.name != "unity":
        assert lines(place.run("namespace", "list", place.ns)) == [f"0 namespaces below {place.ns}"]


@pytest.mark.parametrize("words", [["drop", "db"], ["drop", "db", "--cascade"]])
def test_nobody_to_ask(words: list[str], place: ConfiguredCatalog) -> None:
    assert "there is no terminal: add --yes" in error_text(place.run("namespace", *words), 2)
