from __future__ import annotations

import pytest
from lance_namespace.errors import InvalidInputError

from lancehouse.paging import encode_token, paginate, remaining_keys

NAMES = ["b", "ü", "a", "表", "a.b", "B"]


@pytest.mark.parametrize("keys", [NAMES, [3, 1, 20, 4]], ids=["names", "numbers"])
@pytest.mark.parametrize("descending", [False, True])
@pytest.mark.parametrize("limit", [1, 2, 5, 100])
def test_pages_give_everything_once_in_order(keys: list[str], descending: bool, limit: int) -> None:
    found: list[str] = []
    token = None
    while True:
        part = paginate(dict.fromkeys(keys), limit, token, descending=descending)
        assert len(part.items) <= limit
        found += part.items
        if (token := part.token) is None:
            break
    assert found == sorted(keys, reverse=descending)


def test_no_limit_is_everything() -> None:
    assert list(paginate({"b": 1, "a": 2}, None, None).items.items()) == [("a", 2), ("b", 1)]
    assert list(paginate({"b": 1, "a": 2}, None, encode_token("a")).items) == ["b"]
    assert paginate({}, 1, None).token is None
    assert paginate({"a": 1}, 0, None).items == {}


def test_a_name_that_is_gone_still_says_where_to_go_on() -> None:
    assert remaining_keys(["a", "c"], None, encode_token("b")) == ["c"]


@pytest.mark.parametrize("token", ["!!!", "garbage token", "_w"])
def test_a_foreign_token(token: str) -> None:
    with pytest.raises(InvalidInputError, match="page_token"):
        remaining_keys(["a"], None, token)


def test_a_token_of_another_list() -> None:
    with pytest.raises(InvalidInputError, match="page_token"):
        remaining_keys([1, 2], None, encode_token("name"))


def test_a_limit_is_not_negative() -> None:
    with pytest.raises(InvalidInputError, match="limit"):
        remaining_keys(["a"], -1, None)
