"""What the documents tell a newcomer to do works."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest
from click.testing import CliRunner

import lancehouse
from lancehouse.cli.main import main
from lancehouse.clients import managed_versions
from tests.servers.lancehouse import Served

ROOT = Path(__file__).parent.parent
BASIC = [
    *("CreateNamespace", "ListNamespaces", "DescribeNamespace", "DropNamespace"),
    *("DeclareTable", "ListTables", "DescribeTable", "DeregisterTable"),
]
"""The operations of Lance's implementation specifications."""
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")])


def test_the_readme_example(reference: str, tmp_path: Path) -> None:
    block = re.search(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.S)
    assert block
    code = block[1].replace("http://localhost:8181", reference).replace("s3://bucket/lance", str(tmp_path))
    code = code.replace('    "credential": "client_id:client_secret",\n', "").replace('"db"', '"readme"')
    found: dict[str, object] = {}
    exec(code, found)
    assert found["docs"].count_rows() == 3  # type: ignore[attr-defined]


def test_the_example_of_the_server(lancehouse_server: Served) -> None:
    block = re.search(r"```python\n(.*?)```", (ROOT / "docs" / "server.md").read_text(), re.S)
    assert block
    code = block[1].replace("http://127.0.0.1:8181/iceberg", lancehouse_server.iceberg)
    code = code.replace('["main", ', f'["{lancehouse_server.warehouse}", ')
    *lines, last = code.strip().splitlines()
    found: dict[str, object] = {}
    exec("\n".join([*lines, f"rows = {last}"]), found)
    assert found["rows"] == pa.table({"id": [2, 3]})


@pytest.mark.parametrize("server", ["lancehouse_server", "reference"])
def test_the_examples_of_commits(
    server: str, request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started = request.getfixturevalue(server)
    endpoint, warehouse = (started.iceberg, started.warehouse) if server == "lancehouse_server" else (started, "wh")
    page = (ROOT / "docs" / "commits.md").read_text()
    page = page.replace("http://127.0.0.1:8181/iceberg", endpoint).replace('["main", ', f'["{warehouse}", ')
    monkeypatch.chdir(tmp_path)  # where tables lie on a server that says nothing of it
    found: dict[str, Any] = {}
    for block in re.findall(r"```python\n(.*?)```", page, re.S):
        exec(block, found)

    def rows(name: str) -> list[object]:
        table = lance.dataset(namespace_client=found["ns"], table_id=found[name]).to_table()
        return sorted(table.column(0).to_pylist())

    assert (rows("orders"), rows("stock")) == ([1, 2, 3, 4, 5], ["ink", "pen"])
    assert (found["made"], found["attempt"], found["trial"].version) == ([2], 0, 5)
    commands = re.findall(r"^lancehouse (table .*)$", page, re.M)
    assert len(commands) == 3
    for command in commands:
        done = CliRunner().invoke(main, command.replace(" main.", f" {warehouse}.").split())
        assert done.exit_code == 0, done.output
    lance.write_dataset(pa.table({"id": [6]}), str(Path(found["table"].location())), mode="append")
    refused = CliRunner().invoke(main, command.replace(" main.", f" {warehouse}.").split())
    assert refused.stderr.replace(f"table {warehouse}.", "table main.") in page
    assert refused.exit_code == 1


def test_every_key_of_a_snapshot_is_documented() -> None:
    page = (ROOT / "docs" / "commits.md").read_text()
    keys = [value for value in vars(managed_versions).values() if isinstance(value, str) and value.startswith("lance.")]
    assert len(keys) >= 9
    assert [key for key in keys if f"`{key}`" not in page.replace(".*", ".")] == []


def test_the_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text().splitlines()) < 80


def test_the_quick_start(lancehouse_server: Served) -> None:
    page = (ROOT / "docs" / "index.md").read_text()
    page = page.replace("http://127.0.0.1:8181/iceberg", lancehouse_server.iceberg).replace(
        '["main", ', f'["{lancehouse_server.warehouse}", '
    )
    found: dict[str, Any] = {}
    for block in re.findall(r"```python\n(.*?)```", page, re.S):
        exec(block, found)
    assert found["found"]["text"].to_pylist() == ["second", "second"]
    (commands,) = re.findall(r"```bash\n(.*?)```", page, re.S)
    for command in commands.splitlines():
        done = CliRunner().invoke(main, command.replace(" main.", f" {lancehouse_server.warehouse}.").split()[1:])
        assert done.exit_code == 0, done.output


def test_moving_here() -> None:
    """What is done on Spark, tests/spark/test_migration.py does."""
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "migration.md").read_text(), re.S)
    found: dict[str, Any] = {}
    for block in blocks:
        if "LanceCatalog" not in block:
            exec(block, found)
    assert len(blocks) == 3
    assert [type(found[name]) for name in ("iceberg", "polaris", "unity")] == [
        lancehouse.IcebergNamespace,
        lancehouse.PolarisNamespace,
        lancehouse.UnityNamespace,
    ]
    assert found["settings"]["spark.sql.catalog.lh.uri"] == "http://127.0.0.1:8181/lance/main"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", page.read_text()):
        if not target.startswith("http"):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"


@pytest.mark.parametrize("catalog", lancehouse.CATALOGS)
def test_a_page_has_the_parts_of_an_implementation_spec(catalog: str) -> None:
    page = (ROOT / "docs" / f"{catalog}.md").read_text()
    parts = re.findall(r"^## (.*)$", page, re.M)
    assert parts[:4] == ["Properties", "Mapping", "Operations", "Errors"]
    for operation in BASIC:
        assert re.search(rf"^\| {operation}[ ,]", page, re.M), operation
