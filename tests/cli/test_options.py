from __future__ import annotations

import json
from pathlib import Path

import lance
import pyarrow as pa
import pytest

from lancehouse import CATALOGS
from tests.cli.commands import error_text, lines, parse_json, run

DEAD = "http://127.0.0.1:9"


@pytest.fixture
def file(tmp_path: Path) -> str:
    """Two folders of tables: `a` has one called docs, `b` two of them; and a server that is not there."""
    for name, tables in {"a": ["docs"], "b": ["docs", "more"]}.items():
        for table in tables:
            lance.write_dataset(pa.table({"id": [1]}), tmp_path / name / f"{table}.lance")
    catalogs = {
        "a": {"impl": "dir", "root": str(tmp_path / "a")},
        "b": {"impl": "dir", "root": str(tmp_path / "b")},
        "dead": {"endpoint": DEAD, "max_retries": 0, "parent": "main", "auth_token": "s3cr3t-t0ken"},
        "wrong": {"endpont": DEAD},
        "of": {"endpoint": DEAD, "parent": "a..b"},
    }
    (tmp_path / "catalogs.yaml").write_text(json.dumps({"default": "a", "catalogs": catalogs}))
    return str(tmp_path / "catalogs.yaml")


@pytest.mark.parametrize(
    ("words", "count"),
    [
        (["table", "list"], 1),
        (["--catalog", "b", "table", "list"], 2),
        (["table", "--catalog", "b", "list"], 2),
        (["table", "list", "--catalog", "b"], 2),
        (["--catalog", "a", "table", "list", "--catalog", "B"], 2),
    ],
)
def test_wherever_it_stands(words: list[str], count: int, file: str) -> None:
    assert parse_json(run("--output", "json", *words, LANCEHOUSE_CONFIG=file))["count"] == count
    assert parse_json(run(*words, "--output", "json", LANCEHOUSE_CONFIG=file))["count"] == count


def test_the_variable(file: str) -> None:
    env = {"LANCEHOUSE_CONFIG": file, "LANCEHOUSE_CATALOG": "b"}
    assert parse_json(run("table", "list", "--output", "json", **env))["count"] == 2
    assert parse_json(run("--catalog", "a", "table", "list", "--output", "json", **env))["count"] == 1


def test_properties_add(file: str, tmp_path: Path) -> None:
    words = ["--output", "json", "table", "list", "--property", f"root={tmp_path}/b"]
    assert parse_json(run(*words, LANCEHOUSE_CONFIG=file))["count"] == 2
    assert parse_json(run("--catalog", "a", *words, LANCEHOUSE_CONFIG=file))["count"] == 2


def test_an_implementation_stands_alone(file: str, tmp_path: Path) -> None:
    given = ["--impl", "dir", "--property", f"root={tmp_path}/b"]
    assert parse_json(run("--output", "json", "table", "list", *given, LANCEHOUSE_CONFIG=file))["count"] == 2
    assert parse_json(run("--output", "json", "table", "list", *given))["count"] == 2
    for env in ({"LANCEHOUSE_CATALOG": "a"}, {}):
        words = [] if env else ["--catalog", "a"]
        done = run(*words, "table", "list", *given, LANCEHOUSE_CONFIG=file, **env)
        assert "the catalog a (--catalog or LANCEHOUSE_CATALOG) has an implementation" in error_text(done, 2)
        assert error_text(run(*words, "table", "count", *given, "docs", LANCEHOUSE_CONFIG=file, **env), 2)


def test_the_parent_is_put_in_front(file: str) -> None:
    done = run("--catalog", "dead", "table", "count", "db.docs", LANCEHOUSE_CONFIG=file)
    assert "warehouse main" in error_text(done)
    assert "Hint: check that `endpoint` is right and the server is running" in done.stderr
    below = run("--catalog", "dead", "table", "compact", "--namespace", "db", LANCEHOUSE_CONFIG=file)
    assert "warehouse main" in error_text(below)
    everything = run("--catalog", "dead", "table", "compact", "--all", LANCEHOUSE_CONFIG=file)
    assert "warehouse main" in error_text(everything)
    ingested = run("--catalog", "dead", "ingest", "x.parquet", "--table", "db.docs", LANCEHOUSE_CONFIG=file)
    assert "warehouse main" in error_text(ingested)
    assert "s3cr3t" not in done.stderr


