"""Catalogs with a name, a namespace of the test's own and tables, to be broken."""

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
from click.testing import Result
from lance_namespace import CreateNamespaceRequest, DeclareTableRequest, DescribeTableRequest, LanceNamespace

from lancehouse.cli.named_catalogs import CLASS_PATHS
from lancehouse.conformance.target import ConformanceTarget
from lancehouse.lake.dataset import local_folder
from tests.cli.places import run
from tests.servers.lancehouse import Served
from tests.servers.polaris import Polaris
from tests.servers.unity import Unity

ROWS = pa.table({"id": pa.array([1, 2], pa.int64()), "text": ["a", "b"]})
PARENTS: Mapping[str, tuple[str, ...]] = {
    "dir": (),
    "served": ("main",),
    "reference": ("wh",),
    "unity": ("lance_test",),
    "polaris": ("test_catalog",),
}


@dataclass(frozen=True)
class Home:
    """A catalog by its name, and a namespace in it."""

    catalog: str
    properties: dict[str, str]
    ns: str
    file: Path
    root: Path

    def run(self, *words: str, **env: str) -> Result:
        """A command in this catalog."""
        return run("--catalog", self.catalog, *words, LANCEHOUSE_CONFIG=str(self.file), **env)

    def told(self, *words: str, status: int = 0) -> Any:
        """What programs get of it."""
        done = self.run("--output", "json", *words)
        assert done.exit_code == status, done.output
        return json.loads(done.stdout)

    @property
    def client(self) -> LanceNamespace:
        said = {key: value for key, value in self.properties.items() if key not in ("impl", "parent")}
        impl = self.properties["impl"]
        return ConformanceTarget(CLASS_PATHS.get(impl, impl), said).connect()

    @property
    def levels(self) -> list[str]:
        return [*PARENTS[self.catalog], self.ns]

    def id(self, name: str) -> list[str]:
        return [*self.levels, name]

    def declare(self, name: str = "docs", **properties: str) -> str:
        self.client.declare_table(DeclareTableRequest(id=self.id(name), properties=properties or None))
        return f"{self.ns}.{name}"

    def write(self, name: str = "docs", rows: pa.Table = ROWS, mode: str = "create") -> str:
        lance.write_dataset(rows, namespace_client=self.client, table_id=self.id(name), mode=mode)
        return f"{self.ns}.{name}"

    def place(self, name: str = "docs") -> Path:
        found = local_folder(str(self.client.describe_table(DescribeTableRequest(id=self.id(name))).location))
        assert found is not None
        return found

    def findings(self, *words: str) -> list[dict[str, Any]]:
        """What the doctor finds, with an exit code that fits."""
        done = self.run("--output", "json", "doctor", *words)
        report = json.loads(done.stdout)
        found: list[dict[str, Any]] = report["findings"]
        care = [each for each in found if each["severity"] != "note" and not each["fixed"]]
        assert done.exit_code == (1 if care else 0), done.output
        return found

    def here(self, *words: str) -> list[dict[str, Any]]:
        """The same, of this namespace."""
        return self.findings("--namespace", self.ns, *words)


def opened(catalog: str, request: pytest.FixtureRequest, tmp_path: Path) -> Home:
    root = tmp_path / f"{catalog}-tables"
    properties: dict[str, str] = {"impl": "dir" if catalog == "dir" else "iceberg", "root": str(root)}
    if catalog == "served":
        served: Served = request.getfixturevalue("served")
        del properties["root"]
        properties |= {"endpoint": served.iceberg}
        root = served.location
    elif catalog == "reference":
        properties |= {"endpoint": request.getfixturevalue("reference")}
    elif catalog == "unity":
        unity: Unity = request.getfixturevalue("unity")
        properties |= {"impl": "unity", "endpoint": unity.uri, "catalog": "lance_test"}
    elif catalog == "polaris":
        polaris: Polaris = request.getfixturevalue("polaris")
        properties |= {"impl": "polaris", "endpoint": polaris.uri, "credential": polaris.credential}
    if PARENTS[catalog]:
        properties["parent"] = ".".join(PARENTS[catalog])
    return made(catalog, properties, root, tmp_path)


def made(catalog: str, properties: dict[str, str], root: Path, tmp_path: Path) -> Home:
    """A catalog in the file of the test, with a namespace of its own."""
    file = tmp_path / "catalogs.yaml"
    said = json.loads(file.read_text())["catalogs"] if file.exists() else {}
    file.write_text(json.dumps({"catalogs": {**said, catalog: properties}}))
    home = Home(catalog, properties, f"care_{uuid4().hex[:8]}", file, root)
    home.client.create_namespace(CreateNamespaceRequest(id=home.levels))
    return home


def kinds(findings: list[dict[str, Any]]) -> list[tuple[str, str]]:
    return [(each["severity"], each["kind"]) for each in findings]
