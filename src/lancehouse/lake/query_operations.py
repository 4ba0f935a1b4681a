"""Operations of the Lance interface that query a table: scans, vector search, full-text search, query plans."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator, Sequence
from types import MappingProxyType
from typing import Any

import lance
import pyarrow as pa
import pyarrow.compute as pc
from lance import query as fts
from lance_namespace import (
    AnalyzeTableQueryPlanRequest,
    ExplainTableQueryPlanRequest,
    LanceNamespace,
    QueryTableRequest,
    QueryTableResponse,
)
from lance_namespace.errors import InvalidInputError
from lance_namespace_urllib3_client.models.boolean_query import BooleanQuery
from lance_namespace_urllib3_client.models.boost_query import BoostQuery
from lance_namespace_urllib3_client.models.fts_query import FtsQuery
from lance_namespace_urllib3_client.models.match_query import MatchQuery
from lance_namespace_urllib3_client.models.multi_match_query import MultiMatchQuery
from lance_namespace_urllib3_client.models.phrase_query import PhraseQuery
from lance_namespace_urllib3_client.models.query_table_request_full_text_query import QueryTableRequestFullTextQuery

from lancehouse.lake import chunked_scan
from lancehouse.lake.dataset import TableRef, enclose_sql
from lancehouse.schema.definitions import shown_columns

Searchable = Callable[[], list[str]]
"""Returns the columns to search if a query names none."""


def to_full_text_query(
    dataset: lance.LanceDataset, query: QueryTableRequestFullTextQuery | None, default: Sequence[str] = ()
) -> dict[str, Any] | fts.FullTextQuery | None:
    """Convert a query to the argument of `scanner(full_text_query=…)`.

    Args:
        dataset: the table.
        query: the caller's query.
        default: columns to search if the query names none; by default those that have a full-text index.

    Raises:
        InvalidInputError: the query is empty or ambiguous, or names no column while none has a full-text index.
    """
    if query is None:
        return None
    if query.structured_query is not None:
        return _to_structured_query(
            query.structured_query.query, lambda: list(default) or _find_indexed_columns(dataset)
        )
    if query.string_query is None:
        raise InvalidInputError("full_text_query needs a string_query or a structured_query")
    return {"query": query.string_query.query, "columns": query.string_query.columns or list(default) or None}


def _find_indexed_columns(dataset: lance.LanceDataset) -> list[str]:
    indices = (index for index in dataset.describe_indices() if index.index_type == "Inverted")
    if columns := list(dict.fromkeys(column for index in indices for column in index.field_names)):
        return columns
    raise InvalidInputError("the full-text query names no column, and none has a full-text index")


def _to_structured_query(query: FtsQuery, searchable: Searchable) -> fts.FullTextQuery:
    kinds = [name for name in _KINDS if getattr(query, name) is not None]
    if len(kinds) != 1:
        raise InvalidInputError(f"a full-text query is one of {', '.join(_KINDS)}; got {kinds}")
    return _KINDS[kinds[0]](getattr(query, kinds[0]), searchable)


def _to_match(query: MatchQuery, searchable: Searchable) -> fts.FullTextQuery:
    return _to_best_match(_match_per_column(query, searchable))


def _to_multi_match(query: MultiMatchQuery, searchable: Searchable) -> fts.FullTextQuery:
    if not query.match_queries:
        raise InvalidInputError("a multi_match query needs match queries")
    return _to_best_match(
        [column_match for match in query.match_queries for column_match in _match_per_column(match, searchable)]
    )


def _match_per_column(query: MatchQuery, searchable: Searchable) -> list[MatchQuery]:
    columns = [query.column] if query.column else searchable()
    return [query.model_copy(update={"column": column}) for column in columns]


def _to_best_match(matches: Sequence[MatchQuery]) -> fts.FullTextQuery:
    """Combine matches in several columns to one query.

    Lance scores by the best column, but only if all of them match the same words with the same plain options.
    """
    first = matches[0]
    if len(matches) == 1:
        return _to_match_query(first)
    plain = not any(match.fuzziness or match.prefix_length or match.max_expansions for match in matches)
    if plain and len({(match.terms, _parse_operator(match.operator)) for match in matches}) == 1:
        return fts.MultiMatchQuery(
            first.terms,
            [match.column for match in matches],
            boosts=[1.0 if match.boost is None else float(match.boost) for match in matches],
            operator=_parse_operator(first.operator),
        )
    return fts.BooleanQuery([(fts.Occur.SHOULD, _to_match_query(match)) for match in matches])


def _to_match_query(query: MatchQuery) -> fts.FullTextQuery:
    options = {
        "boost": None if query.boost is None else float(query.boost),
        "fuzziness": query.fuzziness,
        "max_expansions": query.max_expansions,
        "prefix_length": query.prefix_length,
        "operator": _parse_operator(query.operator),
    }
    set_options = {key: value for key, value in options.items() if value is not None}
    return fts.MatchQuery(query.terms, query.column, **set_options)


def _parse_operator(name: str | None) -> fts.FullTextOperator:
    try:
        return fts.FullTextOperator((name or "or").upper())
    except ValueError as error:
        raise InvalidInputError(f"operator {name!r} is neither And nor Or") from error


def _to_phrase(query: PhraseQuery, searchable: Searchable) -> fts.FullTextQuery:
    columns = [query.column] if query.column else searchable()
    phrases = [fts.PhraseQuery(query.terms, column, slop=query.slop or 0) for column in columns]
    return phrases[0] if len(phrases) == 1 else fts.BooleanQuery([(fts.Occur.SHOULD, phrase) for phrase in phrases])


def _to_boost(query: BoostQuery, searchable: Searchable) -> fts.FullTextQuery:
    return fts.BoostQuery(
        _to_structured_query(query.positive, searchable),
        _to_structured_query(query.negative, searchable),
        negative_boost=0.5 if query.negative_boost is None else float(query.negative_boost),
    )


def _to_boolean(query: BooleanQuery, searchable: Searchable) -> fts.FullTextQuery:
    clauses = ((fts.Occur.MUST, query.must), (fts.Occur.MUST_NOT, query.must_not), (fts.Occur.SHOULD, query.should))
    return fts.BooleanQuery(
        [(occur, _to_structured_query(part, searchable)) for occur, parts in clauses for part in parts]
    )


_KINDS = MappingProxyType[str, Callable[[Any, Searchable], fts.FullTextQuery]](
    {
        "match": _to_match,
        "phrase": _to_phrase,
        "boost": _to_boost,
        "multi_match": _to_multi_match,
        "boolean": _to_boolean,
    }
)


Query = QueryTableRequest | AnalyzeTableQueryPlanRequest

VECTOR_COLUMN = "vector"
"""Column that is searched if a request names none and the table does not have exactly one vector column."""

DISTANCE, SCORE = "_distance", "_score"
"""Columns that Lance adds to the results of a search."""

DEFAULT_K = 10
"""Number of neighbours returned if a request does not say."""

BATCHES_AHEAD = 2
"""Batches that a scan reads ahead."""
TEXTS = (pa.string(), pa.large_string(), pa.binary(), pa.large_binary())
"""Types whose values have different lengths."""
PART_BYTES = 1 << 20
"""Size in bytes of the parts in which a response is produced, if rows are small."""


class QueryOperations(LanceNamespace):
    """Operations that read rows."""

    def query_table(self, request: QueryTableRequest) -> QueryTableResponse:
        """Return the rows as an Arrow IPC file.

        Without a vector, `k` limits a scan, and 0 means no limit. Several vectors are searched at once: `k` rows for
        each, told apart by the column `query_index`. `offset` skips rows without making the response shorter. A
        dictionary column is returned as plain values, because each fragment has its own dictionary and a file can hold
        only one.
        """
        return QueryTableResponse(data=b"".join(self.query_parts(request)))

    def query_parts(self, request: QueryTableRequest) -> Iterator[bytes]:
        """Yield the Arrow IPC file in parts, holding one at a time; the query is validated before the first part."""
        with _table_ref(self, request).dataset() as dataset:
            query_scanner = create_scanner(dataset, request)
            yield from write_parts(query_scanner.projected_schema, _read_batches(dataset, request, query_scanner))

    def explain_table_query_plan(self, request: ExplainTableQueryPlanRequest) -> str:
        """Return the plan of a query. The request's id and branch take precedence over those inside its query."""
        overrides = {"id": request.id, "branch": request.branch}
        query = request.query.model_copy(update={key: value for key, value in overrides.items() if value})
        with _table_ref(self, query).dataset() as dataset:
            return str(create_scanner(dataset, query).explain_plan(bool(request.verbose)))

    def analyze_table_query_plan(self, request: AnalyzeTableQueryPlanRequest) -> str:
        """Execute a query and return its plan with times and counts."""
        with _table_ref(self, request).dataset() as dataset:
            return str(create_scanner(dataset, request).analyze_plan())


