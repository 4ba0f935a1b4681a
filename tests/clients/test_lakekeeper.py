"""The `lakekeeper` client on an emulator that follows the specification, beside Lakekeeper's own Python client."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest
import yaml
from lance_namespace import (
    CreateNamespaceRequest,
    DeclareTableRequest,
    DeregisterTableRequest,
    DescribeTableRequest,
    DropTableRequest,
    ListTablesRequest,
    RegisterTableRequest,
    RenameTableRequest,
    TableNotFoundError,
)
from lance_namespace.errors import (
    InvalidInputError,
    NamespaceNotFoundError,
    PermissionDeniedError,
    TableAlreadyExistsError,
    UnauthenticatedError,
    UnsupportedOperationError,
)
from openapi_schema_validator import OAS31Validator
from pylakekeeper import Client, StaticToken
from pylakekeeper.errors import LakekeeperError
from referencing import Registry
from referencing.jsonschema import DRAFT202012

import lancehouse
from lancehouse.clients import catalog_namespace
from tests.servers.faults import FaultProxy, lost_answer
from tests.servers.lakekeeper import Lakekeeper
from tests.servers.loopback import Answer, Request

SPECS = os.environ.get("LANCEHOUSE_SPECS", "")
SPEC = "lakekeeper-generic-tables-2026-08.yaml"
NAMESPACE, TABLE = ["wh", "db"], ["wh", "db", "docs"]


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Lakekeeper]:
    """An empty warehouse `wh`."""
    with Lakekeeper("wh", root=tmp_path.as_uri()) as lakekeeper:
        yield lakekeeper


def client_of(server: Lakekeeper, **properties: str) -> lancehouse.LakekeeperNamespace:
    """A client, with the namespace `db`."""
    client = lancehouse.LakekeeperNamespace(endpoint=server.uri, auth_token=server.token, **properties)
    client.create_namespace(CreateNamespaceRequest(id=NAMESPACE, mode="ExistOk"))
    return client


@pytest.fixture
def client(server: Lakekeeper) -> Iterator[lancehouse.LakekeeperNamespace]:
    """Our client, with the namespace `db`."""
    with client_of(server) as client:
        yield client


@pytest.fixture
def theirs(server: Lakekeeper) -> Iterator[Client]:
    """Lakekeeper's own client."""
    with Client(
        base_url=server.uri, warehouse=server.warehouses["wh"].id, auth=StaticToken(server.token)
    ) as lakekeeper:
        yield lakekeeper


def test_pylance_writes_and_reads_by_name(client: lancehouse.LakekeeperNamespace) -> None:
    rows = pa.table({"id": [1, 2, 3]})
    lance.write_dataset(rows, namespace_client=client, table_id=TABLE, mode="create")
    lance.write_dataset(rows, namespace_client=client, table_id=TABLE, mode="append")
    assert lance.dataset(namespace_client=client, table_id=TABLE).count_rows() == 6


def test_lakekeepers_client_sees_our_tables(client: lancehouse.LakekeeperNamespace, theirs: Client) -> None:
    client.declare_table(DeclareTableRequest(id=TABLE, properties={"a": "b", "doc": "What it is."}))
    table = theirs.generic_tables.load("db", "docs").table
    described = client.describe_table(DescribeTableRequest(id=TABLE))
    assert (table.format, table.base_location, table.doc) == ("lance", described.location, "What it is.")
    assert table.properties["a"] == "b"
    theirs.generic_tables.drop("db", "docs")
    with pytest.raises(TableNotFoundError):
        client.describe_table(DescribeTableRequest(id=TABLE))


def test_tables_of_lakekeepers_client_are_ours(client: lancehouse.LakekeeperNamespace, theirs: Client) -> None:
    for number in range(5):
        theirs.generic_tables.create("db", f"t{number}", format="lance", properties={"n": str(number)})
    theirs.generic_tables.create("db", "other", format="delta")
    tables = client.list_tables(ListTablesRequest(id=NAMESPACE, include_declared=True)).tables
    assert sorted(tables) == [f"t{number}" for number in range(5)]
    assert {item.name for item in theirs.generic_tables.list("db")} == {*tables, "other"}
    described = client.describe_table(DescribeTableRequest(id=["wh", "db", "t3"]))
    assert described.location == theirs.generic_tables.load("db", "t3").table.base_location
    assert (described.properties or {})["n"] == "3"


