"""The Lance protocol at `/lance`: what speaks it, unmodified, on tables that live in our catalog and in others."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPConnection
from pathlib import Path
from urllib.parse import quote, urlsplit
from uuid import uuid4

import lance
import lancedb
import numpy as np
import pyarrow as pa
import pytest
from lance_namespace import (
    CreateNamespaceRequest,
    DeclareTableRequest,
    DescribeTableRequest,
    ListNamespacesRequest,
    ListTablesRequest,
)
from lance_namespace.errors import TableNotFoundError
from lance_namespace_urllib3_client.models.identity import Identity

from lancehouse.catalog.callers import Grant, Role
from lancehouse.catalog.principals import Principals
from lancehouse.conformance.results import CheckOutcome
from lancehouse.conformance.runner import run
from lancehouse.conformance.target import ConformanceTarget
from lancehouse.store.database import Database
from tests.live.gateways import (
    ALL,
    Footprint,
    ask,
    client,
    forget_peak,
    insert,
    numbers,
    post,
    send,
    start_gateway,
    stream,
    until,
)
from tests.servers.lancehouse import Served

OF_THE_CLIENT = {"versions.describe", "versions.describe_missing", "versions.delete"}
"""Pylance's own client of the protocol takes no models for these: a TypeError, before it asks anybody."""
NOT_IN_THE_CLIENT = {"connection.pickle", "columns.field_metadata"}
NO_ROOT = {"entries.list_all"}
"""The operation names no namespace, and these catalogs do not tell their warehouses."""
RENAMES = {"entries.rename", "entries.rename_across", "entries.rename_missing", "entries.rename_to_existing"}

ROWS = 120_000


@pytest.fixture
def db(gateway: Served) -> str:
    """An empty namespace of the server's own warehouse."""
    name = f"db_{uuid4().hex[:8]}"
    client(gateway).create_namespace(CreateNamespaceRequest(id=[name]))
    return name


@pytest.mark.parametrize(
    ("backend", "parent", "unsupported"),
    [
        ("main", (), set()),
        pytest.param("reference", ("wh",), NO_ROOT, marks=pytest.mark.soak),
        pytest.param("polaris", ("test_catalog",), RENAMES | NO_ROOT, marks=pytest.mark.soak),
        pytest.param("unity", ("lance_test",), RENAMES, marks=pytest.mark.soak),
    ],
)
def test_the_suite_holds_through_the_gateway(
    gateway: Served, tmp_path: Path, backend: str, parent: tuple[str, ...], unsupported: set[str]
) -> None:
    root = gateway.location / "tables" if backend == "main" else tmp_path
    report = run(
        ConformanceTarget("rest", {"uri": f"{gateway.uri}/lance/{backend}"}, parent, root=str(root), entries=12)
    )
    assert {result.check for result in report.with_outcome(CheckOutcome.FAILS)} == OF_THE_CLIENT
    assert {result.check for result in report.with_outcome(CheckOutcome.UNSUPPORTED)} == NOT_IN_THE_CLIENT | unsupported
    assert report.trouble == []


@pytest.mark.soak
def test_a_folder_has_no_faults_that_it_has_not_by_itself(gateway: Served, tmp_path: Path) -> None:
    """Lance's `dir` has many; what our code does in its place heals some."""

    def faults(target: ConformanceTarget) -> set[str]:
        report = run(target)
        assert report.trouble == []
        return {result.check for result in report.with_outcome(CheckOutcome.FAILS)}

    alone = faults(ConformanceTarget("dir", {"root": str(tmp_path)}, root=str(tmp_path), entries=12))
    behind = faults(ConformanceTarget("rest", {"uri": f"{gateway.uri}/lance/folder"}, root=str(tmp_path), entries=12))
    assert behind < alone | OF_THE_CLIENT


