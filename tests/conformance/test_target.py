from __future__ import annotations

import pytest
from lance_namespace.errors import InvalidInputError

from lancehouse.conformance.target import ConformanceTarget
from lancehouse.connection import parse_property


@pytest.mark.parametrize(
    ("text", "pair"),
    [("a=b", ("a", "b")), ("a=", ("a", "")), ("a=b=c", ("a", "b=c")), ("storage.region=x", ("storage.region", "x"))],
)
def test_parse_property(text: str, pair: tuple[str, str]) -> None:
    assert parse_property(text) == pair


@pytest.mark.parametrize("text", ["s3cr3t", "=s3cr3t"])
def test_parse_property_repeats_nothing(text: str) -> None:
    with pytest.raises(InvalidInputError) as raised:
        parse_property(text)
    assert "s3cr3t" not in str(raised.value)


@pytest.mark.parametrize(
    ("properties", "text", "shown"),
    [
        ({"credential": "id:s3cr3t"}, "id:s3cr3t, and s3cr3t alone", "***, and *** alone"),
        ({"auth_token": "t0ken"}, "Bearer t0ken", "Bearer ***"),
        ({"header.Authorization": "Bearer t0ken"}, "got t0ken", "got ***"),
        ({"storage.aws_secret_access_key": "k3y+/="}, "k3y+/= is wrong", "*** is wrong"),
        ({"token": "ab"}, "a table ab", "a table ***"),
        ({"token": ""}, "nothing", "nothing"),
        ({"endpoint": "http://user:pa55word@host/x"}, "user:pa55word or pa55word", "*** or ***"),
        ({"endpoint": "http://host", "root": "/data"}, "http://host /data", "http://host /data"),
    ],
)
def test_redact(properties: dict[str, str], text: str, shown: str) -> None:
    assert ConformanceTarget("x", properties).redact(text) == shown


def test_properties_are_in_no_repr() -> None:
    assert "s3cr3t" not in repr(ConformanceTarget("x", {"token": "s3cr3t"}))


def test_connect_says_what_is_wrong_without_secrets() -> None:
    with pytest.raises(InvalidInputError, match=r"nowhere\.Namespace") as raised:
        ConformanceTarget("nowhere.Namespace", {"token": "s3cr3t"}).connect()
    assert "s3cr3t" not in str(raised.value)