def test_a_table_of_another_format_is_no_lance_table(client: lancehouse.LakekeeperNamespace, theirs: Client) -> None:
    theirs.generic_tables.create("db", "other", format="delta")
    with pytest.raises(InvalidInputError, match="not a Lance table: its format is 'delta'"):
        client.describe_table(DescribeTableRequest(id=["wh", "db", "other"]))
    with pytest.raises(TableAlreadyExistsError):
        client.declare_table(DeclareTableRequest(id=["wh", "db", "other"]))


def test_credentials_are_vended_when_asked_for(tmp_path: Path) -> None:
    vended = {"s3.access-key-id": "key", "s3.secret-access-key": "secret", "client.region": "eu-central-1"}
    with Lakekeeper("wh", root="s3://bucket", credentials=vended) as server, client_of(server) as client:
        client.declare_table(DeclareTableRequest(id=TABLE))
        plain = client.describe_table(DescribeTableRequest(id=TABLE, vend_credentials=False)).storage_options or {}
        options = client.describe_table(DescribeTableRequest(id=TABLE, vend_credentials=True)).storage_options or {}
    assert "aws_access_key_id" not in plain
    assert (options["aws_access_key_id"], options["aws_secret_access_key"]) == ("key", "secret")


def test_a_new_table_has_credentials() -> None:
    """The server's response to a creation has none."""
    vended = {"s3.access-key-id": "key", "s3.secret-access-key": "secret", "client.region": "eu-central-1"}
    with (
        Lakekeeper("wh", root="s3://bucket", credentials=vended) as server,
        client_of(server, vend_credentials="true") as client,
    ):
        options = client.declare_table(DeclareTableRequest(id=TABLE)).storage_options or {}
        sent = len(server.requests)
        plain = client.declare_table(DeclareTableRequest(id=["wh", "db", "plain"], vend_credentials=False))
        assert [method for method, target in server.requests[sent:] if "generic-tables" in target] == ["POST"]
    assert (options["aws_access_key_id"], options["aws_region"]) == ("key", "eu-central-1")
    assert "aws_access_key_id" not in (plain.storage_options or {})


def test_data_is_not_purged_by_the_server(server: Lakekeeper, client: lancehouse.LakekeeperNamespace) -> None:
    """It would purge it by default, also of a table that is only deregistered."""
    lance.write_dataset(pa.table({"id": [1]}), namespace_client=client, table_id=TABLE, mode="create")
    location = client.deregister_table(DeregisterTableRequest(id=TABLE)).location
    assert location is not None
    client.register_table(RegisterTableRequest(id=TABLE, location=location))
    client.drop_table(DropTableRequest(id=TABLE))
    assert server.purged == []


