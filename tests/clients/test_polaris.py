"""What the Polaris client does beyond the conformance suite."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from lance import write_dataset
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
    RegisterTableRequest,
    RenameTableRequest,
)
from lance_namespace import errors as lance

import lancehouse
from tests.servers.polaris import Polaris

Calls = list[tuple[Callable[[Any], object], Any]]
CATALOG = "test_catalog"
DB = [CATALOG, "db"]


@pytest.fixture
def namespace(polaris: Polaris) -> lancehouse.PolarisNamespace:
    namespace = lancehouse.PolarisNamespace(endpoint=polaris.uri, credential=polaris.credential)
    namespace.create_namespace(CreateNamespaceRequest(id=DB))
    return namespace


@pytest.mark.parametrize("suffix", ["", "/", "/api/catalog", "/api/catalog/"])
def test_the_endpoint_with_or_without_its_path(polaris: Polaris, suffix: str) -> None:
    namespace = lancehouse.PolarisNamespace(endpoint=polaris.uri + suffix, credential=polaris.credential)
    assert namespace.list_namespaces(ListNamespacesRequest(id=[CATALOG])).namespaces == []


def test_nested_namespaces(namespace: lancehouse.PolarisNamespace) -> None:
    for levels in (["a"], ["a", "b.c"], ["a", "b.c", "d/e"]):
        namespace.create_namespace(CreateNamespaceRequest(id=[CATALOG, *levels]))
    listed = namespace.list_namespaces(ListNamespacesRequest(id=[CATALOG, "a"])).namespaces
    assert listed == [f"{CATALOG}.a.b.c"]
    listed = namespace.list_namespaces(ListNamespacesRequest(id=[CATALOG, "a", "b.c"])).namespaces
    assert listed == [f"{CATALOG}.a.b.c.d/e"]
    table = [CATALOG, "a", "b.c", "d/e", "t/x"]
    namespace.declare_table(DeclareTableRequest(id=table, location="s3://b/t"))
    assert namespace.describe_table(DescribeTableRequest(id=table)).location == "s3://b/t"
    with pytest.raises(lance.NamespaceNotFoundError):
        namespace.create_namespace(CreateNamespaceRequest(id=[CATALOG, "nope", "c"]))


def test_doc_is_a_property(namespace: lancehouse.PolarisNamespace, polaris: Polaris) -> None:
    properties = {"doc": "what it is", "owner": "me"}
    declared = namespace.declare_table(DeclareTableRequest(id=[*DB, "t"], location="s3://b/t", properties=properties))
    described = namespace.describe_table(DescribeTableRequest(id=[*DB, "t"]))
    assert declared.properties == described.properties == {**properties, "table_type": "lance"}
    namespace.declare_table(DeclareTableRequest(id=[*DB, "u"], location="s3://b/u"))
    assert namespace.describe_table(DescribeTableRequest(id=[*DB, "u"])).properties == {"table_type": "lance"}


def test_register_where_this_client_cannot_look(namespace: lancehouse.PolarisNamespace, tmp_path: Path) -> None:
    registered = namespace.register_table(RegisterTableRequest(id=[*DB, "far"], location="s3://no-such-bucket/t"))
    assert registered.location == "s3://no-such-bucket/t"
    with pytest.raises(lance.InvalidInputError, match="there is no Lance dataset at"):
        namespace.register_table(RegisterTableRequest(id=[*DB, "near"], location=str(tmp_path / "nothing")))
    assert namespace.list_tables(ListTablesRequest(id=DB)).tables == ["far"]


def test_other_formats(namespace: lancehouse.PolarisNamespace, polaris: Polaris) -> None:
    polaris.seed_generic(CATALOG, "db", "delta", format="delta")
    polaris.seed_generic(CATALOG, "db", "upper", format="LANCE", location="s3://b/upper")
    polaris.seed_iceberg(CATALOG, "db", "ice")
    namespace.declare_table(DeclareTableRequest(id=[*DB, "t"], location="s3://b/t"))
    assert namespace.list_tables(ListTablesRequest(id=DB)).tables == ["t", "upper"]
    calls: Calls = [
        (namespace.describe_table, DescribeTableRequest(id=[*DB, "delta"])),
        (namespace.deregister_table, DeregisterTableRequest(id=[*DB, "delta"])),
        (namespace.drop_table, DropTableRequest(id=[*DB, "delta"])),
    ]
    for call, request in calls:
        with pytest.raises(lance.InvalidInputError, match="its format is 'delta'"):
            call(request)
    with pytest.raises(lance.TableNotFoundError):
        namespace.describe_table(DescribeTableRequest(id=[*DB, "ice"]))
    with pytest.raises(lance.TableAlreadyExistsError):
        namespace.declare_table(DeclareTableRequest(id=[*DB, "ice"], location="s3://b/t"))


def test_the_default_location(namespace: lancehouse.PolarisNamespace, polaris: Polaris) -> None:
    below = namespace.declare_table(DeclareTableRequest(id=[*DB, "t 1"])).location
    assert below == "file:///warehouse/test_catalog/db/t%201"
    rooted = lancehouse.PolarisNamespace(endpoint=polaris.uri, credential=polaris.credential, root="s3://b/x")
    assert rooted.declare_table(DeclareTableRequest(id=[*DB, "t2"])).location == "s3://b/x/test_catalog/db/t2"
    with pytest.raises(lance.NamespaceNotFoundError):
        namespace.declare_table(DeclareTableRequest(id=[CATALOG, "nope", "t"]))


def test_a_table_is_created_by_one_request(namespace: lancehouse.PolarisNamespace, polaris: Polaris) -> None:
    """Polaris 1.4 vends no credentials for generic tables: to ask again would be of no use."""
    namespace.declare_table(DeclareTableRequest(id=[*DB, "first"], location="s3://b/first"))
    sent = len(polaris.requests)
    namespace.declare_table(DeclareTableRequest(id=[*DB, "t"], location="s3://b/t", vend_credentials=True))
    assert [method for method, _ in polaris.requests[sent:]] == ["POST"]


def test_a_namespace_without_a_location(namespace: lancehouse.PolarisNamespace, polaris: Polaris) -> None:
    polaris.seed_namespace(CATALOG, "placeless")
    with pytest.raises(lance.InvalidInputError, match="set the property `root`"):
        namespace.declare_table(DeclareTableRequest(id=[CATALOG, "placeless", "t"]))


def test_missing_catalogs_and_namespaces(namespace: lancehouse.PolarisNamespace) -> None:
    with pytest.raises(lance.NamespaceNotFoundError):
        namespace.list_namespaces(ListNamespacesRequest(id=["no_such_catalog"]))
    with pytest.raises(lance.NamespaceNotFoundError):
        namespace.describe_namespace(DescribeNamespaceRequest(id=[CATALOG, "nope"]))
    with pytest.raises(lance.NamespaceNotFoundError):
        namespace.list_tables(ListTablesRequest(id=[CATALOG, "nope"]))
    for mode in (None, "Fail"):
        with pytest.raises(lance.NamespaceNotFoundError):
            namespace.drop_namespace(DropNamespaceRequest(id=[CATALOG, "nope"], mode=mode))
    namespace.drop_namespace(DropNamespaceRequest(id=[CATALOG, "nope"], mode="skip"))


def test_overwrite_of_a_namespace(namespace: lancehouse.PolarisNamespace) -> None:
    namespace.create_namespace(CreateNamespaceRequest(id=[CATALOG, "x"], properties={"old": "1"}))
    made = namespace.create_namespace(
        CreateNamespaceRequest(id=[CATALOG, "x"], mode="OVERWRITE", properties={"new": "2"})
    )
    assert "old" not in (made.properties or {})
    namespace.declare_table(DeclareTableRequest(id=[CATALOG, "x", "t"], location="s3://b/t"))
    with pytest.raises(lance.NamespaceNotEmptyError):
        namespace.create_namespace(CreateNamespaceRequest(id=[CATALOG, "x"], mode="overwrite"))


def test_what_polaris_cannot_do(namespace: lancehouse.PolarisNamespace, polaris: Polaris) -> None:
    before = len(polaris.requests)
    with pytest.raises(lance.UnsupportedOperationError, match="rename"):
        namespace.rename_table(RenameTableRequest(id=[*DB, "t"], new_table_name="u"))
    with pytest.raises(lance.UnsupportedOperationError, match="Cascade"):
        namespace.drop_namespace(DropNamespaceRequest(id=DB, behavior="cascade"))
    assert len(polaris.requests) == before


@pytest.mark.parametrize("word", ["impl", "IMPL", None], ids=["table", "in capitals", "client"])
def test_generic_tables_have_no_ref_to_move(polaris: Polaris, tmp_path: Path, word: str | None) -> None:
    """The catalog cannot manage their versions; the text names the way out."""
    own = {"managed_by": "impl"} if word is None else {}
    properties = {} if word is None else {"managed_by": word}
    namespace = lancehouse.PolarisNamespace(endpoint=polaris.uri, credential=polaris.credential, **own)
    namespace.create_namespace(CreateNamespaceRequest(id=DB))
    location = str(tmp_path / "t")
    write_dataset(pa.table({"id": [1]}), location)
    calls: Calls = [
        (namespace.declare_table, DeclareTableRequest(id=[*DB, "t"], properties=properties)),
        (namespace.declare_table, DeclareTableRequest(id=[*DB, "t"], location="s3://b/t", properties=properties)),
        (namespace.register_table, RegisterTableRequest(id=[*DB, "t"], location=location, properties=properties)),
    ]
    for call, request in calls:
        with pytest.raises(lance.UnsupportedOperationError) as error:
            call(request)
        words = str(error.value)
        assert words.startswith("table test_catalog.db.t: managed_by=impl is not possible with polaris")
        assert "use the `iceberg` client with the endpoint of Polaris and /api/catalog" in words
    assert namespace.list_tables(ListTablesRequest(id=DB)).tables == []
    stored = DeclareTableRequest(id=[*DB, "t"], location="s3://b/t", properties={"managed_by": "storage"})
    assert namespace.declare_table(stored).managed_versioning is None


def test_a_table_that_somebody_else_wants_managed(namespace: lancehouse.PolarisNamespace, polaris: Polaris) -> None:
    """It can be seen and removed, and nobody writes to it as if it were not."""
    polaris.seed_generic(
        CATALOG,
        "db",
        "t",
        format="lance",
        location="s3://b/t",
        properties={"managed_by": "Impl", "table_type": "lance"},
    )
    polaris.seed_generic(
        CATALOG, "db", "u", format="lance", location="s3://b/u", properties={"managed_by": "me", "table_type": "lance"}
    )
    assert namespace.list_tables(ListTablesRequest(id=DB)).tables == ["t", "u"]
    with pytest.raises(lance.UnsupportedOperationError, match="the `iceberg` client"):
        namespace.describe_table(DescribeTableRequest(id=[*DB, "t"]))
    with pytest.raises(lance.InvalidInputError, match="expected 'storage' or 'impl'"):
        namespace.describe_table(DescribeTableRequest(id=[*DB, "u"]))
    with pytest.raises(lance.InvalidInputError, match="expected 'storage' or 'impl'"):
        namespace.declare_table(DeclareTableRequest(id=[*DB, "v"], properties={"managed_by": "me"}))
    for name in ("t", "u"):
        namespace.deregister_table(DeregisterTableRequest(id=[*DB, name]))
    assert namespace.list_tables(ListTablesRequest(id=DB)).tables == []
