"""Measure how many of the truly nearest rows a search by index finds, and how long it takes, for various efforts."""

from __future__ import annotations

import time
import warnings
from base64 import b64decode, b64encode
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import cycle
from math import ceil, floor, log10
from statistics import median, quantiles
from typing import Any
from xml.sax.saxutils import escape

import numpy as np
import pyarrow as pa
from lance_namespace.errors import InvalidInputError, LanceNamespaceError

from lancehouse.jobs.address import PinnedVersion
from lancehouse.jobs.engine import Engine
from lancehouse.lake.errors import translate_errors
from lancehouse.lake.nearest_rows import Hits, NearestRows, best_hits
from lancehouse.lake.recall_notes import MOST_POINTS, RecallNote, RecallPoint, digest_index, keep_note
from lancehouse.lake.scans import FragmentRange, Scan, split_fragments
from lancehouse.lake.search import ROW
from lancehouse.lake.vector_search import (
    METRICS,
    SearchEffort,
    VectorSearch,
    find_vector_index,
    require_count,
    resolve_vector_column,
)

PROBES, FACTORS = (1, 5, 20, 50), (1, 5, 20)
"""What is measured if the caller does not say: as many of the first as the index has partitions."""
MOST_QUERIES = 10_000
SEED = 20
"""So that the same rows are sampled again as long as the table has as many."""

COLUMNS: dict[str, pa.DataType] = {
    "nprobes": pa.int32(),
    "refine_factor": pa.int32(),
    "recall": pa.float64(),
    "median_ms": pa.float64(),
    "p95_ms": pa.float64(),
}
"""Columns of the result; the first two are null for the default effort."""


@dataclass(frozen=True, slots=True)
class Truth:
    """Vectors of the table, the ids of their rows, and those of the `k` other rows nearest to each."""

    vectors: Any
    rows: Any
    nearest: list[set[int]]


def measure_recall(
    engine: Engine,
    pinned: PinnedVersion,
    column: str | None,
    queries: int,
    k: int,
    nprobes: Sequence[int] | None,
    refine_factors: Sequence[int] | None,
) -> pa.Table:
    """Return recall@k and the times of single searches, for each effort of a grid and for the default.

    The queries are vectors of rows that are chosen at random. The row itself, which any search finds, does not count.
    What is nearest is found by comparing all rows, in pieces by the engine; searches are timed in this process, one at
    a time.

    Raises:
        InvalidInputError: the column has no index, or there are no vectors.
    """
    require_count("queries", queries)
    require_count("k", k)
    if queries > MOST_QUERIES:
        raise InvalidInputError(f"queries is {queries:,}, and at most {MOST_QUERIES:,}")
    for name, values in (("nprobes", nprobes or ()), ("refine_factor", refine_factors or ())):
        for value in values:
            require_count(name, value)
    table, dataset = pinned.open()
    column = resolve_vector_column(table, dataset.schema, column)
    index = find_vector_index(dataset, column)
    if index is None:
        raise InvalidInputError(f"{table}: column {column} has no vector index; without one a search finds all rows")
    if index.metric not in METRICS:
        raise InvalidInputError(f"{table}: the index {index.name} is for {index.metric}, not for {', '.join(METRICS)}")
    with translate_errors(table, table.storage_options):
        partitions = int(dataset.stats.index_stats(index.name)["indices"][0].get("num_partitions") or 1)
    probes = nprobes or [
        *(count for count in PROBES if count < partitions),
        *([partitions] if partitions <= 200 else []),
    ]
    truth = _find_truth(engine, pinned, column, index.metric, queries, k)
    grid = [SearchEffort(), *(SearchEffort(probe, factor) for factor in refine_factors or FACTORS for probe in probes)]
    _time_searches(pinned, column, truth, k, grid[0])  # reads the index into memory
    measured = [_time_searches(pinned, column, truth, k, effort) for effort in grid]
    # `quantiles` refuses a single value, which is all that one query gives: each value is taken twice.
    rows = [
        (effort.nprobes, effort.refine_factor, recall, median(times), quantiles([*times, *times], n=20)[-1])
        for effort, (recall, times) in zip(grid, measured, strict=True)
    ]
    arrays = [pa.array(values, dtype) for values, dtype in zip(zip(*rows, strict=True), COLUMNS.values(), strict=True)]
    return pa.Table.from_arrays(arrays, names=[*COLUMNS])


def _find_truth(engine: Engine, pinned: PinnedVersion, column: str, metric: str, queries: int, k: int) -> Truth:
    table, dataset = pinned.open()
    count = dataset.count_rows()
    places = np.sort(np.random.default_rng(SEED).choice(count, min(queries, count), replace=False))
    with translate_errors(table, table.storage_options):
        sample = dataset.take(places.tolist(), columns=[column, ROW]).combine_chunks()
    sample = sample.filter(sample.column(column).is_valid())
    flat: Any = sample.column(column).combine_chunks()
    flat = flat.chunk(0) if isinstance(flat, pa.ChunkedArray) and flat.num_chunks else flat
    width = dataset.schema.field(column).type.list_size
    matrix = np.asarray(flat.flatten(), np.float32).reshape(-1, width)
    usable = np.isfinite(matrix).all(axis=1)
    if not usable.any():
        raise InvalidInputError(f"{table}: none of {min(queries, count)} rows has a vector in {column} to look for")
    matrix, rows = matrix[usable], sample.column(ROW).to_numpy()[usable]

    def compare(parts: list[FragmentRange]) -> list[str]:
        nearest = NearestRows(matrix, k + 1, metric)
        nearest.add(Scan((column,), with_row_id=True).batches(*pinned.open(), parts))
        return [b64encode(nearest.hits().to_ipc()).decode()]

    results = engine.run(split_fragments(dataset, engine.parallelism, split=True), compare)
    best, _ = best_hits([Hits.from_ipc(b64decode(text)) for text in results], k + 1)
    nearest = [set[int]() for _ in rows]
    for number, row in zip(best.queries.tolist(), best.rows.tolist(), strict=True):
        if row != rows[number] and len(nearest[number]) < k:
            nearest[number].add(row)
    return Truth(matrix, rows, nearest)


