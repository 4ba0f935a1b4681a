"""Parse, limit and rewrite SQL expressions that callers send, before Lance runs them.

Lance runs filters in this process. Deep expressions overflow its native stack, and some functions allocate as much as a
literal says, so a caller's text never reaches it: the text is split into tokens, parsed into a tree of known kinds of
nodes, and Lance gets what is written from that tree.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, ClassVar

from lance_namespace.errors import InvalidInputError
from sqlglot import exp, parser, tokens
from sqlglot.dialects.dialect import Dialect
from sqlglot.errors import SqlglotError
from sqlglot.tokenizer_core import Token, TokenType

from lancehouse.parsing import parse_alone
from lancehouse.suggestions import find_close

MAX_LENGTH = 1_000_000
"""Most characters."""
MAX_TOKENS = 100_000
"""Most tokens: 20,000 comparisons joined by OR have 80,000."""
MAX_NESTING = 40
"""Most nested brackets, NOT, minus signs and right operands.

Lance's parser stops at 47: with an error or, where casts are among them, by trying every other parse for hours.
"""
MAX_DEPTH = 64
"""Most levels of the tree. A chain of AND or OR is one level, as in Lance; `a || b || c` has two."""
MAX_OPERATORS = 2_000
"""Most arithmetic operators, `||`, subscripts and WHEN. Lance's planner takes about half a millisecond for each."""
MAX_RANGES = 2_000
"""Most range comparisons (<, <=, >, >=, BETWEEN) joined by AND: Lance compares each with each."""
MAX_REGEXES = 20
"""Most regular expressions; a compiled one may take ten megabytes."""
MAX_TERMS = 300_000
"""Most nodes of the tree once Lance has expanded `coalesce`, CASE and the like, which repeats their parts."""
MAX_COPIES = 8
"""Most column values that one computed value may contain: values are computed for thousands of rows at once."""
MAX_CONSTANT = 1_000
"""Most bytes of literals in one computed value, for the same reason."""
LONG = 10_000
"""Texts of more characters are parsed one at a time."""

DOCS = "see “SQL that callers send” in docs/gateway.md"

TYPES = frozenset(
    {"int", "integer", "tinyint", "smallint", "bigint", "float", "double", "string", "binary"}
    | {"date", "timestamp", "datetime", "decimal", "boolean", "jsonb", "interval"}
)
"""Names of Lance's types that a cast or a typed literal may use."""

SMALL = frozenset(
    # Numbers
    {"abs", "acos", "acosh", "asin", "asinh", "atan", "atan2", "atanh", "cbrt", "ceil", "cos", "cosh", "cot", "degrees"}
    | {"exp", "factorial", "floor", "gcd", "isnan", "iszero", "lcm", "ln", "log", "log10", "log2", "nanvl", "pi", "pow"}
    | {"power", "radians", "random", "round", "signum", "sin", "sinh", "sqrt", "tan", "tanh", "to_hex", "trunc"}
    # Strings
    | {"ascii", "bit_length", "char_length", "character_length", "chr", "contains", "contains_tokens", "ends_with"}
    | {"find_in_set", "instr", "length", "octet_length", "regexp_count", "regexp_instr", "regexp_like", "starts_with"}
    | {"strpos", "md5", "sha224", "sha256", "sha384", "sha512", "is_valid"}
    # Dates and times
    | {"current_date", "current_time", "current_timestamp", "date_bin", "date_part", "date_trunc", "datepart"}
    | {"datetrunc", "from_unixtime", "make_date", "now", "to_date", "to_local_time", "to_timestamp", "today"}
    | {"to_timestamp_micros", "to_timestamp_millis", "to_timestamp_nanos", "to_timestamp_seconds", "to_unixtime"}
    # Lists and vectors
    | {"array_contains", "array_distance", "array_empty", "array_has", "array_has_all", "array_has_any"}
    | {"array_indexof", "array_length", "array_ndims", "array_position", "arrays_overlap", "cardinality"}
    | {"cosine_distance", "dot_product", "empty", "inner_product", "list_contains", "list_distance", "list_empty"}
    | {"list_has", "list_has_all", "list_has_any", "list_indexof", "list_length", "list_ndims", "list_position"}
    # JSON
    | {"json_array_contains", "json_array_length", "json_exists", "json_get_bool", "json_get_float", "json_get_int"}
    # Geometry
    | {"st_area", "st_contains", "st_distance", "st_intersects", "st_within", "st_touches", "st_crosses"}
    | {"st_overlaps", "st_covers", "st_coveredby", "st_disjoint", "st_length", "st_x", "st_y"}
)
"""Functions whose result is small, whatever their arguments."""

SHAPING = frozenset(
    {"btrim", "initcap", "left", "lower", "ltrim", "regexp_match", "reverse", "right", "rtrim", "split_part", "substr"}
    | {"substring", "substr_index", "substring_index", "trim", "upper"}
    | {"coalesce", "greatest", "ifnull", "least", "nullif", "nvl", "nvl2"}
    | {"array_distinct", "array_element", "array_except", "array_extract", "array_intersect", "array_max", "array_min"}
    | {"array_remove", "array_remove_all", "array_reverse", "array_slice", "array_sort", "element_at", "flatten"}
    | {"get_field", "list_distinct", "list_element", "list_extract", "list_max", "list_slice", "list_sort"}
    | {"json_extract", "json_get", "json_get_string", "map_extract", "map_keys", "map_values"}
    | {"concat", "concat_ws", "array_append", "array_cat", "array_concat", "array_prepend", "array_union"}
    | {"list_append", "list_concat", "make_array", "make_list", "named_struct", "overlay", "struct"}
)
"""Functions whose result is no larger than their arguments together."""

