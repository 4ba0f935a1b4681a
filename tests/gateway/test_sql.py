"""SQL of callers, rewritten: it means the same to Lance, or it is refused with the reason."""

from __future__ import annotations

import re
from datetime import date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from lance_namespace.errors import InvalidInputError

from lancehouse.gateway import request_sql, sql
from lancehouse.gateway.sql import FUNCTIONS, MAX_DEPTH, MAX_NESTING, Value, rewrite_condition, rewrite_value
from tests.gateway.sql_grammar import Grammar

COUNT = 8
TABLE = pa.table(
    {
        "id": pa.array([0, 1, 2, 7, 9007199254740993, -1, 712, None], pa.int64()),
        "small": pa.array(range(COUNT), pa.int32()),
        "Case": pa.array(range(COUNT), pa.int32()),
        "s": ["abc", "", "it's", "\\", "g%h", "ünï日", "a\nb", None],
        "with space": ["abc", "--", 'a "x"', "%a_", "x", "X", "/* no */", None],
        'q"q': ["a"] * COUNT,
        "f": [0.0, 0.1, -2.5, 1000.0, 0.30000000000000004, 0.3, float("nan"), None],
        "b": [True, False, None, True, False, True, False, True],
        "d": [date(2020, 1, day + 1) for day in range(COUNT)],
        "ts": pa.array([datetime(2020, 1, day + 1, 1, 2, 3, 456) for day in range(COUNT)], pa.timestamp("us")),
        "price": pa.array([Decimal("1.23")] * 4 + [Decimal("2.50")] * 4, pa.decimal128(10, 2)),
        "raw": [b"abc", b"\x00\xff", b"", None, b"x", b"y", b"z", b"w"],
        "l": [["x", "y"], ["abc"], [], None, ["x"], ["w"], ["it's"], [None]],
        "st": pa.array(
            [{"x": row, "y": "abc" if row % 2 else None} for row in range(COUNT)],
            pa.struct([("x", pa.int32()), ("y", pa.string())]),
        ),
    }
)


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return lance.write_dataset(TABLE, str(tmp_path_factory.mktemp("sql") / "t"))


def rows(dataset: Any, filter: str) -> list[int] | None:
    """Which rows a filter selects; None if Lance takes it for none."""
    try:
        return list(dataset.scanner(columns=["small"], filter=filter).to_table()["small"].to_pylist())
    except (ValueError, OSError, RuntimeError):
        return None


@settings(max_examples=150, suppress_health_check=[HealthCheck.too_slow])
@given(st.randoms().map(lambda random: Grammar(random).filter()))
def test_a_rewritten_filter_selects_the_same_rows(dataset: Any, original: str) -> None:
    try:
        rewritten = rewrite_condition(original, "filter")
    except InvalidInputError as error:
        # Few of them put a value together from too many columns.
        assume("put together from more than" not in str(error))
        raise
    assert rows(dataset, rewritten) == rows(dataset, original), (original, rewritten)


@pytest.mark.parametrize(
    ("original", "rewritten"),
    [
        ("id=1", "id = 1"),
        ("`Up`=1 AND uP<>2", "`Up` = 1 AND uP != 2"),
        ('s = "it\'s"', "s = 'it''s'"),
        ("s = 'a\\' OR b", "s = 'a\\' OR b"),
        ("f > .5 and f < 1.50e-7", "f > .5 AND f < 1.50e-7"),
        ("id = 123456789012345678901234567890", "id = 123456789012345678901234567890"),
        ("`a``b` = 1", "`a``b` = 1"),
        ("st.x = 1 AND a.b.c.d.e = 2", "st . x = 1 AND a . b . c . d . e = 2"),
        ("d = date '2024-01-01'", "d = date '2024-01-01'"),
        ("date > 1", "date > 1"),
        ("p = decimal(10,2) '1.2'", "p = decimal ( 10 , 2 ) '1.2'"),
        ("x::int unsigned = 1", "x :: int UNSIGNED = 1"),
        ("try_cast(x as int) is not null", "TRY_CAST ( x AS int ) IS NOT NULL"),
        ("not x in (1,-2) -- why", "NOT x IN ( 1 , - 2 )"),
        ("x not in (1)", "x NOT IN ( 1 )"),
        ("s not like 'a' escape '\\'", "s NOT LIKE 'a' ESCAPE '\\'"),
        ("b is not true", "b IS NOT TRUE"),
        ("array_has_any(l, array['x'])", "array_has_any ( l , ARRAY [ 'x' ] )"),
        ("raw = 0xAb", "raw = X'Ab'"),
        ("Lower(s) = 'x';", "Lower ( s ) = 'x'"),
    ],
)
def test_names_numbers_and_texts_are_kept(original: str, rewritten: str) -> None:
    assert rewrite_condition(original, "filter") == rewritten
    assert rewrite_condition(rewritten, "filter") == rewritten


