from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.commands import ConfiguredCatalog, error_text, open_configured


@pytest.fixture(params=["served", "polaris"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> ConfiguredCatalog:
    return open_configured(request.param, request, tmp_path)


def sources(place: ConfiguredCatalog, name: str, *more: str) -> dict[str, tuple[str, str]]:
    shown = place.run_json("maintenance", "show", name, *more)
    return {each["key"].removeprefix("maintenance."): (each["value"], each["source"]) for each in shown["properties"]}


def test_policies_are_inherited(place: ConfiguredCatalog, tmp_path: Path) -> None:
    table = place.write()
    place.run_json("maintenance", "set", place.ns, "enabled=true", "compact.min-fragments=4")
    place.run_json("maintenance", "set", table, "maintenance.compact.min-fragments=6", "window=01:00-05:00")
    file = tmp_path / "server.yaml"
    file.write_text(
        f"warehouses: {{{place.parent[0]}: {{location: /x, maintenance: {{compact.target-rows: 5, index: false}}}}}}"
    )
    values = sources(place, table, "--config", str(file))
    above, own = ".".join(place.levels), f"table {'.'.join(place.id('docs'))}"
    assert values["enabled"] == ("true", f"namespace {above}")
    assert values["compact.min-fragments"] == ("6", own)
    assert values["window"] == ("01:00-05:00", own)
    assert values["compact.target-rows"] == ("5", f"{place.parent[0]} in {file}")
    assert values["index"] == ("false", f"{place.parent[0]} in {file}")
    assert values["cleanup"] == ("true", "default")
    place.run_json("maintenance", "set", table, "--unset", "compact.min-fragments")
    assert sources(place, table)["compact.min-fragments"] == ("4", f"namespace {above}")
    place.run_json("maintenance", "set", place.ns, "--unset", "enabled", "--unset", "compact.min-fragments")
    assert sources(place, table)["enabled"] == ("false", "default")


def test_wrong_values(place: ConfiguredCatalog) -> None:
    assert "must be true or false" in error_text(place.run("maintenance", "set", place.ns, "enabled=on"))
    assert "did you mean maintenance.enabled?" in error_text(place.run("maintenance", "set", place.ns, "enable=true"))
    assert "nothing to set" in place.run("maintenance", "set", place.ns).output
    assert "nowhere" in error_text(place.run("maintenance", "set", "nowhere", "enabled=true"))
    assert "nowhere" in error_text(place.run("maintenance", "show", "nowhere"))
