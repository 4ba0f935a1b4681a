from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import lance
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner, Result
from lance_namespace import CreateNamespaceRequest, DeclareTableRequest, connect

from lancehouse.cli.main import main
from lancehouse.cli.output import format_size
from lancehouse.jobs import engine
from lancehouse.spark import SparkEngine
from tests.servers.lancehouse import PROGRAM, Served, start_lancehouse
from tests.servers.unity import Unity
from tests.spark.conftest import spark  # noqa: F401 - one Spark for all tests

pytestmark = [
    pytest.mark.usefixtures("spark"),
    pytest.mark.filterwarnings("ignore:PySpark does not yet fully support pandas:FutureWarning"),
    pytest.mark.filterwarnings("ignore:lance is not fork-safe:UserWarning"),
]

PAGE = Path(__file__).parent.parent.parent / "docs" / "spark.md"
DEAD = "endpoint=http://127.0.0.1:9"


def run(*words: str, output: str = "text") -> Result:
    return CliRunner().invoke(main, ["--output", output, "table", *words], env={"COLUMNS": "80"})


@pytest.fixture(scope="module")
def lancehouse_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A server of this file's own: who looks after a whole warehouse should not meet the tables of all other tests."""
    with start_lancehouse(tmp_path_factory.mktemp("maintenance")) as server:
        yield server


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A folder of tables: `docs` of five fragments."""
    folder = tmp_path / "tables"
    for number in range(5):
        rows = pa.table({"id": range(number * 10, number * 10 + 10), "text": [f"text {each}" for each in range(10)]})
        lance.write_dataset(rows, folder / "docs.lance", mode="append")
    return folder


@pytest.fixture(params=["local", "spark"])
def engine_options(request: pytest.FixtureRequest, root: Path) -> list[str]:
    return ["--impl", "dir", "--property", f"root={root}", "--engine", request.param]


@pytest.fixture
def unsaid(root: Path) -> list[str]:
    """Without a word about the engine."""
    return ["--impl", "dir", "--property", f"root={root}"]


def lines(done: Result) -> dict[str, str]:
    assert done.exit_code == 0, done.output
    assert done.stderr == ""
    return dict(line.split(maxsplit=1) for line in done.stdout.splitlines())


def parse_json(done: Result, status: int = 0) -> Any:
    assert done.exit_code == status, done.output
    return json.loads(done.stdout)


def test_compact(root: Path, engine_options: list[str]) -> None:
    made = lines(run("compact", *engine_options, "docs"))
    assert (made["table"], made["fragments_removed"], made["fragments_added"]) == ("docs", "5", "1")
    again = parse_json(run("compact", *engine_options, "docs", output="json"))
    assert (again["table"], again["fragments_removed"], str(again["version"])) == ("docs", 0, made["version"])
    assert len(lance.dataset(root / "docs.lance").get_fragments()) == 1


def test_a_catalog_whose_levels_end(unity: Unity, tmp_path: Path) -> None:
    properties = {"endpoint": unity.uri, "catalog": "lance_test", "root": str(tmp_path)}
    client = connect("lancehouse.UnityNamespace", properties)
    client.create_namespace(CreateNamespaceRequest(id=["lance_test", "db"]))
    lance.write_dataset(pa.table({"id": [1]}), namespace_client=client, table_id=["lance_test", "db", "docs"])
    given = ["--impl", "unity", *(word for each in properties.items() for word in ("--property", "=".join(each)))]
    for where in (["--namespace", "lance_test.db"], ["--namespace", "lance_test"], ["--all"]):
        found = parse_json(run("cleanup", *given, *where, "--dry-run", output="json"))
        assert [each["table"] for each in found["rows"]] == ["lance_test.db.docs"]
    assert "no deeper levels" in run("cleanup", *given, "--namespace", "lance_test.db.docs.x").stderr


def test_index_and_the_rows_that_come_later(root: Path, engine_options: list[str]) -> None:
    made = lines(run("index", *engine_options, "docs", "--column", "id", "--kind", "btree", "--param", "zone_size=128"))
    assert made == {"table": "docs", "index": "id_idx", "version": "6", "segments": "1"}
    lance.write_dataset(pa.table({"id": [50], "text": ["late"]}), root / "docs.lance", mode="append")
    assert lines(run("optimize-indices", *engine_options, "docs", "--name", "id_idx"))["version"] == "8"
    found = lance.dataset(root / "docs.lance")
    assert found.stats.index_stats("id_idx")["num_unindexed_rows"] == 0
    refused = run("index", *engine_options, "docs", "--column", "id", "--kind", "BTREE")
    assert (refused.exit_code, refused.stdout) == (1, "")
    assert "Hint: add --replace to build it anew, or choose another --name" in refused.stderr
    named = parse_json(
        run("index", *engine_options, "docs", "--column", "id", "--kind", "BITMAP", "--name", "b", output="json")
    )
    assert named["index"] == "b"


def test_old_versions_go(root: Path, engine_options: list[str]) -> None:
    dataset = lance.dataset(root / "docs.lance")
    dataset.tags.create("keep", 2)
    assert lines(run("cleanup", *engine_options, "docs"))["versions"] == "0"
    planned = parse_json(run("cleanup", *engine_options, "docs", "--older-than", "0s", "--dry-run", output="json"))
    assert (planned["versions"], planned["dry_run"], planned["tagged"]) == (3, True, ["keep"])
    assert len(dataset.versions()) == 5
    gone = lines(run("cleanup", *engine_options, "docs", "--older-than", "0s"))
    assert (gone["versions"], gone["tagged"]) == ("3", "keep")
    assert len(lance.dataset(root / "docs.lance").versions()) == 2


def test_orphans_go(root: Path, engine_options: list[str]) -> None:
    orphan = root / "docs.lance" / "data" / "0123456789abcdef.lance"
    orphan.write_bytes(b"1234")
    assert run("remove-orphans", *engine_options, "docs", "--older-than", "0s").exit_code == 2
    waits = run("remove-orphans", *engine_options, "docs", "--dry-run")
    assert "docs: would remove 0 files" in waits.stdout
    now = ["--no-writers"]
    planned = run("remove-orphans", *engine_options, "docs", *now, "--dry-run")
    assert orphan.name in planned.stdout
    assert "docs: would remove 1 file, 4 bytes" in planned.stdout
    assert parse_json(run("remove-orphans", *engine_options, "docs", *now, "--dry-run", output="json"))["rows"] == [
        {"name": f"data/{orphan.name}"}
    ]
    assert orphan.exists()
    assert lines(run("remove-orphans", *engine_options, "docs", *now))["bytes"] == "4"
    assert not orphan.exists()


@pytest.fixture
def home(lancehouse_server: Served) -> list[str]:
    """A namespace of the server with a table, one below it, one that is broken and one that is only declared."""
    levels = [lancehouse_server.warehouse, f"maintenance_{uuid4().hex[:8]}"]
    client = connect("lancehouse.IcebergNamespace", {"endpoint": lancehouse_server.iceberg})
    for namespace in (levels, [*levels, "below"]):
        client.create_namespace(CreateNamespaceRequest(id=namespace))
    for table in ([*levels, "good"], [*levels, "bad"], [*levels, "below", "deep"]):
        for mode in ("create", "append", "append"):
            lance.write_dataset(pa.table({"id": [1, 2]}), namespace_client=client, table_id=table, mode=mode)
    client.declare_table(DeclareTableRequest(id=[*levels, "new"]))
    location = Path(lance.dataset(namespace_client=client, table_id=[*levels, "bad"]).uri.removeprefix("file://"))
    for file in (location / "data").iterdir():
        file.write_bytes(b"broken")
    return levels


def test_a_namespace_of_which_one_table_is_broken(home: list[str], lancehouse_server: Served) -> None:
    name = ".".join(home)
    given = ["--property", f"endpoint={lancehouse_server.iceberg}", "--namespace", name]
    done = run("compact", *given)
    assert done.exit_code == 1
    assert f"1 of 4 tables failed: {name}.bad" in done.stderr
    assert f"{name}: 2 done, 1 empty, 1 fails" in done.stdout
    assert "3 fragments became 1" in " ".join(done.stdout.split())
    assert max(map(len, done.stdout.splitlines())) <= 80
    again = parse_json(run("compact", *given, output="json"), status=1)
    results = {row["table"].removeprefix(f"{name}."): row["result"] for row in again["rows"]}
    assert results == {"good": "done", "bad": "fails", "new": "empty", "below.deep": "done"}
    assert again["counts"] == {"done": 2, "empty": 1, "fails": 1}


@pytest.mark.parametrize("command", ["optimize-indices", "cleanup", "remove-orphans"])
def test_a_whole_warehouse(command: str, home: list[str], lancehouse_server: Served) -> None:
    given = ["--property", f"endpoint={lancehouse_server.iceberg}"]
    done = run(command, *given, "--namespace", lancehouse_server.warehouse, output="json")
    name = ".".join(home)
    assert {f"{name}.good", f"{name}.below.deep"} <= {row["table"] for row in json.loads(done.stdout)["rows"]}
    refused = run(command, *given, "--all")
    assert (refused.exit_code, refused.stdout) == (1, "")
    assert "this catalog does not list what it holds: give --namespace" in refused.stderr


def test_a_whole_catalog(root: Path, engine_options: list[str]) -> None:
    lance.write_dataset(pa.table({"id": [1]}), root / "more.lance")
    done = run("cleanup", *engine_options, "--all", "--older-than", "0s", "--dry-run")
    assert done.exit_code == 0, done.output
    assert [line.split()[0] for line in done.stdout.splitlines()[2:4]] == ["docs", "more"]
    assert "would remove 4 versions" in done.stdout
    assert "the whole catalog: 2 done" in done.stdout


def test_what_the_page_says(lancehouse_server: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name = f"page_{uuid4().hex[:8]}"
    client = connect("lancehouse.IcebergNamespace", {"endpoint": lancehouse_server.iceberg})
    client.create_namespace(CreateNamespaceRequest(id=[lancehouse_server.warehouse, name]))
    (tmp_path / "trips").mkdir()
    pq.write_table(pa.table({"id": [1, 2]}), tmp_path / "trips" / "1.parquet")
    monkeypatch.chdir(tmp_path)
    page = PAGE.read_text().replace("http://127.0.0.1:8181/iceberg", lancehouse_server.iceberg)
    commands = re.findall(r"^lancehouse (.*)$", page.replace("main.db", f"{lancehouse_server.warehouse}.{name}"), re.M)
    assert len(commands) == 4
    for command in commands:
        done = CliRunner().invoke(
            main, command.replace("--namespace main ", f"--namespace {lancehouse_server.warehouse}.{name} ").split()
        )
        assert done.exit_code == 0, done.output


@pytest.mark.parametrize(
    ("words", "status", "said"),
    [
        (["compact"], 2, "give the ID of a table, or --namespace NS, or --all"),
        (["compact", "docs", "--all"], 2, "give the ID of a table, or --namespace NS, or --all"),
        (["compact", "wh..docs"], 2, "is no id"),
        (["compact", "docs", "--cores", "0"], 2, "0 is not in the range"),
        (["compact", "docs", "--param", "target"], 2, "a property is key=value"),
        (["compact", "docs", "--param", "target_rows=5"], 1, "target_rows"),
        (["compact", "nothing"], 1, "nothing"),
        (["compact", "--namespace", "nowhere"], 1, "Namespace not found"),
        (["index", "docs", "--column", "id"], 2, "Missing option '--kind'"),
        (["index", "docs", "--column", "idd", "--kind", "BTREE"], 1, "has no column idd; it has id, text"),
        (["index", "docs", "--column", "id", "--kind", "TREE"], 1, "no kind of index 'TREE'; did you mean RTREE?"),
        (["index", "docs", "--column", "text", "--kind", "INVRTED"], 1, "did you mean INVERTED?"),
        (["index", "docs", "--column", "text", "--kind", "IVF_PQ"], 1, "text"),
        (["optimize-indices", "docs", "--name", "none_idx"], 1, "none_idx"),
        (["cleanup", "docs", "--older-than", "two weeks"], 2, "'two weeks' is no age: write 12h, 14d or 2w"),
        (["cleanup", "docs", "--older-than", "99999999999w"], 2, "is more than a calendar has"),
        (["remove-orphans", "docs", "--older-than", "5m"], 2, "a writer may need an hour to commit"),
        (
            ["compact", "wh.db.docs", "--impl", "iceberg", "--property", DEAD, "--property", "max_retries=0"],
            1,
            "refused",
        ),
        (["compact", "docs", "--impl", "nowhere.Namespace"], 1, "No module named 'nowhere'"),
        (["compact", "--all", "--impl", "dir", "--property", "rot=/x"], 1, "Error: Missing required property 'root'"),
    ],
)
def test_wrong_words(words: list[str], status: int, said: str, engine_options: list[str]) -> None:
    done = run(words[0], *(engine_options if "--impl" not in words else []), *words[1:])
    assert done.exit_code == status, done.output
    assert said in done.stderr
    assert (done.stdout, "Traceback" in done.stderr) == ("", False)
    if status == 1:
        assert [line.split(":")[0] for line in done.stderr.splitlines()] in (["Error"], ["Error", "Hint"])


def without_the_extra(*words: str) -> subprocess.CompletedProcess[str]:
    code = "import sys; sys.modules['pyspark'] = None; from lancehouse.cli.main import main; main()"
    return subprocess.run([sys.executable, "-c", code, *words], capture_output=True, text=True, check=False)


def test_without_the_extra(unsaid: list[str], root: Path) -> None:
    """All is done in this process, however large the table is, unless Spark is asked for."""
    done = without_the_extra("table", "compact", *unsaid, "docs")
    assert (done.returncode, done.stderr) == (0, "")
    assert len(lance.dataset(root / "docs.lance").get_fragments()) == 1
    refused = without_the_extra("table", "compact", *unsaid, "docs", "--engine", "spark")
    assert (refused.returncode, refused.stderr) == (1, "Error: this needs pyspark: pip install 'lancehouse[spark]'\n")


@pytest.mark.parametrize(("limit", "is_spark"), [(10 << 30, False), (100, True)])
@pytest.mark.parametrize("scope", [["docs"], ["--all"]])
def test_the_engine_is_chosen_by_size(
    unsaid: list[str], scope: list[str], limit: int, is_spark: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine, "LOCAL_BYTES", limit)
    runs: list[str] = []

    def run_nothing(self: Any, *_: Any) -> list[str]:
        runs.append(type(self).__name__)
        return []

    for kind in (engine.LocalEngine, SparkEngine):
        monkeypatch.setattr(kind, "run", run_nothing)
    run("compact", *unsaid, *scope)
    assert set(runs) == {"SparkEngine" if is_spark else "LocalEngine"}


def test_nothing_that_is_slow_is_loaded_for_the_help() -> None:
    code = "import sys, lancehouse.cli.main; print({'pyspark', 'lance', 'pandas', 'rich.progress'} & set(sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "set()\n"


def test_a_spark_of_its_own_says_nothing(unsaid: list[str]) -> None:
    done = subprocess.run(
        [PROGRAM, "table", "compact", *unsaid, "docs", "--engine", "spark", "--cores", "1"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert done.stdout.splitlines()[0].split() == ["table", "docs"]


def test_a_spark_that_does_not_start(unsaid: list[str]) -> None:
    done = subprocess.run(
        [PROGRAM, "table", "compact", *unsaid, "docs", "--engine", "spark"],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "SPARK_DRIVER_MEMORY": "1nonsense"},
    )
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (1, "", 1), done.stderr
    assert done.stderr.startswith("Error: Spark does not start: ")
    assert "1nonsense" in done.stderr


@pytest.mark.parametrize(
    ("number", "said"), [(0, "0 bytes"), (999, "999 bytes"), (12_345, "12.3 kB"), (5 * 10**18, "5.0 EB")]
)
def test_sizes(number: int, said: str) -> None:
    assert format_size(number) == said


def test_ages() -> None:
    from lancehouse.cli.local_spark import parse_age

    cases = {"90s": timedelta(seconds=90), "12h": timedelta(hours=12), "2w": timedelta(days=14), "0d": timedelta()}
    for text, expected in cases.items():
        assert parse_age(None, None, text) == expected  # type: ignore[arg-type]
