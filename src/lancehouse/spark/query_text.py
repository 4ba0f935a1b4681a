"""Read the text of a query: its tokens, what sqlglot cannot parse of Spark's grammar, and where names of tables stand.

Spark runs the text as it was written; only names of tables are replaced, by their place in it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from lance_namespace.errors import InvalidInputError
from sqlglot import exp
from sqlglot.dialects.spark import Spark
from sqlglot.errors import SqlglotError
from sqlglot.tokenizer_core import Token, TokenType

from lancehouse.identifiers import quote_name

QUERY_STARTS = frozenset({"SELECT", "WITH", "FROM", "VALUES", "TABLE", "MAP", "REDUCE"})
_EXPLAIN = re.compile(r"\s*EXPLAIN\s+(?:(?:EXTENDED|CODEGEN|COST|FORMATTED|LOGICAL)\s+)?", re.IGNORECASE)
TOO_DEEP = "the statement is nested too deeply"
_LONG = 2000
"""Number of characters of a user's text that a message repeats."""
SEARCHES = frozenset({"vector_search", "text_search", "hybrid_search"})
"""Table functions that search a table."""
_NAMES = (TokenType.VAR, TokenType.IDENTIFIER)
_BEFORE_NAME = (TokenType.DOT, TokenType.COMMA, TokenType.WITH, TokenType.ALIAS)
STRINGS = (TokenType.STRING, TokenType.RAW_STRING, TokenType.NATIONAL_STRING, TokenType.HEX_STRING)
_SET_WORDS = frozenset({"UNION", "EXCEPT", "INTERSECT", "MINUS"})
_BEFORE_QUERY = frozenset(
    {"", "FROM", "JOIN", ",", "AS", "(", "IN", "EXISTS", "LATERAL", "ALL", "DISTINCT", *_SET_WORDS}
)
_CLAUSES = {"VERSION": "version", "SYSTEM_VERSION": "version", "TIMESTAMP": "time", "SYSTEM_TIME": "time"}
_CONTINUED_COMMENT = re.compile(r"--[^\n]*\\\r?\n")
"""To Spark such a comment goes on in the next line, to sqlglot it does not."""


@dataclass(frozen=True, slots=True)
class TimeTravel:
    """A clause `VERSION AS OF` or `TIMESTAMP AS OF` behind the name of a table."""

    start: int
    end: int
    version: int | None = None
    tag: str | None = None
    time: str | None = None
    """Expression for the time, as it was written."""
    parameter: str | None = None
    """Name of the parameter whose value is the version, or the tag."""


@dataclass(frozen=True, slots=True)
class SearchCall:
    """A search in FROM, such as `vector_search(…)`."""

    function: str
    start: int
    end: int
    arguments: str
    """Text between the parentheses."""


@dataclass(frozen=True, slots=True)
class Replacement:
    """A part of the text, and what Spark gets instead."""

    start: int
    end: int
    text: str


