"""Files in buckets."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from lance_namespace.errors import (
    InvalidInputError,
    LanceNamespaceError,
    PermissionDeniedError,
    ServiceUnavailableError,
    ThrottlingError,
    UnauthenticatedError,
)
from pyarrow import fs

from lancehouse.jobs.sources.file_listing import Store, locate, translate_read_errors
from lancehouse.jobs.sources.ingest_source import open_source
from tests.jobs.sources.reading import read, rows
from tests.lake.store import BUCKET
from tests.lake.store import FakeStore as RefusingStore
from tests.servers.moto import ACCESS_KEY, REGION, SECRET_KEY, Bucket, Moto, client

KEYS = ["in/a.csv", "in/x y/ü#1 50%20.csv", "in/k=1/b.csv", "in/_tmp/c.csv", "in/.d.csv", "[lit]*/e.csv"]


def put(bucket: Bucket, objects: Mapping[str, bytes]) -> None:
    """Write objects, with one client: to make one takes long."""
    s3 = client("s3", bucket.endpoint)
    for key, body in objects.items():
        s3.put_object(Bucket=bucket.name, Key=key, Body=body)


@pytest.fixture(scope="module")
def bucket(moto: Moto) -> Bucket:
    """Files, each with its own name as its only value, and what consoles make of a folder."""
    made = moto.bucket()
    put(made, {**{key: f'name\n"{key}"\n'.encode() for key in KEYS}, "in/empty/": b""})
    return made


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("in", ["in/a.csv", "in/k=1/b.csv", "in/x y/ü#1 50%20.csv"]),
        ("in/", ["in/a.csv", "in/k=1/b.csv", "in/x y/ü#1 50%20.csv"]),
        ("in/*.csv", ["in/a.csv"]),
        ("in/**/*.csv", ["in/a.csv", "in/k=1/b.csv", "in/x y/ü#1 50%20.csv"]),
        ("*/x y/*.csv", ["in/x y/ü#1 50%20.csv"]),
        ("in/x y/ü#1 50%20.csv", ["in/x y/ü#1 50%20.csv"]),
        ("[lit]*/e.csv", ["[lit]*/e.csv"]),
        ("[lit]*", ["[lit]*/e.csv"]),
    ],
)
@pytest.mark.parametrize("scheme", ["s3", "s3a"])
def test_what_is_meant(bucket: Bucket, source: str, expected: list[str], scheme: str) -> None:
    found = rows(f"{scheme}://{bucket.name}/{source}", bucket.options)
    assert [row["name"] for row in found] == expected
    assert [row.get("k") for row in found if "k=1" in row["name"]] in ([1], [])


def test_what_is_not_there(bucket: Bucket) -> None:
    for source in (f"{bucket.uri}/none", f"{bucket.uri}/in/none*", "s3://no-such-bucket-here/x"):
        with pytest.raises(InvalidInputError, match=source.replace("*", r"\*")):
            open_source(source, options=bucket.options)


def test_parquet_in_a_bucket(s3: Bucket) -> None:
    table = pa.table({"a": range(300_000), "b": [str(number) for number in range(300_000)]})
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, row_group_size=20_000)
    put(s3, {"t.parquet": sink.getvalue().to_pybytes()})
    source = open_source(f"{s3.uri}/t.parquet", options=s3.options, parallelism=2)
    assert len(source.units) == 2
    assert read(source).equals(table)
    assert f"{s3.uri}/t.parquet" in source.units[0].key
    assert ACCESS_KEY not in repr(source) + repr(source.units[0].key)
    assert SECRET_KEY not in repr(source) + repr(source.units[0].key)


def test_images_in_a_bucket(s3: Bucket) -> None:
    put(s3, {key: key.encode() for key in ("cats/1.png", "dogs/2.jpg")})
    found = rows(s3.uri, s3.options)
    assert [(row["path"], row["folder"], row["image"]["data"]) for row in found] == [
        (f"{s3.uri}/cats/1.png", "cats", b"cats/1.png"),
        (f"{s3.uri}/dogs/2.jpg", "dogs", b"dogs/2.jpg"),
    ]
    assert found[0]["modified"] is not None


def test_access_from_the_environment(bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", ACCESS_KEY)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET_KEY)
    monkeypatch.setenv("AWS_REGION", REGION)
    monkeypatch.setenv("AWS_ENDPOINT", bucket.endpoint)
    assert [row["name"] for row in rows(f"{bucket.uri}/in/a.csv")] == ["in/a.csv"]


# A store that refuses


@pytest.fixture
def refusing() -> Iterator[RefusingStore]:
    with RefusingStore() as store:
        store.objects["a.csv"] = b"a\n1\n"
        yield store


def test_a_store_that_refuses(refusing: RefusingStore) -> None:
    """pyarrow asks with HEAD, whose answer has no reason in it."""
    source = open_source(f"s3://{BUCKET}/a.csv", options=refusing.options)
    refusing.refusal = (403, "AccessDenied")
    for call in (lambda: read(source), lambda: open_source(f"s3://{BUCKET}/a.csv", options=refusing.options)):
        with pytest.raises(PermissionDeniedError, match=f"s3://{BUCKET}/a.csv cannot be read") as caught:
            call()
        assert SECRET_KEY not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("AWS Error INVALID_ACCESS_KEY_ID during ListObjectsV2 operation", UnauthenticatedError),
        ("AWS Error SIGNATURE_DOES_NOT_MATCH during ListObjectsV2 operation", UnauthenticatedError),
        ("AWS Error UNKNOWN (HTTP status 401) during GetObject operation", UnauthenticatedError),
        ("AWS Error ACCESS_DENIED during ListObjectsV2 operation", PermissionDeniedError),
        ("AWS Error SLOW_DOWN during GetObject operation", ThrottlingError),
        ("AWS Error NETWORK_CONNECTION during HeadObject operation: curlCode: 7", ServiceUnavailableError),
        ("AWS Error UNKNOWN (HTTP status 503) during GetObject operation", ServiceUnavailableError),
        ("[Errno 13] Failed to open local file '/x'. Detail: [errno 13] Permission denied", PermissionDeniedError),
        ("Corrupt snappy compressed data.", InvalidInputError),
    ],
)
def test_what_a_store_says(text: str, kind: type[LanceNamespaceError]) -> None:
    with (
        pytest.raises(kind, match=r"^s3://b/k cannot be read: ") as caught,
        translate_read_errors("s3://b/k", {"secret": "s3cret"}),
    ):
        raise OSError(f"{text} s3cret")
    assert "s3cret" not in f"{caught.value!r} {caught.value.__cause__!r}"


def test_a_store_that_is_not_there(refusing: RefusingStore) -> None:
    options = {**refusing.options, "aws_endpoint": "http://127.0.0.1:9"}
    with pytest.raises(ServiceUnavailableError, match=f"s3://{BUCKET}/a.csv cannot be read"):
        open_source(f"s3://{BUCKET}/a.csv", options=options)


# Addresses


@pytest.mark.parametrize(
    ("address", "scheme", "account", "path"),
    [
        ("s3://b/k%20 #?*/", "s3", "", "b/k%20 #?*"),
        ("gs://b/k", "gs", "", "b/k"),
        ("az://c/k", "az", "", "c/k"),
        ("abfss://c@acc.dfs.core.windows.net/k/x", "abfss", "acc.dfs.core.windows.net", "c/k/x"),
        ("file:///a%20b/c%23", "", "", "/a b/c#"),
        ("file:/a#b?c", "", "", "/a#b?c"),
        ("/a/b%20", "", "", "/a/b%20"),
    ],
)
def test_addresses(address: str, scheme: str, account: str, path: str) -> None:
    store, found = locate(address, {"aws_secret_access_key": "secret"})
    assert (store.scheme, store.account, found) == (scheme, account, path)
    assert "secret" not in repr(store)
    if scheme:
        assert store.to_address(found) == address.rstrip("/")


def test_file_systems_of_other_clouds() -> None:
    """They connect when they are first used."""
    google = locate("gs://b/k", {"google_storage_token": "t", "expires_at_millis": "9999999999999"})[0]
    assert isinstance(google.file_system(), fs.GcsFileSystem)
    azure = locate("az://c/k", {"account_name": "acc", "account_key": "a2V5"})[0]
    assert isinstance(azure.file_system(), fs.AzureFileSystem)
    named = locate("abfss://c@acc.dfs.core.windows.net/k", {"sas_token": "sv=1"})[0]
    assert isinstance(named.file_system(), fs.AzureFileSystem)
    with pytest.raises(InvalidInputError, match="give the option azure_storage_account_name"):
        Store("az", "c").file_system()
