from __future__ import annotations

import json
from pathlib import Path
from uuid import uuid4

import lance
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner, Result
from lance_namespace import CreateNamespaceRequest, connect

from lancehouse.cli.ingest import SCHEMA_MODES
from lancehouse.cli.main import main
from lancehouse.jobs import table_jobs
from tests.servers.lancehouse import Served
from tests.spark.conftest import spark  # noqa: F401 - one Spark for all tests

pytestmark = [
    pytest.mark.usefixtures("spark"),
    pytest.mark.filterwarnings("ignore:PySpark does not yet fully support pandas:FutureWarning"),
    pytest.mark.filterwarnings("ignore:lance is not fork-safe:UserWarning"),
]


def run(*words: str, output: str = "text") -> Result:
    return CliRunner().invoke(main, ["--output", output, "ingest", *words], env={"COLUMNS": "80"})


@pytest.fixture
def files(tmp_path: Path) -> Path:
    folder = tmp_path / "files"
    for year in (2024, 2025):
        (folder / f"year={year}").mkdir(parents=True)
        pq.write_table(pa.table({"id": [1, 2], "text": ["a", "b"]}), folder / f"year={year}" / "part.parquet")
    (folder / "more.csv").write_text("id,text\n3,c\n")
    return folder


@pytest.fixture(params=["local", "spark", None])
def engine_options(request: pytest.FixtureRequest, tmp_path: Path) -> list[str]:
    engine = ["--engine", request.param] if request.param else []
    return ["--impl", "dir", "--property", f"root={tmp_path / 'tables'}", "--table", "trips", *engine]


def rows(tmp_path: Path) -> int:
    return int(lance.dataset(tmp_path / "tables" / "trips.lance").count_rows())


def test_files_become_a_table(files: Path, engine_options: list[str], tmp_path: Path) -> None:
    done = run(*engine_options, f"{files}/year=*", "--run", "monday")
    assert done.exit_code == 0, done.output
    assert done.stdout.split() == ["table", "trips", "version", "1", "rows", "4"]
    again = json.loads(run(*engine_options, f"{files}/year=*", "--run", "monday", output="json").stdout)
    assert again == {"table": "trips", "version": 1, "rows": 4}
    year = f"{files}/year=2024/part.parquet"
    assert json.loads(run(*engine_options, year, f"{files}/more.csv", output="json").stdout or "null") is None
    added = json.loads(run(*engine_options, f"{files}/more.csv", "--column", "id", output="json").stdout)
    assert added == {"table": "trips", "version": 2, "rows": 5}
    written = json.loads(run(*engine_options, year, "--mode", "overwrite", output="json").stdout)
    assert written == {"table": "trips", "version": 3, "rows": 2}


def test_options_and_types(files: Path, engine_options: list[str], tmp_path: Path) -> None:
    (files / "odd.csv").write_bytes("zip;name\n00712;müller\n".encode("latin-1"))
    words = ["--option", "delimiter=;", "--option", "encoding=latin-1", "--type", "zip=string"]
    done = run(*engine_options, f"{files}/odd.csv", *words)
    assert done.exit_code == 0, done.output
    found = lance.dataset(tmp_path / "tables" / "trips.lance").to_table().to_pylist()
    assert found == [{"zip": "00712", "name": "müller"}]


def test_columns_evolve_if_that_is_wanted(files: Path, tmp_path: Path) -> None:
    assert SCHEMA_MODES == table_jobs.SCHEMA_MODES
    here = ["--impl", "dir", "--property", f"root={tmp_path / 'tables'}", "--table", "trips", "--engine", "local"]
    run(*here, f"{files}/more.csv")
    (files / "wide.csv").write_text("id,text,more\n4,d,x\n")
    refused = run(*here, f"{files}/wide.csv")
    assert (refused.exit_code, "more" in refused.stderr) == (1, True)
    done = run(*here, f"{files}/wide.csv", "--schema-mode", "evolve")
    assert done.exit_code == 0, done.output
    found = lance.dataset(tmp_path / "tables" / "trips.lance").to_table().to_pylist()
    assert found == [{"id": 3, "text": "c", "more": None}, {"id": 4, "text": "d", "more": "x"}]
    both = run(*here, f"{files}/wide.csv", "--schema-mode", "evolve", "--mode", "overwrite")
    assert (both.exit_code, "evolve" in both.stderr) == (1, True), both.output


def test_into_a_catalog(files: Path, lancehouse_server: Served) -> None:
    levels = [lancehouse_server.warehouse, f"ingest_{uuid4().hex[:8]}"]
    properties = {"endpoint": lancehouse_server.iceberg}
    client = connect("lancehouse.IcebergNamespace", properties)
    client.create_namespace(CreateNamespaceRequest(id=levels))
    name = ".".join([*levels, "trips"])
    done = run("--property", f"endpoint={lancehouse_server.iceberg}", "--table", name, str(files / "more.csv"))
    assert done.exit_code == 0, done.output
    assert lance.dataset(namespace_client=client, table_id=[*levels, "trips"]).count_rows() == 1


@pytest.mark.parametrize(
    ("words", "status", "said"),
    [
        (["--table", "trips"], 2, "SOURCE"),
        (["{files}"], 2, "Missing option '--table'"),
        (["{files}", "--table", "a..b"], 2, "is no id"),
        (["{files}/none.parquet", "--table", "trips"], 1, "there is no file at"),
        (["{files}/*.orc", "--table", "trips"], 1, "there is no file at"),
        (["{files}/more.csv", "--table", "trips", "--format", "orc"], 2, "'orc' is not one of"),
        (["{files}/more.csv", "--table", "trips", "--format", "parquet"], 1, "more.csv"),
        (["{files}/more.csv", "--table", "trips", "--column", "idd"], 1, "idd"),
        (["{files}/more.csv", "--table", "trips", "--source-option", "s3cr3t"], 2, "a property is key=value"),
        (["{files}/more.csv", "--table", "trips", "--option", "delimeter=;"], 1, "did you mean delimiter?"),
        (["{files}/more.csv", "--table", "trips", "--type", "id=number"], 1, "the option types"),
        (["a.b", "c.d", "--table", "trips", "--format", "iceberg"], 2, "one Iceberg table at a time"),
        (
            [
                "{files}/more.csv",
                "--table",
                "a.b.c",
                "--impl",
                "iceberg",
                "--property",
                "endpoint=http://127.0.0.1:9",
                "--property",
                "max_retries=0",
            ],
            1,
            "refused",
        ),
    ],
)
def test_wrong_words(words: list[str], status: int, said: str, files: Path, tmp_path: Path) -> None:
    place = [] if "--impl" in words else ["--impl", "dir", "--property", f"root={tmp_path / 'tables'}"]
    done = run(*place, *(word.replace("{files}", str(files)) for word in words))
    assert done.exit_code == status, done.output
    assert said in done.stderr
    assert (done.stdout, "Traceback" in done.stderr, "s3cr3t" in done.output) == ("", False, False)
    if status == 1:
        assert [line.split(":")[0] for line in done.stderr.splitlines()] in (["Error"], ["Error", "Hint"])