def write_parts(schema: pa.Schema, batches: Iterator[pa.RecordBatch]) -> Iterator[bytes]:
    """Yield batches as the parts of an Arrow IPC file, with plain values in place of dictionaries."""
    sink = _PartSink()
    plain_schema = without_dictionaries(schema)
    with pa.ipc.new_file(sink, plain_schema) as file:
        for batch in _decode_dictionaries(batches, plain_schema):
            file.write_batch(batch)
            if sink.held >= PART_BYTES:
                yield sink.take()
    yield sink.take()


class _PartSink(io.RawIOBase):
    """A file whose content is taken out as it is written."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self.held = 0
        """Number of bytes that were not taken yet."""

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        part = bytes(data)
        self._parts.append(part)
        self.held += len(part)
        return len(part)

    def take(self) -> bytes:
        """Return what was written since the last call."""
        parts, self._parts, self.held = self._parts, [], 0
        return b"".join(parts)


def _decode_dictionaries(batches: Iterator[pa.RecordBatch], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Replace dictionaries in batches by their values, in smaller batches: many rows may share one long value."""
    for batch in batches:
        if batch.schema.equals(schema):
            yield batch
            continue
        size = sum(map(_measure_values, batch.columns))
        rows = max(1, batch.num_rows * PART_BYTES // max(size, 1))
        for first in range(0, batch.num_rows, rows):
            yield batch.slice(first, rows).cast(schema)


def _measure_values(array: pa.Array[Any]) -> int:
    """Return the total length of the strings in an array's dictionaries, once per row that refers to them."""
    if isinstance(array, pa.DictionaryArray):
        values: Any = array.dictionary
        if values.type not in TEXTS:
            return 0
        lengths: Any = pc.binary_length(values).cast(pa.int64())
        return int(pc.sum(lengths.take(array.indices)).as_py() or 0)
    if isinstance(array, pa.StructArray):
        return sum(_measure_values(array.field(index)) for index in range(array.type.num_fields))
    if isinstance(array, pa.ListArray | pa.LargeListArray | pa.FixedSizeListArray):
        return _measure_values(array.flatten())
    return 0


def without_dictionaries(schema: pa.Schema) -> pa.Schema:
    """Return a schema with the value types in place of dictionary types, at any depth."""
    return pa.schema([_decode_field(field) for field in schema]).with_metadata(schema.metadata)


def _decode_field(field: pa.Field[Any]) -> pa.Field[Any]:
    """Return a field with the value type in place of a dictionary type, at any depth."""
    dtype: pa.DataType = field.type
    match dtype:
        case pa.DictionaryType():
            return field.with_type(dtype.value_type)
        case pa.StructType():
            return field.with_type(pa.struct([_decode_field(child) for child in dtype]))
        case pa.FixedSizeListType():
            return field.with_type(pa.list_(_decode_field(dtype.value_field), dtype.list_size))
        case pa.LargeListType():
            return field.with_type(pa.large_list(_decode_field(dtype.value_field)))
        case pa.ListType():
            return field.with_type(pa.list_(_decode_field(dtype.value_field)))
        case pa.MapType():
            key, value = _decode_field(dtype.key_field), _decode_field(dtype.item_field)
            return field.with_type(pa.map_(key, value, dtype.keys_sorted))
    return field


def _read_batches(
    dataset: lance.LanceDataset, query: QueryTableRequest, query_scanner: lance.LanceScanner
) -> Iterator[pa.RecordBatch]:
    """Read the batches of a query. A search returns a bounded number of rows; a scan is read in chunks."""
    if _nearest_options(dataset, query) is not None or query.full_text_query is not None:
        results: Iterator[pa.RecordBatch] = query_scanner.to_batches()
        return results
    limits = chunked_scan.PlainScan(enclose_sql(query.filter), query.k or None, query.offset or 0)
    columns = {"columns": _columns(dataset.schema, query), "with_row_id": query.with_row_id}
    ahead = {"io_buffer_size": chunked_scan.READ_AHEAD, "batch_readahead": BATCHES_AHEAD}
    return chunked_scan.read_batches(dataset, limits, {**columns, **ahead})


def create_scanner(dataset: lance.LanceDataset, query: Query, default_texts: Sequence[str] = ()) -> lance.LanceScanner:
    """Convert a query to a scanner of pylance; `default_texts` as for `to_full_text_query`."""
    nearest = _nearest_options(dataset, query)
    is_batch = nearest is not None and isinstance(nearest["q"][0], list)
    if is_batch and query.offset:
        raise InvalidInputError("offset has no meaning for several query vectors")
    return dataset.scanner(
        columns=_columns(dataset.schema, query, [DISTANCE] * (nearest is not None)),
        filter=enclose_sql(query.filter),
        prefilter=bool(query.prefilter),
        limit=None if nearest else query.k or None,
        offset=query.offset or None,
        nearest=nearest,
        full_text_query=to_full_text_query(dataset, query.full_text_query, default_texts),
        fast_search=query.fast_search,
        with_row_id=query.with_row_id,
        batch_size=chunked_scan.batch_rows(dataset),
        batch_readahead=BATCHES_AHEAD,
        io_buffer_size=chunked_scan.READ_AHEAD,
    )


def _table_ref(namespace: LanceNamespace, query: Query) -> TableRef:
    return TableRef.in_namespace(namespace, query.id, version=query.version, branch=query.branch)


def _columns(schema: pa.Schema, query: Query, scores: Sequence[str] = ()) -> list[str] | dict[str, str] | None:
    """Return the columns that a query names; by default all but those that Lancehouse keeps beside computed ones."""
    columns = query.columns and (query.columns.column_names or query.columns.column_aliases)
    if columns:
        return columns
    shown = shown_columns(schema)
    if len(shown) == len(schema.names):
        return None
    return [*shown, *scores, *([SCORE] if query.full_text_query is not None else ())]


def _nearest_options(dataset: lance.LanceDataset, query: Query) -> dict[str, Any] | None:
    vector = query.vector.single_vector or query.vector.multi_vector
    if not vector:
        return None
    if any(isinstance(item, list) and not item for item in vector):
        raise InvalidInputError("one of the query vectors is empty")
    bounds = (query.lower_bound, query.upper_bound)
    has_probe_range = query.minimum_nprobes is not None or query.maximum_nprobes is not None
    options = {
        "metric": query.distance_type,
        "nprobes": None if has_probe_range else query.nprobes,
        "minimum_nprobes": query.minimum_nprobes,
        "maximum_nprobes": query.maximum_nprobes,
        "refine_factor": query.refine_factor,
        "ef": query.ef,
        "use_index": not query.bypass_vector_index,
        "distance_range": None if bounds == (None, None) else bounds,
    }
    return {
        "column": query.vector_column or default_vector_column(dataset.schema),
        "q": vector,
        "k": (query.k or DEFAULT_K) + (query.offset or 0),
        **{key: value for key, value in options.items() if value is not None},
    }


def default_vector_column(schema: pa.Schema) -> str:
    """Return the column that a search without a column compares."""
    vectors = [field.name for field in schema if _is_vector(field.type)]
    return vectors[0] if len(vectors) == 1 else VECTOR_COLUMN


def _is_vector(dtype: pa.DataType) -> bool:
    while isinstance(dtype, pa.ListType | pa.BaseExtensionType):
        dtype = dtype.value_type if isinstance(dtype, pa.ListType) else dtype.storage_type
    return isinstance(dtype, pa.FixedSizeListType)
