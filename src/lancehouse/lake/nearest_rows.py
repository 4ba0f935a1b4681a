"""Find the rows nearest to many vectors: compare blocks of rows with blocks of queries by matrix products."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

Floats = Any
"""A float32 matrix or vector of numpy, whose stubs say too little of shapes to be worth their names."""

BLOCK_BYTES = 8 << 20
"""Size in bytes of a block of rows that is compared at once."""
LEAST_ROWS, MOST_ROWS = 1024, 1 << 14
"""Bounds on the rows of a block."""
PRODUCT_BYTES = 16 << 20
"""Size in bytes of the matrix of one product: rows of a block × queries of a block."""
PAIR_BYTES = 8 << 20
"""Size in bytes of the vectors of candidates that are compared exactly at once."""
UNIT = float(np.finfo(np.float32).eps) / 2
"""Largest relative error of one float32 operation."""
LARGE, SMALL = 1e30, 1e-30
"""Squares of norms outside of these would leave the range of float32 in a product; such vectors are compared singly."""


@dataclass(frozen=True, slots=True)
class Hits:
    """Rows that were found for some queries: three arrays of the same length."""

    queries: Any
    """Number of the query, int32."""
    rows: Any
    """Row id, uint64."""
    values: Any
    """Distance, or score, float32."""

    @classmethod
    def empty(cls) -> Hits:
        """Return no hits."""
        return cls.of([], [], [])

    @classmethod
    def of(cls, queries: Any, rows: Any, values: Any) -> Hits:
        """Return hits from anything that numpy takes as arrays."""
        return cls(np.asarray(queries, np.int32), np.asarray(rows, np.uint64), np.asarray(values, np.float32))

    def __len__(self) -> int:
        return len(self.queries)

    def take(self, places: Any) -> Hits:
        """Return the hits at some places, or where a mask is true."""
        return Hits(self.queries[places], self.rows[places], self.values[places])

    def number_from(self, first: int) -> Hits:
        """Return the hits of queries whose numbers are higher by `first`."""
        return Hits(self.queries + np.int32(first), self.rows, self.values) if first else self

    def to_ipc(self) -> bytes:
        """Return the hits as an Arrow IPC stream."""
        batch = pa.record_batch({"query": self.queries, "row": self.rows, "value": self.values})
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, batch.schema) as stream:
            stream.write_batch(batch)
        return sink.getvalue().to_pybytes()

    @classmethod
    def from_ipc(cls, data: Any) -> Hits:
        """Read what `to_ipc` wrote."""
        table = pa.ipc.open_stream(data).read_all()
        return cls(*(table.column(name).to_numpy() for name in ("query", "row", "value")))


def join_hits(parts: Sequence[Hits]) -> Hits:
    """Put hits together, in no particular order."""
    if not parts:
        return Hits.empty()
    return Hits(*(np.concatenate([getattr(part, name) for part in parts]) for name in ("queries", "rows", "values")))


def best_hits(parts: Sequence[Hits], k: int, *, largest: bool = False) -> tuple[Hits, Any]:
    """Return the `k` best hits of each query, in order, and their ranks, which begin at 0.

    Equal values are ordered by row id, so that the answer does not depend on how the rows were split. A value that is
    NaN is left out.

    Args:
        parts: the hits of several parts of a table.
        k: number of hits for each query.
        largest: whether large values are the best, as scores are; else small ones, as distances are.
    """
    together = join_hits(parts)
    together = together.take(~np.isnan(together.values))
    order = np.lexsort((together.rows, -together.values if largest else together.values, together.queries))
    sorted_hits = together.take(order)
    ranks = rank_in_runs(sorted_hits.queries)
    return sorted_hits.take(ranks < k), ranks[ranks < k]


def rank_in_runs(numbers: Any) -> Any:
    """Return the place of each item in its run of equal numbers."""
    places = np.arange(len(numbers))
    begins = np.ones(len(numbers), bool)
    begins[1:] = numbers[1:] != numbers[:-1]
    return places - np.maximum.accumulate(np.where(begins, places, 0))


def exact_distances(vectors: Floats, queries: Floats, metric: str) -> Floats:
    """Return the distance of each vector from the query in the same place, or from the only one, as Lance has it.

    With `cosine`, that from a vector of zeros is NaN.
    """
    if metric == "l2":
        return ((vectors - queries) ** 2).sum(axis=1)
    products = np.einsum("ij,ij->i", vectors, np.broadcast_to(queries, vectors.shape))
    if metric == "dot":
        return 1 - products
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        return 1 - products / (np.linalg.norm(vectors, axis=1) * np.linalg.norm(np.atleast_2d(queries), axis=1))


class NearestRows:
    """The `k` rows nearest to each of many vectors, of all rows that were added.

    A product of matrices gives approximate distances of all pairs. Pairs that may be among the nearest, by a bound on
    the error of the product, are compared again exactly; so rows and distances are those of a comparison one by one.
    Where more rows than `2 k + 16` of a block are as near as the last of the nearest, within that error, any of them
    may be chosen.

    Args:
        queries: a matrix, one query in a row; a row of NaN finds nothing.
        k: number of rows for each query.
        metric: l2, cosine or dot.
    """

    def __init__(self, queries: Floats, k: int, metric: str) -> None:
        self._k, self._metric = k, metric
        valid = ~np.isnan(queries).any(axis=1)
        self._numbers = np.flatnonzero(valid).astype(np.int32)
        self._queries = np.ascontiguousarray(queries[valid], np.float32)
        count, self._dimension = self._queries.shape
        self._distances = np.full((count, k), np.inf, np.float32)
        self._rows = np.zeros((count, k), np.uint64)
        self._found = np.zeros(count, np.int64)
        self._centre = np.zeros(self._dimension, np.float32)
        self._products: Any = None

    def hits(self) -> Hits:
        """Return the nearest rows so far, in order of the queries."""
        places = np.arange(self._k)[None, :] < self._found[:, None]
        numbers = np.repeat(self._numbers, self._found)
        return Hits(numbers, self._rows[places], self._distances[places])

    def add(self, batches: Iterable[pa.RecordBatch]) -> None:
        """Compare all rows of batches with two columns, vectors and row ids. A null or a NaN is near to nothing."""
        for vectors, rows in to_blocks(batches, self._dimension) if len(self._queries) else ():
            self._add_block(vectors, rows)

    def _add_block(self, vectors: Floats, rows: Any) -> None:
        with np.errstate(over="ignore", invalid="ignore"):
            squares = np.einsum("ij,ij->i", vectors, vectors)
        present = ~np.isnan(squares)
        plain = present & (squares < LARGE)
        if self._metric == "cosine":
            plain &= squares > SMALL
        if (odd := present & ~plain).any():
            self._compare_singly(np.arange(len(self._queries)), vectors[odd], rows[odd])
        if not plain.all():
            vectors, rows = vectors[plain], rows[plain]
        if len(vectors):
            self._compare_block(vectors, rows)

    def _compare_block(self, vectors: Floats, rows: Any) -> None:
        if self._metric == "l2" and self._products is None:
            # Distances do not change when all is moved; products of small vectors have small errors.
            self._centre = vectors.mean(axis=0, dtype=np.float64).astype(np.float32)
        right, scale = self._to_right(vectors)
        size = max(1, PRODUCT_BYTES // 4 // MOST_ROWS)
        if self._products is None:
            self._products = np.empty(size * MOST_ROWS, np.float32)
        for first in range(0, len(self._queries), size):
            places = np.arange(first, min(first + size, len(self._queries)))
            left, offset, margin = self._to_left(self._queries[places], scale)
            if not (plain := margin < np.inf).all():
                self._compare_singly(places[~plain], vectors, rows)
                places, left, offset, margin = places[plain], left[plain], offset[plain], margin[plain]
            out = self._products[: len(places) * len(vectors)].reshape(len(places), len(vectors))
            np.matmul(left, right.T, out=out)
            bounds = np.where(self._found[places] == self._k, self._distances[places, -1], np.inf)
            near, columns = self._find_candidates(out, (bounds - offset + margin).astype(np.float32))
            self._compare_pairs(places[near], columns, vectors, rows)

    def _to_right(self, vectors: Floats) -> tuple[Floats, float]:
        """Return the right side of the product, and the largest norm in it."""
        if self._metric == "cosine":
            return vectors / np.linalg.norm(vectors, axis=1, keepdims=True), 1.0
        moved = vectors - self._centre if self._metric == "l2" else vectors
        squares = np.einsum("ij,ij->i", moved, moved)
        scale = float(np.sqrt(squares.max()))
        return (np.column_stack([moved, squares]) if self._metric == "l2" else moved), scale

    def _to_left(self, queries: Floats, scale: float) -> tuple[Floats, Any, Any]:
        """Return the left side of the product, what its items lack of the distance, and how far they may be wrong.

        The last is infinite for queries whose products would leave the range of float32.
        """
        moved = queries - self._centre if self._metric == "l2" else queries
        norms = np.sqrt(np.einsum("ij,ij->i", moved, moved, dtype=np.float64))
        error = 4 * UNIT * (self._dimension + 4)
        if self._metric == "l2":
            left = np.column_stack([-2 * moved, np.ones(len(moved), np.float32)])
            margin, offset = error * (norms**2 + scale**2), norms**2
        elif self._metric == "dot":
            left, margin, offset = -queries, error * (norms * scale + 1), np.ones(len(norms))
        else:
            with np.errstate(invalid="ignore", divide="ignore"):
                left = (-queries / norms[:, None]).astype(np.float32)
            margin, offset = np.full(len(norms), error), np.ones(len(norms))
        is_odd = (norms**2 >= LARGE) | ((norms**2 <= SMALL) & (self._metric == "cosine"))
        return left.astype(np.float32, copy=False), offset, np.where(is_odd, np.inf, margin)

    def _find_candidates(self, products: Floats, limits: Floats) -> tuple[Any, Any]:
        """Return row and column of the items that are not above the limit of their row; not many for each row."""
        most = 2 * self._k + 16
        is_open = np.isinf(limits)
        if not is_open.any():
            near, columns = np.divmod(np.flatnonzero(products <= limits[:, None]), products.shape[1])
            counts = np.bincount(near, minlength=len(products))
            is_open = counts > most
            if not is_open.any():
                return near, columns
            few = ~is_open[near]
            near, columns = near[few], columns[few]
        else:
            mask = products[~is_open] <= limits[~is_open, None]
            near, columns = np.nonzero(mask)
            near = np.flatnonzero(~is_open)[near]
        if products.shape[1] > most:
            chosen = np.argpartition(products[is_open], most, axis=1)[:, :most]
        else:
            chosen = np.broadcast_to(np.arange(products.shape[1]), (int(is_open.sum()), products.shape[1]))
        return (
            np.concatenate([near, np.repeat(np.flatnonzero(is_open), chosen.shape[1])]),
            np.concatenate([columns, chosen.ravel()]),
        )

    def _compare_singly(self, places: Any, vectors: Floats, rows: Any) -> None:
        """Compare queries at some places with all vectors, without a product of matrices."""
        for place in places:
            columns = np.arange(len(vectors))
            self._compare_pairs(np.full(len(columns), place), columns, vectors, rows)

    def _compare_pairs(self, places: Any, columns: Any, vectors: Floats, rows: Any) -> None:
        """Compare queries with vectors exactly, and keep the nearest."""
        size = max(1, PAIR_BYTES // 4 // self._dimension)
        values = np.empty(len(places), np.float32)
        with np.errstate(over="ignore", invalid="ignore"):
            for first in range(0, len(places), size):
                pairs = slice(first, first + size)
                values[pairs] = exact_distances(vectors[columns[pairs]], self._queries[places[pairs]], self._metric)
        self._keep(places, rows[columns], values)

    def _keep(self, places: Any, rows: Any, values: Any) -> None:
        touched = np.unique(places)
        is_filled = np.arange(self._k)[None, :] < self._found[touched, None]
        current = Hits.of(
            np.repeat(touched, self._found[touched]),
            self._rows[touched][is_filled],
            self._distances[touched][is_filled],
        )
        best, ranks = best_hits([current, Hits.of(places, rows, values)], self._k)
        self._distances[best.queries, ranks] = best.values
        self._rows[best.queries, ranks] = best.rows
        self._found[touched] = np.bincount(best.queries, minlength=len(self._found))[touched]


def to_blocks(batches: Iterable[pa.RecordBatch], dimension: int) -> Iterator[tuple[Floats, Any]]:
    """Yield matrices of vectors that are not null, with their row ids, of about the same size."""
    wanted = min(max(BLOCK_BYTES // 4 // max(dimension, 1), LEAST_ROWS), MOST_ROWS)
    held: list[tuple[Floats, Any]] = []
    count = 0
    for batch in batches:
        present = batch if batch.column(0).null_count == 0 else batch.filter(batch.column(0).is_valid())
        column: Any = present.column(0)
        matrix = np.asarray(column.flatten(), dtype=np.float32).reshape(len(column), dimension)
        numbers = present.column(1).to_numpy().astype(np.uint64, copy=False)
        for first in range(0, len(matrix), MOST_ROWS):
            held.append((matrix[first : first + MOST_ROWS], numbers[first : first + MOST_ROWS]))
            count += len(held[-1][0])
            if count >= wanted:
                yield from _join_blocks(held)
                held, count = [], 0
    yield from _join_blocks(held)


def _join_blocks(held: Sequence[tuple[Floats, Any]]) -> Iterator[tuple[Floats, Any]]:
    if len(held) == 1:
        yield held[0]
    elif held:
        vectors, rows = (np.concatenate(arrays) for arrays in zip(*held, strict=True))
        for first in range(0, len(vectors), MOST_ROWS):
            yield vectors[first : first + MOST_ROWS], rows[first : first + MOST_ROWS]