def _time_searches(
    pinned: PinnedVersion, column: str, truth: Truth, k: int, effort: SearchEffort
) -> tuple[float, list[float]]:
    """Return the share of the nearest rows that are found, and the time of each search in milliseconds."""
    table, dataset = pinned.open()
    hits, wanted, times = 0, 0, list[float]()
    for vector, own, nearest in zip(truth.vectors, truth.rows.tolist(), truth.nearest, strict=True):
        search = VectorSearch(tuple(map(float, vector)), k + 1, column, columns=(ROW,), effort=effort)
        start = time.perf_counter()
        rows = search.search_index(table, dataset)
        times.append((time.perf_counter() - start) * 1000)
        others = [row for row in rows.column(ROW).to_pylist() if row != own][:k]
        hits, wanted = hits + len(nearest.intersection(others)), wanted + len(nearest)
    return (hits / wanted if wanted else 1.0), times


class RecallNotKeptWarning(UserWarning):
    """A measurement could not be kept with its table."""


def keep_recall(pinned: PinnedVersion, column: str | None, queries: int, k: int, measured: pa.Table) -> None:
    """Keep a measurement with the table, for the console.

    A measurement takes long and is of use without that, so what goes wrong, such as a missing permission, is a warning.
    """
    table, dataset = pinned.open()
    index = find_vector_index(dataset, resolve_vector_column(table, dataset.schema, column))
    assert index is not None
    [details] = [description for description in dataset.describe_indices() if description.name == index.name]
    note = RecallNote(
        version=pinned.version,
        measured_ms=time.time_ns() // 1_000_000,
        k=k,
        queries=queries,
        index=digest_index(details),
        points=tuple(RecallPoint(**row) for row in measured.slice(0, MOST_POINTS).to_pylist()),
    )
    try:
        keep_note(pinned.address.to_ref(), index.name, note)
    except LanceNamespaceError as error:
        message = f"The measured recall is not kept with the table: {error}"
        warnings.warn(message, RecallNotKeptWarning, stacklevel=3)


def to_rows(measured: Any) -> list[dict[str, Any]]:
    """Return a result as dictionaries, whether an Arrow table has it or a DataFrame of Spark."""
    rows: list[dict[str, Any]] = (measured if isinstance(measured, pa.Table) else measured.toArrow()).to_pylist()
    return rows


# The plot

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 760, 420, 60, 150, 50, 60
COLOURS = ("#2b6cb0", "#c05621", "#2f855a", "#805ad5", "#444")


def plot_recall(title: str, measured: pa.Table) -> str:
    """Return an SVG of recall over the median time: a line for each `refine_factor`, with `nprobes` at its points."""
    rows = measured.to_pylist()
    times = [max(row["median_ms"], 1e-3) for row in rows]
    first, last = floor(log10(min(times)) * 3) / 3, ceil(log10(max(times)) * 3 + 0.01) / 3
    lowest = min(floor(min(row["recall"] for row in rows) * 10) / 10, 0.9)

    def across(ms: float) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * (log10(max(ms, 1e-3)) - first) / (last - first)

    def up(recall: float) -> float:
        return float(HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * (recall - lowest) / (1 - lowest))

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" '
        'font-family="sans-serif" font-size="13">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
        f'<text x="12" y="22" font-size="15" font-weight="bold">{escape(title)}</text>',
        f'<text x="{LEFT}" y="{HEIGHT - 14}">median time of a search, in milliseconds</text>',
    ]
    for number in range(round(lowest * 10), 11):
        y = up(number / 10)
        parts += [
            f'<line x1="{LEFT}" y1="{y:.1f}" x2="{WIDTH - RIGHT}" y2="{y:.1f}" stroke="#ddd"/>',
            f'<text x="{LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{number / 10:g}</text>',
        ]
    for number in range(round(first * 3), round(last * 3) + 1):
        value = 10 ** (number / 3)
        parts.append(
            f'<text x="{across(value):.1f}" y="{HEIGHT - BOTTOM + 20}" text-anchor="middle">{value:.2g}</text>'
        )
    factors = list(dict.fromkeys(row["refine_factor"] for row in rows))
    for place, (factor, colour) in enumerate(zip(factors, cycle(COLOURS), strict=False)):
        points = [(across(row["median_ms"]), up(row["recall"]), row) for row in rows if row["refine_factor"] == factor]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y, _ in points)
        label = "default" if factor is None else f"refine_factor {factor}"
        parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>')
        dot = 'r="8" fill="none" stroke-width="2"' if factor is None else f'r="4" fill="{colour}"'
        for x, y, row in points:
            parts += [
                f'<circle cx="{x:.1f}" cy="{y:.1f}" {dot} stroke="{colour}"/>',
                f'<text x="{x + 6:.1f}" y="{y + 14:.1f}" font-size="11" fill="{colour}">{row["nprobes"] or ""}</text>',
            ]
        parts.append(f'<text x="{WIDTH - RIGHT + 12}" y="{TOP + 18 * place + 8}" fill="{colour}">{label}</text>')
    parts.append(f'<text x="{WIDTH - RIGHT + 12}" y="{TOP + 18 * len(factors) + 8}">at points: nprobes</text>')
    return "\n".join([*parts, "</svg>"]) + "\n"