GROWING: Mapping[str, int] = {"decode": 2, "encode": 2, "string_to_array": 8, "translate": 4}
"""Functions whose result may be this many times as large as their arguments."""

FORMATTING: Mapping[str, int] = {"date_format": 20, "to_char": 20}
"""Functions whose result may be this many times as large as their second argument, the format: `%c` is a whole date.

The format must be a literal. The first argument does not count.
"""

REPLACING: Mapping[str, int] = {"replace": 2, "regexp_replace": 2, "array_to_string": 1, "list_to_string": 1}
"""Functions that may insert one argument, given by its index, many times into another: it must be a literal."""

FUNCTIONS = SMALL | SHAPING | GROWING.keys() | FORMATTING.keys() | REPLACING.keys()
"""All functions that are allowed."""

LOOKING_UP = frozenset({"array_has_all", "array_has_any", "arrays_overlap", "list_has_all", "list_has_any"})
"""Functions that use a list of literals as it is, without repeating it for each row."""

REPEATED = frozenset({"coalesce", "ifnull", "nvl", "nvl2"})
"""Functions whose arguments Lance repeats, as it does with the operand of BETWEEN."""
REPEATS = 3
"""Factor in time and memory for each of them that is nested in another."""

REGEXES = frozenset(name for name in FUNCTIONS if name.startswith("regexp_"))
"""Functions that take a regular expression."""

_NAME = re.compile(r"[^\W\d]\w*")
_NUMBER = re.compile(r"(\d+(\.\d*)?|\.\d+)([eE][+-]?\d+)?", re.ASCII)
# Quoted words are matched possessively, so that an opening quote without its partner causes no backtracking.
_WORD = re.compile(r"""'(?:[^']|'')*+'|"(?:[^"]|"")*+"|`(?:[^`]|``)*+`|\w+(?:\.\d+)?|[<>=!|:]{2}|[^\w\s]""")
_SPELLED_AS: Mapping[TokenType, str] = {TokenType.EQ: "=", TokenType.NEQ: "!="}
_WORDS = frozenset({"cast", "try_cast", "safe_cast", "array", "unsigned"})
"""Names that are written in capitals, like keywords."""


def rewrite_condition(text: str, field: str) -> str:
    """Return a condition on rows, rewritten.

    Args:
        text: the SQL as the caller sent it.
        field: name of the field for messages, such as `filter`.

    Raises:
        InvalidInputError: it is not SQL that this server accepts, or it exceeds a limit; the message says which.
    """
    return rewrite_value(text, field).text


@dataclass(frozen=True, slots=True)
class Value:
    """A rewritten expression that computes a value for each row, and how large that value may be."""

    text: str
    constant: int = 0
    """Bytes of literals in it."""
    copies: int = 0
    """How many column values are copied into it; a plain column is not copied."""
    operators: int = 0
    """Number of operators."""
    columns: frozenset[str] = frozenset()
    """Top-level columns that it names, as they are spelled."""
    comparisons: tuple[Comparison, ...] | None = None
    """What it compares, if it consists of comparisons of columns with literals alone, which fail for no row."""


Comparison = tuple[str, str]
"""A top-level column, and the kind of literals that it is compared with: text, number, bool or null."""

CHANGING = frozenset({"random", "now", "today", "current_date", "current_time", "current_timestamp"})
"""Functions whose value is not the same each time."""


def parse_row_filter(text: str) -> tuple[str, tuple[str, ...]]:
    """Return the row filter of a grant, rewritten, and the columns that it names.

    Raises:
        InvalidInputError: as for `rewrite_condition`; or its value may change while the rows do not.
    """
    if not text.strip():
        raise _sql_error("where", "it is empty")
    value = rewrite_value(text, "where")
    words = {word.lower() for word in value.text.split(" ")}
    if changing := sorted(words & CHANGING):
        raise _sql_error("where", f"{changing[0]} is not the same each time: copies of the rows would be out of date")
    return value.text, tuple(sorted(value.columns))


def rewrite_value(text: str, field: str) -> Value:
    """Return an expression for a value of each row, rewritten and measured.

    Raises:
        InvalidInputError: as for `rewrite_condition`. A plain literal may be long: our caller must limit the rows.
    """
    if len(text) > MAX_LENGTH:
        raise _sql_error(field, f"it has {len(text):,} characters, and at most {MAX_LENGTH:,} are allowed")
    with parse_alone() if len(text) > LONG else nullcontext():
        try:
            words = _tokenize(text, field)
            _check_words(words, field)
            return _parse_and_write(words, text, field)
        except SqlglotError as error:
            problem = f"it cannot be read as SQL: {_describe_error(error)}"
        except RecursionError:
            problem = "it is nested too deeply"
        # Not raised in the handlers: as its context, the parser's error would keep the parser and its tree in memory.
        raise _sql_error(field, problem)


