"""Catalogs with a name and a namespace of the test's own, for commands that should work in any."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

import lance
import pyarrow as pa
import pytest
from click.testing import CliRunner, Result
from lance_namespace import CreateNamespaceRequest, LanceNamespace

from lancehouse.cli import named_catalogs
from lancehouse.cli.main import main
from tests.servers.lancehouse import Served
from tests.servers.moto import Bucket
from tests.servers.polaris import Polaris
from tests.servers.unity import Unity

ROWS = pa.table(
    {
        "id": pa.array(range(4), pa.int64()),
        "text": ["one", "two words", "three", None],
        "vector": pa.array([[float(each), 0.0, 1.0, 2.0] for each in range(4)], pa.list_(pa.float32(), 4)),
    }
)


@dataclass(frozen=True)
class Place:
    """A catalog, and a namespace in it: `ns` as it is typed, with the levels of the catalog's `parent` not said."""

    catalog: str
    ns: str
    file: Path

    def run(self, *words: str, **env: str) -> Result:
        """A command in this catalog."""
        return run("--catalog", self.catalog, *words, LANCEHOUSE_CONFIG=str(self.file), **env)

    def told(self, *words: str) -> Any:
        """What programs get of it."""
        return told(self.run("--output", "json", *words))

    @property
    def typed(self) -> str:
        """What commands begin with that are told to be typed next."""
        return f"lancehouse --catalog {self.catalog}"

    @property
    def client(self) -> LanceNamespace:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("LANCEHOUSE_CONFIG", str(self.file))
            return named_catalogs.load().catalog(self.catalog).connect()

    @property
    def levels(self) -> list[str]:
        return [*PARENTS[self.catalog], self.ns]

    def write(self, name: str = "docs", rows: pa.Table = ROWS, mode: str = "create") -> str:
        """Rows in a table; its id as it is typed."""
        lance.write_dataset(rows, namespace_client=self.client, table_id=[*self.levels, name], mode=mode)
        return f"{self.ns}.{name}"


PARENTS: Mapping[str, list[str]] = {
    "dir": [],
    "bucket": [],
    "served": ["main"],
    "unity": ["lance_test"],
    "polaris": ["test_catalog"],
}


def run(*words: str, **env: str) -> Result:
    return CliRunner().invoke(main, words, env={"COLUMNS": "80", "LANCEHOUSE_CONFIG": "/dev/null", **env})


def told(done: Result) -> Any:
    assert done.exit_code == 0, done.output
    assert done.stderr == ""
    return json.loads(done.stdout)


def lines(done: Result) -> list[str]:
    """What people see: on 80 columns, without spaces at the ends of lines."""
    assert done.exit_code == 0, done.output
    assert done.stderr == ""
    return [line.rstrip() for line in done.stdout.splitlines()]


def refused(done: Result, status: int = 1) -> str:
    """What is said of an error: one sentence, and a hint perhaps."""
    assert (done.exit_code, done.stdout) == (status, ""), done.output
    assert "Traceback" not in done.stderr
    if status == 1:
        sentence, *hints = done.stderr.splitlines()
        assert sentence.startswith("Error: ")
        assert all(line.startswith("Hint: ") for line in hints)
        assert len(hints) <= 1
    return done.stderr


def opened(catalog: str, request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    properties: dict[str, str] = {"impl": "dir" if catalog == "dir" else "iceberg", "root": str(tmp_path / "tables")}
    if catalog == "served":
        served: Served = request.getfixturevalue("served")
        properties = {"endpoint": served.iceberg}
    elif catalog == "unity":
        unity: Unity = request.getfixturevalue("unity")
        properties |= {"impl": "unity", "endpoint": unity.uri, "catalog": "lance_test"}
    elif catalog == "polaris":
        polaris: Polaris = request.getfixturevalue("polaris")
        properties |= {"impl": "polaris", "endpoint": polaris.uri, "credential": polaris.credential}
    elif catalog == "bucket":
        bucket: Bucket = request.getfixturevalue("s3")
        storage = {f"storage.{key}": value for key, value in bucket.options.items()}
        properties = {"impl": "dir", "root": f"{bucket.uri}/tables", **storage}
    if PARENTS[catalog]:
        properties["parent"] = ".".join(PARENTS[catalog])
    file = tmp_path / "catalogs.yaml"
    file.write_text(json.dumps({"catalogs": {catalog: properties}}))
    place = Place(catalog, f"cli_{uuid4().hex[:8]}", file)
    place.client.create_namespace(CreateNamespaceRequest(id=place.levels))
    return place
