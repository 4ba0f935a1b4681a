from __future__ import annotations

import pytest

from lancehouse.clients.iceberg import vended_options
from lancehouse.clients.unity import TemporaryCredentials, to_storage_options
from lancehouse.wire.iceberg import StorageCredential


@pytest.mark.parametrize(
    ("config", "options"),
    [
        ({}, {}),
        (
            {"s3.access-key-id": "a", "s3.secret-access-key": "b", "s3.session-token": "c"},
            {"aws_access_key_id": "a", "aws_secret_access_key": "b", "aws_session_token": "c"},
        ),
        ({"s3.session-token-expires-at-ms": "17"}, {"expires_at_millis": "17"}),
        ({"client.region": "eu"}, {"aws_region": "eu"}),
        ({"s3.endpoint": "https://m"}, {"aws_endpoint": "https://m"}),
        ({"s3.endpoint": "http://m:9000"}, {"aws_endpoint": "http://m:9000", "allow_http": "true"}),
        ({"s3.path-style-access": "true"}, {"aws_virtual_hosted_style_request": "false"}),
        (
            {"gcs.oauth2.token": "g", "gcs.oauth2.token-expires-at": "18"},
            {"google_storage_token": "g", "expires_at_millis": "18"},
        ),
        (
            {
                "adls.sas-token.acc.dfs.core.windows.net": "s",
                "adls.sas-token-expires-at-ms.acc.dfs.core.windows.net": "19",
            },
            {"azure_storage_account_name": "acc", "azure_storage_sas_token": "s", "expires_at_millis": "19"},
        ),
        ({"token": "t", "py-io-impl": "x", "s3.signer.uri": "u"}, {}),
    ],
)
def test_names_that_lance_knows(config: dict[str, str], options: dict[str, str]) -> None:
    assert vended_options("s3://b/t", config, None) == options


def test_the_longest_prefix_wins_over_config() -> None:
    vended = [
        StorageCredential(prefix="s3://b/", config={"s3.access-key-id": "wide"}),
        StorageCredential(prefix="s3://b/db/t", config={"s3.access-key-id": "narrow"}),
        StorageCredential(prefix="s3://other", config={"s3.access-key-id": "other"}),
    ]
    config = {"s3.access-key-id": "config", "client.region": "eu"}
    assert vended_options("s3://b/db/t", config, vended) == {"aws_access_key_id": "narrow", "aws_region": "eu"}
    assert vended_options("gs://x", config, vended) == {"aws_access_key_id": "config", "aws_region": "eu"}


@pytest.mark.parametrize(
    ("answer", "options"),
    [
        ({}, {}),
        ({"expiration_time": 5}, {}),
        (
            {
                "aws_temp_credentials": {"access_key_id": "a", "secret_access_key": "b", "session_token": "c"},
                "expiration_time": 5,
            },
            {
                "aws_access_key_id": "a",
                "aws_secret_access_key": "b",
                "aws_session_token": "c",
                "expires_at_millis": "5",
            },
        ),
        ({"azure_user_delegation_sas": {"sas_token": "s"}}, {"azure_storage_sas_token": "s"}),
        ({"gcp_oauth_token": {"oauth_token": "g"}}, {"google_storage_token": "g"}),
    ],
)
def test_unity_credentials(answer: dict[str, object], options: dict[str, str]) -> None:
    assert to_storage_options(TemporaryCredentials.model_validate(answer)) == options
