"""A folder in an object store: the client tells nobody how to reach its tables, and commands know it all the same."""

from __future__ import annotations

from pathlib import Path

import pytest
from lance_namespace import CreateTableRequest

from tests.cli.commands import ROWS, open_configured
from tests.lake.folder import stream
from tests.servers.moto import SECRET_KEY


def test_rows_of_a_table(request: pytest.FixtureRequest, tmp_path: Path) -> None:
    place = open_configured("bucket", request, tmp_path)
    place.connect().create_table(CreateTableRequest(id=[place.ns, "docs"]), stream(ROWS))
    table = f"{place.ns}.docs"
    assert [each["table"] for each in place.run_json("table", "list", place.ns)["tables"]] == [table]
    assert place.run_json("table", "count", table, "--where", "id > 0")["rows"] == 3
    assert len(place.run_json("table", "preview", table)["rows"]) == 4
    assert place.run_json("table", "tag", "create", table, "first")["version"] == 1
    assert place.run_json("table", "describe", table)["rows"] == 4
    assert place.run_json("doctor")["findings"] == []
    for words in (["describe", table], ["history", table], ["schema", table]):
        shown = place.run("table", *words)
        assert (shown.exit_code, SECRET_KEY in shown.output) == (0, False)
