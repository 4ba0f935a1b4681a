from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest
from lance_namespace import CreateNamespaceRequest, RegisterTableRequest

from tests.cli.commands import TWO_ROWS, ConfiguredCatalog, open_small, run


@pytest.fixture
def homes(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[ConfiguredCatalog, ConfiguredCatalog]:
    """Two catalogs with the namespace of the first: `same` and `docs` are in both, `docs` in two places."""
    here, there = open_small("served", request, tmp_path), open_small("reference", request, tmp_path)
    there.connect().create_namespace(CreateNamespaceRequest(id=["wh", here.ns]))
    here.write("same")
    there.connect().register_table(RegisterTableRequest(id=["wh", here.ns, "same"], location=str(here.folder("same"))))
    here.declare("docs", owner="me", **{"storage.secret_access_key": "s3cr3t"})
    here.write("docs", mode="append")
    rows = TWO_ROWS.append_column("later", pa.array([1, 2]))
    lance.write_dataset(rows, namespace_client=there.connect(), table_id=["wh", here.ns, "docs"])
    lance.write_dataset(rows, namespace_client=there.connect(), table_id=["wh", here.ns, "docs"], mode="append")
    return here, there


def diff(homes: tuple[ConfiguredCatalog, ConfiguredCatalog], *words: str, status: int) -> Any:
    here, there = homes
    command = ("--output", "json", "diff", here.name, there.name, "--namespace", here.ns)
    done = run(*command, *words, LANCEHOUSE_CONFIG=str(here.file))
    assert done.exit_code == status, done.output
    assert "s3cr3t" not in done.output
    return json.loads(done.stdout)


def test_what_differs(homes: tuple[ConfiguredCatalog, ConfiguredCatalog]) -> None:
    here, _ = homes
    here.write("alone")
    found = diff(homes, status=1)
    assert found["counts"] == {"same": 1, "only_in_a": 1, "only_in_b": 0, "different": 1}
    alone, docs = found["tables"]
    assert (alone["table"], alone["result"]) == (f"{here.ns}.alone", "only in served")
    assert (docs["table"], docs["result"]) == (f"{here.ns}.docs", "both")
    assert list(docs["fields"]) == ["location", "version", "rows", "schema", "properties"]
    assert docs["fields"]["version"] == [1, 2]
    assert docs["fields"]["rows"] == [2, 4]
    assert docs["fields"]["schema"][1] == {"id": "int64", "text": "string", "later": "int64"}
    assert docs["fields"]["properties"][0] == {"owner": "me", "storage.secret_access_key": "***"}


def test_equal(homes: tuple[ConfiguredCatalog, ConfiguredCatalog]) -> None:
    ignored = [
        word for field in ("location", "version", "rows", "schema", "properties") for word in ("--ignore", field)
    ]
    found = diff(homes, *ignored, status=0)
    assert found["counts"] == {"same": 2, "only_in_a": 0, "only_in_b": 0, "different": 0}
    assert found["tables"] == []


def test_one_that_cannot_be_read(homes: tuple[ConfiguredCatalog, ConfiguredCatalog]) -> None:
    here, _ = homes
    [file] = (here.folder("same") / "_versions").glob("*.manifest")
    good = file.read_bytes()
    file.write_bytes(b"broken")
    found = {each["table"].split(".")[1]: each for each in diff(homes, status=1)["tables"]}
    file.write_bytes(good)  # others list all tables of this server
    assert "error" in found["same"]["fields"]
    assert "rows" in found["docs"]["fields"]


def test_what_people_see(homes: tuple[ConfiguredCatalog, ConfiguredCatalog]) -> None:
    here, _ = homes
    words = ("diff", "reference", "served", "--namespace", here.ns, "--ignore", "location", "--ignore", "properties")
    done = run(*words, LANCEHOUSE_CONFIG=str(here.file))
    lines = done.stdout.splitlines()
    assert lines[0].split() == ["Table", "Where", "What", "differs"]
    assert lines[-1] == "1 table the same, 1 different, 0 only in reference, 0 only in served"
    assert all(len(line) <= 80 for line in lines)


def test_a_namespace_that_neither_has(homes: tuple[ConfiguredCatalog, ConfiguredCatalog]) -> None:
    done = run("diff", "served", "reference", "--namespace", "nowhere", LANCEHOUSE_CONFIG=str(homes[0].file))
    assert (done.exit_code, done.stdout) == (1, "")
    assert "nowhere" in done.stderr
    there = run("diff", "served", "reference", "--namespace", homes[1].ns, LANCEHOUSE_CONFIG=str(homes[0].file))
    assert there.exit_code == 0, there.output
