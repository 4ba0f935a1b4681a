"""Parse the statements of `cat.sql` that are no queries: changes, definitions of tables, SHOW, DESCRIBE and so on.

sqlglot takes some of these, such as SHOW and OPTIMIZE, for one piece of text. So statements are read token by token
here, and each word must be one that the statement knows: nothing is skipped. Expressions and queries inside them are
not parsed here. They stay the text that the user wrote, for Spark.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from types import MappingProxyType
from typing import Any, ClassVar

from lance_namespace.errors import InvalidInputError, UnsupportedOperationError
from sqlglot.dialects.spark import Spark
from sqlglot.errors import SqlglotError
from sqlglot.tokenizer_core import Token, TokenType

from lancehouse.spark.query_text import QUERY_STARTS, shorten, strip_semicolons
from lancehouse.suggestions import find_close

Name = tuple[str, ...]
"""The parts of a name."""

_OPENING, _CLOSING = frozenset("([{"), frozenset(")]}")
_ALIAS_ENDS = frozenset({"SET", "WHERE", "USING", "ON", "WHEN", "VERSION", "TIMESTAMP", "FOR"})


_OPERATORS = frozenset(
    {"AND", "OR", "NOT", "IN", "LIKE", "ILIKE", "RLIKE", "BETWEEN", "IS", "DISTINCT", "DIV", "CASE", "WHEN", "THEN"}
)
_CLAUSES = {
    "FROM": "use MERGE INTO, or a subquery",
    "LIMIT": "select the rows by a condition",
    "ORDER": "rows have no order",
    "RETURNING": "query the rows afterwards",
}
"""Clauses of other databases that would otherwise be taken for a part of an expression."""


class _Tokenizer(Spark.Tokenizer):
    """Spark's tokenizer without keywords: a word is a word, and no command swallows the rest of the text."""

    COMMANDS: ClassVar = set()
    KEYWORDS: ClassVar = {text: kind for text, kind in Spark.Tokenizer.KEYWORDS.items() if not text[0].isalpha()}


# Statements


@dataclass(frozen=True, slots=True)
class InsertRows:
    """INSERT INTO or OVERWRITE."""

    table: Name
    query: str
    columns: tuple[str, ...] | None = None
    by_name: bool = False
    overwrite: bool = False
    replace_where: str | None = None


Assignments = tuple[tuple[Name, str], ...]
"""Columns, whose names may begin with that of the table, and the expressions that they are set to."""


@dataclass(frozen=True, slots=True)
class UpdateRows:
    """UPDATE."""

    table: Name
    alias: str | None
    assignments: Assignments
    where: str | None = None


@dataclass(frozen=True, slots=True)
class DeleteRows:
    """DELETE FROM."""

    table: Name
    alias: str | None
    where: str | None = None


MATCHED, NOT_MATCHED, BY_SOURCE = "matched", "not matched", "not matched by source"
"""Which rows a clause of MERGE is about: in both; only in the source; only in the table."""


@dataclass(frozen=True, slots=True)
class Clause:
    """A WHEN clause of MERGE."""

    rows: str
    action: str
    """`update`, `delete` or `insert`."""
    condition: str | None = None
    assignments: Assignments | None = None
    """None for `*`: all columns, by name."""


@dataclass(frozen=True, slots=True)
class MergeRows:
    """MERGE INTO."""

    table: Name
    alias: str | None
    source: str
    """The table or the query in parentheses, with what follows it, such as VERSION AS OF."""
    source_alias: str
    on: str
    clauses: tuple[Clause, ...]
    evolves: bool = False
    """Whether the table gets the columns of the source that it lacks."""


@dataclass(frozen=True, slots=True)
class DefineTable:
    """CREATE TABLE, REPLACE TABLE, and both from a query."""

    table: Name
    columns: str | None = None
    """Column definitions as the text of a struct's fields."""
    query: str | None = None
    like: Name | None = None
    if_not_exists: bool = False
    creates: bool = True
    replaces: bool = False
    comment: str | None = None
    properties: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class CreateView:
    """CREATE TEMPORARY VIEW."""

    name: str
    query: str
    replaces: bool = False


@dataclass(frozen=True, slots=True)
class AddColumns:
    """ALTER TABLE … ADD COLUMNS."""

    table: Name
    columns: str


@dataclass(frozen=True, slots=True)
class DropColumns:
    """ALTER TABLE … DROP COLUMNS."""

    table: Name
    columns: tuple[str, ...]
    if_exists: bool = False


@dataclass(frozen=True, slots=True)
class RenameColumn:
    """ALTER TABLE … RENAME COLUMN."""

    table: Name
    column: str
    new_name: str


@dataclass(frozen=True, slots=True)
class AlterColumn:
    """ALTER TABLE … ALTER COLUMN … TYPE, SET NOT NULL, DROP NOT NULL."""

    table: Name
    column: str
    type: str | None = None
    nullable: bool | None = None


@dataclass(frozen=True, slots=True)
class SetProperties:
    """ALTER TABLE … SET TBLPROPERTIES."""

    table: Name
    properties: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class UnsetProperties:
    """ALTER TABLE … UNSET TBLPROPERTIES."""

    table: Name
    names: tuple[str, ...]
    if_exists: bool = False


@dataclass(frozen=True, slots=True)
class MoveTable:
    """ALTER TABLE … RENAME TO."""

    table: Name
    new_name: Name


@dataclass(frozen=True, slots=True)
class DropTable:
    """DROP TABLE."""

    table: Name
    if_exists: bool = False


@dataclass(frozen=True, slots=True)
class Truncate:
    """TRUNCATE TABLE."""

    table: Name


@dataclass(frozen=True, slots=True)
class CreateNamespace:
    """CREATE NAMESPACE."""

    namespace: Name
    if_not_exists: bool = False
    properties: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class DropNamespace:
    """DROP NAMESPACE."""

    namespace: Name
    if_exists: bool = False
    cascade: bool = False


@dataclass(frozen=True, slots=True)
class Use:
    """USE a namespace."""

    namespace: Name


@dataclass(frozen=True, slots=True)
class ShowNames:
    """SHOW NAMESPACES and SHOW TABLES."""

    what: str
    """`namespaces` or `tables`."""
    namespace: Name | None = None
    pattern: str | None = None


