from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pytest
from lance_namespace import connect
from lance_namespace.errors import InvalidInputError

import lancehouse
from lancehouse import CATALOGS
from lancehouse.settings import CLIENT_SETTINGS, ClientSettings

AT = {"endpoint": "http://localhost:8181"}
UNITY = {**AT, "catalog": "main"}


@pytest.mark.parametrize(
    ("client", "properties", "field", "value"),
    [
        ("iceberg", AT, "connect_timeout_s", 10),
        ("iceberg", AT, "read_timeout_s", 30),
        ("iceberg", AT, "max_retries", 3),
        ("iceberg", AT, "scope", "catalog"),
        ("iceberg", AT, "root", None),
        ("iceberg", AT, "managed_by", "storage"),
        ("iceberg", {**AT, "managed_by": "impl"}, "managed_by", "impl"),
        ("iceberg", {**AT, "managed_by": "IMPL"}, "managed_by", "impl"),
        ("iceberg", {**AT, "managed_by": "Storage"}, "managed_by", "storage"),
        ("unity", UNITY, "managed_by", "storage"),
        ("polaris", AT, "connect_timeout_s", 10),
        ("polaris", AT, "read_timeout_s", 30),
        ("polaris", AT, "scope", "PRINCIPAL_ROLE:ALL"),
        ("unity", UNITY, "connect_timeout_s", 10),
        ("unity", UNITY, "read_timeout_s", 60),
        ("unity", UNITY, "api_path", "/api/2.1/unity-catalog"),
        ("unity", {**UNITY, "api_path": "uc/"}, "api_path", "/uc"),
        ("iceberg", {**AT, "read_timeout": "1500"}, "read_timeout_s", 1.5),
        ("polaris", {**AT, "connect_timeout": "250"}, "connect_timeout_s", 0.25),
        ("unity", {**UNITY, "read_timeout": "5"}, "read_timeout_s", 5),
        ("iceberg", {**AT, "max_retries": "0"}, "max_retries", 0),
        ("iceberg", {**AT, "max_retries": 7}, "max_retries", 7),
        ("iceberg", {"endpoint": "https://h/iceberg///"}, "endpoint", "https://h/iceberg"),
        ("iceberg", {"endpoint": "HTTPS://Host:8443/x"}, "endpoint", "https://Host:8443/x"),
        ("iceberg", {"endpoint": "http://h/x?"}, "endpoint", "http://h/x"),
        # the peer's spellings
        ("polaris", {"polaris.endpoint": "http://h"}, "endpoint", "http://h"),
        ("polaris", {**AT, "polaris.auth_token": "t"}, "auth_token", "t"),
        ("polaris", {**AT, "polaris.managed_by": "impl"}, "managed_by", "impl"),
        ("polaris", {**AT, "polaris.connect_timeout_millis": "500"}, "connect_timeout_s", 0.5),
        ("unity", {**UNITY, "unity.read_timeout_millis": "300000"}, "read_timeout_s", 300),
        ("unity", {**UNITY, "unity.root": "/data"}, "root", "/data"),
        ("iceberg", {**AT, "header.X-Team": "ml", "storage.region": "eu"}, "headers", {"X-Team": "ml"}),
        ("iceberg", {**AT, "header.X-Team": "ml", "storage.region": "eu"}, "storage", {"region": "eu"}),
        ("iceberg", {**AT, "sigv4.region": "eu-west-1", "sigv4.service": "glue"}, "sigv4_service", "glue"),
    ],
)
def test_values_units_and_defaults(client: str, properties: dict[str, Any], field: str, value: object) -> None:
    found = getattr(ClientSettings.parse(client, properties), field)
    assert found == (pytest.approx(value) if isinstance(value, float) else value)