def _parse_and_write(words: list[Token], text: str, field: str) -> Value:
    tree_parser = LanceDialect.Parser(dialect=LanceDialect())
    try:
        (tree, *others) = tree_parser.parse_into(exp.Condition, words, text)
        if tree is None or others:
            raise _sql_error(field, "it is not one expression")
        writer = _Writer(field)
        size = writer.write_all(tree)
        # The parser tolerates some mistakes, and what it then understands may differ from what Lance would. So the
        # rewritten tokens must be the ones that were sent.
        if writer.words != [_format_token(word) for word in words]:
            raise _sql_error(field, "it is not SQL that can be read in one way only")
        copies = 0 if isinstance(tree, exp.Column) else size.copies
        columns = frozenset(writer.columns)
        return Value(" ".join(writer.words), size.constant, copies, writer.operators, columns, _find_comparisons(tree))
    finally:
        # Nodes and their parents refer to each other, so that only a garbage collection would free them, and freeing a
        # large tree at once would stop all threads. So it is taken apart, node by node.
        nodes = tree_parser.nodes
        while nodes:
            node = nodes.pop()
            nodes += node.iter_expressions()
            node.args, node.parent = {}, None


def _find_comparisons(tree: exp.Expr) -> tuple[Comparison, ...] | None:
    """Return what a condition compares; None if it has more than comparisons of columns with literals."""
    comparisons: dict[Comparison, None] = {}
    waiting: list[Any] = [tree]
    while waiting:
        node = waiting.pop()
        literals: list[Any]
        match node:
            case exp.And() | exp.Or():
                waiting += [node.this, node.expression]
                continue
            case exp.Not() | exp.Paren():
                waiting.append(node.this)
                continue
            case exp.EQ() | exp.NEQ() | exp.LT() | exp.LTE() | exp.GT() | exp.GTE() | exp.Is():
                literals = [node.expression]
            case exp.In():
                literals = node.expressions
            case exp.Between():
                literals = [node.args["low"], node.args["high"]]
            case _:
                return None
        kinds = set(map(_literal_kind, literals))
        if not isinstance(node.this, exp.Column) or len(node.this.parts) != 1 or None in kinds:
            return None
        comparisons.update(dict.fromkeys((node.this.name, str(kind)) for kind in kinds))
    return tuple(comparisons)


def _literal_kind(node: Any) -> str | None:
    match node:
        case exp.Neg() if isinstance(node.this, exp.Literal) and not node.this.is_string:
            return "number"
        case exp.Literal():
            return "text" if node.is_string else "number"
        case exp.Boolean():
            return "bool"
        case exp.Null():
            return "null"
    return None


def _describe_error(error: SqlglotError) -> str:
    """Return what is wrong, in plain words: the parser's messages name its classes and contain colour codes."""
    details = (getattr(error, "errors", None) or [{}])[0]
    near = str(details.get("highlight") or "")[:40]
    description = str(details.get("description") or error).splitlines()[0][:100]
    if description.startswith("Required keyword"):
        return f"something is missing near {near!r}"
    return f"{description} near {near!r}" if near else description


def _sql_error(field: str, why: str) -> InvalidInputError:
    return InvalidInputError(f"{field}: {why} ({DOCS})")


def _nesting_error(field: str) -> InvalidInputError:
    return _sql_error(field, f"it is nested more than {MAX_NESTING} levels deep")


def _function_error(field: str, function: str) -> InvalidInputError:
    near = find_close(function, FUNCTIONS, 0.8)
    return _sql_error(field, f"the function {function[:40]} is not allowed here" + (f"; {near} is" if near else ""))


