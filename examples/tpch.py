"""Ingest the TPC-H tables from Iceberg into Lance, and run the same query on both.

Run it with `python -m examples.tpch`. It starts and stops a catalog server and Spark on this machine. It needs no
network once the server's and Spark's packages are installed, and leaves nothing behind.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from time import perf_counter
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from lance_namespace import CreateNamespaceRequest
from pyiceberg.catalog.rest import RestCatalog
from rich.console import Console
from rich.table import Table

from lancehouse import IcebergNamespace
from lancehouse.spark import LanceCatalog
from lancehouse.spark.session import quiet_session
from tests.servers.lancehouse import Served, start_lancehouse
from tests.spark.tpch import QUERIES, TABLES, generate

SCALE = 0.05
QUERY = 3
"""The unshipped orders with the highest value."""
NEEDED = {
    "customer": ["c_custkey", "c_mktsegment"],
    "orders": ["o_orderkey", "o_custkey", "o_orderdate", "o_shippriority"],
    "lineitem": ["l_orderkey", "l_extendedprice", "l_discount", "l_shipdate"],
}
"""The columns that the query needs: Spark does not pass them to a Python source."""

console = Console(highlight=False)


@contextmanager
def step(number: int, title: str) -> Iterator[None]:
    """Print the title of a step, and how long it took."""
    console.print(f"\n[bold cyan]{number}[/] [bold]{title}[/]")
    begin = perf_counter()
    with console.status("working …"):
        yield
    console.print(f"  [dim]{perf_counter() - begin:.1f} s[/]")


def main() -> None:
    """Run the example, from generated files to the same result of both tables."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--scale", type=float, default=SCALE, help=f"1 is a gigabyte of text; by default {SCALE}")
    scale = parser.parse_args().scale
    console.print("[bold]Lancehouse[/]: TPC-H from Iceberg to Lance, in one catalog.")
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="lancehouse-tpch-")))
        with step(1, f"Generate the eight tables at scale {scale}, as Parquet"):
            files = generate(folder / "files", scale)
        rows = sum(pq.read_metadata(file).num_rows for file in files.glob("*.parquet"))
        console.print(f"  {rows:,} rows")
        with step(2, "Start a catalog, and Spark on this machine"):
            served = stack.enter_context(start_lancehouse(folder / "server"))
            spark = stack.enter_context(quiet_session(options={"spark.sql.shuffle.partitions": str(os.cpu_count())}))
        console.print(f"  {served.uri}; Spark {spark.version}")
        tell(spark, served, files)
    console.print("\nThe server and Spark are stopped, and the folder is gone. Next: docs/spark.md")


def tell(spark: Any, served: Served, files: Path) -> None:
    """Run the steps that need the server."""
    iceberg = RestCatalog("tpch", uri=served.iceberg, warehouse=served.warehouse)
    with step(3, "Write them as Iceberg tables, with pyiceberg"):
        iceberg.create_namespace("tpch")
        for name in TABLES:
            data = pq.read_table(files / f"{name}.parquet")
            iceberg.create_table(("tpch", name), _plain(data.schema)).append(data.cast(_plain(data.schema)))

    lance = [served.warehouse, "tpch_lance"]
    with step(4, "Ingest them into Lance tables of the same catalog: Arrow alone, in Spark's tasks"):
        IcebergNamespace(endpoint=served.iceberg).create_namespace(CreateNamespaceRequest(id=lance))
        cat = LanceCatalog(spark, "iceberg", {"endpoint": served.iceberg})
        for name in TABLES:
            cat.ingest(iceberg.load_table(("tpch", name)), [*lance, name], format="iceberg")
    console.print(f"  {', '.join(f'{name} {cat.count([*lance, name]):,}' for name in TABLES)}")

    with step(5, f"Query {QUERY} on both: Iceberg's rows by way of pyiceberg, Lance's read by the tasks"):
        spent, answers = dict[str, float](), dict[str, list[Any]]()
        for kind in ("Iceberg", "Lance"):
            begin = perf_counter()
            for name, columns in NEEDED.items():
                if kind == "Iceberg":
                    scan = iceberg.load_table(("tpch", name)).scan(selected_fields=tuple(columns))
                    rows = spark.createDataFrame(scan.to_arrow())
                else:
                    rows = cat.read([*lance, name], columns)
                rows.createOrReplaceTempView(name)
            answers[kind] = spark.sql(QUERIES[QUERY]).collect()
            spent[kind] = perf_counter() - begin
    show(answers, spent)

    with step(6, "Revenue by ship mode, added up inside the tasks: no row goes to the JVM"):
        cat.add_columns([*lance, "lineitem"], {"revenue": "l_extendedprice * (1 - l_discount)"})
        found = cat.aggregate([*lance, "lineitem"], "l_shipmode", sum="revenue", count="*").orderBy("l_shipmode")
        lines = [f"{row.l_shipmode:8}{row['count']:>9,} rows{row.revenue_sum:>22,.2f}" for row in found.collect()]
    for line in lines:
        console.print(f"  {line}")


def _plain(schema: pa.Schema) -> pa.Schema:
    """Return a schema without string views, which Iceberg does not have."""
    return pa.schema([field.with_type(pa.string()) if _is_text(field.type) else field for field in schema])


def _is_text(dtype: pa.DataType) -> bool:
    return pa.types.is_string_view(dtype) or pa.types.is_large_string(dtype)


def show(answers: dict[str, list[Any]], spent: dict[str, float]) -> None:
    """Print both results side by side."""
    shown = Table("order", "date", *(f"{kind}: revenue" for kind in answers))
    for ours, theirs in zip(*answers.values(), strict=True):
        shown.add_row(str(ours[0]), str(ours[2]), str(ours[1]), str(theirs[1]))
    console.print(shown)
    same = "the same" if len({repr(answer) for answer in answers.values()}) == 1 else "NOT the same"
    times = ", ".join(f"{kind} {seconds:.1f} s" for kind, seconds in spent.items())
    console.print(f"  the answers are {same}; {times}")


if __name__ == "__main__":
    main()
