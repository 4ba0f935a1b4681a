"""Search with Spark, by vectors, words or both: queries and parts of the table are spread over tasks."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import LongType, StructField, StructType

from lancehouse.jobs.address import PinnedVersion, TableAddress
from lancehouse.jobs.search import (
    TEXT,
    VECTOR,
    QuerySet,
    choose_table,
    parse_queries,
    parse_query_table,
    result_schema,
    split_found,
    to_result,
)
from lancehouse.lake.dataset import TableRef, VersionSelector
from lancehouse.lake.nearest_rows import Hits
from lancehouse.lake.scans import FragmentRange, estimate_bytes, split_fragments
from lancehouse.lake.search import (
    BLOCK_QUERIES,
    QUERY,
    Found,
    Queries,
    Search,
    SearchPiece,
    SearchPlan,
    find_hits,
    join_found,
    plan_search,
    rank_hits,
    read_ranked,
)
from lancehouse.lake.vector_search import (
    Hit,
    VectorSearch,
    best_hits,
    has_vector_index,
)
from lancehouse.schema.spark_rows import LanceToSpark, to_spark_rows
from lancehouse.spark.engine import Batches, collect_results, parallelism, run_in_tasks, translate_task_errors
from lancehouse.spark.session import to_local_frame, to_struct

FOUND = StructType().add("block", "integer").add("near", "binary").add("worded", "binary")
"""What tasks tell those that merge their hits: the hits of a block of queries."""
_FIELDS: list[tuple[str, pa.DataType]] = [("block", pa.int32()), ("near", pa.binary()), ("worded", pa.binary())]
FOUND_SCHEMA = pa.schema(_FIELDS)
MOST_LOCAL_ROWS = 1000
"""Largest number of rows of an answer that this process finds and passes to Spark."""
WIRE_BYTES = 32 << 20
"""Size in bytes of the queries that are sent with one plan."""


def search(
    spark: SparkSession,
    address: TableAddress,
    vector: Any,
    text: Any,
    how: Search,
    hybrid: Any,
    selector: VersionSelector,
    driver_bytes: int = 0,
) -> DataFrame:
    """Return the rows that are best for one query, the best first; or those for each of many, with id and rank.

    Args:
        spark: the session.
        address: address of the table.
        vector: a vector, several, or a DataFrame of queries; or None.
        text: a text, several, or a DataFrame of queries; or None.
        how: how to search.
        hybrid: what the caller has given as such; anything but None says that a DataFrame has vectors and texts.
        selector: the version.
        driver_bytes: one vector is searched for in this process, before this returns, if its column has no more bytes.
    """
    query_set, id_type = collect_queries(vector, text, hybrid)
    pinned = PinnedVersion.resolve(address, selector)
    if query_set.ids is None and query_set.queries.texts is None and how.prefilter:
        return _search_one(spark, pinned, query_set.queries, how, driver_bytes)
    frames = [_search_many(spark, pinned, part, id_type, how) for part in _split_queries(query_set)]
    whole = frames[0]
    for frame in frames[1:]:
        whole = whole.unionAll(frame)
    return whole


def explain(
    spark: SparkSession,
    address: TableAddress,
    vector: Any,
    text: Any,
    how: Search,
    hybrid: Any,
    selector: VersionSelector,
) -> str:
    """Return how a search would be done, as text. See `search` for the arguments."""
    query_set, _ = collect_queries(vector, text, hybrid)
    table, dataset = PinnedVersion.resolve(address, selector).open()
    return plan_search(table, dataset, how, query_set.queries, parallelism(spark)).explain()


def collect_queries(vector: Any, text: Any, hybrid: Any) -> tuple[QuerySet, Any]:
    """Return the queries, and the Spark type of their ids if they come from a DataFrame, which is evaluated once.

    Raises:
        InvalidInputError: they are no queries; see `parse_query_table`.
    """
    frames = [queries for queries in (vector, text) if callable(getattr(queries, "mapInArrow", None))]
    if not frames:
        return parse_queries(vector, text, hybrid), None
    frame, *columns = choose_table(vector, text, hybrid, type(frames[0]))
    names = [QUERY, *(name for name, is_used in zip((VECTOR, TEXT), columns, strict=True) if is_used)]
    narrow = frame.select(*[name for name in names if name in frame.columns])
    with translate_task_errors():
        rows = narrow.toArrow()
    return parse_query_table(rows, *columns), narrow.schema[QUERY].dataType


def _split_queries(query_set: QuerySet) -> Iterator[QuerySet]:
    """Yield queries in parts that can be sent with a plan."""
    count, queries = len(query_set.queries), query_set.queries
    size = 0 if queries.vectors is None else queries.vectors.nbytes
    size += sum(len(text or "") for text in queries.texts or ())
    parts = max(1, min(count, -(-size // WIRE_BYTES)))
    for first, last in pairwise(count * part // parts for part in range(parts + 1)):
        ids = None if query_set.ids is None else query_set.ids.slice(first, last - first)
        yield QuerySet(queries.slice(range(first, last)), ids)


def _search_many(
    spark: SparkSession, pinned: PinnedVersion, query_set: QuerySet, id_type: Any, how: Search
) -> DataFrame:
    table, dataset = pinned.open()
    plan = plan_search(table, dataset, how, query_set.queries, parallelism(spark))
    rows = _ResultRows(
        pinned, plan, plan.search.schema(table, dataset, with_ids=query_set.ids is not None), query_set.ids
    )
    queries = query_set.queries

    def find(piece: SearchPiece) -> Found:
        return find_hits(*pinned.open(), plan, piece, queries.slice(piece.numbers))

    def answer(piece: SearchPiece) -> Batches:
        return rows.read(find(piece))

    def find_blocks(piece: SearchPiece) -> Batches:
        for block, found in split_found(find(piece)):
            parts = [
                pa.array([value], field.type)
                for value, field in zip((block, found.near.to_ipc(), found.worded.to_ipc()), FOUND_SCHEMA, strict=True)
            ]
            yield pa.RecordBatch.from_arrays(parts, schema=FOUND_SCHEMA)

    def merge(batches: Batches) -> Batches:
        parts: dict[int, list[Found]] = {}
        for batch in batches:
            for row in batch.to_pylist():
                parts.setdefault(row["block"], []).append(
                    Found(Hits.from_ipc(row["near"]), Hits.from_ipc(row["worded"]))
                )
        for block in sorted(parts):
            yield from rows.read(join_found(parts.pop(block)))

    struct = rows.struct(id_type)
    if not plan.is_merged:
        return run_in_tasks(spark, plan.pieces, answer, struct)
    blocks = -(-len(queries) // BLOCK_QUERIES)
    hits = run_in_tasks(spark, plan.pieces, find_blocks, FOUND)
    return hits.repartition(min(blocks, parallelism(spark)), "block").mapInArrow(merge, struct)


class _ResultRows:
    """Ranks hits, and reads their rows in the columns of the DataFrame; can be sent to tasks."""

    def __init__(self, pinned: PinnedVersion, plan: SearchPlan, schema: pa.Schema, ids: Any) -> None:
        self._pinned, self._search, self._schema, self._ids = pinned, plan.search, schema, ids
        columns = result_schema(plan.search, ids, schema)
        self._rows: LanceToSpark = to_spark_rows(columns if ids is None else pa.schema(list(columns)[1:]))

    def struct(self, id_type: Any) -> StructType:
        """Return the Spark schema; ids that are no column of a DataFrame are numbers."""
        struct = to_struct(self._rows.struct)
        if self._ids is None:
            return struct
        return StructType([StructField(QUERY, id_type or LongType(), nullable=False), *struct.fields])

    def read(self, found: Found) -> Batches:
        """Yield the rows of some queries."""
        table, dataset = self._pinned.open()
        batches = read_ranked(table, dataset, self._search, self._schema, rank_hits(self._search, found))
        for batch in to_result(self._search, self._ids, self._schema, batches):
            yield from self._convert(batch)

    def _convert(self, batch: pa.RecordBatch) -> Batches:
        if self._ids is None:
            yield from self._rows.convert_batches(batch)
            return
        first = 0
        for converted in self._rows.convert_batches(batch.select(batch.schema.names[1:])):
            ids = batch.column(0).slice(first, converted.num_rows)
            first += converted.num_rows
            yield pa.RecordBatch.from_arrays([ids, *converted.columns], names=batch.schema.names)


# One vector


def _search_one(
    spark: SparkSession, pinned: PinnedVersion, queries: Queries, how: Search, driver_bytes: int
) -> DataFrame:
    """Return the rows nearest to a vector, with `_distance`, the nearest first.

    An index is searched by one task. Without one all vectors are compared, in as many tasks as the cluster runs at
    once. Both are done by this process if the vectors are few.
    """
    table, dataset = pinned.open()
    how = how.resolve(table, dataset, queries)
    assert how.column is not None
    vector = tuple(map(float, queries.vectors[0]))
    query = VectorSearch(vector, how.k, how.column, how.filter, how.columns, how.metric, how.effort)
    all_rows = estimate_bytes(dataset, query.columns or dataset.schema.names)
    answer = all_rows * query.k // max(dataset.count_rows(), query.k)
    compared = estimate_bytes(dataset, (query.column,), query.filter)
    if query.k <= MOST_LOCAL_ROWS and compared + answer <= driver_bytes:
        return to_local_frame(spark, _search_here(table, dataset, query))
    hits = None if has_vector_index(dataset, query.column) else _search_by_comparison(spark, pinned, query)
    rows = to_spark_rows(query.read_hits(table, dataset, []).schema)

    def work(_: int) -> Batches:
        table, dataset = pinned.open()
        result = query.search_index(table, dataset) if hits is None else query.read_hits(table, dataset, hits)
        # One batch, so that Spark keeps the order.
        return map(rows.convert_batch, result.combine_chunks().to_batches())

    return run_in_tasks(spark, [0], work, to_struct(rows.struct))


def _search_here(table: TableRef, dataset: Any, query: VectorSearch) -> pa.Table:
    if has_vector_index(dataset, query.column):
        return query.search_index(table, dataset)
    fragments = [FragmentRange(fragment.fragment_id) for fragment in dataset.get_fragments()]
    return query.read_hits(table, dataset, best_hits(query.search_parts(table, dataset, fragments), query.k))


def _search_by_comparison(spark: SparkSession, pinned: PinnedVersion, query: VectorSearch) -> list[Hit]:
    def work(parts: list[FragmentRange]) -> list[str]:
        return [json.dumps(query.search_parts(*pinned.open(), parts))]

    _, dataset = pinned.open()
    parts = split_fragments(dataset, parallelism(spark), split=query.filter is None)
    with translate_task_errors():
        result_texts = collect_results(spark, parts, work)
    return best_hits([(distance, row) for text in result_texts for distance, row in json.loads(text)], query.k)
