"""What Iceberg's OpenAPI document promises holds for any request that can be made up from it: by schemathesis."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any
from uuid import UUID, uuid4

import lance
import pyarrow as pa
import pytest
from hypothesis import strategies as st
from schemathesis import Case, GenerationMode

from tests.live.committers import SCHEMA, CommitClient
from tests.live.contracts import MODES, SPECS, keep_to_it, needs_specs, operations_of, read_document
from tests.servers.lancehouse import Served

pytestmark = needs_specs

DOCUMENT = "iceberg-rest-1.11.0.yaml"
BARE, WRAPPED = "#/components/schemas/ErrorModel", "#/components/schemas/IcebergErrorResponse"
NOT_OFFERED = frozenset({"signRequest"})
NAMESPACE = "seeded"
TABLES = ("lance", "managed", "iceberg")
VIEW = "view"


def read_promises() -> dict[str, Any]:
    """The document, with errors in the envelope that is on the wire also where it forgets that."""
    document = read_document(DOCUMENT)
    responses = [document["components"]["responses"]]
    responses += [operation["responses"] for path in document["paths"].values() for operation in _operations(path)]
    for response in (response for group in responses for response in group.values()):
        schema = response.get("content", {}).get("application/json", {}).get("schema", {})
        if schema.get("$ref") == BARE:
            schema["$ref"] = WRAPPED
    return document


def _operations(path: Mapping[str, Any]) -> list[Any]:
    return [operation for method, operation in path.items() if method != "parameters"]


@cache
def operations() -> dict[str, Any]:
    """All operations by their names."""
    return operations_of(read_promises())


class ServerSeeds:
    """Things that are there, so that requests lead further than to a 404."""

    def __init__(self, server: Served) -> None:
        self._client = CommitClient(server.tables, "contract")
        self.dataset = str(server.location / f"dataset_{uuid4().hex[:8]}")
        lance.write_dataset(pa.table({"id": [1, 2, 3], "word": ["a", "b", None]}), self.dataset)

    def sow(self) -> None:
        """Make what an earlier request has removed."""
        self._client.send("POST", "/namespaces", {"namespace": [NAMESPACE]})
        for name, properties in (
            ("lance", {"table_type": "lance"}),
            ("managed", {"table_type": "lance", "managed_by": "impl"}),
            ("iceberg", {}),
        ):
            place = {"location": self.dataset} if name == "lance" else {}
            table = {"name": name, "schema": SCHEMA, "properties": properties, **place}
            self._client.send("POST", f"/namespaces/{NAMESPACE}/tables", table)
        query = {"type": "sql", "sql": "SELECT 1", "dialect": "spark"}
        version = {
            "version-id": 1,
            "timestamp-ms": 1,
            "schema-id": 0,
            "summary": {"engine": "test"},
            "representations": [query],
            "default-namespace": [NAMESPACE],
        }
        view = {"name": VIEW, "schema": SCHEMA, "view-version": version, "properties": {}}
        self._client.send("POST", f"/namespaces/{NAMESPACE}/views", view)

    def close(self) -> None:
        self._client.close()


@st.composite
def cases(draw: st.DrawFn, operation: Any, mode: GenerationMode, warehouse: str, dataset: str) -> Case[Any]:
    """A request as the document allows it, or does not, mostly about something that is there."""
    path: dict[str, Any] = {"prefix": warehouse} if "{prefix}" in operation.path else {}
    if draw(st.sampled_from([True, True, True, False])):
        known = {"namespace": NAMESPACE, "view": VIEW, "table": draw(st.sampled_from(TABLES))}
        path |= {key: value for key, value in known.items() if f"{{{key}}}" in operation.path}
    case: Case[Any] = draw(operation.as_strategy(mode, path_parameters=path))
    if "Idempotency-Key" in case.headers and draw(st.booleans()):
        case.headers["Idempotency-Key"] = _new_key()
    if isinstance(case.body, dict) and draw(st.booleans()):
        operation_id = operation.definition.raw["operationId"]
        if deepen := DEEPER.get(operation_id):
            case.body = deepen(draw, case.body, dataset)
    return case


def _new_key() -> str:
    """A UUID of version 7, which no request had before."""
    made = uuid4()
    return str(UUID(int=made.int & ~(0xF << 76) | 0x7 << 76))


Deepen = Callable[[st.DrawFn, dict[str, Any], str], dict[str, Any]]


def _creatable(draw: st.DrawFn, body: dict[str, Any], dataset: str) -> dict[str, Any]:
    kinds = [{}, {"table_type": "lance"}, {"table_type": "LANCE", "managed_by": "impl"}]
    properties = {"properties": draw(st.sampled_from(kinds))}
    return {key: value for key, value in body.items() if key != "location"} | properties


def _registrable(draw: st.DrawFn, body: dict[str, Any], dataset: str) -> dict[str, Any]:
    return body | {"metadata-location": dataset}


def _renamable(draw: st.DrawFn, body: dict[str, Any], dataset: str) -> dict[str, Any]:
    return body | {"source": {"namespace": [NAMESPACE], "name": draw(st.sampled_from([*TABLES, VIEW]))}}


def _committable(draw: st.DrawFn, body: dict[str, Any], dataset: str) -> dict[str, Any]:
    changes = body.get("table-changes")
    if not isinstance(changes, list):
        return body
    names = [draw(st.sampled_from(TABLES)) for _ in changes]
    return body | {
        "table-changes": [
            change | {"identifier": {"namespace": [NAMESPACE], "name": name}} if isinstance(change, dict) else change
            for name, change in zip(names, changes, strict=True)
        ]
    }


def _unconditional(draw: st.DrawFn, body: dict[str, Any], dataset: str) -> dict[str, Any]:
    return body | {"requirements": []}


def _plannable(draw: st.DrawFn, body: dict[str, Any], dataset: str) -> dict[str, Any]:
    kept = {key: value for key, value in body.items() if key not in ("snapshot-id", "select", "stats-fields")}
    return {key: value for key, value in kept.items() if not key.endswith("snapshot-id")}


DEEPER: Mapping[str, Deepen] = {
    "createTable": _creatable,
    "registerTable": _registrable,
    "renameTable": _renamable,
    "renameView": _renamable,
    "commitTransaction": _committable,
    "updateTable": _unconditional,
    "replaceView": _unconditional,
    "planTableScan": _plannable,
}


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", sorted(operations().keys() - NOT_OFFERED) if SPECS else [])
def test_answers_are_as_promised(own_server: Served, name: str, mode: str, soak: bool) -> None:
    operation = operations()[name]
    seeds = ServerSeeds(own_server)
    requests = cases(operation, MODES[mode], own_server.warehouse, seeds.dataset)
    bare = operation.method == "head"
    try:
        keep_to_it(requests, own_server.iceberg, before=seeds.sow, bare=bare, examples=400 if soak else 6, soak=soak)
    finally:
        seeds.close()
