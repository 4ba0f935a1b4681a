"""Read rows, single values and projections of vectors for display, with values shortened and in bounded memory."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from threading import BoundedSemaphore
from typing import Any

import lance
import numpy as np
import pyarrow as pa
from lance_namespace.errors import InvalidInputError, TableColumnNotFoundError

from lancehouse.caches import BoundedCache
from lancehouse.lake.blobs import ROW_ADDRESS, BlobReader
from lancehouse.lake.chunked_scan import count_rows
from lancehouse.lake.dataset import TableRef, enclose_sql
from lancehouse.lake.vector_search import SearchEffort, has_vector_index
from lancehouse.schema.definitions import shown_columns
from lancehouse.schema.display import WHOLE, Cell, format_cell, format_cells, format_type, is_vector, value_kind

MAX_DEFAULT_COLUMNS = 40
"""Number of columns shown if none are chosen."""
BATCH_ROWS = 16
"""Rows read at once."""
BYTES_ROWS = 4
"""Rows read at once if values may have megabytes."""
READ_AHEAD = 8 << 20
"""Bytes that a scan reads ahead."""
ROW_ID = "_rowid"
DISTANCE = "_distance"


@dataclass(frozen=True, slots=True)
class RowPage:
    """A page of rows."""

    version: int
    columns: Sequence[str]
    ids: Sequence[int]
    """Row ids in this version, in the order of `rows`."""
    rows: Sequence[Sequence[Cell]]
    has_more: bool


def read_page(
    table: TableRef, *, columns: Sequence[str] = (), filter: str | None = None, offset: int = 0, limit: int
) -> RowPage:
    """Read rows in their stored order, of those that match a filter in Lance's SQL.

    Raises:
        InvalidInputError: the filter cannot be parsed.
        TableColumnNotFoundError: the table lacks a column that is asked for or that the filter names.
    """
    with table.dataset() as dataset:
        names = choose_columns(table, dataset.schema, columns)
        scanner = dataset.scanner(
            columns=names,
            filter=enclose_sql(filter or None),
            limit=limit + 1,
            offset=offset or None,
            scan_in_order=True,
            late_materialization=True if filter else None,
            **scanner_options(dataset.schema, names),
        )
        kinds = [value_kind(dataset.schema.field(name)) for name in names]
        ids, rows = collect_cells(scanner, kinds)
        return RowPage(dataset.version, names, ids[:limit], rows[:limit], len(rows) > limit)


def count_matching_rows(table: TableRef, filter: str | None) -> int:
    """Count the rows that match a filter; all rows without one."""
    with table.dataset() as dataset:
        return count_rows(dataset, filter) if filter else int(dataset.count_rows())


def read_value(table: TableRef, column: str, row: int) -> Cell:
    """Read one value, in full unless it is very long."""
    with table.dataset() as dataset:
        (name,) = choose_columns(table, dataset.schema, [column])
        if value_kind(dataset.schema.field(name)) == "blob":
            described = _read_blob_description(table, dataset, name, row)
            size = BlobReader(table, dataset).blob_sizes(described)[0]
            return {"kind": "blob", "size": size} if described.column(name)[0].is_valid else None
        return format_cell(take_value(table, dataset, name, row)[0], WHOLE)


def read_content(table: TableRef, column: str, row: int, most: int) -> bytes | None:
    """Return the bytes of one value, None for null; a blob with more than `most` bytes is not read.

    Raises:
        InvalidInputError: the value has more than `most` bytes, or the column holds no bytes.
    """
    with table.dataset() as dataset:
        (name,) = choose_columns(table, dataset.schema, [column])
        kind = value_kind(dataset.schema.field(name))
        if kind not in ("blob", "bytes"):
            raise InvalidInputError(f"{table}: column {column} holds {kind}, no bytes")
        if kind == "blob":
            described, reader = _read_blob_description(table, dataset, name, row), BlobReader(table, dataset)
            _require_small(reader.blob_sizes(described)[0], most)
            data: bytes | None = reader.fill_blobs(described).column(name)[0].as_py()
            return data
        scalar = take_value(table, dataset, name, row)[0]
        if not scalar.is_valid:
            return None
        _require_small(scalar.as_buffer().size, most)
        return bytes(scalar.as_buffer())


def take_value(table: TableRef, dataset: lance.LanceDataset, column: str, row: int) -> Any:
    """Return the value of a row, as an array of one.

    Raises:
        InvalidInputError: there is no such row.
    """
    rows = dataset.scanner(columns=[column], filter=f"{ROW_ID} = {int(row)}", with_row_id=True).to_table()
    if not rows.num_rows:
        raise _row_not_found(table, row)
    return rows.column(column).combine_chunks()


def choose_columns(table: TableRef, schema: pa.Schema, columns: Sequence[str]) -> list[str]:
    """Return the named columns without duplicates; without names, the first `MAX_DEFAULT_COLUMNS` columns.

    Columns that Lancehouse keeps beside computed ones are returned only by their names.

    Raises:
        TableColumnNotFoundError: the table has no such column.
    """
    if missing := [name for name in columns if name not in schema.names]:
        raise TableColumnNotFoundError(f"{table} has no column {', '.join(missing)}")
    return list(dict.fromkeys(columns)) or shown_columns(schema)[:MAX_DEFAULT_COLUMNS]


def scanner_options(schema: pa.Schema, names: Sequence[str]) -> dict[str, Any]:
    """Return arguments of a scanner that bound its memory."""
    has_bytes = any(value_kind(schema.field(name)) == "bytes" for name in names)
    return {
        "batch_size": BYTES_ROWS if has_bytes else BATCH_ROWS,
        "batch_readahead": 1,
        "fragment_readahead": 1,
        "io_buffer_size": READ_AHEAD,
        "blob_handling": "blobs_descriptions",
        "with_row_id": True,
    }


def collect_cells(scanner: lance.LanceScanner, kinds: Sequence[str]) -> tuple[list[int], list[list[Cell]]]:
    """Return the ids of a scan's rows and their formatted cells; each batch is freed before the next is read."""
    ids: list[int] = []
    rows: list[list[Cell]] = []
    for batch in scanner.to_batches():
        ids += batch.column(ROW_ID).to_pylist()
        columns = [format_cells(batch.column(place), kind) for place, kind in enumerate(kinds)]
        rows += map(list, zip(*columns, strict=True)) if columns else [[] for _ in range(batch.num_rows)]
    return ids, rows


