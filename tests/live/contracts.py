"""An OpenAPI document as a promise that a server keeps for any request: by schemathesis.

The documents are found through LANCEHOUSE_SPECS.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import requests
import schemathesis
import yaml
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from schemathesis import Case, GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.core.result import Ok
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

SPECS = os.environ.get("LANCEHOUSE_SPECS", "")
MODES = {"right": GenerationMode.POSITIVE, "wrong": GenerationMode.NEGATIVE}
CHECKS = [not_a_server_error, status_code_conformance, response_schema_conformance]

needs_specs = pytest.mark.skipif(not SPECS, reason="LANCEHOUSE_SPECS names no folder with OpenAPI documents")


def read_document(name: str) -> dict[str, Any]:
    """A document, as JSON would have it."""
    document: dict[str, Any] = json.loads(json.dumps(yaml.safe_load((Path(SPECS) / name).read_text())))
    return document


def operations_of(document: dict[str, Any]) -> dict[str, Any]:
    """All operations of a document by their names."""
    schema = schemathesis.openapi.from_dict(document)
    found = (result.ok() for result in schema.get_all_operations() if isinstance(result, Ok))
    return {operation.definition.raw["operationId"]: operation for operation in found}


def keep_to_it(
    cases: st.SearchStrategy[Case[Any]], url: str, *, before: Callable[[], None], bare: bool, examples: int, soak: bool
) -> None:
    """The answers to made-up requests are as promised.

    Args:
        cases: the requests.
        url: of the server.
        before: is called before each request.
        bare: the answer has no body when all goes well, and so no content type.
        examples: how many requests.
        soak: other ones each time.
    """
    checks = CHECKS if bare else [*CHECKS, content_type_conformance]

    @settings(
        max_examples=examples,
        deadline=None,
        derandomize=not soak,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(case=cases)
    def check(case: Case[Any]) -> None:
        before()
        case.call_and_validate(base_url=url, session=session, checks=checks)

    with requests.Session() as session:
        check()
