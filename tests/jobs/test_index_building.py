from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import lance
import pyarrow as pa
import pytest
from lance_namespace.errors import (
    ConcurrentModificationError,
    InvalidInputError,
    LanceNamespaceError,
    TableColumnNotFoundError,
    TableIndexAlreadyExistsError,
    TableIndexNotFoundError,
    TableNotFoundError,
)

from lancehouse.jobs.address import TableAddress
from lancehouse.jobs.engine import LocalEngine
from lancehouse.jobs.index_building import (
    BuiltIndex,
    IndexBuild,
    check_buildable,
    commit,
    create_index,
    execute,
    find_index,
    needs_model,
    optimize,
    plan,
    train,
)
from lancehouse.lake.dataset import TableRef
from tests.jobs.maintenance import Worn, worn_path
from tests.lake.folder import rows
from tests.lake.test_removal import fill
from tests.servers.moto import Bucket

SPLIT: dict[str, Any] = {"tasks": 3, "rows_per_task": 1}

SCALAR: list[tuple[str, str, dict[str, Any], dict[str, Any]]] = [
    ("id", "BTREE", {}, {"filter": "id = 333"}),
    ("id", "scalar", {"zone_size": 50}, {"filter": "id > 333 and id < 340"}),
    ("b", "BITMAP", {}, {"filter": "b"}),
    ("l", "LABEL_LIST", {}, {"filter": "array_has_any(l, ['t1'])"}),
    ("s", "NGRAM", {}, {"filter": "contains(s, 'number 33')"}),
    ("id", "ZONEMAP", {"rows_per_zone": 50}, {"filter": "id = 333"}),
    ("id", "BLOOMFILTER", {"number_of_items": 100, "probability": 0.01}, {"filter": "id = 333"}),
]
VECTOR: list[tuple[str, str, int]] = [
    ("IVF_FLAT", "l2", 3),
    ("IVF_FLAT", "dot", 3),
    ("IVF_PQ", "l2", 3),
    ("IVF_PQ", "Cosine", 3),
    ("IVF_PQ", "dot", 1),
    ("IVF_SQ", "l2", 1),
    ("IVF_RQ", "l2", 3),
    ("IVF_HNSW_FLAT", "euclidean", 3),
    ("IVF_HNSW_PQ", "cosine", 3),
    ("IVF_HNSW_SQ", "l2", 1),
]
KINDS = [*((column, kind) for column, kind, _, _ in SCALAR), ("s", "FTS"), *(("v", kind) for kind, _, _ in VECTOR)]


@pytest.fixture
def fragments() -> tuple[int, int]:
    return 4, 100


def build_index(
    table: TableRef, column: str, kind: str, name: str | None = None, **how: Any
) -> tuple[IndexBuild, list[str]]:
    """A task, and the results of all."""
    tasks = plan(table, column, kind, name, **{**SPLIT, **how})
    model = train(table, tasks[0]) if needs_model(tasks) else None
    return tasks[0], [execute(table, task, model) for task in tasks]


def create(table: Worn, column: str, kind: str) -> BuiltIndex:
    """The whole job, which leaves nothing but the index."""
    return create_index(LocalEngine(3), table.address, column, kind, None, False, {"rows_per_task": 1})


def indices(table: Worn) -> dict[str, Any]:
    return {index.name: index for index in table.open().describe_indices()}


def covered_fragments(index: Any) -> list[int]:
    return sorted(fragment for segment in index.segments for fragment in segment.fragment_ids)


@pytest.mark.parametrize(("column", "kind", "params", "query"), SCALAR)
def test_values(plain: Worn, column: str, kind: str, params: dict[str, Any], query: dict[str, Any]) -> None:
    expected = plain.open().to_table(**query)
    made = commit(plain.ref, *build_index(plain.ref, column, kind, **params))
    assert made == BuiltIndex(plain.open().version, f"{column}_idx", 3)
    assert covered_fragments(indices(plain)[made.name]) == [0, 1, 2, 3]
    found = plain.open().scanner(**query)
    assert f"@{column}_idx" in found.explain_plan()
    assert found.to_table() == expected
    assert expected.num_rows > 0


