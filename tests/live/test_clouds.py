"""Warehouses in Azure and in Google's store: clients get in with what the server vends, and no further.

The stores of tests know no tokens for a folder; gates in front of them check these as the clouds document it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from uuid import uuid4

import lance
import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.parquet as pq
import pytest
import urllib3
from lance_namespace import (
    CreateNamespaceRequest,
    DeclareTableRequest,
    DescribeTableRequest,
    DropTableRequest,
    LanceNamespace,
    connect,
)

from lancehouse.catalog.vending import vend_access
from lancehouse.catalog.warehouses import Warehouse
from lancehouse.clients.iceberg import vended_options
from lancehouse.credentials import SECRETS, canonical_options
from lancehouse.wire.iceberg import StorageCredential
from tests.catalogs import ICEBERG
from tests.servers import azurite, fake_gcs
from tests.servers.azurite import Container, FolderGate, start_azurite
from tests.servers.fake_gcs import GoogleBucket, TokenGate, start_fake_gcs
from tests.servers.lancehouse import Served, ServeError, start_lancehouse

pytestmark = [pytest.mark.engines, pytest.mark.timeout(300)]

ROWS = pa.table({"id": pa.array(range(100), pa.int64()), "name": [f"n{number}" for number in range(100)]})
VENDED = {"X-Iceberg-Access-Delegation": "vended-credentials"}


@dataclass(frozen=True, slots=True)
class Cloud:
    """A store, and a server with a warehouse in it."""

    server: Served
    store: Container | GoogleBucket
    gate: FolderGate | TokenGate
    warehouse: Warehouse
    root: str

    def connect(self) -> LanceNamespace:
        """A client without keys of its own."""
        return connect(ICEBERG, {"endpoint": self.server.iceberg})

    def call(self, method: str, path: str, body: Any = None) -> Any:
        """Ask Iceberg's API."""
        url = f"{self.server.tables}/{path}"
        answer = urllib3.request(method, url, json=body, headers=VENDED, timeout=60, retries=False)
        assert answer.status in (200, 204), answer.data
        return answer.json() if answer.data else None

    def keys(self, location: str) -> list[str]:
        """The files below a location."""
        return self.store.keys(f"{location.removeprefix(self.root).lstrip('/')}/")


def start_cloud(stack: ExitStack, folder: Path, kind: str) -> Cloud:
    store: Container | GoogleBucket
    gate: FolderGate | TokenGate
    settings: dict[str, Any]
    if kind == "gs":
        if fake_gcs.find_program() is None:
            pytest.skip("fake-gcs-server was not built, which takes Go")
        google = stack.enter_context(start_fake_gcs(folder))
        gate = stack.enter_context(TokenGate(google.endpoint))
        store = google.bucket(gate.uri)
        root, settings = store.uri, {"vend": "sts"}
        storage = {**store.options, "google_sts_endpoint": gate.token_url}
    else:
        if azurite.find_program() is None:
            pytest.skip("Azurite was not installed, which takes Node")
        azure = stack.enter_context(start_azurite(folder))
        gate = stack.enter_context(FolderGate(azure.endpoint))
        store = azure.container(gate.uri)
        root, settings = (store.uri if kind == "abfss" else f"az://{store.name}"), {"vend": "sas"}
        storage = store.options
    config = folder / "server.yaml"
    config.write_text(json.dumps({"warehouses": {"main": {"storage": storage, **settings}}}))
    options = ["--config", str(config)]
    server = stack.enter_context(start_lancehouse(folder, warehouses={"main": f"{root}/wh"}, options=options))
    return Cloud(server, store, gate, Warehouse(1, "main", f"{root}/wh", storage=storage, **settings), root)


@pytest.fixture(scope="module", params=["gs", "abfss", "az"])
def cloud(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cloud]:
    with ExitStack() as stack:
        yield start_cloud(stack, tmp_path_factory.mktemp(request.param), request.param)


@pytest.fixture
def db(cloud: Cloud) -> str:
    """A new namespace."""
    name = f"db{uuid4().hex[:8]}"
    cloud.connect().create_namespace(CreateNamespaceRequest(id=["main", name]))
    return name


