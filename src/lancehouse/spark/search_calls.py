"""Searches in the FROM of a query: `vector_search(…)`, `text_search(…)`, `hybrid_search(…)`, by `LanceCatalog.search`.

Arguments have the names that `LanceCatalog.search` gives them. `queries` is a subquery, or the name of a table or view,
with the columns `query_id` and `vector`, `text` or both.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from lance_namespace.errors import InvalidInputError
from sqlglot.tokenizer_core import TokenType

from lancehouse.identifiers import parse_levels, quote_name
from lancehouse.lake.search import QUERY, RANK, SCORE
from lancehouse.lake.vector_search import DISTANCE
from lancehouse.spark.query_text import STRINGS, SearchCall, tokenize
from lancehouse.spark.table_names import resolve_table
from lancehouse.suggestions import suggest

if TYPE_CHECKING:
    from lancehouse.spark.queries import PlannedQuery

_ORDER = {
    "vector_search": ("table", "vector", "k"),
    "text_search": ("table", "text", "k"),
    "hybrid_search": ("table", "vector", "text", "k"),
}
"""What arguments without a name mean."""
_MEASURES = {"vector_search": (DISTANCE,), "text_search": (SCORE,), "hybrid_search": (DISTANCE, SCORE)}
"""Columns that say how good a row is."""
_OPTIONS = ("k", "filter", "columns", "version", "tag", "as_of", "prefilter")
_VECTOR = ("column", "metric", "nprobes", "refine_factor", "ef")
_NAMES = {
    "vector_search": ("table", "vector", "queries", *_OPTIONS, *_VECTOR),
    "text_search": ("table", "text", "queries", "text_column", *_OPTIONS),
    "hybrid_search": ("table", "vector", "text", "queries", "text_column", "hybrid", *_OPTIONS, *_VECTOR),
}


@dataclass(frozen=True, slots=True)
class SearchRelation:
    """A search whose arguments are known."""

    catalog: Any
    table: tuple[str, ...]
    arguments: dict[str, Any]
    function: str

    def run(self) -> Any:
        """Return the rows that are found."""
        return self.catalog.search(self.table, **self.arguments)

    def columns(self) -> tuple[str, ...] | None:
        """Return the columns of the result, without a search; None if they are not certain."""
        given, query = self.arguments, self.arguments.get("text" if self.function == "text_search" else "vector")
        if given.get("as_of") is not None or any("." in name for name in given.get("columns") or ()):
            return None
        columns = given.get("columns") or self.catalog.schema(self.table, given.get("version"), given.get("tag")).names
        is_single = isinstance(query, str) or (
            isinstance(query, list) and not any(isinstance(each, str | list) for each in query)
        )
        measures = _MEASURES[self.function]
        return (*columns, *measures) if is_single else (QUERY, RANK, *measures, *columns)


def prepare_search(query: PlannedQuery, call: SearchCall) -> SearchRelation:
    """Return the search that a call in FROM means.

    Raises:
        InvalidInputError: an argument is missing, or has an unknown name.
    """
    texts = _parse_arguments(call)
    if "table" not in texts:
        raise InvalidInputError(f"{call.function} needs the table: {call.function}(table => 'main.ml.docs', …)")
    parts = _parse_table(query, texts.pop("table"))
    found = resolve_table(query.catalog, parts)
    if found is None:
        raise InvalidInputError(
            f"{'.'.join(parts)} is a table or view of Spark: {call.function} takes one of a catalog"
        )
    queries = texts.pop("queries", None)
    arguments = query.evaluate(texts)
    if call.function == "hybrid_search":
        arguments.setdefault("hybrid", True)
    if isinstance(arguments.get("columns"), str):
        arguments["columns"] = [arguments["columns"]]
    if isinstance(arguments.get("vector"), list):
        arguments["vector"] = _to_floats(arguments["vector"])
    if queries is not None:
        name = "text" if call.function == "text_search" else "vector"
        arguments[name] = query.run_text(_to_query(query, queries))
    return SearchRelation(*found, arguments, call.function)


def _parse_arguments(call: SearchCall) -> dict[str, str]:
    """Return the text of each argument by its name."""
    arguments: dict[str, str] = {}
    order, known = iter(_ORDER[call.function]), _NAMES[call.function]
    for name, text in _split(call.arguments):
        if name is None:
            name = next(order, None)
            if name is None:
                raise InvalidInputError(f"{call.function}: name the arguments after the first, such as k => 10")
        if name not in known:
            raise InvalidInputError(f"{call.function} has no argument {name}; {suggest(name, known)}")
        if name in arguments:
            raise InvalidInputError(f"{call.function}: {name} is given twice")
        arguments[name] = text
    return arguments


def _split(text: str) -> Iterator[tuple[str | None, str]]:
    """Yield name, if there is one, and text of each argument."""
    tokens, depth, first, name = tokenize(text), 0, 0, None
    for index, token in enumerate(tokens):
        depth += (token.text in ("(", "[")) - (token.text in (")", "]")) if token.token_type not in STRINGS else 0
        if token.token_type is TokenType.FARROW and depth == 0 and index == first + 1:
            name, first = tokens[first].text.lower(), index + 1
        is_last = index == len(tokens) - 1
        if (token.token_type is TokenType.COMMA and depth == 0) or is_last:
            end = token.end + 1 if is_last else token.start
            if first < len(tokens):
                yield name, text[tokens[first].start : end].strip()
            first, name = index + 1, None


def _parse_table(query: PlannedQuery, text: str) -> tuple[str, ...]:
    """Return the parts of a table's name, which is a text, a parameter, or `TABLE` and a name."""
    tokens = tokenize(text)
    if tokens[0].token_type in STRINGS or tokens[0].text == ":":
        return parse_levels(str(query.evaluate({"table": text})["table"]))
    names = [token.text for token in tokens if token.text not in (".", "(", ")")]
    return tuple(names[1:] if names[0].upper() == "TABLE" and len(names) > 1 else names)


def _to_query(query: PlannedQuery, text: str) -> str:
    if text.startswith("("):
        return text
    tokens = tokenize(text)
    if tokens[0].token_type in STRINGS:
        levels = parse_levels(str(query.evaluate({"queries": text})["queries"]))
        return f"TABLE {'.'.join(map(quote_name, levels))}"
    return text if tokens[0].text.upper() == "TABLE" else f"TABLE {text}"


def _to_floats(values: list[Any]) -> list[Any]:
    """Return a vector as floats, since literals such as 0.1 are decimals to Spark."""
    return [_to_floats(each) if isinstance(each, list) else float(each) for each in values]
