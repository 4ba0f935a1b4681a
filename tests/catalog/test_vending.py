from __future__ import annotations

import logging
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any
from urllib.parse import parse_qsl

import lance
import pyarrow as pa
import pytest
from botocore.session import Session
from lance_namespace.errors import InvalidInputError, ServiceUnavailableError
from pyiceberg.catalog.rest import RestCatalog
from pyiceberg.catalog.rest.scan_planning import StorageCredential
from pyiceberg.io import load_file_io

from lancehouse.catalog.vending import check_warehouse, client_settings, vend_access
from lancehouse.catalog.warehouses import Warehouse
from lancehouse.clients.iceberg import from_iceberg_config, vended_options
from lancehouse.wire import iceberg as wire
from tests.servers.azurite import KEY
from tests.servers.moto import ACCESS_KEY, REGION, ROLE, SECRET_KEY, Bucket, Moto

ROWS = pa.table({"n": [1, 2, 3]})
AZURE = "abfss://c@acc.dfs.core.windows.net/wh"


def warehouse(bucket: Bucket, **more: Any) -> Warehouse:
    return Warehouse(1, "main", f"{bucket.uri}/wh", **{"storage": bucket.options, **more})


@pytest.mark.parametrize("vend", ["none", "static", "sts"])
def test_nothing_for_a_local_warehouse(vend: Any) -> None:
    place = Warehouse(1, "main", "/data", vend=vend, storage={"aws_access_key_id": "x"})
    assert vend_access(place, "/data/t", write=True) == ({}, [])


def test_settings_without_secrets() -> None:
    place = Warehouse(
        1, "main", "s3://b", storage={"ACCESS_KEY_ID": "k", "secret_access_key": "s", "token": "t", "region": "eu"}
    )
    assert vend_access(place, "s3://b/t", write=True) == (client_settings(place), [])
    assert client_settings(place) == {"client.region": "eu", "s3.region": "eu", "s3.client.region": "eu"}


@pytest.mark.parametrize(
    ("location", "storage", "secret"),
    [
        ("s3://b", {"aws_access_key_id": "k", "aws_secret_access_key": "s"}, "s3.secret-access-key"),
        ("gs://b", {"google_storage_token": "s"}, "gcs.oauth2.token"),
        ("abfss://c@a.dfs.core.windows.net", {"account_name": "a", "account_key": "s"}, "adls.account-key"),
    ],
)
def test_static_credentials_for_the_table_and_the_copies(location: str, storage: dict[str, str], secret: str) -> None:
    place = Warehouse(1, "main", location, storage=storage, vend="static")
    config, credentials = vend_access(place, f"{location}/t", write=True, uuid="u-1")
    assert config[secret] == "s"
    assert credentials == [
        {"prefix": f"{location}/t", "config": config},
        {"prefix": f"{location}/.lancehouse/u-1", "config": config},
    ]


@pytest.mark.parametrize(
    ("location", "storage", "static_read", "told"),
    [
        (
            "s3://b",
            {"access_key_id": "k", "secret_access_key": "s", "token": "t", "region": "eu"},
            {"aws_access_key_id": "rk", "aws_secret_access_key": "rs"},
            {"s3.access-key-id": "rk", "s3.secret-access-key": "rs"},
        ),
        ("gs://b", {"google_storage_token": "s"}, {"google_storage_token": "r"}, {"gcs.oauth2.token": "r"}),
        (
            "abfss://c@a.dfs.core.windows.net",
            {"account_name": "a", "account_key": "s"},
            {"sas_token": "r"},
            {"adls.sas-token": "?r", "adls.sas-token.a": "r", "adls.sas-token.a.dfs.core.windows.net": "r"},
        ),
    ],
)
def test_readers_get_credentials_of_their_own_or_none(
    location: str, storage: dict[str, str], static_read: dict[str, str], told: dict[str, str]
) -> None:
    place = Warehouse(1, "main", location, storage=storage, vend="static")
    assert vend_access(place, f"{location}/t", write=False, uuid="u-1") == (client_settings(place), [])
    place = replace(place, static_read=static_read)
    check_warehouse(place)
    config, credentials = vend_access(place, f"{location}/t", write=False, uuid="u-1")
    assert config == client_settings(place) | told
    assert [each["config"] for each in credentials] == [config, config]
    assert vend_access(place, f"{location}/t", write=True)[0].items().isdisjoint(told.items())


