"""Each query is put to our operations and to pylance's own, over the same rows."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from lance_namespace import (
    AnalyzeTableQueryPlanRequest,
    CreateTableBranchRequest,
    CreateTableIndexRequest,
    CreateTableRequest,
    DeleteFromTableRequest,
    ExplainTableQueryPlanRequest,
    InvalidInputError,
    LanceNamespace,
    LanceNamespaceError,
    QueryTableRequest,
    TableBranchNotFoundError,
    TableColumnNotFoundError,
    TableVersionNotFoundError,
    connect,
)

from tests.lake.folder import DIMENSION, FolderNamespace, rows, stream

VECTOR = [0.1 * i for i in range(DIMENSION)]
ID = {"column_names": ["id"]}
Question = dict[str, Any]


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[FolderNamespace, LanceNamespace]]:
    """Our namespace and pylance's own, with the same table and indices, and without stable row ids in both."""
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("LANCEHOUSE_STABLE_ROW_IDS", "false")
        yield _make_pair(tmp_path_factory)


def _make_pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[FolderNamespace, LanceNamespace]:
    ours = FolderNamespace(tmp_path_factory.mktemp("ours"))
    native = connect("dir", {"root": str(tmp_path_factory.mktemp("dir"))})
    for namespace in (ours, native):
        namespace.create_table(CreateTableRequest(id=["t"]), stream(rows()))
        for column, kind in (("s", "FTS"), ("id", "BTREE")):
            namespace.create_table_index(
                CreateTableIndexRequest(id=["t"], column=column, index_type=kind, with_position=True)
            )
        namespace.delete_from_table(DeleteFromTableRequest(id=["t"], predicate="id = 3"))
    return ours, native


def run_query(namespace: LanceNamespace, question: Question) -> pa.Table:
    request = QueryTableRequest.from_dict({"id": ["t"], "k": 3, "vector": {}, **question})
    assert request is not None
    data = namespace.query_table(request).data
    assert isinstance(data, bytes)
    return pa.ipc.open_file(data).read_all()


def nearest(**more: Any) -> Question:
    return {"vector": {"single_vector": VECTOR}, "vector_column": "v", "columns": ID, **more}


def text(query: Question, **more: Any) -> Question:
    return {"full_text_query": {"structured_query": {"query": query}}, "columns": ID, "k": 300, **more}


def match(terms: str, **more: Any) -> Question:
    return {"match": {"terms": terms, "column": "s", **more}}


SAME: dict[str, Question] = {
    "scan": {},
    "scan all": {"k": 0},
    "scan on": {"offset": 5},
    "scan, filter": {"filter": "id > 100"},
    "scan, empty vector": {"vector": {"single_vector": []}},
    "scan, no vectors": {"vector": {"multi_vector": []}},
    "columns": {"columns": {"column_names": ["s", "id"]}},
    "columns, none": {"columns": {"column_names": []}},
    "aliases": {"columns": {"column_aliases": {"x": "id", "y": "s"}}},
    "aliases, expression": {"columns": {"column_aliases": {"x": "id + 1"}}},
    "names and aliases": {"columns": {"column_names": ["s"], "column_aliases": {"x": "id"}}},
    "row ids": {"columns": ID, "with_row_id": True},
    "version": {"version": 1, "k": 0, "columns": ID},
    "nearest": nearest(columns=None),
    "nearest, k": nearest(k=7),
    "nearest, no k": nearest(k=0),
    "nearest, filter": nearest(filter="id < 50"),
    "nearest, filter first": nearest(filter="id < 50", prefilter=True),
    "nearest, filter later": nearest(filter="id < 250", prefilter=False, k=9),
    "nearest, cosine": nearest(distance_type="cosine"),
    "nearest, dot": nearest(distance_type="Dot"),
    "nearest, bounds": nearest(lower_bound=0.5, upper_bound=0.8, k=300),
    "nearest, from": nearest(lower_bound=1, k=300),
    "nearest, aliases": nearest(columns={"column_aliases": {"x": "id"}}),
    "nearest, distance": nearest(columns={"column_names": ["_distance", "id"]}),
    "nearest, knobs": nearest(nprobes=5, ef=50, refine_factor=2, bypass_vector_index=True),
    "nearest, indexed only": nearest(fast_search=True),
    "words": {"full_text_query": {"string_query": {"query": "word1"}}, "columns": ID, "k": 300},
    "words, columns": {"full_text_query": {"string_query": {"query": "word1", "columns": ["s"]}}, "k": 300},
    "words, filter": {"full_text_query": {"string_query": {"query": "word1"}}, "filter": "id < 100", "k": 300},
    "match": text(match("word1")),
    "match, any": text(match("word1 word2")),
    "match, all": text(match("word1 8", operator="And")),
    "match, misspelt": text(match("wrd1")),
    "match, fuzzy": text(match("wrd1", fuzziness=2, max_expansions=10, prefix_length=1, boost=2.0)),
    "match, everywhere": text({"match": {"terms": "word1"}}),
    "phrase": text({"phrase": {"terms": "text number", "column": "s", "slop": 1}}),
    "phrase, everywhere": text({"phrase": {"terms": "text number"}}),
    "boost": text({"boost": {"positive": match("word1"), "negative": match("8"), "negative_boost": 0.2}}),
    "multi_match": text({"multi_match": {"match_queries": [{"terms": "word1", "column": "s"}]}}),
    "boolean": text({"boolean": {"must": [match("word1")], "must_not": [match("8")], "should": [match("15")]}}),
}


