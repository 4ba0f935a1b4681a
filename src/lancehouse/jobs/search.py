"""Searches as users ask for them: parse what is searched for and how, and run a search in threads of this process."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from math import isfinite
from numbers import Real
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from lance_namespace.errors import InvalidInputError

from lancehouse.jobs.address import PinnedVersion
from lancehouse.lake.search import (
    BLOCK_QUERIES,
    QUERY,
    Found,
    Queries,
    Search,
    SearchPiece,
    find_hits,
    join_found,
    plan_search,
    rank_hits,
    read_ranked,
)

VECTOR, TEXT = "vector", "text"
MOST_BYTES = 256 << 20
"""Largest size of the vectors, or texts, of the queries of one search."""

_KINDS = "a list of numbers, several such lists, a 2-D array of numpy, or a table of queries"
_HYBRID = "True, 'rrf', or weights such as {'vector': 0.7, 'text': 0.3}"


@dataclass(frozen=True, slots=True)
class QuerySet:
    """Queries with the ids that the result names them by."""

    queries: Queries
    ids: Any = None
    """An Arrow array; None for a single query, whose result names none."""


def parse_weights(hybrid: Any) -> tuple[float, float]:
    """Return the weights of vectors and words that the argument `hybrid` of a search means.

    Raises:
        InvalidInputError: it has another form.
    """
    if hybrid in (None, "rrf") or hybrid is True:
        return 1.0, 1.0
    if not isinstance(hybrid, Mapping) or not {*hybrid} <= {VECTOR, TEXT}:
        raise InvalidInputError(f"hybrid must be {_HYBRID}, not {hybrid!r}")
    weights = hybrid.get(VECTOR, 0.0), hybrid.get(TEXT, 0.0)
    if not all(_is_number(weight) and isfinite(weight) and weight >= 0 for weight in weights) or not sum(weights):
        raise InvalidInputError(f"hybrid must be {_HYBRID}, not {hybrid!r}")
    return float(weights[0]), float(weights[1])


def _is_number(value: Any) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool)


def parse_queries(vector: Any, text: Any, hybrid: Any) -> QuerySet:
    """Return the queries that the arguments `vector` and `text` of a search mean.

    Raises:
        InvalidInputError: neither is given, they do not fit each other, or a vector is not one.
    """
    if isinstance(vector, pa.Table) or isinstance(text, pa.Table):
        return parse_query_table(*choose_table(vector, text, hybrid, pa.Table))
    if vector is None and text is None:
        raise InvalidInputError("a search needs a vector, or a text, or both")
    if hybrid is not None and (vector is None or text is None):
        raise InvalidInputError("hybrid is for a search with a vector and a text")
    vectors = None if vector is None else _parse_vectors(vector)
    texts = None if text is None else _parse_texts(text)
    is_single = isinstance(text, str) if vectors is None else vectors.ndim == 1
    matrix = None if vectors is None else _check_matrix(np.atleast_2d(vectors), None)
    counts = {len(queries) for queries in (matrix, texts) if queries is not None}
    if len(counts) > 1 or (vectors is not None and texts is not None and is_single != isinstance(text, str)):
        raise InvalidInputError("a hybrid search needs one vector and one text, or as many texts as vectors")
    [count] = counts
    return QuerySet(Queries(matrix, texts), None if is_single else pa.array(range(count), pa.int64()))


def _parse_vectors(vector: Any) -> Any:
    """Return one vector as an array of one dimension, several as a matrix."""
    if isinstance(vector, str | bytes | Mapping) or not isinstance(vector, Iterable):
        raise InvalidInputError(f"vector must be {_KINDS}, not {vector!r}")
    try:
        listed = vector if isinstance(vector, np.ndarray | Sequence) else list(vector)
        if any(item is None for item in listed):
            raise InvalidInputError("vector: None is no vector; a null vector in a table of queries finds nothing")
        vectors = np.array(listed, dtype=np.float64)
    except (TypeError, ValueError):
        raise InvalidInputError(
            f"vector must be {_KINDS}: a vector is a list of numbers, and several have the same length"
        ) from None
    if vectors.ndim not in (1, 2) or not vectors.size:
        raise InvalidInputError(f"vector must be {_KINDS}, not an array of shape {vectors.shape}")
    return vectors


def _check_matrix(matrix: Any, ids: Any) -> Any:
    """Return a matrix in float32, if all of its numbers are finite there."""
    with np.errstate(over="ignore"):
        narrow = np.ascontiguousarray(matrix, np.float32)
    finite = np.isfinite(narrow).all(axis=1)
    if not finite.all():
        number = int(np.argmin(finite))
        whose = f" {number}" if len(matrix) > 1 and ids is None else "" if ids is None else f" of query {ids[number]}"
        raise InvalidInputError(
            f"vector{whose}: a vector that is looked for has finite numbers only: nothing is near one with NaN"
        )
    if narrow.nbytes > MOST_BYTES:
        raise InvalidInputError(f"vector: {narrow.nbytes:,} bytes of queries, at most {MOST_BYTES:,}: search in parts")
    return narrow


def _parse_texts(text: Any) -> tuple[str, ...]:
    texts = (text,) if isinstance(text, str) else tuple(text) if isinstance(text, list | tuple) else ()
    if not texts or not all(isinstance(item, str) for item in texts):
        raise InvalidInputError(f"text must be a text, a list of texts, or a table of queries, not {text!r}")
    return texts


def choose_table(vector: Any, text: Any, hybrid: Any, kind: type) -> tuple[Any, bool, bool]:
    """Return the table of queries that is given as `vector`, as `text` or as both, and which columns are meant.

    Raises:
        InvalidInputError: the two are different.
    """
    table = vector if isinstance(vector, kind) else text
    if any(argument is not None and argument is not table for argument in (vector, text)):
        raise InvalidInputError(
            f"vector and text: a table of queries has both in its columns {QUERY}, {VECTOR} and {TEXT}; give it once"
        )
    return table, vector is not None or hybrid is not None, text is not None or hybrid is not None


def parse_query_table(table: pa.Table, with_vectors: bool, with_texts: bool) -> QuerySet:
    """Return the queries of a table with the columns `query_id`, `vector` and `text`, as far as they are needed.

    A null vector or text finds nothing.

    Raises:
        InvalidInputError: a column is absent or of the wrong type, an id is null or not unique, or a vector has another
            length than the others or a number that is not finite.
    """
    wanted = [QUERY, *([VECTOR] if with_vectors else []), *([TEXT] if with_texts else [])]
    if missing := [name for name in wanted if name not in table.column_names]:
        argument = VECTOR if with_vectors else TEXT
        raise InvalidInputError(
            f"{argument}: a table of queries has the columns {', '.join(wanted)}; this one lacks {', '.join(missing)}"
        )
    ids = combine(table.column(QUERY))
    _check_ids(ids)
    vectors = _to_matrix(combine(table.column(VECTOR)), ids) if with_vectors else None
    texts = _to_texts(combine(table.column(TEXT))) if with_texts else None
    return QuerySet(Queries(vectors, texts), ids)


def combine(column: Any) -> Any:
    """Return the chunks of a column as one array."""
    array = column.combine_chunks()
    return pa.concat_arrays(array.chunks) if isinstance(array, pa.ChunkedArray) else array


def _check_ids(ids: Any) -> None:
    if ids.null_count:
        raise InvalidInputError(f"{QUERY}: {ids.null_count} queries have none; give each a value of its own")
    try:
        counts = ids.value_counts()
        most = int(np.argmax(counts.field("counts").to_numpy())) if len(counts) < len(ids) else None
        double = None if most is None else counts.field("values")[most].as_py()
    except pa.ArrowNotImplementedError:  # structs and lists
        texts = [repr(query_id) for query_id in ids.to_pylist()]
        double = next((text for text in texts if texts.count(text) > 1), None) if len({*texts}) < len(texts) else None
    if double is not None:
        raise InvalidInputError(f"{QUERY}: several queries have {double!r}; give each a value of its own")


def _to_matrix(column: Any, ids: Any) -> Any:
    dtype = column.type
    is_list = pa.types.is_list(dtype) or pa.types.is_large_list(dtype) or pa.types.is_fixed_size_list(dtype)
    if not is_list or not (pa.types.is_floating(dtype.value_type) or pa.types.is_integer(dtype.value_type)):
        raise InvalidInputError(f"vector: the queries' column {VECTOR} must hold lists of numbers, not {dtype}")
    present = column.filter(column.is_valid())
    lengths = pc.unique(pc.list_value_length(present)).to_pylist()
    if len(lengths) > 1:
        raise InvalidInputError(f"vector: the queries have vectors of {' and '.join(map(str, lengths[:2]))} numbers")
    width = lengths[0] if lengths else 1  # of nulls alone; they fit any column
    numbers = np.asarray(present.flatten().cast(pa.float64()).fill_null(float("nan")))
    present_ids = ids.filter(column.is_valid())
    matrix = _check_matrix(numbers.reshape(len(present), width), present_ids)
    if not column.null_count:
        return matrix
    whole = np.full((len(column), width), np.nan, np.float32)
    whole[column.is_valid().to_numpy(zero_copy_only=False)] = matrix
    return whole


def _to_texts(column: Any) -> tuple[str | None, ...]:
    if not (pa.types.is_string(column.type) or pa.types.is_large_string(column.type)):
        raise InvalidInputError(f"text: the queries' column {TEXT} must hold texts, not {column.type}")
    return tuple(column.to_pylist())


# In this process


def search_locally(pinned: PinnedVersion, query_set: QuerySet, search: Search, threads: int) -> pa.Table:
    """Return the result of a search as an Arrow table, by threads of this process."""
    table, dataset = pinned.open()
    plan = plan_search(table, dataset, search, query_set.queries, threads)
    schema = plan.search.schema(table, dataset, with_ids=query_set.ids is not None)

    def find(piece: SearchPiece) -> Found:
        return find_hits(table, dataset, plan, piece, query_set.queries.slice(piece.numbers))

    with ThreadPoolExecutor(threads, thread_name_prefix="lancehouse-search") as pool:
        hits = join_found(list(pool.map(find, plan.pieces)))
    ranked = rank_hits(plan.search, hits)
    batches = read_ranked(table, dataset, plan.search, schema, ranked)
    rows = to_result(plan.search, query_set.ids, schema, batches)
    return pa.Table.from_batches(rows, result_schema(plan.search, query_set.ids, schema))


def result_schema(search: Search, ids: Any, schema: pa.Schema) -> pa.Schema:
    """Return the columns of a result: with id and rank if the queries have ids; else `_distance` and `_score` last."""
    if ids is not None:
        return pa.schema([pa.field(QUERY, ids.type), *schema])
    fields, own = list(schema), 1 + len(search.measures)
    return pa.schema([*fields[own:], *fields[1:own]])


def to_result(
    search: Search, ids: Any, schema: pa.Schema, batches: Iterable[tuple[Any, pa.RecordBatch]]
) -> Iterator[pa.RecordBatch]:
    """Yield batches of a result in its columns.

    Args:
        search: the search.
        ids: ids of all queries; None for a single query.
        schema: as `Search.schema` gives it.
        batches: what `read_ranked` yields.
    """
    columns, own = result_schema(search, ids, schema), 1 + len(search.measures)
    for numbers, batch in batches:
        if ids is None:
            arrays = [*batch.columns[own:], *batch.columns[1:own]]
        else:
            arrays = [ids.take(pa.array(numbers)), *batch.columns]
        yield pa.RecordBatch.from_arrays(arrays, schema=columns)


def split_found(found: Found) -> Iterator[tuple[int, Found]]:
    """Yield the hits of each block of queries that a merge takes at once, with the number of the block."""
    blocks = [hits.queries // BLOCK_QUERIES for hits in (found.near, found.worded)]
    for block in np.union1d(*blocks).tolist():
        near, worded = (hits.take(of == block) for hits, of in zip((found.near, found.worded), blocks, strict=True))
        yield int(block), Found(near, worded)
