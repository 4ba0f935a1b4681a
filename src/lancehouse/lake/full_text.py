"""Convert full-text queries of the Lance interface to pylance's queries."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import MappingProxyType
from typing import Any

import lance
from lance import query as fts
from lance_namespace.errors import InvalidInputError
from lance_namespace_urllib3_client.models.boolean_query import BooleanQuery
from lance_namespace_urllib3_client.models.boost_query import BoostQuery
from lance_namespace_urllib3_client.models.fts_query import FtsQuery
from lance_namespace_urllib3_client.models.match_query import MatchQuery
from lance_namespace_urllib3_client.models.multi_match_query import MultiMatchQuery
from lance_namespace_urllib3_client.models.phrase_query import PhraseQuery
from lance_namespace_urllib3_client.models.query_table_request_full_text_query import QueryTableRequestFullTextQuery

Searchable = Callable[[], list[str]]
"""Returns the columns to search if a query names none."""


def to_full_text_query(
    dataset: lance.LanceDataset, query: QueryTableRequestFullTextQuery | None
) -> dict[str, Any] | fts.FullTextQuery | None:
    """Convert a query to the argument of `scanner(full_text_query=…)`.

    Raises:
        InvalidInputError: the query is empty or ambiguous, or names no column while none has a full-text index.
    """
    if query is None:
        return None
    if query.structured_query is not None:
        return _to_structured_query(query.structured_query.query, lambda: _indexed_columns(dataset))
    if query.string_query is None:
        raise InvalidInputError("full_text_query needs a string_query or a structured_query")
    return {"query": query.string_query.query, "columns": query.string_query.columns or None}


def _indexed_columns(dataset: lance.LanceDataset) -> list[str]:
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
    return _to_best_match([named for match in query.match_queries for named in _match_per_column(match, searchable)])


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
