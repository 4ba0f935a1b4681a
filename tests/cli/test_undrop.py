from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.commands import error_text, lines, open_configured
from tests.servers.lancehouse import Served, start_lancehouse


@pytest.fixture(scope="module")
def lancehouse_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A server that keeps dropped tables, as it does by default."""
    with start_lancehouse(tmp_path_factory.mktemp("keeping"), retention="7d") as server:
        yield server


def test_undrop(request: pytest.FixtureRequest, tmp_path: Path) -> None:
    place = open_configured("served", request, tmp_path)
    table = place.write()
    until = place.run_json("table", "drop", table, "--yes")["until"]
    listed = place.run_json("table", "list", place.ns, "--dropped")["tables"]
    assert [(each["table"], each["expires_at"], each["data"]) for each in listed] == [(table, until, "are deleted")]
    assert table in [each["table"] for each in place.run_json("table", "list", "--dropped")["tables"]]
    place.write()
    assert "exists" in error_text(place.run("table", "undrop", table))
    assert lines(place.run("table", "undrop", table, "old")) == [f"restored  {place.ns}.old"]
    assert place.run_json("table", "count", f"{place.ns}.old")["rows"] == 4
    where = place.run_json("table", "describe", table)["location"].removeprefix("file://")
    place.run_json("table", "drop", table, "--purge", "--yes")
    assert not Path(where, "_versions").exists()
    missing = error_text(place.run("table", "undrop", table))
    assert "there is no dropped table" in missing
    assert f"table list --dropped {place.ns}` shows those that there are" in missing


def test_a_table_that_is_restored_while_it_is_dropped(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = open_configured("served", request, tmp_path)
    table = place.write()
    monkeypatch.setattr("lancehouse.cli.table._find_dropped", lambda *_: [])
    assert place.run_json("table", "drop", table, "--yes")["dropped"] == table
