"""Filling a computed column: ours on one and two cores, plain pylance, Spark that overwrites the table, a merge.

`python -m bench.columns --help`
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import lance
import numpy as np
import pyarrow as pa
from rich.console import Console
from rich.table import Table

import lancehouse
from lancehouse.connection import Connection
from lancehouse.jobs import LocalEngine, TableJobs

DIMENSION = 128
PAYLOAD = 1000
FRAGMENTS = 8


@lancehouse.column(version="1", inputs=["id"], returns=pa.list_(pa.float32(), DIMENSION))
def embed(ids: Any) -> Any:
    """A cheap vector."""
    return np.outer(ids.to_numpy().astype(np.float32), np.arange(DIMENSION, dtype=np.float32))


def make_table(place: Path, rows: int) -> None:
    """Numbers, and a kilobyte beside each."""
    rng = np.random.default_rng(1)

    def batches() -> Any:
        for first in range(0, rows, 10_000):
            count = min(10_000, rows - first)
            data = pa.py_buffer(rng.bytes(count * PAYLOAD))
            payload = pa.Array.from_buffers(pa.binary(PAYLOAD), count, [None, data]).cast(pa.binary())
            yield pa.record_batch({"id": pa.array(np.arange(first, first + count)), "payload": payload})

    fields: list[pa.Field[Any]] = [pa.field("id", pa.int64()), pa.field("payload", pa.binary())]
    schema = pa.schema(fields)
    reader = pa.RecordBatchReader.from_batches(schema, batches())
    size = -(-rows // FRAGMENTS)
    lance.write_dataset(reader, place, schema=schema, max_rows_per_file=size, enable_stable_row_ids=True)


def count_bytes(place: Path) -> int:
    """Bytes of all data files."""
    return sum(file.stat().st_size for file in (place / "data").rglob("*") if file.is_file())


class ColumnBench:
    """One table, copied for each side."""

    def __init__(self, folder: Path, rows: int) -> None:
        self.folder, self.rows = folder, rows
        make_table(folder / "source.lance", rows)

    def measure(self, name: str, work: Callable[[Path], Any]) -> tuple[str, float, int]:
        """Do it on a copy of the table; return its name, seconds and bytes written."""
        place = self.folder / "t.lance"
        shutil.rmtree(place, ignore_errors=True)
        shutil.copytree(self.folder / "source.lance", place)
        before, begun = count_bytes(place), time.perf_counter()
        work(place)
        return name, time.perf_counter() - begun, count_bytes(place) - before

    def jobs(self, threads: int) -> TableJobs:
        """Ours, on so many threads."""
        return TableJobs(Connection("dir", {"root": str(self.folder)}), LocalEngine(threads=threads))

    def run(self, rounds: int) -> list[list[tuple[str, float, int]]]:
        """All sides in turns."""

        def pylance(place: Path) -> None:
            schema = pa.schema([("e", pa.list_(pa.float32(), DIMENSION))])

            @lance.batch_udf(output_schema=schema)  # type: ignore[untyped-decorator]
            def compute(batch: pa.RecordBatch) -> pa.RecordBatch:
                vectors = embed(batch.column("id"))
                return pa.record_batch([pa.FixedSizeListArray.from_arrays(vectors.reshape(-1), DIMENSION)], ["e"])

            lance.dataset(place).add_columns(compute, read_columns=["id"])

        def merge(place: Path) -> None:
            dataset = lance.dataset(place)
            dataset.add_columns(pa.schema([("e", pa.list_(pa.float32(), DIMENSION))]))
            rows = dataset.to_table()
            values = pa.FixedSizeListArray.from_arrays(embed(rows["id"].combine_chunks()).reshape(-1), DIMENSION)
            new = rows.drop_columns(["e"]).append_column("e", values)
            dataset.merge_insert("id").when_matched_update_all().execute(new)

        def append_and_fill(place: Path) -> tuple[float, int]:
            more = pa.table({"id": np.arange(self.rows, self.rows + self.rows // 100)})
            lance.write_dataset(more, place, mode="append")
            before, begun = count_bytes(place), time.perf_counter()
            self.jobs(2).backfill("t", {"e": embed})
            return time.perf_counter() - begun, count_bytes(place) - before

        found = []
        for _ in range(rounds):
            one = self.measure("lancehouse, one thread", lambda _: self.jobs(1).add_columns("t", {"e": embed}))
            two = self.measure("lancehouse, two threads", lambda _: self.jobs(2).add_columns("t", {"e": embed}))
            more = append_and_fill(self.folder / "t.lance")
            plain = self.measure("pylance add_columns", pylance)
            merged = self.measure("pylance merge_insert", merge)
            found.append([one, two, plain, merged, ("1 % more rows", *more)])
        return found


def main(arguments: Sequence[str] | None = None) -> None:
    """Run it."""
    parser = argparse.ArgumentParser(prog="python -m bench.columns", description=__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help="small, to see that it works; the figures say little")
    options = parser.parse_args(arguments)
    rows, rounds = (20_000, 1) if options.quick else (options.rows, options.rounds)
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        found = ColumnBench(Path(folder), rows).run(rounds)
    table = Table("side", "seconds", "pylance / it", "bytes written", "× the column's")
    column_bytes = rows * DIMENSION * 4
    plain_s = sorted(each[2][1] for each in found)[len(found) // 2]
    for side in range(len(found[0])):
        runs = sorted((each[side] for each in found), key=lambda run: run[1])
        name, seconds, written = runs[len(runs) // 2]
        size = column_bytes // 100 if side == 4 else column_bytes
        table.add_row(name, f"{seconds:.2f}", f"{plain_s / seconds:.2f}", f"{written:,}", f"{written / size:.2f}")
    Console().print(table)


if __name__ == "__main__":
    main()
