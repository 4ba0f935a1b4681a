from __future__ import annotations

import re
import shlex
from pathlib import Path

import lance
import pyarrow as pa
import pytest
from lance_namespace import DeclareTableRequest

from tests.cli.commands import ROWS, ConfiguredCatalog, error_text, lines, open_configured, run


def test_lists(place: ConfiguredCatalog) -> None:
    assert lines(place.run("table", "list", place.ns)) == [f"0 tables in {place.ns}"]
    names = [place.write(name) for name in ("b", "a")]
    assert lines(place.run("table", "list", place.ns))[2:] == [*sorted(names), f"2 tables in {place.ns}"]
    found = place.run_json("table", "list", place.ns)
    assert [each["table"] for each in found["tables"]] == sorted(names)
    assert found["tables"][0]["id"] == [*place.levels, "a"]


def test_lists_of_all_below(request: pytest.FixtureRequest, tmp_path: Path) -> None:
    place = open_configured("served", request, tmp_path)
    place.run("namespace", "create", f"{place.ns}.deep")
    place.write("a")
    lance.write_dataset(ROWS, namespace_client=place.connect(), table_id=[*place.levels, "deep", "v1.2"])
    found = place.run_json("table", "list", "-r", place.ns)
    assert [each["table"] for each in found["tables"]] == [f"{place.ns}.a", f"{place.ns}.deep.`v1.2`"]
    everything = place.run_json("table", "list", "--recursive")
    assert f"{place.ns}.a" in [each["table"] for each in everything["tables"]]
    words = error_text(place.run("table", "list", "nowhere"))
    assert words.endswith(f"Hint: `{place.typed} namespace list` shows the namespaces that are there\n")
    assert place.run_json("table", "list") == everything
    words = error_text(place.run("table", "list", f"main.{place.ns}"))
    assert words.endswith(f"Hint: the catalog puts main in front of ids already: write {place.ns}\n")
    given = ["--property", f"endpoint={request.getfixturevalue('lancehouse_server').iceberg}"]
    words = error_text(run("table", "list", "main", *given))
    typed = f"lancehouse table list main --recursive {' '.join(given)}"
    assert f"Hint: `{typed}` lists those of all namespaces below it" in words


