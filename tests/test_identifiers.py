from __future__ import annotations

from typing import Any

import pytest
from lance_namespace.errors import InvalidInputError

from lancehouse.identifiers import NamespaceId, TableId, format_levels, is_plain, parse_levels


@pytest.mark.parametrize(
    ("levels", "separator", "wire"),
    [
        (["db"], "%1F", "db"),
        (["a", "b"], "%1F", "a%1Fb"),
        (["a", "b"], "%2E", "a%2Eb"),
        (["a.b", "c"], "%1F", "a.b%1Fc"),
        (["a b", "c/d"], "%1F", "a%20b%1Fc%2Fd"),
        (["50%"], "%1F", "50%25"),
        (["a%2Fb"], "%1F", "a%252Fb"),
        (["a+b", "a$b"], "%1F", "a%2Bb%1Fa%24b"),
        (["ü", "😀"], "%1F", "%C3%BC%1F%F0%9F%98%80"),
        ([".."], "%1F", "%2E%2E"),  # a dot segment would be resolved away, and the call would hit the parent
        (["."], "%1F", "%2E"),
    ],
)
def test_each_level_is_encoded_once(levels: list[str], separator: str, wire: str) -> None:
    assert NamespaceId("wh", tuple(levels)).to_path_segment(separator) == wire


@pytest.mark.parametrize(
    ("name", "wire"), [("t", "t"), ("t/x", "t%2Fx"), ("..", "%2E%2E"), ("a.b", "a.b"), ("it's", "it%27s")]
)
def test_a_table_is_one_segment(name: str, wire: str) -> None:
    assert TableId(NamespaceId("wh", ("db",)), name).to_path_segment() == wire
    assert is_plain(name) == (wire == name)


@pytest.mark.parametrize(
    ("levels", "separator"),
    [
        (["a\x1fb"], "%1F"),
        (["db", "\x1f"], "%1F"),
        (["a\x1fb"], "%1f"),
        (["a.b"], "."),
        (["a.b"], "%2E"),
        (["a", "b%"], "%25"),
    ],
)
def test_a_level_with_the_separator_would_be_another_namespace(levels: list[str], separator: str) -> None:
    with pytest.raises(InvalidInputError, match="for the end of a level"):
        NamespaceId("wh", tuple(levels)).to_path_segment(separator)


def test_a_level_is_unicode() -> None:
    for parse in (TableId.parse, NamespaceId.parse):
        with pytest.raises(InvalidInputError, match="Unicode"):
            parse(["wh", "db", "bad\udcff"])


@pytest.mark.parametrize("parts", ["wh.db.t", [1, 2, 3], ["wh", "db", None], [["wh"], "db", "t"]])
def test_an_id_is_a_list_of_texts(parts: Any) -> None:
    """A text is a sequence too: its letters must not pass for levels."""
    for parse in (TableId.parse, NamespaceId.parse):
        with pytest.raises(InvalidInputError, match="a list of texts; got"):
            parse(parts)


def test_parsing_keeps_every_level() -> None:
    table = TableId.parse(["wh", "a", "b", "t"])
    assert table.parts == ["wh", "a", "b", "t"]
    assert table.namespace == NamespaceId("wh", ("a", "b"))
    assert table.namespace.parent == NamespaceId("wh", ("a",))
    assert NamespaceId.parse(["wh"]).levels == ()


@pytest.mark.parametrize("parts", [None, [], ["wh"], ["wh", "t"], ["wh", "", "t"], ["wh", "db", ""]])
def test_a_table_needs_three_levels(parts: list[str] | None) -> None:
    with pytest.raises(InvalidInputError, match="a table id is"):
        TableId.parse(parts)


@pytest.mark.parametrize(("parts", "least"), [(None, 1), ([], 1), (["wh"], 2), (["wh", ""], 2)])
def test_a_namespace_needs_its_levels(parts: list[str] | None, least: int) -> None:
    with pytest.raises(InvalidInputError, match="a namespace id is"):
        NamespaceId.parse(parts, least=least)


def test_contains() -> None:
    parent = NamespaceId("wh", ("a",))
    assert parent.contains(parent)
    assert parent.contains(NamespaceId("wh", ("a", "b")))
    assert not parent.contains(NamespaceId("wh", ("ab",)))
    assert not parent.contains(NamespaceId("other", ("a", "b")))


@pytest.mark.parametrize(
    ("text", "levels"),
    [
        ("", ()),
        ("catalog", ("catalog",)),
        ("catalog.schema", ("catalog", "schema")),
        ("catalog$schema", ("catalog", "schema")),
        ("a.b c.d/e", ("a", "b c", "d/e")),
        ("a.`b.c`", ("a", "b.c")),
        ("`a.b`.c", ("a.b", "c")),
        ("`a``b`", ("a`b",)),
        ("`a$b`$c", ("a$b", "c")),
    ],
)
def test_levels_as_people_write_them(text: str, levels: tuple[str, ...]) -> None:
    assert parse_levels(text) == levels
    assert parse_levels(format_levels(levels)) == levels


@pytest.mark.parametrize("text", [".", "a.", ".a", "a..b", "`a", "a`b`", "`a`b", "``", "a$"])
def test_levels_that_are_none(text: str) -> None:
    with pytest.raises(InvalidInputError, match="is no id"):
        parse_levels(text)
