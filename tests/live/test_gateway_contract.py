"""What the OpenAPI document of the Lance REST Namespace promises holds for any request: by schemathesis."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pytest
import schemathesis
from hypothesis import strategies as st
from schemathesis import Case, GenerationMode

from lancehouse.gateway.operations import OPERATIONS, ResponseEncoding
from tests.live.contracts import MODES, SPECS, keep_to_it, needs_specs, operations_of, read_document
from tests.live.gateways import post, send, stream
from tests.servers.lancehouse import Served

pytestmark = needs_specs

DOCUMENT = "lance-rest-namespace-0.11.1.yaml"
ARROW = "application/vnd.apache.arrow.stream"
ALSO = {406: "UnsupportedOperationErrorResponse", 409: "ConflictErrorResponse", 429: "ServiceUnavailableErrorResponse"}
"""Answers that the specification's table of errors allows everywhere, and its document forgets in places."""
BARE = {each.name for each in OPERATIONS if each.response is ResponseEncoding.NOTHING}

ROWS = pa.table(
    {
        "id": pa.array(range(10), pa.int64()),
        "word": pa.array([f"word {number}" for number in range(10)]),
        "vector": pa.array([[float(number)] * 4 for number in range(10)], pa.list_(pa.float32(), 4)),
    }
)
NAMESPACE, TABLES, TAG, INDEX = "seeded", ("plain", "managed", "declared"), "first", "word_idx"


def read_promises() -> dict[str, Any]:
    """The document, with the errors that belong to every operation."""
    document = read_document(DOCUMENT)
    for path in document["paths"].values():
        for method, operation in path.items():
            if method != "parameters":
                for status, name in ALSO.items():
                    operation["responses"].setdefault(str(status), {"$ref": f"#/components/responses/{name}"})
    return document


@cache
def operations() -> dict[str, Any]:
    """All operations by their names."""
    schemathesis.openapi.media_type(ARROW, st.sampled_from([stream(ROWS), stream(ROWS.slice(0, 0)), b"", b"no rows"]))
    return operations_of(read_promises())


class GatewaySeeds:
    """Things that are there, so that requests lead further than to a 404."""

    def __init__(self, server: Served) -> None:
        self._server = server

    def sow(self) -> None:
        """Make what an earlier request has removed."""
        if post(self._server, f"namespace/{NAMESPACE}/exists")[0] != 200:
            post(self._server, f"namespace/{NAMESPACE}/create")
        for name in TABLES:
            path = f"table/{NAMESPACE}${name}"
            if post(self._server, f"{path}/exists")[0] == 200:
                continue
            managed = {"managed_by": "impl"} if name == "managed" else {}
            post(self._server, f"{path}/declare", {"properties": managed})
            if name != "declared":
                send(self._server, "POST", f"/lance/main/v1/{path}/insert", stream(ROWS))
                post(self._server, f"{path}/tags/create", {"tag": TAG, "version": 1})
                index = {"column": "word", "index_type": "BTREE", "name": INDEX}
                post(self._server, f"{path}/create_scalar_index", index)


@st.composite
def cases(draw: st.DrawFn, name: str, operation: Any, mode: GenerationMode) -> Case[Any]:
    """A request as the document allows it, or does not, mostly about something that is there."""
    known = draw(st.sampled_from([True, True, True, False]))
    path: dict[str, Any] = {}
    if known and "{id}" in operation.path:
        path["id"] = draw(st.sampled_from(_ids(operation.path)))
    if known and "{index_name}" in operation.path:
        path["index_name"] = INDEX
    case: Case[Any] = draw(operation.as_strategy(mode, path_parameters=path))
    if known:
        case.query.pop("delimiter", None)
    if isinstance(case.body, dict) and known:
        case.body.pop("id", None)
        if draw(st.booleans()) and (deepen := DEEPER.get(name)):
            case.body = deepen(draw, case.body)
    return case


def _ids(path: str) -> list[str]:
    tables = [f"{NAMESPACE}${name}" for name in TABLES]
    if "/transaction/" in path:
        return [f"{table}$1" for table in tables]
    return [NAMESPACE, f"new_{uuid4().hex[:8]}"] if "/namespace/" in path else tables