@dataclass(frozen=True, slots=True)
class ShowOfTable:
    """SHOW COLUMNS, CREATE TABLE, INDEXES, TAGS, BRANCHES and TBLPROPERTIES of a table."""

    what: str
    table: Name
    key: str | None = None


@dataclass(frozen=True, slots=True)
class Describe:
    """DESCRIBE a table, or one of its columns."""

    table: Name
    extended: bool = False
    column: str | None = None


@dataclass(frozen=True, slots=True)
class DescribeNamespace:
    """DESCRIBE NAMESPACE."""

    namespace: Name


@dataclass(frozen=True, slots=True)
class DescribeQuery:
    """DESCRIBE a query."""

    query: str


@dataclass(frozen=True, slots=True)
class DescribeHistory:
    """DESCRIBE HISTORY."""

    table: Name
    limit: int | None = None


@dataclass(frozen=True, slots=True)
class Optimize:
    """OPTIMIZE."""

    table: Name
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Vacuum:
    """VACUUM."""

    table: Name
    hours: float | None = None
    dry_run: bool = False


@dataclass(frozen=True, slots=True)
class CreateIndex:
    """CREATE INDEX."""

    table: Name
    name: str
    column: str
    kind: str | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    if_not_exists: bool = False


@dataclass(frozen=True, slots=True)
class DropIndex:
    """DROP INDEX."""

    table: Name
    name: str
    if_exists: bool = False


@dataclass(frozen=True, slots=True)
class CreateRef:
    """CREATE TAG and CREATE BRANCH."""

    table: Name
    kind: str
    """`tag` or `branch`."""
    name: str
    version: int | None = None
    tag: str | None = None
    if_not_exists: bool = False
    replaces: bool = False


@dataclass(frozen=True, slots=True)
class DropRef:
    """DROP TAG and DROP BRANCH."""

    table: Name
    kind: str
    name: str
    if_exists: bool = False


@dataclass(frozen=True, slots=True)
class Restore:
    """RESTORE TABLE."""

    table: Name
    version: int | None = None
    tag: str | None = None
    as_of: str | None = None


Statement = (
    InsertRows | UpdateRows | DeleteRows | MergeRows | DefineTable | CreateView | AddColumns | DropColumns
    | RenameColumn | AlterColumn | SetProperties | UnsetProperties | MoveTable | DropTable | Truncate
    | CreateNamespace | DropNamespace | Use | ShowNames | ShowOfTable | Describe | DescribeNamespace | DescribeQuery
    | DescribeHistory | Optimize | Vacuum | CreateIndex | DropIndex | CreateRef | DropRef | Restore
)  # fmt: skip


# Entrances


def parse_statement(text: str, args: Mapping[str, Any] = MappingProxyType({})) -> Statement:
    """Parse one statement.

    Args:
        text: the statement.
        args: values of the parameters that stand where a literal is needed now, such as `VERSION AS OF :v`.

    Raises:
        UnsupportedOperationError: a clause of Spark's or Delta's SQL that is not supported; the message names it.
        InvalidInputError: it is no statement, or a word is not expected where it stands.
    """
    return _Parser(text, args).parse()


def has_subquery(expression: str) -> bool:
    """Return whether an expression reads other rows than its own."""
    return any(_is_word(token, "SELECT", "TABLE", "VALUES", "FROM") for token in _tokenize(expression))


def list_words(expression: str) -> set[str] | None:
    """Return the words and quoted names of an expression, in lower case: every column that it names is among them.

    None if it may name all columns, by a `*`.
    """
    tokens = _tokenize(expression)
    if any(token.text == "*" and before.text in (".", "(", ",") for before, token in pairwise(tokens)):
        return None
    kinds = (TokenType.VAR, TokenType.IDENTIFIER)
    return {token.text.lower() for token in tokens if token.token_type in kinds}


def shorten_qualifiers(expression: str, table: Name) -> str:
    """Return an expression whose columns are qualified by the last part of a table's name, where they are by several.

    Args:
        expression: the expression.
        table: the name of the table; columns may be qualified by any end of it.
    """
    known = {tuple(part.lower() for part in table[first:]) for first in range(len(table) - 1)}
    tokens = _tokenize(expression)
    pieces, place, at = [], 0, 0
    while at < len(tokens):
        count = 1
        while _is_name(tokens, at + 2 * count) and tokens[at + 2 * count - 1].token_type is TokenType.DOT:
            count += 1
        parts = [token.text.lower() for token in tokens[at : at + 2 * count : 2]]
        length = next((length for length in range(count - 1, 1, -1) if tuple(parts[:length]) in known), 0)
        if length and _is_name(tokens, at):
            pieces.append(expression[place : tokens[at].start])
            place = tokens[at + 2 * length - 2].start
        at += 2 * count - 1
    return "".join([*pieces, expression[place:]])


def _is_name(tokens: Sequence[Token], at: int) -> bool:
    return at < len(tokens) and tokens[at].token_type in (TokenType.VAR, TokenType.IDENTIFIER)


def _tokenize(text: str) -> list[Token]:
    try:
        return list(_Tokenizer(dialect=Spark()).tokenize(text))
    except SqlglotError as error:
        raise InvalidInputError(f"this is no SQL: {error}") from error


def _first_word(tokens: Sequence[Token]) -> str:
    """Return the word that says what kind of statement this is; for WITH, the one after the list of queries."""
    if not tokens or not _is_word(tokens[0], "WITH"):
        return tokens[0].text.upper() if tokens and tokens[0].token_type is TokenType.VAR else ""
    depth = 0
    for token in tokens:
        depth += (token.text in _OPENING) - (token.text in _CLOSING) if _is_symbol(token) else 0
        if depth == 0 and _is_word(token, "INSERT", "UPDATE", "DELETE", "MERGE", "SELECT", "FROM", "VALUES", "TABLE"):
            return token.text.upper()
    return ""


def _is_word(token: Token | None, *words: str) -> bool:
    return token is not None and token.token_type is TokenType.VAR and token.text.upper() in words


def _is_symbol(token: Token) -> bool:
    kinds = (TokenType.VAR, TokenType.IDENTIFIER, TokenType.STRING, TokenType.RAW_STRING, TokenType.HEX_STRING)
    return token.token_type not in kinds


