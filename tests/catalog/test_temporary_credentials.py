from __future__ import annotations

import json
import logging
import ssl
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, unquote

import pytest
import trustme
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from lance_namespace.errors import InvalidInputError, ServiceUnavailableError
from moto.iam.access_control import IAMPolicy, PermissionResult

from lancehouse.catalog import temporary_credentials
from lancehouse.catalog.temporary_credentials import (
    AzureAccount,
    DownscopedToken,
    SasToken,
    access_boundary,
    own_google_token,
    session_policy,
    sts_endpoint,
)
from tests.servers.azurite import ACCOUNT, KEY, is_folder_token_valid
from tests.servers.fake_gcs import OWN_TOKEN, TokenGate
from tests.servers.loopback import Answer, Loopback, Request


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
    ("endpoint", "sts"),
    [
        (None, None),
        ("http://127.0.0.1:9000", "http://127.0.0.1:9000"),
        ("https://s3.eu-west-1.amazonaws.com", None),
        ("https://s3.cn-north-1.amazonaws.com.cn", None),
    ],
)
def test_where_sts_is(endpoint: str | None, sts: str | None) -> None:
    assert sts_endpoint(endpoint) == sts


def rules(*places: Any, write: bool = True, copies: str | None = None) -> list[dict[str, Any]]:
    document = json.loads(access_boundary(places, copies, write=write))
    return list(document["accessBoundary"]["accessBoundaryRules"])


def test_what_a_boundary_says() -> None:
    table, copies = rules("gs://b/wh/a", "lance", copies="gs://c/.lancehouse/u")
    assert table == {
        "availableResource": "//storage.googleapis.com/projects/_/buckets/b",
        "availablePermissions": ["inRole:roles/storage.objectUser"],
        "availabilityCondition": {
            "expression": 'resource.name.startsWith("projects/_/buckets/b/objects/wh/a/") || '
            'api.getAttribute("storage.googleapis.com/objectListPrefix", "").startsWith("wh/a/")'
        },
    }
    assert copies["availablePermissions"] == ["inRole:roles/storage.objectViewer"]
    assert copies["availableResource"].endswith("/buckets/c")
    assert rules("gs://b/wh/a", "lance", write=False)[0]["availablePermissions"] == copies["availablePermissions"]


@pytest.mark.parametrize(
    ("location", "kind", "written"),
    [
        ("gs://b/wh/a%20b", "lance", '"wh/a b/"'),
        ("gs://b/wh/a%20b", "iceberg", '"wh/a%20b/"'),
        ("gs://b/a%22) || (true", "lance", r'"a\") || (true/"'),  # it stays inside the string
        ("gs://b/it's", "lance", '"it\'s/"'),
        ("gs://b/ä", "lance", '"ä/"'),
    ],
)
def test_a_boundary_takes_names_literally(location: str, kind: str, written: str) -> None:
    assert rules(location, kind)[0]["availabilityCondition"]["expression"].endswith(f".startsWith({written})")


def test_a_location_that_is_too_long_for_a_boundary() -> None:
    with pytest.raises(InvalidInputError, match="too long"):
        rules(f"gs://b/{'x' * 1100}", "lance")


@pytest.fixture
def google() -> Iterator[TokenGate]:
    with TokenGate("http://127.0.0.1:1") as gate:
        yield gate


def downscope(gate: TokenGate, storage: dict[str, str], name: str = "t") -> dict[str, str]:
    options = {"google_sts_endpoint": gate.token_url, **storage}
    return DownscopedToken.for_table(options, (f"gs://b/{name}", "lance"), None, write=True).fetch()


def test_an_exchange_at_google(google: TokenGate) -> None:
    token = downscope(google, {"google_storage_token": OWN_TOKEN})
    assert token["google_storage_token"] == "ya29.dr.1"
    assert 3500 < int(token["expires_at_millis"]) / 1000 - time.time() < 3700
    [form] = google.exchanges
    assert json.loads(unquote(form.pop("options"))) == json.loads(
        access_boundary(("gs://b/t", "lance"), None, write=True)
    )
    assert form == {
        "grant_type": "urn:ietf:params:oauth:grant-type:token-exchange",
        "requested_token_type": "urn:ietf:params:oauth:token-type:access_token",
        "subject_token_type": "urn:ietf:params:oauth:token-type:access_token",
        "subject_token": OWN_TOKEN,
    }