def test_text(plain: Worn) -> None:
    commit(plain.ref, *build_index(plain.ref, "s", "INVERTED", with_position=True))
    found = plain.open().to_table(full_text_query="word3", columns=["id"])["id"].to_pylist()
    assert sorted(found) == list(range(3, 400, 7))
    assert indices(plain)["s_idx"].details["with_position"] is True


def test_beside_blobs_and_in_any_case(tmp_path: Path) -> None:
    fill(str(tmp_path / "t"))
    table = TableRef(str(tmp_path / "t"))
    commit(table, *build_index(table, "ID", "BITMAP", "other"))
    assert [index.field_names for index in table.open().describe_indices()] == [["id"], ["id"]]


def test_text_within_lists(tmp_path: Path) -> None:
    data = pa.table({"docs": [[{"text": "one"}, {"text": "two"}], [{"text": "three"}]]})
    lance.write_dataset(data, str(tmp_path / "t"))
    table = TableRef(str(tmp_path / "t"))
    commit(table, *build_index(table, "docs.text", "FTS"))
    assert [index.field_names for index in table.open().describe_indices()] == [["docs.item.text"]]


def test_places(tmp_path: Path) -> None:
    points = pa.StructArray.from_arrays([pa.array([1.0, 2.0]), pa.array([3.0, 4.0])], ["x", "y"])
    point = pa.field("at", points.type, metadata={"ARROW:extension:name": "geoarrow.point"})
    for mode in ("create", "append"):
        lance.write_dataset(pa.table([points], schema=pa.schema([point])), str(tmp_path / "t"), mode=mode)
    table = TableRef(str(tmp_path / "t"))
    commit(table, *build_index(table, "at", "RTREE"))
    assert [covered_fragments(index) for index in table.open().describe_indices()] == [[0, 1]]


def test_through_a_catalog(worn_table: Worn) -> None:
    assert create(worn_table, "id", "BTREE").version == 5
    assert create(worn_table, "v", "IVF_FLAT").version == 6
    assert worn_table.open().to_table(filter="id = 333", columns=["id"]) == pa.table({"id": [333]})
    worn_table.check()
    assert worn_table.files("_staging") == set()


# Vectors

WIDTH = 16


def vectors(count: int, spread: float, seed: int) -> pa.Table:
    random = Random(seed)
    numbers = pa.array((random.gauss(spread, spread) for _ in range(count * WIDTH)), pa.float32())
    ids = pa.array(range(seed * count, (seed + 1) * count), pa.int64())
    return pa.table({"id": ids, "v": pa.FixedSizeListArray.from_arrays(numbers, WIDTH)})