@pytest.mark.parametrize("question", SAME.values(), ids=SAME)
def test_the_same_answer(pair: tuple[FolderNamespace, LanceNamespace], question: Question) -> None:
    ours, native = (run_query(namespace, question) for namespace in pair)
    native = native.select(ours.column_names)  # pylance's own has aliases in any order
    assert ours.schema == native.schema
    score = [name for name in ours.column_names if name in ("_score", "_distance")]
    keys = score + [name for name in ours.column_names if name not in (*score, "v", "l")]
    if question.get("full_text_query"):  # equal scores come in any order
        ours, native = (answer.sort_by([(key, "ascending") for key in keys]) for answer in (ours, native))
    assert ours.to_pylist() == native.to_pylist()


def test_what_is_asked_is_answered(pair: tuple[FolderNamespace, LanceNamespace]) -> None:
    """The table above compares; here the answers are known."""
    ours, _ = pair
    assert run_query(ours, {"offset": 2})["id"].to_pylist() == [2, 4, 5]
    assert run_query(ours, {"k": 0}).num_rows == 299
    assert run_query(ours, {"k": 0, "version": 1}).num_rows == 300
    assert run_query(ours, text(match("word1"))).num_rows == 43
    exact = {"vector": {"single_vector": rows()["v"][17].as_py()}, "vector_column": "v", "k": 1}
    assert run_query(ours, exact)["id"].to_pylist() == [17]


def test_offset_skips_and_does_not_shorten(pair: tuple[FolderNamespace, LanceNamespace]) -> None:
    ours, _ = pair
    first, rest = run_query(ours, nearest(k=2)), run_query(ours, nearest(k=3, offset=2))
    assert first["id"].to_pylist() + rest["id"].to_pylist() == run_query(ours, nearest(k=5))["id"].to_pylist()
    words = run_query(ours, text(match("word1"), k=4, offset=3))
    assert words.num_rows == 4


def test_several_vectors(pair: tuple[FolderNamespace, LanceNamespace]) -> None:
    ours, _ = pair
    other = VECTOR[::-1]
    answer = run_query(ours, nearest(vector={"multi_vector": [VECTOR, other]}))
    assert answer["query_index"].to_pylist() == [0, 0, 0, 1, 1, 1]
    singles = [run_query(ours, nearest(vector={"single_vector": each}))["id"].to_pylist() for each in (VECTOR, other)]
    assert answer["id"].to_pylist() == singles[0] + singles[1]
    with pytest.raises(InvalidInputError):
        run_query(ours, nearest(vector={"multi_vector": [VECTOR, other]}, offset=1))