@pytest.mark.parametrize(
    ("filter", "words"),
    [
        ("repeat('a', 9) = s", "filter: the function repeat is not allowed here"),
        ("REPEAT('a', 9) = s", "the function repeat is not allowed here"),
        ("`repeat`('a', 9) = s", "`repeat` is no function"),
        ("s.repeat('a', 9) = s", "the function repeat is not allowed here"),
        ("lower(s, repeat('a', 9)) = s", "the function repeat is not allowed here"),
        ("s IN ('\\', repeat(chr(97),3), ') --')", "the function repeat is not allowed here"),
        ("max(id) = 1", "the function max is not allowed here"),
        ("stats_with(s, 'a')", "the function stats_with is not allowed here; starts_with is"),
        ("id = 1 LIMIT 1", "it cannot be read as SQL: .* near 'LIMIT'"),
        ("id =", "something is missing near '='"),
        ("id = 1; id = 2", "it is not one expression"),
        ("", "it is not one expression"),
        ("id BETWEEN 1 2", "in one way only"),
        ("s NOT NULL", "in one way only"),
        ("lower(ALL s) = 'x'", "in one way only|cannot be read"),
        ("id = 1_0", "cannot be read as SQL"),
        ("id = 1e", "'1e' is no number"),
        ("a\u00a0b = 1", "cannot be read|is no name"),
        ("id IN (SELECT 1)", "cannot be read as SQL"),
        ("(" * (MAX_NESTING + 1) + "b", f"nested more than {MAX_NESTING}"),
        ("NOT " * (MAX_NESTING + 1) + "b", f"nested more than {MAX_NESTING}"),
        ("NOT (" * 21 + "b" + ")" * 21, f"nested more than {MAX_NESTING}"),
        ("(b OR " * 21 + "b" + ")" * 21, f"nested more than {MAX_NESTING}"),
        ("NOT cast(" * 21 + "b" + " as boolean)" * 21, f"nested more than {MAX_NESTING}"),
        ("coalesce(" * 14 + "s" + ", s)" * 14 + " = 'x'", "more than 8 columns|more than 300,000 terms"),
        ("nvl2(" * 14 + "b" + ", 1, 2)" * 14 + " = 1", "more than 300,000 terms"),
        ("abs(cast(" * 12 + "b" + " as int)) BETWEEN 0 AND 1" * 12, "more than 300,000 terms"),
        ("coalesce(CASE WHEN " * 6 + "b" + " THEN b END, false)" * 6, "more than 300,000 terms"),
        (f"coalesce(CASE {'WHEN id = 1 THEN true ' * 200} END, false)", "more than 300,000 terms"),
        ("b" + " = b" * (MAX_DEPTH + 2), f"more than {MAX_DEPTH} operators"),
        ("l" + "[1]" * 3_000 + " = 1", "too deeply|more than"),
        ("s || s || s || s || s || s || s || s || s = 'x'", "more than 8 columns"),
        ("replace(s, 'a', 'bbbbbbbbb') = 'x'", "more than 8 columns"),
        ("replace(s, 'a', s) = 'x'", "argument 3 of replace must be a text"),
        (f"s || '{'x' * 1001}' = 'x'", "longer than 1,000 bytes"),
        (f"contains_tokens(s, '{'ü' * 501}')", "longer than 1,000 bytes"),
        (" + ".join(["id"] * 60) + " = 1" + " OR id + 1 = 2" * 2_000, "more than 2,000 operators"),
        (" AND ".join(["id > 1"] * 2_001), "more than 2,000 comparisons"),
        (" AND ".join(["(id > 1 AND id < 2)"] * 1_001), "more than 2,000 comparisons"),
        ("NOT (" + " OR ".join(["id > 1"] * 2_001) + ")", "more than 2,000 comparisons"),
        (" OR ".join(["regexp_like(s, 'a')"] * 21), "more than 20 regular expressions"),
        ("b OR " * 60_000 + "b", "at most 100,000 are allowed"),
        ("'" + "x" * 1_000_000 + "' = s", "1,000,000 are allowed"),
    ],
)
def test_what_is_refused_and_why(filter: str, words: str) -> None:
    with pytest.raises(InvalidInputError, match=words):
        rewrite_condition(filter, "filter")