class LanceDialect(Dialect):
    """The SQL that Lance accepts: DataFusion's, without backslash escapes, and with strings also in double quotes."""

    NORMALIZE_NOT_NULL = False

    class Tokenizer(tokens.Tokenizer):
        """A string ends at its quote, whatever precedes it; a doubled quote stands for one quote."""

        QUOTES: ClassVar = ["'", '"']
        IDENTIFIERS: ClassVar = ["`"]
        STRING_ESCAPES: ClassVar = ["'", '"']
        HEX_STRINGS: ClassVar = [("x'", "'"), ("X'", "'")]
        COMMENTS: ClassVar = ["--", ("/*", "*/")]
        NESTED_COMMENTS: ClassVar = False
        COMMANDS: ClassVar = set()
        KEYWORDS: ClassVar = {
            "||": TokenType.DPIPE,
            "::": TokenType.DCOLON,
            "==": TokenType.EQ,
            "<>": TokenType.NEQ,
            "!=": TokenType.NEQ,
            "<=": TokenType.LTE,
            ">=": TokenType.GTE,
            # The parser expects shifts as two tokens each; these token types have no other use here.
            "<<": TokenType.LR_ARROW,
            ">>": TokenType.DARROW,
            "AND": TokenType.AND,
            "AS": TokenType.ALIAS,
            "BETWEEN": TokenType.BETWEEN,
            "CASE": TokenType.CASE,
            "DISTINCT": TokenType.DISTINCT,
            "ELSE": TokenType.ELSE,
            "END": TokenType.END,
            "ESCAPE": TokenType.ESCAPE,
            "FALSE": TokenType.FALSE,
            "FROM": TokenType.FROM,
            "ILIKE": TokenType.ILIKE,
            "IN": TokenType.IN,
            "IS": TokenType.IS,
            "LIKE": TokenType.LIKE,
            "NOT": TokenType.NOT,
            "NULL": TokenType.NULL,
            "OR": TokenType.OR,
            "THEN": TokenType.THEN,
            "TRUE": TokenType.TRUE,
            "WHEN": TokenType.WHEN,
        }

    class Parser(parser.Parser):
        """Parses what Lance parses; functions keep the names that the caller wrote."""

        FUNCTIONS: ClassVar = {}
        NO_PAREN_FUNCTIONS: ClassVar = {}
        NO_PAREN_FUNCTION_PARSERS: ClassVar = {"CASE": lambda self: self._parse_case()}
        FUNCTION_PARSERS: ClassVar = {
            name: lambda self, name=name: _mark_spelling(self._parse_cast(strict=name == "CAST"), name)
            for name in ("CAST", "TRY_CAST", "SAFE_CAST")
        }
        SUBQUERY_PREDICATES: ClassVar = {}
        LAMBDAS: ClassVar = {}
        PLACEHOLDER_PARSERS: ClassVar = {}
        ARRAY_CONSTRUCTORS: ClassVar = {"ARRAY": exp.Array}
        ID_VAR_TOKENS: ClassVar = {TokenType.VAR}
        FUNC_TOKENS: ClassVar = {TokenType.VAR}
        CONJUNCTION: ClassVar = {TokenType.AND: exp.And}
        DISJUNCTION: ClassVar = {TokenType.OR: exp.Or}
        EQUALITY: ClassVar = {TokenType.EQ: exp.EQ, TokenType.NEQ: exp.NEQ}
        BITWISE: ClassVar = {TokenType.LR_ARROW: exp.BitwiseLeftShift, TokenType.DARROW: exp.BitwiseRightShift}
        TERM: ClassVar = {TokenType.PLUS: exp.Add, TokenType.DASH: exp.Sub}
        FACTOR: ClassVar = {TokenType.STAR: exp.Mul, TokenType.SLASH: exp.Div, TokenType.MOD: exp.Mod}
        COLUMN_OPERATORS: ClassVar = {
            TokenType.DOT: None,
            TokenType.DCOLON: lambda self, this, to: _mark_spelling(self.expression(exp.Cast(this=this, to=to)), "::"),
        }
        UNARY_PARSERS: ClassVar = {
            TokenType.NOT: lambda self: _mark_spelling(self.expression(exp.Not(this=self._parse_equality())), "NOT"),
            TokenType.DASH: lambda self: self.expression(exp.Neg(this=self._parse_unary())),
        }
        RANGE_PARSERS: ClassVar = {
            kind: parser.Parser.RANGE_PARSERS[kind]
            for kind in (TokenType.BETWEEN, TokenType.ILIKE, TokenType.IN, TokenType.IS, TokenType.LIKE)
        }

        def __init__(self, **options: Any) -> None:
            super().__init__(**options)
            self.nodes: list[exp.Expr] = []
            """All nodes that were created, also of a parse that failed."""

        def expression(self, instance: Any, *args: Any, **options: Any) -> Any:
            """Complete a new node."""
            self.nodes.append(instance)
            return super().expression(instance, *args, **options)

        def _parse_atom(self) -> exp.Expr | None:
            """Leave types to the type parser: `date '2024-01-01'` is a literal, and `date` alone is a column."""
            is_type = self._curr.token_type is TokenType.VAR and self._curr.text.lower() in TYPES
            return None if is_type else super()._parse_atom()

        def _parse_bracket(self, this: exp.Expr | None = None) -> exp.Expr | None:
            """Parse a bracket, and mark `ARRAY[1, 2]` to tell it from `[1, 2]`."""
            tree = super()._parse_bracket(this)
            return (
                _mark_spelling(tree, "ARRAY") if isinstance(this, exp.Column) and isinstance(tree, exp.Array) else tree
            )

        def _parse_paren(self) -> exp.Expr | None:
            """Parse parentheses, and mark them to tell them from those that the parser adds itself."""
            tree = super()._parse_paren()
            return _mark_spelling(tree, "(") if isinstance(tree, exp.Paren) else tree

        def _parse_types(self, check_func: bool = False, **_: Any) -> exp.Expr | None:  # type: ignore[override]
            """Parse a type in Lance's notation, such as `decimal(10, 2)` or `int unsigned`.

            With `check_func`, only before a string literal.
            """
            start = self._index
            name = self._curr
            if name.token_type is not TokenType.VAR or name.text.lower() not in TYPES:
                return None
            self._advance()
            if self._match(TokenType.L_PAREN):
                self._parse_csv(lambda: self._match(TokenType.NUMBER) and exp.Null())
                self._match_r_paren()
            self._match_text_seq("UNSIGNED")
            if check_func and self._curr.token_type is not TokenType.STRING:
                self._retreat(start)
                return None
            words = [_format_token(word) for word in self._tokens[start : self._index]]
            return exp.DataType(this=exp.DType.USERDEFINED, kind=words)


def _mark_spelling(tree: Any, how: str) -> Any:
    """Record how the caller spelled something that has several spellings, and return the node."""
    tree.meta["spelled"] = how
    return tree


