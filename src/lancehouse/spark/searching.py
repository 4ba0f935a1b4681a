"""Vector search as a DataFrame."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from math import isfinite

from lance_namespace.errors import InvalidInputError
from pyspark.sql import DataFrame, SparkSession

from lancehouse.lake.scans import Moment, Part, groups
from lancehouse.lake.search import Effort, Hit, Search, is_indexed, nearest, vector_column
from lancehouse.schema.outgoing import to_rows
from lancehouse.spark.address import Address
from lancehouse.spark.errors import translated
from lancehouse.spark.reading import Pinned
from lancehouse.spark.session import parallelism, struct
from lancehouse.spark.tasks import Batches, results, spread


def search(
    spark: SparkSession,
    address: Address,
    vector: Iterable[float],
    k: int,
    *,
    column: str | None,
    filter: str | None,
    columns: Sequence[str] | None,
    metric: str | None,
    effort: Effort,
    moment: Moment,
) -> DataFrame:
    """The rows nearest to a vector, with `_distance`, the nearest first.

    An index is asked by one task, which is what it is for. Without one all vectors are compared, in as many tasks as
    the cluster runs at once.
    """
    pinned = Pinned.at(address, moment)
    table, dataset = pinned.open()
    wanted = Search(
        _numbers(vector),
        k,
        vector_column(table, dataset.schema, column),
        filter,
        None if columns is None else tuple(columns),
        metric,
        effort,
    )
    wanted.check(table, dataset)
    hits = None if is_indexed(dataset, wanted.column) else _compared(spark, pinned, wanted)
    rows = to_rows(wanted.rows(table, dataset, []).schema)

    def work(_: int) -> Batches:
        table, dataset = pinned.open()
        found = wanted.by_index(table, dataset) if hits is None else wanted.rows(table, dataset, hits)
        return map(rows.batch, found.combine_chunks().to_batches())  # one batch, so that Spark keeps the order

    return spread(spark, [0], work, struct(rows.struct))


def _numbers(vector: Iterable[float]) -> tuple[float, ...]:
    try:
        numbers = tuple(float(number) for number in vector)
    except (TypeError, ValueError):
        raise InvalidInputError("a vector is a list of numbers") from None
    if not all(map(isfinite, numbers)):
        raise InvalidInputError("a vector that is looked for has finite numbers only: nothing is near one with NaN")
    return numbers


def _compared(spark: SparkSession, pinned: Pinned, wanted: Search) -> list[Hit]:
    def work(parts: list[Part]) -> list[str]:
        return [json.dumps(wanted.among(*pinned.open(), parts))]

    _, dataset = pinned.open()
    parts = groups(dataset, parallelism(spark), split=wanted.filter is None)
    with translated():
        found = results(spark, parts, work)
    return nearest([(distance, row) for text in found for distance, row in json.loads(text)], wanted.k)
