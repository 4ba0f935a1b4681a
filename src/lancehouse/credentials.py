"""Access to storage, in the names that Lance's object stores know and in Iceberg's."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from types import MappingProxyType

EXPIRES = "expires_at_millis"

LANCE_NAMES: Mapping[str, str] = MappingProxyType(
    {
        "s3.access-key-id": "aws_access_key_id",
        "s3.secret-access-key": "aws_secret_access_key",
        "s3.session-token": "aws_session_token",
        "s3.session-token-expires-at-ms": EXPIRES,
        "s3.endpoint": "aws_endpoint",
        "client.region": "aws_region",
        "s3.region": "aws_region",
        "s3.client.region": "aws_region",
        "gcs.oauth2.token": "google_storage_token",
        "gcs.oauth2.token-expires-at": EXPIRES,
        "adls.account-name": "azure_storage_account_name",
        "adls.account-key": "azure_storage_account_key",
        "adls.auth.shared-key.account.name": "azure_storage_account_name",
        "adls.auth.shared-key.account.key": "azure_storage_account_key",
        "adls.client-id": "azure_storage_client_id",
        "adls.client-secret": "azure_storage_client_secret",
        "adls.tenant-id": "azure_storage_tenant_id",
    }
)
"""Iceberg's names for storage access, in Java and in Python, and Lance's."""

SPELLINGS: tuple[tuple[str, ...], ...] = (
    ("aws_access_key_id", "access_key_id"),
    ("aws_secret_access_key", "secret_access_key"),
    ("aws_session_token", "aws_token", "session_token", "token"),
    ("aws_region", "region"),
    ("aws_endpoint", "aws_endpoint_url", "endpoint", "endpoint_url"),
    ("aws_virtual_hosted_style_request", "virtual_hosted_style_request"),
    ("azure_storage_account_name", "account_name"),
    ("azure_storage_account_key", "azure_storage_access_key", "account_key", "access_key"),
    ("azure_storage_sas_token", "azure_storage_sas_key", "sas_token", "sas_key"),
    ("azure_storage_client_id", "azure_client_id", "client_id"),
    ("azure_storage_client_secret", "azure_client_secret", "client_secret"),
    ("azure_storage_tenant_id", "azure_storage_authority_id", "azure_tenant_id", "azure_authority_id", "tenant_id"),
)
"""Options that Lance's object stores know by several names, in any case; the first is the one that we use."""

SECRETS = frozenset(
    {
        "aws_access_key_id",
        "aws_secret_access_key",
        "aws_session_token",
        "google_storage_token",
        "azure_storage_account_key",
        "azure_storage_sas_token",
        "azure_storage_client_id",
        "azure_storage_client_secret",
        "azure_storage_tenant_id",
        EXPIRES,
    }
)
"""Options that are credentials, or of no use without."""

PROOFS = SECRETS - {"azure_storage_client_id", "azure_storage_tenant_id", EXPIRES}
"""Those of them that differ between two credentials of one account."""

TUNING = frozenset(
    {"timeout", "connect_timeout", "client_max_retries", "client_retry_timeout", "download_retry_count"}
    | {"pool_idle_timeout", "pool_max_idle_per_host", "http1_only", "http2_only"}
    | {"aws_server_side_encryption", "aws_sse_kms_key_id", "aws_sse_bucket_key_enabled", "aws_storage_class"}
)
"""Options that change how storage is asked, and never who is asked, or with what."""
REGIONS = frozenset({"aws_region", "region", "aws_default_region"})
"""A part of the host's name: harmless while it is no more than that."""

SAS_TOKEN = "adls.sas-token"  # noqa: S105
SAS_EXPIRES = "adls.sas-token-expires-at-ms"
AZURE_HOST = "dfs.core.windows.net"

SOON_MS = 60_000

_REQUIRED_OPTIONS: Mapping[str, str] = MappingProxyType(
    {
        "s3.session-token-expires-at-ms": "aws_session_token",
        "gcs.oauth2.token-expires-at": "google_storage_token",
        "adls.auth.shared-key.account.name": "azure_storage_account_key",
    }
)
"""What must be there too for an Iceberg name to be given."""


def merge_options(*layers: Mapping[str, str]) -> dict[str, str]:
    """Options in layers, the strongest last: it wins over the others whatever they call the same thing."""
    if sum(map(bool, layers)) < 2:
        return {key: value for layer in layers for key, value in layer.items()}
    options: dict[str, str] = {}
    for layer in layers:
        names = {spelling for key in layer for spelling in _spellings(key)}
        options = {key: value for key, value in options.items() if key.lower() not in names} | dict(layer)
    return options


def harmless_options(options: Mapping[str, str]) -> dict[str, str]:
    """Those of some options that cannot lead credentials to another host, or out of TLS."""
    return {key: value for key, value in options.items() if _is_harmless(key.lower(), value)}


def _is_harmless(key: str, value: str) -> bool:
    return key in TUNING or (key in REGIONS and re.fullmatch("[A-Za-z0-9-]{1,40}", value) is not None)


def canonical_options(options: Mapping[str, str]) -> dict[str, str]:
    """Storage options under the first of the names that each is known by."""
    return {_spellings(key)[0]: value for key, value in options.items()}


def from_iceberg_config(config: Mapping[str, str]) -> dict[str, str]:
    """Lance's storage options out of Iceberg's properties; what has no meaning for Lance is left out."""
    options = {LANCE_NAMES[key]: value for key, value in config.items() if key in LANCE_NAMES}
    for key, value in config.items():
        if key.startswith(f"{SAS_TOKEN}."):
            options["azure_storage_account_name"] = key.removeprefix(f"{SAS_TOKEN}.").partition(".")[0]
            options["azure_storage_sas_token"] = value
        elif key.startswith(f"{SAS_EXPIRES}."):
            options[EXPIRES] = value
    if config.get("s3.path-style-access", "").lower() == "true":
        options["aws_virtual_hosted_style_request"] = "false"
    if options.get("aws_endpoint", "").startswith("http://"):
        options["allow_http"] = "true"
    return options


def to_iceberg_config(options: Mapping[str, str]) -> dict[str, str]:
    """Iceberg's properties, for readers in Java and in Python, out of Lance's storage options."""
    lance_options = canonical_options(options)
    config = {
        key: lance_options[name]
        for key, name in LANCE_NAMES.items()
        if name in lance_options and _REQUIRED_OPTIONS.get(key, name) in lance_options
    }
    if (token := lance_options.get("azure_storage_sas_token")) and (
        account := lance_options.get("azure_storage_account_name")
    ):
        config |= {SAS_TOKEN: token, f"{SAS_TOKEN}.{account}.{AZURE_HOST}": token}
        if EXPIRES in lance_options:
            config[f"{SAS_EXPIRES}.{account}.{AZURE_HOST}"] = lance_options[EXPIRES]
    if virtual := lance_options.get(
        "aws_virtual_hosted_style_request", "false" if "aws_endpoint" in lance_options else ""
    ):
        config["s3.path-style-access"] = "false" if virtual.lower() == "true" else "true"
        config["s3.force-virtual-addressing"] = "true" if virtual.lower() == "true" else "false"
    return config


def _spellings(key: str) -> tuple[str, ...]:
    return next((names for names in SPELLINGS if key.lower() in names), (key.lower(),))


def expires_soon(options: Mapping[str, str]) -> bool:
    """Whether credentials among storage options are over within a minute."""
    at = options.get(EXPIRES, "")
    return at.isdecimal() and int(at) < time.time() * 1000 + SOON_MS
