from __future__ import annotations

from pathlib import Path
from typing import Any

import lance
import numpy as np
import pyarrow as pa
import pytest
from lance_namespace.errors import InvalidInputError, LanceNamespaceError, TableColumnNotFoundError

from lancehouse.lake import scans
from lancehouse.lake.dataset import TableRef
from lancehouse.lake.scans import groups
from lancehouse.lake.search import DISTANCE, METRICS, Search, is_indexed, nearest, vector_column

VECTOR = tuple(float(number) for number in np.linspace(-1, 1, 8))


@pytest.fixture
def table(tmp_path: Path) -> TableRef:
    numbers = np.random.default_rng(1).normal(size=3000 * 8).astype("f4")
    vectors = pa.FixedSizeListArray.from_arrays(pa.array(numbers), 8)
    rows = pa.table({"id": pa.array(range(3000), pa.int64()), "v": vectors})
    missing = pa.table({"id": [-1], "v": pa.array([None], vectors.type)})
    lance.write_dataset(pa.concat_tables([rows, missing]), tmp_path / "t", max_rows_per_file=700).delete("id = 7")
    return TableRef(str(tmp_path / "t"))


def compared(table: TableRef, search: Search, monkeypatch: pytest.MonkeyPatch) -> pa.Table:
    monkeypatch.setattr(scans, "SMALL", 1)
    dataset = table.open()
    parts = groups(dataset, 3, split=search.filter is None)
    hits = [hit for each in parts for hit in search.among(table, dataset, each)]
    return search.rows(table, dataset, nearest(hits, search.k))


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("filter", [None, "id % 3 = 0"])
def test_in_pieces_as_in_one(table: TableRef, monkeypatch: pytest.MonkeyPatch, metric: str, filter: str | None) -> None:
    query: dict[str, Any] = {"column": "v", "q": list(VECTOR), "k": 9, "metric": metric}
    whole = table.open().scanner(columns=["id", DISTANCE], nearest=query, filter=filter, prefilter=True).to_table()
    found = compared(table, Search(VECTOR, 9, "v", filter, ("id",), metric), monkeypatch)
    assert found.column("id").to_pylist() == whole.column("id").to_pylist()
    np.testing.assert_allclose(found.column(DISTANCE), whole.column(DISTANCE), rtol=1e-4, atol=1e-5)


def test_more_is_wanted_than_there_is(table: TableRef, monkeypatch: pytest.MonkeyPatch) -> None:
    assert compared(table, Search(VECTOR, 5000, "v"), monkeypatch).num_rows == 2999


def test_by_index(table: TableRef) -> None:
    assert not is_indexed(table.open(), "v")
    table.open().create_index("v", "IVF_FLAT", num_partitions=1, metric="cosine")
    dataset = table.open()
    assert is_indexed(dataset, "v")
    found = Search(VECTOR, 5, "v").by_index(table, dataset)
    assert found.schema.names == ["id", "v", DISTANCE]
    query: dict[str, Any] = {"column": "v", "q": list(VECTOR), "k": 5, "metric": "cosine", "use_index": False}
    exact = dataset.scanner(columns=["id", DISTANCE], nearest=query).to_table()
    assert found.column("id").to_pylist() == exact.column("id").to_pylist()


def test_the_column(table: TableRef) -> None:
    schema = table.open().schema
    assert vector_column(table, schema, None) == "v"
    with pytest.raises(TableColumnNotFoundError, match="has no column nope; it has id, v"):
        vector_column(table, schema, "nope")
    with pytest.raises(InvalidInputError, match="no column with vectors"):
        vector_column(table, pa.schema([("id", pa.int64())]), None)


@pytest.mark.parametrize(
    ("search", "says"),
    [
        (Search(VECTOR[:3], 1, "v"), "vectors of 8 numbers, the one given has 3"),
        (Search(VECTOR, 0, "v"), "k is 0"),
        (Search(VECTOR, 1, "id"), "column id holds int64, no vectors"),
        (Search(VECTOR, 1, "v", metric="furlong"), "furlong"),
        (Search(VECTOR, 1, "v", filter="nope = 1"), "nope"),
        (Search(VECTOR, 1, "v", columns=("nope",)), "nope"),
    ],
)
def test_what_is_wrong_is_said_before_reading(table: TableRef, search: Search, says: str) -> None:
    with pytest.raises(LanceNamespaceError, match=says):
        search.check(table, table.open())