@pytest.fixture(scope="module")
def uneven(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Vectors whose fragments do not look alike: what is trained for one fits none of the others."""
    folder = str(tmp_path_factory.mktemp("uneven") / "t")
    for seed, spread in enumerate((1.0, 3.0, 9.0)):
        lance.write_dataset(vectors(300, spread, seed), folder, mode="append" if seed else "create")
    return folder


def found_by(dataset: lance.LanceDataset, metric: str, **how: Any) -> set[tuple[int, int]]:
    """The ten nearest to each of some vectors."""
    queries = dataset.to_table(filter="id % 50 = 7", columns=["v"])["v"].to_pylist()
    found = set()
    for number, query in enumerate(queries):
        nearest = {"column": "v", "q": query, "k": 10, "metric": metric, "nprobes": 4, **how}
        ids = dataset.to_table(columns=["id", "_distance"], nearest=nearest)["id"].to_pylist()
        found |= {(number, id_) for id_ in ids}
    return found


@pytest.mark.parametrize(("kind", "metric", "pieces"), VECTOR)
def test_recall(uneven: str, kind: str, metric: str, pieces: int) -> None:
    table, plainly = TableRef(uneven), metric.lower().replace("euclidean", "l2")
    exact = found_by(table.open(), plainly, use_index=False)
    params: dict[str, Any] = {"metric": metric, "num_partitions": 4}
    if kind.endswith("PQ"):
        params["num_sub_vectors"] = 8

    build, results = build_index(table, "v", kind, name="ours", replace=True, **params)
    assert len(results) == pieces
    commit(table, build, results)
    assert "name=ours" in table.open().scanner(nearest={"column": "v", "q": [0.0] * WIDTH, "k": 3}).explain_plan()
    ours = found_by(table.open(), plainly)
    table.open().drop_index("ours")

    table.open().create_index("v", kind, name="theirs", **params)
    theirs = found_by(table.open(), plainly)
    table.open().drop_index("theirs")

    recall = [len(found & exact) / len(exact) for found in (ours, theirs)]
    assert recall[0] > recall[1] - 0.1, recall


def test_defaults_of_vectors(uneven: str) -> None:
    table = TableRef(uneven)
    commit(table, *build_index(table, "v", "vector", name="ours", target_partition_size=100))
    [stats] = [table.open().stats.index_stats("ours")]
    details = next(index for index in table.open().describe_indices() if index.name == "ours").details
    table.open().drop_index("ours")
    assert [segment["num_partitions"] for segment in stats["indices"]] == [9, 9, 9]
    assert details["compression"]["num_sub_vectors"] == 1


def test_vectors_of_other_types(tmp_path: Path) -> None:
    numbers = [[float(number * number % 101 % 7) for number in range(row, row + WIDTH)] for row in range(300)]
    data = pa.table(
        {
            "half": pa.array(numbers, pa.list_(pa.float16(), WIDTH)),
            "byte": pa.array(numbers, pa.list_(pa.float32(), WIDTH)).cast(pa.list_(pa.uint8(), WIDTH)),
            "many": pa.array([[each, each] for each in numbers], pa.list_(pa.list_(pa.float32(), WIDTH))),
            "inner": pa.array([{"a.b": each} for each in numbers], pa.struct([("a.b", pa.list_(pa.float64(), WIDTH))])),
        }
    )
    for mode in ("create", "append"):
        lance.write_dataset(data, str(tmp_path / "t"), mode=mode)
    table = TableRef(str(tmp_path / "t"))
    commit(table, *build_index(table, "half", "IVF_PQ", "half", num_sub_vectors=4))
    commit(table, *build_index(table, "byte", "IVF_FLAT", "byte", metric="hamming"))
    commit(table, *build_index(table, "many", "IVF_PQ", "many", metric="cosine"))
    commit(table, *build_index(table, "inner.`a.b`", "IVF_FLAT", "inner"))
    made = {index.name: (len(index.segments), index.num_rows_indexed) for index in table.open().describe_indices()}
    assert made == dict.fromkeys(("half", "byte", "many", "inner"), (2, 600))


def test_in_a_store(s3: Bucket) -> None:
    location = f"{s3.uri}/a b/t"
    for number in range(2):
        data = vectors(300, 1.0, number)
        mode = "append" if number else "create"
        lance.write_dataset(data, location, mode=mode, storage_options=dict(s3.options))
    table = TableRef(location, s3.options)
    address = TableAddress(path=location, storage_options=tuple(s3.options.items()))
    built = create_index(LocalEngine(2), address, "v", "IVF_PQ", None, False, {"num_partitions": 2, "rows_per_task": 1})
    assert built.segments == 2
    assert s3.keys("a b/t/_staging/") == []
    assert table.open().describe_indices()[0].num_rows_indexed == 600


# Beside others

HARMLESS: dict[str, Callable[[Worn], object]] = {
    "append": lambda t: t.append(rows(10, 1000)),
    "delete": lambda t: t.open().delete("id < 150"),
    "update": lambda t: t.open().update({"id": "id + 1000"}, "id = 3"),
    "another index": lambda t: t.open().create_scalar_index("b", "BITMAP"),
}
IN_THE_WAY: dict[str, Callable[[Worn], object]] = {
    "compaction": lambda t: t.open().optimize.compact_files(),
    "overwrite": lambda t: lance.write_dataset(rows(400, 5000), t.open(), mode="overwrite"),
    "same name": lambda t: t.open().create_scalar_index("b", "BITMAP", name="id_idx"),
    "other type": lambda t: t.open().alter_columns({"path": "id", "data_type": pa.int32()}),
    "no column": lambda t: t.open().drop_columns(["id"]),
}


@pytest.mark.parametrize("change", HARMLESS)
def test_changes_that_do_not_matter(worn_table: Worn, change: str) -> None:
    built = build_index(worn_table.ref, "id", "BTREE")
    HARMLESS[change](worn_table)
    expected = {key: worn_table.open().to_table(filter=f"id = {key}") for key in (3, 33, 333, 1003)}
    assert commit(worn_table.ref, *built).version == worn_table.open().version
    assert {key: worn_table.open().to_table(filter=f"id = {key}") for key in expected} == expected
    assert "@id_idx" in worn_table.open().scanner(filter="id = 333").explain_plan()
    worn_table.check()


@pytest.mark.parametrize("change", IN_THE_WAY)
def test_changes_that_do(worn_table: Worn, change: str) -> None:
    built = build_index(worn_table.ref, "id", "BTREE")
    IN_THE_WAY[change](worn_table)
    expected = worn_table.open().to_table()
    with pytest.raises(ConcurrentModificationError, match=r"plan .* again") as raised:
        commit(worn_table.ref, *built)
    assert raised.value.code == 14
    assert worn_table.open().to_table() == expected


# What there is


def test_replacing(plain: Worn) -> None:
    plain.open().create_scalar_index("id", "BITMAP")
    with pytest.raises(TableIndexAlreadyExistsError, match="id_idx"):
        plan(plain.ref, "id", "BTREE")
    commit(plain.ref, *build_index(plain.ref, "id", "BTREE", replace=True))
    [index] = indices(plain).values()
    assert (index.index_type, index.num_rows_indexed, len(index.segments)) == ("BTree", 400, 3)
    with pytest.raises(InvalidInputError, match="one of id, not of s"):
        plan(plain.ref, "s", "BTREE", "id_idx", replace=True)


@pytest.mark.parametrize(("column", "kind"), sorted(set(KINDS) - {("b", "BITMAP")}))
def test_no_rows(tmp_path: Path, column: str, kind: str) -> None:
    table = Worn(TableRef(str(tmp_path / "t")), tmp_path / "t")
    lance.write_dataset(rows(0), str(tmp_path / "t"))
    commit(table.ref, *build_index(table.ref, column, kind))
    assert indices(table)[f"{column}_idx"].num_rows_indexed == 0
    table.append(rows(300))
    optimize(table.ref)
    assert indices(table)[f"{column}_idx"].num_rows_indexed == 300


def test_a_branch(worn_table: Worn) -> None:
    worn_table.open().create_scalar_index("id", "BTREE")
    worn_table.open().create_branch("side")
    side = replace(worn_table, ref=replace(worn_table.ref, branch="side"))
    side.append(rows(100, 1000))
    commit(side.ref, *build_index(side.ref, "id", "BTREE", replace=True))
    commit(side.ref, *build_index(side.ref, "v", "IVF_FLAT", tasks=1))
    assert {name: covered_fragments(index) for name, index in indices(side).items()} == {
        "id_idx": [0, 1, 2, 3, 4],
        "v_idx": [0, 1, 2, 3, 4],
    }
    assert side.open().to_table(filter="id = 1003", columns=["id"]) == pa.table({"id": [1003]})
    assert len({Path(file).parent for file in side.files("tree/side/_indices")}) == 4
    assert side.files("_staging") == set()
    assert covered_fragments(indices(worn_table)["id_idx"]) == [0, 1, 2, 3]


def test_tasks_of_similar_size(tmp_path: Path) -> None:
    for number, size in enumerate((100, 10, 20, 70, 10)):
        mode = "append" if number else "create"
        lance.write_dataset(rows(size, number * 1000), str(tmp_path / "t"), mode=mode)
    table = TableRef(str(tmp_path / "t"))
    parts = [task.fragments for task in plan(table, "id", "BTREE", tasks=2, rows_per_task=1)]
    assert sorted(parts) == [[0, 1], [2, 3, 4]]
    assert len(plan(table, "id", "BTREE", tasks=9, rows_per_task=100)) == 2
    assert len(plan(table, "id", "BTREE")) == 1


# What cannot be

REFUSED: list[tuple[str, str, dict[str, Any], type[LanceNamespaceError]]] = [
    ("id", "FOO", {}, InvalidInputError),
    ("zz", "BTREE", {}, TableColumnNotFoundError),
    ("zz", "IVF_PQ", {}, TableColumnNotFoundError),
    ("zz", "FTS", {}, TableColumnNotFoundError),
    ("s.zz", "FTS", {}, InvalidInputError),
    ("id", "IVF_FLAT", {}, InvalidInputError),
    ("l", "IVF_FLAT", {}, InvalidInputError),
    ("v", "BTREE", {}, InvalidInputError),
    ("v", "BITMAP", {}, InvalidInputError),
    ("id", "LABEL_LIST", {}, InvalidInputError),
    ("id", "NGRAM", {}, InvalidInputError),
    ("id", "FTS", {}, InvalidInputError),
    ("b", "BLOOMFILTER", {}, InvalidInputError),
    ("id", "RTREE", {}, InvalidInputError),
    ("id", "BTREE", {"zz": 1}, InvalidInputError),
    ("id", "ZONEMAP", {"rows_per_zone": "many"}, InvalidInputError),
    ("id", "BLOOMFILTER", {"probability": 7}, InvalidInputError),
    ("s", "FTS", {"zz": 1}, InvalidInputError),
    ("s", "FTS", {"base_tokenizer": "zz"}, InvalidInputError),
    ("s", "FTS", {"language": "Klingon"}, InvalidInputError),
    ("s", "FTS", {"with_position": "yes"}, InvalidInputError),
    ("v", "IVF_FLAT", {"zz": 1}, InvalidInputError),
    ("v", "IVF_FLAT", {"metric": "zz"}, InvalidInputError),
    ("v", "IVF_FLAT", {"metric": "hamming"}, InvalidInputError),
    ("v", "IVF_FLAT", {"num_partitions": 0}, InvalidInputError),
    ("v", "IVF_FLAT", {"num_partitions": 401}, InvalidInputError),
    ("v", "IVF_FLAT", {"num_partitions": "many"}, InvalidInputError),
    ("v", "IVF_FLAT", {"num_sub_vectors": 2}, InvalidInputError),
    ("v", "IVF_PQ", {"num_sub_vectors": 3}, InvalidInputError),
    ("v", "IVF_PQ", {"num_bits": 5}, InvalidInputError),
    ("v", "IVF_RQ", {"num_bits": 10}, InvalidInputError),
    ("v", "IVF_HNSW_SQ", {"m": 1}, InvalidInputError),
    ("v", "IVF_HNSW_SQ", {"ef_construction": 5}, InvalidInputError),
]


@pytest.mark.parametrize(("column", "kind", "params", "expected"), REFUSED)
def test_refusals(
    plain: Worn, column: str, kind: str, params: dict[str, Any], expected: type[LanceNamespaceError]
) -> None:
    before = plain.files(".")
    with pytest.raises(LanceNamespaceError) as raised:
        plan(plain.ref, column, kind, **params)
    assert type(raised.value) is expected, raised.value
    assert ".rs:" not in str(raised.value)
    assert plain.files(".") == before


def test_too_few_rows(tmp_path: Path) -> None:
    table = worn_path(tmp_path / "t", 2, 100)
    with pytest.raises(InvalidInputError, match=r"has 200 rows; .* at least 256"):
        plan(table.ref, "v", "IVF_PQ")
    lance.write_dataset(rows(0), str(tmp_path / "empty"))
    with pytest.raises(InvalidInputError, match="no rows yet"):
        plan(TableRef(str(tmp_path / "empty")), "b", "BITMAP")


def test_what_cannot_be_indexed(plain: Worn, tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match="not one of its versions"):
        plan(replace(plain.ref, version=1), "id", "BTREE")
    with pytest.raises(TableNotFoundError):
        plan(TableRef(str(tmp_path / "none")), "id", "BTREE")


# Afterwards


def test_optimizing(worn_table: Worn) -> None:
    create(worn_table, "id", "BTREE")
    create(worn_table, "v", "IVF_PQ")
    worn_table.append(rows(300, 1000))
    assert optimize(worn_table.ref, ["id_idx"]) == worn_table.open().version
    assert {name: index.num_rows_indexed for name, index in indices(worn_table).items()} == {
        "id_idx": 700,
        "v_idx": 400,
    }
    optimize(worn_table.ref)
    assert {name: index.num_rows_indexed for name, index in indices(worn_table).items()} == {
        "id_idx": 700,
        "v_idx": 700,
    }
    worn_table.check()


def test_optimizing_into_one_segment(plain: Worn) -> None:
    commit(plain.ref, *build_index(plain.ref, "v", "IVF_FLAT"))
    optimize(plain.ref, ["v_idx"], retrain=True)
    assert len(indices(plain)["v_idx"].segments) == 1


def test_optimizing_what_is_not_there(plain: Worn) -> None:
    with pytest.raises(TableIndexNotFoundError, match="zz"):
        optimize(plain.ref, ["zz"])
    assert optimize(plain.ref) == plain.open().version


def test_what_is_known_of_an_index(tmp_path: Path) -> None:
    table = TableRef(str(tmp_path / "t"))
    lance.write_dataset(pa.table({"id": [1, 2], "text": ["a", "b"]}), table.location)
    assert find_index(table, "text_idx") is None
    table.open().create_scalar_index("text", "INVERTED")
    lance.write_dataset(pa.table({"id": [3], "text": ["c"]}), table.location, mode="append")
    found = find_index(table, "text_idx")
    assert found is not None
    assert (found.columns, found.unindexed) == (("text",), 1)
    assert found.is_same_kind("text", "fts")
    assert found.is_same_kind("text", "inverted")
    assert not found.is_same_kind("text", "BTREE")
    assert not found.is_same_kind("id", "FTS")


@pytest.mark.parametrize(
    ("column", "kind", "params", "says"),
    [
        ("id", "BTREE", {}, None),
        ("id", "BITMAP", {}, None),
        ("v", "IVF_PQ", {"num_partitions": 4000}, None),
        ("nope", "BTREE", {}, "no column nope"),
        ("id", "IVF_PQ", {}, "fixed-size lists"),
        ("v", "IVF_PQ", {"num_sub_vectors": 3}, "cannot have an index IVF_PQ"),
        ("id", "TREE", {}, "did you mean RTREE"),
    ],
)
def test_an_index_of_a_table_that_is_not_there_yet(
    column: str, kind: str, params: dict[str, Any], says: str | None
) -> None:
    schema = pa.schema([("id", pa.int64()), ("v", pa.list_(pa.float32(), 8))])
    if says is None:
        check_buildable(TableRef("memory://"), schema, column, kind, "i", params)
        return
    with pytest.raises(LanceNamespaceError, match=says):
        check_buildable(TableRef("memory://"), schema, column, kind, "i", params)
