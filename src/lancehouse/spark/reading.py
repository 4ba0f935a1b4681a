"""Lance tables as DataFrames: the driver pins a version and groups its fragments, tasks read them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self
from uuid import uuid4

from lance_namespace.errors import ConcurrentModificationError, InvalidInputError
from pyspark.sql import DataFrame, SparkSession

from lancehouse.lake.dataset import TableRef
from lancehouse.lake.manifests import made_by
from lancehouse.lake.scans import Moment, Part, Scan, groups
from lancehouse.schema.outgoing import to_rows
from lancehouse.spark.address import Address
from lancehouse.spark.session import parallelism, struct
from lancehouse.spark.tasks import Batches, results, spread

OPENED = 8
"""Versions that a worker keeps open, for the tasks that follow."""
MOST_ROWS = (1 << 31) - 1
"""The largest limit that Spark knows."""


@dataclass(frozen=True, slots=True)
class Pinned:
    """One version of a table, for all tasks of a job."""

    address: Address
    version: int
    branch: str | None
    job: str
    """Tells jobs apart: a table may have been dropped and made again under the same name."""
    made_by: str
    """Tells versions of such tables apart."""

    @classmethod
    def at(cls, address: Address, moment: Moment) -> Self:
        """The version that is meant, as of now.

        Raises:
            TableNotFoundError, TableVersionNotFoundError, TableTagNotFoundError: there is none.
        """
        table, dataset = moment.open(address.ref())
        assert table.version is not None
        pinned = cls(address, table.version, table.branch, uuid4().hex, made_by(dataset))
        _keep(pinned, (table, dataset))
        return pinned

    def open(self) -> tuple[TableRef, Any]:
        """The table in this process, opened once for all tasks of the job here.

        Raises:
            ConcurrentModificationError: it is another one by now.
        """
        if (found := _opened.pop(self, None)) is None:
            table = self.address.ref(version=self.version, branch=self.branch)
            dataset = table.open()
            if made_by(dataset) != self.made_by:
                raise ConcurrentModificationError(f"{table} was dropped and made anew meanwhile; read it again")
            found = table, dataset
        _keep(self, found)
        return found


_opened: dict[Pinned, tuple[TableRef, Any]] = {}


def _keep(pinned: Pinned, opened: tuple[TableRef, Any]) -> None:
    _opened[pinned] = opened
    if len(_opened) > OPENED:
        _opened.pop(next(iter(_opened)), None)


def read(spark: SparkSession, address: Address, scan: Scan, moment: Moment) -> DataFrame:
    """The rows of a table that a scan finds.

    Raises:
        LanceNamespaceError: there is no such table, version, or column, or the filter cannot be understood.
    """
    if (scan.limit or 0) > MOST_ROWS:
        raise InvalidInputError(f"limit is {scan.limit:,}, and Spark counts to {MOST_ROWS:,}: read without it")
    pinned = Pinned.at(address, moment)
    table, dataset = pinned.open()
    rows = to_rows(scan.schema(table, dataset))
    parts = groups(dataset, parallelism(spark), split=scan.filter is None)

    def work(parts: list[Part]) -> Batches:
        table, dataset = pinned.open()
        return (made for batch in scan.batches(table, dataset, parts) for made in rows.batches(batch))

    frame = spread(spark, parts, work, struct(rows.struct))
    return frame if scan.limit is None else frame.limit(scan.limit)


def count(spark: SparkSession, address: Address, filter: str | None, moment: Moment) -> int:
    """How many rows a table has, or how many of them match; counted in tasks, without reading more than that needs."""
    scan = Scan(columns=(), filter=filter, with_row_id=True)
    pinned = Pinned.at(address, moment)
    table, dataset = pinned.open()
    if filter is None:
        return int(dataset.count_rows())
    scan.schema(table, dataset)

    def work(parts: list[Part]) -> list[str]:
        return [str(scan.count(*pinned.open(), parts))]

    parts = groups(dataset, parallelism(spark), split=False)
    return sum(map(int, results(spark, parts, work)))
