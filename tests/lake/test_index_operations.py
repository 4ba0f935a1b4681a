from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import lance
import pyarrow as pa
import pytest
from lance_namespace import (
    CreateTableBranchRequest,
    CreateTableIndexRequest,
    CreateTableRequest,
    DeleteFromTableRequest,
    DescribeTableIndexStatsRequest,
    DescribeTableRequest,
    DropTableIndexRequest,
    GetTableStatsRequest,
    InsertIntoTableRequest,
    InvalidInputError,
    LanceNamespace,
    LanceNamespaceError,
    ListTableIndicesRequest,
    TableBranchNotFoundError,
    TableColumnNotFoundError,
    TableIndexAlreadyExistsError,
    TableIndexNotFoundError,
)

from lancehouse.lake.operations import default_sub_vectors
from tests.lake.folder import FolderNamespace, rows, stream

Both = tuple[LanceNamespace, list[str]]


def index(namespace: LanceNamespace, table: list[str], column: str, kind: str, **options: Any) -> str | None:
    request = CreateTableIndexRequest(id=table, column=column, index_type=kind, **options)
    return namespace.create_table_index(request).transaction_id


def list_indices(namespace: LanceNamespace, table: list[str], **at: Any) -> dict[str, Any]:
    found = namespace.list_table_indices(ListTableIndicesRequest(id=table, **at)).indexes
    return {each.index_name: each for each in found}


KINDS = [
    ("id", "BTREE", "BTree"),
    ("id", "btree", "BTree"),
    ("id", "Scalar", "BTree"),
    ("b", "BITMAP", "Bitmap"),
    ("l", "LABEL_LIST", "LabelList"),
    ("s", "NGRAM", "NGram"),
    ("id", "ZONEMAP", "ZoneMap"),
    ("id", "BLOOMFILTER", "BloomFilter"),
    ("s", "FTS", "Inverted"),
    ("s", "INVERTED", "Inverted"),
    ("v", "IVF_FLAT", "IVF_FLAT"),
    ("v", "IVF_SQ", "IVF_SQ"),
    ("v", "IVF_RQ", "IVF_RQ"),
    ("v", "IVF_HNSW_FLAT", "IVF_HNSW_FLAT"),
    ("v", "IVF_HNSW_SQ", "IVF_HNSW_SQ"),
]


@pytest.mark.parametrize(("column", "kind", "shown"), KINDS)
def test_kinds(both: Both, column: str, kind: str, shown: str) -> None:
    namespace, table = both
    assert index(namespace, table, column, kind)
    content = list_indices(namespace, table)[f"{column}_idx"]
    assert (content.index_type, content.columns, content.status) == (shown, [column], "SUCCEEDED")
    assert (content.num_indexed_rows, content.num_unindexed_rows, content.num_segments) == (300, 0, 1)
    assert content.type_url.startswith("/lance.")
    assert content.created_at is not None
    assert content.size_bytes > 0
    assert isinstance(json.loads(content.index_details), dict)


@pytest.mark.parametrize("kind", ["IVF_PQ", "IVF_HNSW_PQ", "vector"])
def test_quantized(ours: FolderNamespace, table: list[str], kind: str) -> None:
    # pylance's own namespace knows no other number of sub-vectors than 16, so it fails here
    index(ours, table, "v", kind, num_sub_vectors=2, num_bits=4, name="given", num_partitions=2)
    index(ours, table, "v", kind, name="default")
    parts = {name: json.loads(each.index_details)["compression"] for name, each in list_indices(ours, table).items()}
    assert {name: (each["num_sub_vectors"], each["num_bits"]) for name, each in parts.items()} == {
        "given": (2, 4),
        "default": (1, 8),
    }


@pytest.mark.parametrize(("dimension", "parts"), [(128, 8), (1536, 96), (24, 3), (8, 1), (7, 1)])
def test_sub_vectors(dimension: int, parts: int) -> None:
    assert default_sub_vectors(pa.list_(pa.float32(), dimension)) == parts
    assert default_sub_vectors(pa.list_(pa.list_(pa.float32(), dimension))) == parts


def test_options_of_vectors(ours: FolderNamespace, table: list[str]) -> None:
    options = {"num_partitions": 2, "m": 13, "ef_construction": 99, "sample_rate": 77, "max_iterations": 3}
    index(ours, table, "v", "IVF_HNSW_SQ", distance_type="cosine", **options)
    details = json.loads(list_indices(ours, table)["v_idx"].index_details)
    assert details["metric_type"] == "COSINE"
    assert (details["hnsw"]["max_connections"], details["hnsw"]["construction_ef"]) == (13, 99)
    hints = details["runtime_hints"]
    assert (hints["lance.ivf.sample_rate"], hints["lance.ivf.max_iters"]) == ("77", "3")