class QueryText:
    """The text of one query.

    Args:
        text: the query.

    Raises:
        InvalidInputError: it cannot be parsed, or is more than one statement.
    """

    def __init__(self, text: str) -> None:
        self._prefix = (_EXPLAIN.match(text) or [""])[0]
        text = text[len(self._prefix) :]
        tokens = strip_semicolons(tokenize(text))
        self.text = _rewrite_table_queries(text, tokens)
        self.tokens = tokens if self.text is text else tokenize(self.text)
        self.travels = list(_find_time_travel(self.text, self.tokens))
        self.searches = list(_find_searches(self.text, self.tokens))
        self.tree = self._parse()

    def _parse(self) -> exp.Expr:
        visible = self.text
        for travel in self.travels:
            visible = _blank(visible, travel.start, travel.end)
        for number, search in enumerate(self.searches):
            visible = _blank(visible, search.start, search.end, search_name(number))
        try:
            tree = Spark().parse(visible)[0]
        except SqlglotError as error:
            raise InvalidInputError(f"the query cannot be parsed: {_first_message(error)}") from error
        except RecursionError:
            raise InvalidInputError(TOO_DEEP) from None
        if tree is None:
            raise InvalidInputError("the query cannot be parsed")
        return tree

    @property
    def is_explained(self) -> bool:
        """Whether EXPLAIN stands before the query: the result is its plan."""
        return bool(self._prefix)

    @property
    def whole_text(self) -> str:
        """The text, with the EXPLAIN before it."""
        return self._prefix + self.text

    @property
    def is_plain(self) -> bool:
        """Whether sqlglot certainly reads the text as Spark does; else no scan may leave out anything."""
        words = [token.text.upper() for token in self.tokens]
        calls_identifier = ("IDENTIFIER", "(") in pairwise(words)
        stars = sum(token.token_type is TokenType.STAR for token in self.tokens)
        known = sum(1 for _ in self.tree.find_all(exp.Star, exp.Mul))
        is_odd = self.tree.find(exp.Command, exp.Pivot, exp.QueryTransform) is not None
        return not (
            calls_identifier or "|>" in words or stars != known or is_odd or _CONTINUED_COMMENT.search(self.text)
        )

    def plain_strings(self) -> frozenset[str]:
        """Return the values of string literals without escapes, which Spark, sqlglot and Lance certainly read alike.

        A backslash is an escape to Spark, and a character to Lance: they disagree on where such a text ends.
        """
        plain: set[str] = set()
        other: set[str] = set()
        for token in self.tokens:
            if token.token_type in STRINGS:
                raw = self.text[token.start : token.end + 1]
                is_plain = raw[1:-1] == token.text and not {"\\", "'", '"'} & set(token.text)
                (plain if is_plain else other).add(token.text)
        return frozenset(plain - other)

    def occurrences(self) -> dict[str, set[str | None]]:
        """Return each word outside of strings in small letters, with the words that qualify it by a dot.

        None stands for an occurrence without a qualifier, or with several.
        """
        found: dict[str, set[str | None]] = {}
        for place, token in enumerate(self.tokens):
            if token.token_type in STRINGS:
                continue
            qualifier = None
            if place >= 2 and self._is_dot(place - 1) and not (place >= 3 and self._is_dot(place - 3)):
                qualifier = self.tokens[place - 2].text.lower()
            for word in {token.text, *re.findall(r"\w+", token.text)}:
                found.setdefault(word.lower(), set()).add(qualifier)
        return found

    def _is_dot(self, place: int) -> bool:
        return self.tokens[place].token_type is TokenType.DOT

    def index_at(self, start: int) -> int:
        """Return the index of the token that starts at a place."""
        return next(index for index, token in enumerate(self.tokens) if token.start == start)

    def travel_after(self, end: int) -> TimeTravel | None:
        """Return the clause that follows directly after a place, if there is one."""
        following = next((token for token in self.tokens if token.start >= end), None)
        if following is None:
            return None
        return next((travel for travel in self.travels if travel.start == following.start), None)

    def end_of_sample(self, end: int) -> int | None:
        """Return where `TABLESAMPLE (…) [REPEATABLE (…)]` ends that follows after a place; None if none does."""
        index = next((index for index, token in enumerate(self.tokens) if token.start >= end), len(self.tokens))
        found = None
        while index < len(self.tokens) and self.tokens[index].text.upper() in ("TABLESAMPLE", "REPEATABLE"):
            closing = _closing(self.tokens, index + 1)
            if closing is None:
                return found
            found, index = self.tokens[closing].end + 1, closing + 1
        return found

    def replace(self, replacements: Sequence[Replacement]) -> str:
        """Return the text with parts replaced; its own braces are doubled, as `spark.sql` formats it."""
        pieces, place = [], 0
        for replacement in sorted(replacements, key=lambda replacement: (replacement.start, replacement.end)):
            pieces += [escape_braces(self.text[place : replacement.start]), replacement.text]
            place = replacement.end
        return "".join([escape_braces(self._prefix), *pieces, escape_braces(self.text[place:])])


def tokenize(text: str) -> list[Token]:
    """Return the tokens of a text in Spark's SQL.

    Raises:
        InvalidInputError: it has none, such as a string that does not end.
    """
    try:
        return list(Spark().tokenize(text))
    except SqlglotError as error:
        raise InvalidInputError(f"the statement cannot be read: {_first_message(error)}") from error