def test_a_managed_table(cloud: Cloud, db: str) -> None:
    ours, table = cloud.connect(), ["main", db, "docs"]
    ours.declare_table(DeclareTableRequest(id=table, properties={"managed_by": "impl"}))
    for _ in range(2):
        lance.write_dataset(ROWS, namespace_client=ours, table_id=table, mode="append")
    dataset = lance.dataset(namespace_client=cloud.connect(), table_id=table)
    dataset.delete("id >= 50")
    assert lance.dataset(namespace_client=ours, table_id=table).count_rows() == 100
    described = ours.describe_table(DescribeTableRequest(id=table, load_detailed_metadata=True))
    location = str(described.location)
    assert (described.version, location.startswith(f"{cloud.root}/wh/")) == (3, True)
    options = described.storage_options or {}
    assert len(SECRETS & canonical_options(options).keys()) == 2  # a token, and when it ends
    assert len([key for key in cloud.keys(location) if key.endswith(".manifest")]) == 3
    loaded = cloud.call("GET", f"namespaces/{db}/tables/docs")
    assert loaded["metadata"]["current-snapshot-id"] == 3
    ours.drop_table(DropTableRequest(id=table))
    assert cloud.keys(location) == []
    if isinstance(cloud.gate, FolderGate):
        assert cloud.gate.permissions == set("rwld")
    else:
        assert cloud.gate.exchanges


def test_a_table_that_storage_manages_is_purged_by_the_server(cloud: Cloud, db: str) -> None:
    ours, table = cloud.connect(), ["main", db, "plain"]
    lance.write_dataset(ROWS, namespace_client=ours, table_id=table, mode="create")
    location = str(ours.describe_table(DescribeTableRequest(id=table)).location)
    path = f"namespaces/{db}/tables/plain"
    assert cloud.call("GET", path)["metadata"]["current-snapshot-id"] == 1
    assert cloud.keys(location)
    cloud.call(
        "POST", path, {"requirements": [], "updates": [{"action": "set-properties", "updates": {"gc.enabled": "true"}}]}
    )
    cloud.call("DELETE", f"{path}?purgeRequested=true")
    assert cloud.keys(location) == []


def test_credentials_open_one_table(cloud: Cloud, db: str) -> None:
    """`a` does not open `ab`, nor what lies above."""
    ours = cloud.connect()
    for name in ("a", "ab"):
        lance.write_dataset(ROWS, namespace_client=ours, table_id=["main", db, name], mode="create")
    described = ours.describe_table(DescribeTableRequest(id=["main", db, "a"]))
    location = str(described.location)
    options = {**(described.storage_options or {}), "client_max_retries": "0", "client_retry_timeout": "1"}
    assert lance.dataset(location, storage_options=options).count_rows() == 100
    for elsewhere in (f"{location}b", location.rpartition("/")[0]):
        with pytest.raises((OSError, ValueError), match=r"403|Forbidden|not with this token|not found"):
            lance.dataset(elsewhere, storage_options=options)
        with pytest.raises(OSError, match=r"403|Forbidden|not with this token"):
            lance.write_dataset(ROWS, f"{elsewhere}/new", storage_options=options)


def test_readers_only_read(cloud: Cloud, db: str) -> None:
    table = ["main", db, "docs"]
    lance.write_dataset(ROWS, namespace_client=cloud.connect(), table_id=table, mode="create")
    location = str(cloud.connect().describe_table(DescribeTableRequest(id=table)).location)
    config, credentials = vend_access(cloud.warehouse, location, write=False, uuid="u")
    options = vended_options(location, config, list(map(StorageCredential.model_validate, credentials)))
    dataset = lance.dataset(location, storage_options=options)
    assert dataset.to_table() == ROWS
    refusal = r"403|Forbidden|not with this token"
    with pytest.raises(OSError, match=refusal):
        dataset.delete("id = 1")
    with pytest.raises(OSError, match=refusal):
        lance.write_dataset(ROWS, dataset, mode="append")


