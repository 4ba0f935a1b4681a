from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import lance
import numpy as np
import pyarrow as pa
import pytest
from lance_namespace.errors import InvalidInputError, LanceNamespaceError, TableColumnNotFoundError

from bench.recall import RecallCase
from lancehouse.lake import scans
from lancehouse.lake.dataset import TableRef
from lancehouse.lake.scans import split_fragments
from lancehouse.lake.vector_search import (
    DISTANCE,
    METRICS,
    SearchEffort,
    VectorSearch,
    best_hits,
    find_vector_index,
    has_vector_index,
    resolve_vector_column,
)

VECTOR = tuple(float(number) for number in np.linspace(-1, 1, 8))


@pytest.fixture
def table(tmp_path: Path) -> TableRef:
    numbers = np.random.default_rng(1).normal(size=3000 * 8).astype("f4")
    vectors = pa.FixedSizeListArray.from_arrays(pa.array(numbers), 8)
    rows = pa.table({"id": pa.array(range(3000), pa.int64()), "v": vectors})
    missing = pa.table({"id": [-1], "v": pa.array([None], vectors.type)})
    lance.write_dataset(pa.concat_tables([rows, missing]), tmp_path / "t", max_rows_per_file=700).delete("id = 7")
    return TableRef(str(tmp_path / "t"))


def search_by_parts(table: TableRef, search: VectorSearch, monkeypatch: pytest.MonkeyPatch) -> pa.Table:
    monkeypatch.setattr(scans, "MIN_TASK_ROWS", 1)
    dataset = table.open()
    parts = split_fragments(dataset, 3, split=search.filter is None)
    hits = [hit for each in parts for hit in search.search_parts(table, dataset, each)]
    return search.read_hits(table, dataset, best_hits(hits, search.k))


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("filter", [None, "id % 3 = 0"])
def test_in_pieces_as_in_one(table: TableRef, monkeypatch: pytest.MonkeyPatch, metric: str, filter: str | None) -> None:
    query: dict[str, Any] = {"column": "v", "q": list(VECTOR), "k": 9, "metric": metric}
    whole = table.open().scanner(columns=["id", DISTANCE], nearest=query, filter=filter, prefilter=True).to_table()
    found = search_by_parts(table, VectorSearch(VECTOR, 9, "v", filter, ("id",), metric), monkeypatch)
    assert found.column("id").to_pylist() == whole.column("id").to_pylist()
    np.testing.assert_allclose(found.column(DISTANCE), whole.column(DISTANCE), rtol=1e-4, atol=1e-5)


def test_more_is_wanted_than_there_is(table: TableRef, monkeypatch: pytest.MonkeyPatch) -> None:
    assert search_by_parts(table, VectorSearch(VECTOR, 5000, "v"), monkeypatch).num_rows == 2999


def test_by_index(table: TableRef) -> None:
    assert not has_vector_index(table.open(), "v")
    table.open().create_index("v", "IVF_FLAT", num_partitions=1, metric="cosine")
    dataset = table.open()
    assert has_vector_index(dataset, "v")
    found = VectorSearch(VECTOR, 5, "v").search_index(table, dataset)
    assert found.schema.names == ["id", "v", DISTANCE]
    query: dict[str, Any] = {"column": "v", "q": list(VECTOR), "k": 5, "metric": "cosine", "use_index": False}
    exact = dataset.scanner(columns=["id", DISTANCE], nearest=query).to_table()
    assert found.column("id").to_pylist() == exact.column("id").to_pylist()


CLUSTERED = RecallCase(rows=10_000, clusters=20, queries=30)


@pytest.fixture(scope="module")
def clustered_table(tmp_path_factory: pytest.TempPathFactory) -> tuple[TableRef, lance.LanceDataset]:
    """Vectors that a quantized index cannot tell apart by their codes alone."""
    place = str(tmp_path_factory.mktemp("clustered") / "t.lance")
    return TableRef(place), CLUSTERED.write(place)


