"""A table on a real server, and every place of the protocols where a caller's SQL goes in."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from http.client import HTTPConnection
from typing import Any
from urllib.parse import quote, urlencode, urlsplit

import pyarrow as pa

from tests.servers.lancehouse import Served

ROWS = 20_000
FIELDS: Mapping[str, pa.DataType] = {"id": pa.int64(), "s": pa.string(), "b": pa.bool_(), "l": pa.list_(pa.string())}
QUERY = {"k": 3, "vector": {}}


@dataclass(frozen=True)
class Target:
    """The table `t` in the namespace `name`."""

    server: Served
    name: str

    def create(self) -> None:
        """Make it, with enough rows that what a filter makes of each adds up."""
        self.post(f"namespace/{self.name}/create", {})
        numbers = range(ROWS)
        columns = [pa.array(numbers), pa.array(["abc"] * ROWS), pa.array([True] * ROWS), pa.array([["x", "y"]] * ROWS)]
        self.post(f"table/{self.id}/create", raw=stream(pa.table(columns, schema=pa.schema(dict(FIELDS)))))

    @property
    def id(self) -> str:
        return f"{self.name}$t"

    def post(self, path: str, body: object = None, raw: bytes | None = None) -> tuple[int, bytes]:
        """Ask the gateway; errors of creation are failures of the test."""
        status, answer = self.send("POST", f"/lance/{self.server.warehouse}/v1/{path}", body, raw)
        assert status == 200 or "create" not in path, answer
        return status, answer

    def send(self, method: str, path: str, body: object = None, raw: bytes | None = None) -> tuple[int, bytes]:
        connection = HTTPConnection(urlsplit(self.server.uri).netloc, timeout=250)
        kind = "application/json" if raw is None else "application/vnd.apache.arrow.stream"
        try:
            connection.request(method, path, json.dumps(body) if raw is None else raw, {"content-type": kind})
            answer = connection.getresponse()
            return answer.status, answer.read()
        finally:
            connection.close()

    def query(self, filter: str, **more: Any) -> tuple[int, bytes]:
        return self.post(f"table/{self.id}/query", {**QUERY, "filter": filter, **more})

    def count(self, filter: str) -> tuple[int, bytes]:
        return self.post(f"table/{self.id}/count_rows", {"predicate": filter})

    def merge(self, **parameters: str) -> tuple[int, bytes]:
        rows = stream(pa.table([[1], ["z"], [False], [["q"]]], schema=pa.schema(dict(FIELDS))))
        said = urlencode({"on": "id", **parameters}, quote_via=quote)
        return self.post(f"table/{self.id}/merge_insert?{said}", raw=rows)

    def console(self, question: str, filter: str) -> tuple[int, bytes]:
        levels = [("in", self.server.warehouse), ("level", self.name), ("level", "t"), ("filter", filter)]
        return self.send("GET", f"/console/v1/{question}?{urlencode(levels)}")


def stream(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return sink.getvalue().to_pybytes()


Place = Callable[[Target, str], tuple[int, bytes]]

PLACES: Mapping[str, Place] = {
    "query": Target.query,
    "query columns": lambda target, sql: target.query("true", columns={"column_aliases": {"x": sql}}),
    "count": Target.count,
    "explain": lambda target, sql: target.post(f"table/{target.id}/explain_plan", {"query": {**QUERY, "filter": sql}}),
    "explain columns": lambda target, sql: target.post(
        f"table/{target.id}/explain_plan", {"query": {**QUERY, "columns": {"column_aliases": {"x": sql}}}}
    ),
    "analyze": lambda target, sql: target.post(f"table/{target.id}/analyze_plan", {**QUERY, "filter": sql}),
    "delete": lambda target, sql: target.post(f"table/{target.id}/delete", {"predicate": sql}),
    "update": lambda target, sql: target.post(
        f"table/{target.id}/update", {"predicate": sql, "updates": [["b", "true"]]}
    ),
    "update value": lambda target, sql: target.post(
        f"table/{target.id}/update", {"predicate": "id = 1", "updates": [["b", sql]]}
    ),
    "merge matched": lambda target, sql: target.merge(when_matched_update_all_filt=sql),
    "merge unmatched": lambda target, sql: target.merge(
        when_not_matched_insert_all="true", when_not_matched_by_source_delete_filt=sql
    ),
    "add columns": lambda target, sql: target.post(
        f"table/{target.id}/add_columns", {"new_columns": [{"name": "more", "expression": sql}]}
    ),
    "console rows": lambda target, sql: target.console("rows", sql),
    "console count": lambda target, sql: target.console("count", sql),
}
"""Where a caller's SQL goes in; each is given a condition."""

SHORT = frozenset({"merge matched", "merge unmatched", "console rows", "console count"})
"""Places in the address of a request, which takes no long SQL."""
LONGEST_SHORT = 9_999
