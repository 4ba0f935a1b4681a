"""Large JSON is parsed as small JSON is, and nothing large is left to a garbage collection."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from lance_namespace.errors import InvalidInputError
from sqlglot import exp

from lancehouse import parsing
from lancehouse.gateway.sql import rewrite_condition
from lancehouse.parsing import count_json, parse_alone, parse_json

numbers = st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False, allow_infinity=False)
json_values = st.recursive(
    st.none() | st.booleans() | numbers | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


@pytest.fixture
def stepping(monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything counts as large."""
    monkeypatch.setattr(parsing, "FEW", -1)


def outcome(text: bytes, *, steps: bool) -> object:
    """What a text becomes: its value, or that it is refused."""
    try:
        return repr(parse_json(text) if steps else orjson.loads(text))
    except ValueError:
        return "refused"


TEXTS = [
    b"",
    b"{",
    b"[1,]",
    b'{"a":1,}',
    b"[1] 2",
    b" \t\r\n[1] \n",
    b"\xef\xbb\xbf[]",
    b'"\xff"',
    b'"\x01"',
    b'"\\u0041\\ud83d\\ude00"',
    b'"\\ud800"',
    b'{"\\ud800": 1}',
    b"NaN",
    b"-Infinity",
    b"[1e400]",
    b"[01]",
    b"[+1]",
    b"[.5]",
    b"[-0]",
    b"[-0.0]",
    b"[18446744073709551615, -9223372036854775808]",
    b"[18446744073709551616, -9223372036854775809]",
    b"[" + b"9" * 400 + b"]",
    b'{"a": 1, "a": 2}',
    b"truefalse",
    b"'a'",
]


@pytest.mark.usefixtures("stepping")
@pytest.mark.parametrize("text", TEXTS, ids=repr)
def test_large_json_is_parsed_as_small_json(text: bytes) -> None:
    assert outcome(text, steps=True) == outcome(text, steps=False)


@given(json_values)
def test_every_value_is_parsed_in_steps(value: object) -> None:
    text = orjson.dumps(value)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(parsing, "FEW", -1)
        assert parse_json(text) == value


@given(st.binary(max_size=40))
def test_what_is_no_json_is_refused_in_steps(text: bytes) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(parsing, "FEW", -1)
        assert outcome(text, steps=True) == outcome(text, steps=False)


def test_nesting_is_bounded() -> None:
    with pytest.raises(ValueError, match="nested too deeply"):
        parse_json(b"[" * 60_000 + b"]" * 60_000)


def test_json_is_counted_in_all_of_its_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parsing, "STEP", 3)
    assert count_json(b'{"a": [1, 2, 3], "b": {}}') == (5, 3)


def test_collections_go_on_after_a_parse() -> None:
    with pytest.raises(ValueError, match="x"), parse_alone():
        assert not gc.isenabled()
        raise ValueError("x")
    assert gc.isenabled()


@pytest.fixture
def no_garbage_collection() -> Iterator[None]:
    """No garbage is collected."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("no_garbage_collection")
@pytest.mark.parametrize("end", ["", " OR (", " OR lower(s) +", " OR f(1)", " OR id BETWEEN 1 AND 2 3"])
def test_a_parsed_filter_leaves_no_tree(end: str) -> None:
    sql = " OR ".join(f"(id = {number} AND s LIKE '%{number}')" for number in range(500)) + end
    rewrite_condition("id = 1", "filter")
    gc.collect()
    try:
        rewrite_condition(sql, "filter")
    except InvalidInputError:
        assert end
    nodes = [each for each in gc.get_objects() if isinstance(each, exp.Expr)]
    assert len(nodes) < 20