def recall(clustered: tuple[TableRef, lance.LanceDataset], effort: SearchEffort) -> float:
    table, dataset = clustered

    def search(query: tuple[float, ...]) -> list[Any]:
        found = VectorSearch(query, CLUSTERED.k, "emb", columns=("id",), effort=effort)
        found.check(table, dataset)
        ids: list[Any] = found.search_index(table, dataset).column("id").to_pylist()
        return ids

    return CLUSTERED.recall(search)


def test_recall_of_a_quantized_index(clustered_table: tuple[TableRef, lance.LanceDataset]) -> None:
    index = find_vector_index(clustered_table[1], "emb")
    assert index is not None
    assert index.kind == "IVF_PQ"
    assert recall(clustered_table, SearchEffort()) >= 0.9
    assert recall(clustered_table, SearchEffort(nprobes=1, refine_factor=1)) < 0.7
    assert recall(clustered_table, SearchEffort(nprobes=64, refine_factor=100)) == 1.0


def test_recall_of_a_graph(table: TableRef) -> None:
    table.open().create_index("v", "IVF_HNSW_SQ", num_partitions=1)
    dataset = table.open()
    exact = {"column": "v", "q": list(VECTOR), "k": 10, "use_index": False}
    nearest_ids = dataset.scanner(columns=["id", DISTANCE], nearest=exact).to_table().column("id").to_pylist()
    for effort in (SearchEffort(), SearchEffort(ef=15), SearchEffort(ef=300), SearchEffort(refine_factor=3, ef=30)):
        found = VectorSearch(VECTOR, 10, "v", effort=effort)
        found.check(table, dataset)
        assert len({*found.search_index(table, dataset).column("id").to_pylist()} & {*nearest_ids}) >= 8, effort


def test_ef_of_an_index_without_a_graph(clustered_table: tuple[TableRef, lance.LanceDataset]) -> None:
    with pytest.raises(InvalidInputError, match="ef is for an HNSW index, and that of emb is IVF_PQ"):
        recall(clustered_table, SearchEffort(ef=500))


def test_the_column(table: TableRef) -> None:
    schema = table.open().schema
    assert resolve_vector_column(table, schema, None) == "v"
    with pytest.raises(TableColumnNotFoundError, match="has no column nope; it has id, v"):
        resolve_vector_column(table, schema, "nope")
    with pytest.raises(InvalidInputError, match=r"no column with vectors$"):
        resolve_vector_column(table, pa.schema([("id", pa.int64())]), None)
    two = pa.schema([schema.field("v"), schema.field("v").with_name("w")])
    with pytest.raises(InvalidInputError, match="several columns with vectors, v, w: name the one to search"):
        resolve_vector_column(table, two, None)


@pytest.mark.parametrize(
    ("search", "says"),
    [
        (VectorSearch(VECTOR[:3], 1, "v"), "vectors of 8 numbers, the one given has 3"),
        (VectorSearch(VECTOR, 0, "v"), "k is 0"),
        (VectorSearch(VECTOR, "ten", "v"), "k is 'ten', and has to be a whole number above 0"),  # type: ignore[arg-type]
        *(
            (
                VectorSearch(VECTOR, 1, "v", effort=SearchEffort(**{name: odd})),
                f"{name} is {odd!r}, and has to be a whole number",
            )
            for name in ("nprobes", "refine_factor", "ef")
            for odd in cast("Any", (0, -1, 1.5, "many", True))
        ),
        (VectorSearch(VECTOR, 10, "v", effort=SearchEffort(ef=9)), "ef is 9, and has to be k at least, which is 10"),
        (
            VectorSearch(VECTOR, 10, "v", effort=SearchEffort(None, 5, 20)),
            "ef is 20, and has to be k times refine_factor at least",
        ),
        (VectorSearch(VECTOR, 1, "id"), "column id holds int64, no vectors"),
        (VectorSearch(VECTOR, 1, "v", metric="furlong"), "furlong"),
        (VectorSearch(VECTOR, 1, "v", filter="nope = 1"), "nope"),
        (VectorSearch(VECTOR, 1, "v", columns=("nope",)), "nope"),
    ],
)
def test_what_is_wrong_is_said_before_reading(table: TableRef, search: VectorSearch, says: str) -> None:
    with pytest.raises(LanceNamespaceError, match=says):
        search.check(table, table.open())