def _spelling_of(tree: exp.Expr) -> str:
    return str(tree.meta.get("spelled", "")) if tree.meta else ""


def _tokenize(text: str, field: str) -> list[Token]:
    """Return the tokens of a text, without a trailing semicolon; `.5` is one token."""
    if (count := sum(1 for _ in _WORD.finditer(text))) > MAX_TOKENS:  # a hundred times faster than the tokenizer
        raise _sql_error(field, f"it has {count:,} words and signs, and at most {MAX_TOKENS:,} are allowed")
    raw_tokens = LanceDialect().tokenize(text)
    if raw_tokens and raw_tokens[-1].token_type is TokenType.SEMICOLON:
        raw_tokens.pop()
    words: list[Token] = []
    for word in raw_tokens:
        if word.token_type is TokenType.NUMBER and _is_point_of_fraction(words, word):
            word.text = "." + word.text
            words.pop()
        words.append(word)
    return words


def _is_point_of_fraction(words: Sequence[Token], number: Token) -> bool:
    if not words or words[-1].token_type is not TokenType.DOT or words[-1].end + 1 != number.start:
        return False
    return len(words) < 2 or words[-2].token_type not in (
        *(TokenType.VAR, TokenType.IDENTIFIER, TokenType.NUMBER, TokenType.R_PAREN, TokenType.R_BRACKET),
    )


_OPENING = frozenset({TokenType.L_PAREN, TokenType.L_BRACKET, TokenType.L_BRACE, TokenType.CASE})
_CLOSING = frozenset({TokenType.R_PAREN, TokenType.R_BRACKET, TokenType.R_BRACE, TokenType.END})
_PREFIXES = frozenset({TokenType.NOT, TokenType.DASH})


def _check_words(words: Sequence[Token], field: str) -> None:
    """Refuse deep nesting and functions that are not allowed, before anything recursive runs."""
    open_brackets = prefixes = 0
    previous: Token | None = None
    for word in words:
        kind = word.token_type
        prefixes = prefixes + 1 if kind in _PREFIXES else 0
        if kind in _OPENING:
            open_brackets += 1
            if kind is TokenType.L_PAREN and previous is not None:
                _check_function(previous, field)
        elif kind in _CLOSING:
            open_brackets -= 1
        elif kind is TokenType.NUMBER and not _NUMBER.fullmatch(word.text):
            raise _sql_error(field, f"{word.text[:40]!r} is no number")
        elif kind is TokenType.VAR and not _NAME.fullmatch(word.text):
            raise _sql_error(field, f"{word.text[:40]!r} is no name; a name with other signs is written as `…`")
        if open_brackets + prefixes > MAX_NESTING:
            raise _nesting_error(field)
        previous = word


def _check_function(name: Token, field: str) -> None:
    word = name.text.lower()
    if name.token_type is TokenType.VAR and word not in FUNCTIONS | _WORDS | TYPES:
        raise _function_error(field, word)
    if name.token_type is TokenType.IDENTIFIER:
        raise _sql_error(field, f"`{name.text[:40]}` is no function: their names are written without quotes")


def _format_token(word: Token) -> str:
    """Return a token as it is written for Lance."""
    match word.token_type:
        case TokenType.STRING:
            return _quote_text(word.text)
        case TokenType.IDENTIFIER:
            return _quote_name(word.text)
        case TokenType.HEX_STRING:
            return f"X'{word.text}'"
        case TokenType.NUMBER:
            return word.text
        case TokenType.VAR:
            return word.text.upper() if word.text.lower() in _WORDS else word.text
        case kind:
            return _SPELLED_AS.get(kind, word.text.upper())