def _read_blob_description(table: TableRef, dataset: lance.LanceDataset, column: str, row: int) -> pa.RecordBatch:
    """Read the description of a blob and the address of its row."""
    options = {"with_row_id": True, "with_row_address": True, "blob_handling": "blobs_descriptions"}
    scanner = dataset.scanner(columns=[column], filter=f"{ROW_ID} = {int(row)}", **options)
    for batch in scanner.to_batches():
        if batch.num_rows:
            described: pa.RecordBatch = batch.select([column, ROW_ADDRESS])
            return described
    raise _row_not_found(table, row)


def _row_not_found(table: TableRef, row: int) -> InvalidInputError:
    return InvalidInputError(f"{table} has no row with the id {row}")


def _require_small(size: int, most: int) -> None:
    if size > most:
        raise InvalidInputError(f"the value has {size} bytes, and at most {most} are shown")


SAMPLE = 2000
"""Number of vectors in a sample."""
SAMPLE_BYTES = 16 << 20
"""Size in bytes of a sample as float32: of very long vectors, fewer are taken."""
COMPARED_BYTES = 1 << 30
"""Bytes of vectors up to which all are compared if there is no index; beyond, only a sample is."""
STEPS = 24
"""Steps of the iteration that finds the directions."""
WIDTH = 6
"""Number of directions in the iteration; with more than two, the first two converge faster."""
SEED = 7
SAMPLING_SLOTS = BoundedSemaphore(2)
"""Limits the samples that are processed at once: each takes up to 100 MB for a moment."""
MAX_CACHED = 64
"""Number of projections that are cached, to place rows in them later."""

Point = tuple[float, float]


@dataclass(frozen=True, slots=True)
class Axes:
    """The plane of greatest variance of some vectors."""

    centre: Any
    directions: Any
    """Two directions, as columns."""
    spread: tuple[float, float]
    """Share of the total variance along each direction."""

    def project(self, matrix: Any) -> list[Point]:
        """Return the coordinates of vectors in the plane."""
        return [(float(x), float(y)) for x, y in (matrix - self.centre) @ self.directions]


@dataclass(frozen=True, slots=True)
class VectorProjection:
    """Sampled rows and the coordinates of their vectors."""

    version: int
    rows: int
    """Number of rows of the whole table."""
    ids: Sequence[int]
    points: Sequence[Point]
    spread: tuple[float, float]
    """Share of the total variance along each direction."""
    labels: Sequence[Cell]
    """Values of another column for each row; empty if none was asked for."""