@pytest.mark.parametrize("backend", ["main", "reference", "folder"])
def test_lance_reads_and_writes_by_name(gateway: Served, backend: str) -> None:
    namespace = client(gateway, backend)
    home = {"main": [], "reference": ["wh"], "folder": []}[backend] + [f"db_{uuid4().hex[:8]}"]
    namespace.create_namespace(CreateNamespaceRequest(id=home))
    table = [*home, "t"]
    lance.write_dataset(pa.table({"id": range(3)}), namespace_client=namespace, table_id=table, mode="create")
    lance.write_dataset(pa.table({"id": range(3, 5)}), namespace_client=namespace, table_id=table, mode="append")
    dataset = lance.dataset(namespace_client=namespace, table_id=table)
    assert (dataset.version, dataset.count_rows()) == (2, 5)
    assert namespace.list_tables(ListTablesRequest(id=home)).tables == ["t"]
    listed = namespace.list_namespaces(ListNamespacesRequest(id=home[:-1])).namespaces
    assert home[-1] in listed  # relative to its parent
    with pytest.raises(TableNotFoundError):
        namespace.describe_table(DescribeTableRequest(id=[*home, "missing"]))


def test_all_tables_of_a_warehouse_page_by_page(tmp_path: Path) -> None:
    with start_gateway(tmp_path, {}) as server:
        admin = client(server)
        for levels in (["a"], ["a", "deep"], ["b"]):
            admin.create_namespace(CreateNamespaceRequest(id=levels))
            full = [*levels, "full"]
            lance.write_dataset(pa.table({"id": [1]}), namespace_client=admin, table_id=full, mode="create")
            admin.declare_table(DeclareTableRequest(id=[*levels, "declared"]))

        def walk(query: str = "", headers: dict[str, str] | None = None) -> list[list[str]]:
            pages, token = [], ""
            while True:
                more = f"&page_token={token}" if token else ""
                status, answer = send(server, "GET", f"/lance/main/v1/table?{query}{more}", None, headers)
                assert status == 200
                pages.append(answer["tables"])
                if not (token := answer.get("page_token")):
                    return pages

        tables = ["a$declared", "a$full", "a$deep$declared", "a$deep$full", "b$declared", "b$full"]
        assert walk() == [tables]
        assert walk("limit=4") == [tables[:4], tables[4:]]
        assert walk("delimiter=.") == [[name.replace("$", ".") for name in tables]]
        assert [name for page in walk("limit=2&include_declared=false") for name in page] == tables[1::2]
        assert send(server, "GET", "/lance/main/v1/table?limit=-1")[0] == 400
        database = Database(f"sqlite:///{tmp_path / 'catalog.db'}")
        principals = Principals(database)
        principals.create("ada", [Grant(Role.READER, "main", ("a", "deep"))])
        token = {"x-api-key": principals.create_token("ada", "test")}
        database.close()
        until(lambda: send(server, "GET", "/lance/main/v1/table")[0] == 401, "nobody is asked who they are")
        assert walk(headers=token) == [tables[2:4]]


def test_writers_of_a_table_that_the_catalog_manages_commit_through_it(gateway: Served, db: str) -> None:
    namespace = client(gateway)
    declared = namespace.declare_table(DeclareTableRequest(id=[db, "t"], properties={"managed_by": "impl"}))
    assert declared.managed_versioning is True
    assert send(gateway, "POST", f"/lance/main/v1/table/{db}$t/insert", stream(pa.table({"id": [0]})))[0] == 200

    def add(number: int) -> None:
        rows = pa.table({"id": [number]})
        lance.write_dataset(rows, namespace_client=client(gateway), table_id=[db, "t"], mode="append")

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(add, range(1, 9)))
    dataset = lance.dataset(namespace_client=namespace, table_id=[db, "t"])
    assert sorted(dataset.to_table()["id"].to_pylist()) == list(range(9))
    status, loaded = send(gateway, "GET", f"/iceberg/v1/main/namespaces/{db}/tables/t")
    assert (status, loaded["metadata"]["current-snapshot-id"]) == (200, dataset.version)
    plain = lance.dataset(declared.location)
    assert (plain.version, plain.count_rows()) == (dataset.version, 9)


