"""Limits on vector and full-text searches that callers send, checked before Lance runs them.

Lance runs searches in this process, and allocates memory for as many rows as are requested, whether they exist or not.
Deep full-text queries overflow its native stack, and each word of a query takes time and memory.
"""

from __future__ import annotations

from collections.abc import Iterator

from lance_namespace import AnalyzeTableQueryPlanRequest, QueryTableRequest
from lance_namespace.errors import InvalidInputError
from lance_namespace_urllib3_client.models.boolean_query import BooleanQuery
from lance_namespace_urllib3_client.models.boost_query import BoostQuery
from lance_namespace_urllib3_client.models.fts_query import FtsQuery
from lance_namespace_urllib3_client.models.match_query import MatchQuery
from lance_namespace_urllib3_client.models.multi_match_query import MultiMatchQuery
from lance_namespace_urllib3_client.models.phrase_query import PhraseQuery
from lance_namespace_urllib3_client.models.query_table_request_full_text_query import QueryTableRequestFullTextQuery

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
    found = vectors * (query.k + (query.offset or 0)) * (query.refine_factor or 1)
    if vectors and max(found, query.ef or 0) > MAX_FOUND:
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
        each, depth = waiting.pop()
        count += not isinstance(each, FtsQuery)
        if count > MAX_QUERIES:
            raise _refuse(f"it consists of more than {MAX_QUERIES:,} queries")
        if depth > MAX_DEPTH:
            raise _refuse(f"its queries are nested more than {MAX_DEPTH} levels deep")
        if isinstance(each, MatchQuery | PhraseQuery):
            characters += len(each.terms)
        if isinstance(each, MatchQuery) and (each.max_expansions or 0) > MAX_EXPANSIONS:
            raise _refuse(f"max_expansions is {each.max_expansions:,}, and {MAX_EXPANSIONS} are the most")
        waiting += [(part, depth + (not isinstance(each, FtsQuery))) for part in _parts(each)]
    return characters


def _parts(query: Query) -> Iterator[Query]:
    match query:
        case FtsQuery():
            said = (query.match, query.phrase, query.boost, query.multi_match, query.boolean)
            yield from (part for part in said if part is not None)
        case MultiMatchQuery():
            yield from query.match_queries
        case BooleanQuery():
            yield from (*query.must, *query.must_not, *query.should)
        case BoostQuery():
            yield from (query.positive, query.negative)


def _refuse(why: str) -> InvalidInputError:
    return InvalidInputError(f"full_text_query: {why}")
