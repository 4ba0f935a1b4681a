"""A folder with a pipeline's files and functions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

from lancehouse.pipelines import Pipeline, load
from tests.spark.conftest import pytest_configure, spark  # noqa: F401 - one Spark for all tests

FUNCTIONS = """
import functools

import numpy as np
import pyarrow.compute as pc
from pyspark.sql import functions

import helpers

CALLS = []


@functools.lru_cache
def model():
    return float(helpers.SCALE)


def embed(text):
    return np.stack([pc.utf8_length(text).to_numpy(zero_copy_only=False), np.full(len(text), model())], 1).astype("f4")


def together(text, id):
    return pc.binary_join_element_wise(text, id.cast("string"), "-")


def longer(batch):
    from helpers import twice

    return batch.set_column(batch.schema.names.index("text"), "text", twice(batch["text"]))


def numbered(df):
    shout = functions.udf(lambda text: helpers.loud(text), "string")
    return df.withColumn("loud", shout("text"))


def broken(batch):
    raise ZeroDivisionError("no")


def nothing(df):
    return None
"""
HELPERS = """
import pyarrow.compute as pc

SCALE = 2


def twice(array):
    return pc.binary_join_element_wise(array, array, "")


def loud(text):
    return text.upper() + "!"
"""


@dataclass(frozen=True)
class PipelineFolder:
    """Files of 20 rows, and the tables that pipelines make of them."""

    folder: Path

    def pipeline(self, **parts: Any) -> Pipeline:
        """One with these parts; from the files into the table t, if nothing else is said."""
        said = {
            "name": "p",
            "catalog": {"impl": "dir", "properties": {"root": "${here}/tables"}},
            "source": {"files": "data"},
            "sink": {"table": "t"},
            **parts,
        }
        file = self.folder / "pipeline.yml"
        file.write_text(yaml.safe_dump(said, sort_keys=False))
        return load(file)

    def table(self, name: str = "t", **at: Any) -> lance.LanceDataset:
        return lance.dataset(self.folder / "tables" / f"{name}.lance", **at)

    def rows(self, name: str = "t", **at: Any) -> list[dict[str, Any]]:
        found = self.table(name, **at).to_table().to_pylist()
        return sorted(found, key=lambda row: str(row.get("id")).zfill(9))

    def write(self, rows: Mapping[str, Any], name: str = "t", **how: Any) -> None:
        lance.write_dataset(pa.table(dict(rows)), self.folder / "tables" / f"{name}.lance", **how)

    def files(self) -> dict[str, bytes]:
        """All that tables consist of."""
        return {str(path): path.read_bytes() for path in (self.folder / "tables").rglob("*") if path.is_file()}


@pytest.fixture
def place(tmp_path: Path) -> PipelineFolder:
    (tmp_path / "data").mkdir()
    (tmp_path / "tables").mkdir()
    for number in range(2):
        ids = list(range(number * 10, number * 10 + 10))
        rows = {"id": ids, "text": ["x" * (each % 4) for each in ids], "lang": ["en", "de"] * 5}
        pq.write_table(pa.table(rows), tmp_path / "data" / f"{number}.parquet")
    (tmp_path / "steps.py").write_text(FUNCTIONS)
    (tmp_path / "helpers.py").write_text(HELPERS)
    return PipelineFolder(tmp_path)


@pytest.fixture
def no_spark() -> Callable[[], Any]:
    """What is asked for Spark where none is needed."""

    def start() -> Any:
        raise AssertionError("Spark was started")

    return start
