"""Two tables that differ only in what a restricted reader does not see: no answer tells them apart."""

from __future__ import annotations

import json
import re
from typing import Any
from urllib.parse import quote

import lance
import numpy as np
import pyarrow as pa
import pytest

from lancehouse.catalog.bootstrap import open_database
from lancehouse.catalog.callers import Grant, Role
from lancehouse.catalog.principals import Principals
from lancehouse.gateway.restricted import parse_restriction
from tests.security.house import ServerWithPrincipals

TWINS = ("left", "right")
MASKS = {"email": "text:-", "salary": "null", "name": "null", "w": "null"}
ROWS = 40
UUID = r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}(-[0-9a-f]{32})?"
VISIBLE = [number for number in range(ROWS) if number % 3 == 0]


def write_twin(place: str, twin: str) -> None:
    """Visible rows and unmasked values are the same in both; hidden rows and masked values are not."""
    is_left = twin == "left"

    def choose(number: int, shown: Any, left: Any, right: Any) -> Any:
        return shown if number in VISIBLE else left if is_left else right

    numbers = range(ROWS)
    columns: dict[str, Any] = {
        "id": pa.array([choose(n, n, n, 1000 - n) for n in numbers], pa.int64()),
        "kind": [choose(n, "seen", "hidden", "other") for n in numbers],
        "colour": pa.array([choose(n, "red", "green", "blue") for n in numbers]).dictionary_encode(),
        "text": [choose(n, f"word{n % 4} common", "common common rare", "nothing") for n in numbers],
        "zero": pa.array([choose(n, 1, 0, 7) for n in numbers], pa.int64()),
        "email": [f"{n}@x" if is_left else "12" for n in numbers],
        "salary": pa.array([5000 if is_left else n for n in numbers], pa.int64()),
        "name": pa.array(["Ada" if is_left else None for _ in numbers], pa.string()),
        "v": pa.array(
            [choose(n, [float(n), 1.0], [0.5, 1.0], [90.0, 9.0]) for n in numbers], pa.list_(pa.float32(), 2)
        ),
        "w": pa.array([[float(n), 0.0] if is_left else [0.0, 0.0] for n in numbers], pa.list_(pa.float32(), 2)),
    }
    dataset = lance.write_dataset(pa.table(columns), place, max_rows_per_file=20)
    centroids = np.array([[10.0, 1.0]], np.float32)  # a trained index tells of the rows that it was trained on
    dataset = dataset.create_index("v", "IVF_FLAT", num_partitions=1, ivf_centroids=centroids)
    for column, kind in (("id", "BTREE"), ("kind", "BITMAP"), ("salary", "BTREE")):
        dataset.create_scalar_index(column, kind)
    for column in ("text", "email"):
        dataset.create_scalar_index(column, "INVERTED")
    dataset.tags.create(f"tag-of-{twin}", 1)


@pytest.fixture(scope="module")
def twins(house: ServerWithPrincipals) -> ServerWithPrincipals:
    """With the tables `left.t` and `right.t`, of which `twin` sees the same part."""
    database = open_database(f"sqlite:///{house.folder / 'catalog.db'}")
    principals = Principals(database)
    grants = []
    for twin in TWINS:
        assert house.send("root", "POST", "/iceberg/v1/main/namespaces", {"namespace": [twin]})[0] == 200
        write_twin(house.place(twin, "t"), twin)
        house.register("root", twin, "t")
        grants.append(Grant(Role.READER, "main", (twin,), "t", parse_restriction("kind = 'seen'", MASKS)))
    principals.create("twin", grants)
    house.tokens["twin"] = principals.create_token("twin", "test")
    database.close()
    return house


CONDITIONS = (
    *("id > 5", "id = 1000", "id IN (0, 3, 4, 996)", "id BETWEEN 2 AND 30", "id IS NULL", "id = 1.5", "id = 'x'"),
    *("kind = 'seen'", "kind = 'hidden'", "kind != 'seen'", "NOT (kind = 'seen')", "kind IS NULL", "length(kind) > 4"),
    *("1 / zero > 0", "1 / (zero - 7) < 0", "1 / (salary - 5000) > 0", "zero = 0", "zero / zero = 1", "id % zero = 0"),
    *("salary > 0", "salary = 5000", "salary IS NULL", "salary IS NOT NULL OR id = 3", "coalesce(salary, id) > 3"),
    *("cast(email AS int) = 12", "email LIKE '%@x'", "email = '12'", "regexp_like(email, '^[0-9]+$')", "email = name"),
    *("name IS NULL", "name = 'Ada'", "length(name) = 3", "w IS NULL", "array_distance(w, [0.0, 0.0]) < 1"),
    *("contains_tokens(text, 'rare')", "text LIKE '%nothing%'", "_rowid > 3", "_rowaddr > 3", "ID > 3", "nosuch = 1"),
    *("colour = 'red'", "colour = 'green'", "colour IN ('blue', 'red')", "length(colour) = 4", "colour IS NOT NULL"),
    *("array_distance(v, [0.5, 1.0]) < 0.1", "(id > 3", "id > 3 OR true", "id = 99999999999999999999"),
)
WORDS = ("common", "rare", "nothing", "word1", "Ada", "12", "x", "hidden", "seen")