def test_an_iceberg_client_reads_a_lance_table(cloud: Cloud, db: str) -> None:
    ours = cloud.connect()
    lance.write_dataset(ROWS, namespace_client=ours, table_id=["main", db, "docs"], mode="create")
    path = f"namespaces/{db}/tables/docs"
    config = cloud.call("GET", path)["config"]
    plan = cloud.call("POST", f"{path}/plan", {"snapshot-id": 1})
    files = [task["data-file"]["file-path"] for task in plan["file-scan-tasks"]]
    system = open_file_system(config)
    # Not with pyiceberg: it takes another library for Azure, and Arrow's reads of a part hang on fake-gcs-server.
    paths = [f"{cloud.store.name}/{file.split('/', 3)[3]}" for file in files]
    rows = [pq.read_table(pa.BufferReader(system.open_input_stream(path).read())) for path in paths]
    assert pa.concat_tables(rows).sort_by("id").to_pydict() == ROWS.to_pydict()
    refusal = r"403|[Ff]orbidden|PERMISSION_DENIED|not with this token|Failed to parse xml"
    with pytest.raises((OSError, pa.ArrowException), match=refusal):
        system.open_output_stream(f"{paths[0]}.new").write(b"x" * 20_000_000)


def open_file_system(config: dict[str, str]) -> Any:
    """Arrow's file system, as pyiceberg makes it of what is vended."""
    if token := config.get("gcs.oauth2.token"):
        host = urlsplit(config["gcs.service.host"])
        expires = datetime.fromtimestamp(int(config["gcs.oauth2.token-expires-at"]) / 1000, UTC)
        return pafs.GcsFileSystem(
            access_token=token,
            credential_token_expiration=expires,
            scheme=host.scheme,
            endpoint_override=host.netloc,
            retry_time_limit=timedelta(seconds=5),
        )
    file_system_class: Any = pafs.AzureFileSystem  # its stubs have other names
    return file_system_class(
        config["adls.account-name"],
        sas_token=config["adls.sas-token"],
        blob_storage_authority=config["adls.blob-storage-authority"],
        blob_storage_scheme=config["adls.blob-storage-scheme"],
    )


def test_an_account_without_folders_is_refused(tmp_path: Path) -> None:
    if azurite.find_program() is None:
        pytest.skip("Azurite was not installed, which takes Node")
    with start_azurite(tmp_path) as azure:
        container = azure.container()
        config = tmp_path / "server.yaml"

        def start(**settings: str) -> Any:
            described: dict[str, Any] = {
                "location": f"{container.uri}/wh",
                "storage": container.options,
                "vend": "sas",
                **settings,
            }
            config.write_text(json.dumps({"warehouses": {"main": described}}))
            options = ["--config", str(config)]
            return start_lancehouse(tmp_path, warehouses={"main": described["location"]}, options=options)

        with pytest.raises(ServeError, match="has no hierarchical namespace"), start():
            pass
        with start(sas_scope="container") as server:
            ours = connect(ICEBERG, {"endpoint": server.iceberg})
            ours.create_namespace(CreateNamespaceRequest(id=["main", "db"]))
            table = ["main", "db", "docs"]
            lance.write_dataset(ROWS, namespace_client=ours, table_id=table, mode="create")
            assert lance.dataset(namespace_client=ours, table_id=table).count_rows() == 100
            check_iceberg_table(server, container)


def check_iceberg_table(server: Served, container: Container) -> None:
    """The server writes and reads an Iceberg table's metadata, and a purge removes what is current of them."""

    def call(method: str, path: str, body: Any = None) -> Any:
        url = f"{server.tables}/namespaces/db/{path}"
        answer = urllib3.request(method, url, json=body, timeout=60, retries=False)
        assert answer.status in (200, 204), answer.data
        return answer.json() if answer.data else None

    schema = {"type": "struct", "schema-id": 0, "fields": [{"id": 1, "name": "id", "required": False, "type": "long"}]}
    call("POST", "tables", {"name": "ice", "schema": schema})
    change = [{"action": "set-properties", "updates": {"a": "b"}}]
    call("POST", "tables/ice", {"requirements": [], "updates": change})
    assert call("GET", "tables/ice")["metadata"]["properties"]["a"] == "b"
    files = container.keys("wh/db/ice/metadata/")
    assert len(files) == 2
    call("DELETE", "tables/ice?purgeRequested=true")
    assert max(files) not in container.keys("wh/db/ice/metadata/")
