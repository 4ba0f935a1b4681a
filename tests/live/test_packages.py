"""The examples of docs/packages.md, by catalog name, on a warehouse in S3 whose keys only the server has.

The S3 is versitygw, or moto where that was not built. The example of Ray is in test_ray.py, which has a cluster.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import lance
import pytest
from lance_namespace import CreateNamespaceRequest

import lancehouse
from lancehouse import named_catalogs
from tests.servers.lancehouse import Served, start_lancehouse
from tests.servers.moto import Bucket, Moto
from tests.servers.versitygw import find_program, start_versitygw

PAGE = Path(__file__).parent.parent.parent / "docs" / "packages.md"
Found = dict[str, Any]


@pytest.fixture(scope="module")
def bucket(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bucket]:
    if find_program() is None:
        moto: Moto = request.getfixturevalue("moto")
        yield moto.bucket()
    else:
        with start_versitygw(tmp_path_factory.mktemp("s3")) as running:
            yield running.bucket()


@pytest.fixture(scope="module")
def server(bucket: Bucket, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("server")
    config = folder / "server.yaml"
    config.write_text(json.dumps({"warehouses": {"main": {"storage": dict(bucket.options), "vend": "static"}}}))
    with start_lancehouse(
        folder, warehouses={"main": f"{bucket.uri}/lake"}, options=["--config", str(config)]
    ) as running:
        yield running


@pytest.fixture(params=["storage", "impl"])
def managed_by(request: pytest.FixtureRequest) -> str:
    """Who decides on versions."""
    return str(request.param)


@pytest.fixture
def shop(server: Served, managed_by: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A namespace of the catalog `prod`, without keys to its storage."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_PROFILE", "AWS_REGION"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    file = tmp_path / "lancehouse.yaml"
    entry = {"endpoint": server.iceberg, "parent": "main", "managed_by": managed_by}
    file.write_text(json.dumps({"catalogs": {"prod": entry}}))
    monkeypatch.setenv(named_catalogs.VARIABLE, str(file))
    name = f"shop_{uuid4().hex[:8]}"
    lancehouse.connect("prod").create_namespace(CreateNamespaceRequest(id=["main", name]))
    return name


@pytest.fixture
def scans(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """What Lance was asked for, in this process: the arguments of each scan that has some."""
    seen: list[dict[str, Any]] = []
    scanner = lance.LanceDataset.scanner

    def record(self: lance.LanceDataset, columns: Any = None, filter: Any = None, **others: Any) -> Any:
        seen.append({"columns": columns, "filter": filter, **others})
        return scanner(self, columns, filter, **others)

    monkeypatch.setattr(lance.LanceDataset, "scanner", record)
    return seen


def run(section: str, shop: str) -> Found:
    """Execute the first example of the page, then those of a section; what they leave behind."""
    first, *parts = re.split(r"^## ", PAGE.read_text(), flags=re.M)
    [chosen] = [part for part in parts if part.startswith(f"{section}\n")]
    found: Found = {}
    for block in re.findall(r"```python\n(.*?)```", first + chosen, re.S):
        exec(block.replace("prod.shop.", f"prod.{shop}."), found)
    return found


def ids(shop: str) -> list[int]:
    return sorted(lancehouse.open(f"prod.{shop}.orders").to_table()["id"].to_pylist())


def test_pandas(shop: str) -> None:
    found = run("pandas", shop)
    assert found["frame"]["id"].to_list() == [1, 2]
    assert ids(shop) == [1, 2, 3, 11, 12]


def test_polars(shop: str, scans: list[dict[str, Any]]) -> None:
    found = run("polars", shop)
    assert found["cheap"]["item"].to_list() == ["pen", "pad"]
    assert ids(shop) == [1, 2, 3, 4]
    assert is_pushed_down(scans, {"item", "price"})


def test_duckdb(shop: str, scans: list[dict[str, Any]]) -> None:
    found = run("DuckDB", shop)
    assert found["total"] == [(5.0,)]
    assert ids(shop) == [1, 2, 3, 101, 102, 103]
    assert is_pushed_down(scans, {"id", "price"})


def test_daft(shop: str, scans: list[dict[str, Any]]) -> None:
    found = run("Daft", shop)
    assert found["dear"] == {"item": ["pen", "ink"]}
    assert ids(shop) == [1, 2, 3, 5]
    assert is_pushed_down(scans, {"item", "price"})


def is_pushed_down(scans: list[dict[str, Any]], columns: set[str]) -> bool:
    """Did one of the scans read these columns alone, or some of them, and have a filter?"""
    return any(scan["filter"] is not None and set(scan["columns"] or ["all"]) <= columns for scan in scans)


def test_lancedb(shop: str) -> None:
    found = run("lancedb", shop)
    assert [row["id"] for row in found["near"]] == [2]


@pytest.mark.filterwarnings("ignore:The given NumPy array is not writable:UserWarning")  # Lance's, of Arrow's buffers
def test_torch(shop: str) -> None:
    pytest.importorskip("torch", reason="torch takes gigabytes with its CUDA, and is not in the lock file: install it")
    found = run("torch", shop)
    assert [batch.tolist() for batch in found["prices"]] == [[2.5, 4.0]]
    assert sorted(found["samples"]) == [1, 2, 3]
