"""Find the SQL and searches in requests of the protocol, check and rewrite them.

`lancehouse.gateway.sql` is imported where there is SQL: its parser takes 26 MB, which a server of tables without
filters and computed columns does not need.

Lance runs searches in this process, and allocates memory for as many rows as are requested, whether they exist or not.
Deep full-text queries overflow its native stack, and each word of a query takes time and memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from lance_namespace import (
    AlterTableAddColumnsRequest,
    AlterTableBackfillColumnsRequest,
    AnalyzeTableQueryPlanRequest,
    CountTableRowsRequest,
    DeleteFromTableRequest,
    ExplainTableQueryPlanRequest,
    MergeInsertIntoTableRequest,
    QueryTableRequest,
    UpdateTableRequest,
)
from lance_namespace.errors import InvalidInputError
from lance_namespace_urllib3_client.models.boolean_query import BooleanQuery
from lance_namespace_urllib3_client.models.boost_query import BoostQuery
from lance_namespace_urllib3_client.models.fts_query import FtsQuery
from lance_namespace_urllib3_client.models.match_query import MatchQuery
from lance_namespace_urllib3_client.models.multi_match_query import MultiMatchQuery
from lance_namespace_urllib3_client.models.phrase_query import PhraseQuery
from lance_namespace_urllib3_client.models.query_table_request_full_text_query import QueryTableRequestFullTextQuery
from pydantic import BaseModel

if TYPE_CHECKING:
    from lancehouse.gateway.sql import Value

MAX_WRITTEN = 64 << 20
"""Most bytes that long literals of one update may take in all rows that it changes."""

MAX_COLUMNS = 10_000
"""Most columns that a query names."""
MAX_LEVELS = 64
"""Most levels of a column's name."""
MAX_COMPUTED = 1_000
"""Most columns that one request computes."""
MAX_ALL_COPIES = 100
"""Most copies of column values in all computed columns of a request together."""
MAX_ALL_CONSTANTS = 10_000
"""Most bytes of literals in all of them together."""

M = TypeVar("M", bound=BaseModel)

_CONDITIONS: dict[type[BaseModel], tuple[str, ...]] = {
    AlterTableBackfillColumnsRequest: ("where",),
    AnalyzeTableQueryPlanRequest: ("filter",),
    CountTableRowsRequest: ("predicate",),
    DeleteFromTableRequest: ("predicate",),
    MergeInsertIntoTableRequest: ("when_matched_update_all_filt", "when_not_matched_by_source_delete_filt"),
    QueryTableRequest: ("filter",),
    UpdateTableRequest: ("predicate",),
}
"""Fields of each request that hold a condition."""


def rewrite_sql(request: M, count: Callable[[CountTableRowsRequest], Any]) -> M:
    """Return the request with all its SQL parsed and rewritten, after a check of its searches.

    Args:
        request: any request; one without SQL is returned as it is.
        count: counts rows of a table; called only if an update sets a long literal.

    Raises:
        InvalidInputError: the SQL is not allowed, or something exceeds a limit.
    """
    if isinstance(request, QueryTableRequest | AnalyzeTableQueryPlanRequest):
        check_search(request)
    changes: dict[str, Any] = {}
    for field in _CONDITIONS.get(type(request), ()):
        if (text := getattr(request, field)) and text.strip():
            from lancehouse.gateway.sql import rewrite_condition

            changes[field] = rewrite_condition(text, field)
    match request:
        case ExplainTableQueryPlanRequest():
            changes["query"] = rewrite_sql(request.query, count)
        case QueryTableRequest() | AnalyzeTableQueryPlanRequest() if request.columns is not None:
            _check_names(request.columns.column_names or ())
            aliases = request.columns.column_aliases or {}
            texts = _rewrite_columns(aliases.items(), "columns") if aliases else ()
            values = dict(zip(aliases, texts, strict=True)) or None
            changes["columns"] = request.columns.model_copy(update={"column_aliases": values})
        case AlterTableAddColumnsRequest():
            pairs = [(entry.name, entry.expression) for entry in request.new_columns if entry.expression is not None]
            rewritten = iter(_rewrite_columns(pairs, "new_columns"))
            changes["new_columns"] = [
                entry if entry.expression is None else entry.model_copy(update={"expression": next(rewritten)})
                for entry in request.new_columns
            ]
        case UpdateTableRequest():
            changes["updates"] = _rewrite_updates(request, changes.get("predicate"), count)
    return request.model_copy(update=changes) if changes else request


def _check_names(names: Sequence[str]) -> None:
    """Refuse too many columns, and field paths that are too deep: Lance parses names as SQL too."""
    if len(names) > MAX_COLUMNS:
        raise InvalidInputError(f"columns: {len(names):,} are named, and at most {MAX_COLUMNS:,} are allowed")
    for name in names:
        if name.count(".") > MAX_LEVELS:
            raise InvalidInputError(f"columns: {name[:80]!r} is nested more than {MAX_LEVELS} levels deep")


def _rewrite_columns(columns: Iterable[tuple[str, str]], field: str) -> list[str]:
    """Return rewritten expressions of computed columns, given as pairs of name and expression."""
    from lancehouse.gateway.sql import MAX_CONSTANT, rewrite_value

    values = []
    for name, text in columns:
        value = rewrite_value(text, f"{field}: {name}"[:100])
        if value.constant > MAX_CONSTANT:
            words = f"its literals have {value.constant:,} bytes, and at most {MAX_CONSTANT:,} are allowed"
            raise InvalidInputError(f"{field}: {name[:80]}: {words}")
        values.append(value)
    _check_all(values, field)
    if (size := sum(value.constant for value in values)) > MAX_ALL_CONSTANTS:
        raise InvalidInputError(
            f"{field}: literals of all columns have {size:,} bytes, and at most {MAX_ALL_CONSTANTS:,} are allowed"
        )
    return [value.text for value in values]


