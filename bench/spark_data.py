"""The rows that Spark and Lance work on: the same for all sides, as Parquet files and as Lance tables."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import lance
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq

FILES = 12
"""Of the rows of four columns."""
PIECES = 64
"""Fragments and files of the table that is to be compacted."""
DIMENSION = 128
_untyped: Any = pa
"""pyarrow, of whose arguments its stubs know too few."""
RANGE = 1_000_000_000
"""`id` is below that; a hundredth of it is a filter to 1 %."""
KEY = ["l_orderkey", "l_linenumber"]
MERGED = "merged"
"""A comment that no other row has."""
NEW = 10
"""Of so many rows that are merged, one is new."""


@dataclass(frozen=True, slots=True)
class Amount:
    """How many rows."""

    rows: int
    vectors: int
    scale: float
    """Of TPC-H."""

    def part(self, divisor: int) -> Amount:
        """The same with fewer."""
        return Amount(self.rows // divisor, self.vectors // divisor, self.scale / divisor)


@dataclass(frozen=True, slots=True)
class Data:
    """Where everything lies. Tables are in the folder `lance`, files in folders beside it."""

    folder: Path
    amount: Amount

    @property
    def lance(self) -> Path:
        """The root of the tables."""
        return self.folder / "lance"

    def table(self, name: str) -> Path:
        """A table, by path."""
        return self.lance / f"{name}.lance"

    def files(self, name: str) -> Path:
        """The folder of the same rows as Parquet."""
        return self.folder / name


def make(folder: Path, amount: Amount) -> Data:
    """Make all rows, always the same."""
    data = Data(folder, amount)
    _write(data, "four", _four(amount.rows // FILES, FILES))
    _write(data, "vectors", _vectors(amount.vectors // 4, 4))
    _write(data, "pieces", _four(amount.rows // 4 // PIECES, PIECES), max_rows_per_file=amount.rows // 4 // PIECES)
    _lineitem(data)
    return data


def _four(rows: int, files: int) -> Iterator[pa.Table]:
    random = np.random.default_rng(1)
    for _ in range(files):
        numbers = pa.array(random.integers(10**10, 10**11, rows)).cast(pa.string())
        yield pa.table(
            {
                "id": pa.array(random.integers(0, RANGE, rows)),
                "value": pa.array(random.random(rows)),
                "text": _untyped.compute.binary_join_element_wise("customer", numbers, "-"),
                "time": pa.array(random.integers(0, 10**15, rows)).cast(pa.timestamp("us", "UTC")),
            }
        )


def _vectors(rows: int, files: int) -> Iterator[pa.Table]:
    random = np.random.default_rng(2)
    for number in range(files):
        values = pa.array(random.standard_normal(rows * DIMENSION, dtype=np.float32))
        vectors = pa.FixedSizeListArray.from_arrays(values, DIMENSION)
        yield pa.table({"id": pa.array(np.arange(number * rows, (number + 1) * rows)), "vector": vectors})


def _write(data: Data, name: str, tables: Iterator[pa.Table], **how: Any) -> None:
    data.files(name).mkdir(parents=True)
    for number, table in enumerate(tables):
        pq.write_table(table, data.files(name) / f"{number:03}.parquet", use_dictionary=name != "vectors")
    lance.write_dataset(ds.dataset(data.files(name)), data.table(name), **how)


def _lineitem(data: Data) -> None:
    folder = data.files("lineitem")
    folder.mkdir(parents=True)
    tool = Path(sys.executable).with_name("tpchgen-cli")
    wanted = [f"--scale-factor={data.amount.scale:.6f}", "--tables=lineitem", f"--output-dir={folder}"]
    subprocess.run([str(tool), "parquet", *wanted], check=True, capture_output=True)
    _write_merged(data, lance.write_dataset(ds.dataset(folder), data.table("lineitem")))


def _write_merged(data: Data, lineitem: lance.LanceDataset) -> None:
    """One row of a hundred, wherever they are; some have a key that is new."""
    folder = data.files("merged")
    folder.mkdir(parents=True)
    number = lineitem.count_rows()
    chosen = np.sort(np.random.default_rng(3).choice(number, number // 100, replace=False))
    rows = lineitem.take(chosen)
    at = {name: place for place, name in enumerate(rows.column_names)}
    is_new = pa.array(np.arange(len(rows)) % NEW == 0)
    order = rows["l_orderkey"]
    rows = rows.set_column(at["l_orderkey"], "l_orderkey", pc.if_else(is_new, pc.negate(order), order))
    comment = pa.repeat(pa.scalar(MERGED, rows.schema.field("l_comment").type), len(rows))
    rows = rows.set_column(at["l_comment"], rows.schema.field("l_comment"), comment)
    pq.write_table(rows, folder / "0.parquet")


@dataclass(frozen=True, slots=True)
class Contents:
    """What tells one table from another, for a check."""

    rows: int
    total: int | float
    """Of one column."""
    matching: int = 0
    """Rows of a certain kind."""


def contents(place: Path, column: str, filter: str | None = None) -> Contents:
    """Of a Lance table, or of a folder of Parquet files."""
    if place.suffix == ".lance":
        table = lance.dataset(str(place))
        rows = table.to_table([column])
        matching = table.count_rows(filter) if filter else 0
    else:
        files = ds.dataset(place, format="parquet")
        rows = files.to_table([column])
        name, _, value = (filter or "").partition(" = ")
        matching = files.count_rows(filter=pc.field(name) == value.strip("'")) if filter else 0
    return Contents(len(rows), pc.sum(rows[column]).as_py(), matching)