def _quote_text(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def _quote_name(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


@dataclass(frozen=True, slots=True)
class _Size:
    """Upper bound of what an expression produces for each row."""

    copies: int = 0
    """Copies of column values."""
    constant: int = 0
    """Bytes of literals."""

    def __add__(self, other: _Size) -> _Size:
        return _Size(self.copies + other.copies, self.constant + other.constant)

    def __mul__(self, times: int) -> _Size:
        return _Size(self.copies * times, self.constant * times)


_SMALL = _Size()
_COLUMN = _Size(copies=1)

_BINARY: Mapping[type[exp.Expr], str] = {
    exp.EQ: "=",
    exp.NEQ: "!=",
    exp.LT: "<",
    exp.LTE: "<=",
    exp.GT: ">",
    exp.GTE: ">=",
    exp.Add: "+",
    exp.Sub: "-",
    exp.Mul: "*",
    exp.Div: "/",
    exp.Mod: "%",
    exp.BitwiseLeftShift: "<<",
    exp.BitwiseRightShift: ">>",
    exp.DPipe: "||",
    exp.NullSafeNEQ: "IS DISTINCT FROM",
    exp.NullSafeEQ: "IS NOT DISTINCT FROM",
}
_COMPARISONS = (exp.EQ, exp.NEQ, exp.LT, exp.LTE, exp.GT, exp.GTE, exp.NullSafeEQ, exp.NullSafeNEQ)
_RANGES = (exp.LT, exp.LTE, exp.GT, exp.GTE)

_ALLOWED_ARGS: Mapping[type[exp.Expr], frozenset[str]] = {
    **dict.fromkeys(_BINARY, frozenset({"this", "expression", "typed", "safe"})),
    exp.And: frozenset({"this", "expression"}),
    exp.Or: frozenset({"this", "expression"}),
    exp.Not: frozenset({"this"}),
    exp.Neg: frozenset({"this"}),
    exp.Paren: frozenset({"this"}),
    exp.Is: frozenset({"this", "expression", "negate"}),
    exp.In: frozenset({"this", "expressions"}),
    exp.Between: frozenset({"this", "low", "high"}),
    exp.Like: frozenset({"this", "expression", "negate"}),
    exp.ILike: frozenset({"this", "expression", "negate"}),
    exp.Escape: frozenset({"this", "expression"}),
    exp.Literal: frozenset({"this", "is_string"}),
    exp.HexString: frozenset({"this"}),
    exp.Boolean: frozenset({"this"}),
    exp.Null: frozenset(),
    exp.Column: frozenset({"this", "table", "db", "catalog"}),
    exp.Identifier: frozenset({"this", "quoted"}),
    exp.Dot: frozenset({"this", "expression"}),
    exp.Bracket: frozenset({"this", "expressions"}),
    exp.Array: frozenset({"expressions"}),
    exp.Anonymous: frozenset({"this", "expressions"}),
    exp.Cast: frozenset({"this", "to"}),
    exp.TryCast: frozenset({"this", "to"}),
    exp.Case: frozenset({"this", "ifs", "default"}),
    exp.If: frozenset({"this", "true"}),
    exp.DataType: frozenset({"this", "kind"}),
}
"""The kinds of nodes that a tree may have, and the arguments that each may have."""


class _Writer:
    """Writes a tree as tokens for Lance, and measures what it produces for each row."""

    def __init__(self, field: str) -> None:
        self.words: list[str] = []
        self.columns: set[str] = set()
        self._field = field
        self.operators = 0
        self._regexes = 0
        self._comparisons = 0
        """Pairs of range comparisons that Lance compares with each other."""
        self._ranges = 0
        """Range comparisons in the current chain of AND."""
        self._nesting = 0
        self._terms = 0
        self._weight = 1
        """How often Lance repeats the current node, because of the nodes around it."""
        self._negations = 0
        """How many NOT enclose the current node."""

    def write_all(self, tree: exp.Expr) -> _Size:
        """Write a whole tree."""
        size = self.write(tree, 0)
        self._end_chain()
        return size

    def write(self, tree: Any, depth: int) -> _Size:
        """Write a node and everything below it."""
        kind = type(tree)
        if kind not in _ALLOWED_ARGS or not _present_args(tree) <= _ALLOWED_ARGS[kind]:
            raise _sql_error(self._field, f"{_describe_node(tree)} is not allowed here")
        if depth > MAX_DEPTH:
            raise _sql_error(self._field, f"it has more than {MAX_DEPTH} operators inside each other, or in one chain")
        self._terms += self._weight
        if self._terms > MAX_TERMS:
            raise _sql_error(
                self._field, f"it becomes more than {MAX_TERMS:,} terms: put fewer coalesce and CASE into each other"
            )
        if kind in _BINARY:
            return self._write_binary(tree, depth)
        return _WRITERS[kind](self, tree, depth + 1)

    @contextmanager
    def _multiply_weight(self, times: int) -> Iterator[None]:
        """Run a block whose nodes Lance repeats `times` times."""
        self._weight *= times
        yield
        self._weight //= times

    def _write_inside(self, tree: Any, depth: int) -> _Size:
        """Write a node that is one nesting level deeper for Lance's parser."""
        self._nesting += 1
        if self._nesting > MAX_NESTING:
            raise _nesting_error(self._field)
        size = self.write(tree, depth)
        self._nesting -= 1
        return size

    def _write_binary(self, tree: exp.Binary, depth: int) -> _Size:
        left_size = self.write(tree.this, depth + 1)
        self.words += _BINARY[type(tree)].split()
        right_size = self._write_inside(tree.expression, depth + 1)
        if isinstance(tree, _COMPARISONS):
            self._ranges += isinstance(tree, _RANGES)
            return _SMALL
        self._count_operator()
        return self._check_size(left_size + right_size) if isinstance(tree, exp.DPipe) else _SMALL

    def _write_chain(self, tree: exp.Connector, depth: int) -> _Size:
        """Write a chain of AND or OR iteratively, because it may have thousands of links."""
        links: list[exp.Expr] = []
        kind, word = (exp.And, "AND") if isinstance(tree, exp.And) else (exp.Or, "OR")
        node: Any = tree
        while type(node) is kind:
            links.append(node.expression)
            node = node.this
        links.append(node)
        # Lance merges nested chains of AND into one, and also OR under NOT, which it turns into AND.
        is_apart = kind is exp.Or and not self._negations
        for place, link in enumerate(reversed(links)):
            if place:
                self.words.append(word)
            outer = self._ranges
            self._ranges = 0 if is_apart else outer
            self._write_inside(link, depth)
            if is_apart:
                self._end_chain()
                self._ranges = outer
        return _SMALL

    def _end_chain(self) -> None:
        self._comparisons += self._ranges**2
        self._ranges = 0
        if self._comparisons > MAX_RANGES**2:
            raise _sql_error(self._field, f"it joins more than {MAX_RANGES:,} comparisons by <, <=, > or >= by AND")

    def _write_not(self, tree: exp.Not, depth: int) -> _Size:
        if _spelling_of(tree) == "NOT":
            self.words.append("NOT")
            self._negations += 1
            self._write_inside(tree.this, depth)
            self._negations -= 1
            return _SMALL
        match tree.this:
            case exp.In() | exp.Between() | exp.Is():
                return _WRITERS[type(tree.this)](self, tree.this, depth, "NOT")
        raise _sql_error(self._field, "NOT is not allowed here")

    def _write_negative(self, tree: exp.Neg, depth: int) -> _Size:
        self.words.append("-")
        if not isinstance(tree.this, exp.Literal):
            self._count_operator()
        self._write_inside(tree.this, depth)
        return _SMALL

    def _write_paren(self, tree: exp.Paren, depth: int) -> _Size:
        # Parentheses are not a level of the tree; their depth was checked before.
        if _spelling_of(tree) != "(":
            return self.write(tree.this, depth - 1)
        return self._write_in_brackets("()", [tree.this], depth - 1)

    def _write_is(self, tree: exp.Is, depth: int, negated: str = "") -> _Size:
        self.write(tree.this, depth)
        self.words.append("IS")
        if negated or tree.args.get("negate"):
            self.words.append("NOT")
        if not isinstance(tree.expression, exp.Null | exp.Boolean):
            raise _sql_error(self._field, "after IS stands NULL, TRUE, FALSE or DISTINCT FROM")
        return self.write(tree.expression, depth)

    def _write_in(self, tree: exp.In, depth: int, negated: str = "") -> _Size:
        self.write(tree.this, depth)
        self.words += [negated, "IN"] if negated else ["IN"]
        self._write_in_brackets("()", tree.expressions, depth)
        return _SMALL

    def _write_between(self, tree: exp.Between, depth: int, negated: str = "") -> _Size:
        with self._multiply_weight(REPEATS):
            self.write(tree.this, depth)
        self.words += [negated, "BETWEEN"] if negated else ["BETWEEN"]
        self._write_inside(tree.args["low"], depth)
        self.words.append("AND")
        self._write_inside(tree.args["high"], depth)
        self._ranges += 2
        return _SMALL

    def _write_like(self, tree: exp.Like | exp.ILike, depth: int) -> _Size:
        self.write(tree.this, depth)
        if tree.args.get("negate"):
            self.words.append("NOT")
        self.words.append("LIKE" if isinstance(tree, exp.Like) else "ILIKE")
        self._write_inside(tree.expression, depth)
        return _SMALL

    def _write_escape(self, tree: exp.Escape, depth: int) -> _Size:
        self.write(tree.this, depth)
        self.words.append("ESCAPE")
        self.write(tree.expression, depth)
        return _SMALL

    def _write_literal(self, tree: exp.Literal, _: int) -> _Size:
        if not tree.is_string:
            self.words.append(tree.name)
            return _SMALL
        self.words.append(_quote_text(tree.name))
        return _Size(constant=len(tree.name.encode()))

    def _write_hex(self, tree: exp.HexString, _: int) -> _Size:
        self.words.append(f"X'{tree.name}'")
        return _Size(constant=len(tree.name) // 2)

    def _write_constant(self, tree: exp.Boolean | exp.Null, _: int) -> _Size:
        self.words.append("NULL" if isinstance(tree, exp.Null) else "TRUE" if tree.this else "FALSE")
        return _SMALL

    def _write_column(self, tree: exp.Column, depth: int) -> _Size:
        self.columns.add(tree.parts[0].name)
        for place, part in enumerate(tree.parts):
            if place:
                self.words.append(".")
            self.write(part, depth)
        return _COLUMN

    def _write_identifier(self, tree: exp.Identifier, _: int) -> _Size:
        self.words.append(_quote_name(tree.name) if tree.args.get("quoted") else tree.name)
        return _SMALL

    def _write_dot(self, tree: exp.Dot, depth: int) -> _Size:
        size = self.write(tree.this, depth)
        self.words.append(".")
        self._count_operator()
        if not isinstance(tree.expression, exp.Identifier):
            raise _sql_error(self._field, "after a dot stands the name of a field")
        self.write(tree.expression, depth)
        return size

    def _write_bracket(self, tree: exp.Bracket, depth: int) -> _Size:
        size = self.write(tree.this, depth)
        self._count_operator()
        self._write_in_brackets("[]", tree.expressions, depth)
        return size

    def _write_array(self, tree: exp.Array, depth: int) -> _Size:
        if _spelling_of(tree) == "ARRAY":
            self.words.append("ARRAY")
        return self._write_in_brackets("[]", tree.expressions, depth)

    def _write_call(self, tree: exp.Anonymous, depth: int) -> _Size:
        name = str(tree.this).lower()
        if not isinstance(tree.this, str) or name not in FUNCTIONS:
            raise _function_error(self._field, name)
        self._regexes += name in REGEXES
        if self._regexes > MAX_REGEXES:
            raise _sql_error(self._field, f"it has more than {MAX_REGEXES} regular expressions")
        self.words += [tree.this, "("]
        with self._multiply_weight(REPEATS if name in REPEATED else 1):
            sizes = self._write_list(tree.expressions, depth)
        self.words.append(")")
        if name in LOOKING_UP and len(sizes) == 2 and sizes[0].copies and not sizes[1].copies:
            sizes = sizes[:1]
        if name in FORMATTING:
            self._require_text(name, tree.expressions, 1)
            return self._check_size(sizes[1] * FORMATTING[name])
        size = self._check_size(sum(sizes, _SMALL) * self._growth(name, tree.expressions))
        return _SMALL if name in SMALL else size

    def _growth(self, name: str, arguments: Sequence[exp.Expr]) -> int:
        """Return how many times as large as its arguments the result of a function may be."""
        if name not in REPLACING:
            return GROWING.get(name, 1)
        return 1 + len(self._require_text(name, arguments, REPLACING[name]))

    def _require_text(self, name: str, arguments: Sequence[exp.Expr], place: int) -> str:
        if len(arguments) <= place or not isinstance(arguments[place], exp.Literal):
            raise _sql_error(self._field, f"argument {place + 1} of {name} must be a text")
        return arguments[place].name

    def _write_cast(self, tree: exp.Cast, depth: int) -> _Size:
        how, words = _spelling_of(tree), tree.args["to"].args["kind"]
        if how == "::":
            size = self.write(tree.this, depth)
            self.words += ["::", *words]
        elif how:
            self.words += [how, "("]
            size = self._write_inside(tree.this, depth)
            self.words += ["AS", *words, ")"]
        else:
            self.words += words
            size = self.write(tree.this, depth)
        return size

    def _write_case(self, tree: exp.Case, depth: int) -> _Size:
        branches = tree.args["ifs"]
        # A CASE that yields booleans becomes a chain of OR, in which each condition is repeated for every one after it.
        times = 1 if any(isinstance(branch.args["true"], exp.Literal) for branch in branches) else len(branches) + 2
        sizes = []
        self.words.append("CASE")
        if tree.this:
            with self._multiply_weight(times):
                self._write_inside(tree.this, depth)
        for branch in branches:
            self._count_operator()
            self.words.append("WHEN")
            with self._multiply_weight(times):
                self._write_inside(branch.this, depth)
            self.words.append("THEN")
            sizes.append(self._write_inside(branch.args["true"], depth))
        if tree.args.get("default"):
            self.words.append("ELSE")
            sizes.append(self._write_inside(tree.args["default"], depth))
        self.words.append("END")
        return self._check_size(_largest(sizes))

    def _write_in_brackets(self, brackets: str, trees: Sequence[exp.Expr], depth: int) -> _Size:
        self.words.append(brackets[0])
        sizes = self._write_list(trees, depth)
        self.words.append(brackets[1])
        return sum(sizes, _SMALL)

    def _write_list(self, trees: Sequence[exp.Expr], depth: int) -> list[_Size]:
        sizes = []
        for place, tree in enumerate(trees):
            if place:
                self.words.append(",")
            sizes.append(self._write_inside(tree, depth))
        return sizes

    def _count_operator(self) -> None:
        self.operators += 1
        if self.operators > MAX_OPERATORS:
            raise _sql_error(self._field, f"it has more than {MAX_OPERATORS:,} operators other than AND and OR")

    def _check_size(self, size: _Size) -> _Size:
        if size.copies > MAX_COPIES:
            raise _sql_error(self._field, f"one value is put together from more than {MAX_COPIES} columns")
        if size.constant > MAX_CONSTANT:
            raise _sql_error(self._field, f"literals make one computed value longer than {MAX_CONSTANT:,} bytes")
        return size


def _largest(sizes: Sequence[_Size]) -> _Size:
    return _Size(max((size.copies for size in sizes), default=0), max((size.constant for size in sizes), default=0))


def _present_args(tree: Any) -> set[str]:
    """Return the names of a node's arguments that are set."""
    parts = tree.args if isinstance(tree, exp.Expr) else {}
    return {name for name, part in parts.items() if part not in (None, False, [])}


def _describe_node(tree: Any) -> str:
    return "an empty place" if tree is None else f"SQL of the kind {type(tree).__name__}"


_WRITERS: Mapping[type[exp.Expr], Callable[..., _Size]] = {
    exp.And: _Writer._write_chain,
    exp.Or: _Writer._write_chain,
    exp.Not: _Writer._write_not,
    exp.Neg: _Writer._write_negative,
    exp.Paren: _Writer._write_paren,
    exp.Is: _Writer._write_is,
    exp.In: _Writer._write_in,
    exp.Between: _Writer._write_between,
    exp.Like: _Writer._write_like,
    exp.ILike: _Writer._write_like,
    exp.Escape: _Writer._write_escape,
    exp.Literal: _Writer._write_literal,
    exp.HexString: _Writer._write_hex,
    exp.Boolean: _Writer._write_constant,
    exp.Null: _Writer._write_constant,
    exp.Column: _Writer._write_column,
    exp.Identifier: _Writer._write_identifier,
    exp.Dot: _Writer._write_dot,
    exp.Bracket: _Writer._write_bracket,
    exp.Array: _Writer._write_array,
    exp.Anonymous: _Writer._write_call,
    exp.Cast: _Writer._write_cast,
    exp.TryCast: _Writer._write_cast,
    exp.Case: _Writer._write_case,
}