def _check_all(values: Sequence[Value], field: str) -> None:
    """Refuse computed columns that together exceed a limit."""
    from lancehouse.gateway.sql import MAX_OPERATORS

    for count, most, what in (
        (len(values), MAX_COMPUTED, "columns are computed"),
        (sum(value.operators for value in values), MAX_OPERATORS, "operators are used in all"),
        (sum(value.copies for value in values), MAX_ALL_COPIES, "values of columns are put into others"),
    ):
        if count > most:
            raise InvalidInputError(f"{field}: {count:,} {what}, and at most {most:,} are allowed; ask for fewer")


def _rewrite_updates(
    request: UpdateTableRequest, predicate: str | None, count: Callable[[CountTableRowsRequest], Any]
) -> list[list[str]]:
    """Return the [column, expression] pairs rewritten. Long literals are allowed if few rows get them."""
    from lancehouse.gateway.sql import MAX_CONSTANT, rewrite_value

    if any(len(pair) != 2 for pair in request.updates):
        raise InvalidInputError("updates: each is a pair of a column and an expression")
    values = [rewrite_value(text, f"updates: {name[:80]}") for name, text in request.updates]
    _check_all(values, "updates")
    total = sum(value.constant for value in values)
    if total > MAX_CONSTANT:
        count_request = CountTableRowsRequest(id=request.id, branch=request.branch, predicate=predicate)
        rows = count(count_request).count
        if rows * total > MAX_WRITTEN:
            raise InvalidInputError(
                f"updates: {rows:,} rows would get literals of {total:,} bytes each: update fewer rows at a time, "
                f"so that they get {MAX_WRITTEN >> 20} MB at most"
            )
    return [[name, value.text] for (name, _), value in zip(request.updates, values, strict=True)]


MAX_CHARACTERS = 8_000
"""Most characters of all words together, counted once for each column: an index may turn each character into a word."""
MAX_QUERIES = 1_000
"""Most parts of a full-text query."""
MAX_DEPTH = 40
"""Most levels of nested full-text queries."""
MAX_EXPANSIONS = 200
"""Most alternatives for a word that may be misspelt."""

MAX_VECTORS = 1_000
"""Most vectors in one search."""
MAX_FOUND = 1_000_000
"""Most rows that a vector search may compare: `k` plus `offset`, for each vector, times `refine_factor`."""

Query = FtsQuery | MatchQuery | PhraseQuery | MultiMatchQuery | BooleanQuery | BoostQuery


def check_search(query: QueryTableRequest | AnalyzeTableQueryPlanRequest) -> None:
    """Refuse a search that would take too much time or memory.

    Raises:
        InvalidInputError: it exceeds a limit; the message says which.
    """
    _check_vectors(query)
    if query.full_text_query is not None:
        _check_words(query.full_text_query)


def _check_vectors(query: QueryTableRequest | AnalyzeTableQueryPlanRequest) -> None:
    vectors = 1 if query.vector.single_vector else len(query.vector.multi_vector or ())
    if vectors > MAX_VECTORS:
        raise InvalidInputError(f"{vectors:,} vectors are searched for at once, and {MAX_VECTORS:,} are the most")
    row_count = vectors * (query.k + (query.offset or 0)) * (query.refine_factor or 1)
    if vectors and max(row_count, query.ef or 0) > MAX_FOUND:
        raise InvalidInputError(
            f"a search compares at most {MAX_FOUND:,} rows (k and offset, for each vector, times refine_factor; ef); "
            "without a vector, all rows can be read"
        )


def _check_words(query: QueryTableRequestFullTextQuery) -> None:
    characters = 0
    if query.string_query is not None:
        characters = len(query.string_query.query) * max(1, len(query.string_query.columns or ()))
    if query.structured_query is not None:
        characters += _measure(query.structured_query.query)
    if characters > MAX_CHARACTERS:
        raise _refuse(f"its words have {characters:,} characters in all columns, and {MAX_CHARACTERS:,} are the most")


def _measure(query: FtsQuery) -> int:
    """Return the characters of all words. Not recursive, because it must survive the depth that it checks."""
    characters = count = 0
    waiting: list[tuple[Query, int]] = [(query, 0)]
    while waiting:
        part, depth = waiting.pop()
        is_level = not isinstance(part, FtsQuery)  # that one only holds a query of one of the other kinds
        count += is_level
        if count > MAX_QUERIES:
            raise _refuse(f"it consists of more than {MAX_QUERIES:,} queries")
        if depth > MAX_DEPTH:
            raise _refuse(f"its queries are nested more than {MAX_DEPTH} levels deep")
        if isinstance(part, MatchQuery | PhraseQuery):
            characters += len(part.terms)
        if isinstance(part, MatchQuery) and (part.max_expansions or 0) > MAX_EXPANSIONS:
            raise _refuse(f"max_expansions is {part.max_expansions:,}, and {MAX_EXPANSIONS} are the most")
        waiting += [(child, depth + is_level) for child in _parts(part)]
    return characters


def _parts(query: Query) -> Iterator[Query]:
    match query:
        case FtsQuery():
            alternatives = (query.match, query.phrase, query.boost, query.multi_match, query.boolean)
            yield from (part for part in alternatives if part is not None)
        case MultiMatchQuery():
            yield from query.match_queries
        case BooleanQuery():
            yield from (*query.must, *query.must_not, *query.should)
        case BoostQuery():
            yield from (query.positive, query.negative)


def _refuse(why: str) -> InvalidInputError:
    return InvalidInputError(f"full_text_query: {why}")