@pytest.mark.parametrize("vend", ["static", "sts"])
@pytest.mark.parametrize("name", ["t", "a%20b", "%2A"])
def test_lance_and_pyiceberg_get_in(s3: Bucket, vend: Any, name: str) -> None:
    place = warehouse(s3, vend=vend, role_arn=ROLE)
    location = f"{place.location}/{name}"
    config, credentials = vend_access(place, location, write=True, uuid="u-1")
    assert (config["s3.access-key-id"] == ACCESS_KEY) is (vend == "static")

    ours = vended_options(location, config, [wire.StorageCredential.model_validate(each) for each in credentials])
    lance.write_dataset(ROWS, location, storage_options=ours)
    assert lance.dataset(location, storage_options=ours).to_table() == ROWS

    io = load_file_io(config, location)
    for file in (f"{location}/data.bin", f"{place.location}/.lancehouse/u-1/f.parquet"):
        with io.new_output(file).create() as output:
            output.write(b"bytes")
        with io.new_input(file).open() as source:
            assert source.read() == b"bytes"
        picked = [StorageCredential.model_validate(each) for each in credentials]
        assert RestCatalog._resolve_storage_credentials(picked, file) == config


def test_sts_credentials_are_shared_until_shortly_before_they_expire(
    s3: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = warehouse(s3, vend="sts", role_arn=ROLE)
    location = f"{place.location}/t"

    def ask(write: bool = True) -> str:
        config = vend_access(place, location, write=write)[0]
        assert config["s3.session-token"]
        assert 3500 < int(config["s3.session-token-expires-at-ms"]) / 1000 - now < 3700
        return config["s3.access-key-id"]

    now = time.time()
    with ThreadPoolExecutor(8) as pool:
        [first] = set(pool.map(lambda _: ask(), range(16)))
    assert ask(write=False) != first
    assert vend_access(place, f"{location}2", write=True)[0]["s3.access-key-id"] != first
    monkeypatch.setattr(time, "time", lambda: now + 3000)
    assert ask() == first
    monkeypatch.setattr(time, "time", lambda: now + 3310)
    assert vend_access(place, location, write=True)[0]["s3.access-key-id"] != first


@pytest.mark.parametrize(
    ("endpoint", "role", "code"),
    [
        ("http://127.0.0.1:1", ROLE, "EndpointConnectionError"),
        (None, "short", "ParamValidationError"),
    ],
)
def test_no_credentials_is_said_without_secrets(moto: Moto, endpoint: str | None, role: str, code: str) -> None:
    storage = {**moto.options, "aws_endpoint": endpoint or moto.endpoint}
    place = Warehouse(1, "main", "s3://b", storage=storage, vend="sts", role_arn=role)
    with pytest.raises(ServiceUnavailableError, match=rf"does not give the role {role} \({code}\)") as refusal:
        vend_access(place, "s3://b/t", write=True)
    assert SECRET_KEY not in str(refusal.value)


def test_nothing_secret_is_logged(s3: Bucket, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    config, _ = vend_access(warehouse(s3, vend="sts", role_arn=ROLE), f"{s3.uri}/wh/logged", write=True)
    assert not {SECRET_KEY, config["s3.secret-access-key"], config["s3.session-token"]} & set(caplog.text.split())
    assert config["s3.session-token"] not in caplog.text
    assert config["s3.secret-access-key"] not in caplog.text


@pytest.mark.parametrize(
    ("more", "problem"),
    [
        ({"vend": "none"}, None),
        ({"vend": "static", "storage": {"access_key_id": "k"}}, None),
        ({"vend": "static", "storage": {"region": "eu"}}, "put them in its options"),
        ({"vend": "static", "storage": {"access_key_id": "k"}, "static_read": {"access_key_id": "r"}}, None),
        ({"vend": "static", "storage": {"access_key_id": "k"}, "static_read": {"AWS_ACCESS_KEY_ID": "k"}}, "own key"),
        ({"vend": "static", "storage": {"access_key_id": "k"}, "static_read": {"region": "eu"}}, "aws_region belongs"),
        ({"vend": "none", "static_read": {"access_key_id": "r"}}, "static_read is for vend: static"),
        ({"vend": "sts", "role_arn": ROLE}, None),
        ({"vend": "sts"}, "needs the role"),
        ({"vend": "sts", "role_arn": "lancehouse"}, "needs the role"),
        ({"vend": "sts", "role_arn": ROLE, "location": "az://c"}, "STS is for s3:// and gs://"),
        ({"vend": "sts", "role_arn": ROLE, "roots": ("gs://b",)}, "is for s3://, and cannot open gs://b"),
        ({"vend": "sts", "role_arn": ROLE, "cache": "/tmp/cache"}, "cannot open /tmp/cache"),
        ({"vend": "sts", "location": "gs://b"}, None),
        ({"vend": "static", "location": "gs://b", "storage": {"google_storage_token": "t"}}, None),
        ({"vend": "static", "location": "gs://b", "storage": {"google_service_account_key": "{}"}}, "put them in"),
        ({"vend": "none", "sas_scope": "container"}, "sas_scope is for vend: sas"),
        ({"vend": "sas"}, "SAS tokens are for az:// and abfss://, not for s3://b"),
        ({"vend": "sas", "location": "az://c"}, "which account?"),
        ({"vend": "sas", "location": AZURE, "roots": ("s3://b",), "sas_scope": "container"}, "cannot open s3://b"),
        ({"vend": "sas", "location": AZURE, "roots": (AZURE.replace("acc", "b"),)}, "is in b"),
        ({"vend": "sas", "location": AZURE, "sas_scope": "container"}, None),
        ({"vend": "sas", "location": "az://c", "storage": {"account_name": "acc"}, "sas_scope": "container"}, None),
    ],
)
def test_a_warehouse_is_checked_at_the_start(more: dict[str, Any], problem: str | None) -> None:
    place = Warehouse(**{"id": 1, "name": "main", "location": "s3://b", **more})
    if problem is None:
        check_warehouse(place)
    else:
        with pytest.raises(InvalidInputError, match=f"warehouse main: .*{problem}"):
            check_warehouse(place)


def test_the_role_that_is_assumed(s3: Bucket) -> None:
    config, _ = vend_access(warehouse(s3, vend="sts", role_arn=ROLE), f"{s3.uri}/wh/who", write=False)
    keys = {
        "aws_access_key_id": config["s3.access-key-id"],
        "aws_secret_access_key": config["s3.secret-access-key"],
        "aws_session_token": config["s3.session-token"],
    }
    sts = Session().create_client("sts", region_name=REGION, endpoint_url=s3.endpoint, **keys)
    assert sts.get_caller_identity()["Arn"].endswith(":assumed-role/lancehouse/lancehouse")


@pytest.mark.parametrize(
    ("location", "copies"),
    [
        (AZURE, f"{AZURE}/.lancehouse/u-1"),
        ("az://c/wh", "abfss://c@acc.dfs.core.windows.net/wh/.lancehouse/u-1"),  # which Iceberg's clients can read
    ],
)
def test_sas_tokens_are_for_one_folder_each(location: str, copies: str) -> None:
    storage = {"account_name": "acc", "account_key": KEY}
    place = Warehouse(1, "main", location, storage=storage, vend="sas")
    config, credentials = vend_access(place, f"{location}/t", write=True, uuid="u-1")
    assert [each["prefix"] for each in credentials] == [f"{location}/t", copies]
    table, rows = (dict(parse_qsl(each["config"]["adls.sas-token"])) for each in credentials)
    assert (table["sr"], table["sdd"], table["sp"]) == ("d", "2", "racwdl")
    assert (rows["sr"], rows["sdd"], rows["sp"]) == ("d", "3", "rl")
    assert config == credentials[1]["config"]
    assert KEY not in str((config, credentials))
    picked = vended_options(f"{location}/t", config, list(map(wire.StorageCredential.model_validate, credentials)))
    assert picked["azure_storage_sas_token"] == credentials[0]["config"]["adls.sas-token.acc"]
    assert int(picked["expires_at_millis"]) > time.time() * 1000 + 3_500_000

    again = vend_access(place, f"{location}/t", write=True, uuid="u-1")
    assert again == (config, credentials)
    reader = vend_access(place, f"{location}/t", write=False)[0]
    assert dict(parse_qsl(reader["adls.sas-token"]))["sp"] == "rl"
    assert "azure_storage_account_key" not in from_iceberg_config(reader)


def test_a_sas_token_for_a_container_only_where_that_is_configured() -> None:
    place = Warehouse(1, "main", "az://c", storage={"account_name": "acc", "account_key": KEY}, vend="sas")
    with pytest.raises(InvalidInputError, match="az://c is a whole container"):
        vend_access(place, "az://c", write=True)
    token = vend_access(replace(place, sas_scope="container"), "az://c/t", write=False)[0]["adls.sas-token"]
    fields = dict(parse_qsl(token))
    assert (fields["sr"], fields["sp"], "sdd" in fields) == ("c", "rl", False)


def test_a_missing_library_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    for module, location, vend, extra in (
        ("botocore.config", "s3://b", "sts", "aws"),
        ("azure.core.exceptions", AZURE, "sas", "azure"),
        ("google.auth.transport.requests", "gs://b", "sts", "google"),
    ):
        monkeypatch.setitem(sys.modules, module, None)
        with pytest.raises(InvalidInputError, match=rf"pip install 'lancehouse\[{extra}\]'"):
            check_warehouse(Warehouse(1, "main", location, vend=vend, role_arn=ROLE))  # type: ignore[arg-type]
