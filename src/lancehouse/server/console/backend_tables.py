"""Read-only views of a backend's table for the console: versions, refs, layout, indices, rows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from lance_namespace import (
    DescribeTableRequest,
    DescribeTableResponse,
    LanceNamespace,
    ListTableVersionsRequest,
    ListTableVersionsResponse,
)
from lance_namespace_urllib3_client.models.index_content import IndexContent

from lancehouse.gateway.backends import Backend
from lancehouse.gateway.operations import BY_METHOD
from lancehouse.lake import column_states, version_records
from lancehouse.lake.column_states import ComputedColumn, StateCounts
from lancehouse.lake.dataset import TableRef
from lancehouse.lake.foreign_tables import ForeignTables
from lancehouse.lake.operations import to_index_content
from lancehouse.lake.recall_notes import RecallNote, digest_index, find_note
from lancehouse.lake.version_records import StorageLayout, TableRefs, VersionRecord, VersionSummary
from lancehouse.lake.versions import list_manifests
from lancehouse.paging import paginate
from lancehouse.schema.definitions import ViewDefinition
from lancehouse.schema.display import Cell
from lancehouse.server.console import row_pages
from lancehouse.server.console.row_pages import Neighbours, VectorProjection
from lancehouse.server.console.row_pages import RowPage as RowPage

INDICES = 200
"""Most indices that are listed."""
DESCRIBE = BY_METHOD["describe_table"]
"""The operation as which errors of all calls here are reported."""


@dataclass(frozen=True, slots=True)
class LocatedTable:
    """Location and newest version of a table, known to a catalog in this process.

    It saves the client from loading the table, which would read all versions.
    """

    location: str
    storage_options: Mapping[str, str] = field(repr=False)
    newest: int | None
    """The newest version; None if the one in storage counts."""


@dataclass(frozen=True, slots=True)
class IndexRecord:
    """An index, and how well it finds rows, if that was measured."""

    content: IndexContent
    recall: RecallNote | None
    has_changed: bool
    """Whether the index has changed since that was measured."""


@dataclass(frozen=True, slots=True)
class BackendTable:
    """A table of a backend at one version. Each call opens it again, so that permissions are always current."""

    backend: Backend
    ref: TableRef
    outer: LanceNamespace
    """Client that describes the table, and has no credentials of the storage."""
    inner: LanceNamespace
    """Client that reads the table."""

    @classmethod
    def from_backend(
        cls, backend: Backend, id: Sequence[str], token: str | None, version: int | None = None, *, reads_all: bool
    ) -> BackendTable:
        """Return a table of a backend; nothing is read yet."""
        clients = backend.connect(token, reads_all=reads_all)
        return cls(
            backend,
            TableRef.in_namespace(clients.tables, [*backend.id_prefix, *id], version=version),
            clients.outer,
            clients.tables,
        )

    @contextmanager
    def _guard_errors(self) -> Iterator[TableRef]:
        """Provide the address of the table, for a block whose errors must not reveal secrets of the backend."""
        with self.backend.translate_errors(DESCRIBE):
            yield self.ref

    def describe(self) -> DescribeTableResponse:
        """Return location and properties."""
        with self._guard_errors() as ref:
            return self.outer.describe_table(DescribeTableRequest(id=list(ref.id)))

    def summary(self) -> tuple[VersionSummary, TableRefs]:
        """Return a few numbers and the schema, and the tags and branches."""
        with self._guard_errors() as ref, ref.dataset() as dataset:
            return version_records.summarize(dataset), version_records.list_refs(dataset)

    def lineage(self) -> tuple[ViewDefinition | None, list[ComputedColumn]]:
        """Return what the table is a view of, and its computed columns.

        Raises:
            InvalidInputError: the definition of the view cannot be read.
        """
        with self._guard_errors() as ref, ref.dataset() as dataset:
            return ViewDefinition.from_schema(dataset.schema), column_states.describe_columns(dataset)

    def count_states(self, column: str) -> StateCounts:
        """Return how many rows of a computed column are filled, missing and failed."""
        with self._guard_errors() as ref, ref.dataset() as dataset:
            return column_states.count_states(dataset, column)

    def failed_rows(self, column: str | None, offset: int, limit: int) -> list[dict[str, Any]]:
        """Return rows for which the function of a computed column has failed, with the exceptions.

        Without a column, those of its source that a view leaves out.
        """
        with self._guard_errors() as ref:
            if column is None:
                return column_states.read_view_errors(ref, offset, limit)
            return column_states.read_failed_rows(ref, column, (), offset, limit).to_pylist()

    def layout(self) -> StorageLayout:
        """Return the fragments."""
        with self._guard_errors() as ref:
            return version_records.read_layout(ref)

    def versions(
        self, limit: int, page_token: str | None, located: LocatedTable | None = None
    ) -> tuple[list[VersionRecord], str | None]:
        """Return versions, newest first, and the token of the next page or None.

        A page costs the manifests that it shows.
        """
        with self._guard_errors() as ref:
            if isinstance(self.inner, ForeignTables):  # only the third-party namespace knows what its versions are
                response = self._list_versions(ref, limit, page_token)
                numbers = [version.version for version in response.versions]
                return version_records.read_versions(replace(ref, version=None), numbers), response.page_token or None
            located = located or self._locate(ref)
            if ref.confinement is not None:  # the location came from the catalog, so no client has checked it yet
                ref.confinement.require_table(located.location)
            table_ref = TableRef(located.location, located.storage_options, confinement=ref.confinement)
            files = list_manifests(table_ref)
            if located.newest is not None and located.newest not in files:
                # Accepted, but its manifest is not in its final location yet: loading the table through the client
                # moves it there.
                located = self._locate(ref)
                files = list_manifests(table_ref)
            newest = max(files, default=0) if located.newest is None else located.newest
            accepted_files = {version: file for version, file in files.items() if version <= newest}
            version_page = paginate(accepted_files, limit, page_token, descending=True)
            return version_records.read_versions(table_ref, list(version_page.items)), version_page.token

    def _locate(self, ref: TableRef) -> LocatedTable:
        """Return location and newest version from the client.

        Only the newest version must come from the catalog. If the table were read by name, the catalog would be asked
        for each older version too and, where it manages them, each response would hold all versions.
        """
        newest = max((version.version for version in self._list_versions(ref, 1, None).versions), default=0)
        entry = self.inner.describe_table(DescribeTableRequest(id=list(ref.id)))
        assert entry.location is not None
        return LocatedTable(entry.location, entry.storage_options or {}, newest)

    def _list_versions(self, ref: TableRef, limit: int, page_token: str | None) -> ListTableVersionsResponse:
        return self.inner.list_table_versions(
            ListTableVersionsRequest(id=list(ref.id), limit=limit, page_token=page_token, descending=True)
        )

    def indices(self) -> list[IndexRecord]:
        """Return the indices by name, with the recall that was measured last."""
        with self._guard_errors() as ref, ref.dataset() as dataset:
            rows = dataset.count_rows()
            descriptions = sorted(dataset.describe_indices(), key=lambda index: index.name)[:INDICES]
            notes = [find_note(dataset, index.name) for index in descriptions]
        return [
            IndexRecord(to_index_content(index, rows), note, note is not None and note.index != digest_index(index))
            for index, note in zip(descriptions, notes, strict=True)
        ]

    def page(self, columns: Sequence[str], filter: str | None, offset: int, limit: int) -> RowPage:
        """Return some rows."""
        condition = rewrite_filter(filter)
        with self._guard_errors() as ref:
            return row_pages.read_page(ref, columns=columns, filter=condition, offset=offset, limit=limit)

    def count(self, filter: str | None) -> int:
        """Return the number of matching rows."""
        condition = rewrite_filter(filter)
        with self._guard_errors() as ref:
            return row_pages.count_matching_rows(ref, condition)

    def value(self, column: str, row: int) -> Cell:
        """Return one value in full."""
        with self._guard_errors() as ref:
            return row_pages.read_value(ref, column, row)

    def content(self, column: str, row: int, max_bytes: int) -> bytes | None:
        """Return the bytes of one value, or None."""
        with self._guard_errors() as ref:
            return row_pages.read_content(ref, column, row, max_bytes)

    def project_vectors(self, column: str, label: str | None) -> VectorProjection:
        """Return a sample of a vector column, projected to two dimensions."""
        with self._guard_errors() as ref:
            return row_pages.project_sample(ref, column, label)

    def neighbours(self, column: str, row: int, k: int, columns: Sequence[str]) -> Neighbours:
        """Return the rows whose vectors are nearest to that of one row."""
        with self._guard_errors() as ref:
            return row_pages.find_neighbours(ref, column, row, k, columns)


def rewrite_filter(filter: str | None) -> str | None:
    """Parse a caller's filter, and write it anew for Lance."""
    if not filter:
        return None
    from lancehouse.gateway.sql import rewrite_condition  # the parser is loaded with the first filter; it takes 26 MB

    return rewrite_condition(filter, "filter")
