from __future__ import annotations

import pytest
from lance_namespace import ListTablesRequest
from lance_namespace.errors import InvalidInputError

from lancehouse.clients.paging import page, token_after


def test_pages_give_everything_once_in_order() -> None:
    names = ["b", "ü", "a", "表", "a.b", "B", "a"]
    found: list[str] = []
    token = None
    while True:
        chosen, token = page(names, ListTablesRequest(limit=2, page_token=token))
        assert len(chosen) <= 2
        found += chosen
        if token is None:
            break
    assert found == sorted(set(names))


def test_no_limit_is_everything() -> None:
    assert page(["b", "a"], ListTablesRequest()) == (["a", "b"], None)
    assert page(["b", "a"], ListTablesRequest(page_token=token_after("a"))) == (["b"], None)
    assert page([], ListTablesRequest(limit=1)) == ([], None)


@pytest.mark.parametrize("token", ["!!!", "garbage token", "_w"])
def test_a_foreign_token(token: str) -> None:
    with pytest.raises(InvalidInputError, match="page_token"):
        page(["a"], ListTablesRequest(page_token=token))


@pytest.mark.parametrize("limit", [0, -1])
def test_a_limit_is_positive(limit: int) -> None:
    with pytest.raises(InvalidInputError, match="limit"):
        page(["a"], ListTablesRequest(limit=limit))
