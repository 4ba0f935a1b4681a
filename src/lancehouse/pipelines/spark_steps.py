"""Steps of a pipeline that Spark runs (SQL, Python on DataFrames), with the Arrow steps between them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from uuid import uuid4

import pyarrow as pa
from lance_namespace.errors import InvalidInputError, LanceNamespaceError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from lancehouse.jobs.address import TableAddress
from lancehouse.jobs.column_functions import FOREIGN
from lancehouse.jobs.sources.ingest_source import IngestSource, Unit
from lancehouse.lake.job_records import JobProgress
from lancehouse.pipelines.arrow_steps import ArrowTransform, to_binary_batches, to_binary_schema, to_blob_schema
from lancehouse.pipelines.named_functions import NamedFunction
from lancehouse.schema.spark import from_spark
from lancehouse.schema.spark_rows import from_spark_rows, to_spark_rows
from lancehouse.spark.catalog import LanceCatalog
from lancehouse.spark.engine import Batches, run_in_tasks
from lancehouse.spark.queries import limit_nesting, run_query
from lancehouse.spark.query_text import is_query
from lancehouse.spark.session import to_struct


@dataclass(frozen=True, slots=True)
class RowCount:
    """A count that tasks add to; sent to executors. A task that is repeated counts once."""

    address: TableAddress
    job: str = field(default_factory=lambda: f"count-{uuid4().hex}")

    def count(self, key: str, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the batches unchanged, and record the number of their rows under a key."""
        rows = 0
        for batch in batches:
            rows += batch.num_rows
            yield batch
        try:
            self._progress().record(key, rows)
        except LanceNamespaceError:
            return  # the table does not exist yet: the rows are evaluated before they are written

    def take(self) -> int:
        """Return the total, and remove the records."""
        progress = self._progress()
        rows = sum(progress.read_records().values())
        progress.clear()
        return int(rows)

    def _progress(self) -> JobProgress:
        at = self.address.write_location(self.job)
        return JobProgress(at.location, at.storage_options, self.job)


INPUT = "input"
"""Name of the rows so far in SQL."""
_TAIL = re.compile(r"\s*(SQLSTATE: \w+)?\s*[;.]?\s*\(?(line \d+,? ?pos \d+\)?.*)?$", re.DOTALL)
_CONDITION = re.compile(r"^\[[A-Z_.]+\] ")


def from_source(spark: SparkSession, source: IngestSource, transform: ArrowTransform, count: RowCount) -> DataFrame:
    """Return the rows of a source after Arrow steps, as a DataFrame; rows are counted in the same tasks."""
    rows, schema, plain = (
        to_spark_rows(to_blob_schema(transform.schema)),
        source.schema,
        to_binary_schema(source.schema),
    )

    def work(unit: Unit) -> Batches:
        made = transform.batches(to_binary_batches(count.count(unit.key, unit.batches(schema)), plain))
        return (each for batch in made for each in rows.convert_batches(batch))

    return run_in_tasks(spark, source.units, work, to_struct(rows.struct))


def apply_steps(frame: DataFrame, transform: ArrowTransform) -> DataFrame:
    """Return the rows of a DataFrame after Arrow steps."""
    if not transform.steps:
        return frame
    struct_json = frame.schema.jsonValue()
    incoming, rows = (
        from_spark_rows(struct_json, to_binary_schema(from_spark(struct_json))),
        to_spark_rows(to_blob_schema(transform.schema)),
    )

    def work(batches: Batches) -> Batches:
        made = transform.batches(incoming.convert_batch(batch) for batch in batches)
        return (each for batch in made for each in rows.convert_batches(batch))

    return frame.mapInArrow(work, to_struct(rows.struct))


def step_schema(frame: DataFrame) -> pa.Schema:
    """Return the columns of a DataFrame as Arrow steps see them.

    Raises:
        InvalidInputError: Spark cannot analyze the DataFrame.
        TableSchemaValidationError: Lance has no such type.
    """
    try:
        struct_json = frame.schema.jsonValue()
    except PySparkException as error:
        raise InvalidInputError(_clean_message(error)) from error
    return to_binary_schema(from_spark(struct_json))


def run_sql(catalog: LanceCatalog, query: str, frame: DataFrame) -> DataFrame:
    """Run a query over rows, which are its table `input`, and over tables of a catalog.

    Raises:
        InvalidInputError: the query is invalid.
        TableNotFoundError: it names a table that nobody knows.
    """
    try:
        with limit_nesting():
            if not is_query(query):
                raise InvalidInputError("a step sql is a query, such as SELECT … FROM input; it writes nothing itself")
            return run_query(catalog, query, frames={INPUT: frame})
    except InvalidInputError as error:
        raise InvalidInputError(_clean_message(error)) from error


def run_python(function: NamedFunction, frame: DataFrame) -> DataFrame:
    """Call a function with a DataFrame, and return the DataFrame that it returns.

    Raises:
        InvalidInputError: the function fails, or returns something else.
    """
    try:
        result = function(frame)
    except LanceNamespaceError:
        raise
    except PySparkException as error:
        raise InvalidInputError(f"{function.name} failed: {_clean_message(error)}") from error
    except FOREIGN as error:
        raise InvalidInputError(f"{function.name} failed: {type(error).__name__}: {error}") from error
    if not isinstance(result, DataFrame):
        raise InvalidInputError(f"{function.name} gave {type(result).__name__}, not a DataFrame")
    return result


def _clean_message(error: PySparkException | InvalidInputError) -> str:
    """Return the first line of Spark's message, without error class, SQLSTATE and position."""
    first = str(error).strip().split("\n\n")[0].splitlines()[0]
    return _CONDITION.sub("", _TAIL.sub("", first))
