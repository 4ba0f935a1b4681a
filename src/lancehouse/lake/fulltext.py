"""Full-text queries of the interface as pylance has them."""

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
"""The columns that a query which names none is about."""


def full_text(
    dataset: lance.LanceDataset, query: QueryTableRequestFullTextQuery | None
) -> dict[str, Any] | fts.FullTextQuery | None:
    """What `scanner(full_text_query=…)` takes.

    Raises:
        InvalidInputError: an empty or ambiguous query, or one that names no column where none has a full-text index.
    """
    if query is None:
        return None
    if query.structured_query is not None:
        return _structured(query.structured_query.query, lambda: _indexed(dataset))
    if query.string_query is None:
        raise InvalidInputError("full_text_query needs a string_query or a structured_query")
    return {"query": query.string_query.query, "columns": query.string_query.columns or None}


def _indexed(dataset: lance.LanceDataset) -> list[str]:
    indices = (index for index in dataset.describe_indices() if index.index_type == "Inverted")
    if columns := list(dict.fromkeys(column for index in indices for column in index.field_names)):
        return columns
    raise InvalidInputError("the full-text query names no column, and none has a full-text index")


def _structured(query: FtsQuery, searchable: Searchable) -> fts.FullTextQuery:
    said = [name for name in _KINDS if getattr(query, name) is not None]
    if len(said) != 1:
        raise InvalidInputError(f"a full-text query is one of {', '.join(_KINDS)}; got {said}")
    return _KINDS[said[0]](getattr(query, said[0]), searchable)


def _match(query: MatchQuery, searchable: Searchable) -> fts.FullTextQuery:
    return _best_of(_named(query, searchable))


def _multi_match(query: MultiMatchQuery, searchable: Searchable) -> fts.FullTextQuery:
    if not query.match_queries:
        raise InvalidInputError("a multi_match query needs match queries")
    return _best_of([named for match in query.match_queries for named in _named(match, searchable)])


def _named(query: MatchQuery, searchable: Searchable) -> list[MatchQuery]:
    columns = [query.column] if query.column else searchable()
    return [query.model_copy(update={"column": column}) for column in columns]


def _best_of(matches: Sequence[MatchQuery]) -> fts.FullTextQuery:
    """One query over several columns. Lance scores by the best of them, but only for the same plain words in each."""
    first = matches[0]
    if len(matches) == 1:
        return _one_match(first)
    plain = not any(match.fuzziness or match.prefix_length or match.max_expansions for match in matches)
    if plain and len({(match.terms, _operator(match.operator)) for match in matches}) == 1:
        return fts.MultiMatchQuery(
            first.terms,
            [match.column for match in matches],
            boosts=[1.0 if match.boost is None else float(match.boost) for match in matches],
            operator=_operator(first.operator),
        )
    return fts.BooleanQuery([(fts.Occur.SHOULD, _one_match(match)) for match in matches])


def _one_match(query: MatchQuery) -> fts.FullTextQuery:
    options = {
        "boost": None if query.boost is None else float(query.boost),
        "fuzziness": query.fuzziness,
        "max_expansions": query.max_expansions,
        "prefix_length": query.prefix_length,
        "operator": _operator(query.operator),
    }
    given = {key: value for key, value in options.items() if value is not None}
    return fts.MatchQuery(query.terms, query.column, **given)


def _operator(said: str | None) -> fts.FullTextOperator:
    try:
        return fts.FullTextOperator((said or "or").upper())
    except ValueError as error:
        raise InvalidInputError(f"operator {said!r} is neither And nor Or") from error


def _phrase(query: PhraseQuery, searchable: Searchable) -> fts.FullTextQuery:
    columns = [query.column] if query.column else searchable()
    phrases = [fts.PhraseQuery(query.terms, column, slop=query.slop or 0) for column in columns]
    return phrases[0] if len(phrases) == 1 else fts.BooleanQuery([(fts.Occur.SHOULD, phrase) for phrase in phrases])


def _boost(query: BoostQuery, searchable: Searchable) -> fts.FullTextQuery:
    return fts.BoostQuery(
        _structured(query.positive, searchable),
        _structured(query.negative, searchable),
        negative_boost=0.5 if query.negative_boost is None else float(query.negative_boost),
    )


def _boolean(query: BooleanQuery, searchable: Searchable) -> fts.FullTextQuery:
    clauses = ((fts.Occur.MUST, query.must), (fts.Occur.MUST_NOT, query.must_not), (fts.Occur.SHOULD, query.should))
    return fts.BooleanQuery([(occur, _structured(part, searchable)) for occur, parts in clauses for part in parts])


_KINDS = MappingProxyType[str, Callable[[Any, Searchable], fts.FullTextQuery]](
    {"match": _match, "phrase": _phrase, "boost": _boost, "multi_match": _multi_match, "boolean": _boolean}
)
