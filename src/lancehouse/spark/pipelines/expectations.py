"""What must hold of a version, looked at in tasks."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa
from lance_namespace.errors import TableColumnNotFoundError
from pyspark.sql import SparkSession, functions
from pyspark.sql.types import BinaryType, LongType, StructType

from lancehouse.lake.changes import ADDRESS, ROW, quoted
from lancehouse.lake.merging import check_keys, key_schema, keyed
from lancehouse.lake.scans import Moment, Part, Scan, groups, like
from lancehouse.spark.address import Address
from lancehouse.spark.errors import translated
from lancehouse.spark.pipelines.problems import Problems
from lancehouse.spark.pipelines.shape import ExpectPart
from lancehouse.spark.reading import Pinned
from lancehouse.spark.session import parallelism
from lancehouse.spark.tasks import Batches, results, spread

EXPECT = "expect"


@dataclass(frozen=True, slots=True)
class _Condition:
    """Rows that should not be."""

    filter: str
    words: str


def check(problems: Problems, address: Address, schema: pa.Schema, expect: ExpectPart) -> None:
    """See that all of it can be asked of a table with these columns."""
    for place, name in enumerate(expect.not_null):
        if name not in schema.names:
            with problems.of(EXPECT, "not_null", place):
                raise TableColumnNotFoundError(f"{address} has no column {name}; it has {', '.join(schema.names)}")
    for place, key in enumerate(expect.unique):
        with problems.of(EXPECT, "unique", place):
            check_keys(address, schema, key)
    empty = like(schema)
    for place, condition in enumerate(expect.where):
        with problems.of(EXPECT, "where", place):
            _scan(f"NOT ({condition})").schema(address.ref(), empty)


def failures(spark: SparkSession, address: Address, version: int, expect: ExpectPart) -> list[str]:
    """What does not hold of a version, a sentence each."""
    pinned = Pinned.at(address, Moment(version))
    _, dataset = pinned.open()
    rows = int(dataset.count_rows())
    found = list(_size(rows, expect))
    conditions = [_Condition(f"{quoted(name)} IS NULL", f"null in {name}") for name in expect.not_null]
    conditions += [_Condition(f"NOT ({each})", f"against {each!r}") for each in expect.where]
    counts = _counts(spark, pinned, conditions)
    found += [f"{_rows(count)} {each.words}" for each, count in zip(conditions, counts, strict=True) if count]
    for key in expect.unique:
        if count := _shared(spark, pinned, key):
            found.append(f"{_rows(count)} not alone with their {', '.join(key)}, which should be unique")
    return found


def _size(rows: int, expect: ExpectPart) -> Iterator[str]:
    if expect.rows is None:
        return
    if rows < expect.rows.min:
        yield f"there are {rows} rows, fewer than {expect.rows.min}"
    if expect.rows.max is not None and rows > expect.rows.max:
        yield f"there are {rows} rows, more than {expect.rows.max}"


def _rows(count: int) -> str:
    return "1 row is" if count == 1 else f"{count} rows are"


def _counts(spark: SparkSession, pinned: Pinned, conditions: Sequence[_Condition]) -> list[int]:
    """How many rows meet each condition; every task looks at its own rows for all of them."""
    if not conditions:
        return []
    _, dataset = pinned.open()
    filters = [each.filter for each in conditions]

    def work(parts: list[Part]) -> list[str]:
        table, dataset = pinned.open()
        return [json.dumps([_scan(each).count(table, dataset, parts) for each in filters])]

    with translated():
        done = results(spark, groups(dataset, parallelism(spark), split=False), work)
    return [sum(each) for each in zip(*map(json.loads, done), strict=True)] or [0] * len(conditions)


def _scan(filter: str) -> Scan:
    return Scan(columns=(), filter=filter, with_row_id=True)


def _shared(spark: SparkSession, pinned: Pinned, key: Sequence[str]) -> int:
    """How many rows have a key that another has too; null is none. Spark shuffles the keys, and spills to disk."""
    _, dataset = pinned.open()
    columns = [field for field in key_schema(dataset.schema, key) if field.name not in (ADDRESS, ROW)]
    names = [field.name for field in columns]
    struct = StructType()
    for field in columns:
        struct = struct.add(field.name, BinaryType() if field.type == pa.binary() else LongType())

    def work(parts: list[Part]) -> Batches:
        table, dataset = pinned.open()
        return (batch.select(names) for batch in keyed(table, dataset, parts, key))

    frame = spread(spark, groups(dataset, parallelism(spark), split=True), work, struct).dropna()
    number = functions.count(functions.lit(1)).alias("number")
    shared = frame.groupBy(*names).agg(number).where("number > 1")
    with translated():
        [row] = shared.agg(functions.sum("number")).collect()
    return int(row[0] or 0)
