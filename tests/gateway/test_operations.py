from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import yaml

from lancehouse.gateway.operations import OPERATIONS, RequestEncoding, ResponseEncoding

SPEC = "lance-rest-namespace-0.11.1.yaml"
BODIES = {
    (): (RequestEncoding.QUERY, RequestEncoding.JSON),  # dropping takes no body, but one does no harm
    ("application/json",): (RequestEncoding.JSON, RequestEncoding.PAIRS),
    ("application/vnd.apache.arrow.stream",): (RequestEncoding.ARROW,),
}


@pytest.fixture(scope="module")
def paths() -> dict[str, Any]:
    folder = os.environ.get("LANCEHOUSE_SPECS")
    if not folder:
        pytest.skip("set LANCEHOUSE_SPECS to the folder with the OpenAPI documents")
    found: dict[str, Any] = yaml.safe_load((Path(folder) / SPEC).read_text())["paths"]
    return found


def test_every_operation_is_where_the_specification_has_it(paths: dict[str, Any]) -> None:
    specified = {
        (operation["operationId"], method.upper(), path)
        for path, methods in paths.items()
        for method, operation in methods.items()
        if method != "parameters"
    }
    assert {(each.name, each.method, f"/v1/{each.path}") for each in OPERATIONS} == specified


@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda each: each.name)
def test_it_comes_and_goes_in_the_form_of_the_specification(operation: Any, paths: dict[str, Any]) -> None:
    specified = paths[f"/v1/{operation.path}"][operation.method.lower()]
    assert operation.body in BODIES[tuple(specified.get("requestBody", {}).get("content", ()))]
    done = next(status for status in specified["responses"] if 200 <= status < 300)
    assert operation.status == done
    answer = specified["responses"][done].get("$ref", "").rpartition("/")[2] or None
    expected = {
        "QueryTableResponse": ResponseEncoding.ARROW,
        "CountTableRowsResponse": ResponseEncoding.NUMBER,
        "ExplainTableQueryPlanResponse": ResponseEncoding.TEXT,
        "AnalyzeTableQueryPlanResponse": ResponseEncoding.TEXT,
        None: ResponseEncoding.PAIRS if operation.body is RequestEncoding.PAIRS else ResponseEncoding.NOTHING,
    }
    assert operation.response is expected.get(answer, ResponseEncoding.JSON)
    assert operation.model.__name__.endswith("Request")