@dataclass(frozen=True, slots=True)
class Neighbours:
    """The rows nearest to a row, nearest first."""

    page: RowPage
    distances: Sequence[float]
    searched: str
    """What was searched: `index`, `table` or `sample`."""
    own: Sequence[Cell]
    """Cells of the row itself."""
    point: Point
    """Coordinates of the row in the column's plane."""
    points: Sequence[Point | None]
    """Coordinates of the neighbours; None for one without a vector."""


def _key(dataset: lance.LanceDataset, column: str) -> tuple[str, ...]:
    """Return the cache key for a column of a version; file names tell apart tables created at the same location."""
    files = (file.path for fragment in dataset.get_fragments() for file in fragment.data_files())
    return dataset.uri, str(dataset.version), next(files, ""), column


_AXES_CACHE: BoundedCache[tuple[str, ...], Axes] = BoundedCache(MAX_CACHED)
"""Projections of versions of tables. Nothing is checked: callers have opened the table."""


def project_sample(table: TableRef, column: str, label: str | None = None) -> VectorProjection:
    """Project vectors of a sample of rows, the same rows each time, with their values in another column as labels.

    Raises:
        InvalidInputError: the column holds no vectors.
    """
    with table.dataset() as dataset, SAMPLING_SLOTS:
        sample, matrix = _sample_vectors(table, dataset, column, label)
        plane_axes = _AXES_CACHE.put(_key(dataset, column), principal_axes(matrix))
        labels = [format_cells(sample.column(name), value_kind(dataset.schema.field(name))) for name in [label] if name]
        return VectorProjection(
            version=dataset.version,
            rows=dataset.count_rows(),
            ids=_row_ids(sample),
            points=plane_axes.project(matrix),
            spread=plane_axes.spread,
            labels=labels[0] if labels else [],
        )


def principal_axes(matrix: Any) -> Axes:
    """Find the plane of greatest variance by subspace iteration, without a covariance matrix; deterministic."""
    count, dimension = matrix.shape
    centre = matrix.mean(axis=0, dtype=np.float64) if count else np.zeros(dimension)
    flat = Axes(centre, np.zeros((dimension, 2)), (0.0, 0.0))
    if count < 2:
        return flat
    centred = matrix - centre
    variance = float((centred**2).sum())
    if variance == 0.0 or not np.isfinite(variance):
        return flat
    basis = np.linalg.qr(np.random.default_rng(SEED).standard_normal((dimension, min(WIDTH, dimension))))[0]
    for _ in range(STEPS):
        basis = np.linalg.qr(centred.T @ (centred @ basis))[0]
    _, sizes, turn = np.linalg.svd(centred @ basis, full_matrices=False)
    directions = np.zeros((dimension, 2))
    directions[:, : min(2, len(turn))] = basis @ turn[:2].T
    points = centred @ directions
    farthest = points[np.abs(points).argmax(axis=0), (0, 1)]
    shares = [*(sizes**2 / variance), 0.0]
    # The sign of a principal direction is arbitrary: it is chosen so that the same vectors give the same picture.
    return Axes(centre, directions * np.where(farthest < 0, -1, 1), (float(shares[0]), float(shares[1])))


def find_neighbours(table: TableRef, column: str, row: int, k: int, columns: Sequence[str] = ()) -> Neighbours:
    """Find the rows nearest to a row: with the index, else by comparing all, or a sample if those are too many.

    Raises:
        InvalidInputError: the row has no vector, or there is no such row.
    """
    with table.dataset() as dataset:
        dimension = _dimension(table, dataset, column)
        vectors, is_there = _to_matrix(take_value(table, dataset, column, row), dimension)
        if not is_there[0]:
            raise InvalidInputError(f"{table}: the row has no vector in {column} that others could be near to")
        searched = "index" if has_vector_index(dataset, column) else "table"
        sampled_distances: Mapping[int, float] = {}
        query: dict[str, Any] = {
            "nearest": {"column": column, "q": vectors[0], "k": k + 1, **SearchEffort().to_options(k + 1)}
        }
        if searched == "table" and dataset.count_rows() * dimension * 4 > COMPARED_BYTES:
            searched, sampled_distances = (
                "sample",
                _nearest_in_sample(*_sample_vectors(table, dataset, column, None), vectors[0], k),
            )
            query = {"filter": f"{ROW_ID} IN ({', '.join(map(str, sampled_distances))})"}
        names = choose_columns(table, dataset.schema, columns)
        kinds = [value_kind(dataset.schema.field(name)) for name in names]
        extra_columns = [] if sampled_distances else [DISTANCE]
        scanner = dataset.scanner(columns=[*names, *extra_columns], **query, **scanner_options(dataset.schema, names))
        ids, rows = collect_cells(scanner, [*kinds, *("number" for _ in extra_columns)])
        distances = (
            [sampled_distances[row_id] for row_id in ids]
            if sampled_distances
            else [_to_float(cells_[-1]) for cells_ in rows]
        )
        order = sorted((index for index in range(len(ids)) if ids[index] != row), key=distances.__getitem__)[:k]
        page = RowPage(
            dataset.version,
            names,
            [ids[index] for index in order],
            [rows[index][: len(names)] for index in order],
            False,
        )
        itself = dataset.scanner(
            columns=names, filter=f"{ROW_ID} = {int(row)}", **scanner_options(dataset.schema, names)
        )
        plane = _AXES_CACHE.get(_key(dataset, column)) or _compute_axes(table, dataset, column)
        return Neighbours(
            page=page,
            distances=[distances[index] for index in order],
            searched=searched,
            own=collect_cells(itself, kinds)[1][0],
            point=plane.project(vectors)[0],
            points=_project_rows(dataset, column, page.ids, plane),
        )


