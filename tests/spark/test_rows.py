"""Values go from Lance through a real Spark and back, in few jobs: one carries many columns."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from pyspark.sql.datasource import DataSource, DataSourceReader
from pyspark.sql.types import StructType

from lancehouse.lake import commits
from lancehouse.lake.commits import FileLayout, TableLocation
from lancehouse.lake.dataset import TableRef
from lancehouse.schema.spark import to_spark
from lancehouse.schema.spark_rows import from_spark_rows, to_spark_rows
from tests.schema.rows import batch_of, spark_values
from tests.schema.storable import DICTIONARIES, LEAVES, LEGACY_BLOB, NESTED, STORABLE, schemas

UNREADABLE = ("fixed_size_list<item: string>[4]", "fixed_size_list<item: struct", "struct<>")
"""What pylance stores only without rows or without nulls, or does not read beside other columns."""


def in_spark(spark: Any, schema: pa.Schema, batches: list[pa.RecordBatch]) -> Any:
    """A DataFrame of batches of a table."""
    outgoing = to_spark_rows(schema)

    def rows(given: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        # A worker that leaves rows behind is not used again, and the next one must import all anew.
        for _ in given:
            for batch in batches:
                yield from outgoing.convert_batches(batch)

    return spark.range(1, numPartitions=1).mapInArrow(rows, StructType.fromJson(outgoing.struct))


def write_rows(frame: Any, schema: pa.Schema) -> pa.Table:
    """The rows of a DataFrame as its tasks would write them to a table."""
    incoming = from_spark_rows(frame.schema.jsonValue(), schema)

    def files(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, incoming.schema) as writer:
            for batch in batches:
                writer.write_batch(incoming.convert_batch(batch))
        yield pa.record_batch([[sink.getvalue().to_pybytes()]], names=["file"])

    return pa.concat_tables(
        pa.ipc.open_stream(row.file).read_all() for row in frame.mapInArrow(files, "file binary").collect()
    )


def number_fields(fields: list[pa.Field[Any]]) -> pa.Schema:
    return pa.schema([field.with_name(f"c{place}") for place, field in enumerate(fields)])


def assert_same(before: pa.Table, after: pa.Table, where: pa.Schema) -> None:
    for field in where:
        assert repr(chunks(after, field.name)) == repr(chunks(before, field.name)), field


def chunks(table: pa.Table, name: str) -> list[Any]:
    return [value for chunk in table[name].chunks for value in spark_values(chunk)]


def test_every_type_from_a_table_to_a_table(spark: Any, tmp_path: Path) -> None:
    schema = number_fields([field for field in [*STORABLE, LEGACY_BLOB] if not str(field.type).startswith(UNREADABLE)])
    stored = lance.write_dataset(pa.table(batch_of(schema, 20, 6)), tmp_path / "a", data_storage_version="2.2")
    batches = list(stored.scanner(blob_handling="all_binary", batch_size=7).to_batches())
    frame = in_spark(spark, stored.schema, batches)
    incoming, target = from_spark_rows(frame.schema.jsonValue(), stored.schema), str(tmp_path / "b")

    def write(rows: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        made = pa.RecordBatchReader.from_batches(incoming.schema, map(incoming.convert_batch, rows))
        layout = FileLayout(data_storage_version="2.2")
        pieces = commits.write_uncommitted(
            TableRef(target), TableLocation(target), made, mode="overwrite", layout=layout
        )
        yield pa.record_batch([pieces], names=["piece"])

    pieces = [row.piece for row in frame.mapInArrow(write, "piece string").collect()]
    assert commits.create(TableRef(target), TableLocation(target), stored.schema, pieces) == 1
    copy = lance.dataset(target)
    read = copy.scanner(blob_handling="all_binary").to_table()
    assert copy.schema.equals(stored.schema, check_metadata=True)
    assert_same(pa.Table.from_batches(batches), read, stored.schema)


@settings(
    deadline=None,
    max_examples=3,
    phases=[Phase.generate],
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture, HealthCheck.data_too_large],
)
@given(st.lists(schemas(), min_size=15, max_size=15), st.integers(0, 2**32))
def test_any_schemas(spark: Any, generated: list[pa.Schema], seed: int) -> None:
    fields = [field for schema in generated for field in schema if "blob" not in str(field)]
    schema = number_fields([*fields, pa.field("last", pa.int64())])
    batch = batch_of(schema, 9, seed)
    frame = in_spark(spark, schema, [batch.slice(2, 3), batch.slice(0, 0), batch.slice(5)])
    back = write_rows(frame, schema)
    assert back.schema.equals(schema, check_metadata=True)
    assert_same(pa.table(batch.slice(2)), back, schema)


SHOWN: list[tuple[Any, str]] = [
    (pa.array([-1], pa.timestamp("ns", "America/New_York")), "1969-12-31 20:29:59.999999"),
    (pa.array([-1], pa.timestamp("ns")), "1969-12-31 23:59:59.999999"),
    (pa.array([90], pa.timestamp("s", "UTC")), "1969-12-31 20:31:30"),
    (pa.array([-1], pa.int64()).view(pa.date64()), "1969-12-31"),
    (pa.array([86_399], pa.time32("s")), "86399"),
    (pa.array([1], pa.time64("ns")), "1"),
    (pa.array([-1], pa.duration("ns")), "INTERVAL '-0 00:00:00.000001' DAY TO SECOND"),
    (pa.array([90], pa.duration("s")), "INTERVAL '0 00:01:30' DAY TO SECOND"),
    (pa.array([2**64 - 1], pa.uint64()), "18446744073709551615"),
    (pa.array([255], pa.uint8()), "255"),
    (pa.array([12300], pa.decimal128(5, 0)).cast(pa.decimal128(10, -2)), "12300"),
    (pa.array([[0.5, None]], pa.list_(pa.float16(), 2)), "[0.5, null]"),
    (pa.array([[("k", [1.5])]], pa.map_(pa.string(), pa.list_(pa.float32(), 1))), "{k -> [1.5]}"),
    (pa.array(["a"]).dictionary_encode(), "a"),
    (pa.array([{"a": None}], pa.struct([("a", pa.null())])), "{null}"),
]


def test_what_spark_makes_of_values(spark: Any) -> None:
    arrays = [array for array, _ in SHOWN]
    schema = number_fields([pa.field("c", array.type) for array in arrays])
    frame = in_spark(spark, schema, [pa.record_batch(arrays, schema=schema)])
    row = frame.selectExpr(*(f"cast({name} as string) as {name}" for name in schema.names)).first()
    assert list(row) == [text for _, text in SHOWN]


def test_a_data_source_takes_them(spark: Any) -> None:
    schema = number_fields(
        [pa.field("c", dtype) for dtype in (*LEAVES, *DICTIONARIES, *NESTED) if "lance" not in str(dtype)]
    )
    batch = batch_of(schema, 5, 1)
    outgoing = to_spark_rows(schema)

    class Source(DataSource):  # type: ignore[misc]
        @classmethod
        def name(cls) -> str:
            return "rows_of_a_test"

        def schema(self) -> Any:
            return StructType.fromJson(to_spark(schema))

        def reader(self, schema: Any) -> Any:
            return Reader()

    class Reader(DataSourceReader):  # type: ignore[misc]
        def read(self, partition: Any) -> Iterator[pa.RecordBatch]:
            yield outgoing.convert_batch(batch)

    spark.dataSource.register(Source)
    back = write_rows(spark.read.format("rows_of_a_test").load(), schema)
    assert_same(pa.table(batch), back, schema)


@pytest.mark.parametrize("large", ["true", "false"])
def test_what_spark_makes_becomes_a_table(spark: Any, large: str) -> None:
    session = spark.newSession()
    session.conf.set("spark.sql.execution.arrow.useLargeVarTypes", large)
    frame = session.sql(
        "SELECT id, cast(id AS string) AS name, array(cast(id AS double), 0.5d) AS v, NULL AS nothing,"
        " named_struct('b', cast('x' AS binary), 'a', id) AS s, timestamp_seconds(id) AS t FROM range(3)"
    )
    table = pa.schema(
        [
            *[("s", pa.struct([("a", pa.uint8()), ("b", pa.large_binary())])), ("t", pa.timestamp("ms", "UTC"))],
            *[("v", pa.list_(pa.float32(), 2)), ("name", pa.dictionary(pa.int8(), pa.string()))],
            *[("nothing", pa.json_()), ("more", pa.list_(pa.string())), ("id", pa.int32())],
        ]
    )
    made = write_rows(frame, table).sort_by("id")
    assert made.schema == table
    assert made.drop_columns("t").to_pylist()[1] == {
        "s": {"a": 1, "b": b"x"},
        "v": [1.0, 0.5],
        "name": "1",
        "nothing": None,
        "more": None,
        "id": 1,
    }
    assert made["t"].cast(pa.int64()).to_pylist() == [0, 1000, 2000]
