"""A grammar of filters: those that Lance takes, for comparing; and wilder ones, for attacks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random

LITERALS = {
    "text": (
        "''",
        "'abc'",
        '"abc"',
        "'it''s'",
        "'\\'",
        "'%a_'",
        "'ünï日'",
        "'--'",
        "'/* no */'",
        '"a ""x"""',
        "'a\nb'",
    ),
    "number": ("0", "1", "-1", "- 1", "7", "9007199254740993", "-9223372036854775807", "18446744073709551615", "00712"),
    "float": ("0.1", "-2.5", "1e3", "1E-3", "3.", ".5", "0.30000000000000004", "123456789012345678901234567890"),
    "boolean": ("true", "FALSE"),
    "date": ("date '2020-01-02'", "DATE '2020-01-04'", "cast('2020-01-03' as date)", "'2020-01-03'::date"),
    "moment": (
        "timestamp '2020-01-02 00:00:00'",
        "timestamp(6) '2020-01-03 01:02:03.000456'",
        "to_timestamp('2020-01-02')",
    ),
    "decimal": ("decimal(10,2) '1.23'", "cast('2.5' as decimal(10, 2))"),
    "binary": ("X'616263'", "x'00ff'", "0x616263"),
}
COLUMNS = {
    "text": ("s", "S", "`s`", "`with space`", '`q"q`', "st.y", "`st`.y", "l[1]", "st['y']"),
    "number": ("id", "ID", "`id`", "small", "st.x", "`st`.`x`", "st['x']", "`Case`", "_rowid"),
    "float": ("f", "F", "`f`"),
    "boolean": ("b", "`b`"),
    "date": ("d",),
    "moment": ("ts",),
    "decimal": ("price",),
    "binary": ("raw",),
}
CALLS = {
    "text": (
        *("lower({text})", "UPPER({text})", "coalesce({text}, {text})", "{text} || {text}", "concat({text}, {text})"),
        *("lower(substr({text}, 1, 2))", "cast({number} as string)", "{number}::string", "split_part({text}, 'b', 1)"),
        *("coalesce(CASE WHEN {boolean} THEN {text} ELSE {text} END, 'x')", "replace({text}, 'a', 'bc')"),
        *("nullif({text}, {text})", "lower(trim({text}))"),
    ),
    "number": (
        *("{number} + {number}", "{number} - {number}", "{number} * 2", "{number} % 3", "({number})", "- {number}"),
        *(
            "length({text})",
            "abs({number})",
            "cast({text} as bigint)",
            "try_cast({text} as int)",
            "date_part('day', {date})",
        ),
        *("array_length(l)", "cast({float} as int)", "{number} / 2", "strpos({text}, {text})", "{number} << 1"),
    ),
    "float": ("{float} * {float}", "sqrt({float})", "cast({number} as double)", "round({float})", "- {float}"),
    "boolean": ("({boolean})", "starts_with({text}, {text})", "NOT {boolean}", "isnan({float})", "is_valid({text})"),
    "date": ("date_trunc('month', {date})", "cast({moment} as date)"),
    "moment": ("date_trunc('day', {moment})", "cast({date} as timestamp)"),
}
COMPARED = ("=", "==", "!=", "<>", "<", "<=", ">", ">=", "IS DISTINCT FROM", "is not distinct from")
PREDICATES = (
    *("{text} LIKE {text}", "{text} not like 'a%'", "{text} ILIKE 'A%'", "{text} NOT ILIKE {text}", "s LIKE 'g\\%h'"),
    *("{number} BETWEEN {number} AND {number}", "{float} NOT BETWEEN {float} AND {float}"),
    *("{text} IS NULL", "{number} IS NOT NULL", "{boolean} IS TRUE", "{boolean} IS NOT FALSE", "NOT {text} IS NULL"),
    *(
        "{number} IN ({number}, {number})",
        "{text} NOT IN ({text}, 'abc')",
        "NOT {number} IN (1, 2, null)",
        "{text} in ('a')",
    ),
    *("array_has(l, {text})", "array_has_any(l, ['x', {literal}])", "array_has_all(l, ARRAY['x'])", "l = ['x', 'y']"),
    *("contains({text}, {text})", "regexp_like({text}, '^a.*')", "regexp_match({text}, 'a|b')", "{boolean}"),
    *("{boolean} = ({number} > 1)", "{text} IS NULL = {boolean}", "/* why */ {boolean}"),
)
ODD_WORDS = (
    *(
        "SELECT",
        "OVER",
        "INTERVAL",
        "::",
        "||",
        "(",
        ")",
        "[",
        "]",
        ",",
        ".",
        ";",
        "--",
        "/*",
        "*/",
        "'",
        '"',
        "`",
        "\\",
    ),
    *(
        "$1",
        "?",
        ":x",
        "@x",
        "NULL",
        "IS",
        "NOT",
        "IN",
        "BETWEEN",
        "AND",
        "OR",
        "CASE",
        "END",
        "LIKE",
        "ESCAPE",
        "{",
        "}",
    ),
    *("0x1f", "1e", "1_0", "\u00a0", "\u2028", "\x00", "ARRAY", "CAST", "AS", "unnest", "#", "~", "->", "=>", "&", "^"),
    *(
        "id",
        "s",
        "b",
        "1",
        "'x'",
        "=",
        "+",
        "lower(s)",
        "true",
        "date",
        "decimal",
        "N'x'",
        "e'\\''",
        "$$x$$",
        "<=>",
        "DIV",
    ),
)
NESTING = (
    *("({})", "NOT {}", "lower({}) = 'a'", "({} OR b)", "(b AND {})", "- {}", "[{}]", "coalesce({}, {})", "{} IS NULL"),
    *(
        "{} = true",
        "{} || s",
        "{} + id",
        "CASE WHEN {} THEN 1 END",
        "cast({} as string)",
        "{}::int",
        "l[{}]",
        "{} IN ({})",
    ),
)
GREEDY = (
    *("repeat({}, {})", "lpad({}, {}, {})", "range({}, {})", "concat({}, {}, {})", "{} || {}", "encode({}, 'hex')"),
    *("replace({}, {}, {})", "regexp_replace({}, {}, {}, 'g')", "array_repeat({}, {})", "make_array({}, {}, {}, {})"),
    *("to_char({}, {})", "string_to_array({}, {})", "translate({}, {}, {})", "array_to_string({}, {})", "max({})"),
    *("regexp_like({}, {})", "coalesce({}, {})", "greatest({}, {})", "overlay({}, {}, {})", "array_concat({}, {})"),
    *("cast({} as decimal(76, 70))", "power({}, {})", "factorial({})", "chr({})", "named_struct({}, {})", "unnest({})"),
)
FOOD = ("s", "id", "l", "b", "1000000000", "'a'", "''", "'%c%c%c'", "'(a{900}){900}'", "'" + "x" * 3000 + "'", "NULL")