def _compute_axes(table: TableRef, dataset: lance.LanceDataset, column: str) -> Axes:
    with SAMPLING_SLOTS:
        axes = principal_axes(_sample_vectors(table, dataset, column, None)[1])
        return _AXES_CACHE.put(_key(dataset, column), axes)


def _project_rows(dataset: lance.LanceDataset, column: str, ids: Sequence[int], plane: Axes) -> list[Point | None]:
    if not ids:
        return []
    chosen_ids = f"{ROW_ID} IN ({', '.join(map(str, ids))})"
    rows = dataset.scanner(columns=[column], filter=chosen_ids, with_row_id=True).to_table().combine_chunks()
    matrix, is_there = _to_matrix(rows.column(column).combine_chunks(), len(plane.centre))
    projected = dict(zip(_row_ids(rows), zip(plane.project(matrix), is_there, strict=True), strict=True))
    return [projected[row_id][0] if row_id in projected and projected[row_id][1] else None for row_id in ids]


def _sample_vectors(
    table: TableRef, dataset: lance.LanceDataset, column: str, label: str | None
) -> tuple[pa.Table, Any]:
    """Return sampled rows that have a vector, and the vectors as a matrix."""
    dimension, total = _dimension(table, dataset, column), dataset.count_rows()
    size = min(SAMPLE, total, max(2, SAMPLE_BYTES // (4 * dimension)))
    places = sorted(random.Random(SEED).sample(range(total), size))  # noqa: S311 - not for secrets
    names = choose_columns(table, dataset.schema, [column, *([label] if label else [])])
    rows = dataset.take(places, columns=[*names, ROW_ID]).combine_chunks()
    matrix, is_there = _to_matrix(rows.column(column).combine_chunks(), dimension)
    return rows.filter(pa.array(is_there)), matrix[is_there]


def _nearest_in_sample(sample: pa.Table, matrix: Any, vector: Any, k: int) -> dict[int, float]:
    distances = ((matrix - vector) ** 2).sum(axis=1)
    ids = _row_ids(sample)
    return {ids[index]: float(distances[index]) for index in np.argsort(distances, kind="stable")[: k + 1]}


def _row_ids(rows: pa.Table) -> list[int]:
    ids: list[int] = rows.column(ROW_ID).to_numpy().tolist()
    return ids


def _dimension(table: TableRef, dataset: lance.LanceDataset, column: str) -> int:
    (name,) = choose_columns(table, dataset.schema, [column])
    dtype = dataset.schema.field(name).type
    if not is_vector(dtype):
        raise InvalidInputError(f"{table}: column {column} holds {format_type(dtype)}, no vectors of numbers")
    return int(dtype.list_size)


def _to_matrix(array: Any, dimension: int) -> tuple[Any, Any]:
    """Return vectors as a matrix, and a mask of those that are not null and have only finite numbers."""
    is_there = np.asarray(array.is_valid())
    matrix = np.zeros((len(array), dimension), np.float32)
    flat = array.filter(array.is_valid()).flatten()
    matrix[is_there] = flat.to_numpy(zero_copy_only=False).astype(np.float32).reshape(-1, dimension)
    return matrix, is_there & np.isfinite(matrix).all(axis=1)


def _to_float(cell: Cell) -> float:
    return float(cell["text"] if isinstance(cell, dict) else cell or 0.0)
