"""Search a table by vectors, words or both, for many queries at once: plan by cost, find hits, rank and read them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

import lance
import numpy as np
import pyarrow as pa
from lance_namespace.errors import InvalidInputError

from lancehouse.lake.dataset import TableRef, enclose_sql
from lancehouse.lake.errors import translate_errors
from lancehouse.lake.nearest_rows import (
    PAIR_BYTES,
    Hits,
    NearestRows,
    best_hits,
    exact_distances,
    join_hits,
    rank_in_runs,
    to_blocks,
)
from lancehouse.lake.scans import FragmentRange, Scan, batch_rows, split_fragments
from lancehouse.lake.vector_search import (
    DISTANCE,
    METRICS,
    SearchEffort,
    VectorSearch,
    find_vector_index,
    resolve_vector_column,
)
from lancehouse.schema.walk import require_columns

DEFAULT_EFFORT = SearchEffort()
QUERY, RANK, SCORE, ROW = "query_id", "rank", "_score", "_rowid"
WORDS = "Inverted"
"""Lance's name for the kind of a full-text index."""

DEPTH, LEAST_DEPTH = 4, 50
"""A hybrid search ranks `k` times the first number of rows by vector and as many by words, at least the second."""
FUSION = 60
"""A row at rank r of a list adds weight / (FUSION + r) to its sum, as is usual for reciprocal rank fusion."""

INDEX_QUERIES, WORD_QUERIES = 1024, 128
"""Number of queries that one task looks for by an index of vectors, and by words."""
CALL_QUERIES = 64
"""Number of vectors that Lance gets at once: more take longer for each, and wait for each other."""
MOST_CANDIDATES = 1 << 20
"""Number of candidates of an index whose vectors are compared at once."""
BLOCK_QUERIES = 1024
"""Number of queries whose hits are merged and read at once."""
SLICE_BYTES = 32 << 20
"""Size in bytes of the vectors, and of the hits, of the queries that one task compares with rows."""
ROWS_AT_ONCE = 8192
"""Number of rows that are read at once by their ids."""

PAIR_S, NUMBER_S = 0.9e-9, 1.6e-11
"""Seconds of a processor to compare a pair of vectors in a product of matrices: for the pair, and for each number."""
READ_S = 1e-9
"""Seconds of a processor to read a byte of vectors."""
ROW_S = 4.5e-6
"""Seconds of a processor to read a row by its id."""
INDEX_S = 2e-3
"""Seconds of a processor for a query by an index with the default effort, whatever the size of the table."""
EXACT_WORTH = 2
"""How many times as long as by an index a comparison of all vectors may take: it finds all of the nearest rows."""


@dataclass(frozen=True, slots=True)
class Queries:
    """What is searched for: vectors, texts, or pairs of both."""

    vectors: Any = None
    """A float32 matrix with a row for each query; a row of NaN stands for none."""
    texts: tuple[str | None, ...] | None = None

    def __len__(self) -> int:
        return len(self.vectors if self.vectors is not None else self.texts or ())

    def slice(self, numbers: range) -> Queries:
        """Return some of the queries."""
        part = slice(numbers.start, numbers.stop)
        return Queries(
            None if self.vectors is None else self.vectors[part], None if self.texts is None else self.texts[part]
        )