Deepen = Callable[[st.DrawFn, dict[str, Any]], dict[str, Any]]
COLUMNS = st.sampled_from(["id", "word", "vector", "missing"])
PREDICATES = st.sampled_from(["id > 3", "word = 'word 1'", "id IN (1, 2)", "nonsense(", "vector = 1", "true"])


def _over(**fields: st.SearchStrategy[Any]) -> Deepen:
    """Some fields as somebody would set them who knows the tables."""
    return lambda draw, body: body | {name: draw(each) for name, each in fields.items() if draw(st.booleans())}


def _but(*names: str) -> Deepen:
    return lambda _, body: {key: value for key, value in body.items() if key not in names}


VECTORS = st.sampled_from(
    [{}, {"single_vector": [1.0] * 4}, {"multi_vector": [[1.0] * 4] * 2}, {"single_vector": [1.0]}]
)
QUERIES = _over(
    k=st.integers(0, 20),
    vector=VECTORS,
    filter=PREDICATES,
    columns=st.sampled_from([{"column_names": ["id"]}, {"column_aliases": {"a": "id + 1"}}]),
    version=st.integers(1, 2),
    vector_column=COLUMNS,
    branch=st.none(),
)
DEEPER: Mapping[str, Deepen] = {
    "QueryTable": QUERIES,
    "AnalyzeTableQueryPlan": QUERIES,
    "CountTableRows": _over(predicate=PREDICATES, version=st.integers(0, 3), branch=st.none()),
    "DeleteFromTable": _over(predicate=PREDICATES, branch=st.none()),
    "UpdateTable": _over(
        predicate=PREDICATES, updates=st.lists(st.tuples(COLUMNS, st.sampled_from(["1", "id + 1", "'x'"])).map(list))
    ),
    "AlterTableDropColumns": _over(columns=st.lists(COLUMNS, max_size=2)),
    "AlterTableAddColumns": _over(
        new_columns=st.sampled_from([[{"name": "more", "expression": "id + 1"}], [{"name": "id", "expression": "1"}]])
    ),
    "AlterTableAlterColumns": _over(
        alterations=st.sampled_from([[{"path": "word", "rename": "text"}], [{"path": "id", "nullable": True}]])
    ),
    "CreateTableIndex": _over(
        column=COLUMNS, index_type=st.sampled_from(["BTREE", "BITMAP", "IVF_PQ", "IVF_FLAT", "FTS", "odd"])
    ),
    "CreateTableScalarIndex": _over(
        column=COLUMNS, index_type=st.sampled_from(["BTREE", "BITMAP", "LABEL_LIST", "odd"])
    ),
    "CreateTableTag": _over(tag=st.sampled_from([TAG, "other"]), version=st.integers(1, 3), branch=st.none()),
    "UpdateTableTag": _over(tag=st.sampled_from([TAG, "other"]), version=st.integers(1, 3), branch=st.none()),
    "DeleteTableTag": _over(tag=st.sampled_from([TAG, "other"])),
    "GetTableTagVersion": _over(tag=st.sampled_from([TAG, "other"])),
    "RestoreTable": _over(version=st.integers(1, 3), branch=st.none()),
    "DescribeTable": _but("branch", "tag"),
    "DescribeTableVersion": _over(version=st.integers(1, 3), branch=st.none()),
    "CreateTableBranch": _over(name=st.sampled_from(["side", "other"]), from_version=st.integers(1, 2)),
    "BatchDeleteTableVersions": _over(ranges=st.just([{"start_version": 1, "end_version": 2}]), branch=st.none()),
    "RenameTable": _over(new_table_name=st.sampled_from(["renamed", *TABLES]), new_namespace_id=st.just([NAMESPACE])),
    "CreateNamespace": _over(mode=st.sampled_from(["Create", "exist_ok", "Overwrite"])),
    "DropNamespace": _over(mode=st.sampled_from(["Skip", "FAIL"]), behavior=st.just("Restrict")),
    "DeclareTable": _but("location"),
}


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", sorted(operations()) if SPECS else [])
def test_answers_are_as_promised(own_server: Served, name: str, mode: str, soak: bool) -> None:
    requests = cases(name, operations()[name], MODES[mode])
    keep_to_it(
        requests,
        f"{own_server.uri}/lance/main",
        before=GatewaySeeds(own_server).sow,
        bare=name in BARE,
        examples=300 if soak else 5,
        soak=soak,
    )
