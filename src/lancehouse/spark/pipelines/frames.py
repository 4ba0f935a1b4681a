"""Rows as DataFrames, for steps that Spark does; steps in Arrow between them go through it as one."""

from __future__ import annotations

import re

import pyarrow as pa
from lance_namespace.errors import InvalidInputError, LanceNamespaceError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from lancehouse.schema.incoming import from_rows
from lancehouse.schema.outgoing import to_rows
from lancehouse.schema.spark import from_spark
from lancehouse.spark.pipelines.blobs import opened, seen, stored
from lancehouse.spark.pipelines.counting import Count
from lancehouse.spark.pipelines.functions import FOREIGN, Named
from lancehouse.spark.pipelines.transforms import Transform
from lancehouse.spark.session import struct
from lancehouse.spark.sources import Source, Unit
from lancehouse.spark.tasks import Batches, spread

_PLAIN = "WITH input AS (SELECT * FROM {rows})\n<query>"
_NESTED = "WITH input AS (SELECT * FROM {rows}) SELECT * FROM (\n<query>\n)"
"""A query that has names of its own with WITH stands inside another, which names the input."""
_WITH = re.compile(r"(\s|--[^\n]*\n|/\*.*?\*/)*with\b", re.IGNORECASE | re.DOTALL)
_TAIL = re.compile(r"\s*(SQLSTATE: \w+)?\s*[;.]?\s*\(?(line \d+,? ?pos \d+\)?.*)?$", re.DOTALL)
_CONDITION = re.compile(r"^\[[A-Z_.]+\] ")


def of_source(spark: SparkSession, found: Source, transform: Transform, count: Count) -> DataFrame:
    """The rows of a source, which are counted, after steps in Arrow: all in the same tasks."""
    rows, schema, plain = to_rows(stored(transform.schema)), found.schema, seen(found.schema)

    def work(unit: Unit) -> Batches:
        made = transform.batches(opened(count.of(unit.key, unit.batches(schema)), plain))
        return (each for batch in made for each in rows.batches(batch))

    return spread(spark, found.units, work, struct(rows.struct))


def after(frame: DataFrame, transform: Transform) -> DataFrame:
    """The rows of a DataFrame, after steps in Arrow."""
    if not transform.steps:
        return frame
    known = frame.schema.jsonValue()
    incoming, rows = from_rows(known, seen(from_spark(known))), to_rows(stored(transform.schema))

    def work(batches: Batches) -> Batches:
        made = transform.batches(incoming.batch(batch) for batch in batches)
        return (each for batch in made for each in rows.batches(batch))

    return frame.mapInArrow(work, struct(rows.struct))


def columns(frame: DataFrame) -> pa.Schema:
    """The columns, as steps in Arrow see them.

    Raises:
        InvalidInputError: Spark cannot make such rows.
        TableSchemaValidationError: Lance has no such type.
    """
    try:
        known = frame.schema.jsonValue()
    except PySparkException as error:
        raise InvalidInputError(_words(error)) from error
    return seen(from_spark(known))


def by_sql(spark: SparkSession, query: str, frame: DataFrame) -> DataFrame:
    """What a query makes of rows, which are its table `input`.

    Raises:
        InvalidInputError: it cannot be understood.
    """
    text = query.strip().rstrip(";").replace("{", "{{").replace("}", "}}")
    try:
        return spark.sql((_NESTED if _WITH.match(query) else _PLAIN).replace("<query>", text), rows=frame)
    except PySparkException as error:
        raise InvalidInputError(_words(error)) from error


def by_python(function: Named, frame: DataFrame) -> DataFrame:
    """What a function makes of rows.

    Raises:
        InvalidInputError: it fails, or gives something else.
    """
    try:
        made = function(frame)
    except LanceNamespaceError:
        raise
    except PySparkException as error:
        raise InvalidInputError(f"{function.name} failed: {_words(error)}") from error
    except FOREIGN as error:
        raise InvalidInputError(f"{function.name} failed: {type(error).__name__}: {error}") from error
    if not isinstance(made, DataFrame):
        raise InvalidInputError(f"{function.name} gave {type(made).__name__}, not a DataFrame")
    return made


def _words(error: PySparkException) -> str:
    """What Spark says, without what it says for itself."""
    first = str(error).strip().split("\n\n")[0].splitlines()[0]
    return _CONDITION.sub("", _TAIL.sub("", first))