@pytest.fixture(scope="module")
def private_key() -> str:
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    form = (serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    return key.private_bytes(*form).decode()


@pytest.mark.parametrize("option", ["google_service_account_key", "google_service_account", "application_credentials"])
def test_a_service_account(google: TokenGate, private_key: str, option: str, tmp_path: Path) -> None:
    key = {
        "type": "service_account",
        "client_email": "lake@example.iam.gserviceaccount.com",
        "private_key": private_key,
        "private_key_id": "1",
        "token_uri": f"{google.uri}/oauth2/token",
    }
    file = tmp_path / "key.json"
    file.write_text(json.dumps(key))
    storage = {option: json.dumps(key) if option.endswith("_key") else str(file)}
    google.expires_in = None  # as Google does for service accounts
    token = downscope(google, storage)
    assert 3400 < int(token["expires_at_millis"]) / 1000 - time.time() < 3700
    downscope(google, storage, "t2")
    assert own_google_token(storage)["google_storage_token"] == OWN_TOKEN
    assert google.count("POST", "/oauth2/token") == 1
    assert google.count("POST", "/v1/token") == 2


def test_what_has_no_token_of_its_own() -> None:
    assert own_google_token({"google_storage_token": "t", "expires_at_millis": "5"}) == {}
    assert own_google_token({"google_storage_token": "t"}).keys() == {"expires_at_millis"}
    assert own_google_token({"region": "eu"}) == {}


@pytest.mark.parametrize(
    ("storage", "reason"),
    [
        ({"google_storage_token": "stolen-secret"}, "invalid_grant"),
        ({"google_service_account_key": "secret, no JSON"}, "MalformedError"),
        ({"google_service_account": "/no/such/secret.json"}, "MalformedError"),
        ({"google_storage_token": "secret", "google_sts_endpoint": "http://127.0.0.1:1"}, "TransportError"),
    ],
)
def test_google_refuses(google: TokenGate, storage: dict[str, str], reason: str) -> None:
    with pytest.raises(ServiceUnavailableError, match=rf"Google gives no token \({reason}\)") as refusal:
        downscope(google, storage)
    assert "secret" not in str(refusal.value)


def sas(location: str = "az://c/wh/a", *, write: bool = True, **storage: str) -> dict[str, str]:
    account = AzureAccount.from_storage({"account_name": ACCOUNT, "account_key": KEY, **storage}, location)
    token = SasToken.for_location(account, location, "lance", "folder", write=write).fetch()
    return dict(parse_qsl(token["azure_storage_sas_token"]))


@pytest.mark.parametrize(
    ("write", "permission", "path", "changed", "valid"),
    [
        (True, "w", "wh/a/data/1.lance", {}, True),
        (True, "d", "wh/a/x", {}, True),
        (True, "l", "wh/a/", {}, True),
        (False, "r", "wh/a/x", {}, True),
        (False, "w", "wh/a/x", {}, False),
        (False, "d", "wh/a/x", {}, False),
        (True, "r", "wh/ab/x", {}, False),
        (True, "l", "wh/a", {}, False),
        (True, "l", "wh/", {}, False),
        (True, "l", "", {}, False),
        (True, "r", "wh/x", {}, False),
        (True, "r", "wh/x", {"sdd": "1"}, False),
        (True, "r", "wh/ab/x", {"sdd": "1"}, False),
        (False, "w", "wh/a/x", {"sp": "racwdl"}, False),
        (True, "r", "wh/a/x", {"se": "2099-01-01T00:00:00Z"}, False),
    ],
)
def test_what_a_sas_token_opens(write: bool, permission: str, path: str, changed: dict[str, str], valid: bool) -> None:
    token = sas(write=write) | changed
    assert is_folder_token_valid(permission, f"/{ACCOUNT}/c/{path}", token) is valid


def test_a_sas_token_is_for_https_unless_the_endpoint_is_not() -> None:
    assert sas()["spr"] == "https"
    assert sas(azure_storage_endpoint="http://127.0.0.1:10000/devstoreaccount1")["spr"] == "https,http"


@pytest.mark.parametrize(
    ("location", "storage", "name", "endpoint"),
    [
        ("az://c/t", {"account_name": "acc"}, "acc", "https://acc.blob.core.windows.net"),
        ("abfss://c@acc.dfs.core.windows.net/t", {}, "acc", "https://acc.blob.core.windows.net"),
        ("abfss://c@acc.dfs.core.chinacloudapi.cn/t", {}, "acc", "https://acc.blob.core.chinacloudapi.cn"),
        ("az://c/t", {"account_name": "acc", "azure_endpoint": "http://h:1/acc/"}, "acc", "http://h:1/acc"),
    ],
)
def test_where_an_account_is(location: str, storage: dict[str, str], name: str, endpoint: str) -> None:
    account = AzureAccount.from_storage(storage, location)
    assert (account.name, account.endpoint) == (name, endpoint)


class Microsoft(Loopback):
    """Entra ID, and the part of an account that gives user delegation keys, over TLS."""

    def __init__(self, tls: ssl.SSLContext) -> None:
        self._tls = tls
        self.is_refused = False
        super().__init__()

    @property
    def uri(self) -> str:
        return super().uri.replace("http:", "https:")

    def _listen(self) -> None:
        super()._listen()
        self._listener.socket = self._tls.wrap_socket(self._listener.socket, server_side=True)

    def answer(self, request: Request) -> Answer:
        if request.path.endswith("/openid-configuration"):
            tenant = f"{self.uri}/tenant"
            return Answer.json(
                {
                    "issuer": f"{tenant}/v2.0",
                    "token_endpoint": f"{tenant}/oauth2/v2.0/token",
                    "authorization_endpoint": f"{tenant}/oauth2/v2.0/authorize",
                }
            )
        if request.path.endswith("/oauth2/v2.0/token"):
            assert (request.form["client_id"], request.form["client_secret"]) == ("app", "app-secret")
            return Answer.json({"token_type": "Bearer", "access_token": "entra-token", "expires_in": 3600})
        if request.query.get("restype") == "account":
            return Answer(403)
        assert request.query == {"restype": "service", "comp": "userdelegationkey"}
        assert request.headers["Authorization"] == "Bearer entra-token"
        if self.is_refused:
            return Answer(403, b"", {"x-ms-error-code": "AuthorizationPermissionMismatch"})
        start, expiry = (f"{datetime.now(UTC) + timedelta(hours=hours):%Y-%m-%dT%H:%M:%SZ}" for hours in (0, 6))
        fields = {"SignedOid": "oid", "SignedTid": "tid", "SignedStart": start, "SignedExpiry": expiry}
        fields |= {"SignedService": "b", "SignedVersion": "2020-02-10", "Value": KEY}
        body = "".join(f"<{name}>{value}</{name}>" for name, value in fields.items())
        text = f"<?xml version='1.0' encoding='utf-8'?><UserDelegationKey>{body}</UserDelegationKey>"
        return Answer.text(text, content_type="application/xml")


@pytest.fixture
def microsoft(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Microsoft]:
    authority, context = trustme.CA(), ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(tmp_path / "ca.pem"))
    with Microsoft(context) as server:
        yield server