def test_the_only_vector_column_needs_no_name(pair: tuple[FolderNamespace, LanceNamespace]) -> None:
    ours, _ = pair
    unnamed = {key: value for key, value in nearest().items() if key != "vector_column"}
    assert run_query(ours, unnamed) == run_query(ours, nearest())


def test_of_several_vector_columns_the_usual_name(ours: FolderNamespace) -> None:
    vectors = rows(9)["v"]
    data = pa.table({"id": rows(9)["id"], "vector": vectors, "other": vectors})
    ours.create_table(CreateTableRequest(id=["t"]), stream(data))
    assert run_query(ours, {"vector": {"single_vector": vectors[4].as_py()}, "k": 1})["id"].to_pylist() == [4]


def test_words_of_several_columns(ours: FolderNamespace) -> None:
    data = pa.table({"id": [1, 2, 3], "a": ["lance", "spear", "x"], "b": ["spear", "lance", "y"]})
    ours.create_table(CreateTableRequest(id=["t"]), stream(data))
    for column in ("a", "b"):
        ours.create_table_index(CreateTableIndexRequest(id=["t"], column=column, index_type="FTS"))
    queries: list[Question] = [
        {"match": {"terms": "lance"}},
        {"match": {"terms": "spaar", "fuzziness": 1}},
        {"multi_match": {"match_queries": [{"terms": "lance", "column": "a"}, {"terms": "lance", "column": "b"}]}},
        {"multi_match": {"match_queries": [{"terms": "lance", "column": "a"}, {"terms": "spear", "column": "a"}]}},
    ]
    for query in queries:
        assert set(run_query(ours, text(query))["id"].to_pylist()) == {1, 2}, query


def test_a_branch(ours: FolderNamespace, table: list[str]) -> None:
    ours.create_table_branch(CreateTableBranchRequest(id=table, name="side"))
    ours.delete_from_table(DeleteFromTableRequest(id=table, branch="side", predicate="id > 9"))
    assert run_query(ours, {"branch": "side", "k": 0}).num_rows == 10
    assert run_query(ours, {"branch": "side", "version": 1, "k": 0}).num_rows == 300


@pytest.mark.parametrize(
    ("question", "expected"),
    [
        ({"version": 99}, TableVersionNotFoundError),
        ({"branch": "none"}, TableBranchNotFoundError),
        ({"columns": {"column_names": ["zz"]}}, TableColumnNotFoundError),
        ({"filter": "zz = 1"}, TableColumnNotFoundError),
        ({"filter": "id ==== 1"}, InvalidInputError),
        ({"filter": "id > 1 LIMIT 1"}, InvalidInputError),
        (nearest(filter="id > 1) LIMIT 1 --"), InvalidInputError),
        (nearest(vector_column="zz"), TableColumnNotFoundError),
        (nearest(vector_column="id"), InvalidInputError),
        (nearest(vector={"single_vector": [1.0]}), InvalidInputError),
        (nearest(vector={"multi_vector": [VECTOR, [1.0]]}), InvalidInputError),
        (nearest(vector={"multi_vector": [[]]}), InvalidInputError),
        (nearest(vector={"multi_vector": [VECTOR, []]}), InvalidInputError),
        (nearest(distance_type="zz"), InvalidInputError),
        (nearest(minimum_nprobes=3, maximum_nprobes=2), InvalidInputError),
        (text(match("a", operator="xor")), InvalidInputError),
        (text({"match": {"terms": "a", "column": "zz"}}), TableColumnNotFoundError),
        (text({}), InvalidInputError),
        (text({"multi_match": {"match_queries": []}}), InvalidInputError),
        ({"full_text_query": {}}, InvalidInputError),
        ({**text(match("word1")), **nearest()}, InvalidInputError),
    ],
    ids=str,
)
def test_what_cannot_be_asked(
    pair: tuple[FolderNamespace, LanceNamespace], question: Question, expected: type[Exception]
) -> None:
    with pytest.raises(LanceNamespaceError) as raised:
        run_query(pair[0], question)
    assert type(raised.value) is expected, raised.value