def test_options_of_text(both: Both) -> None:
    namespace, table = both
    options: dict[str, Any] = {
        "with_position": True,
        "base_tokenizer": "whitespace",
        "language": "French",
        "max_token_length": 20,
        "lower_case": False,
        "stem": False,
        "remove_stop_words": False,
        "ascii_folding": False,
    }
    index(namespace, table, "s", "FTS", **options)
    details = json.loads(list_indices(namespace, table)["s_idx"].index_details)
    assert {option: details[option] for option in options} == options


def test_scalar(both: Both) -> None:
    namespace, table = both
    request = CreateTableIndexRequest(id=table, column="id", index_type="BTREE")
    assert namespace.create_table_scalar_index(request).transaction_id
    with pytest.raises(InvalidInputError):
        namespace.create_table_scalar_index(CreateTableIndexRequest(id=table, column="v", index_type="IVF_FLAT"))


def test_rows_that_are_not_indexed(both: Both) -> None:
    namespace, table = both
    index(namespace, table, "v", "IVF_FLAT", distance_type="dot")
    namespace.delete_from_table(DeleteFromTableRequest(id=table, predicate="id < 10"))
    namespace.insert_into_table(InsertIntoTableRequest(id=table), stream(rows(40, 1000)))
    content = list_indices(namespace, table)["v_idx"]
    assert (content.num_indexed_rows, content.num_unindexed_rows) == (290, 40)
    stats = namespace.describe_table_index_stats(DescribeTableIndexStatsRequest(id=table, index_name="v_idx"))
    assert (stats.index_type, stats.num_indexed_rows, stats.num_unindexed_rows, stats.num_indices) == (
        "IVF_FLAT",
        290,
        40,
        1,
    )
    if isinstance(namespace, FolderNamespace):  # pylance's own does not tell
        assert stats.distance_type == "dot"


def test_segments(both: Both) -> None:
    namespace, table = both
    index(namespace, table, "id", "BTREE")
    namespace.insert_into_table(InsertIntoTableRequest(id=table), stream(rows(40, 1000)))
    location = namespace.describe_table(DescribeTableRequest(id=table)).location
    lance.dataset(location).optimize.optimize_indices(num_indices_to_merge=0)
    content = list_indices(namespace, table)["id_idx"]
    assert (content.num_indexed_rows, content.num_unindexed_rows, content.num_segments) == (340, 0, 2)


def test_pages_and_versions(both: Both) -> None:
    namespace, table = both
    for name in ("c", "a", "b"):
        index(namespace, table, "id", "BTREE", name=name)
    first = namespace.list_table_indices(ListTableIndicesRequest(id=table, limit=2))
    assert [each.index_name for each in first.indexes] == ["a", "b"]
    last = namespace.list_table_indices(ListTableIndicesRequest(id=table, limit=2, page_token=first.page_token))
    assert ([each.index_name for each in last.indexes], last.page_token) == (["c"], None)
    assert list(list_indices(namespace, table, version=2)) == ["c"]
    assert list_indices(namespace, table, version=1) == {}


def test_nested_columns(namespace: LanceNamespace) -> None:
    data = pa.table({"s": [{"a.b": 1, "c": 2}, {"a.b": 3, "c": 4}]})
    namespace.create_table(CreateTableRequest(id=["t"]), stream(data))
    index(namespace, ["t"], "s.c", "BTREE", name="plain")
    index(namespace, ["t"], "s.`a.b`", "BTREE", name="quoted")
    found = list_indices(namespace, ["t"])
    assert {name: each.columns for name, each in found.items()} == {"plain": ["s.c"], "quoted": ["s.`a.b`"]}


def test_drop(both: Both) -> None:
    namespace, table = both
    index(namespace, table, "id", "BTREE")
    assert namespace.drop_table_index(DropTableIndexRequest(id=table, index_name="id_idx")).transaction_id
    assert list_indices(namespace, table) == {}


def test_a_branch_has_its_own(ours: FolderNamespace, table: list[str]) -> None:
    ours.create_table_branch(CreateTableBranchRequest(id=table, name="side"))
    index(ours, table, "id", "BTREE", branch="side")
    assert (list(list_indices(ours, table)), list(list_indices(ours, table, branch="side"))) == ([], ["id_idx"])
    ours.drop_table_index(DropTableIndexRequest(id=table, index_name="id_idx", branch="side"))
    assert list_indices(ours, table, branch="side") == {}