def test_a_table_that_is_dropped_while_tables_are_listed(
    server: Lakekeeper, client: lancehouse.LakekeeperNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    client.declare_table(DeclareTableRequest(id=TABLE))
    client.declare_table(DeclareTableRequest(id=["wh", "db", "other"]))
    load = Lakekeeper._load

    def drop_before(emulator: Lakekeeper, request: Request, table: dict[str, Any]) -> Answer:
        server.warehouses["wh"].namespaces["db",].tables.pop("other", None)
        return load(emulator, request, table)

    monkeypatch.setattr(Lakekeeper, "_load", drop_before)
    monkeypatch.setattr(catalog_namespace, "CONNECTIONS", 1)
    assert client.list_tables(ListTablesRequest(id=NAMESPACE)).tables == ["docs"]


def test_what_is_protected_stays(server: Lakekeeper, client: lancehouse.LakekeeperNamespace) -> None:
    client.declare_table(DeclareTableRequest(id=TABLE))
    server.warehouses["wh"].namespaces["db",].tables["docs"]["protected"] = True
    with pytest.raises(PermissionDeniedError, match="Cannot delete protected tabular docs"):
        client.deregister_table(DeregisterTableRequest(id=TABLE))
    with pytest.raises(PermissionDeniedError, match="Cannot delete protected tabular docs"):
        client.drop_table(DropTableRequest(id=TABLE))


def test_a_location_that_another_table_has(client: lancehouse.LakekeeperNamespace) -> None:
    location = client.declare_table(DeclareTableRequest(id=TABLE)).location
    with pytest.raises(InvalidInputError, match="already taken by another table"):
        client.declare_table(DeclareTableRequest(id=["wh", "db", "other"], location=location))


def test_a_table_whose_creation_was_looked_up_has_credentials(tmp_path: Path) -> None:
    vended = {"s3.access-key-id": "key", "s3.secret-access-key": "secret", "client.region": "eu-central-1"}
    with (
        Lakekeeper("wh", root="s3://bucket", credentials=vended) as server,
        FaultProxy(server.uri) as proxy,
        lancehouse.LakekeeperNamespace(endpoint=proxy.uri, auth_token=server.token) as client,
    ):
        client.create_namespace(CreateNamespaceRequest(id=NAMESPACE))
        proxy.add(lost_answer, method="POST", path="/generic-tables$")
        options = client.declare_table(DeclareTableRequest(id=TABLE, vend_credentials=True)).storage_options or {}
    assert options.get("aws_access_key_id") == "key"


def test_a_table_gets_another_name(client: lancehouse.LakekeeperNamespace) -> None:
    location = client.declare_table(DeclareTableRequest(id=TABLE)).location
    client.create_namespace(CreateNamespaceRequest(id=["wh", "db", "inner"]))
    client.rename_table(RenameTableRequest(id=TABLE, new_table_name="papers", new_namespace_id=["wh", "db", "inner"]))
    renamed = client.describe_table(DescribeTableRequest(id=["wh", "db", "inner", "papers"]))
    assert renamed.location == location
    with pytest.raises(TableNotFoundError):
        client.rename_table(RenameTableRequest(id=TABLE, new_table_name="x"))
    client.declare_table(DeclareTableRequest(id=TABLE, location=f"{location}-2"))
    client.declare_table(DeclareTableRequest(id=["wh", "db", "taken"]))
    with pytest.raises(TableAlreadyExistsError):
        client.rename_table(RenameTableRequest(id=TABLE, new_table_name="taken"))
    with pytest.raises(NamespaceNotFoundError):
        client.rename_table(RenameTableRequest(id=TABLE, new_table_name="x", new_namespace_id=["wh", "none"]))
    with pytest.raises(InvalidInputError, match="would change its warehouse"):
        client.rename_table(RenameTableRequest(id=TABLE, new_table_name="x", new_namespace_id=["other", "db"]))


@pytest.mark.parametrize("call", ["create", "rename"])
def test_a_lost_answer_is_looked_up(server: Lakekeeper, call: str) -> None:
    with FaultProxy(server.uri) as proxy:
        client = lancehouse.LakekeeperNamespace(endpoint=proxy.uri, auth_token=server.token)
        client.create_namespace(CreateNamespaceRequest(id=NAMESPACE))
        path = "/generic-tables$" if call == "create" else "/generic-tables/rename$"
        if call == "rename":
            client.declare_table(DeclareTableRequest(id=TABLE))
        proxy.add(lost_answer, method="POST", path=path)
        if call == "create":
            client.declare_table(DeclareTableRequest(id=TABLE))
        else:
            client.rename_table(RenameTableRequest(id=TABLE, new_table_name="other"))
    tables = server.warehouses["wh"].namespaces["db",].tables
    assert list(tables) == ["docs" if call == "create" else "other"]


def test_the_warehouse_is_asked_for_once(server: Lakekeeper, client: lancehouse.LakekeeperNamespace) -> None:
    client.declare_table(DeclareTableRequest(id=TABLE))
    client.describe_table(DescribeTableRequest(id=TABLE))
    prefix = server.warehouses["wh"].id
    targets = [target.partition("?")[0] for _, target in server.requests]
    assert targets.count("/catalog/v1/config") == 1
    assert targets[-1] == f"/lakekeeper/v1/{prefix}/namespaces/db/generic-tables/docs"


@pytest.mark.parametrize("ending", ["", "/catalog", "/catalog/v1"])
def test_the_endpoint_may_be_icebergs(server: Lakekeeper, ending: str) -> None:
    client = lancehouse.LakekeeperNamespace(endpoint=server.uri + ending, auth_token=server.token)
    client.create_namespace(CreateNamespaceRequest(id=NAMESPACE))
    assert client.list_tables(ListTablesRequest(id=NAMESPACE)).tables == []


def test_what_is_wrong_is_said(server: Lakekeeper, client: lancehouse.LakekeeperNamespace) -> None:
    with pytest.raises(NamespaceNotFoundError, match="nowhere"):
        client.list_tables(ListTablesRequest(id=["nowhere", "db"]))
    with pytest.raises(UnauthenticatedError):
        lancehouse.LakekeeperNamespace(endpoint=server.uri, auth_token="another").list_tables(
            ListTablesRequest(id=NAMESPACE)
        )
    with pytest.raises(UnsupportedOperationError, match="/catalog"):
        client.declare_table(DeclareTableRequest(id=TABLE, properties={"managed_by": "impl"}))


# The emulator beside the specification


class Recorder(Lakekeeper):
    """Keeps what it answers."""

    def __init__(self, *warehouses: str, **options: Any) -> None:
        self.replies: list[tuple[Request, Answer]] = []
        super().__init__(*warehouses, **options)

    def answer(self, request: Request) -> Answer:
        answer = super().answer(request)
        self.replies.append((request, answer))
        return answer


SCHEMAS = [
    (r"GET .*/generic-tables", "ListGenericTablesResponse"),
    (r"POST .*/generic-tables", "LoadGenericTableResponse"),
    (r"GET .*/generic-tables/[^/]+", "LoadGenericTableResponse"),
    (r"GET .*/generic-tables/[^/]+/credentials", "LoadGenericTableCredentialsResponse"),
]


@pytest.mark.skipif(not SPECS, reason="LANCEHOUSE_SPECS names no folder with OpenAPI documents")
def test_the_emulator_answers_as_the_specification_says(tmp_path: Path) -> None:
    document = DRAFT202012.create_resource(yaml.safe_load((Path(SPECS) / SPEC).read_text()))
    registry = Registry[Any]().with_resource("spec", document)
    vended = {"s3.access-key-id": "key"}
    with Recorder("wh", root=tmp_path.as_uri(), credentials=vended) as server:
        client = client_of(server)
        ours = Client(base_url=server.uri, warehouse=server.warehouses["wh"].id, auth=StaticToken(server.token))
        with ours as lakekeeper:
            for number in range(5):
                lakekeeper.generic_tables.create("db", f"t{number}", format="lance", doc="d", properties={"a": "b"})
            assert len(list(lakekeeper.generic_tables.list("db"))) == 5
            assert lakekeeper.generic_tables.load("db", "t0", vended=True).storage_credentials
            for wrong in (("db", "none"), ("none", "t0")):
                with pytest.raises(LakekeeperError):
                    lakekeeper.generic_tables.load(*wrong)
            client.rename_table(RenameTableRequest(id=["wh", "db", "t0"], new_table_name="u0"))
            lakekeeper.generic_tables.drop("db", "u0")
    checked = set()
    for request, answer in server.replies:
        if not request.path.startswith("/lakekeeper/"):
            continue
        line = f"{request.method} {request.path}"
        if answer.status == 204:
            assert answer.body == b""
            continue
        schema = "IcebergErrorResponse"
        if answer.status == 200:
            schema = next(name for pattern, name in SCHEMAS if re.fullmatch(pattern, line))
        reference = {"$ref": f"spec#/components/schemas/{schema}"}
        errors = list(OAS31Validator(reference, registry=registry).iter_errors(yaml.safe_load(answer.body)))
        assert not errors, (line, errors)
        checked.add(schema)
    assert checked == {"IcebergErrorResponse", "ListGenericTablesResponse", "LoadGenericTableResponse"}