def test_words_without_an_index(ours: FolderNamespace, table: list[str]) -> None:
    with pytest.raises(InvalidInputError):
        run_query(ours, text({"match": {"terms": "word1"}}))
    assert run_query(ours, text(match("word1"))).num_rows == 43


def test_probes(ours: FolderNamespace, table: list[str]) -> None:
    ours.create_table_index(
        CreateTableIndexRequest(id=table, column="v", index_type="IVF_FLAT", num_partitions=8, distance_type="l2")
    )
    everything = run_query(ours, nearest(k=300, nprobes=8)).num_rows
    few = run_query(ours, nearest(k=300, minimum_nprobes=1, maximum_nprobes=1)).num_rows
    assert everything == 300
    assert few < 300
    assert run_query(ours, nearest(k=300, nprobes=8, maximum_nprobes=1)).num_rows == few  # nprobes is ignored then
    assert run_query(ours, nearest(k=300, maximum_nprobes=1, bypass_vector_index=True)).num_rows == 300


def plan(text: str) -> list[str]:
    """The steps of a plan without their arguments."""
    return [line.split(":")[0].strip().split(",")[0] for line in text.splitlines() if line.strip()]


@pytest.mark.parametrize("verbose", [False, True])
def test_plans(pair: tuple[FolderNamespace, LanceNamespace], verbose: bool) -> None:
    query = QueryTableRequest.from_dict({"k": 3, **nearest(filter="id < 100")})
    assert query is not None
    request = ExplainTableQueryPlanRequest(id=["t"], query=query, verbose=verbose)
    ours, native = (namespace.explain_table_query_plan(request) for namespace in pair)
    assert plan(ours) == plan(native)
    assert len(plan(ours)) > 2


def test_analysis(pair: tuple[FolderNamespace, LanceNamespace]) -> None:
    request = AnalyzeTableQueryPlanRequest.from_dict({"id": ["t"], "k": 3, "vector": {}, "filter": "id < 100"})
    assert request is not None
    ours, native = (namespace.analyze_table_query_plan(request) for namespace in pair)
    assert plan(ours) == plan(native)
    assert "output_rows=3" in ours


def test_a_plan_of_a_branch(ours: FolderNamespace, table: list[str]) -> None:
    ours.create_table_branch(CreateTableBranchRequest(id=table, name="side"))
    query = QueryTableRequest.from_dict({"k": 3, "vector": {}, "branch": "none"})
    assert query is not None
    assert "LanceRead" in ours.explain_table_query_plan(
        ExplainTableQueryPlanRequest(id=table, query=query, branch="side")
    )
    with pytest.raises(TableBranchNotFoundError):
        ours.explain_table_query_plan(ExplainTableQueryPlanRequest(id=table, query=query))


@pytest.mark.parametrize(
    ("question", "columns"),
    [
        ({}, ["id", "s", "v"]),
        ({"columns": {"column_names": ["id", "_lancehouse_v"]}}, ["id", "_lancehouse_v"]),
        ({"with_row_id": True}, ["id", "s", "v", "_rowid"]),
        ({"vector": {"single_vector": [0.0, 0.0]}}, ["id", "s", "v", "_distance"]),
        ({"vector": {"multi_vector": [[0.0, 0.0], [1.0, 1.0]]}}, ["query_index", "id", "s", "v", "_distance"]),
        ({"full_text_query": {"string_query": {"query": "a"}}}, ["id", "s", "v", "_score"]),
    ],
)
def test_what_lancehouse_keeps_beside_columns_is_read_by_its_name(
    tmp_path: Path, question: Question, columns: list[str]
) -> None:
    namespace = FolderNamespace(tmp_path)
    vectors = pa.array([[0.0, 1.0], [1.0, 0.0]], pa.list_(pa.float32(), 2))
    kept = {"v": vectors, "_lancehouse_v": ["x", "y"], "_lancehouse_source": [1, 2]}
    namespace.create_table(CreateTableRequest(id=["t"]), stream(pa.table({"id": [1, 2], "s": ["a", "a b"], **kept})))
    namespace.create_table_index(CreateTableIndexRequest(id=["t"], column="s", index_type="FTS"))
    assert run_query(namespace, question).column_names == columns