def strip_semicolons(tokens: list[Token]) -> list[Token]:
    """Return the tokens of a statement without semicolons after it.

    Raises:
        InvalidInputError: there is no statement, or another one follows.
    """
    while tokens and tokens[-1].token_type is TokenType.SEMICOLON:
        tokens.pop()
    if any(token.token_type is TokenType.SEMICOLON for token in tokens):
        raise InvalidInputError("sql takes one statement at a time")
    if not tokens:
        raise InvalidInputError("sql needs a statement, and this text has none")
    return tokens


def shorten(text: str) -> str:
    """Return a text for a message, without its middle if it is long."""
    return text if len(text) <= _LONG else f"{text[: _LONG // 2]} … {text[-_LONG // 2 :]}"


def is_query(text: str) -> bool:
    """Return whether a statement is a query, by its first words; `EXPLAIN` of a query is one too."""
    tokens = tokenize(_EXPLAIN.sub("", text, count=1))
    first = next((token.text.upper() for token in tokens if token.token_type is not TokenType.L_PAREN), "")
    return first in QUERY_STARTS and (first not in ("WITH", "FROM") or not _writes(tokens))


def name_positional(text: str, args: Any) -> tuple[str, dict[str, Any] | None]:
    """Return the text with `?` replaced by names, and the arguments by these names."""
    if args is None or isinstance(args, dict):
        return text, args
    places = [token for token in tokenize(text) if token.token_type is TokenType.PLACEHOLDER]
    if len(places) != len(args):
        raise InvalidInputError(f"the statement has {len(places)} places for arguments (?), and {len(args)} are given")
    pieces, place = [], 0
    for number, token in enumerate(places):
        pieces += [text[place : token.start], f":{_argument_name(number)}"]
        place = token.end + 1
    return "".join([*pieces, text[place:]]), {_argument_name(number): value for number, value in enumerate(args)}


def search_name(number: int) -> str:
    """Return the name that stands for a search while the query is parsed."""
    return f"_s{number}_"


def escape_braces(text: str) -> str:
    """Double the braces of a text, which `spark.sql` takes for places of DataFrames."""
    return text.replace("{", "{{").replace("}", "}}")


def alias_clause(name: str) -> str:
    """Return the clause that gives a relation a name."""
    return f" AS {escape_braces(quote_name(name))}"


def _argument_name(number: int) -> str:
    return f"_argument_{number}"


def _first_message(error: SqlglotError) -> str:
    details = getattr(error, "errors", None)
    if not details:
        return str(error)
    first = details[0]
    return f"{first.get('description')} (line {first.get('line')}, column {first.get('col')})"


def _writes(tokens: Sequence[Token]) -> bool:
    """Return whether a statement that begins as a query writes, as `WITH … INSERT` and `FROM … INSERT` do."""
    depth = 0
    for before, token in pairwise(tokens):
        depth += (token.token_type is TokenType.L_PAREN) - (token.token_type is TokenType.R_PAREN)
        is_word = token.token_type not in (*STRINGS, TokenType.IDENTIFIER) and before.token_type not in _BEFORE_NAME
        if depth == 0 and is_word and token.text.upper() in ("SELECT", "INSERT", "UPDATE", "DELETE", "MERGE"):
            return token.text.upper() != "SELECT"  # after it, such a word is the name of a column
    return False


def _blank(text: str, start: int, end: int, name: str = "") -> str:
    """Replace a part of a text by spaces, or by a name and spaces, so that all else stays in its place."""
    return text[:start] + name.ljust(end - start)[: end - start] + text[end:]


def _closing(tokens: Sequence[Token], opening: int) -> int | None:
    """Return the index of the parenthesis that closes the one at an index; None if there is none."""
    depth = 0
    for index in range(opening, len(tokens)):
        depth += (tokens[index].token_type is TokenType.L_PAREN) - (tokens[index].token_type is TokenType.R_PAREN)
        if depth <= 0:
            return index if index > opening else None
    return None