def delegated(server: Microsoft, location: str, *, write: bool) -> SasToken:
    storage = {
        "azure_storage_client_id": "app",
        "azure_storage_client_secret": "app-secret",
        "azure_storage_tenant_id": "tenant",
        "azure_storage_authority_host": server.uri,
        "azure_storage_endpoint": server.uri,
    }
    account = AzureAccount.from_storage(storage, location)
    assert account.has_folders() is None  # it was not allowed to look
    return SasToken.for_location(account, location, "lance", "folder", write=write)


def test_a_user_delegation_key_signs_many_tokens(microsoft: Microsoft, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    place = "abfss://c@acc.dfs.core.windows.net/wh"
    first = delegated(microsoft, f"{place}/a", write=True).fetch()
    second = delegated(microsoft, f"{place}/b", write=False).fetch()
    fields = [dict(parse_qsl(token["azure_storage_sas_token"])) for token in (first, second)]
    assert [each["sp"] for each in fields] == ["racwdl", "rl"]
    assert {(each["skoid"], each["sr"], each["sdd"]) for each in fields} == {("oid", "d", "2")}
    assert sum("userdelegationkey" in target for _, target in microsoft.requests) == 1
    for secret in ("app-secret", "entra-token", KEY, fields[0]["sig"]):
        assert secret not in caplog.text


def test_azure_refuses(microsoft: Microsoft) -> None:
    microsoft.is_refused = True
    token = delegated(microsoft, "abfss://c@other.dfs.core.windows.net/wh/a", write=True)
    message = r"no user delegation key for the account other \(AuthorizationPermissionMismatch\)"
    with pytest.raises(ServiceUnavailableError, match=message) as refusal:
        token.fetch()
    assert "app-secret" not in str(refusal.value)
    assert "app-secret" not in repr(token)


def test_a_delegation_key_is_renewed_before_a_token_would_outlive_it(
    microsoft: Microsoft, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(temporary_credentials, "DELEGATION_KEY_S", 1800)
    for _ in range(2):
        delegated(microsoft, "abfss://c@renewed.dfs.core.windows.net/wh/a", write=True).fetch()
    assert sum("userdelegationkey" in target for _, target in microsoft.requests) == 2
