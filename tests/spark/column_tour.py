"""Computed columns and views from their first row to their last, on whatever catalog and session; drivers import this.

The functions count their calls and stop where a test wants them to, by files in a folder that `FOLDER` names.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql import SparkSession

from lancehouse.identifiers import format_levels
from lancehouse.spark import LanceCatalog, column
from tests.spark.tour import finish_stream

VECTOR = pa.list_(pa.float32(), 2)
CHUNKS = pa.list_(pa.struct([("position", pa.int64()), ("part", pa.string())]))
FOLDER = "COLUMNCALLS"
HOLD = "hold"
"""File in that folder: while it exists, each process stops after the number of calls that it holds."""
PAUSE_S = 0.003
"""How long a call takes at least: longer than the shortest time between checkpoints."""


@column(version="1", inputs=["text"], returns=VECTOR)
class Embed:
    """Refuses one text."""

    def __call__(self, texts: Any) -> Any:
        if "bad" in texts.to_pylist():
            raise ValueError("a bad text")
        return np.array([[len(text), 1] for text in texts.to_pylist()], np.float32)


@column(version="2", inputs=["text"], returns=VECTOR)
class BetterEmbed:
    """Another model, which takes every text."""

    def __call__(self, texts: Any) -> Any:
        return np.array([[len(text), 2] for text in texts.to_pylist()], np.float32)


@column(version="1", inputs=["text"], returns=CHUNKS)
def split(texts: Any) -> Any:
    """A row for each word."""
    return [[{"position": n, "part": part} for n, part in enumerate(text.split())] for text in texts.to_pylist()]


@column(version="1", inputs=["part"], returns=pa.int64())
def measure(parts: Any) -> Any:
    """Characters."""
    return [len(part) for part in parts.to_pylist()]


def tour(spark: SparkSession, impl: str, properties: dict[str, str], levels: list[str]) -> list[str]:
    """Define, fill, append, fill, change the version, find a bad row, make a view and refresh it.

    Return the ids of the tables.
    """
    cat = LanceCatalog(spark, impl, properties)
    docs, chunks = [*levels, "docs"], [*levels, "chunks"]
    texts = [(number, "bad" if number == 13 else f"text {number}") for number in range(20)]
    cat.create(_rows(spark, texts).repartition(2), docs)
    _fill(cat, spark, docs)
    _view(cat, spark, docs, chunks)
    return ["docs", "chunks"]


def _fill(cat: LanceCatalog, spark: SparkSession, docs: list[str]) -> None:
    cat.define_columns(docs, {"embedding": Embed})
    result = cat.backfill(docs, on_error="null")
    assert (result.filled, result.failed) == (19, 1)
    [error] = cat.column_errors(docs, "embedding", ["id"]).collect()
    assert (error["id"], error["exception"]) == (13, "ValueError: a bad text")
    cat.append(_rows(spark, [(20, "late")]), docs)
    assert cat.backfill(docs).filled == 1
    cat.define_columns(docs, {"embedding": BetterEmbed})
    assert cat.update(docs, {"text": "'longer text 0'"}, "id = 0").updated == 1
    result = cat.backfill(docs)
    assert (result.filled, result.failed) == (21, 0)
    found = {row["id"]: list(row["embedding"]) for row in cat.read(docs, ["id", "embedding"]).collect()}
    assert (found[0], found[13], found[20], len(found)) == ([13, 2], [3, 2], [4, 2], 21)
    [row] = cat.computed_columns(docs).collect()
    assert (row["version"], row["filled"], row["missing"], row["failed"]) == ("2", 21, 0, 0)


def _view(cat: LanceCatalog, spark: SparkSession, docs: list[str], chunks: list[str]) -> None:
    made = cat.create_materialized_view(chunks, docs, function=split, columns=["id"])
    assert made.inserted == 18 * 2 + 3 + 1 + 1  # two words each, but three of id 0, one of `bad` and one of `late`
    cat.add_columns(chunks, {"size": measure})
    cat.append(_rows(spark, [(30, "three more words")]), docs)
    cat.delete(docs, "id = 0")
    refreshed = cat.refresh(chunks)
    assert (refreshed.inserted, refreshed.deleted) == (3, 3)
    assert cat.backfill(chunks).filled == 3
    assert cat.refresh(chunks).inserted == 0
    sizes = cat.read(chunks, ["id", "part", "size"], filter="id >= 20").collect()
    assert {(row["id"], row["part"], row["size"]) for row in sizes} == {
        *((20, "late", 4), (30, "three", 5), (30, "more", 4), (30, "words", 5))
    }


def _rows(spark: SparkSession, rows: list[tuple[int, str]]) -> Any:
    return spark.createDataFrame(rows, "id bigint, text string")


# Calls that are counted, and killed


@column(version="1", inputs=["id"], returns=pa.int64())
def double_counted(ids: Any) -> Any:
    """Twice the id; each call is written down, in a file of its process."""
    folder = Path(os.environ[FOLDER])
    own = folder / f"calls-{os.getpid()}"
    calls = own.read_text().count("\n") if own.exists() else 0
    while calls >= _allowed_calls(folder):
        (folder / f"stopped-{os.getpid()}").touch()
        time.sleep(0.02)
    with own.open("a") as file:
        file.write(" ".join(map(str, ids.to_pylist())) + "\n")
    time.sleep(PAUSE_S)
    return [number * 2 for number in ids.to_pylist()]


def _allowed_calls(folder: Path) -> int:
    try:
        return int((folder / HOLD).read_text() or 0)
    except FileNotFoundError:
        return 1 << 30


def count_calls(folder: Path) -> Counter[int]:
    """How often the function was called for each id."""
    return Counter(int(number) for file in folder.glob("calls-*") for number in file.read_text().split())


def fill_counted(spark: SparkSession, properties: dict[str, str], table: list[str], batch_rows: int) -> dict[str, int]:
    """Fill a column with a checkpoint after each call."""
    cat = LanceCatalog(spark, "dir", properties)
    cat.define_columns(table, {"double": double_counted})
    result = cat.backfill(table, batch_rows=batch_rows, checkpoint_rows=batch_rows, checkpoint_s=0.001)
    return {"filled": result.filled, "version": result.version}


# Streams


def stream_tour(
    spark: SparkSession, impl: str, properties: dict[str, str], levels: list[str], folder: str
) -> list[list[Any]] | None:
    """Keep a column filled, merge a stream into another table, and return the changes of both as tables tell them.

    None: the machine is too busy for streams.
    """
    cat = LanceCatalog(spark, impl, properties)
    source, copy = [*levels, "moving"], [*levels, "merged"]
    cat.create(_rows(spark, [(number, "old") for number in range(6)]).repartition(2), source)
    cat.define_columns(source, {"size": measure_text})
    named = {"impl": impl, **properties}
    rows = spark.readStream.format("lance").options(
        **named, table=format_levels(source), columns="id,text", withVersion="true"
    )
    options = {"table": format_levels(copy), "mode": "merge", "on": "id", "latestBy": "_version"}
    sink = rows.load().writeStream.format("lance").options(**named, **options)

    def follow() -> bool:
        return finish_stream(
            lambda: cat.keep_filled(source, f"{folder}/filled", trigger={"availableNow": True})
        ) and finish_stream(sink.option("checkpointLocation", f"{folder}/merged").trigger(availableNow=True).start)

    if not follow():
        return None
    cat.update(source, {"text": "'newer'"}, "id < 2")
    cat.append(_rows(spark, [(6, "late")]), source)
    cat.delete(source, "id = 5")
    if not follow():
        return None
    filled = cat.read(source, ["id", "text", "size"]).collect()
    assert {row["id"]: row["size"] for row in filled} == {row["id"]: len(row["text"]) for row in filled}
    assert {row["id"]: row["text"] for row in cat.read(copy).collect()} == {
        **dict.fromkeys(range(6), "old"),
        0: "newer",
        1: "newer",
        6: "late",
    }
    return [
        sorted([row["_change_type"], row["id"]] for row in cat.read_changes(table, 1, columns=["id"]).collect())
        for table in (source, copy)
    ]


@column(version="1", inputs=["text"], returns=pa.int64())
def measure_text(texts: Any) -> Any:
    """Characters."""
    return [len(text) for text in texts.to_pylist()]
