"""Search vectors with Spark: through an index in one task, or by comparing all vectors in many tasks."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from math import isfinite

from lance_namespace.errors import InvalidInputError
from pyspark.sql import DataFrame, SparkSession

from lancehouse.jobs.address import PinnedVersion, TableAddress
from lancehouse.lake.scans import FragmentRange, VersionSelector, split_fragments
from lancehouse.lake.vector_search import (
    Hit,
    SearchEffort,
    VectorSearch,
    best_hits,
    has_vector_index,
    resolve_vector_column,
)
from lancehouse.schema.spark_rows import to_spark_rows
from lancehouse.spark.engine import Batches, collect_results, parallelism, run_in_tasks, translate_task_errors
from lancehouse.spark.session import to_struct


def search(
    spark: SparkSession,
    address: TableAddress,
    vector: Iterable[float],
    k: int,
    *,
    column: str | None,
    filter: str | None,
    columns: Sequence[str] | None,
    metric: str | None,
    effort: SearchEffort,
    selector: VersionSelector,
) -> DataFrame:
    """Return the rows nearest to a vector as a DataFrame, with `_distance`, the nearest first.

    An index is searched by one task. Without one all vectors are compared, in as many tasks as the cluster runs at
    once.
    """
    pinned = PinnedVersion.resolve(address, selector)
    table, dataset = pinned.open()
    query = VectorSearch(
        _parse_vector(vector),
        k,
        resolve_vector_column(table, dataset.schema, column),
        filter,
        None if columns is None else tuple(columns),
        metric,
        effort,
    )
    query.check(table, dataset)
    hits = None if has_vector_index(dataset, query.column) else _search_by_comparison(spark, pinned, query)
    rows = to_spark_rows(query.read_hits(table, dataset, []).schema)

    def work(_: int) -> Batches:
        table, dataset = pinned.open()
        found = query.search_index(table, dataset) if hits is None else query.read_hits(table, dataset, hits)
        return map(rows.convert_batch, found.combine_chunks().to_batches())  # one batch, so that Spark keeps the order

    return run_in_tasks(spark, [0], work, to_struct(rows.struct))


def _parse_vector(vector: Iterable[float]) -> tuple[float, ...]:
    try:
        numbers = tuple(float(number) for number in vector)
    except (TypeError, ValueError):
        raise InvalidInputError("a vector is a list of numbers") from None
    if not all(map(isfinite, numbers)):
        raise InvalidInputError("a vector that is looked for has finite numbers only: nothing is near one with NaN")
    return numbers


def _search_by_comparison(spark: SparkSession, pinned: PinnedVersion, query: VectorSearch) -> list[Hit]:
    def work(parts: list[FragmentRange]) -> list[str]:
        return [json.dumps(query.search_parts(*pinned.open(), parts))]

    _, dataset = pinned.open()
    parts = split_fragments(dataset, parallelism(spark), split=query.filter is None)
    with translate_task_errors():
        result_texts = collect_results(spark, parts, work)
    return best_hits([(distance, row) for text in result_texts for distance, row in json.loads(text)], query.k)