def test_limits_leave_room_for_large_filters() -> None:
    large = " OR ".join(f"(id = {number} AND d > date '2024-01-01')" for number in range(8_000))
    assert len(rewrite_condition(large, "filter")) > len(large)
    boxes = " OR ".join(f"(x > {n} AND x < {n + 1} AND y > 1 AND y < 2)" for n in range(3_000))
    assert rewrite_condition(boxes, "filter")
    assert rewrite_condition(f"coalesce(CASE {'WHEN id = 1 THEN true ' * 100} END, false)", "filter")
    assert rewrite_value(f"CASE id {''.join(f'WHEN {n} THEN {n} ' for n in range(1_900))} END", "updates: id")
    assert rewrite_condition("f IN (" + ", ".join(f"-{number}.5" for number in range(20_000)) + ")", "filter")


def test_a_value_may_be_a_long_literal_and_its_size_is_told() -> None:
    assert rewrite_value("'üü'", "updates: s") == Value("'üü'", 4)
    assert rewrite_value("[0.1, -0.2]", "updates: v") == Value("[ 0.1 , - 0.2 ]")
    assert rewrite_value(f"'{'x' * 500_000}'", "updates: s").constant == 500_000


def test_a_recursion_too_deep_is_the_callers_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lancehouse.gateway.sql.MAX_NESTING", 100_000)
    with pytest.raises(InvalidInputError, match="nested too deeply"):
        rewrite_condition("(" * 5_000 + "b" + ")" * 5_000, "filter")


def test_the_page_that_errors_name_has_the_limits_and_functions() -> None:
    title, page = re.findall(r"“(.+)” in (\S+)", sql.DOCS)[0]
    section = (Path(__file__).parents[2] / page).read_text().partition(f"\n## {title}\n")[2].partition("\n## ")[0]
    settings = [*vars(sql).items(), *vars(request_sql).items()]
    for limit in (value for name, value in settings if name.startswith("MAX_")):
        assert f"{limit:,}" in section or f"{limit >> 20} MB" in section, limit
    assert set(re.findall(r"`(\w+)`", section.partition("| functions | |")[2])) == FUNCTIONS


@pytest.mark.parametrize(
    "condition",
    [
        "day >= date '2026-01-31'",
        "at < timestamp '2026-01-31 12:00:00' - interval '1 day'",
        "`any name` = 'it''s \\'",
        "meta.lang ILIKE 'e%' AND tags[1] IS NOT NULL",
        "NOT (id BETWEEN 1 AND 2 OR id NOT IN (3, -4))",
        "CASE WHEN b THEN x ELSE y END % 2 = cast(z AS int)",
        "z::double / 2 != 1e3",
    ],
)
def test_what_the_page_shows_is_taken(condition: str) -> None:
    assert rewrite_condition(condition, "filter")
