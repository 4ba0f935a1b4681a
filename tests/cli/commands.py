"""Commands, and catalogs with a name for those that should work in any."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest
from click.testing import CliRunner, Result
from lance_namespace import DeclareTableRequest

from lancehouse.cli.main import main
from tests.catalogs import LiveCatalog
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
TWO_ROWS = pa.table({"id": pa.array([1, 2], pa.int64()), "text": ["a", "b"]})


@dataclass(frozen=True)
class ConfiguredCatalog(LiveCatalog):
    """A catalog that a file of catalogs names, for commands; ids are typed without the levels of its `parent`."""

    file: Path = Path(os.devnull)
    root: Path = Path()
    """The folder in which its tables lie."""
    rows: pa.Table = field(default_factory=lambda: ROWS, repr=False)
    """What `write` writes."""

    def run(self, *words: str, **env: str) -> Result:
        """A command in this catalog."""
        return run("--catalog", self.name, *words, LANCEHOUSE_CONFIG=str(self.file), **env)

    def run_json(self, *words: str, status: int = 0) -> Any:
        """What programs get of it."""
        return parse_json(self.run("--output", "json", *words), status)

    @property
    def typed(self) -> str:
        """What commands begin with that are told to be typed next."""
        return f"lancehouse --catalog {self.name}"

    def declare(self, name: str = "docs", **properties: str) -> str:
        """A table without rows; its id as it is typed."""
        self.connect().declare_table(DeclareTableRequest(id=self.id(name), properties=properties or None))
        return f"{self.ns}.{name}"

    def write(self, name: str = "docs", rows: pa.Table | None = None, mode: str = "create") -> str:
        """Rows in a table; its id as it is typed."""
        rows = self.rows if rows is None else rows
        lance.write_dataset(rows, namespace_client=self.connect(), table_id=self.id(name), mode=mode)
        return f"{self.ns}.{name}"

    def findings(self, *words: str) -> list[dict[str, Any]]:
        """What the doctor finds, with an exit code that fits."""
        done = self.run("--output", "json", "doctor", *words)
        found: list[dict[str, Any]] = json.loads(done.stdout)["findings"]
        open_ = [each for each in found if each["severity"] != "note" and not each["fixed"]]
        assert done.exit_code == (1 if open_ else 0), done.output
        return found

    def findings_here(self, *words: str) -> list[dict[str, Any]]:
        """The same, of this namespace."""
        return self.findings("--namespace", self.ns, *words)


def run(*words: str, **env: str) -> Result:
    return CliRunner().invoke(main, words, env={"COLUMNS": "80", "LANCEHOUSE_CONFIG": "/dev/null", **env})


def parse_json(done: Result, status: int = 0) -> Any:
    assert done.exit_code == status, done.output
    assert done.stderr == ""
    return json.loads(done.stdout)


def lines(done: Result) -> list[str]:
    """What people see: on 80 columns, without spaces at the ends of lines."""
    assert done.exit_code == 0, done.output
    assert done.stderr == ""
    return [line.rstrip() for line in done.stdout.splitlines()]


def error_text(done: Result, status: int = 1) -> str:
    """What is said of an error: one sentence, and a hint perhaps."""
    assert (done.exit_code, done.stdout) == (status, ""), done.output
    assert "Traceback" not in done.stderr
    if status == 1:
        sentence, *hints = done.stderr.splitlines()
        assert sentence.startswith("Error: ")
        assert all(line.startswith("Hint: ") for line in hints)
        assert len(hints) <= 1
    return done.stderr


PARENTS: Mapping[str, tuple[str, ...]] = {
    "served": ("main",),
    "reference": ("wh",),
    "unity": ("lance_test",),
    "polaris": ("test_catalog",),
}


def open_configured(
    name: str, request: pytest.FixtureRequest, tmp_path: Path, rows: pa.Table = ROWS
) -> ConfiguredCatalog:
    """A catalog on one of the servers that are fixtures, in the test's file of catalogs."""
    impl = {"dir": "dir", "bucket": "dir", "unity": "unity", "polaris": "polaris"}.get(name, "iceberg")
    root = tmp_path / f"{name}-tables"
    properties = {"root": str(root)}
    if name == "served":
        server: Served = request.getfixturevalue("lancehouse_server")
        properties, root = {"endpoint": server.iceberg}, server.location
    elif name == "reference":
        properties |= {"endpoint": request.getfixturevalue("reference")}
    elif name == "unity":
        unity: Unity = request.getfixturevalue("unity")
        properties |= {"endpoint": unity.uri, "catalog": "lance_test"}
    elif name == "polaris":
        polaris: Polaris = request.getfixturevalue("polaris")
        properties |= {"endpoint": polaris.uri, "credential": polaris.credential}
    elif name == "bucket":
        bucket: Bucket = request.getfixturevalue("s3")
        storage = {f"storage.{key}": value for key, value in bucket.options.items()}
        properties = {"root": f"{bucket.uri}/tables", **storage}
    return configure(name, impl, properties, root, tmp_path, rows)


def open_small(name: str, request: pytest.FixtureRequest, tmp_path: Path) -> ConfiguredCatalog:
    """The same, with two rows and no vectors in the tables that it writes."""
    return open_configured(name, request, tmp_path, TWO_ROWS)


def configure(
    name: str, impl: str, properties: Mapping[str, str], root: Path, tmp_path: Path, rows: pa.Table = TWO_ROWS
) -> ConfiguredCatalog:
    """A catalog in the test's file of catalogs, with a namespace of its own."""
    file, parent = tmp_path / "catalogs.yaml", PARENTS.get(name, ())
    others = json.loads(file.read_text())["catalogs"] if file.exists() else {}
    entry = {**properties, **({"parent": ".".join(parent)} if parent else {})}
    if name != "served":  # which is found without it: the default
        entry["impl"] = impl
    file.write_text(json.dumps({"catalogs": {**others, name: entry}}))
    return ConfiguredCatalog(name, impl, properties, parent, file=file, root=root, rows=rows).create_namespace()


def kinds(findings: list[dict[str, Any]]) -> list[tuple[str, str]]:
    return [(each["severity"], each["kind"]) for each in findings]