def test_lancedb_works_through_it(gateway: Served, db: str) -> None:
    there = lancedb.connect_namespace("rest", {"uri": f"{gateway.uri}/lance/main"})
    rows = [{"id": number, "vector": [float(number), 0.0]} for number in range(20)]
    table = there.create_table("v", rows, namespace_path=[db])
    assert table.count_rows() == 20
    assert [row["id"] for row in table.search([7.0, 0.0]).limit(1).to_list()] == [7]
    table.add([{"id": 99, "vector": [99.0, 0.0]}])
    assert there.open_table("v", namespace_path=[db]).count_rows() == 21
    there.drop_table("v", namespace_path=[db])
    assert there.list_tables(namespace_path=[db]).tables == []


def vectors(count: int) -> pa.Table:
    numbers = np.arange(count * 128, dtype=np.float32)
    return pa.table({"id": np.arange(count), "vector": pa.FixedSizeListArray.from_arrays(pa.array(numbers), 128)})


def there_and_back(server: Served, path: str, rows: pa.Table, body: bytes) -> None:
    """Put rows in the place of all others, and read them."""
    status, made = send(server, "POST", f"{path}/insert?mode=overwrite", body)
    assert (status, made["num_inserted_rows"]) == (200, rows.num_rows)
    heard = ask(server, "POST", f"{path}/query", ALL)
    assert heard.headers["content-type"] == "application/vnd.apache.arrow.file"
    assert "content-length" not in heard.headers
    assert pa.ipc.open_file(heard.body).read_all().equals(rows)


BATCHES = {"batches": 8192, "one batch": 10**9}


