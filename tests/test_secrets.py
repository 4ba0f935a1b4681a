from __future__ import annotations

import logging
import re
from dataclasses import fields
from pathlib import Path

import pytest
from lance_namespace.errors import InternalError, LanceNamespaceError, TableNotFoundError

from lancehouse.secrets import HIDDEN, Secrets, is_secret, redact, redact_properties
from lancehouse.settings import CLIENT_SETTINGS, ClientSettings

PROPERTIES = {
    "endpoint": "https://ada:pa55word@catalog.example",
    "credential": "gateway:c1ient-secret",
    "auth_token": "t0ken/with+signs",
    "header.Authorization": "Bearer b3arer",
    "header.X-Team": "eng",
    "storage.aws_secret_access_key": "s3cr3t",
    "storage.aws_region": "us-east-1",
    "storage.allow_http": "true",
    "storage.skip_signature": "true",
    "root": "s3://bucket/true",
}
SECRETS = ["pa55word", "c1ient-secret", "t0ken/with+signs", "t0ken%2Fwith%2Bsigns", "b3arer", "s3cr3t"]


@pytest.mark.parametrize("secret", SECRETS)
def test_what_is_secret_is_hidden(secret: str) -> None:
    secrets = Secrets(PROPERTIES)
    assert secrets.are_in(f"before {secret} after")
    assert secrets.redact(f"before {secret} after") == "before *** after"
    assert secret not in repr(secrets)


@pytest.mark.parametrize(
    "text", ["catalog.example", "us-east-1", "it is true", "eng", "s3://bucket/true", "", "gateway"]
)
def test_what_is_not_stays(text: str) -> None:
    assert not Secrets(PROPERTIES).are_in(text)


def test_an_error_keeps_its_kind_and_loses_the_secret() -> None:
    cause = ValueError("the store says s3cr3t")
    with pytest.raises(TableNotFoundError) as raised, Secrets(PROPERTIES).redact_errors("backend b"):
        error = TableNotFoundError("no t for s3cr3t")
        error.add_note("nor for b3arer")
        raise error from cause
    assert str(raised.value) == "no t for ***"
    assert raised.value.__cause__ is None
    assert raised.value.__notes__ == []


def test_a_cause_that_repeats_a_secret_is_dropped() -> None:
    with pytest.raises(TableNotFoundError, match="no t") as raised, Secrets(PROPERTIES).redact_errors("backend b"):
        try:
            raise ValueError("s3cr3t")
        except ValueError:
            raise TableNotFoundError("no t")  # noqa: B904
    assert raised.value.__cause__ is None
    assert raised.value.__suppress_context__


def test_what_nobody_foresaw_is_logged_without_it(caplog: pytest.LogCaptureFixture) -> None:
    with (
        caplog.at_level(logging.ERROR),
        pytest.raises(InternalError) as raised,
        Secrets(PROPERTIES).redact_errors("backend b"),
    ):
        raise KeyError("s3cr3t")
    assert str(raised.value) == "backend b: '***'"
    [record] = caplog.records
    assert "KeyError" in record.getMessage()
    assert "s3cr3t" not in record.getMessage()


@pytest.mark.parametrize("error", [TableNotFoundError("no t"), KeyError("t"), GeneratorExit()])
def test_other_errors_pass_as_they_are(error: BaseException) -> None:
    cause = ValueError("why")
    with pytest.raises(type(error)) as raised, Secrets(PROPERTIES).redact_errors("backend b"):
        raise error from cause
    assert raised.value is error
    assert error.__cause__ is cause


def test_no_secrets() -> None:
    with pytest.raises(LanceNamespaceError, match="all of it"), Secrets({}).redact_errors("backend b"):
        raise InternalError("all of it")


@pytest.mark.parametrize(
    ("name", "secret"),
    [
        ("auth_token", True),
        ("iceberg.auth_token", True),
        ("Polaris.Credential", True),
        ("storage.aws_secret_access_key", True),
        ("storage.access_key_id", True),
        ("unity.storage.token", True),
        ("s3.session-token", True),
        ("adls.sas-token.account.dfs.core.windows.net", True),
        ("aws_sse_customer_key_base64", True),
        ("header.region", True),
        ("my.own.password", True),
        ("secret.storage.region", True),
        ("client_key", False),
        ("scope", False),
        ("oauth2_server_uri", False),
        ("storage.aws_sse_kms_key_id", False),
        ("storage.aws_region", False),
        ("storage.client_id", False),
        ("s3.session-token-expires-at-ms", False),
        ("s3.endpoint", False),
        ("owner", False),
    ],
)
def test_is_secret(name: str, secret: bool) -> None:
    assert is_secret(name) is secret


def test_no_secret_setting_is_in_a_repr() -> None:
    shown = {field.name for field in fields(ClientSettings) if field.repr}
    assert not [setting.name for setting in CLIENT_SETTINGS if setting.secret and setting.name in shown]


def test_properties_for_display() -> None:
    assert redact_properties({"token": "t", "owner": "ada", "from": "https://ada:pa55@h/x"}) == {
        "from": f"https://{HIDDEN}@h/x",
        "owner": "ada",
        "token": HIDDEN,
    }
    assert redact_properties(None) == {}


def test_what_a_store_echoes() -> None:
    text = "GET https://ada:pa55word@host/file?X-Amz-Signature=abc failed for s3cr3t <Token>x</Token>"
    assert redact(text, {"secret_access_key": "s3cr3t"}) == "GET https://host/file failed for *** "


def test_a_url_with_a_signature_is_secret_and_others_are_not() -> None:
    properties = {"sas_url": "https://host/container?sig=abc", "token_url": "https://host/token"}
    assert Secrets(properties).redact("https://host/container?sig=abc https://host/token") == "*** https://host/token"


def test_no_other_module_guesses_what_is_secret() -> None:
    """A pattern that alternates between words for secrets belongs into `secrets.py`."""
    source = Path(__file__).parent.parent / "src"
    rule = re.compile(r"\b(secret|token|password)\||\|(secret|token|password)\b")
    assert [file.name for file in source.rglob("*.py") if rule.search(file.read_text())] == ["secrets.py"]