@pytest.mark.parametrize("catalog", ["unity", "polaris"])
def test_lists_of_catalogs_with_levels_of_their_own(
    catalog: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    place = open_configured(catalog, request, tmp_path)
    table = place.write()
    for words in ([], ["-r"], ["-r", place.ns], [place.ns]):
        assert [each["table"] for each in place.run_json("table", "list", *words)["tables"]] == [table]
    assert place.ns in [each["namespace"] for each in place.run_json("namespace", "list", "-r")["namespaces"]]


def test_describe(place: ConfiguredCatalog) -> None:
    table = place.write()
    place.write(mode="append")
    found = place.run_json("table", "describe", table)
    assert (found["table"], found["version"], found["rows"], found["fragments"]) == (table, 2, 8, 2)
    assert (found["managed_by"], found["deleted_rows"], found["indices"]) == ("storage", 0, [])
    assert found["columns"] == ["id", "text", "vector"]
    assert found["bytes"] > 0
    shown = lines(place.run("table", "describe", table))
    assert "columns       id, text, vector" in shown
    assert any(re.fullmatch(r"location      \S*docs\S*", line) for line in shown)


def test_what_is_only_declared(place: ConfiguredCatalog) -> None:
    place.connect().declare_table(DeclareTableRequest(id=[*place.levels, "new"]))
    found = place.run_json("table", "describe", f"{place.ns}.new")
    assert (found["version"], "rows" in found) == (None, False)
    assert "new" in error_text(place.run("table", "schema", f"{place.ns}.new"))


def test_no_secret_is_described(request: pytest.FixtureRequest, tmp_path: Path) -> None:
    place = open_configured("served", request, tmp_path)
    properties = {"storage.secret_access_key": "s3cr3t", "owner": "me"}
    place.connect().declare_table(DeclareTableRequest(id=[*place.levels, "new"], properties=properties))
    found = place.run_json("table", "describe", f"{place.ns}.new")["properties"]
    assert (found["owner"], "s3cr3t" in str(found)) == ("me", False)


def test_schema(place: ConfiguredCatalog) -> None:
    table = place.write()
    rows = ROWS.append_column("later", pa.array([1, 2, 3, 4], pa.int8()))
    place.write(rows=rows, mode="overwrite")
    assert lines(place.run("table", "schema", table)) == [
        "Column  Type        Null",
        "─" * 24,
        "id      int64       yes",
        "text    string      yes",
        "vector  float32[4]  yes",
        "later   int8        yes",
        f"{table}, version 2: 4 columns",
    ]
    before = place.run_json("table", "schema", table, "--version", "1")
    assert [column["name"] for column in before["columns"]] == ["id", "text", "vector"]
    assert before["columns"][2]["size"] == 4
    assert "give --version or --tag, not both" in error_text(
        place.run("table", "schema", table, "--version", "1", "--tag", "x"), 2
    )
    missing = error_text(place.run("table", "schema", table, "--version", "9"))
    assert missing.startswith(f"Error: table {table} has no version 9\n")
    assert missing.endswith(f"Hint: `{place.typed} table history {table}` shows those that there are\n")


def test_history(place: ConfiguredCatalog) -> None:
    table = place.write()
    for _ in range(3):
        place.write(mode="append")
    place.run("table", "tag", "create", table, "best", "--version", "2")
    found = place.run_json("table", "history", table)
    assert [each["version"] for each in found["versions"]] == [4, 3, 2, 1]
    assert [each["rows"] for each in found["versions"]] == [16, 12, 8, 4]
    assert [each["tags"] for each in found["versions"]] == [[], [], ["best"], []]
    assert found["versions"][0]["operation"] == "Append"
    shown = lines(place.run("table", "history", table, "--limit", "2"))
    assert shown[0].split() == ["Version", "When", "By", "Rows", "Files", "Size", "Tags"]
    assert [line.split()[0] for line in shown[2:]] == ["4", "3", f"{table}:"]
    assert shown[-1] == f"{table}: the latest 2 versions"


def test_register_and_deregister(place: ConfiguredCatalog, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    if place.name == "dir":
        table = place.write("there")
        where = "docs.lance"
        lance.write_dataset(ROWS, place.root / where)
    else:
        where = str(request.getfixturevalue("lancehouse_server").location / place.ns / "elsewhere.lance")
        lance.write_dataset(ROWS, where)
    table = f"{place.ns}.again"
    made = place.run_json("table", "register", table, where)
    assert made["table"] == table
    assert place.run_json("table", "count", table)["rows"] == 4
    assert error_text(place.run("table", "register", table, where))
    gone = place.run_json("table", "deregister", table, "--yes")
    assert gone["deregistered"] == table
    assert Path(gone["location"].removeprefix("file://")).exists()
    assert f"`{place.typed} table list {place.ns}`" in error_text(place.run("table", "describe", table))


def test_drop(place: ConfiguredCatalog) -> None:
    table = place.write()
    where = place.run_json("table", "describe", table)["location"].removeprefix("file://")
    assert "add --yes" in error_text(place.run("table", "drop", table), 2)
    assert "add --yes" in error_text(place.run("table", "deregister", table), 2)
    assert place.run_json("table", "count", table)["rows"] == 4
    assert lines(place.run("table", "drop", table, "--yes"))[0] == f"dropped   {table}"
    assert not Path(where).exists()
    assert f"`{place.typed} table list {place.ns}`" in error_text(place.run("table", "drop", table, "--yes"))


@pytest.mark.parametrize("words", [["undrop", "{}"], ["list", "--dropped"]])
def test_other_catalogs_keep_no_dropped_tables(
    words: list[str], request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    place = open_configured("dir", request, tmp_path)
    table = place.write()
    assert "what is dropped is gone" in error_text(place.run("table", *(word.format(table) for word in words)))
    assert "elsewhere a drop deletes the data at once" in error_text(
        place.run("table", "drop", table, "--purge", "--yes"), 2
    )


def test_a_table_that_dir_did_not_make(request: pytest.FixtureRequest, tmp_path: Path) -> None:
    place = open_configured("dir", request, tmp_path)
    lance.write_dataset(ROWS, place.root / "past.lance")
    words = error_text(place.run("table", "drop", "past", "--yes"))
    hint = "Hint: one that was written without the catalog goes with --property manifest_enabled=false\n"
    assert words.endswith(hint)
    done = place.run("table", "drop", "past", "--yes", "--property", "manifest_enabled=false")
    assert done.exit_code == 0, done.output


def test_rename(request: pytest.FixtureRequest, tmp_path: Path) -> None:
    place = open_configured("served", request, tmp_path)
    table = place.write()
    assert place.run_json("table", "rename", table, "new")["renamed"] == f"{place.ns}.new"
    place.run("namespace", "create", f"{place.ns}_two")
    moved = place.run_json("table", "rename", f"{place.ns}.new", f"{place.ns}_two.`v1.2`")
    assert moved["renamed"] == f"{place.ns}_two.`v1.2`"
    assert place.run_json("table", "count", f"{place.ns}_two.`v1.2`")["rows"] == 4


@pytest.mark.parametrize(
    "words",
    [
        *(["table", "rename", "TABLE", ""], ["table", "rename", "", "new"], ["table", "count", ""]),
        *(["table", "drop", "", "--yes"], ["namespace", "describe", ""], ["namespace", "drop", "", "--yes"]),
        *(["copy", "served", "served", "--table", ""], ["ingest", "/nowhere", "--table", ""]),
    ],
    ids=" ".join,
)
def test_an_empty_name_is_refused(words: list[str], request: pytest.FixtureRequest, tmp_path: Path) -> None:
    """As a script sends it whose variable is empty."""
    place = open_configured("served", request, tmp_path)
    table = place.write()
    said = error_text(place.run(*(table if word == "TABLE" else word for word in words)), 2)
    assert "a name is missing" in " ".join(said.split())
    assert [each["table"] for each in place.run_json("table", "list", place.ns)["tables"]] == [table]


def test_hints_can_be_typed(request: pytest.FixtureRequest, tmp_path: Path) -> None:
    place = open_configured("served", request, tmp_path)
    lance.write_dataset(ROWS, namespace_client=place.connect(), table_id=[*place.levels, "we.ird [red]x"])
    words = error_text(place.run("table", "count", f"{place.ns}.`we.ird [red]x`", "--tag", "none"))
    command = shlex.split(words.partition("Hint: `")[2].rpartition("` shows")[0])
    assert command[:3] == ["lancehouse", "--catalog", "served"]
    assert place.run(*command[3:]).exit_code == 0
    given = ["--property", f"endpoint={request.getfixturevalue('lancehouse_server').iceberg}"]
    words = error_text(run("table", "list", "nowhere.db", *given))
    command = shlex.split(words.partition("Hint: `")[2].rpartition("` shows")[0])
    assert command == ["lancehouse", "namespace", "list", "nowhere", *given]
    assert "Hint: is nowhere right? This catalog does not tell" in error_text(run(*command[1:]))


@pytest.mark.parametrize("catalog", ["dir", "unity"])
def test_a_catalog_that_cannot_rename(catalog: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    place = open_configured(catalog, request, tmp_path)
    words = error_text(place.run("table", "rename", place.write(), "new"))
    assert f"`{place.typed} table register {place.ns}.new LOCATION` come to the same" in words
