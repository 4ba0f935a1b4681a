from __future__ import annotations

import gzip
from pathlib import Path

import orjson
import pytest

from lancehouse.catalog.metadata_loader import LoadResult
from lancehouse.server.api import iceberg
from lancehouse.server.http import responses
from lancehouse.server.http.responses import GZIP_LEAST, GzipCache, Response
from lancehouse.server.http.routes import Route
from tests.server.serving import serving

LARGE = orjson.dumps({"x": "y" * GZIP_LEAST})


@pytest.mark.parametrize(
    ("loaded", "expected"),
    [
        (LoadResult(b'{"m":1}', "e"), {"metadata": {"m": 1}, "config": {}}),
        (
            LoadResult(b'{"m":1}', "e", "file:///é", {"k": "v"}, [{"prefix": "s3://b", "config": {"a": "b"}}]),
            {
                "metadata-location": "file:///é",
                "metadata": {"m": 1},
                "config": {"k": "v"},
                "storage-credentials": [{"prefix": "s3://b", "config": {"a": "b"}}],
            },
        ),
    ],
)
def test_loaded_table(loaded: LoadResult, expected: object) -> None:
    response = iceberg.table_response(loaded, "refs")
    assert orjson.loads(response.body) == expected
    private = [(b"cache-control", b"private, no-cache")] if loaded.credentials else []
    assert response.headers == [(b"etag", b'"e-refs"'), *private]


def test_a_commit_says_where() -> None:
    response = iceberg.commit_response(LoadResult(b'{"m":1}', "e", "/t/é", {"k": "v"}))
    assert orjson.loads(response.body) == {"metadata-location": "/t/é", "metadata": {"m": 1}}
    assert response.headers == [(b"etag", b'"e-all"')]


@pytest.mark.parametrize(
    ("given", "known"),
    [
        (None, False),
        ("", False),
        ('"a"', True),
        ('W/"a"', True),
        ('"b" , "a"', True),
        ("*", True),
        ("a", False),
        ('"b"', False),
    ],
)
def test_if_none_match(given: str | None, known: bool) -> None:
    assert responses.is_not_modified(given, b'"a"') is known


@pytest.mark.parametrize(
    ("accepted", "yes"),
    [
        ("gzip", True),
        ("deflate, GZIP;q=0.8", True),
        ("*", True),
        ("gzip; q=0", False),
        ("br", False),
        ("identity", False),
    ],
)
def test_accept_encoding(accepted: str, yes: bool) -> None:
    assert responses.accepts_gzip(accepted) is yes


def test_only_large_answers_are_compressed(tmp_path: Path) -> None:
    routes = [
        Route("small", "GET", "/small", lambda _: Response(200, b"{}")),
        Route("large", "GET", "/large", lambda _: Response(200, LARGE)),
    ]
    with serving(tmp_path, more=routes) as client:
        small, large = (client.send("GET", path, headers={"accept-encoding": "gzip"}) for path in ("/small", "/large"))
    assert (small.body, small.headers.get("content-encoding")) == (b"{}", None)
    assert (gzip.decompress(large.body), large.headers["content-encoding"]) == (LARGE, "gzip")


def test_kept_bytes_are_bounded() -> None:
    packer = GzipCache(cache_bytes=5000)
    for number in range(100):
        packer.apply(Response(200, LARGE, variant=b"%d" % number), "gzip")
    assert 0 < packer._cache._total <= 5000
    assert packer._cache._total == sum(map(len, packer._cache.values()))


def test_a_kept_answer_is_the_one_of_its_variant() -> None:
    packer = GzipCache()
    other = LARGE.replace(b"y", b"z")
    for body in (LARGE, other, LARGE, other):
        response = Response(200, body, variant=body[:10])
        packer.apply(response, "gzip")
        assert gzip.decompress(response.body) == body


@pytest.mark.parametrize("names", [[], ["t"], [",", '"', "\\", "é😀", '","', "}"]])
@pytest.mark.parametrize("token", [None, 'a"b'])
def test_identifiers(names: list[str], token: str | None) -> None:
    levels = ("a", 'b"c')
    shown = orjson.loads(iceberg.identifiers(levels, names, token).body)
    identifiers = [{"namespace": list(levels), "name": name} for name in names]
    assert shown == {"identifiers": identifiers, "next-page-token": token}
