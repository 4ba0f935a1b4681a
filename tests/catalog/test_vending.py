from __future__ import annotations

import json
import logging
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import lance
import pyarrow as pa
import pytest
from botocore.session import Session
from lance_namespace.errors import InvalidInputError, ServiceUnavailableError
from moto.iam.access_control import IAMPolicy, PermissionResult
from pyiceberg.catalog.rest import RestCatalog
from pyiceberg.catalog.rest.scan_planning import StorageCredential
from pyiceberg.io import load_file_io

from lancehouse.catalog import vending
from lancehouse.catalog.vending import check_warehouse, client_settings, session_policy, vend_access
from lancehouse.catalog.warehouses import Warehouse
from lancehouse.clients.iceberg import vended_options
from lancehouse.wire import iceberg as wire
from tests.servers.moto import ACCESS_KEY, REGION, ROLE, SECRET_KEY, Bucket, Moto

ROWS = pa.table({"n": [1, 2, 3]})


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
            {"adls.sas-token": "r", "adls.sas-token.a.dfs.core.windows.net": "r"},
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
    ("write", "action", "resource", "allowed"),
    [
        (True, "s3:PutObject", "b/wh/t/data/1.lance", True),
        (True, "s3:DeleteObject", "b/wh/t/x", True),
        (False, "s3:PutObject", "b/wh/t/data/1.lance", False),
        (False, "s3:DeleteObject", "b/wh/t/x", False),
        (False, "s3:GetObject", "b/wh/t/x", True),
        (True, "s3:GetObject", "b/wh/t2/x", False),
        (True, "s3:GetObject", "b/wh/x", False),
        (True, "s3:GetObject", "b/wh/.lancehouse/u/x.parquet", True),
        (True, "s3:PutObject", "b/wh/.lancehouse/u/x.parquet", False),
        (True, "s3:GetObject", "b/wh/.lancehouse/other/x.parquet", False),
        (True, "s3:GetObject", "other/wh/t/x", False),
        (True, "s3:PutBucketPolicy", "b", False),
        (True, "s3:ListBucket", "b", True),
        (True, "s3:ListBucket", "other", False),
    ],
)
def test_what_the_policy_allows(write: bool, action: str, resource: str, allowed: bool) -> None:
    text = session_policy("aws", "s3://b/wh/t/", "s3://b/wh/.lancehouse/u/", write=write)
    result = IAMPolicy(text).is_action_permitted(action, f"arn:aws:s3:::{resource}")
    assert (result == PermissionResult.PERMITTED) is allowed


def test_a_policy_takes_names_literally_and_lists_only_below() -> None:
    statements = json.loads(session_policy("aws-cn", "s3://b/a*?$/", "s3://c/x/", write=False))["Statement"]
    assert [statement["Resource"] for statement in statements] == [
        "arn:aws-cn:s3:::b/a${*}${?}${$}/*",
        "arn:aws-cn:s3:::c/x/*",
        "arn:aws-cn:s3:::b",
        "arn:aws-cn:s3:::c",
    ]
    assert [statement["Condition"]["StringLike"]["s3:prefix"] for statement in statements[2:]] == [
        ["a${*}${?}${$}", "a${*}${?}${$}/*"],
        ["x", "x/*"],
    ]
    with pytest.raises(InvalidInputError, match="too long"):
        session_policy("aws", f"s3://b/{'x' * 800}/", "s3://b/.lancehouse/", write=True)


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
        ({"vend": "sts", "role_arn": ROLE, "location": "gs://b"}, "STS is for s3://"),
    ],
)
def test_a_warehouse_is_checked_at_the_start(more: dict[str, Any], problem: str | None) -> None:
    place = Warehouse(**{"id": 1, "name": "main", "location": "s3://b", **more})
    if problem is None:
        check_warehouse(place)
    else:
        with pytest.raises(InvalidInputError, match=f"warehouse main: .*{problem}"):
            check_warehouse(place)


@pytest.mark.parametrize(
    ("endpoint", "sts"),
    [
        (None, None),
        ("http://127.0.0.1:9000", "http://127.0.0.1:9000"),
        ("https://s3.eu-west-1.amazonaws.com", None),
        ("https://s3.cn-north-1.amazonaws.com.cn", None),
    ],
)
def test_where_sts_is(endpoint: str | None, sts: str | None) -> None:
    assert vending._sts_endpoint(endpoint) == sts


def test_the_role_that_is_assumed(s3: Bucket) -> None:
    config, _ = vend_access(warehouse(s3, vend="sts", role_arn=ROLE), f"{s3.uri}/wh/who", write=False)
    keys = {
        "aws_access_key_id": config["s3.access-key-id"],
        "aws_secret_access_key": config["s3.secret-access-key"],
        "aws_session_token": config["s3.session-token"],
    }
    sts = Session().create_client("sts", region_name=REGION, endpoint_url=s3.endpoint, **keys)
    assert sts.get_caller_identity()["Arn"].endswith(":assumed-role/lancehouse/lancehouse")