def _rewrite_table_queries(text: str, tokens: Sequence[Token]) -> str:
    """Write queries of the form `TABLE t` as `SELECT * FROM t`, which sqlglot can parse."""
    words = ["", "", *(token.text.upper() for token in tokens)]
    places = []
    for index, token in enumerate(tokens[:-1]):
        before_that, before, word = words[index : index + 3]
        is_next = before in _SET_WORDS or (before in ("ALL", "DISTINCT") and before_that in _SET_WORDS)
        begins = not before or is_next or (before == "(" and before_that in _BEFORE_QUERY)
        if (
            word == "TABLE"
            and token.token_type is TokenType.TABLE
            and begins
            and tokens[index + 1].token_type in _NAMES
        ):
            places.append(token)
    for token in reversed(places):
        text = f"{text[: token.start]}SELECT * FROM{text[token.end + 1 :]}"
    return text


def _find_time_travel(text: str, tokens: Sequence[Token]) -> Iterator[TimeTravel]:
    # sqlglot joins some of these words to one token.
    words = [
        (word, token, index)
        for index, token in enumerate(tokens)
        for word in (token.text.upper().split() if token.token_type not in STRINGS else [""])
    ]
    for place in range(len(words) - 3):
        kind = _CLAUSES.get(words[place][0])
        if kind is None or [words[place + 1][0], words[place + 2][0]] != ["AS", "OF"]:
            continue
        first = place - 1 if place and words[place - 1][0] == "FOR" else place
        start, value = words[first][1].start, words[place + 3][2]
        token, before = tokens[value], tokens[words[first][2] - 1] if words[first][2] else None
        if before is None or before.token_type not in _NAMES:
            continue  # a column called `version` with the alias `of`
        if kind == "time":
            last = _end_of_time(tokens, value)
            yield TimeTravel(start, last.end + 1, time=text[token.start : last.end + 1])
        elif token.text.isdigit():
            yield TimeTravel(start, token.end + 1, version=int(token.text))
        elif token.token_type in STRINGS:
            yield TimeTravel(start, token.end + 1, tag=token.text)
        elif token.text == ":" and value + 1 < len(tokens):
            yield TimeTravel(start, tokens[value + 1].end + 1, parameter=tokens[value + 1].text)


def _end_of_time(tokens: Sequence[Token], index: int) -> Token:
    """Return the last token of the expression for a time that begins at an index."""
    while True:
        index = _end_of_operand(tokens, index)
        if index + 1 >= len(tokens) or tokens[index + 1].text not in ("+", "-"):
            return tokens[min(index, len(tokens) - 1)]
        index += 2


def _end_of_operand(tokens: Sequence[Token], index: int) -> int:
    def text(at: int) -> str:
        return tokens[at].text.upper() if at < len(tokens) else ""

    if text(index) == "(":
        return _closing(tokens, index) or len(tokens) - 1
    if text(index) == "INTERVAL":  # INTERVAL 1 DAY, INTERVAL '1' DAY, INTERVAL '1 day'
        return index + (1 if " " in text(index + 1) else 2)
    if index + 1 < len(tokens) and tokens[index + 1].token_type in STRINGS:  # TIMESTAMP '…'
        return index if tokens[index].token_type in STRINGS else index + 1
    if text(index) == ":":  # a named argument
        return index + 1
    if text(index + 1) == "(":
        return _closing(tokens, index + 1) or len(tokens) - 1
    return index


def _find_searches(text: str, tokens: Sequence[Token]) -> Iterator[SearchCall]:
    for index, token in enumerate(tokens[:-1]):
        name = token.text.lower()
        before = tokens[index - 1].text.upper() if index else ""
        if (
            name in SEARCHES
            and tokens[index + 1].token_type is TokenType.L_PAREN
            and before in ("FROM", "JOIN", ",", "LATERAL")
        ):
            closing = _closing(tokens, index + 1)
            if closing is None:
                raise InvalidInputError(f"{name}: its closing parenthesis is missing")
            inner = text[tokens[index + 1].end + 1 : tokens[closing].start]
            yield SearchCall(name, token.start, tokens[closing].end + 1, inner)
