"""Settings for Spark SQL through lance-spark on the Lance REST API of `lancehouse serve`."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from urllib.parse import quote, urlsplit

from lance_namespace.errors import InvalidInputError

from lancehouse import secrets

CATALOG = "org.lance.spark.LanceNamespaceSparkCatalog"
EXTENSIONS = "org.lance.spark.extensions.LanceSparkSessionExtensions"
RESERVED_CATALOGS = frozenset({"spark_catalog", "system", "session"})
"""Names of catalogs that have another meaning for Spark."""
DELIMITERS = (".", "/", "|", "\x1f")
"""Delimiters that may join the levels of `parent`, in order of preference."""


def sql_config(
    endpoint: str,
    backend: str,
    *,
    catalog: str = "lh",
    token: str | None = None,
    parent: str | Sequence[str] = (),
    headers: Mapping[str, str] | None = None,
    storage: Mapping[str, str] | None = None,
) -> dict[str, str]:
    """Return the settings of a Spark session with lance-spark on a gateway, for `SparkSession.builder.config`.

    Spark reads `spark.sql.extensions` and `spark.redaction.regex` only when it starts, the others at any time before
    the catalog is first used.

    Args:
        endpoint: address of the server, such as `http://127.0.0.1:8181`.
        backend: the warehouse, or the name of another backend of the gateway.
        catalog: name of the catalog in SQL.
        token: bearer token of the caller. It is in a setting that `spark.redaction.regex`, which is among the settings,
            hides.
        parent: levels that all ids begin with, and names in SQL do not: the warehouse, where the backend is an Iceberg
            server.
        headers: further header fields of each request.
        storage: storage options with which Spark itself reaches the data, under Lance's names.

    Raises:
        InvalidInputError: an argument is invalid; the message does not repeat secrets.
    """
    if not re.fullmatch(r"[A-Za-z_]\w*", catalog, re.ASCII) or catalog.lower() in RESERVED_CATALOGS:
        raise InvalidInputError(
            f"catalog {catalog!r} is no name for one: letters, digits and _, and none of Spark's own"
        )
    fields = dict(headers or {})
    if token is not None:
        fields["authorization"] = f"Bearer {token}"
    own = {
        "": CATALOG,
        ".impl": "rest",
        ".uri": f"{_check_endpoint(endpoint)}/lance/{_quote_backend(backend)}",
        ".single_level_ns": "false",
        **_parent_settings([parent] if isinstance(parent, str) else list(parent)),
        **{f".header.{_check_header(name, value)}": value for name, value in fields.items()},
        **{f".storage.{key}": value for key, value in (storage or {}).items()},
    }
    return {
        "spark.sql.extensions": EXTENSIONS,
        "spark.redaction.regex": secrets.SPARK,
        **{f"spark.sql.catalog.{catalog}{key}": value for key, value in own.items()},
    }


def _check_endpoint(endpoint: str) -> str:
    parts = urlsplit(endpoint)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise InvalidInputError("endpoint must be the address of a server, such as http://127.0.0.1:8181")
    if parts.username or parts.password or parts.query or parts.fragment:
        raise InvalidInputError("endpoint must be an address alone; who calls is said by token")
    return endpoint.rstrip("/")


def _quote_backend(backend: str) -> str:
    if not backend or backend in (".", "..") or "/" in backend:
        raise InvalidInputError(f"backend {backend!r} is no name of a warehouse or another backend of the gateway")
    return quote(backend, safe="")


def _parent_settings(levels: Sequence[str]) -> dict[str, str]:
    """Return the settings for `parent`, with a delimiter that is in none of its levels: lance-spark splits it there."""
    if not levels:
        return {}
    if "" in levels:
        raise InvalidInputError("a level of parent is empty")
    delimiter = next((candidate for candidate in DELIMITERS if not any(candidate in level for level in levels)), None)
    if delimiter is None:
        raise InvalidInputError(f"parent {levels!r} has every delimiter in it that could be between its levels")
    return {".parent": delimiter.join(levels), ".parent_delimiter": delimiter}


def _check_header(name: str, value: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9-]+", name, re.ASCII) or not re.fullmatch(r"[\x20-\x7e]+", value):
        raise InvalidInputError(f"header field {name!r}: neither its name nor its value may have odd characters")
    return name.lower()
