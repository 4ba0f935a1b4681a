from __future__ import annotations

import time

import pytest

from lancehouse.clients.iceberg import from_iceberg_config
from lancehouse.credentials import (
    SECRETS,
    canonical_options,
    expires_soon,
    merge_options,
    to_iceberg_config,
)

S3 = {"aws_access_key_id": "a", "aws_secret_access_key": "b"}


@pytest.mark.parametrize(
    ("layers", "options"),
    [
        ([{"region": "table"}, {"aws_region": "client"}], {"aws_region": "client"}),
        ([{"AWS_REGION": "table", "x": "1"}, {"region": "client"}], {"x": "1", "region": "client"}),
        ([{"access_key_id": "client"}, {"aws_access_key_id": "vended"}], {"aws_access_key_id": "vended"}),
        ([{"azure_tenant_id": "table"}, {"tenant_id": "client"}], {"tenant_id": "client"}),
        ([{"own": "table"}, {"own": "client"}, {}], {"own": "client"}),
        ([{}, {}, {}], {}),
    ],
)
def test_the_last_layer_wins_whatever_the_others_call_it(layers: list[dict[str, str]], options: dict[str, str]) -> None:
    assert merge_options(*layers) == options


@pytest.mark.parametrize(
    ("options", "config"),
    [
        ({}, {}),
        ({"client_max_retries": "3", "allow_http": "true"}, {}),
        (S3, {"s3.access-key-id": "a", "s3.secret-access-key": "b"}),
        ({"token": "t", "expires_at_millis": "5"}, {"s3.session-token": "t", "s3.session-token-expires-at-ms": "5"}),
        ({"REGION": "eu"}, {"client.region": "eu", "s3.region": "eu", "s3.client.region": "eu"}),
        (
            {"endpoint_url": "http://m:9000"},
            {
                "s3.endpoint": "http://m:9000",
                "s3.path-style-access": "true",
                "s3.force-virtual-addressing": "false",
            },
        ),
        (
            {"virtual_hosted_style_request": "true"},
            {"s3.path-style-access": "false", "s3.force-virtual-addressing": "true"},
        ),
        (
            {"google_storage_token": "g", "expires_at_millis": "6"},
            {"gcs.oauth2.token": "g", "gcs.oauth2.token-expires-at": "6"},
        ),
        ({"account_name": "acc"}, {"adls.account-name": "acc"}),
        (
            {"account_name": "acc", "account_key": "k"},
            {
                "adls.account-name": "acc",
                "adls.account-key": "k",
                "adls.auth.shared-key.account.name": "acc",
                "adls.auth.shared-key.account.key": "k",
            },
        ),
        (
            {"account_name": "acc", "sas_token": "s", "expires_at_millis": "7"},
            {
                "adls.account-name": "acc",
                "adls.sas-token": "?s",
                "adls.sas-token.acc": "s",
                "adls.sas-token.acc.dfs.core.windows.net": "s",
                "adls.sas-token-expires-at-ms.acc": "7",
                "adls.sas-token-expires-at-ms.acc.dfs.core.windows.net": "7",
            },
        ),
        (
            {"account_name": "acc", "sas_token": "s", "azure_endpoint": "https://acc.blob.core.chinacloudapi.cn"},
            {
                "adls.account-name": "acc",
                "adls.blob-storage-authority": ".blob.core.chinacloudapi.cn",
                "adls.blob-storage-scheme": "https",
                "adls.dfs-storage-authority": ".dfs.core.chinacloudapi.cn",
                "adls.dfs-storage-scheme": "https",
                "adls.sas-token": "?s",
                "adls.sas-token.acc": "s",
                "adls.sas-token.acc.dfs.core.chinacloudapi.cn": "s",
            },
        ),
        (
            {"account_name": "acc", "azure_storage_endpoint": "http://127.0.0.1:10000/acc"},
            {
                "adls.account-name": "acc",
                "adls.blob-storage-authority": "127.0.0.1:10000",
                "adls.blob-storage-scheme": "http",
                "adls.dfs-storage-authority": "127.0.0.1:10000",
                "adls.dfs-storage-scheme": "http",
                "adls.connection-string.acc.dfs.core.windows.net": "http://127.0.0.1:10000/acc",
            },
        ),
        (
            {"base_url": "http://127.0.0.1:4443", "google_service_account_key": "{}"},
            {"gcs.service.host": "http://127.0.0.1:4443"},
        ),
        (
            {"azure_client_id": "i", "azure_client_secret": "s", "azure_tenant_id": "t"},
            {"adls.client-id": "i", "adls.client-secret": "s", "adls.tenant-id": "t"},
        ),
    ],
)
def test_names_that_iceberg_knows(options: dict[str, str], config: dict[str, str]) -> None:
    assert to_iceberg_config(options) == config


@pytest.mark.parametrize(
    "options",
    [
        {},
        S3,
        {**S3, "aws_session_token": "c", "expires_at_millis": "5"},
        {
            **S3,
            "aws_region": "eu",
            "aws_endpoint": "http://m",
            "allow_http": "true",
            "aws_virtual_hosted_style_request": "false",
        },
        {"google_storage_token": "g", "expires_at_millis": "6"},
        {"azure_storage_account_name": "acc", "azure_storage_account_key": "k"},
        {"azure_storage_account_name": "acc", "azure_storage_sas_token": "s", "expires_at_millis": "7"},
    ],
)
def test_there_and_back(options: dict[str, str]) -> None:
    assert from_iceberg_config(to_iceberg_config(options)) == options


def test_every_secret_has_the_name_that_others_are_brought_to() -> None:
    assert canonical_options(dict.fromkeys(SECRETS, "x")).keys() == SECRETS


NOW_MS = 1_800_000_000_000


@pytest.mark.parametrize(
    ("options", "soon"),
    [
        ({}, False),  # what never expires
        (S3, False),
        ({**S3, "expires_at_millis": str(NOW_MS - 1)}, True),
        ({**S3, "expires_at_millis": str(NOW_MS)}, True),
        ({**S3, "expires_at_millis": str(NOW_MS + 59_999)}, True),
        ({**S3, "expires_at_millis": str(NOW_MS + 60_000)}, False),
        ({**S3, "expires_at_millis": "0"}, True),
        ({**S3, "expires_at_millis": ""}, False),
        ({**S3, "expires_at_millis": "never"}, False),
        ({**S3, "expires_at_millis": "-5"}, False),
    ],
)
def test_credentials_that_are_over_within_a_minute(
    monkeypatch: pytest.MonkeyPatch, options: dict[str, str], soon: bool
) -> None:
    monkeypatch.setattr(time, "time", lambda: NOW_MS / 1000)
    assert expires_soon(options) is soon