def list_queries() -> list[dict[str, Any]]:
    """What is asked of both tables."""
    near, far = {"single_vector": [0.5, 1.0]}, {"single_vector": [90.0, 9.0]}
    queries: list[dict[str, Any]] = [{"filter": condition} for condition in CONDITIONS]
    queries += [{"vector": v, "k": k, "vector_column": "v"} for v in (near, far) for k in (1, 3, 50)]
    queries += [
        {"vector": near, "k": 5, "vector_column": "v", "filter": condition, "prefilter": prefilter}
        for condition in ("id > 5", "1 / zero > 0", "salary > 0", "name IS NULL", "id = 1.5")
        for prefilter in (True, False)
    ]
    more: list[dict[str, Any]] = [
        {"fast_search": True},
        {"bypass_vector_index": True},
        {"offset": 2},
        {"lower_bound": 0.0, "upper_bound": 20.0},
        {"nprobes": 1, "refine_factor": 2},
        {"distance_type": "cosine"},
        {"vector_column": "w"},
        {"vector_column": "email"},
        {"with_row_id": True},
        {"columns": {"column_names": ["id", "_distance"]}},
        {"columns": {"column_names": ["_rowid"]}},
        {"columns": {"column_aliases": {"x": "salary + id", "y": "1 / zero"}}},
    ]
    queries += [{"vector": near, "k": 4, "vector_column": "v", **each} for each in more]
    queries += [{"vector": {"multi_vector": [[0.5, 1.0], [90.0, 9.0]]}, "k": 3, "vector_column": "v"}]
    queries += [
        {"k": 50, "full_text_query": {"string_query": {"query": word, "columns": columns}}}
        for word in WORDS
        for columns in (["text"], ["email"], None)
    ]
    structured: list[dict[str, Any]] = [
        {"phrase": {"terms": "common rare"}},
        {"match": {"terms": "comon", "fuzziness": 1}},
        {"boost": {"positive": {"match": {"terms": "common"}}, "negative": {"match": {"terms": "rare"}}}},
    ]
    queries += [{"k": 50, "full_text_query": {"structured_query": {"query": each}}} for each in structured]
    queries += [{"k": k, "offset": offset} for k in (0, 1, 13, 14, 15, 100) for offset in (0, 5, 13, 14)]
    queries += [{"version": version} for version in (0, 1, 2, 6, 7, 99)]
    queries += [{"branch": branch} for branch in ("main", "nosuch", "")]
    queries += [
        {"columns": {"column_aliases": {"x": value}}}
        for value in ("1 / zero", "cast(email AS int)", "upper(name)", "1 / (salary - 5000)", "kind", "_rowoffset")
    ]
    return [{"k": 0, "vector": {}, **each} for each in queries]


def normalize(twin: str, status: int, body: bytes) -> Any:
    """An answer without the name of the table, its id, and times."""
    if status == 200 and body[:6] == b"ARROW1":
        table = pa.ipc.open_file(body).read_all()
        return status, str(table.schema), table.to_pylist()
    text = body.decode().replace(twin, "twin")
    text = re.sub(UUID, "", text)
    return status, re.sub(r'"(instance|timestamp-ms|last-updated-ms|now_ms)":("[^"]*"|\d+)', "", text)


def ask_both(house: ServerWithPrincipals, method: str, path: str, body: Any = None) -> Any:
    """The answer for the left one, after a check that it is that for the right one."""
    left, right = (normalize(twin, *house.send("twin", method, path.replace("TWIN", twin), body)) for twin in TWINS)
    assert left == right
    return left


@pytest.mark.parametrize("query", list_queries(), ids=lambda query: json.dumps(query)[:90])
def test_queries(twins: ServerWithPrincipals, query: dict[str, Any]) -> None:
    ask_both(twins, "POST", "/lance/main/v1/table/TWIN$t/query", query)


@pytest.mark.parametrize("condition", [None, *CONDITIONS])
def test_counts_and_pages_of_the_console(twins: ServerWithPrincipals, condition: str | None) -> None:
    ask_both(twins, "POST", "/lance/main/v1/table/TWIN$t/count_rows", {"predicate": condition})
    for what in ("rows", "count"):
        ask_both(twins, "GET", f"/console/v1/{what}?in=main&level=TWIN&level=t&filter={quote(condition or '')}")


def test_twins_differ_for_others(twins: ServerWithPrincipals) -> None:
    paths = [f"/lance/main/v1/table/{twin}$t/count_rows" for twin in TWINS]
    counts = [twins.send("root", "POST", path, {"predicate": "zero = 0"})[1] for path in paths]
    assert counts == [b"26", b"0"]
    path = "/lance/main/v1/table/TWIN$t/query"
    assert len(ask_both(twins, "POST", path, {"k": 0, "vector": {}})[2]) == len(VISIBLE)


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("GET", "/iceberg/v1/main/namespaces/TWIN/tables/t", None),
        ("GET", "/iceberg/v1/main/namespaces/TWIN/tables/t?snapshots=all", None),
        ("GET", "/iceberg/v1/main/namespaces/TWIN/tables/t/credentials", None),
        ("POST", "/iceberg/v1/main/namespaces/TWIN/tables/t/plan", {}),
        ("POST", "/lance/main/v1/table/TWIN$t/describe", {"load_detailed_metadata": True, "check_declared": True}),
        ("POST", "/lance/main/v1/table/TWIN$t/describe", {"tag": "tag-of-left"}),
        ("POST", "/lance/main/v1/table/TWIN$t/stats", {}),
        ("POST", "/lance/main/v1/table/TWIN$t/tags/version", {"tag": "tag-of-left"}),
        ("GET", "/console/v1/table?in=main&level=TWIN&level=t", None),
        ("GET", "/console/v1/entries?in=main&level=TWIN", None),
        ("GET", "/console/v1/indices?in=main&level=TWIN&level=t", None),
        ("GET", "/maintenance/v1/policy?in=main&level=TWIN&level=t", None),
    ],
)
def test_descriptions(twins: ServerWithPrincipals, method: str, path: str, body: Any) -> None:
    ask_both(twins, method, path, body)