@pytest.mark.parametrize(
    ("client", "properties", "said"),
    [
        ("iceberg", {}, "'endpoint' is required"),
        ("unity", AT, "'catalog' is required"),
        ("iceberg", {"endpoint": "localhost:8181"}, "http:// or https://"),
        ("iceberg", {"endpoint": "http://"}, "http:// or https://"),
        ("iceberg", {"endpoint": "http://a b/"}, "http:// or https://"),
        ("iceberg", {"endpoint": "http://h:abc"}, "Port could not be cast"),
        ("iceberg", {"endpoint": "http://h:99999"}, "Port out of range"),
        ("iceberg", {**AT, "storage.": "x"}, "unknown property 'storage.'"),
        ("iceberg", {**AT, "header.X": "€"}, "no HTTP header can carry"),
        ("iceberg", {"endpoint": "http://me:secret@h"}, "must not carry a user or password"),
        ("iceberg", {"endpoint": "http://h?x=1"}, "must not have a query"),
        ("iceberg", {"endpoint": "http://lake..example.com"}, "must have a valid host name"),
        ("iceberg", {"endpoint": f"http://{'a' * 64}.com"}, "must have a valid host name"),
        ("iceberg", {**AT, "max_retries": "many"}, "'max_retries' must be a whole number"),
        ("iceberg", {**AT, "max_retries": "-1"}, "'max_retries' must be a whole number"),
        ("iceberg", {**AT, "read_timeout": "0"}, "'read_timeout' must be a number greater than 0"),
        ("iceberg", {**AT, "read_timeout": "soon"}, "'read_timeout' must be a number"),
        ("iceberg", {**AT, "managed_by": "catalog"}, "'managed_by' must be storage or impl"),
        ("iceberg", {**AT, "managed_by": ""}, "'managed_by' must be storage or impl"),
        ("iceberg", {**AT, "manged_by": "impl"}, "did you mean managed_by"),
        ("iceberg", {**AT, "credential": "only-an-id"}, "client_id:client_secret"),
        ("iceberg", {**AT, "auth_token": "two\nlines"}, "'auth_token' must be a printable"),
        ("iceberg", {**AT, "ca_bundle": "/no/such.pem"}, "'ca_bundle' names no file"),
        ("iceberg", {**AT, "endpont": "x"}, "did you mean endpoint"),
        ("iceberg", {**AT, "authtoken": "x"}, "did you mean auth_token"),
        ("polaris", {**AT, "polaris.max_retry": "3"}, "did you mean max_retries"),
        ("iceberg", {**AT, "zzz": "x"}, "expected one of endpoint"),
        ("polaris", {**AT, "sigv4.region": "x"}, "unknown property 'sigv4.region'"),
        ("iceberg", {**AT, "unity.endpoint": "x"}, "unknown property 'unity.endpoint'"),
        ("polaris", {**AT, "polaris.endpoint": "http://other"}, "says the same as 'endpoint'"),
        ("iceberg", {**AT, "root": None}, "'root' must be a string, not NoneType"),
        ("iceberg", {**AT, "credential": "secret\udcff:x"}, "'credential' is not Unicode text"),
        ("iceberg", {**AT, "storage.\udcff": "x"}, "is not Unicode text"),
        ("iceberg", {**AT, "header.": "x"}, "names no HTTP header"),
        ("iceberg", {**AT, "header.Content-length": "5"}, "follows from the body"),
        ("iceberg", {**AT, "header.transfer-encoding": "chunked"}, "follows from the body"),
        ("iceberg", {**AT, "header.X": "a\r\nB: c"}, "no HTTP header can carry"),
        ("iceberg", {**AT, "sigv4.region": "eu-west-1"}, "given together"),
        ("iceberg", {**AT, "client_key": __file__}, "needs 'client_cert'"),
        ("unity", {**UNITY, "credential": "a:b"}, "needs 'oauth2_server_uri'"),
    ],
)
def test_wrong_properties(client: str, properties: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidInputError) as error:
        ClientSettings.parse(client, properties)
    assert said in str(error.value)
    assert "secret" not in str(error.value).replace("client_secret", "")


def test_a_value_is_not_repeated_in_the_error() -> None:
    with pytest.raises(InvalidInputError) as error:
        ClientSettings.parse("iceberg", {**AT, "credential": "hunter2"})
    assert "hunter2" not in str(error.value)


SECRETS = {
    **AT,
    "auth_token": "s3cr3t-token",
    "credential": "me:s3cr3t-word",
    "header.X-Api-Key": "s3cr3t-key",
    "storage.secret_access_key": "s3cr3t-storage",
}


def test_no_secret_in_a_repr() -> None:
    namespace = lancehouse.IcebergNamespace(**SECRETS)
    for text in (
        repr(ClientSettings.parse("iceberg", SECRETS)),
        repr(namespace),
        namespace.namespace_id(),
        str(vars(namespace)["_settings"]),
    ):
        assert "s3cr3t" not in text


def test_equal_properties_are_the_same_connection() -> None:
    one, same = lancehouse.IcebergNamespace(**SECRETS), lancehouse.IcebergNamespace(**SECRETS)
    other = lancehouse.IcebergNamespace(**{**SECRETS, "auth_token": "another"})
    assert one.namespace_id() == same.namespace_id() != other.namespace_id()
    assert pickle.loads(pickle.dumps(one)).namespace_id() == one.namespace_id()


@pytest.mark.parametrize(("alias", "path"), CATALOGS.items())
def test_aliases_and_class_paths(alias: str, path: str) -> None:
    properties = UNITY if alias == "unity" else AT
    assert path.removeprefix("lancehouse.") in lancehouse.__all__
    assert type(connect(alias, properties)) is type(connect(path, properties))
    with pytest.raises(ValueError, match="did you mean endpoint"):
        connect(path, {"endpoin": "http://h"})


@pytest.mark.parametrize("client", CATALOGS)
def test_every_setting_is_documented(client: str) -> None:
    page = (Path(__file__).parent.parent / "docs" / f"{client}.md").read_text()
    for setting in CLIENT_SETTINGS:
        default = setting.default_for(client)
        shown = (
            "required"
            if setting.required
            else ""
            if default is None
            else f"`{default:g}`"
            if isinstance(default, float)
            else f"`{default}`"
        )
        row = f"| `{setting.name}` | {shown} | {setting.help} |"
        assert (row in page) == (client in setting.clients), row
