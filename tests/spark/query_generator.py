"""Tables and random queries over them: names that hide each other, nulls, NaN, decimals, times, all kinds of joins."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from random import Random
from typing import Any

import pyarrow as pa

NAN = float("nan")
WORDS = ("", "a", "ab", "b%", "x_y", "Zoë", "null", "k")

COLUMNS: dict[str, dict[str, pa.DataType]] = {
    "a": {
        "id": pa.int32(),
        "k": pa.int64(),
        "name": pa.string(),
        "x": pa.float64(),
        "f": pa.float32(),
        "d": pa.decimal128(10, 2),
        "day": pa.date32(),
        "ts": pa.timestamp("us", "UTC"),
        "flag": pa.bool_(),
        "s": pa.struct([("k", pa.int32()), ("name", pa.string())]),
        "tags": pa.list_(pa.string()),
        "wide": pa.string(),
    },
    "b": {
        "id": pa.int16(),
        "k": pa.int32(),
        "Name": pa.string(),
        "y": pa.float64(),
        "d": pa.decimal128(12, 3),
        "day": pa.date32(),
        "local": pa.timestamp("us"),
        "a": pa.int32(),
        "wide": pa.string(),
    },
    "c": {"k": pa.int8(), "u": pa.uint32(), "name": pa.string(), "ts": pa.timestamp("ms", "UTC"), "b": pa.int64()},
}
"""Names are shared on purpose: columns are called like tables, and fields like columns."""


def make_tables(rows: int = 20) -> dict[str, pa.Table]:
    """The tables, with rows of every kind of value."""
    random = Random(21)
    return {
        table: pa.table(
            {name: pa.array([_value(random, dtype) for _ in range(rows)], dtype) for name, dtype in columns.items()}
        )
        for table, columns in COLUMNS.items()
    }


def _value(random: Random, dtype: Any) -> Any:
    if random.random() < 0.15:
        return None
    match dtype:
        case pa.StructType():
            return {each.name: _value(random, each.type) for each in dtype}
        case pa.ListType():
            return [random.choice(WORDS) for _ in range(random.randrange(3))]
        case pa.Decimal128Type():
            return Decimal(random.randrange(-300, 300)).scaleb(-dtype.scale)
    if pa.types.is_integer(dtype):
        return random.randrange(0 if pa.types.is_unsigned_integer(dtype) else -3, 9)
    if pa.types.is_floating(dtype):
        return random.choice((NAN, 0.0, -0.0, 0.5, -1.5, 2.0, 0.1, float("inf"), 3.0))
    if pa.types.is_date(dtype):
        return date(2020, 2, 27) + timedelta(days=random.randrange(5))
    if pa.types.is_timestamp(dtype):
        moment = datetime(2020, 2, 28, tzinfo=UTC if dtype.tz else None)
        return moment + timedelta(hours=random.randrange(96), milliseconds=random.choice((0, 0, 500)))
    return random.random() < 0.5 if pa.types.is_boolean(dtype) else random.choice(WORDS)


@dataclass(frozen=True)
class Column:
    """A column in scope: how it may be written, and its kind of type."""

    name: str
    kind: str
    source: str = ""
    is_unique: bool = True
    """Whether no other column in scope has its name."""

    def write(self, random: Random) -> str:
        """The column, mostly with its qualifier; names are not case sensitive."""
        name = self.name if random.random() < 0.9 else self.name.upper()
        name = f"`{name}`" if random.random() < 0.05 else name
        plain = 0.3 if self.is_unique else 0.005
        return f"{self.source}.{name}" if self.source and random.random() >= plain else name


def _unique(columns: list[Column], source: str) -> list[Column]:
    """The columns of a relation that can be named; there are always some."""
    names = [column.name.lower() for column in columns]
    return [replace(each, source=source) for each in columns if names.count(each.name.lower()) == 1] or columns


def in_scope(columns: list[Column]) -> list[Column]:
    """The columns, each with whether its name is unique."""
    names = [column.name.lower() for column in columns]
    return [replace(column, is_unique=names.count(column.name.lower()) == 1) for column in columns]


KINDS: list[tuple[Callable[[Any], bool], str]] = [
    (pa.types.is_integer, "int"),
    (pa.types.is_floating, "float"),
    (pa.types.is_decimal, "decimal"),
    (pa.types.is_date, "date"),
    (pa.types.is_timestamp, "ts"),
    (pa.types.is_boolean, "bool"),
    (pa.types.is_struct, "struct"),
    (pa.types.is_list, "list"),
    (pa.types.is_string, "text"),
]

LITERALS: dict[str, tuple[str, ...]] = {
    "int": ("0", "1", "3", "-2", "7", "2.5", "4.0", "'3'", "1000", "3000000000", "5L", "1e0", "NULL"),
    "float": ("0", "0.0", "-0.0", "0.1", "0.5", "2", "1.5D", "2e0", "'0.5'", "float('NaN')", "100000000000", "NULL"),
    "decimal": ("0", "1", "1.5", "0.25", "-2.00", "1.005", "'1.5'", "1e0", "99999999999999", "2.50BD"),
    "date": (
        "date '2020-02-28'",
        "'2020-02-29'",
        "date '2020-02-01' + interval '1' month",
        "timestamp '2020-02-28 12:00:00'",
        "date '2020-03-01' - interval 2 days",
        "cast('2020-02-27' as date)",
        "NULL",
    ),
    "ts": (
        "timestamp '2020-02-28 12:00:00'",
        "'2020-02-29'",
        "date '2020-02-29'",
        "timestamp_ntz '2020-02-29 00:00:00'",
        "timestamp '2020-03-01 00:00:00.5'",
        "timestamp '2020-02-29 05:30:00+01:00'",
        "'2020-02-28 20:30:00'",
    ),
    "bool": ("true", "false", "NULL"),
    "text": ("'a'", "'ab'", "''", "'b%'", "'Zoë'", '"x_y"', "'a' 'b'", "'\\u0061'", "r'a'", "'null'", "NULL"),
}
JOINS = (
    *("JOIN", "INNER JOIN", "LEFT JOIN", "LEFT OUTER JOIN", "RIGHT JOIN", "FULL OUTER JOIN", "CROSS JOIN", ","),
    *("LEFT SEMI JOIN", "LEFT ANTI JOIN", "ANTI JOIN", "NATURAL JOIN"),
)
PATTERNS = ("'a%'", "'%b'", "'_'", "'x_y'", "'b\\%'", "'%'", "''", "'%o%'")
COMPARISONS = ("=", "<>", "!=", "<", "<=", ">", ">=", "<=>")


@dataclass
class Generator:
    """Makes queries; the same seed makes the same ones."""

    random: Random
    ctes: dict[str, list[Column]] = field(default_factory=dict)
    depth: int = 0

    def query(self) -> str:
        """A whole query."""
        text = ""
        if self.random.random() < 0.35:
            names = self.random.sample(["a", "b", "w", "k", "v"], self.random.randrange(1, 3))
            definitions = []
            for name in names:
                body, columns = self.select([])
                definitions.append(f"{name} AS ({body})")
                self.ctes = {**self.ctes, name: columns}
            text = f"WITH {', '.join(definitions)} "
        body, columns = self.select([])
        if self.random.random() < 0.2:
            other = self._same_shape(columns)
            if other:
                kind = self.random.choice(["UNION ALL", "UNION", "EXCEPT", "INTERSECT", "MINUS"])
                body = f"{body} {kind} {other}"
        order = ""
        if self.random.random() < 0.3:
            order = f" ORDER BY {', '.join(str(place + 1) for place in range(len(columns)))}"
            order += f" LIMIT {self.random.randrange(1, 12)}" if self.random.random() < 0.6 else ""
        return text + body + order

    def _same_shape(self, columns: list[Column]) -> str | None:
        sources, text = self.relations([])
        items = [self._pick(sources, column.kind) for column in columns]
        if None in items:
            return None
        chosen = ", ".join(item.write(self.random) for item in items if item)
        return f"SELECT {chosen} FROM {text}{self.where(sources, [])}"

    def select(self, outer: list[Column]) -> tuple[str, list[Column]]:
        """A SELECT, and the columns that it has."""
        self.depth += 1
        sources, text = self.relations(outer)
        view = ""
        if self.random.random() < 0.08 and (lists := [each for each in sources if each.kind == "list"]):
            view = f" LATERAL VIEW {self.random.choice(['', 'OUTER '])}explode({lists[0].write(self.random)}) e AS tag"
            sources = [*sources, Column("tag", "text", "e")]
        where = self.where(sources, outer)
        if self.random.random() < 0.3:
            body, columns = self.grouped(sources, f"{text}{view}{where}")
        else:
            body, columns = self.plain(sources, f"{text}{view}{where}")
        self.depth -= 1
        return body, columns

    def relations(self, outer: list[Column]) -> tuple[list[Column], str]:
        """Relations of a FROM, and what they bring into scope."""
        text, columns = self.relation()
        for _ in range(self.random.choice((0, 0, 1, 1, 2)) if self.depth < 3 else 0):
            taken = {column.source for column in columns}
            right, more = next(
                made
                for made in iter(self.relation, None)
                if not {c.source for c in made[1]} & taken or self.random.random() < 0.02
            )
            kind = self.random.choice(JOINS)
            both = in_scope([*columns, *more])
            if kind in ("CROSS JOIN", ",") or kind.startswith("NATURAL"):
                text = f"{text}{'' if kind == ',' else ' '}{kind} {right}"
            elif self.random.random() < 0.15 and (
                shared := {c.name.lower() for c in columns} & {c.name.lower() for c in more}
            ):
                text = f"{text} {kind} {right} USING ({self.random.choice(sorted(shared))})"
            else:
                conditions = [self.join_condition(both[: len(columns)], both[len(columns) :])]
                if self.random.random() < 0.5:
                    conditions.append(self.condition(both, outer))
                text = f"{text} {kind} {right} ON {' AND '.join(conditions)}"
            columns = columns if "SEMI" in kind or "ANTI" in kind else both
        return columns, text

    def relation(self) -> tuple[str, list[Column]]:
        """A table, a CTE or a subquery."""
        roll = self.random.random()
        if roll < 0.12 and self.depth < 3:
            body, columns = self.select([])
            name = self.random.choice(["q", "a", "sub", "k"])
            return f"({body}) {self.random.choice(['AS ', ''])}{name}", _unique(columns, name)
        if roll < 0.3 and self.ctes:
            table = self.random.choice(sorted(self.ctes))
            columns = self.ctes[table]
        else:
            table = self.random.choice(sorted(COLUMNS))
            columns = self.ctes.get(table) or [
                Column(name, next(kind for test, kind in KINDS if test(dtype)))
                for name, dtype in COLUMNS[table].items()
            ]
        alias = self.random.choice([table, table, "t", "u", "b", "s", "day"])
        text = (
            table
            if alias == table and self.random.random() < 0.6
            else f"{table} {self.random.choice(['AS ', ''])}{alias}"
        )
        if self.random.random() < 0.03:
            text = f"({text})"
        return text, _unique(columns, alias)

    def join_condition(self, left: list[Column], right: list[Column]) -> str:
        """An equality of two columns of the same kind, where there are some."""
        for _ in range(5):
            one = self.random.choice(left)
            other = self._pick(right, one.kind)
            if other is not None and one.kind not in ("struct", "list", "bool"):
                return f"{one.write(self.random)} = {other.write(self.random)}"
        return "true"

    def _pick(self, columns: list[Column], kind: str) -> Column | None:
        same = [each for each in columns if each.kind == kind]
        return self.random.choice(same) if same else None

    def where(self, sources: list[Column], outer: list[Column]) -> str:
        """A WHERE, or none."""
        if self.random.random() < 0.25:
            return ""
        conditions = [self.condition(sources, outer) for _ in range(self.random.choice((1, 1, 2, 3)))]
        if self.random.random() < 0.15 and self.depth < 3:
            conditions.append(self.subquery_condition(sources))
        return f" WHERE {' AND '.join(conditions)}"

    def subquery_condition(self, sources: list[Column]) -> str:
        """A condition with a subquery, which may look at the query around it."""
        text, columns = self.relation()
        self.depth += 1
        column = self.random.choice(sources)
        other = self._pick(columns, column.kind)
        inner = self.condition(columns, sources)
        self.depth -= 1
        if other is None or column.kind in ("struct", "list"):
            return f"EXISTS (SELECT * FROM {text} WHERE {inner})"
        if self.random.random() < 0.5:
            equal = f"{other.write(self.random)} = {column.write(self.random)}"
            what = self.random.choice(["*", "1"])
            return f"{self._not()}EXISTS (SELECT {what} FROM {text} WHERE {inner} AND {equal})"
        chosen = other.write(self.random)
        return f"{column.write(self.random)} {self._not()}IN (SELECT {chosen} FROM {text} WHERE {inner})"

    def _not(self) -> str:
        return self.random.choice(["", "NOT "])

    def condition(self, columns: list[Column], outer: list[Column], depth: int = 0) -> str:
        """A condition on columns in scope, now and then on one of a query around."""
        roll = self.random.random()
        if depth < 2 and roll < 0.25:
            parts = [self.condition(columns, outer, depth + 1) for _ in range(2)]
            return f"({self.random.choice([' OR ', ' AND ']).join(parts)})"
        if depth < 2 and roll < 0.33:
            return f"NOT ({self.condition(columns, outer, depth + 1)})"
        column = self.random.choice(outer if outer and self.random.random() < 0.1 else columns)
        return self.predicate(column, columns)

    def predicate(self, column: Column, columns: list[Column]) -> str:
        """A condition on one column, or on two of a kind."""
        name, choose = column.write(self.random), self.random.choice
        if column.kind in ("struct", "list") or self.random.random() < 0.12:
            if column.kind == "struct" and self.random.random() < 0.5:
                return f"{name}.k > 2"
            return f"{name} IS {choose(['', 'NOT '])}NULL"
        if column.kind == "bool" and self.random.random() < 0.5:
            return choose([name, f"NOT {name}", f"{name} IS TRUE"])
        if column.kind == "text" and self.random.random() < 0.35:
            return f"{name} {choose(['', 'NOT '])}LIKE {choose(PATTERNS)}"
        literals = LITERALS[column.kind]
        roll = self.random.random()
        if roll < 0.12 and (other := self._pick(columns, column.kind)) is not None:
            return f"{name} {choose(COMPARISONS)} {other.write(self.random)}"
        if roll < 0.27:
            items = ", ".join(self.random.sample(literals, self.random.randrange(1, 3)))
            return f"{name} {choose(['', 'NOT '])}IN ({items})"
        if roll < 0.4:
            return f"{name} {choose(['', 'NOT '])}BETWEEN {choose(literals)} AND {choose(literals)}"
        if roll < 0.48:
            return f"{choose(literals)} {choose(COMPARISONS)} {name}"
        return f"{name} {choose(COMPARISONS)} {choose(literals)}"

    def plain(self, sources: list[Column], rest: str) -> tuple[str, list[Column]]:
        """Columns, expressions, windows or a star."""
        roll = self.random.random()
        if roll < 0.12:
            return f"SELECT * FROM {rest}", [replace(each, source="") for each in sources]
        if roll < 0.18:
            source = self.random.choice(sources).source
            kept = [replace(each, source="") for each in sources if each.source == source]
            return f"SELECT {source}.* FROM {rest}", kept
        items, columns = [], []
        for number in range(self.random.randrange(1, 4)):
            column = self.random.choice(sources)
            text, kind, name = column.write(self.random), column.kind, column.name
            if kind == "int" and self.random.random() < 0.3:
                text, name = f"{text} + 1", f"e{number}"
            elif kind == "struct" and self.random.random() < 0.5:
                text, kind, name = f"{text}.name", "text", "name"
            elif self.random.random() < 0.12 and kind not in ("struct", "list"):
                partition = self.random.choice(
                    [each for each in sources if each.kind not in ("struct", "list")] or [column]
                )
                over = f"OVER (PARTITION BY {partition.write(self.random)} ORDER BY {text})"
                text, kind, name = (
                    f"{self.random.choice(['rank()', 'count(*)', 'dense_rank()'])} {over}",
                    "int",
                    f"w{number}",
                )
            if self.random.random() < 0.4 or name != column.name:
                name = self.random.choice([f"e{number}", "k", "name", "id", "x"]) if name == column.name else name
                text = f"{text} AS {name}"
            items.append(text)
            columns.append(Column(name, kind))
        distinct = "DISTINCT " if self.random.random() < 0.1 else ""
        return f"SELECT {distinct}{', '.join(items)} FROM {rest}", columns

    def grouped(self, sources: list[Column], rest: str) -> tuple[str, list[Column]]:
        """Aggregates whose result does not depend on the order of rows."""
        keys = [
            each
            for each in self.random.sample(sources, min(len(sources), self.random.randrange(3)))
            if each.kind not in ("list", "struct")
        ]
        items, columns, texts = [], [], []
        for key in keys:
            texts.append(key.write(self.random))
            items.append(texts[-1])
            columns.append(Column(key.name, key.kind))
        for number in range(self.random.randrange(1, 4)):
            column = self.random.choice(sources)
            text, kind = "count(*)", "int"
            if column.kind in ("int", "decimal") and self.random.random() < 0.4:
                function = self.random.choice(["sum", "avg"]) if column.kind == "int" else "sum"
                text, kind = (
                    f"{function}({column.write(self.random)})",
                    "int" if function == "sum" and column.kind == "int" else "other",
                )
            elif column.kind not in ("struct", "list") and self.random.random() < 0.6:
                function = self.random.choice(["min", "max", "count", "count"])
                distinct = "DISTINCT " if self.random.random() < 0.2 else ""
                text, kind = (
                    f"{function}({distinct}{column.write(self.random)})",
                    "int" if function == "count" else column.kind,
                )
            if self.random.random() < 0.7 or self.depth > 1:
                name = self.random.choice([f"m{number}", f"k{number}"])
                items.append(f"{text} AS {name}")
                columns.append(Column(name, kind if kind != "other" else "list"))
            else:
                items.append(text)
                columns.append(Column(f"`{text}`", "list"))
        group = f" GROUP BY {', '.join(texts)}" if texts else ""
        having = " HAVING count(*) > 1" if texts and self.random.random() < 0.2 else ""
        return f"SELECT {', '.join(items)} FROM {rest}{group}{having}", columns


def make_query(seed: int) -> str:
    """The query of a seed."""
    return Generator(Random(seed)).query()
