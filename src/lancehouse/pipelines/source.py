"""The source of a pipeline (files, an Iceberg table or a Lance table), opened in units that tasks read."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa
from lance_namespace.errors import TableSchemaValidationError

from lancehouse.connection import Connection
from lancehouse.documents import to_plain
from lancehouse.jobs.address import PinnedVersion, TableAddress
from lancehouse.jobs.sources import IngestSource, Unit, open_source
from lancehouse.jobs.sources.conform import conform
from lancehouse.jobs.sources.open_source import ICEBERG
from lancehouse.lake.chunked_fragment import has_blobs
from lancehouse.lake.scans import FragmentRange, Scan, VersionSelector, split_fragments
from lancehouse.pipelines.spec import PipelineSpec, SourcePart


@dataclass(frozen=True, slots=True)
class Origin:
    """A source that can be opened."""

    part: SourcePart
    folder: Path
    """Folder that relative paths of files are relative to."""
    address: TableAddress | None
    """Address of a Lance table; None for other sources."""

    @classmethod
    def from_spec(cls, shape: PipelineSpec, folder: Path) -> Origin:
        """Return the source of a pipeline.

        Raises:
            InvalidInputError: there is no such catalog.
        """
        part = shape.source
        if part.table is None:
            return cls(part, folder, None)
        catalog = part.catalog or shape.catalog
        return cls(part, folder, TableAddress.parse(Connection(catalog.impl, catalog.properties), part.table))

    @property
    def name(self) -> list[str]:
        """Identifies the source when a run is repeated; which rows are read is left to the keys of its units."""
        if self.address is not None:
            return [f"{self.address.connection} {self.address}", str(self.part.filter), str(self.part.columns)]
        return [*self._paths(), str(self.part.columns)]

    @property
    def description(self) -> str:
        """Description for messages and plans."""
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

    def open(self, parallelism: int = 1) -> IngestSource:
        """Open the source, without reading all rows.

        Raises:
            LanceNamespaceError: the source does not exist, cannot be read or lacks a column, or the filter is invalid.
        """
        if self.address is not None:
            return _open_table(self.address, self.part, parallelism)
        if self.part.iceberg is not None:
            return open_source(
                self.part.iceberg, ICEBERG, self.part.columns, self.part.properties, parallelism=parallelism
            )
        return open_source(
            self._paths(), self.part.format, self.part.columns, to_plain(self.part.options), parallelism=parallelism
        )

    def _paths(self) -> list[str]:
        if self.part.iceberg is not None:
            return [self.part.iceberg]
        return [path if "://" in path else str(self.folder / path) for path in self.part.files or ()]


@dataclass(frozen=True, slots=True)
class TableUnit(Unit):
    """Some rows of a version of a Lance table."""

    pinned: PinnedVersion
    scan: Scan
    parts: tuple[FragmentRange, ...]
    key: str
    bytes: int = 0
    rows: int | None = field(default=None)

    def batches(self, schema: pa.Schema, *, use_threads: bool = True) -> Iterator[pa.RecordBatch]:  # noqa: ARG002
        """Yield the rows in a schema; Lance decides about threads."""
        table, dataset = self.pinned.open()
        for batch in self.scan.batches(table, dataset, self.parts):
            yield conform(batch, schema, (), str(table))


def _open_table(address: TableAddress, part: SourcePart, parallelism: int) -> IngestSource:
    pinned = PinnedVersion.resolve(address, VersionSelector(part.version, part.tag))
    table, dataset = pinned.open()
    scan = Scan(part.columns, part.filter)
    if any("." in name for name in part.columns or ()):
        raise TableSchemaValidationError(f"{table}: columns are whole ones here; take a field in a step select")
    full_schema = dataset.schema
    scanned_schema = scan.schema(table, dataset)  # in which blobs are binaries, as a scan reads them
    schema = pa.schema(
        [full_schema.field(each.name) if has_blobs(full_schema.field(each.name)) else each for each in scanned_schema]
    )
    where = f"{address} {pinned.branch or ''} version {pinned.version} {part.filter} {part.columns}"
    units: list[Unit] = [
        TableUnit(pinned, scan, tuple(parts), f"{where} {parts}")
        for parts in split_fragments(dataset, parallelism, split=part.filter is None)
    ]
    return IngestSource(schema, units)
