"""What a pipeline reads: files, an Iceberg table or a Lance table, each in units that tasks read in Arrow."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa
from lance_namespace.errors import TableSchemaValidationError

from lancehouse.lake.scans import Moment, Part, Scan, groups
from lancehouse.lake.windows import has_blobs
from lancehouse.spark.address import Address, Catalog
from lancehouse.spark.pipelines.documents import plain
from lancehouse.spark.pipelines.shape import Shape, SourcePart
from lancehouse.spark.reading import Pinned
from lancehouse.spark.sources import Source, Unit, open_source
from lancehouse.spark.sources.conforming import conformed
from lancehouse.spark.sources.opening import ICEBERG


@dataclass(frozen=True, slots=True)
class Origin:
    """A source that can be opened."""

    part: SourcePart
    folder: Path
    """Where files are, whose paths do not begin at the root."""
    address: Address | None
    """Of a Lance table."""

    @classmethod
    def of(cls, shape: Shape, folder: Path) -> Origin:
        """That of a pipeline.

        Raises:
            InvalidInputError: there is no such catalog.
        """
        part = shape.source
        if part.table is None:
            return cls(part, folder, None)
        catalog = part.catalog or shape.catalog
        return cls(part, folder, Catalog.of(catalog.impl, catalog.properties).table(part.table))

    @property
    def name(self) -> list[str]:
        """What it is known by when it comes again; the units tell which rows."""
        if self.address is not None:
            return [f"{self.address.catalog} {self.address}", str(self.part.filter), str(self.part.columns)]
        return [*self._paths(), str(self.part.columns)]

    @property
    def words(self) -> str:
        """What it is, for people."""
        if self.address is not None:
            at = (
                f" version {self.part.version}"
                if self.part.version
                else f" tag {self.part.tag}"
                if self.part.tag
                else ""
            )
            return f"{self.address}{at}" + (f" where {self.part.filter}" if self.part.filter else "")
        return (
            f"Iceberg table {self.part.iceberg}" if self.part.iceberg else f"files {', '.join(self.part.files or ())}"
        )

    def open(self, parallelism: int = 1) -> Source:
        """Look at it, without reading its rows.

        Raises:
            LanceNamespaceError: it is not there, cannot be read, or has no such column; or the filter is none.
        """
        if self.address is not None:
            return _table(self.address, self.part, parallelism)
        if self.part.iceberg is not None:
            return open_source(
                self.part.iceberg, ICEBERG, self.part.columns, self.part.properties, parallelism=parallelism
            )
        return open_source(
            self._paths(), self.part.format, self.part.columns, plain(self.part.options), parallelism=parallelism
        )

    def _paths(self) -> list[str]:
        if self.part.iceberg is not None:
            return [self.part.iceberg]
        return [path if "://" in path else str(self.folder / path) for path in self.part.files or ()]


@dataclass(frozen=True, slots=True)
class TableUnit(Unit):
    """Some rows of a version of a Lance table."""

    pinned: Pinned
    scan: Scan
    parts: tuple[Part, ...]
    key: str
    bytes: int = 0
    rows: int | None = field(default=None)

    def batches(self, schema: pa.Schema, *, use_threads: bool = True) -> Iterator[pa.RecordBatch]:  # noqa: ARG002
        """The rows in a schema; Lance decides about threads."""
        table, dataset = self.pinned.open()
        for batch in self.scan.batches(table, dataset, self.parts):
            yield conformed(batch, schema, (), str(table))


def _table(address: Address, part: SourcePart, parallelism: int) -> Source:
    pinned = Pinned.at(address, Moment(part.version, part.tag))
    table, dataset = pinned.open()
    scan = Scan(part.columns, part.filter)
    if any("." in name for name in part.columns or ()):
        raise TableSchemaValidationError(f"{table}: columns are whole ones here; take a field in a step select")
    known = dataset.schema
    read = scan.schema(table, dataset)  # which has blobs as the binaries that they are read as
    schema = pa.schema([known.field(each.name) if has_blobs(known.field(each.name)) else each for each in read])
    where = f"{address} {pinned.branch or ''} version {pinned.version} {part.filter} {part.columns}"
    units: list[Unit] = [
        TableUnit(pinned, scan, tuple(parts), f"{where} {parts}")
        for parts in groups(dataset, parallelism, split=part.filter is None)
    ]
    return Source(schema, units)
