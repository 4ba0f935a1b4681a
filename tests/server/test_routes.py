from __future__ import annotations

import pytest
from lance_namespace.errors import InvalidInputError

from lancehouse.server.api import iceberg
from lancehouse.server.http import routes
from lancehouse.server.http.errors import MethodError, NoRouteError
from lancehouse.server.http.routes import Match, RouteTable, match_path
from lancehouse.server.settings import RESERVED

NS = "/v1/{prefix}/namespaces/{namespace}"
PLAN = NS + "/tables/{table}/plan/{plan-id}"


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("/iceberg/v1/config", Match("/v1/config")),
        ("/iceberg/v1/oauth/tokens", Match("/v1/oauth/tokens")),
        ("/iceberg/v1/w/namespaces", Match("/v1/{prefix}/namespaces", "w")),
        ("/iceberg/v1/namespaces", Match("/v1/{prefix}/namespaces")),
        ("/iceberg/v1/my%20house/namespaces/a", Match(NS, "my house", ("a",))),
        ("/iceberg/v1/namespaces/a%1Fb%1fc", Match(NS, None, ("a", "b", "c"))),
        ("/iceberg/v1/namespaces/a.b", Match(NS, None, ("a.b",))),
        ("/iceberg/v1/namespaces/a/tables/t%2Fx", Match(NS + "/tables/{table}", None, ("a",), "t/x")),
        ("/iceberg/v1/namespaces/a/tables/100%2525", Match(NS + "/tables/{table}", None, ("a",), "100%25")),
        ("/iceberg/v1/namespaces/a/tables/a+b", Match(NS + "/tables/{table}", None, ("a",), "a+b")),
        ("/iceberg/v1/namespaces/a/tables/%C3%BC", Match(NS + "/tables/{table}", None, ("a",), "ü")),
        ("/iceberg/v1/w/namespaces/a/views/v", Match(NS + "/views/{view}", "w", ("a",), "v")),
        ("/iceberg/v1/w/namespaces/a/tables/t/plan", Match(NS + "/tables/{table}/plan", "w", ("a",), "t")),
        (
            "/iceberg/v1/w/namespaces/a/tables/t/plan/p1",
            Match(NS + "/tables/{table}/plan/{plan-id}", "w", ("a",), "t", "p1"),
        ),
        ("/iceberg/v1/w/namespaces/tables/tables/tables", Match(NS + "/tables/{table}", "w", ("tables",), "tables")),
        ("/iceberg/v1/w/tables/rename", Match("/v1/{prefix}/tables/rename", "w")),
        ("/iceberg/v1/transactions/commit", Match("/v1/{prefix}/transactions/commit")),
        ("/health/live", Match("/health/live")),
    ],
)
def test_a_path_is_taken_apart_as_it_was_sent(path: str, expected: Match) -> None:
    assert match_path(path.encode()) == expected
    assert match_path(path.encode()) == expected  # remembered


@pytest.mark.parametrize(
    ("path", "error"),
    [
        ("/iceberg/v1/w", NoRouteError),
        ("/iceberg/v1/w/nonsense", NoRouteError),
        ("/iceberg/v1/w/namespaces/a/tables/t/plan/p/more", NoRouteError),
        ("/iceberg", NoRouteError),
        ("/v1/config", NoRouteError),
        ("/iceberg/v1/", InvalidInputError),
        ("/iceberg/v1/w/namespaces/", InvalidInputError),
        ("/iceberg/v1/w//namespaces", InvalidInputError),
        ("/iceberg/v1/w/namespaces/a/tables//", InvalidInputError),
        ("/iceberg/v1/w/namespaces/a%1F", InvalidInputError),
        ("/iceberg/v1/w/namespaces/a%", InvalidInputError),
        ("/iceberg/v1/w/namespaces/a%zz", InvalidInputError),
        ("/iceberg/v1/w/namespaces/%ff", InvalidInputError),
        ("/iceberg/v1/w/namespaces/%ed%a0%80", InvalidInputError),
        ("/iceberg/v1/w/namespaces/a%00", InvalidInputError),
    ],
)
def test_a_path_that_leads_nowhere(path: str, error: type[Exception]) -> None:
    with pytest.raises(error):
        match_path(path.encode())


def test_a_long_path_is_not_remembered() -> None:
    before = routes._match_cached.cache_info().currsize
    assert match_path(b"/iceberg/v1/w/namespaces/" + b"a" * 2000).levels == ("a" * 2000,)
    assert routes._match_cached.cache_info().currsize == before


def test_a_method_that_is_not_offered_says_which_are() -> None:
    with pytest.raises(MethodError, match="GET, POST is") as caught:
        RouteTable(iceberg.ROUTES).find(match_path(b"/iceberg/v1/w/namespaces"), "PUT")
    assert caught.value.allowed == "GET, POST"


def test_what_stands_in_place_of_a_prefix_is_no_warehouse() -> None:
    assert {word.decode() for word in routes.TOP} < RESERVED


@pytest.mark.parametrize(
    ("path", "name", "index"),
    [
        (b"/lance/main/v1/table/db%24my+table/describe", "db$my table", ""),
        (b"/lance/main/v1/table/db%24my%20table/describe", "db$my table", ""),
        (b"/lance/main/v1/table/db%24a%2Bb/describe", "db$a+b", ""),
        (b"/lance/main/v1/table/t/index/an+index/stats", "t", "an index"),
    ],
)
def test_a_space_in_names_of_lance(path: bytes, name: str, index: str) -> None:
    found = match_path(path)
    assert (found.prefix, found.name, found.index) == ("main", name, index)