@pytest.mark.parametrize(
    ("words", "status", "said"),
    [
        (["--catalog", "c", "table", "list"], 1, "there is no catalog 'c'; "),
        (
            ["--catalog", "wrong", "table", "list"],
            1,
            "Error: catalog wrong: iceberg: unknown property 'endpont'; did you",
        ),
        (["--catalog", "of", "table", "list", "x"], 1, "parent: 'a..b' is no id"),
        (["table", "list", "--property", "s3cr3t-t0ken"], 2, "a property is key=value"),
        (["table", "list", "--impl", "dirr"], 1, "Error: unknown implementation 'dirr': did you mean dir?"),
        (
            ["table", "list", "--impl", "xyz"],
            1,
            f"'xyz': expected one of {', '.join(sorted(['dir', 'rest', *CATALOGS]))}, or the full path of a class",
        ),
        (
            ["table", "list", "--impl", "nowhere.Namespace"],
            1,
            "Error: unknown implementation 'nowhere.Namespace': No module named 'nowhere'",
        ),
        (
            ["table", "list", "--impl", "lancehouse.Nothing"],
            1,
            "Error: unknown implementation 'lancehouse.Nothing': module 'lancehouse' has no attribute 'Nothing'",
        ),
        *(
            (
                ["table", "list", "--impl", path],
                1,
                f"Error: unknown implementation '{path}': this is not a class that implements LanceNamespace",
            )
            for path in ("os.path.join", "os.PathLike", "lancehouse.errors")
        ),
    ],
)
def test_wrong_words(words: list[str], status: int, said: str, file: str) -> None:
    done = run(*words, LANCEHOUSE_CONFIG=file)
    assert said in error_text(done, status)
    assert "s3cr3t" not in done.stderr


def test_a_root_that_cannot_be_made() -> None:
    words = error_text(run("namespace", "create", "x", "--impl", "dir", "--property", "root=/proc/nowhere"))
    assert words == "Error: Internal error: Failed to create manifest dataset: No such file or directory\n"


def test_nothing_is_said() -> None:
    assert error_text(run("table", "list", "wh.db")) == (
        "Error: iceberg: property 'endpoint' is required: URL of the catalog server, without the path of its API\n"
        "Hint: name a catalog of ~/.lancehouse.yaml with --catalog, or give --property endpoint=URL\n"
    )
    words = error_text(run("namespace", "list", "--property", f"endpoint={DEAD}"))
    assert "Hint: an id is all levels joined by dots, such as main.db" in words


def test_a_wrong_file_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text("catalogs:\n  a:\n    token: *s3cr3t\n")
    done = run("--catalog", "a", "table", "list", LANCEHOUSE_CONFIG=f"{tmp_path}/c.yaml")
    assert error_text(done) == f"Error: {tmp_path}/c.yaml:3: this is not valid YAML: found undefined alias\n"
    given = ["--impl", "dir", "--property", f"root={tmp_path}"]
    assert run("table", "list", *given, LANCEHOUSE_CONFIG=f"{tmp_path}/c.yaml").exit_code == 0
    assert lines(run("version", LANCEHOUSE_CONFIG=f"{tmp_path}/c.yaml"))


def test_conformance_of_a_named_catalog(tmp_path: Path) -> None:
    catalog = {"impl": "tests.conformance.model.ModelNamespace", "root": str(tmp_path)}
    (tmp_path / "c.yaml").write_text(json.dumps({"catalogs": {"model": catalog}}))
    done = run("--catalog", "model", "conformance", "--area", "namespaces", LANCEHOUSE_CONFIG=f"{tmp_path}/c.yaml")
    assert done.exit_code == 0, done.output
    assert done.stdout.splitlines()[-1].startswith("tests.conformance.model.ModelNamespace in the root: ")
