"""A server whose warehouse is a bucket: clients reach the files with what the server hands them, and nothing else."""

from __future__ import annotations

import json
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen
from uuid import uuid4

import lance
import pyarrow as pa
import pytest
from lance_namespace import (
    DeclareTableRequest,
    DescribeTableRequest,
    DropTableRequest,
    LanceNamespace,
    RenameTableRequest,
    connect,
)
from pyiceberg.catalog.rest import RestCatalog

import lancehouse
from lancehouse.lake.manifests import ManifestStore
from tests.catalogs import ICEBERG
from tests.servers.lancehouse import Served, start_lancehouse
from tests.servers.moto import ACCESS_KEY, REGION, ROLE, SECRET_KEY, Bucket, Moto
from tests.servers.nessie import PREFIX, Nessie

ROWS = pa.table({"id": pa.array(range(100), pa.int64()), "name": [f"n{number}" for number in range(100)]})
VENDED = {"X-Iceberg-Access-Delegation": "vended-credentials"}


@pytest.fixture(autouse=True)
def _no_credentials_of_our_own(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")


@pytest.fixture(scope="module")
def bucket(moto: Moto) -> Bucket:
    return moto.bucket()


@pytest.fixture(scope="module")
def server(bucket: Bucket, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A warehouse for each way to vend, called by its name."""
    folder = tmp_path_factory.mktemp("server")
    kinds = ("static", "sts", "none")
    described = {kind: {"storage": dict(bucket.options), "vend": kind, "role_arn": ROLE} for kind in kinds}
    config = folder / "server.yaml"
    config.write_text(json.dumps({"warehouses": described}))
    places = {kind: f"{bucket.uri}/{kind}" for kind in kinds}
    with start_lancehouse(folder, warehouses=places, options=["--config", str(config)]) as running:
        yield running


@pytest.fixture(params=["static", "sts"])
def warehouse(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def db(server: Served, warehouse: str) -> str:
    """A new namespace."""
    name = f"db_{uuid4().hex[:8]}"
    assert call(server, f"{warehouse}/namespaces", {"namespace": [name]})[0] == 200
    return name


@pytest.fixture
def ours(server: Served) -> LanceNamespace:
    return connect(ICEBERG, {"endpoint": server.iceberg, **{f"header.{name}": VENDED[name] for name in VENDED}})


@pytest.fixture
def theirs(server: Served, warehouse: str) -> RestCatalog:
    return RestCatalog("theirs", uri=server.iceberg, warehouse=warehouse)


def call(server: Served, path: str, body: Any = None, headers: dict[str, str] | None = None) -> tuple[int, Any]:
    request = Request(f"{server.iceberg}/v1/{path}", None if body is None else json.dumps(body).encode(), headers or {})
    request.add_header("Content-Type", "application/json")
    try:
        with urlopen(request) as answer:
            return answer.status, json.load(answer)
    except HTTPError as refused:
        with refused:
            return refused.code, json.load(refused)


def test_a_lance_table(ours: LanceNamespace, bucket: Bucket, warehouse: str, db: str) -> None:
    docs = [warehouse, db, "docs"]
    lance.write_dataset(ROWS, namespace_client=ours, table_id=docs, mode="create")
    lance.write_dataset(ROWS, namespace_client=ours, table_id=docs, mode="append")
    assert lance.dataset(namespace_client=ours, table_id=docs).count_rows() == 200
    described = ours.describe_table(DescribeTableRequest(id=docs, load_detailed_metadata=True))
    assert described.version == 2
    assert described.location is not None
    assert described.location.startswith(f"{bucket.uri}/{warehouse}/")
    path = described.location.removeprefix(f"{bucket.uri}/")
    assert bucket.keys(f"{path}/_versions/")
    ours.drop_table(DropTableRequest(id=docs))
    assert bucket.keys(f"{path}/") == []


def test_a_managed_table(ours: LanceNamespace, bucket: Bucket, warehouse: str, db: str) -> None:
    one, two = [warehouse, db, "one"], [warehouse, db, "two"]
    for table in (one, two):
        ours.declare_table(DeclareTableRequest(id=table, properties={"managed_by": "impl"}))
    with lancehouse.transaction(ours) as both:
        both.append(one, ROWS)
        both.append(two, ROWS)
        both.delete(two, "id < 10")
    lance.write_dataset(ROWS, namespace_client=ours, table_id=one, mode="append").delete("id >= 50")
    counts = [lance.dataset(namespace_client=ours, table_id=each).count_rows() for each in (one, two)]
    assert counts == [100, 90]
    location = str(ours.describe_table(DescribeTableRequest(id=one)).location)
    assert lance.dataset(location, storage_options=dict(bucket.options)).version == 3
    path = location.removeprefix(f"{bucket.uri}/")
    files = [key.rpartition("/")[2] for key in bucket.keys(f"{path}/_versions/")]
    assert sum(file.endswith(".manifest") for file in files) == 3
    assert not any(".manifest-" in file for file in files)
    before = bucket.keys(f"{path}/")
    with pytest.raises(KeyError), lancehouse.transaction(ours) as broken:
        broken.overwrite(one, ROWS)
        raise KeyError
    assert [key for key in bucket.keys(f"{path}/") if key not in before] == []
    ours.drop_table(DropTableRequest(id=one))
    assert bucket.keys(f"{path}/") == []


def test_a_prefix_that_comes_encoded(server: Served, warehouse: str, db: str) -> None:
    """It is used as it is, for credentials, commits and renames too; any other spelling is no route."""
    with Nessie(server.iceberg, "", warehouse) as nessie:
        client = connect(ICEBERG, {"endpoint": nessie.uri, "managed_by": "impl", "vend_credentials": "true"})
        one, two = [warehouse, db, "one"], [warehouse, db, "two"]
        root = f"{bucket_of(server, warehouse)}/{db}"
        for table in (one, two):
            client.declare_table(DeclareTableRequest(id=table, location=f"{root}/{table[-1]}"))
        with lancehouse.transaction(client) as both:
            both.append(one, ROWS)
            both.append(two, ROWS)
        client.rename_table(RenameTableRequest(id=two, new_table_name="three"))
        lance.write_dataset(ROWS, namespace_client=client, table_id=[warehouse, db, "three"], mode="append")
        assert lance.dataset(namespace_client=client, table_id=[warehouse, db, "three"]).count_rows() == 200
        assert client.describe_table(DescribeTableRequest(id=one)).storage_options
        client.drop_table(DropTableRequest(id=one))
        paths = {target.partition("?")[0] for _, target in nessie.requests}
    assert {path for path in paths if f"/v1/{PREFIX}/" not in path} == {"/iceberg/v1/config"}


def bucket_of(server: Served, warehouse: str) -> str:
    """Where a warehouse lies."""
    return str(call(server, f"config?warehouse={warehouse}")[1]["defaults"]["root"])


def test_a_manifest_that_its_writer_left_staged(
    ours: LanceNamespace, bucket: Bucket, warehouse: str, db: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    docs = [warehouse, db, "docs"]
    ours.declare_table(DeclareTableRequest(id=docs, properties={"managed_by": "impl"}))
    lance.write_dataset(ROWS, namespace_client=ours, table_id=docs, mode="append")
    with monkeypatch.context() as dying:
        dying.setattr(ManifestStore, "publish", lambda *_: pytest.fail("the writer died"))
        with pytest.raises(BaseException, match=r"died|unknown"):
            lance.write_dataset(ROWS, namespace_client=ours, table_id=docs, mode="append")
    another = pickle.loads(pickle.dumps(ours))
    assert lance.dataset(namespace_client=another, table_id=docs).count_rows() == 200


def test_an_iceberg_table(theirs: RestCatalog, bucket: Bucket, warehouse: str, db: str) -> None:
    table = theirs.create_table((db, "plain"), ROWS.schema)
    table.append(ROWS)
    table.append(ROWS)
    assert theirs.load_table((db, "plain")).scan(row_filter="id < 3").to_arrow().num_rows == 6
    path = f"{warehouse}/{db}/plain/"
    assert {key.removeprefix(path).split("/")[0] for key in bucket.keys(path)} == {"data", "metadata"}
    theirs.purge_table((db, "plain"))
    assert [key for key in bucket.keys(path) if not key.endswith("/")] == []


def test_pyiceberg_reads_the_lance_table(
    ours: LanceNamespace, theirs: RestCatalog, bucket: Bucket, warehouse: str, db: str
) -> None:
    lance.write_dataset(ROWS, namespace_client=ours, table_id=[warehouse, db, "docs"], mode="create")
    table = theirs.load_table((db, "docs"))
    assert table.scan().to_arrow().sort_by("id").to_pydict() == ROWS.to_pydict()
    found = table.scan(row_filter="id >= 98", selected_fields=("name",)).to_arrow()
    assert sorted(found["name"].to_pylist()) == ["n98", "n99"]
    assert bucket.keys(f"{warehouse}/.lancehouse/{table.metadata.table_uuid}/")


@pytest.mark.parametrize("warehouse", ["none"])
def test_settings_are_in_every_answer(server: Served, warehouse: str, db: str) -> None:
    tables = f"{warehouse}/namespaces/{db}/tables"
    made = call(server, tables, {"name": "plain", "schema": {"type": "struct", "fields": []}}, VENDED)[1]
    for answer in (made, *(call(server, f"{tables}/plain", headers=VENDED)[1] for _ in range(2))):
        assert answer["config"]["client.region"] == REGION
        assert answer["config"]["s3.path-style-access"] == "true"


@pytest.mark.parametrize("warehouse", ["none", "static"])
def test_only_those_who_ask_are_given_secrets(server: Served, bucket: Bucket, warehouse: str, db: str) -> None:
    lance.write_dataset(ROWS, f"{bucket.uri}/{warehouse}/{db}/docs", storage_options=dict(bucket.options))
    tables = f"{warehouse}/namespaces/{db}/tables"
    body = {"name": "docs", "schema": {"type": "struct", "fields": []}, "properties": {"table_type": "lance"}}
    status, made = call(server, tables, body, VENDED)
    assert status == 200
    assert made["metadata"]["current-snapshot-id"] == 1
    for answer in (made, call(server, f"{tables}/docs", headers=VENDED)[1]):
        assert answer["config"]["client.region"] == REGION
        assert (answer["config"].get("s3.secret-access-key") == SECRET_KEY) is (warehouse == "static")
        assert bool(answer.get("storage-credentials")) is (warehouse == "static")
    for headers in ({}, {"X-Iceberg-Access-Delegation": "remote-signing"}):
        text = json.dumps(call(server, f"{tables}/docs", headers=headers)[1])
        assert SECRET_KEY not in text
        assert ACCESS_KEY not in text


@pytest.mark.parametrize("warehouse", ["static"])
@pytest.mark.parametrize("properties", [{"table_type": "lance"}, {}], ids=["lance", "iceberg"])
@pytest.mark.parametrize(
    "location",
    ["s3://elsewhere/t", "{}/other/t", "{}/static/../t", "{}/static/.lancehouse/t", "{}/static", "{}/sts/t", "/tmp/t"],
)
def test_places_that_are_refused(
    server: Served, bucket: Bucket, warehouse: str, db: str, location: str, properties: dict[str, str]
) -> None:
    body = {
        "name": "t",
        "location": location.format(bucket.uri),
        "schema": {"type": "struct", "fields": []},
        "properties": properties,
    }
    status, answer = call(server, f"{warehouse}/namespaces/{db}/tables", body)
    assert (status, answer["error"]["code"]) == (400, 400)
    assert "is not allowed" in answer["error"]["message"]
