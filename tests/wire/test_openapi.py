"""What the emulators answer is what the OpenAPI documents of the real servers promise.

The documents are found through LANCEHOUSE_SPECS. Nulls are left out before the check: the real servers send them for
every field that has no value, and their own documents do not allow them.
"""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from openapi_schema_validator import OAS30Validator, OAS31Validator
from referencing import Registry
from referencing.jsonschema import DRAFT202012

from tests.servers.polaris import Polaris
from tests.servers.unity import Unity
from tests.wire import polaris, unity
from tests.wire.facts import Fact, Reply, Talk

SPECS = os.environ.get("LANCEHOUSE_SPECS", "")
pytestmark = pytest.mark.skipif(not SPECS, reason="LANCEHOUSE_SPECS names no folder with OpenAPI documents")

Document = tuple[str, str]
ICEBERG = ("iceberg-rest-1.11.0.yaml", "spec/iceberg-rest-catalog-open-api.yaml")
GENERIC = ("polaris-generic-tables-1.4.1.yaml", "spec/polaris/generic-tables.yaml")
UNITY = ("unity-catalog-0.6.0.yaml", "spec/unity.yaml")
"""Each document, and an address from which its references to the others lead there."""

SPACE = r"/v1/\w+/namespaces"
POLARIS_SCHEMAS = [
    (f"POST {SPACE}", ICEBERG, "CreateNamespaceResponse"),
    (f"GET {SPACE}/[^/]+", ICEBERG, "GetNamespaceResponse"),
    (f"GET {SPACE}", ICEBERG, "ListNamespacesResponse"),
    (f"POST {SPACE}/[^/]+/properties", ICEBERG, "UpdateNamespacePropertiesResponse"),
    (f"GET {SPACE}/[^/]+/tables", ICEBERG, "ListTablesResponse"),
    (f"(GET|POST) {SPACE}/[^/]+/tables(/[^/]+)?", ICEBERG, "LoadTableResult"),
    (f"GET /polaris{SPACE}/[^/]+/generic-tables", GENERIC, "ListGenericTablesResponse"),
    (f"(GET|POST) /polaris{SPACE}/[^/]+/generic-tables(/[^/]+)?", GENERIC, "LoadGenericTableResponse"),
    ("GET /v1/config", ICEBERG, "CatalogConfig"),
]
UNITY_SCHEMAS = [
    ("GET /catalogs", UNITY, "ListCatalogsResponse"),
    ("(GET|POST|PATCH) /schemas(/.+)?", UNITY, "SchemaInfo"),
    ("GET /tables", UNITY, "ListTablesResponse"),
    ("(GET|POST) /tables(/.+)?", UNITY, "TableInfo"),
]
MORE_POLARIS = [
    Fact("config", "GET", "/v1/config?warehouse=test_catalog", 200),
    Fact("update alone", "POST", f"{polaris.SPACES}/p1/properties", 200, {"updates": {"a": "b"}}),
    Fact("no config", "GET", "/v1/config?warehouse=nope", 404),
]
POLARIS_FACTS = polaris.FACTS + MORE_POLARIS
UNITY_FACTS = [fact for fact in unity.FACTS if not fact.path.startswith("/iceberg/")]


@pytest.fixture(scope="module")
def registry() -> Registry[Any]:
    resources = [
        (address, DRAFT202012.create_resource(yaml.safe_load((Path(SPECS) / file).read_text())))
        for file, address in (ICEBERG, GENERIC, UNITY)
    ]
    return Registry[Any]().with_resources(resources)


def conforms(answer: Any, document: Document, schema: str, registry: Registry[Any]) -> None:
    kind = OAS30Validator if document is UNITY else OAS31Validator
    reference = {"$ref": f"{document[1]}#/components/schemas/{schema}"}
    errors = [f"{error.json_path}: {error.message}" for error in kind(reference, registry=registry).iter_errors(answer)]
    assert not errors, (schema, answer)


def without_nulls(value: Any) -> Any:
    match value:
        case dict():
            return {key: without_nulls(item) for key, item in value.items() if item is not None}
        case list():
            return [without_nulls(item) for item in value]
    return value


def schema_of(fact: Fact, schemas: list[tuple[str, Document, str]]) -> tuple[Document, str]:
    line = f"{fact.method} {fact.path.partition('?')[0]}"
    return next((document, schema) for pattern, document, schema in schemas if re.fullmatch(pattern, line))


def json_lines(facts: list[Fact]) -> list[int]:
    """The lines that are answered in JSON; one of the set-up lines is enough."""
    wanted = [n for n, fact in enumerate(facts) if fact.method not in ("HEAD", "DELETE") or fact.type]
    return [n for n in wanted if not re.match(r"set-up b\d(?!00)", facts[n].case)]


@pytest.fixture(scope="module")
def polaris_replies() -> list[Reply]:
    with Polaris("test_catalog") as server:
        talk = Talk(server.iceberg_uri, {"Authorization": f"Bearer {server.token()}"})
        replies = talk.replay(POLARIS_FACTS)
        talk.close()
    return replies


@pytest.fixture(scope="module")
def unity_replies() -> list[Reply]:
    with Unity(unity.CATALOG) as server:
        talk = Talk(server.api)
        replies = talk.replay(UNITY_FACTS)
        talk.close()
    return replies


@pytest.mark.parametrize("line", json_lines(POLARIS_FACTS), ids=lambda line: POLARIS_FACTS[line].case)
def test_polaris(polaris_replies: list[Reply], registry: Registry[Any], line: int) -> None:
    status, text = polaris_replies[line]
    answer = without_nulls(json.loads(text))
    if status >= 400:
        conforms(answer, ICEBERG, "IcebergErrorResponse", registry)
        return
    conforms(answer, *schema_of(POLARIS_FACTS[line], POLARIS_SCHEMAS), registry)


@pytest.mark.parametrize("line", json_lines(UNITY_FACTS), ids=lambda line: UNITY_FACTS[line].case)
def test_unity(unity_replies: list[Reply], registry: Registry[Any], line: int) -> None:
    status, text = unity_replies[line]
    answer = without_nulls(json.loads(text))
    if status >= 400:  # the document says nothing of errors
        assert {"error_code", "message"} <= set(answer)
        return
    conforms(answer, *schema_of(UNITY_FACTS[line], UNITY_SCHEMAS), registry)


@pytest.mark.parametrize(("secret", "schema"), [("s3cr3t", "OAuthTokenResponse"), ("wrong", "OAuthError")])
def test_tokens(registry: Registry[Any], secret: str, schema: str) -> None:
    form = f"grant_type=client_credentials&client_id=root&client_secret={secret}&scope=PRINCIPAL_ROLE:ALL"
    with Polaris() as server:
        talk = Talk(server.iceberg_uri, {"Content-Type": "application/x-www-form-urlencoded"})
        _, text = talk.send_raw("POST", "/v1/oauth/tokens", form.encode())
        talk.close()
    conforms(json.loads(text), ICEBERG, schema, registry)