class _Parser:
    """Reads the tokens of one statement from left to right."""

    def __init__(self, text: str, args: Mapping[str, Any]) -> None:
        self._text, self._args, self._at = text, args, 0
        self._tokens = strip_semicolons(_tokenize(text))
        self._what = _first_word(self._tokens)

    def parse(self) -> Statement:
        """Parse the statement; all of its text must belong to it."""
        if self._is("WITH"):
            if self._what != "INSERT":
                raise self._unsupported_error(f"WITH before {self._what or 'this'}", "write the query where it is used")
            return self._parse_insert(self._take_ctes())
        word = self._take_word()
        parsers: dict[str, Callable[[], Statement]] = {
            "INSERT": self._parse_insert,
            "UPDATE": self._parse_update,
            "DELETE": self._parse_delete,
            "MERGE": self._parse_merge,
            "CREATE": self._parse_create,
            "REPLACE": self._parse_replace,
            "ALTER": self._parse_alter,
            "DROP": self._parse_drop,
            "TRUNCATE": self._parse_truncate,
            "SHOW": self._parse_show,
            "DESCRIBE": self._parse_describe,
            "DESC": self._parse_describe,
            "OPTIMIZE": self._parse_optimize,
            "VACUUM": self._parse_vacuum,
            "RESTORE": self._parse_restore,
            "USE": self._parse_use,
        }
        if word not in parsers:
            if close := find_close(word, [*parsers, *QUERY_STARTS], 0.8):
                raise InvalidInputError(f"no statement begins with {shorten(word)}; did you mean {close}?")
            raise self._unsupported_error(
                word, "spark.sql runs the statements of Spark that do not concern these tables"
            )
        statement = parsers[word]()
        self._expect_end()
        return statement

    # Changes of rows

    def _parse_insert(self, ctes: str = "") -> Statement:
        if ctes:
            self._expect("INSERT")
        if self._is("WITH"):
            raise self._unsupported_error(
                "INSERT WITH SCHEMA EVOLUTION", "append the query's DataFrame with schema_mode='evolve'"
            )
        overwrite = self._accept("OVERWRITE")
        if not overwrite:
            self._expect("INTO")
        if self._is("DIRECTORY", "LOCAL"):
            raise self._unsupported_error("INSERT OVERWRITE DIRECTORY", "write the DataFrame of the query")
        self._accept("TABLE")
        table, columns, by_name, replace_where = self._take_name(), None, False, None
        if self._is("PARTITION"):
            raise self._unsupported_error(
                "PARTITION", "Lance tables have no partitions: use INSERT INTO … REPLACE WHERE"
            )
        if self._is("IF"):
            raise self._unsupported_error("IF NOT EXISTS", "it is for partitions, which Lance tables have not")
        if self._is("AS") or self._is_alias():
            raise self._unsupported_error("an alias of the table", "leave it out")
        if self._is_symbol("(") and not self._next_is("SELECT", "WITH", "FROM", "VALUES", "TABLE", "("):
            columns = self._take_columns()
        elif self._accept("BY", "NAME"):
            by_name = True
        if self._is("REPLACE"):
            self._expect("REPLACE")
            if not self._accept("WHERE"):
                raise self._unsupported_error("REPLACE USING and REPLACE ON", "use MERGE INTO")
            if overwrite:
                raise self._unsupported_error("OVERWRITE with REPLACE WHERE", "write INSERT INTO … REPLACE WHERE")
            replace_where = self._take_expression("SELECT", "VALUES", "TABLE", "WITH", "FROM", "BY")
            by_name = by_name or self._accept("BY", "NAME")
        if self._accept("DEFAULT", "VALUES"):
            raise self._unsupported_error("DEFAULT VALUES", "write the values")
        query = self._take_query()
        self._expect_end()
        return InsertRows(table, f"{ctes} {query}".strip(), columns, by_name, overwrite, replace_where)

    def _parse_update(self) -> Statement:
        table, alias = self._take_name(), self._take_alias()
        self._expect("SET")
        assignments = self._take_assignments("WHERE")
        return UpdateRows(table, alias, assignments, self._take_where())

    def _parse_delete(self) -> Statement:
        self._expect("FROM")
        table, alias = self._take_name(), self._take_alias()
        if self._is("USING"):
            raise self._unsupported_error("DELETE … USING", "use MERGE INTO … WHEN MATCHED THEN DELETE")
        return DeleteRows(table, alias, self._take_where())

    def _parse_merge(self) -> Statement:
        evolves = self._accept("WITH", "SCHEMA", "EVOLUTION")
        self._expect("INTO")
        table, alias = self._take_name(), self._take_alias()
        self._expect("USING")
        source, source_alias = self._take_source()
        self._expect("ON")
        on, clauses = self._take_expression("WHEN"), list[Clause]()
        while self._accept("WHEN"):
            clauses.append(self._parse_clause())
        if not clauses:
            raise self._error("WHEN")
        for rows in (MATCHED, NOT_MATCHED, BY_SOURCE):
            of_kind = [clause for clause in clauses if clause.rows == rows]
            if any(clause.condition is None for clause in of_kind[:-1]):
                raise InvalidInputError(
                    f"MERGE: of several clauses WHEN {rows.upper()}, only the last may be without a condition"
                )
        return MergeRows(table, alias, source, source_alias, on, tuple(clauses), evolves)

    def _parse_clause(self) -> Clause:
        rows = NOT_MATCHED if self._accept("NOT") else MATCHED
        self._expect("MATCHED")
        if rows == NOT_MATCHED and self._accept("BY"):
            rows = BY_SOURCE if self._accept("SOURCE") else rows
            if rows == NOT_MATCHED:
                self._expect("TARGET")
        condition = self._take_expression("THEN") if self._accept("AND") else None
        self._expect("THEN")
        if rows == NOT_MATCHED:
            self._expect("INSERT")
            return Clause(rows, "insert", condition, self._take_insertion())
        if self._accept("DELETE"):
            return Clause(rows, "delete", condition, ())
        self._expect("UPDATE")
        self._expect("SET")
        if self._accept_symbol("*"):
            if rows == BY_SOURCE:
                raise self._unsupported_error(
                    "UPDATE SET * of WHEN NOT MATCHED BY SOURCE", "there is no row to take values from: name columns"
                )
            if self._is("EXCEPT"):
                raise self._unsupported_error("UPDATE SET * EXCEPT", "name the columns")
            return Clause(rows, "update", condition, None)
        return Clause(rows, "update", condition, self._take_assignments("WHEN"))

    def _take_insertion(self) -> Assignments | None:
        if self._accept_symbol("*"):
            if self._is("EXCEPT"):
                raise self._unsupported_error("INSERT * EXCEPT", "name the columns")
            return None
        columns = self._take_names()
        self._expect("VALUES")
        self._expect_symbol("(")
        values = [self._take_expression(",", ")")]
        while self._accept_symbol(","):
            values.append(self._take_expression(",", ")"))
        self._expect_symbol(")")
        if len(columns) != len(values):
            raise InvalidInputError(f"MERGE: INSERT names {len(columns)} columns, and has {len(values)} values")
        return tuple(zip(columns, map(_replace_default, values), strict=True))

    def _take_source(self) -> tuple[str, str]:
        """Take the table or query of MERGE and its alias; without one, a table is called by its name."""
        start = self._at
        if self._is_symbol("("):
            self._skip_parentheses()
            name = "_lancehouse_source"
        else:
            name = self._take_name()[-1]
            if self._is_symbol("("):
                self._skip_parentheses()
        while not self._is("ON", "AS") and not self._is_alias() and self._at < len(self._tokens):
            self._take_time_travel()
        source = self._slice(start, self._at)
        return source, self._take_alias() or name

    def _take_time_travel(self) -> None:
        if self._accept("FOR"):
            self._accept("SYSTEM_VERSION") or self._accept("SYSTEM_TIME") or self._take_word()
        elif not (self._accept("VERSION") or self._accept("TIMESTAMP")):
            raise self._error("ON")
        self._expect("AS")
        self._expect("OF")
        self._at += 1
        while self._at < len(self._tokens) and not self._is("ON", "AS") and not self._is_alias():
            self._at += 1

    def _take_assignments(self, end: str) -> Assignments:
        assignments = [self._take_assignment(end)]
        while self._accept_symbol(","):
            assignments.append(self._take_assignment(end))
        names = [column[-1].lower() for column, _ in assignments]
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise InvalidInputError(f"{self._what}: {', '.join(twice)} is set twice")
        return tuple(assignments)

    def _take_assignment(self, end: str) -> tuple[Name, str]:
        name = self._take_name()
        if not (self._accept_symbol("=") or self._accept_symbol("==")):
            raise self._error("=")
        return name, _replace_default(self._take_expression(",", end))

    def _take_where(self) -> str | None:
        return self._take_expression() if self._accept("WHERE") else None

    # Tables

    def _parse_create(self) -> Statement:
        replaces = self._accept("OR", "REPLACE")
        if self._accept("TABLE"):
            return self._parse_table(creates=True, replaces=replaces)
        if self._accept("TEMP") or self._accept("TEMPORARY"):
            if self._accept("VIEW"):
                return self._parse_view(replaces=replaces)
            raise self._unsupported_error("CREATE TEMPORARY " + self._peek_text().upper(), "create a temporary view")
        if self._is("EXTERNAL"):
            raise self._unsupported_error(
                "CREATE EXTERNAL TABLE", "register the table with `lancehouse table register`"
            )
        if self._is("VIEW", "GLOBAL", "MATERIALIZED", "FUNCTION", "STREAMING", "CATALOG", "TAG", "BRANCH"):
            hints = {
                "MATERIALIZED": "use create_materialized_view",
                "TAG": "write ALTER TABLE … CREATE TAG",
                "BRANCH": "write ALTER TABLE … CREATE BRANCH",
            }
            word = self._peek_text().upper()
            raise self._unsupported_error(f"CREATE {word}", hints.get(word, "spark.sql creates those of Spark"))
        if replaces:
            raise self._error("TABLE")
        if self._accept("NAMESPACE") or self._accept("DATABASE") or self._accept("SCHEMA"):
            return self._parse_create_namespace()
        if self._accept("INDEX"):
            exists = self._accept("IF", "NOT", "EXISTS")
            name = self._take_identifier()
            self._expect("ON")
            self._accept("TABLE")
            return self._parse_index(self._take_name(), name, if_not_exists=exists)
        raise self._error("TABLE, NAMESPACE, INDEX or TEMPORARY VIEW")

    def _parse_replace(self) -> Statement:
        self._expect("TABLE")
        return self._parse_table(creates=False, replaces=True)

    def _parse_view(self, *, replaces: bool) -> Statement:
        name = self._take_identifier()
        self._expect("AS")
        return CreateView(name, self._take_query(), replaces)

    def _parse_table(self, *, creates: bool, replaces: bool) -> Statement:
        exists = self._accept("IF", "NOT", "EXISTS")
        if exists and replaces:
            raise InvalidInputError("CREATE OR REPLACE TABLE takes no IF NOT EXISTS")
        table, columns, query, like, comment = self._take_name(), None, None, None, None
        properties: dict[str, str] = {}
        if self._is_symbol("("):
            columns = self._take_definitions()
        while self._at < len(self._tokens):
            if self._accept("USING"):
                if (format_ := self._take_identifier()).lower() != "lance":
                    raise self._unsupported_error(f"USING {format_}", "these tables are Lance tables: leave it out")
            elif self._accept("COMMENT"):
                comment = self._take_string("a comment")
            elif self._accept("TBLPROPERTIES"):
                properties |= {name: _to_text(value) for name, value in self._take_options().items()}
            elif columns is None and self._accept("LIKE"):
                like = self._take_name()
            elif self._is("AS", "SELECT", "WITH", "FROM", "VALUES", "TABLE") or self._is_symbol("("):
                self._accept("AS")
                query = self._take_query()
            else:
                self._refuse_table_clause()
        if (columns is not None) + (query is not None) + (like is not None) != 1:
            raise InvalidInputError(f"{self._what} TABLE needs columns in parentheses, or AS and a query, or LIKE")
        return DefineTable(table, columns, query, like, exists, creates, replaces, comment, properties)

    def _refuse_table_clause(self) -> None:
        hints = {
            "PARTITIONED": "Lance tables have no partitions",
            "CLUSTERED": "Lance tables have no buckets",
            "CLUSTER": "Lance tables are not clustered",
            "LOCATION": "the catalog decides where its tables are",
            "OPTIONS": "write TBLPROPERTIES",
            "ROW": "it is for Hive's tables",
            "STORED": "it is for Hive's tables",
            "SORTED": "Lance tables have no buckets",
            "DEFAULT": "Lance has no collations",
        }
        word = self._peek_text().upper()
        if word in hints:
            raise self._unsupported_error(word, hints[word])
        raise self._error("USING, COMMENT, TBLPROPERTIES or AS")

    def _take_definitions(self) -> str:
        """Take column definitions in parentheses as the text of a struct's fields."""
        self._expect_symbol("(")
        start, depth = self._at, 1
        while depth:
            if self._at >= len(self._tokens):
                raise self._error(")")
            token = self._tokens[self._at]
            depth += (token.text in "(<") - (token.text in ")>") if _is_symbol(token) else 0
            self._at += 1
        return self._to_definitions(self._tokens[start : self._at - 1])

    def _to_definitions(self, tokens: Sequence[Token]) -> str:
        hints = {
            "DEFAULT": "write the value with each row",
            "GENERATED": "define a computed column with define_columns",
            "PRIMARY": "Lance tables have no keys",
            "FOREIGN": "Lance tables have no keys",
            "CONSTRAINT": "Lance tables have no constraints but NOT NULL",
            "CHECK": "Lance tables have no constraints but NOT NULL",
            "UNIQUE": "Lance tables have no constraints but NOT NULL",
            "FIRST": "new columns come last",
            "AFTER": "new columns come last",
        }
        parts = list[str]()
        for place, token in enumerate(tokens):
            is_name = place == 0 or tokens[place - 1].token_type is TokenType.COMMA
            if is_name and place + 1 < len(tokens) and tokens[place + 1].token_type is TokenType.DOT:
                name = "".join(part.text for part in tokens[place : place + 3])
                raise self._unsupported_error(
                    f"{name}, a field of a struct,",
                    "new columns with structs are written s STRUCT<x: INT>, and a struct gets fields by an append with "
                    "schema_mode='evolve'",
                )
            if not is_name and _is_word(token, *hints):
                raise self._unsupported_error(token.text.upper(), hints[token.text.upper()])
            parts.append(self._spell(token))
        return " ".join(parts)

    def _spell(self, token: Token) -> str:
        if token.token_type in (TokenType.STRING, TokenType.RAW_STRING):
            escaped = token.text.replace("\\", "\\\\").replace("'", "\\'")
            return f"'{escaped}'"
        return self._text[token.start : token.end + 1]

    def _parse_alter(self) -> Statement:
        if self._is("VIEW", "NAMESPACE", "DATABASE", "SCHEMA"):
            raise self._unsupported_error(f"ALTER {self._peek_text().upper()}", "only tables can be altered")
        self._expect("TABLE")
        table = self._take_name()
        parse: Callable[[Name], Statement] | None = {
            "ADD": self._parse_add,
            "DROP": self._parse_alter_drop,
            "RENAME": self._parse_rename,
            "ALTER": self._parse_alter_column,
            "CHANGE": self._parse_alter_column,
            "SET": self._parse_set,
            "UNSET": self._parse_unset,
            "CREATE": self._parse_alter_create,
        }.get(self._peek_text().upper())
        if parse is None:
            word = self._peek_text().upper() or "nothing"
            raise self._unsupported_error(f"ALTER TABLE … {word}", "see the table of statements in docs/sql.md")
        self._at += 1
        return parse(table)

    def _parse_add(self, table: Name) -> Statement:
        if self._is("PARTITION", "CONSTRAINT", "IF"):
            raise self._unsupported_error(f"ADD {self._peek_text().upper()}", "Lance tables have none")
        if not (self._accept("COLUMN") or self._accept("COLUMNS")):
            raise self._error("COLUMNS")
        if self._is("IF"):
            raise self._unsupported_error("ADD COLUMN IF NOT EXISTS", "see which columns there are with DESCRIBE")
        if self._is_symbol("("):
            return AddColumns(table, self._take_definitions())
        start, self._at = self._at, len(self._tokens)
        if start == self._at:
            raise self._error("a column")
        return AddColumns(table, self._to_definitions(self._tokens[start:]))

    def _parse_alter_drop(self, table: Name) -> Statement:
        if self._accept("INDEX"):
            exists = self._accept("IF", "EXISTS")
            return DropIndex(table, self._take_identifier(), exists)
        for kind in ("tag", "branch"):
            if self._accept(kind.upper()):
                exists = self._accept("IF", "EXISTS")
                return DropRef(table, kind, self._take_identifier(), exists)
        if not (self._accept("COLUMN") or self._accept("COLUMNS")):
            raise self._unsupported_error(f"DROP {self._peek_text().upper()}", "Lance tables have none")
        exists = self._accept("IF", "EXISTS")
        if self._is_symbol("("):
            return DropColumns(table, self._take_columns(), exists)
        columns = [self._take_field()]
        while self._accept_symbol(","):
            columns.append(self._take_field())
        return DropColumns(table, tuple(columns), exists)

    def _parse_rename(self, table: Name) -> Statement:
        if self._accept("TO"):
            return MoveTable(table, self._take_name())
        self._expect("COLUMN")
        column = self._take_field()
        self._expect("TO")
        return RenameColumn(table, column, self._take_identifier())

    def _parse_alter_column(self, table: Name) -> Statement:
        self._accept("COLUMN")
        column = self._take_field()
        if self._accept("TYPE"):
            start, self._at = self._at, len(self._tokens)
            if any(_is_word(token, "FIRST", "AFTER", "COMMENT", "NOT") for token in self._tokens[start:]):
                raise self._unsupported_error("TYPE together with other changes", "write a statement for each")
            return AlterColumn(table, column, type=self._slice(start, self._at))
        if self._accept("SET", "NOT", "NULL"):
            return AlterColumn(table, column, nullable=False)
        if self._accept("DROP", "NOT", "NULL"):
            return AlterColumn(table, column, nullable=True)
        hints = {
            "COMMENT": "a comment is given when the column is created",
            "FIRST": "columns keep their order",
            "AFTER": "columns keep their order",
        }
        word = self._peek_text().upper()
        raise self._unsupported_error(
            f"ALTER COLUMN … {word}", hints.get(word, "TYPE, SET NOT NULL and DROP NOT NULL are")
        )

    def _parse_set(self, table: Name) -> Statement:
        if not self._accept("TBLPROPERTIES"):
            raise self._unsupported_error(f"SET {self._peek_text().upper()}", "SET TBLPROPERTIES is")
        return SetProperties(table, {name: _to_text(value) for name, value in self._take_options().items()})

    def _parse_unset(self, table: Name) -> Statement:
        self._expect("TBLPROPERTIES")
        exists = self._accept("IF", "EXISTS")
        self._expect_symbol("(")
        names = [self._take_key()]
        while self._accept_symbol(","):
            names.append(self._take_key())
        self._expect_symbol(")")
        return UnsetProperties(table, tuple(names), exists)

    def _parse_alter_create(self, table: Name) -> Statement:
        replaces = self._accept("OR", "REPLACE")
        for kind in ("tag", "branch"):
            if self._accept(kind.upper()):
                return self._parse_ref(table, kind, replaces=replaces)
        self._expect("INDEX")
        if replaces:
            raise self._unsupported_error(
                "CREATE OR REPLACE INDEX", "drop the index first, or call create_index(replace=True)"
            )
        exists = self._accept("IF", "NOT", "EXISTS")
        return self._parse_index(table, self._take_identifier(), if_not_exists=exists)

    def _parse_ref(self, table: Name, kind: str, *, replaces: bool) -> Statement:
        if replaces and kind == "branch":
            raise self._unsupported_error("CREATE OR REPLACE BRANCH", "drop the branch first")
        exists = self._accept("IF", "NOT", "EXISTS")
        if exists and replaces:
            raise InvalidInputError("CREATE OR REPLACE TAG takes no IF NOT EXISTS")
        name, version, tag = self._take_identifier(), None, None
        if self._accept("AS", "OF"):
            if self._accept("VERSION"):
                version = self._take_number("a version")
            elif self._accept("TAG"):
                tag = self._take_identifier()
            else:
                raise self._unsupported_error(f"AS OF {self._peek_text().upper()}", "VERSION and TAG are")
        if self._is("RETAIN", "WITH"):
            raise self._unsupported_error(self._peek_text().upper(), "tags and branches stay until they are dropped")
        return CreateRef(table, kind, name, version, tag, exists, replaces)

    def _parse_index(self, table: Name, name: str, *, if_not_exists: bool) -> Statement:
        kind = self._take_identifier() if self._accept("USING") else None
        columns, options = self._take_columns(), dict[str, Any]()
        if len(columns) != 1:
            raise self._unsupported_error("an index of several columns", "create one for each")
        if self._accept("OPTIONS") or self._accept("WITH"):
            options = self._take_options()
        return CreateIndex(table, name, columns[0], kind, options, if_not_exists)

    def _parse_drop(self) -> Statement:
        if self._accept("TABLE"):
            exists = self._accept("IF", "EXISTS")
            table = self._take_name()
            self._accept("PURGE")
            return DropTable(table, exists)
        if self._accept("NAMESPACE") or self._accept("DATABASE") or self._accept("SCHEMA"):
            exists = self._accept("IF", "EXISTS")
            namespace, cascade = self._take_name(), self._accept("CASCADE")
            if not cascade:
                self._accept("RESTRICT")
            return DropNamespace(namespace, exists, cascade)
        if self._accept("INDEX"):
            exists = self._accept("IF", "EXISTS")
            name = self._take_identifier()
            self._expect("ON")
            self._accept("TABLE")
            return DropIndex(self._take_name(), name, exists)
        raise self._unsupported_error(f"DROP {self._peek_text().upper()}", "spark.sql drops what is Spark's own")

    def _parse_truncate(self) -> Statement:
        self._expect("TABLE")
        table = self._take_name()
        if self._is("PARTITION"):
            raise self._unsupported_error("PARTITION", "Lance tables have no partitions: use DELETE FROM … WHERE")
        return Truncate(table)

    def _parse_create_namespace(self) -> Statement:
        exists = self._accept("IF", "NOT", "EXISTS")
        namespace, properties = self._take_name(), dict[str, str]()
        while self._at < len(self._tokens):
            if self._accept("COMMENT"):
                properties["comment"] = self._take_string("a comment")
            elif self._accept("WITH", "DBPROPERTIES") or self._accept("WITH", "PROPERTIES"):
                properties |= {name: _to_text(value) for name, value in self._take_options().items()}
            elif self._accept("LOCATION"):
                properties["location"] = self._take_string("a location")
            else:
                raise self._error("COMMENT, LOCATION or WITH PROPERTIES")
        return CreateNamespace(namespace, exists, properties)

    def _parse_use(self) -> Statement:
        if self._is("CATALOG"):
            raise self._unsupported_error("USE CATALOG", "write USE and a namespace with all its levels")
        for word in ("NAMESPACE", "DATABASE", "SCHEMA"):
            if self._accept(word):
                break
        return Use(self._take_name())

    # Showing

    def _parse_show(self) -> Statement:
        word = self._take_word()
        match word:
            case "NAMESPACES" | "DATABASES" | "SCHEMAS" | "TABLES":
                namespace = self._take_name() if self._accept("IN") or self._accept("FROM") else None
                pattern = None
                if self._accept("LIKE") or self._at < len(self._tokens):
                    pattern = self._take_string("a pattern")
                return ShowNames("tables" if word == "TABLES" else "namespaces", namespace, pattern)
            case "CREATE":
                self._expect("TABLE")
                table = self._take_name()
                if self._is("AS"):
                    raise self._unsupported_error("AS SERDE", "it is for Hive's tables")
                return ShowOfTable("create", table)
            case "TBLPROPERTIES":
                table, key = self._take_name(), None
                if self._accept_symbol("("):
                    key = self._take_key()
                    self._expect_symbol(")")
                return ShowOfTable("properties", table, key)
            case "COLUMNS" | "INDEX" | "INDEXES" | "TAG" | "TAGS" | "BRANCH" | "BRANCHES":
                what = {"COLUMNS": "columns", "INDEX": "indices", "INDEXES": "indices", "TAG": "tags", "TAGS": "tags"}
                if not (self._accept("FROM") or self._accept("IN") or self._accept("ON")):
                    raise self._error("FROM")
                table = self._take_name()
                if word == "COLUMNS" and (self._accept("FROM") or self._accept("IN")):
                    table = (*self._take_name(), table[-1])
                return ShowOfTable(what.get(word, "branches"), table)
        raise self._unsupported_error(f"SHOW {word}", "spark.sql shows what is Spark's own")

    def _parse_describe(self) -> Statement:
        if self._accept("HISTORY"):
            table = self._take_name()
            return DescribeHistory(table, self._take_number("a number") if self._accept("LIMIT") else None)
        if self._is("DETAIL", "FUNCTION", "CATALOG", "PROCEDURE"):
            raise self._unsupported_error(
                f"DESCRIBE {self._peek_text().upper()}", "DESCRIBE EXTENDED shows all of a table"
            )
        if self._accept("NAMESPACE") or self._accept("DATABASE") or self._accept("SCHEMA"):
            self._accept("EXTENDED")
            return DescribeNamespace(self._take_name())
        self._accept("QUERY")
        if self._is("SELECT", "WITH", "FROM", "VALUES") or self._is_symbol("("):
            return DescribeQuery(self._take_query())
        self._accept("TABLE")
        extended = self._accept("EXTENDED") or self._accept("FORMATTED")
        table = self._take_name()
        for clause in ("PARTITION", "AS"):
            if self._is(clause):
                hint = "Lance tables have no partitions" if clause == "PARTITION" else "read the columns it returns"
                raise self._unsupported_error(clause, hint)
        column = self._take_field() if self._at < len(self._tokens) else None
        return Describe(table, extended, column)

    # Maintenance

    def _parse_optimize(self) -> Statement:
        table = self._take_name()
        for word, hint in (
            ("WHERE", "all small fragments are compacted"),
            ("ZORDER", "Lance tables are not clustered: create an index"),
            ("FULL", "Lance tables are not clustered"),
        ):
            if self._is(word):
                raise self._unsupported_error(f"OPTIMIZE … {word}", hint)
        return Optimize(table, self._take_options() if self._accept("WITH") else {})

    def _parse_vacuum(self) -> Statement:
        table, hours, dry_run = self._take_name(), None, False
        if self._is("WITH", "LITE", "FULL", "USING"):
            raise self._unsupported_error(f"VACUUM … {self._peek_text().upper()}", "write RETAIN and a number of HOURS")
        while self._at < len(self._tokens):
            if hours is None and self._accept("RETAIN"):
                hours = float(self._take_literal("a number", (int, float)))
                self._expect("HOURS")
            elif not dry_run and self._accept("DRY", "RUN"):
                dry_run = True
            else:
                raise self._error("RETAIN … HOURS or DRY RUN")
        return Vacuum(table, hours, dry_run)

    def _parse_restore(self) -> Statement:
        self._accept("TABLE")
        table = self._take_name()
        self._expect("TO")
        if self._accept("VERSION"):
            self._expect("AS")
            self._expect("OF")
            version = self._take_literal("a version or the name of a tag", (int, str))
            return Restore(table, tag=version) if isinstance(version, str) else Restore(table, version)
        self._expect("TIMESTAMP")
        self._expect("AS")
        self._expect("OF")
        return Restore(table, as_of=str(self._take_literal("a time, as text", object)))

    # Parts of statements

    def _take_ctes(self) -> str:
        """Take WITH and its queries, up to INSERT."""
        start = self._at
        while not self._is("INSERT"):
            if self._is_symbol("("):
                self._skip_parentheses()
            else:
                self._at += 1
        return self._slice(start, self._at)

    def _take_query(self) -> str:
        """Take all that is left, which is a query. `TABLE t` becomes a SELECT."""
        start, self._at = self._at, len(self._tokens)
        if start == self._at:
            raise self._error("a query")
        tokens = self._tokens[start:]
        if _is_word(tokens[0], "TABLE") and len(tokens) > 1 and tokens[1].text != "(":
            return f"SELECT * FROM {self._slice(start + 1, self._at)}"  # noqa: S608
        if _is_word(tokens[0], "VALUES"):
            return self._replace_defaults(tokens)
        if not (_is_word(tokens[0], "SELECT", "WITH", "FROM", "VALUES", "TABLE") or tokens[0].text == "("):
            self._at = start
            raise self._error("a query, or VALUES")
        if _is_word(tokens[0], "WITH") and _first_word(tokens) not in ("SELECT", "FROM", "VALUES", "TABLE"):
            raise self._unsupported_error("a statement inside a statement", "write a query")
        return self._slice(start, self._at)

    def _replace_defaults(self, tokens: Sequence[Token]) -> str:
        """Return the text of VALUES, with NULL where a value is the word DEFAULT: no column has another default."""
        start, text = tokens[0].start, self._text[tokens[0].start : tokens[-1].end + 1]
        for before, token, after in reversed(list(zip(tokens, tokens[1:], tokens[2:], strict=False))):
            if _is_word(token, "DEFAULT") and before.text in ("(", ",") and after.text in (")", ","):
                text = f"{text[: token.start - start]}NULL{text[token.end + 1 - start :]}"
        return text

    def _take_expression(self, *ends: str) -> str:
        """Take the text of an expression, up to one of these words or symbols outside of parentheses and CASE."""
        start, depth, cases = self._at, 0, 0
        while self._at < len(self._tokens):
            token = self._tokens[self._at]
            word = token.text.upper() if token.token_type is TokenType.VAR or _is_symbol(token) else ""
            if depth == cases == 0 and word in ends and not (self._is_column_part() and word not in _CLOSING):
                break
            if _is_symbol(token):
                depth += (token.text in _OPENING) - (token.text in _CLOSING)
            elif not self._is_column_part():
                cases += _is_word(token, "CASE") - (cases > 0 and _is_word(token, "END"))
            if depth < 0:
                break
            if depth == cases == 0 and self._at > start and word in _CLAUSES and self._is_after_operand():
                raise self._unsupported_error(f"{word} after an expression", _CLAUSES[word])
            self._at += 1
        if start == self._at or depth > 0 or cases:
            raise self._error("an expression" if start == self._at else ")" if depth > 0 else "END")
        return self._slice(start, self._at)

    def _is_column_part(self) -> bool:
        """Return whether the next token is a part of a name after a dot, which may be any word."""
        return self._at > 0 and self._tokens[self._at - 1].token_type is TokenType.DOT

    def _is_after_operand(self) -> bool:
        """Return whether the token before the next one ends a value, so that the next one begins no other."""
        before = self._tokens[self._at - 1]
        if _is_symbol(before):
            return before.text in _CLOSING or before.token_type is TokenType.NUMBER
        return not _is_word(before, *_OPERATORS)

    def _skip_parentheses(self) -> None:
        depth = 0
        while True:
            if self._at >= len(self._tokens):
                raise self._error(")")
            token = self._tokens[self._at]
            depth += (token.text in _OPENING) - (token.text in _CLOSING) if _is_symbol(token) else 0
            self._at += 1
            if not depth:
                return

    def _take_name(self) -> Name:
        parts = [self._take_identifier()]
        while self._accept_symbol("."):
            parts.append(self._take_identifier())
        return tuple(parts)

    def _take_field(self) -> str:
        """Take a column, or a field of a struct as `a.b`."""
        return ".".join(map(_quote_if_dotted, self._take_name()))

    def _take_identifier(self) -> str:
        token = self._peek()
        if token is None or token.token_type not in (TokenType.VAR, TokenType.IDENTIFIER) or not token.text:
            raise self._error("a name")
        self._at += 1
        return str(token.text)

    def _take_columns(self) -> tuple[str, ...]:
        return tuple(".".join(map(_quote_if_dotted, name)) for name in self._take_names())

    def _take_names(self) -> tuple[Name, ...]:
        self._expect_symbol("(")
        names = [self._take_name()]
        while self._accept_symbol(","):
            names.append(self._take_name())
        self._expect_symbol(")")
        return tuple(names)

    def _is_alias(self) -> bool:
        token = self._peek()
        if token is None:
            return False
        if token.token_type is TokenType.IDENTIFIER:
            return True
        others = {"SELECT", "VALUES", "TABLE", "WITH", "FROM", "BY", "REPLACE", "DEFAULT", "PARTITION", "IF", "AS"}
        return token.token_type is TokenType.VAR and token.text.upper() not in _ALIAS_ENDS | others

    def _take_alias(self) -> str | None:
        if self._accept("AS"):
            return self._take_identifier()
        return self._take_identifier() if self._is_alias() else None

    def _take_options(self) -> dict[str, Any]:
        self._expect_symbol("(")
        options = dict[str, Any]()
        while not self._accept_symbol(")"):
            if options:
                self._expect_symbol(",")
            key = self._take_key()
            if not self._accept_symbol("="):
                self._accept_symbol("==")
            if key in options:
                raise InvalidInputError(f"{self._what}: {key} is given twice")
            options[key] = self._take_literal(f"a value of {key}", object)
        return options

    def _take_key(self) -> str:
        token = self._peek()
        if token is not None and token.token_type in (TokenType.STRING, TokenType.RAW_STRING):
            self._at += 1
            return str(token.text)
        return ".".join(self._take_name())

    def _take_literal(self, what: str, kinds: Any) -> Any:
        token = self._peek()
        if token is None:
            raise self._error(what)
        is_negative = self._accept_symbol("-")
        token = self._peek()
        value: Any = None
        if token is not None and token.token_type in (TokenType.STRING, TokenType.RAW_STRING) and not is_negative:
            value = token.text
        elif token is not None and token.token_type is TokenType.NUMBER:
            value = float(token.text) if re.search(r"[.eE]", token.text) else int(token.text)
            value = -value if is_negative else value
        elif _is_word(token, "TRUE", "FALSE"):
            value = _is_word(token, "TRUE")
        elif self._is_symbol(":"):
            self._at += 1
            name = self._take_identifier()
            if name not in self._args:
                raise InvalidInputError(f"no value is given for the parameter :{name}")
            value, self._at = self._args[name], self._at - 1
        if value is None or not isinstance(value, kinds) or (isinstance(value, bool) and kinds is not object):
            raise self._error(what)
        self._at += 1
        return value

    def _take_number(self, what: str) -> int:
        return int(self._take_literal(what, int))

    def _take_string(self, what: str) -> str:
        return str(self._take_literal(f"{what}, as text", str))

    # Tokens

    def _peek(self) -> Token | None:
        return self._tokens[self._at] if self._at < len(self._tokens) else None

    def _peek_text(self) -> str:
        token = self._peek()
        return "" if token is None else str(token.text)

    def _take_word(self) -> str:
        return self._take_identifier().upper()

    def _is(self, *words: str) -> bool:
        return _is_word(self._peek(), *words)

    def _next_is(self, *words: str) -> bool:
        """Return whether the token after the next one is one of these words or symbols."""
        token = self._tokens[self._at + 1] if self._at + 1 < len(self._tokens) else None
        return _is_word(token, *words) or (token is not None and _is_symbol(token) and token.text in words)

    def _is_symbol(self, symbol: str) -> bool:
        token = self._peek()
        return token is not None and _is_symbol(token) and token.text == symbol

    def _accept(self, *words: str) -> bool:
        """Take words that follow each other, or none of them."""
        tokens = self._tokens[self._at : self._at + len(words)]
        if len(tokens) < len(words) or not all(map(_is_word, tokens, words)):
            return False
        self._at += len(words)
        return True

    def _accept_symbol(self, symbol: str) -> bool:
        is_next = self._is_symbol(symbol)
        self._at += is_next
        return is_next

    def _expect(self, word: str) -> None:
        if not self._accept(word):
            raise self._error(word)

    def _expect_symbol(self, symbol: str) -> None:
        if not self._accept_symbol(symbol):
            raise self._error(symbol)

    def _expect_end(self) -> None:
        if self._at < len(self._tokens):
            raise self._error("the end of the statement")

    def _slice(self, start: int, end: int) -> str:
        """Return the text from one token to another, as the user wrote it."""
        return self._text[self._tokens[start].start : self._tokens[end - 1].end + 1] if end > start else ""

    def _error(self, expected: str) -> InvalidInputError:
        token = self._peek()
        found = "the text ends" if token is None else f"{shorten(self._text[token.start : token.end + 1])!r} stands"
        return InvalidInputError(f"{shorten(self._what) or 'SQL'}: {found} where {expected} is expected")

    def _unsupported_error(self, clause: str, hint: str) -> UnsupportedOperationError:
        what = shorten(self._what) or "SQL"
        return UnsupportedOperationError(f"{what}: {shorten(clause)} is not supported; {hint}")


def _quote_if_dotted(name: str) -> str:
    return f"`{name}`" if "." in name else name


def _replace_default(expression: str) -> str:
    return "NULL" if expression.upper() == "DEFAULT" else expression


def _to_text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
