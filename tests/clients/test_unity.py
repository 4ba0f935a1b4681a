"""What the Unity client does beyond the conformance suite."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest
from lance_namespace import (
    CreateNamespaceRequest,
    DeclareTableRequest,
    DeregisterTableRequest,
    DescribeNamespaceRequest,
    DescribeTableRequest,
    DropNamespaceRequest,
    DropTableRequest,
    ListNamespacesRequest,
    ListTablesRequest,
    NamespaceExistsRequest,
    RegisterTableRequest,
    RenameTableRequest,
    errors,
)

import lancehouse
from lancehouse.schema.jsonarrow import from_jsonarrow
from tests.servers.faults import FaultProxy, Forward, answer_always
from tests.servers.loopback import Answer, Request
from tests.servers.unity import Unity

Calls = list[tuple[Callable[[Any], object], Any]]
CATALOG = "lance_test"
DB = [CATALOG, "db"]


@pytest.fixture
def namespace(unity: Unity, tmp_path: Path) -> lancehouse.UnityNamespace:
    unity.seed_schema(CATALOG, "db")
    return lancehouse.UnityNamespace(endpoint=unity.uri, catalog=CATALOG, root=str(tmp_path))


@pytest.mark.parametrize("suffix", ["", "/", "/api/2.1/unity-catalog", "/api/2.1/unity-catalog/"])
def test_the_endpoint_with_or_without_its_path(unity: Unity, suffix: str) -> None:
    namespace = lancehouse.UnityNamespace(endpoint=unity.uri + suffix, catalog=CATALOG)
    assert namespace.list_namespaces(ListNamespacesRequest(id=[CATALOG])).namespaces == []


def test_three_levels(namespace: lancehouse.UnityNamespace) -> None:
    assert namespace.list_namespaces(ListNamespacesRequest(id=[])).namespaces == [CATALOG]
    assert namespace.list_namespaces(ListNamespacesRequest()).namespaces == [CATALOG]
    assert namespace.list_namespaces(ListNamespacesRequest(id=[CATALOG])).namespaces == ["db"]
    calls: Calls = [
        (namespace.list_namespaces, ListNamespacesRequest(id=DB)),
        (namespace.describe_namespace, DescribeNamespaceRequest(id=[CATALOG])),
        (namespace.describe_namespace, DescribeNamespaceRequest(id=[*DB, "x"])),
        (namespace.create_namespace, CreateNamespaceRequest(id=[CATALOG])),
        (namespace.create_namespace, CreateNamespaceRequest(id=[*DB, "x"])),
        (namespace.list_tables, ListTablesRequest(id=[CATALOG])),
        (namespace.declare_table, DeclareTableRequest(id=DB)),
        (namespace.describe_table, DescribeTableRequest(id=[*DB, "t", "u"])),
        (namespace.describe_namespace, DescribeNamespaceRequest(id=[CATALOG, "a.b"])),
    ]
    for call, request in calls:
        with pytest.raises(errors.InvalidInputError):
            call(request)


def test_levels_joined_by_dollars(namespace: lancehouse.UnityNamespace) -> None:
    namespace.declare_table(DeclareTableRequest(id=[f"{CATALOG}$db$t"], location="s3://b/t"))
    assert namespace.describe_table(DescribeTableRequest(id=[f"{CATALOG}$db", "t"])).location == "s3://b/t"
    assert namespace.list_tables(ListTablesRequest(id=[f"{CATALOG}$db"])).tables == ["t"]
    for parent in ([], [CATALOG], DB):
        assert namespace.list_all_tables(ListTablesRequest(id=parent)).tables == [f"{CATALOG}$db$t"]


@pytest.mark.parametrize(
    ("operation", "request_", "expected"),
    [
        ("create_namespace", CreateNamespaceRequest(id=["other", "db"]), errors.InvalidInputError),
        ("declare_table", DeclareTableRequest(id=["other", "db", "t"]), errors.InvalidInputError),
        ("describe_table", DescribeTableRequest(id=["other", "db", "t"]), errors.InvalidInputError),
        ("deregister_table", DeregisterTableRequest(id=["other", "db", "t"]), errors.InvalidInputError),
        ("drop_table", DropTableRequest(id=["other", "db", "t"]), errors.InvalidInputError),
        ("list_namespaces", ListNamespacesRequest(id=["other"]), errors.NamespaceNotFoundError),
        ("describe_namespace", DescribeNamespaceRequest(id=["other", "db"]), errors.NamespaceNotFoundError),
        ("namespace_exists", NamespaceExistsRequest(id=["other", "db"]), errors.NamespaceNotFoundError),
        ("drop_namespace", DropNamespaceRequest(id=["other", "db"]), errors.NamespaceNotFoundError),
        ("list_tables", ListTablesRequest(id=["other", "db"]), errors.NamespaceNotFoundError),
    ],
)
def test_another_catalog(
    namespace: lancehouse.UnityNamespace, unity: Unity, operation: str, request_: Any, expected: type[Exception]
) -> None:
    before = len(unity.requests)
    with pytest.raises(expected, match="other"):
        getattr(namespace, operation)(request_)
    assert len(unity.requests) == before


@pytest.mark.parametrize(
    ("status", "code", "expected"),
    [
        (404, "CATALOG_DOES_NOT_EXIST", errors.NamespaceNotFoundError),
        (404, "NOT_FOUND", errors.NamespaceNotFoundError),
        (409, "ALREADY_EXISTS", errors.NamespaceAlreadyExistsError),
    ],
)
def test_errors_of_schemas_by_status(unity: Unity, status: int, code: str, expected: type[Exception]) -> None:
    """Databricks and earlier versions of Unity Catalog have other names for them."""
    with FaultProxy(unity.uri) as proxy:
        namespace = lancehouse.UnityNamespace(endpoint=proxy.uri, catalog=CATALOG)
        refusal = answer_always(status, json.dumps({"error_code": code, "message": "no"}))
        proxy.add(refusal, path="/schemas", times=2)
        with pytest.raises(expected):
            namespace.create_namespace(CreateNamespaceRequest(id=[CATALOG, "new"]))
        if status == 404:
            with pytest.raises(expected):
                namespace.list_namespaces(ListNamespacesRequest(id=[CATALOG]))


def test_more_than_a_page(namespace: lancehouse.UnityNamespace, unity: Unity) -> None:
    for number in range(230):
        properties = {"table_type": "Lance"} if number % 2 else {}
        unity.seed_table(
            CATALOG, "db", f"t{number:03}", format="TEXT", location=f"s3://b/{number}", properties=properties
        )
    tables = namespace.list_tables(ListTablesRequest(id=DB)).tables
    assert tables == [f"t{number:03}" for number in range(1, 230, 2)]


def test_a_table_of_another_kind(namespace: lancehouse.UnityNamespace, unity: Unity) -> None:
    unity.seed_table(CATALOG, "db", "delta", format="DELTA", location="s3://b/d")
    assert namespace.list_tables(ListTablesRequest(id=DB)).tables == []
    calls: Calls = [
        (namespace.describe_table, DescribeTableRequest(id=[*DB, "delta"])),
        (namespace.deregister_table, DeregisterTableRequest(id=[*DB, "delta"])),
        (namespace.drop_table, DropTableRequest(id=[*DB, "delta"])),
    ]
    for call, request in calls:
        with pytest.raises(errors.InvalidInputError, match="is not a Lance table"):
            call(request)


def test_cascade(namespace: lancehouse.UnityNamespace) -> None:
    namespace.declare_table(DeclareTableRequest(id=[*DB, "t"]))
    with pytest.raises(errors.NamespaceNotEmptyError):
        namespace.drop_namespace(DropNamespaceRequest(id=DB))
    namespace.drop_namespace(DropNamespaceRequest(id=DB, behavior="cascade"))
    with pytest.raises(errors.NamespaceNotFoundError):
        namespace.drop_namespace(DropNamespaceRequest(id=DB))
    namespace.drop_namespace(DropNamespaceRequest(id=DB, mode="Skip"))


SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        pa.field("emb", pa.list_(pa.float32(), 4)),
        pa.field("tags", pa.list_(pa.struct([pa.field("k", pa.string()), pa.field("v", pa.decimal128(10, 2))]))),
        pa.field("at", pa.timestamp("us", tz="UTC")),
    ]
)


@pytest.mark.parametrize("by", ["declare", "register"])
def test_columns_come_from_the_dataset(
    namespace: lancehouse.UnityNamespace, unity: Unity, tmp_path: Path, by: str
) -> None:
    location = str(tmp_path / "there")
    lance.write_dataset(SCHEMA.empty_table(), location)
    if by == "declare":
        namespace.declare_table(DeclareTableRequest(id=[*DB, "t"], location=location))
    else:
        namespace.register_table(RegisterTableRequest(id=[*DB, "t"], location=location))
    columns = namespace._tables.get(namespace._parse_table_id([*DB, "t"])).columns or []
    assert [(column["name"], column["type_name"]) for column in columns] == [
        ("id", "LONG"),
        ("emb", "ARRAY"),
        ("tags", "ARRAY"),
        ("at", "TIMESTAMP"),
    ]
    described = namespace.describe_table(DescribeTableRequest(id=[*DB, "t"]))
    assert described.location == f"file://{location}"
    assert described.var_schema is not None
    assert from_jsonarrow(described.var_schema) == SCHEMA


def test_a_declared_table_learns_its_schema_from_the_data(namespace: lancehouse.UnityNamespace) -> None:
    declared = namespace.declare_table(DeclareTableRequest(id=[*DB, "t"]))
    assert namespace.describe_table(DescribeTableRequest(id=[*DB, "t"])).var_schema is None
    lance.write_dataset(SCHEMA.empty_table(), declared.location or "")
    described = namespace.describe_table(DescribeTableRequest(id=[*DB, "t"]))
    assert described.var_schema is not None
    assert from_jsonarrow(described.var_schema) == SCHEMA


def test_vended_credentials(unity: Unity) -> None:
    unity.seed_schema(CATALOG, "db")
    with FaultProxy(unity.uri) as proxy:
        body = (
            '{"aws_temp_credentials": {"access_key_id": "k", "secret_access_key": "s", "session_token": "t"},'
            ' "expiration_time": 7}'
        )
        proxy.add(answer_always(200, body), method="POST", path="temporary-table-credentials")
        namespace = lancehouse.UnityNamespace(endpoint=proxy.uri, catalog=CATALOG, **{"storage.region": "eu"})
        unity.seed_table(
            CATALOG,
            "db",
            "t",
            format="TEXT",
            location="file:///nowhere/t",
            properties={"table_type": "lance", "owner": "me"},
        )
        request = DescribeTableRequest(id=[*DB, "t"], vend_credentials=True)
        assert namespace.describe_table(request).storage_options == {
            "region": "eu",
            "aws_access_key_id": "k",
            "aws_secret_access_key": "s",
            "aws_session_token": "t",
            "expires_at_millis": "7",
        }


@pytest.mark.parametrize(
    ("statuses", "own", "asked"),
    [
        ((403, 200), {}, ["READ_WRITE", "READ"]),
        ((403,), {"storage.aws_secret_access_key": "own"}, ["READ_WRITE"]),
        ((403, 403), {}, ["READ_WRITE", "READ"]),
        ((400,), {}, ["READ_WRITE"]),
    ],
    ids=["to read only", "own keys", "refused", "not set up"],
)
def test_credentials_that_do_not_come(
    unity: Unity, statuses: tuple[int, ...], own: dict[str, str], asked: list[str]
) -> None:
    """By default the client takes what it gets, and works without."""
    unity.seed_schema(CATALOG, "db")
    unity.seed_table(
        CATALOG, "db", "t", format="TEXT", location="file:///nowhere/t", properties={"table_type": "lance"}
    )
    body = '{"aws_temp_credentials": {"access_key_id": "k", "secret_access_key": "s", "session_token": "t"}}'
    with FaultProxy(unity.uri) as proxy:
        answers = iter(statuses)

        def answer(request: Request, forward: Forward) -> Answer:
            status = next(answers)
            return answer_always(status, body if status == 200 else "{}")(request, forward)

        proxy.add(answer, method="POST", path="temporary-table-credentials", times=2)
        namespace = lancehouse.UnityNamespace(endpoint=proxy.uri, catalog=CATALOG, max_retries="0", **own)
        options = namespace.describe_table(DescribeTableRequest(id=[*DB, "t"])).storage_options or {}
        assert ("aws_access_key_id" in options) == (200 in statuses)
        sent = [path for method, path in proxy.requests if "temporary" in path]
    assert len(sent) == len(asked)


def test_unity_cannot_rename(namespace: lancehouse.UnityNamespace) -> None:
    with pytest.raises(errors.UnsupportedOperationError, match="rename"):
        namespace.rename_table(RenameTableRequest(id=[*DB, "t"], new_table_name="u"))


@pytest.mark.parametrize("word", ["impl", "IMPL", None], ids=["table", "in capitals", "client"])
def test_external_tables_have_no_ref_to_move(unity: Unity, tmp_path: Path, word: str | None) -> None:
    """The catalog cannot manage their versions; the text names the way out."""
    unity.seed_schema(CATALOG, "db")
    own = {"managed_by": "impl"} if word is None else {}
    properties = {} if word is None else {"managed_by": word}
    namespace = lancehouse.UnityNamespace(endpoint=unity.uri, catalog=CATALOG, root=str(tmp_path), **own)
    location = str(tmp_path / "there")
    lance.write_dataset(pa.table({"id": [1]}), location)
    calls: Calls = [
        (namespace.declare_table, DeclareTableRequest(id=[*DB, "t"], properties=properties)),
        (namespace.declare_table, DeclareTableRequest(id=[*DB, "t"], location=location, properties=properties)),
        (namespace.register_table, RegisterTableRequest(id=[*DB, "t"], location=location, properties=properties)),
    ]
    for call, request in calls:
        with pytest.raises(errors.UnsupportedOperationError) as error:
            call(request)
        words = str(error.value)
        assert words.startswith("table lance_test.db.t: managed_by=impl is not possible with unity")
        assert "an Iceberg REST server, with the `iceberg` client" in words
    assert namespace.list_tables(ListTablesRequest(id=DB)).tables == []
    stored = DeclareTableRequest(id=[*DB, "t"], properties={"managed_by": "storage"})
    assert namespace.declare_table(stored).managed_versioning is None


def test_a_table_that_somebody_else_wants_managed(namespace: lancehouse.UnityNamespace, unity: Unity) -> None:
    properties = {"table_type": "lance", "managed_by": "Impl"}
    unity.seed_table(CATALOG, "db", "t", format="TEXT", location="s3://b/t", properties=properties)
    assert namespace.list_tables(ListTablesRequest(id=DB)).tables == ["t"]
    with pytest.raises(errors.UnsupportedOperationError, match="the `iceberg` client"):
        namespace.describe_table(DescribeTableRequest(id=[*DB, "t"]))
    with pytest.raises(errors.InvalidInputError, match="expected 'storage' or 'impl'"):
        namespace.declare_table(DeclareTableRequest(id=[*DB, "v"], properties={"managed_by": "me"}))
    namespace.deregister_table(DeregisterTableRequest(id=[*DB, "t"]))
    assert namespace.list_tables(ListTablesRequest(id=DB)).tables == []


LONG = "s3cr3t" * 43
"""258 characters."""


@pytest.mark.parametrize(
    "properties", [{"k": LONG}, {"k": "ü" * 256}, {"k" * 256: "v"}], ids=["value", "umlauts", "key"]
)
def test_properties_that_are_too_long(
    namespace: lancehouse.UnityNamespace, unity: Unity, properties: dict[str, str]
) -> None:
    """The server would answer 500, in the words of its database."""
    before = len(unity.requests)
    calls: Calls = [
        (namespace.declare_table, DeclareTableRequest(id=[*DB, "t"], properties=properties)),
        (namespace.create_namespace, CreateNamespaceRequest(id=[CATALOG, "other"], properties=properties)),
    ]
    for call, request in calls:
        with pytest.raises(
            errors.InvalidInputError, match=r"at most 255 characters; .* property 'k.* has 25[68]$"
        ) as no:
            call(request)
        assert "s3cr3t" not in str(no.value)
    assert [request for request in unity.requests[before:] if request[0] == "POST"] == []


@pytest.mark.parametrize("length", [255, 256])
def test_names_and_values_that_just_fit(namespace: lancehouse.UnityNamespace, length: int) -> None:
    table = DeclareTableRequest(id=[*DB, "t" * length], properties={"k": "v" * 255}, location="s3://b/t")
    schema = CreateNamespaceRequest(id=[CATALOG, "s" * length], properties={"k" * 255: "v"})
    calls: Calls = [(namespace.declare_table, table), (namespace.create_namespace, schema)]
    for call, request in calls:
        if length == 255:
            call(request)
        else:
            with pytest.raises(errors.InvalidInputError, match="the name has 256"):
                call(request)