def describe_stats(namespace: FolderNamespace, table: list[str], name: str | None) -> object:
    return namespace.describe_table_index_stats(DescribeTableIndexStatsRequest(id=table, index_name=name))


REFUSED: list[tuple[Callable[[FolderNamespace, list[str]], object], type[Exception]]] = [
    (lambda n, t: index(n, t, "id", "BTREE"), TableIndexAlreadyExistsError),
    (lambda n, t: index(n, t, "id", "FOO"), InvalidInputError),
    (lambda n, t: index(n, t, "zz", "BTREE"), TableColumnNotFoundError),
    (lambda n, t: index(n, t, "zz", "IVF_PQ"), TableColumnNotFoundError),
    (lambda n, t: index(n, t, "zz", "FTS"), TableColumnNotFoundError),
    (lambda n, t: index(n, t, "id", "IVF_PQ"), InvalidInputError),
    (lambda n, t: index(n, t, "v", "BTREE", name="x"), InvalidInputError),
    (lambda n, t: index(n, t, "id", "LABEL_LIST", name="x"), InvalidInputError),
    (lambda n, t: index(n, t, "id", "NGRAM", name="x"), InvalidInputError),
    (lambda n, t: index(n, t, "id", "FTS", name="x"), InvalidInputError),
    (lambda n, t: index(n, t, "v", "IVF_FLAT", distance_type="zz"), InvalidInputError),
    (lambda n, t: index(n, t, "v", "IVF_PQ", num_sub_vectors=3), InvalidInputError),
    (lambda n, t: index(n, t, "s", "FTS", base_tokenizer="zz"), InvalidInputError),
    (lambda n, t: index(n, t, "s", "FTS", language="Klingon"), InvalidInputError),
    (lambda n, t: index(n, t, "s", "FTS", branch="none"), TableBranchNotFoundError),
    (lambda n, t: describe_stats(n, t, "none"), TableIndexNotFoundError),
    (lambda n, t: describe_stats(n, t, None), InvalidInputError),
    (lambda n, t: n.drop_table_index(DropTableIndexRequest(id=t, index_name="none")), TableIndexNotFoundError),
    (lambda n, t: n.drop_table_index(DropTableIndexRequest(id=t)), InvalidInputError),
]


@pytest.mark.parametrize(("act", "expected"), REFUSED)
def test_what_cannot_be(
    ours: FolderNamespace,
    table: list[str],
    act: Callable[[FolderNamespace, list[str]], object],
    expected: type[Exception],
) -> None:
    index(ours, table, "id", "BTREE")
    with pytest.raises(LanceNamespaceError) as raised:
        act(ours, table)
    assert type(raised.value) is expected, raised.value


@pytest.mark.parametrize("sizes", [[300], [10, 20, 30, 45, 50, 99, 1000], [5, 4, 3, 2, 1]])
def test_statistics(namespace: LanceNamespace, sizes: list[int]) -> None:
    first, *more = sizes
    namespace.create_table(CreateTableRequest(id=["t"]), stream(rows(first)))
    for size in more:
        namespace.insert_into_table(InsertIntoTableRequest(id=["t"]), stream(rows(size)))
    index(namespace, ["t"], "id", "BTREE")
    stats = namespace.get_table_stats(GetTableStatsRequest(id=["t"])).to_dict()
    assert stats["total_bytes"] > 0
    ordered = sorted(sizes)
    assert (stats["num_rows"], stats["num_indices"]) == (sum(sizes), 1)
    assert stats["fragment_stats"] == {
        "num_fragments": len(sizes),
        "num_small_fragments": len(sizes),
        "lengths": {
            "min": ordered[0],
            "max": ordered[-1],
            "mean": sum(sizes) // len(sizes),
            **{f"p{p}": ordered[int(p / 100 * (len(sizes) - 1))] for p in (25, 50, 75, 99)},
        },
    }


def test_statistics_of_live_rows(ours: FolderNamespace, table: list[str]) -> None:
    ours.delete_from_table(DeleteFromTableRequest(id=table, predicate="id < 10"))
    stats = ours.get_table_stats(GetTableStatsRequest(id=table))
    assert (stats.num_rows, stats.fragment_stats.lengths.max) == (290, 290)
    ours.delete_from_table(DeleteFromTableRequest(id=table, predicate="true"))
    stats = ours.get_table_stats(GetTableStatsRequest(id=table))
    assert (stats.num_rows, stats.fragment_stats.num_fragments, stats.fragment_stats.num_small_fragments) == (0, 0, 0)
