"""Filters as people write them: through the server they find the rows that pylance finds."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import lance
import pyarrow as pa
import pytest

from tests.gateway.test_sql import COUNT, TABLE
from tests.live.gateways import ask
from tests.servers.lancehouse import Served, start_lancehouse

JSON = {"content-type": "application/json"}
DAY_US = 86_400_000_000
FIRST_US = 18_262 * DAY_US
"""The first of January 2020."""

MORE: dict[str, Any] = {
    "tz": pa.array([FIRST_US + row * DAY_US for row in range(COUNT)], pa.timestamp("us", "UTC")),
    "js": pa.array([json.dumps({"a": {"b": row}, "n": str(row), "l": [row]}) for row in range(COUNT)], pa.json_()),
    "ll": pa.array([[row, row + 1] for row in range(COUNT)], pa.list_(pa.int64())),
    "deep": pa.array([{"in": {"k": row, "Name x": f"n{row}"}, "arr": [{"q": row}]} for row in range(COUNT)]),
    "m": pa.array([[("k", row)] for row in range(COUNT)], pa.map_(pa.string(), pa.int64())),
    "u8": pa.array(range(COUNT), pa.uint8()),
}

FILTERS = (
    "d = date '2020-01-03'",
    "d >= DATE '2020-01-03' AND d < date '2020-01-06'",
    "ts > timestamp '2020-01-03 00:00:00'",
    "ts < TIMESTAMP '2020-01-03T01:02:03.000456'",
    "tz > timestamp '2020-01-03 00:00:00'",
    "tz = to_timestamp('2020-01-03T00:00:00Z')",
    "ts > now()",
    "ts BETWEEN timestamp '2020-01-02 00:00:00' AND timestamp '2020-01-05 00:00:00'",
    "date_part('month', ts) = 1",
    "date_trunc('day', ts) = timestamp '2020-01-03 00:00:00'",
    "s LIKE 'a%'",
    "s LIKE '%b%'",
    "s NOT LIKE '%b%'",
    "s ILIKE 'A%'",
    "s LIKE 'g\\%h'",
    "s like '_bc'",
    "regexp_like(s, '^a.c$')",
    "regexp_match(s, '^a') IS NOT NULL",
    "regexp_replace(s, 'a', 'x') = 'xbc'",
    "starts_with(s, 'ab')",
    "ends_with(s, 'bc')",
    "contains(s, 'b')",
    "strpos(s, 'b') = 2",
    "array_has(l, 'x')",
    "array_contains(l, 'x')",
    "array_has_any(l, ['x','w'])",
    "array_has_all(l, make_array('x','y'))",
    "list_has(ll, 3)",
    "array_length(ll) = 2",
    "cardinality(ll) = 2",
    "ll[1] = 3",
    "3 IN (1,2,3)",
    "json_get_int(js, 'n') = 1",
    "json_extract(js, '$.a.b') = '1'",
    "json_get_string(js, 'n') = '3'",
    "json_exists(js, '$.a')",
    "json_array_contains(js, '$.l', 1)",
    "json_array_length(js, '$.l') = 1",
    "st.x = 1",
    "st.y IS NOT NULL",
    "deep.`in`.k = 3",
    "`deep`.`in`.`k` = 3",
    "deep.`in`.`Name x` = 'n3'",
    "deep['in']['k'] = 3",
    "get_field(st, 'x') = 1",
    "deep.arr[1].q = 3",
    "`with space` = 'abc'",
    "\"with space\" = 'abc'",
    "`q\"q` = 'a'",
    "`Case` = 3",
    "map_extract(m, 'k') = [3]",
    "cast(id as string) = '7'",
    "cast(id as int) = 7",
    "cast(id as double) > 0.5",
    "cast(f as float) > 0.5",
    "cast(ts as date) = date '2020-01-03'",
    "cast('2020-01-03' as date) = d",
    "cast(id as smallint) = 7",
    "cast(price as decimal(10,2)) = cast(1.23 as decimal(10,2))",
    "price > decimal(10,2) '1.23'",
    "cast(d as timestamp) > ts",
    "cast(id as bigint unsigned) = 7",
    "try_cast(s as int) IS NULL",
    "id IN (1, 2, 7)",
    "id NOT IN (1, 2, 7)",
    "id BETWEEN 1 AND 7",
    "id NOT BETWEEN 1 AND 7",
    "id IS NULL",
    "id IS NOT NULL",
    "b IS TRUE",
    "b IS NOT TRUE",
    "b",
    "NOT b",
    "id + 1 = 2",
    "id * 2 - 1 > 3",
    "id / 2 = 1",
    "id % 2 = 1",
    "-id = -7",
    "id = -1",
    "f = 1e-1",
    "f > 1.5E2",
    "f = 1e3",
    "f < .5",
    "raw = 0x616263",
    "raw = X'616263'",
    "id IS DISTINCT FROM 1",
    "id == 1",
    "id <> 1",
    "s = 'it''s'",
    's = "abc"',
    "s = 'abc' AND (id = 0 OR b) AND NOT (f > 1)",
    "length(s) > 2",
    "char_length(s) > 2",
    "lower(s) = 'abc'",
    "upper(s) = 'ABC'",
    "left(s, 1) = 'a'",
    "concat(s, 'x') = 'abcx'",
    "s || 'x' = 'abcx'",
    "coalesce(s, '') = ''",
    "nullif(s, 'abc') IS NULL",
    "ifnull(s, 'q') = 'q'",
    "greatest(id, 2) = 7",
    "abs(id) = 1",
    "round(f) = 1000",
    "round(f, 1) = 0.3",
    "power(id, 2) = 49",
    "pow(id,2) = 49",
    "sqrt(id) > 1",
    "isnan(f)",
    "signum(id) = 1",
    "md5(s) = 'x'",
    "sha256(s) = X'00'",
    "to_timestamp(small) > ts",
    "from_unixtime(small) < ts",
    "to_date('2020-01-03') = d",
    "current_date > d",
    "current_timestamp > ts",
    "now() > ts",
    "make_date(2020,1,3) = d",
    "to_char(d, '%Y-%m') = '2020-01'",
    "date_format(d, '%Y-%m') = '2020-01'",
    "date_bin(interval '1 day', ts) = timestamp '2020-01-03 00:00:00'",
    "split_part(s, 'b', 1) = 'a'",
    "replace(s, 'b', 'x') = 'axc'",
    "reverse(s) = 'cba'",
    "ascii(s) = 97",
    "chr(97) = left(s,1)",
    "initcap(s) = 'Abc'",
    "_rowid = 3",
    "_rowid IN (1,2)",
    "_rowaddr = 3",
    "u8 = 3",
    "true",
    "1 = 1",
    "s IS NOT NULL AND s != ''",
    "s in ('abc') or s is null",
    "l IS NULL",
    "array_length(l) > 1",
    "array_position(l, 'y') = 2",
    "l[1] = 'x'",
    "array_element(ll, 1) = 3",
    "array_to_string(l, ',') = 'x,y'",
    "string_to_array(s, 'b') = ['a','c']",
    "encode(raw, 'hex') = '616263'",
    "id >= 1 -- comment",
    "/* c */ id >= 1",
    "id >= 1;",
)


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Served, lance.LanceDataset]]:
    """A server with the table `db$t`, and the same table as pylance sees it."""
    rows = pa.table({**{name: TABLE[name] for name in TABLE.schema.names}, **MORE})
    with start_lancehouse(tmp_path_factory.mktemp("filters")) as server:
        assert ask(server, "POST", "/lance/main/v1/namespace/db/create", b"{}", JSON).status == 200
        declared = ask(server, "POST", "/lance/main/v1/table/db$t/declare", b"{}", JSON)
        yield server, lance.write_dataset(rows, declared.json["location"], data_storage_version="2.2")


@pytest.mark.parametrize("filter", FILTERS)
def test_a_filter_finds_the_rows_that_pylance_finds(table: tuple[Served, lance.LanceDataset], filter: str) -> None:
    server, dataset = table
    expected = dataset.scanner(columns=["small"], filter=filter).to_table()["small"].to_pylist()
    asked = {"k": 0, "vector": {}, "filter": filter, "columns": {"column_names": ["small"]}}
    found = ask(server, "POST", "/lance/main/v1/table/db$t/query", json.dumps(asked).encode(), JSON)
    assert found.status == 200, found.body
    assert pa.ipc.open_file(found.body).read_all()["small"].to_pylist() == expected
    counted = ask(
        server, "POST", "/lance/main/v1/table/db$t/count_rows", json.dumps({"predicate": filter}).encode(), JSON
    )
    assert (counted.status, counted.json) == (200, len(expected))