@pytest.mark.parametrize("batch", BATCHES.values(), ids=BATCHES)
def test_rows_are_streamed_both_ways(gateway: Served, db: str, batch: int) -> None:
    rows = vectors(ROWS)
    path = f"/lance/main/v1/table/{db}$big"
    assert send(gateway, "POST", f"{path}/create", stream(rows.slice(0, 10)))[0] == 200
    there_and_back(gateway, path, rows.slice(0, ROWS // 4), stream(rows.slice(0, ROWS // 4), batch))
    forget_peak(gateway)
    before = Footprint.of(gateway).resident_mb
    body = stream(rows, batch)
    there_and_back(gateway, path, rows, body)
    assert Footprint.of(gateway).peak_mb - before < len(body) / 2**20 / 2


@pytest.mark.soak
def test_memory_stays_below_300_mb(tmp_path: Path) -> None:
    """While 400 MB go in and out, again and again, in many batches and in one."""
    rows = vectors(800_000)
    with start_gateway(tmp_path, {"folder": ("dir", {"root": str(tmp_path / "folder")})}) as server:
        assert send(server, "POST", "/lance/main/v1/namespace/db/create", b"{}")[0] == 200
        for path in ("/lance/main/v1/table/db$t", "/lance/folder/v1/table/t"):
            assert send(server, "POST", f"{path}/create", stream(rows.slice(0, 10)))[0] == 200
            for batch in (*BATCHES.values(), 50_000, *BATCHES.values()):
                there_and_back(server, path, rows, stream(rows, batch))
        assert Footprint.of(server).peak_mb < 300


def test_an_upload_that_breaks_off_changes_nothing(gateway: Served, db: str) -> None:
    path = f"/lance/main/v1/table/{db}$t"
    rows = pa.table({"id": range(100_000)})
    assert send(gateway, "POST", f"{path}/create", stream(rows.slice(0, 5)))[0] == 200
    files = sorted(gateway.location.rglob(f"{db}/t/**/*.lance"))
    body = stream(rows)
    connection = HTTPConnection(urlsplit(gateway.uri).netloc, timeout=60)
    connection.putrequest("POST", f"{path}/insert")
    connection.putheader("content-length", str(len(body)))
    connection.endheaders(body[: len(body) // 2])
    connection.close()
    status, error = send(gateway, "POST", f"{path}/insert", body[: len(body) // 2])
    assert (status, error["code"]) == (400, 13)
    assert "no Arrow IPC stream" in error["error"]
    assert send(gateway, "POST", f"{path}/count_rows", b"{}") == (200, 5)
    assert sorted(gateway.location.rglob(f"{db}/t/**/*.lance")) == files


def test_a_reader_that_goes_away_costs_nothing_more(gateway: Served, db: str) -> None:
    path = f"/lance/main/v1/table/{db}$t"
    rows = pa.table({"id": range(200_000), "text": ["x" * 100] * 200_000})
    assert send(gateway, "POST", f"{path}/create", stream(rows))[0] == 200
    for _ in range(20):  # more than there are threads for rows
        connection = HTTPConnection(urlsplit(gateway.uri).netloc, timeout=60)
        connection.request("POST", f"{path}/query", json.dumps({"k": 0, "vector": {}}))
        connection.getresponse().read(1000)
        connection.close()
    assert send(gateway, "POST", f"{path}/count_rows", b"{}") == (200, 200_000)


def test_dictionaries_come_as_their_values(gateway: Served, db: str) -> None:
    """Each fragment has one of its own, and an Arrow file takes only one."""
    kind = pa.dictionary(pa.int8(), pa.string())
    path = f"/lance/main/v1/table/{db}$t"
    for verb, words in (("create", ["a", "b"]), ("insert", ["x", None]), ("insert", ["b", "y"])):
        tags = pa.array([[word] for word in words], pa.list_(kind))
        rows = pa.table({"word": pa.array(words, kind), "tags": tags, "place": [{"x": 1}] * 2})
        assert send(gateway, "POST", f"{path}/{verb}", stream(rows))[0] == 200
    found = pa.ipc.open_file(ask(gateway, "POST", f"{path}/query", ALL).body).read_all()
    assert found["word"].to_pylist() == ["a", "b", "x", None, "b", "y"]
    assert found["tags"].to_pylist() == [["a"], ["b"], ["x"], [None], ["b"], ["y"]]
    assert found.schema.types[:2] == [pa.string(), pa.list_(pa.string())]


def test_a_warehouse_itself_is_the_root(gateway: Served) -> None:
    assert send(gateway, "POST", "/lance/main/v1/namespace/$/exists", b"{}") == (200, None)
    assert send(gateway, "POST", "/lance/main/v1/namespace/$/describe", b"{}") == (200, {"properties": {}})


@pytest.mark.parametrize("branch", ["../../other/t", "a/../../b", "a//b", "/a", "a/", ".", "a b"])
@pytest.mark.parametrize("verb", ["create", "delete", "list", "describe"])
def test_no_branch_leads_out_of_its_table(gateway: Served, db: str, branch: str, verb: str) -> None:
    table = [db, "managed"]
    properties = {"managed_by": "impl"}
    client(gateway).declare_table(DeclareTableRequest(id=table, properties=properties))
    lance.write_dataset(pa.table({"id": [1]}), namespace_client=client(gateway), table_id=table, mode="append")
    staged = f"main/{db}/managed/tree/{branch}/_versions/2.manifest-{uuid4()}"
    bodies = {
        "create": {"version": 2, "manifest_path": staged, "branch": branch},
        "delete": {"ranges": [{"start_version": 1, "end_version": 2}], "branch": branch},
        "describe": {"version": 1, "branch": branch},
    }
    query = f"?branch={quote(branch)}" if verb == "list" else ""
    body = json.dumps(bodies.get(verb, {})).encode()
    status, told = send(gateway, "POST", f"/lance/main/v1/table/{db}$managed/version/{verb}{query}", body)
    assert (status, told["code"]) in {(400, 13), (404, 22)}


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "code", "words"),
    [
        ("POST", "nowhere/v1/namespace/db/describe", b"{}", 404, 1, "no backend 'nowhere'"),
        ("POST", "main/v1/namespace/db/frobnicate", b"{}", 404, 0, "No route"),
        ("GET", "main/v1/namespace/db/describe", None, 406, 0, "GET is not offered here; POST is"),
        ("POST", "main/v1/namespace/db/describe", b"{", 400, 13, "not JSON"),
        ("POST", "main/v1/namespace/nix/describe", b"{}", 404, 1, "nix"),
        ("POST", "main/v1/table/db$t/describe", b'{"id": ["other"]}', 400, 13, "the path says"),
        ("POST", "main/v1/table/db$$t/describe", b"{}", 400, 13, "empty"),
        ("POST", "main/v1/table/nix$t/describe", b"{}", 404, 4, "nix"),
        ("POST", "main/v1/table/nix$t/insert", b"no arrow", 400, 13, "no Arrow IPC stream"),
        ("POST", "main/v1/table/nix$t/insert", b"", 400, 13, "Arrow IPC stream"),
        ("GET", "main/v1/namespace/$/list?limit=x", None, 400, 13, "limit must be a whole number"),
        ("GET", "folder/v1/namespace/$/list?limit=18446744073709551616", None, 400, 13, "limit must be a whole number"),
        ("GET", "main/v1/table?delimiter=", None, 400, 13, "the delimiter is empty"),
        (
            "POST",
            "main/v1/table/db$t/index/a/drop?index_name=b",
            b"{}",
            400,
            13,
            "the path says that index_name",
        ),
        ("POST", "main/v1/materialized_view/db$v/refresh", b"{}", 406, 0, "use `lancehouse table refresh`"),
        ("POST", "folder/v1/materialized_view/v/refresh", b"{}", 406, 0, "use `lancehouse table refresh`"),
        ("POST", "main/v1/table/db$t/backfill_column", b'{"column": "c"}', 406, 0, "use `lancehouse table backfill`"),
        (
            "POST",
            "main/v1/materialized_view/db$v/create",
            b'{"kind": "query", "source_query": "SELECT 1", "output_schema": ""}',
            406,
            0,
            "use create_materialized_view of lancehouse.jobs.TableJobs",
        ),
    ],
)
def test_errors_have_the_form_of_the_protocol(
    gateway: Served, method: str, path: str, body: bytes | None, status: int, code: int, words: str
) -> None:
    seen, error = send(gateway, method, f"/lance/{path}", body)
    assert (seen, error["code"]) == (status, code)
    assert words in error["error"]
    assert error["instance"]


def test_who_may_do_what(tmp_path: Path) -> None:
    with start_gateway(tmp_path, {"folder": ("dir", {"root": str(tmp_path / "folder")})}) as server:
        admin = client(server)
        for name in ("a", "b"):
            admin.create_namespace(CreateNamespaceRequest(id=[name]))
            rows = pa.table({"id": [1]})
            lance.write_dataset(rows, namespace_client=admin, table_id=[name, "t"], mode="create")
            lance.write_dataset(rows, namespace_client=client(server, "folder"), table_id=[f"{name}_t"], mode="create")
        database = Database(f"sqlite:///{tmp_path / 'catalog.db'}")
        principals = Principals(database, ["folder"])

        def token(name: str, *grants: Grant) -> str:
            principals.create(name, grants)
            return principals.create_token(name, "test")

        reads = Grant(Role.READER, "main", ("a",)), Grant(Role.READER, "folder")
        reader = {"x-api-key": token("ada", *reads)}
        writer = {"authorization": f"Bearer {token('bob', Grant(Role.WRITER, 'main', ('a',)))}"}
        folder = {"x-api-key": token("eve", Grant(Role.WRITER, "folder"))}
        within = {"x-api-key": token("zoe", Grant(Role.READER, "folder", ("a_t",)))}
        database.close()
        body = stream(pa.table({"id": [2]}))

        def try_request(path: str, headers: dict[str, str], data: bytes = b"{}") -> tuple[int, int | None]:
            backend, _, rest = path.partition("/")
            status, answer = send(server, "POST", f"/lance/{backend}/v1/{rest}", data, headers)
            return status, answer["code"] if isinstance(answer, dict) and "code" in answer else None

        until(lambda: try_request("main/table/a$t/describe", {}) == (401, 16), "nobody is asked who they are")
        assert try_request("main/table/a$t/describe", reader) == (200, None)
        assert try_request("main/table/a$t/count_rows", reader) == (200, None)
        assert try_request("main/table/a$t/insert", reader, body) == (403, 15)
        assert try_request("main/table/a$t/create", reader, body) == (403, 15)
        assert try_request("main/table/b$t/count_rows", reader) == (403, 15)
        assert try_request("main/namespace/c/create", reader) == (403, 15)
        assert try_request("main/table/a$t/insert", writer, body) == (200, None)
        assert try_request("main/table/b$t/insert", writer, body) == (403, 15)
        assert try_request("main/table/b$t/query", writer, b'{"k": 1, "vector": {}}') == (403, 15)
        assert try_request("main/table/a$t/count_rows", {"x-api-key": "wrong"}) == (401, 16)
        # A body may say who sends it, and header fields win.
        for identity in ({"api_key": reader["x-api-key"]}, {"auth_token": reader["x-api-key"]}):
            identified = json.dumps({"identity": identity}).encode()
            assert try_request("main/table/a$t/describe", {}, identified) == (200, None)
            assert try_request("main/table/b$t/describe", {}, identified) == (403, 15)
            assert try_request("main/table/a$t/describe", {"x-api-key": "wrong"}, identified) == (401, 16)
        assert try_request("main/table/a$t/describe", {}, b'{"identity": {"api_key": "wrong"}}') == (401, 16)
        named = DescribeTableRequest(id=["a", "t"], identity=Identity(api_key=reader["x-api-key"]))
        assert client(server).describe_table(named).location
        assert try_request("folder/table/a_t/describe", reader) == (200, None)
        assert try_request("folder/table/a_t/count_rows", reader) == (200, None)
        assert try_request("folder/table/a_t/insert", reader, body) == (403, 15)
        assert try_request("folder/table/a_t/count_rows", within) == (403, 15)  # a table is no namespace of that name
        assert try_request("folder/namespace/a_t/list", within, b"")[0] != 403
        assert try_request("nowhere/table/a_t/count_rows", within) == (404, 1)
        assert try_request("folder/table/a_t/describe", writer) == (403, 15)
        assert try_request("folder/table/a_t/insert", folder, body) == (200, None)
        # What another catalog vends may serve to write.
        vend = b'{"vend_credentials": true}'
        assert try_request("folder/table/a_t/describe", reader, vend) == (403, 15)
        assert try_request("folder/table/a_t/describe", folder, vend) == (200, None)
        header = {"x-iceberg-access-delegation": "vended-credentials"}
        assert try_request("folder/table/a_t/describe", {**reader, **header}) == (403, 15)


@pytest.mark.parametrize(
    ("backend", "parent"),
    [("main", ""), ("reference", "wh$"), ("polaris", "test_catalog$"), ("unity", "lance_test$"), ("folder", None)],
)
def test_a_table_that_is_only_declared(gateway: Served, backend: str, parent: str | None) -> None:
    """Whoever declares it again hears that it has no data, and what to do about it."""
    level = f"declared_{uuid4().hex[:8]}"
    table = level if parent is None else f"{parent}{level}$t"
    if parent is not None:
        assert post(gateway, f"namespace/{parent}{level}/create", {}, backend)[0] == 200
    assert post(gateway, f"table/{table}/declare", {}, backend)[0] == 200
    status, refused = post(gateway, f"table/{table}/declare", {}, backend)
    assert (status, refused["code"]) == (409, 5)
    assert "declared and has no data" in refused["error"]
    assert insert(gateway, table, numbers(0, 3), backend)[0] == 200
    status, refused = post(gateway, f"table/{table}/declare", {}, backend)
    assert (status, refused["code"]) == (409, 5)
    assert "no data" not in refused["error"]
