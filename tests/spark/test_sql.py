"""The settings that Spark SQL needs on the gateway."""

from __future__ import annotations

import re
from typing import Any

import pytest
from lance_namespace.errors import InvalidInputError

from lancehouse.spark import sql_config
from lancehouse.spark.sql import CATALOG, EXTENSIONS


def of_catalog(settings: dict[str, str], catalog: str = "lh") -> dict[str, str]:
    prefix = f"spark.sql.catalog.{catalog}"
    return {key.removeprefix(prefix): value for key, value in settings.items() if key.startswith(prefix)}


def test_what_is_always_there() -> None:
    settings = sql_config("http://127.0.0.1:8181/", "main")
    assert settings["spark.sql.extensions"] == EXTENSIONS
    assert of_catalog(settings) == {
        "": CATALOG,
        ".impl": "rest",
        ".uri": "http://127.0.0.1:8181/lance/main",
        ".single_level_ns": "false",
    }


@pytest.mark.parametrize(
    ("arguments", "settings"),
    [
        ({"catalog": "my_lake"}, {".uri": "http://h/lance/main"}),
        ({"token": "t0p"}, {".header.authorization": "Bearer t0p"}),
        ({"headers": {"X-Tenant": "a b"}}, {".header.x-tenant": "a b"}),
        ({"parent": "wh"}, {".parent": "wh", ".parent_delimiter": "."}),
        ({"parent": ["wh", "a.b"]}, {".parent": "wh/a.b", ".parent_delimiter": "/"}),
        ({"storage": {"aws_region": "eu-west-1"}}, {".storage.aws_region": "eu-west-1"}),
        ({"backend": "a b"}, {".uri": "http://h/lance/a%20b"}),
    ],
)
def test_what_is_asked_for(arguments: dict[str, Any], settings: dict[str, str]) -> None:
    found = sql_config("http://h", **{"backend": "main", **arguments})
    assert settings.items() <= of_catalog(found, arguments.get("catalog", "lh")).items()


def test_what_is_secret_is_in_settings_that_spark_hides() -> None:
    secrets = {"aws_access_key_id": "k1", "aws_secret_access_key": "k2", "aws_session_token": "k3"}
    secrets |= {"azure_storage_account_key": "k4", "azure_storage_sas_key": "k5"}
    settings = sql_config("http://h", "main", token="k6", headers={"x-api-key": "k7"}, storage=secrets)
    hidden = re.compile(settings["spark.redaction.regex"])
    shown = {key: value for key, value in settings.items() if not hidden.search(key)}
    assert len(settings) - len(shown) == 7
    assert not [value for value in shown.values() if re.search(r"\bk\d", value)]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"endpoint": "127.0.0.1:8181"}, "endpoint must be the address of a server"),
        ({"endpoint": "http://me:s3cret@h"}, "who calls is said by token"),
        ({"endpoint": "http://h?token=s3cret"}, "who calls is said by token"),
        ({"backend": ""}, "no name of a warehouse"),
        ({"backend": "a/b"}, "no name of a warehouse"),
        ({"catalog": "a.b"}, "no name for one"),
        ({"catalog": "spark_catalog"}, "no name for one"),
        ({"token": "s3cret\n"}, "header field 'authorization'"),
        ({"headers": {"a b": "s3cret"}}, "header field 'a b'"),
        ({"parent": ["wh", ""]}, "a level of parent is empty"),
        ({"parent": ["./|\x1f"]}, "every delimiter"),
    ],
)
def test_what_cannot_be(arguments: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidInputError, match=re.escape(words)) as refused:
        sql_config(**{"endpoint": "http://h", "backend": "main", **arguments})
    assert "s3cret" not in str(refused.value)
