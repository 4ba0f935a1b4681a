from __future__ import annotations

from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import lance
import numpy as np
import pyarrow as pa
import pytest
from lance_namespace.errors import InvalidInputError

from bench.recall import RecallCase
from lancehouse.connection import Connection
from lancehouse.jobs import LocalEngine, TableJobs
from lancehouse.jobs.recall import plot_recall
from lancehouse.lake.recall_notes import MOST_POINTS, digest_index, find_note


@pytest.fixture(scope="module")
def jobs(tmp_path_factory: pytest.TempPathFactory) -> TableJobs:
    folder = tmp_path_factory.mktemp("recall")
    params = {"num_partitions": 8, "num_sub_vectors": 2, "max_iters": 5}
    RecallCase(rows=3000, clusters=10, dimension=8, params=params).write(str(folder / "t.lance"))
    vectors = pa.array([[1.0, 2.0], None], pa.list_(pa.float32(), 2))
    lance.write_dataset(pa.table({"v": vectors, "w": vectors}), folder / "plain.lance")
    return TableJobs(Connection("dir", {"root": str(folder)}), LocalEngine(threads=2))


def test_more_effort_finds_more(jobs: TableJobs, tmp_path: Path) -> None:
    measured = jobs.recall("t", queries=20, plot=str(tmp_path / "recall.svg"))
    rows = measured.to_pylist()
    assert [(row["nprobes"], row["refine_factor"]) for row in rows] == [
        (None, None),
        *((probes, factor) for factor in (1, 5, 20) for probes in (1, 5, 8)),
    ]
    recall = {(row["nprobes"], row["refine_factor"]): row["recall"] for row in rows}
    assert recall[1, 1] < recall[8, 20]
    assert recall[8, 20] >= 0.95
    assert recall[None, None] >= 0.95
    assert all(0 < row["median_ms"] <= row["p95_ms"] for row in rows)
    drawn = ElementTree.parse(tmp_path / "recall.svg").getroot()
    assert len(drawn.findall("{*}circle")) == len(rows)


def test_the_row_itself_does_not_count(jobs: TableJobs) -> None:
    """With `k=1`, a search that returned just the row itself would find nothing."""
    [_, exact] = jobs.recall("t", queries=10, k=1, nprobes=[8], refine_factor=[100]).to_pylist()
    assert exact["recall"] == 1.0


def test_the_last_measurement_is_kept_with_the_table(jobs: TableJobs) -> None:
    address = jobs._address("t").to_ref()
    measured = jobs.recall("t", queries=5, k=2, nprobes=[1, 8], refine_factor=[1])
    dataset = address.open()
    [index] = dataset.describe_indices()
    note = find_note(dataset, index.name)
    assert note is not None
    assert (note.version, note.k, note.queries) == (dataset.version - 1, 2, 5)
    assert [point.model_dump() for point in note.points] == [
        {name: value if value is None else round(value, 4) for name, value in row.items()}
        for row in measured.to_pylist()
    ]
    assert note.index == digest_index(index)
    jobs.recall("t", queries=5, k=2, nprobes=[1], refine_factor=[1, 2], keep=False)
    assert address.open().version == dataset.version
    jobs.recall("t", queries=2, k=1, nprobes=range(1, 9), refine_factor=range(1, 9))
    latest = find_note(address.open(), index.name)
    assert latest is not None
    assert len(latest.points) == MOST_POINTS


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"table": "plain", "column": "v"}, "column v has no vector index"),
        ({"table": "plain"}, "name the one to search"),
        ({"table": "t", "queries": 0}, "queries is 0"),
        ({"table": "t", "queries": 10**6}, "at most 10,000"),
        ({"table": "t", "k": 0}, "k is 0"),
        ({"table": "t", "nprobes": [0]}, "nprobes is 0"),
        ({"table": "t", "plot": "absent/x.svg"}, "plot: there is no folder absent$"),
        ({"table": "t", "refine_factor": []}, "refine_factor must be a whole number, or a list of such"),
    ],
)
def test_what_is_wrong_is_said(jobs: TableJobs, arguments: dict[str, Any], says: str) -> None:
    with pytest.raises(InvalidInputError, match=says):
        jobs.recall(**arguments)


@pytest.mark.parametrize("value", [1.0, 0.0])
def test_a_plot_of_little(value: float) -> None:
    columns: dict[str, Any] = {"nprobes": pa.array([None], pa.int32()), "refine_factor": pa.array([None], pa.int32())}
    measured = pa.table({**columns, "recall": [value], "median_ms": [np.float64(1.0)], "p95_ms": [1.0]})
    text = plot_recall("<a table>", measured)
    assert "&lt;a table&gt;" in text
    assert "nan" not in text