class Grammar:
    """Writes filters; with the same random numbers the same ones."""

    def __init__(self, random: Random) -> None:
        self._random = random

    def filter(self) -> str:
        """One that Lance takes, or refuses because of a type or a value."""
        return self.condition() + self._random.choice(("", "", ";", " -- because", "\n"))

    def condition(self, depth: int = 3) -> str:
        """The same, as a part of others."""
        kind = self._random.randrange(4 if depth else 2)
        if kind == 0:
            of = self._random.choice(tuple(COLUMNS))
            return f"{self._value(of, 2)} {self._random.choice(COMPARED)} {self._value(of, 1)}"
        if kind == 1:
            return self._fill(self._random.choice(PREDICATES), 2)
        if kind == 2:
            return f"NOT ({self.condition(depth - 1)})"
        parts = [self.condition(depth - 1) for _ in range(self._random.randrange(2, 4))]
        parts = [f"({part})" if self._random.random() < 0.5 else part for part in parts]
        return self._random.choice((" AND ", " or ", "\n\tAND\n")).join(parts)

    def wild(self) -> str:
        """Something that may be a filter, or that wants to be none."""
        makers: Sequence[Callable[[], str]] = (
            lambda: self.condition(5),
            lambda: self._damage(self.condition(3)),
            lambda: " ".join(self._random.choices(ODD_WORDS, k=self._random.randrange(1, 12))),
            self._nest,
            lambda: f"{self._greedy(self._random.randrange(6))} = {self._random.choice(FOOD)}",
        )
        return self._random.choice(makers)()

    def _value(self, of: str, depth: int) -> str:
        kind = self._random.randrange(3 if depth and of in CALLS else 2)
        choices = (LITERALS, COLUMNS, CALLS)[kind][of]
        return self._fill(self._random.choice(choices), depth - 1)

    def _fill(self, form: str, depth: int) -> str:
        for of in COLUMNS:
            while (hole := f"{{{of}}}") in form:
                form = form.replace(hole, self._value(of, max(depth, 0)), 1)
        return form.replace("{literal}", self._random.choice(LITERALS["text"]))

    def _damage(self, text: str) -> str:
        place = self._random.randrange(len(text))
        cut = place + self._random.randrange(4)
        return text[:place] + self._random.choice(("", *ODD_WORDS)) + text[cut:]

    def _nest(self) -> str:
        levels = self._random.choice((3, 10, 30, 50, 70, 300, 3000))
        forms = self._random.choices(NESTING, k=self._random.randrange(1, 4))
        text = self._random.choice(("b", "id", "s", "true", "1"))
        for level in range(levels):
            form = forms[level % len(forms)]
            text = form.replace("{}", text, 1).replace("{}", "s")
            if len(text) > 200_000:
                break
        return text

    def _greedy(self, depth: int) -> str:
        if not depth:
            return self._random.choice(FOOD)
        form = self._random.choice(GREEDY)
        for _ in range(form.count("{}")):
            form = form.replace("{}", self._greedy(self._random.randrange(depth)), 1)
        return form


def filters(random: Random, count: int) -> list[str]:
    """Wild ones."""
    grammar = Grammar(random)
    return [grammar.wild() for _ in range(count)]
