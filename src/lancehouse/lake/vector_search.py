"""Find the rows nearest to a vector, with the index or by comparing all vectors in parts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from operator import index as to_int
from typing import Any

import lance
import numpy as np
import pyarrow as pa
from lance_namespace.errors import InvalidInputError

from lancehouse.lake.dataset import TableRef
from lancehouse.lake.errors import translate_errors
from lancehouse.lake.nearest_rows import NearestRows
from lancehouse.lake.scans import FragmentRange, Scan
from lancehouse.modes import parse_choice
from lancehouse.schema.definitions import shown_columns
from lancehouse.schema.walk import require_columns

DISTANCE = "_distance"
METRICS = ("l2", "cosine", "dot")

GRAPH = "HNSW"
LEAST_PROBES = 20
"""Smallest number of partitions searched, unless the caller gives a number; Lance searches more of a large index."""
LEAST_REFINE, LEAST_CANDIDATES = 10, 200
"""By default, `k` times the first number of candidates, and at least the second, are compared by their full vectors."""

Hit = tuple[float, int]
"""Distance and row id."""


@dataclass(frozen=True, slots=True)
class SearchEffort:
    """How much work a search by index does to find the true nearest rows. None stands for a value that suits `k`.

    Lance's own defaults trust the codes of a quantized index. Rows that are close together have nearly the same code,
    and fewer than half of the nearest were found in such a table (`bench/recall.py`).
    """

    nprobes: int | None = None
    """Number of partitions of the index to search."""
    refine_factor: int | None = None
    """Number of candidates, as a multiple of `k`, that are compared by their full vectors instead of their codes."""
    ef: int | None = None
    """Number of candidates that an HNSW graph keeps; other indices do not use it."""

    def check(self, k: int) -> None:
        """Validate the values.

        Raises:
            InvalidInputError: a value is not a positive integer, or `ef` is too small for the number of candidates.
        """
        for name in self.__slots__:
            if (value := getattr(self, name)) is not None:
                require_count(name, value)
        needed = k * (self.refine_factor or 1)
        if self.ef is not None and self.ef < needed:
            candidates = "k" if self.refine_factor is None else "k times refine_factor"
            raise InvalidInputError(f"ef is {self.ef}, and has to be {candidates} at least, which is {needed}")

    def to_options(self, k: int) -> dict[str, int]:
        """Return the options for pylance's argument `nearest`."""
        refine = self.refine_factor
        if refine is None:
            refine = max(LEAST_REFINE, -(-LEAST_CANDIDATES // k))
            if self.ef is not None:  # a graph cannot return more candidates than it keeps
                refine = min(refine, self.ef // k)
        probes = {"minimum_nprobes": LEAST_PROBES} if self.nprobes is None else {"nprobes": to_int(self.nprobes)}
        graph = {} if self.ef is None else {"ef": to_int(self.ef)}
        return {**probes, "refine_factor": to_int(refine), **graph}


def require_count(name: str, value: Any) -> None:
    """Check that a value is a positive integer.

    Raises:
        InvalidInputError: it is not.
    """
    try:
        is_count = not isinstance(value, bool) and to_int(value) > 0
    except TypeError:
        is_count = False
    if not is_count:
        raise InvalidInputError(f"{name} is {value!r}, and has to be a whole number above 0")


@dataclass(frozen=True, slots=True)
class VectorSearch:
    """A search for the `k` rows nearest to a vector."""

    vector: tuple[float, ...]
    k: int
    column: str
    filter: str | None = None
    columns: tuple[str, ...] | None = None
    metric: str | None = None
    """None for the index's metric, or `l2` without an index."""
    effort: SearchEffort = SearchEffort()

    def check(self, table: TableRef, dataset: lance.LanceDataset) -> None:
        """Validate the search before anything is read.

        Raises:
            InvalidInputError: the vector does not fit the column, or the filter cannot be parsed.
        """
        if self.metric is not None:
            parse_choice("metric", self.metric, *METRICS)
        require_count("k", self.k)
        self.effort.check(self.k)
        index = find_vector_index(dataset, self.column) if self.effort.ef is not None else None
        if index is not None and GRAPH not in index.kind.upper():
            kind = index.kind.upper()
            raise InvalidInputError(f"{table}: ef is for an HNSW index, and that of {self.column} is {kind}")
        dtype = dataset.schema.field(self.column).type
        if not isinstance(dtype, pa.FixedSizeListType):
            raise InvalidInputError(f"{table}: column {self.column} holds {dtype}, no vectors")
        if dtype.list_size != len(self.vector):
            raise InvalidInputError(
                f"{table}: column {self.column} holds vectors of {dtype.list_size} numbers, the one given has "
                f"{len(self.vector)}"
            )
        Scan(self.columns, self.filter).schema(table, dataset)

    def search_index(self, table: TableRef, dataset: lance.LanceDataset) -> pa.Table:
        """Return the nearest rows, by the index and by comparing the rows that it does not cover yet."""
        metric = {} if self.metric is None else {"metric": self.metric}
        with translate_errors(table):
            rows: pa.Table = dataset.scanner(
                columns=[*self._column_names(dataset), DISTANCE],
                nearest={
                    "column": self.column,
                    "q": list(self.vector),
                    "k": self.k,
                    **metric,
                    **self.effort.to_options(self.k),
                },
                filter=self.filter,
                prefilter=True,
                blob_handling="all_binary",
            ).to_table()
        return rows

    def search_parts(self, table: TableRef, dataset: lance.LanceDataset, parts: Sequence[FragmentRange]) -> list[Hit]:
        """Return the nearest rows of some parts, by comparing all vectors."""
        nearest = NearestRows(np.array([self.vector], np.float32), self.k, self.metric or METRICS[0])
        nearest.add(Scan((self.column,), self.filter, with_row_id=True).batches(table, dataset, parts))
        hits = nearest.hits()
        return list(zip(hits.values.tolist(), hits.rows.tolist(), strict=True))

    def read_hits(self, table: TableRef, dataset: lance.LanceDataset, hits: Sequence[Hit]) -> pa.Table:
        """Read the rows that were found, nearest first."""
        distances = {row: distance for distance, row in hits}
        row_filter = f"_rowid IN ({', '.join(map(str, distances))})" if distances else "false"
        with translate_errors(table):
            table_rows = dataset.scanner(
                columns=self._column_names(dataset),
                filter=row_filter,
                with_row_id=True,
                blob_handling="all_binary",
            ).to_table()
        ids = table_rows.column("_rowid").to_pylist()
        column = pa.array([distances[row] for row in ids], pa.float32())
        answer: pa.Table = table_rows.drop_columns(["_rowid"]).append_column(DISTANCE, column)
        return answer.take(np.argsort(column.to_numpy(zero_copy_only=False), kind="stable"))

    def _column_names(self, dataset: lance.LanceDataset) -> list[str]:
        return shown_columns(dataset.schema) if self.columns is None else list(self.columns)


def best_hits(hits: Sequence[Hit], k: int) -> list[Hit]:
    """Return the `k` nearest of the hits of several parts."""
    return sorted(hits)[:k]


def resolve_vector_column(table: TableRef, schema: pa.Schema, column: str | None) -> str:
    """Return the column to search: the one that is named, or the only one that holds vectors.

    Raises:
        TableColumnNotFoundError: the table has no such column.
        InvalidInputError: none is named, and the table does not have exactly one vector column.
    """
    if column is not None:
        require_columns(table, [column], schema.names)
        return column
    vectors = [field.name for field in schema if isinstance(field.type, pa.FixedSizeListType)]
    if not vectors:
        raise InvalidInputError(f"{table} has no column with vectors")
    if len(vectors) > 1:
        names = ", ".join(vectors)
        raise InvalidInputError(f"{table} has several columns with vectors, {names}: name the one to search")
    return vectors[0]


@dataclass(frozen=True, slots=True)
class VectorIndex:
    """The vector index of a column."""

    name: str
    kind: str
    metric: str
    fragments: frozenset[int]
    """Ids of the fragments that it covers."""


def find_vector_index(dataset: lance.LanceDataset, column: str) -> VectorIndex | None:
    """Return the vector index of a column, or None."""
    for index in dataset.describe_indices():
        if list(index.field_names) == [column] and index.index_type.upper().startswith("IVF"):
            covered = frozenset(fragment for segment in index.segments for fragment in segment.fragment_ids)
            metric = str((index.details or {}).get("metric_type") or METRICS[0]).lower()
            return VectorIndex(index.name, index.index_type, metric, covered)
    return None


def has_vector_index(dataset: lance.LanceDataset, column: str) -> bool:
    """Return whether a column has a vector index."""
    return find_vector_index(dataset, column) is not None