@dataclass(frozen=True, slots=True)
class Search:
    """How to search, for all queries alike."""

    k: int = 10
    column: str | None = None
    text_column: str | None = None
    filter: str | None = None
    columns: tuple[str, ...] | None = None
    metric: str | None = None
    effort: SearchEffort = DEFAULT_EFFORT
    prefilter: bool = True
    """Whether the filter selects the rows that are searched; else it is applied to the `k` rows that were found."""
    weights: tuple[float, float] = (1.0, 1.0)
    """Weights of vectors and words in a hybrid search."""

    def resolve(self, table: TableRef, dataset: lance.LanceDataset, queries: Queries) -> Search:
        """Validate the search, and return it with the columns and the metric that it means.

        Raises:
            InvalidInputError: the vectors do not fit the column, the filter cannot be parsed, or no column is meant.
            TableColumnNotFoundError: there is no such column.
        """
        search = replace(self, column=None, text_column=None)
        if queries.vectors is not None:
            column = resolve_vector_column(table, dataset.schema, self.column)
            width = queries.vectors.shape[1]
            if np.isnan(queries.vectors).all():
                width = getattr(dataset.schema.field(column).type, "list_size", width)
            VectorSearch((0.0,) * width, self.k, column, metric=self.metric, effort=self.effort).check(table, dataset)
            index = find_vector_index(dataset, column)
            search = replace(search, column=column, metric=self.metric or (index and index.metric) or METRICS[0])
        elif self.column is not None or self.metric is not None or self.effort != DEFAULT_EFFORT:
            raise InvalidInputError("column, metric, nprobes, refine_factor and ef are for a search with a vector")
        if queries.texts is not None:
            search = replace(search, text_column=resolve_text_column(table, dataset, self.text_column))
        elif self.text_column is not None:
            raise InvalidInputError("text_column is for a search with a text")
        Scan(self.columns, self.filter).schema(table, dataset)
        return search

    @property
    def by_vectors(self) -> bool:
        """Whether a resolved search compares vectors."""
        return self.column is not None

    @property
    def by_words(self) -> bool:
        """Whether a resolved search looks for words."""
        return self.text_column is not None

    @property
    def depth(self) -> int:
        """Number of rows that are ranked by vector and by words, each."""
        return max(DEPTH * self.k, LEAST_DEPTH) if self.by_vectors and self.by_words else self.k

    @property
    def measures(self) -> list[str]:
        """Names of the columns that say how good a row is."""
        return [name for name, is_used in ((DISTANCE, self.by_vectors), (SCORE, self.by_words)) if is_used]

    def schema(self, table: TableRef, dataset: lance.LanceDataset, *, with_ids: bool) -> pa.Schema:
        """Return the columns of the result: rank, `_distance`, `_score`, then those of the table.

        Args:
            table: the table.
            dataset: the version.
            with_ids: whether users see the rank, and ids of the queries.

        Raises:
            InvalidInputError: a column of the table has the name of another one.
        """
        fields: list[pa.Field[Any]] = list(Scan(self.columns).schema(table, dataset))
        names = {*self.measures, *((QUERY, RANK) if with_ids else ())}
        if duplicates := names & {column.name for column in fields}:
            raise InvalidInputError(
                f"{table} has a column {min(duplicates)}, as the result has: name other columns with columns=[…]"
            )
        rank: pa.Field[Any] = pa.field(RANK, pa.int32(), nullable=False)
        return pa.schema([rank, *(pa.field(name, pa.float32()) for name in self.measures), *fields])

    @property
    def scan_filter(self) -> str | None:
        """The filter of the rows that are searched."""
        return self.filter if self.prefilter else None


def resolve_text_column(table: TableRef, dataset: lance.LanceDataset, column: str | None) -> str:
    """Return the column whose words are searched: the one that is named, or the only one with a full-text index.

    Without an index Lance reads all texts of the column for each query.

    Raises:
        TableColumnNotFoundError: the table has no such column.
        InvalidInputError: the column holds no text; or none is named, and not exactly one has a full-text index.
    """
    indexed = [name for index in dataset.describe_indices() if index.index_type == WORDS for name in index.field_names]
    if column is None:
        if len(set(indexed)) == 1:
            return str(indexed[0])
        column_names = ", ".join(sorted(set(indexed)))
        raise InvalidInputError(
            f"{table} has full-text indices of {column_names}: name the one to search with text_column"
            if column_names
            else f"{table} has no full-text index: build one with create_index(table, column, 'INVERTED'), or name the "
            "column to search with text_column, all texts of which are then read for each query"
        )
    require_columns(table, [column], dataset.schema.names)
    dtype = dataset.schema.field(column).type
    if column not in indexed and not (pa.types.is_string(dtype) or pa.types.is_large_string(dtype)):
        raise InvalidInputError(f"{table}: column {column} holds {dtype}, no text, and has no full-text index")
    return column


# Planning


@dataclass(frozen=True, slots=True)
class SearchPiece:
    """A part of a search that one task does."""

    numbers: range
    """The queries."""
    groups: tuple[tuple[FragmentRange, ...], ...] = ()
    """Parts of the table whose vectors are compared by products of matrices."""
    by_index: bool = False
    """Whether Lance is asked for vectors by its index."""
    by_words: bool = False


@dataclass(frozen=True, slots=True)
class SearchPlan:
    """How a search is carried out, in pieces that can run anywhere."""

    search: Search
    pieces: tuple[SearchPiece, ...]
    is_merged: bool
    """Whether the hits of several pieces have to be merged for each query."""
    is_whole_by_index: bool
    """Whether Lance also compares the rows that its index lacks; else pieces do."""
    lines: tuple[str, ...] = field(repr=False)
    """What a user may want to know of the plan."""

    def explain(self) -> str:
        """Return the plan as text."""
        return "\n".join(self.lines)


