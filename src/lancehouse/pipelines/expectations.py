"""Check a pipeline's expectations (rows, not_null, unique, where) of a version, in Spark tasks."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa
from lance_namespace.errors import TableColumnNotFoundError
from pyspark.sql import SparkSession, functions
from pyspark.sql.types import BinaryType, LongType, StructType

from lancehouse.documents import Problems
from lancehouse.jobs.address import PinnedVersion, TableAddress
from lancehouse.jobs.merge_keys import check_keys, key_schema, read_keys
from lancehouse.lake.row_changes import ADDRESS, ROW, quote_column
from lancehouse.lake.scans import FragmentRange, Scan, VersionSelector, empty_dataset, split_fragments
from lancehouse.pipelines.spec import ExpectPart
from lancehouse.spark.engine import Batches, collect_results, run_in_tasks, translate_task_errors
from lancehouse.spark.session import parallelism

EXPECT = "expect"


@dataclass(frozen=True, slots=True)
class _Condition:
    """A condition that no row should meet, and how to describe rows that do."""

    filter: str
    words: str


def check_expectations(problems: Problems, address: TableAddress, schema: pa.Schema, expect: ExpectPart) -> None:
    """Check that all expectations can be evaluated on a table with these columns."""
    for place, name in enumerate(expect.not_null):
        if name not in schema.names:
            with problems.collect(EXPECT, "not_null", place):
                raise TableColumnNotFoundError(f"{address} has no column {name}; it has {', '.join(schema.names)}")
    for place, key in enumerate(expect.unique):
        with problems.collect(EXPECT, "unique", place):
            check_keys(address, schema, key)
    empty = empty_dataset(schema)
    for place, condition in enumerate(expect.where):
        with problems.collect(EXPECT, "where", place):
            _to_scan(f"NOT ({condition})").schema(address.to_ref(), empty)


def find_failures(spark: SparkSession, address: TableAddress, version: int, expect: ExpectPart) -> list[str]:
    """Return the expectations that a version does not meet, a sentence each."""
    pinned = PinnedVersion.resolve(address, VersionSelector(version))
    _, dataset = pinned.open()
    rows = int(dataset.count_rows())
    sentences = list(_size_failures(rows, expect))
    conditions = [_Condition(f"{quote_column(name)} IS NULL", f"null in {name}") for name in expect.not_null]
    conditions += [_Condition(f"NOT ({each})", f"against {each!r}") for each in expect.where]
    counts = _count_each(spark, pinned, conditions)
    sentences += [
        f"{_format_rows(count)} {each.words}" for each, count in zip(conditions, counts, strict=True) if count
    ]
    for key in expect.unique:
        if count := _count_shared(spark, pinned, key):
            sentences.append(f"{_format_rows(count)} not alone with their {', '.join(key)}, which should be unique")
    return sentences


def _size_failures(rows: int, expect: ExpectPart) -> Iterator[str]:
    if expect.rows is None:
        return
    if rows < expect.rows.min:
        yield f"there are {rows} rows, fewer than {expect.rows.min}"
    if expect.rows.max is not None and rows > expect.rows.max:
        yield f"there are {rows} rows, more than {expect.rows.max}"


def _format_rows(count: int) -> str:
    return "1 row is" if count == 1 else f"{count} rows are"


def _count_each(spark: SparkSession, pinned: PinnedVersion, conditions: Sequence[_Condition]) -> list[int]:
    """Return how many rows meet each condition; every task counts its own rows for all of them."""
    if not conditions:
        return []
    _, dataset = pinned.open()
    filters = [each.filter for each in conditions]

    def work(parts: list[FragmentRange]) -> list[str]:
        table, dataset = pinned.open()
        return [json.dumps([_to_scan(each).count(table, dataset, parts) for each in filters])]

    with translate_task_errors():
        result_texts = collect_results(spark, split_fragments(dataset, parallelism(spark), split=False), work)
    return [sum(each) for each in zip(*map(json.loads, result_texts), strict=True)] or [0] * len(conditions)


def _to_scan(filter: str) -> Scan:
    return Scan(columns=(), filter=filter, with_row_id=True)


def _count_shared(spark: SparkSession, pinned: PinnedVersion, key: Sequence[str]) -> int:
    """Return how many rows have a key that another row has too; null is no key. Spark shuffles the keys."""
    _, dataset = pinned.open()
    columns = [field for field in key_schema(dataset.schema, key) if field.name not in (ADDRESS, ROW)]
    names = [field.name for field in columns]
    struct = StructType()
    for field in columns:
        struct = struct.add(field.name, BinaryType() if field.type == pa.binary() else LongType())

    def work(parts: list[FragmentRange]) -> Batches:
        table, dataset = pinned.open()
        return (batch.select(names) for batch in read_keys(table, dataset, parts, key))

    frame = run_in_tasks(spark, split_fragments(dataset, parallelism(spark), split=True), work, struct).dropna()
    number = functions.count(functions.lit(1)).alias("number")
    duplicates = frame.groupBy(*names).agg(number).where("number > 1")
    with translate_task_errors():
        [row] = duplicates.agg(functions.sum("number")).collect()
    return int(row[0] or 0)