def plan_search(
    table: TableRef, dataset: lance.LanceDataset, search: Search, queries: Queries, tasks: int
) -> SearchPlan:
    """Validate a search, and choose the cheapest way to do it in about so many tasks at once.

    An index is used if it has the metric, and if the caller says how much of it to search, or if that is estimated to
    take less than half of the time of a comparison of all vectors, which finds more.
    """
    search = search.resolve(table, dataset, queries)
    count = len(queries)
    lines = [f"{count:,} queries, the best {search.k:,} rows of each, of {dataset.count_rows():,} rows in {table}"]
    if search.filter is not None:
        lines.append(f"filter: {search.filter}, {'before' if search.prefilter else 'after'} the search")
    by_index, groups, by_words = False, list[list[FragmentRange]](), search.by_words
    if search.by_vectors:
        by_index, groups = _choose_way(dataset, search, count, tasks, lines)
    if by_words:
        lines.append(_describe_words(dataset, search))
    if search.by_vectors and by_words:
        vector, words = search.weights
        lines.append(f"both: reciprocal rank fusion of the best {search.depth}, weights {vector:g} and {words:g}")
    width = queries.vectors.shape[1] if queries.vectors is not None else 1
    most, whole = _slice_queries(width, search.depth), tuple(map(tuple, groups))
    lance_slices = _slice_range(count, WORD_QUERIES if by_words else INDEX_QUERIES, tasks)
    if len(groups) < 2:
        slices = lance_slices if by_index or by_words else _slice_range(count, most, tasks)
        pieces = [SearchPiece(numbers, whole, by_index, by_words) for numbers in slices]
    else:
        slices = _slice_range(count, most, -(-tasks // len(groups)))
        pieces = [SearchPiece(numbers, (group,)) for numbers in slices for group in whole]
        if by_index or by_words:
            pieces += [SearchPiece(numbers, (), by_index, by_words) for numbers in lance_slices]
    lines.append(f"{len(pieces):,} tasks" + ", then their hits are merged" * (len(groups) > 1))
    return SearchPlan(search, tuple(pieces), len(groups) > 1, not groups, tuple(lines))


def _choose_way(
    dataset: lance.LanceDataset, search: Search, count: int, tasks: int, lines: list[str]
) -> tuple[bool, list[list[FragmentRange]]]:
    """Return whether the index is searched, and the parts of the table that are compared; add lines that say so."""
    assert search.column is not None
    width = dataset.schema.field(search.column).type.list_size
    rows = {fragment.fragment_id: fragment.count_rows() for fragment in dataset.get_fragments()}
    index = find_vector_index(dataset, search.column)
    split = search.scan_filter is None
    whole_s = comparison_seconds(count, sum(rows.values()), width)
    if search.metric not in METRICS:
        lines.append(f"vectors: by the index, whose metric is {search.metric}")
        return True, []
    if index is not None and index.metric == search.metric:
        rest = {fragment: number for fragment, number in rows.items() if fragment not in index.fragments}
        rest_s = comparison_seconds(count, sum(rest.values()), width) if rest else 0.0
        index_s = count * INDEX_S + rest_s
        is_asked = search.effort != DEFAULT_EFFORT
        if is_asked or index_s * EXACT_WORTH <= whole_s:
            why = (
                "as its effort is given"
                if is_asked
                else f"estimated {_format_seconds(index_s)} of one processor; all vectors {_format_seconds(whole_s)}"
            )
            lines.append(f"vectors: by the index {index.name} ({index.kind}, {index.metric}), {why}")
            if rest:
                lines.append(f"vectors: {sum(rest.values()):,} rows that it lacks are compared")
            return True, split_fragments(dataset, tasks, split=split, only=rest) if rest else []
        by_index = f"by the index {index.name} {_format_seconds(index_s)}"
        why = f"estimated {_format_seconds(whole_s)} of one processor; {by_index}"
    elif index is not None:
        why = f"the index {index.name} is for {index.metric}; estimated {_format_seconds(whole_s)}"
    else:
        why = f"there is no index; estimated {_format_seconds(whole_s)}"
    lines.append(f"vectors: all are compared ({search.metric}) by products of matrices, {why}")
    return False, split_fragments(dataset, tasks, split=split) or [[]]


def comparison_seconds(queries: int, rows: int, width: int) -> float:
    """Estimate the seconds that one processor needs to compare all rows with all queries."""
    return queries * rows * (PAIR_S + NUMBER_S * width) + rows * width * 4 * READ_S


def _format_seconds(value: float) -> str:
    return f"{value:.2g} s" if value < 100 else f"{value:,.0f} s"


def _describe_words(dataset: lance.LanceDataset, search: Search) -> str:
    names = [
        index.name
        for index in dataset.describe_indices()
        if index.index_type == WORDS and search.text_column in index.field_names
    ]
    if names:
        return f"words: BM25 on {search.text_column} by the full-text index {names[0]}"
    return f"words: BM25 on {search.text_column}, which has no full-text index: all texts are read for each query"


def _slice_queries(width: int, k: int) -> int:
    """Return the number of queries whose vectors, and whose hits, a task may hold.

    A number of a vector takes 4 bytes; a hit takes 12, for its distance and its row id.
    """
    return max(1, min(SLICE_BYTES // (4 * width), SLICE_BYTES // (12 * k)))


def _slice_range(count: int, most: int, least_parts: int) -> list[range]:
    """Split the numbers below `count` into ranges of about the same length, of at most `most`; none is empty."""
    parts = max(-(-count // most), min(least_parts, count))
    borders = [count * part // parts for part in range(parts + 1)] if count else [0]
    return [range(first, last) for first, last in pairwise(borders)]


# Finding


@dataclass(frozen=True, slots=True)
class Found:
    """What one piece has found: hits by vector, and by words."""

    near: Hits
    worded: Hits


def find_hits(
    table: TableRef, dataset: lance.LanceDataset, plan: SearchPlan, piece: SearchPiece, queries: Queries
) -> Found:
    """Find the hits of a piece, whose queries are numbered as those of the whole search are.

    Args:
        table: the table.
        dataset: the version.
        plan: the plan.
        piece: one of its pieces.
        queries: the queries of the piece.
    """
    search = plan.search
    depth = search.depth
    near, worded = list[Hits](), list[Hits]()
    with translate_errors(table, table.storage_options):
        for group in piece.groups:
            near.append(_compare(table, dataset, search, queries.vectors, group, depth))
        if piece.by_index:
            near.append(_search_index(table, dataset, search, queries.vectors, depth, whole=plan.is_whole_by_index))
        if piece.by_words:
            worded.append(_search_words(dataset, search, queries.texts or (), depth))
    return Found(join_hits(near).number_from(piece.numbers.start), join_hits(worded).number_from(piece.numbers.start))


def join_found(parts: Sequence[Found]) -> Found:
    """Put the hits of several pieces together."""
    return Found(join_hits([part.near for part in parts]), join_hits([part.worded for part in parts]))


def _compare(
    table: TableRef,
    dataset: lance.LanceDataset,
    search: Search,
    vectors: Any,
    parts: Sequence[FragmentRange],
    k: int,
) -> Hits:
    assert search.column is not None
    assert search.metric is not None
    nearest = NearestRows(vectors, k, search.metric)
    if parts:
        scan = Scan((search.column,), search.scan_filter, with_row_id=True)
        nearest.add(scan.batches(table, dataset, parts))
    return nearest.hits()


def _search_index(
    table: TableRef, dataset: lance.LanceDataset, search: Search, vectors: Any, k: int, *, whole: bool
) -> Hits:
    """Search the index for all vectors; `whole` says to compare rows that the index lacks, too.

    Lance would read the vectors of its candidates again for each query, which takes most of its time: they are read
    here, for many queries at once. The result is the same.
    """
    numbers = np.flatnonzero(~np.isnan(vectors).any(axis=1))
    options, parts = search.effort.to_options(k), list[Hits]()
    factor = options.pop("refine_factor") if search.metric in METRICS else 1
    size = max(1, MOST_CANDIDATES // (k * factor))
    for first in range(0, len(numbers), size):
        some = numbers[first : first + size]
        hits = join_hits(
            [
                _ask_index(dataset, search, vectors, some[call : call + CALL_QUERIES], k * factor, options, whole=whole)
                for call in range(0, len(some), CALL_QUERIES)
            ]
        )
        if search.metric in METRICS:
            hits, _ = best_hits([_compare_candidates(table, dataset, search, vectors, hits)], k)
        parts.append(hits)
    return join_hits(parts)


def _ask_index(
    dataset: lance.LanceDataset,
    search: Search,
    vectors: Any,
    numbers: Any,
    k: int,
    options: Mapping[str, int],
    *,
    whole: bool,
) -> Hits:
    nearest = {"column": search.column, "q": vectors[numbers], "k": k, "metric": search.metric, **options}
    rows: pa.Table = dataset.scanner(
        columns=[DISTANCE],
        nearest=nearest,
        filter=search.scan_filter,
        prefilter=True,
        with_row_id=True,
        fast_search=not whole,
    ).to_table()
    places = rows.column("query_index").to_numpy()
    return Hits.of(numbers[places], rows.column(ROW).to_numpy(), rows.column(DISTANCE).to_numpy())


def _compare_candidates(
    table: TableRef, dataset: lance.LanceDataset, search: Search, vectors: Any, candidates: Hits
) -> Hits:
    """Return hits with their distances by the vectors of their rows, where an index has approximate ones."""
    assert search.column is not None
    assert search.metric is not None
    order = np.argsort(candidates.rows, kind="stable")
    candidates = candidates.take(order)
    ids, width = np.unique(candidates.rows), vectors.shape[1]
    distances = np.full(len(candidates), np.nan, np.float32)
    pairs = max(1, PAIR_BYTES // 4 // width)
    for block, rows in to_blocks(_read_vectors(table, dataset, search.column, ids, width), width):
        by_id = np.argsort(rows, kind="stable")
        begins, ends = (np.searchsorted(candidates.rows, rows[by_id], side=side) for side in ("left", "right"))
        counts = ends - begins
        places = np.repeat(begins - np.concatenate([[0], np.cumsum(counts)[:-1]]), counts) + np.arange(counts.sum())
        lines = np.repeat(by_id, counts)
        with np.errstate(over="ignore", invalid="ignore"):
            for first in range(0, len(places), pairs):
                part = slice(first, first + pairs)
                queries = vectors[candidates.queries[places[part]]]
                distances[places[part]] = exact_distances(block[lines[part]], queries, search.metric)
    return Hits(candidates.queries, candidates.rows, distances)


def _read_vectors(
    table: TableRef, dataset: lance.LanceDataset, column: str, ids: Any, width: int
) -> Iterator[pa.RecordBatch]:
    """Yield vectors with the ids of their rows: those that are asked for, or all, which is cheaper if they are many."""
    if len(ids) * ROW_S > dataset.count_rows() * width * 4 * READ_S:
        parts = [part for group in split_fragments(dataset, 1, split=False) for part in group]
        yield from Scan((column,), with_row_id=True).batches(table, dataset, parts)
        return
    for first in range(0, len(ids), ROWS_AT_ONCE):
        yield from _scan_rows(table, dataset, [column], ids[first : first + ROWS_AT_ONCE]).to_batches()


def _search_words(dataset: lance.LanceDataset, search: Search, texts: Sequence[str | None], k: int) -> Hits:
    parts = []
    for number, text in enumerate(texts):
        if text is None:
            continue
        rows = dataset.scanner(
            columns=[SCORE],
            full_text_query={"query": text, "columns": [search.text_column]},
            filter=search.scan_filter,
            prefilter=True,
            limit=k,
            with_row_id=True,
        ).to_table()
        parts.append(
            Hits.of(np.full(rows.num_rows, number), rows.column(ROW).to_numpy(), rows.column(SCORE).to_numpy())
        )
    return join_hits(parts)


# Ranking


@dataclass(frozen=True, slots=True)
class RankedRows:
    """The result of some queries before its rows are read: arrays of the same length, by query and rank."""

    queries: Any
    rows: Any
    ranks: Any
    """From 0."""
    distances: Any
    """NaN if the row was not found by its vector."""
    scores: Any
    """NaN if the row was not found by its words."""

    def take(self, places: Any) -> RankedRows:
        """Return the rows at some places."""
        return RankedRows(*(getattr(self, name)[places] for name in self.__slots__))


def rank_hits(search: Search, found: Found) -> RankedRows:
    """Return the best `k` rows of each query."""
    if not (search.by_vectors and search.by_words):
        by_words = search.by_words
        best, ranks = best_hits([found.worded if by_words else found.near], search.k, largest=by_words)
        absent = np.full(len(best), np.nan, np.float32)
        return RankedRows(
            best.queries, best.rows, ranks, *((absent, best.values) if by_words else (best.values, absent))
        )
    near, near_ranks = best_hits([found.near], search.depth)
    worded, worded_ranks = best_hits([found.worded], search.depth, largest=True)
    weight, words_weight = search.weights
    points = np.concatenate([weight / (FUSION + 1 + near_ranks), words_weight / (FUSION + 1 + worded_ranks)])
    queries_, rows = np.concatenate([near.queries, worded.queries]), np.concatenate([near.rows, worded.rows])
    order = np.lexsort((rows, queries_))
    begins = np.ones(len(order), bool)
    begins[1:] = (np.diff(queries_[order]) != 0) | (rows[order][1:] != rows[order][:-1])
    starts = np.flatnonzero(begins)
    if not len(starts):
        return RankedRows(queries_, rows, near_ranks, near.values, worded.values)
    sums = np.add.reduceat(points[order], starts)
    # `fmax` prefers a number to NaN: a row that only one of the searches has found keeps what that one says of it.
    values = {
        name: np.fmax.reduceat(column[order], starts)
        for name, column in {
            DISTANCE: np.concatenate([near.values, np.full(len(worded), np.nan, np.float32)]),
            SCORE: np.concatenate([np.full(len(near), np.nan, np.float32), worded.values]),
        }.items()
    }
    queries_, rows = queries_[order][starts], rows[order][starts]
    best_first = np.lexsort((rows, -sums, queries_))
    ranks = rank_in_runs(queries_[best_first])
    fused = RankedRows(
        queries_[best_first], rows[best_first], ranks, *(column[best_first] for column in values.values())
    )
    return fused.take(ranks < search.k)


# Reading


def read_ranked(
    table: TableRef, dataset: lance.LanceDataset, search: Search, schema: pa.Schema, ranked: RankedRows
) -> Iterator[tuple[Any, pa.RecordBatch]]:
    """Yield the rows of a result in batches, each with the numbers of the queries that its rows belong to.

    Args:
        table: the table.
        dataset: the version.
        search: the search.
        schema: of the result, as `Search.schema` gives it.
        ranked: what was found.
    """
    if search.filter is not None and not search.prefilter:
        is_match = np.isin(ranked.rows, _matching_rows(table, dataset, search.filter, ranked.rows))
        ranked = ranked.take(is_match)
        ranked = replace(ranked, ranks=rank_in_runs(ranked.queries))
    names = schema.names[1 + len(search.measures) :]
    size = min(batch_rows([dataset.schema.field(name.partition(".")[0]) for name in names]), ROWS_AT_ONCE)
    measures = {DISTANCE: ranked.distances, SCORE: ranked.scores}
    for first in range(0, len(ranked.rows), size):
        part = slice(first, first + size)
        columns: list[Any] = [pa.array(ranked.ranks[part] + 1, pa.int32())]
        columns += [pa.array(measures[name][part], pa.float32(), from_pandas=True) for name in search.measures]
        ids, places = np.unique(ranked.rows[part], return_inverse=True)
        columns += [column.combine_chunks() for column in _read_rows(table, dataset, names, ids).take(places).columns]
        arrays = [column if isinstance(column, pa.Array) else column.combine_chunks() for column in columns]
        yield ranked.queries[part], pa.RecordBatch.from_arrays(arrays, schema=schema)


def _matching_rows(table: TableRef, dataset: lance.LanceDataset, filter: str, rows: Any) -> Any:
    """Return those of some row ids whose rows match a filter."""
    ids = np.unique(rows)
    parts = [
        _scan_rows(table, dataset, [], ids[first : first + ROWS_AT_ONCE], f" AND {enclose_sql(filter)}")
        .column(ROW)
        .to_numpy()
        for first in range(0, len(ids), ROWS_AT_ONCE)
    ]
    return np.concatenate([np.empty(0, np.uint64), *parts])


def _read_rows(table: TableRef, dataset: lance.LanceDataset, names: Sequence[str], ids: Any) -> pa.Table:
    """Read rows by their ids, which are sorted, in the same order."""
    rows = _scan_rows(table, dataset, names, ids)
    order = np.argsort(rows.column(ROW).to_numpy(), kind="stable")
    return rows.drop_columns([ROW]).take(order)


def _scan_rows(
    table: TableRef, dataset: lance.LanceDataset, names: Sequence[str], ids: Any, condition: str = ""
) -> pa.Table:
    row_filter = f"_rowid IN ({', '.join(map(str, ids.tolist()))})" if len(ids) else "false"
    with translate_errors(table, table.storage_options):
        rows: pa.Table = dataset.scanner(
            columns=list(names), filter=row_filter + condition, with_row_id=True, blob_handling="all_binary"
        ).to_table()
    return rows
