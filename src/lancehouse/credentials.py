"""Storage options and credentials: conversion between the names that Lance uses and those of Iceberg."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from types import MappingProxyType
from urllib.parse import urlsplit

EXPIRES = "expires_at_millis"
ACCESS, READ = "lancehouse_access", "read"
"""Storage option, and its value where the credentials among the options can only read. Lance ignores it."""

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
        "gcs.service.host": "google_base_url",
        "adls.account-name": "azure_storage_account_name",
        "adls.account-key": "azure_storage_account_key",
        "adls.auth.shared-key.account.name": "azure_storage_account_name",
        "adls.auth.shared-key.account.key": "azure_storage_account_key",
        "adls.client-id": "azure_storage_client_id",
        "adls.client-secret": "azure_storage_client_secret",
        "adls.tenant-id": "azure_storage_tenant_id",
        "lancehouse.access": ACCESS,
    }
)
"""Iceberg's property names for storage access, of its Java and Python clients, and the Lance option of each."""

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
    ("azure_storage_authority_host", "azure_authority_host", "authority_host"),
    ("azure_storage_endpoint", "azure_endpoint"),
    ("google_service_account", "service_account", "google_service_account_path", "service_account_path"),
    ("google_service_account_key", "service_account_key"),
    ("google_application_credentials", "application_credentials"),
    ("google_base_url", "base_url"),
)
"""Options that Lance's object stores accept under several names, in any case; the first is the canonical name."""

SECRETS = frozenset(
    {
        "aws_access_key_id",
        "aws_secret_access_key",
        "aws_session_token",
        "google_storage_token",
        "google_service_account_key",
        "azure_storage_account_key",
        "azure_storage_sas_token",
        "azure_storage_client_id",
        "azure_storage_client_secret",
        "azure_storage_tenant_id",
        EXPIRES,
    }
)
"""Options that are credentials, or that are useless without one."""

PROOFS = SECRETS - {"azure_storage_client_id", "azure_storage_tenant_id", EXPIRES}
"""The options among `SECRETS` that differ between two credentials of the same account."""

TUNING = frozenset(
    {"timeout", "connect_timeout", "client_max_retries", "client_retry_timeout", "download_retry_count"}
    | {"pool_idle_timeout", "pool_max_idle_per_host", "http1_only", "http2_only"}
    | {"aws_server_side_encryption", "aws_sse_kms_key_id", "aws_sse_bucket_key_enabled", "aws_storage_class"}
)
"""Options that change how storage is accessed, never which host is contacted or with which credentials."""
REGIONS = frozenset({"aws_region", "region", "aws_default_region"})
"""Options that become part of the host's name; harmless as long as the value is a plain region name."""

ENDPOINTS = ("aws_endpoint", "azure_storage_endpoint", "google_base_url")
"""Options with the address of a store that is not where its cloud has it."""

SAS_TOKEN = "adls.sas-token"  # noqa: S105
SAS_EXPIRES = "adls.sas-token-expires-at-ms"
AZURE_HOST = "dfs.core.windows.net"
AZURE_BLOB_AUTHORITY = "adls.blob-storage-authority"
AZURE_BLOB_SCHEME = "adls.blob-storage-scheme"

SOON_MS = 60_000

_REQUIRED_OPTIONS: Mapping[str, str] = MappingProxyType(
    {
        "s3.session-token-expires-at-ms": "aws_session_token",
        "gcs.oauth2.token-expires-at": "google_storage_token",
        "adls.auth.shared-key.account.name": "azure_storage_account_key",
    }
)
"""Lance option that must be set too before an Iceberg property is written."""


def merge_options(*layers: Mapping[str, str]) -> dict[str, str]:
    """Merge layers of storage options; a later layer overrides earlier ones, whichever spelling of a name they use."""
    if sum(map(bool, layers)) < 2:
        return {key: value for layer in layers for key, value in layer.items()}
    options: dict[str, str] = {}
    for layer in layers:
        names = {spelling for key in layer for spelling in _spellings(key)}
        options = {key: value for key, value in options.items() if key.lower() not in names} | dict(layer)
    return options


def harmless_options(options: Mapping[str, str]) -> dict[str, str]:
    """Return the options that can neither send credentials to another host nor turn TLS off."""
    return {key: value for key, value in options.items() if _is_harmless(key.lower(), value)}


def _is_harmless(key: str, value: str) -> bool:
    # A region is inserted into the host's name, so a value with a dot or a slash could name another host.
    return key in TUNING or (key in REGIONS and re.fullmatch("[A-Za-z0-9-]{1,40}", value) is not None)


def canonical_options(options: Mapping[str, str]) -> dict[str, str]:
    """Return storage options under their canonical names."""
    return {_spellings(key)[0]: value for key, value in options.items()}


def to_iceberg_config(options: Mapping[str, str]) -> dict[str, str]:
    """Convert Lance's storage options to Iceberg's properties, for its Java and Python clients."""
    lance_options = canonical_options(options)
    config = {
        key: lance_options[name]
        for key, name in LANCE_NAMES.items()
        if name in lance_options and _REQUIRED_OPTIONS.get(key, name) in lance_options
    }
    if account := lance_options.get("azure_storage_account_name"):
        config |= _azure_config(account, lance_options)
    # Lance sends path-style requests by default, Iceberg's Java client uses virtual hosts.
    if virtual := lance_options.get(
        "aws_virtual_hosted_style_request", "false" if "aws_endpoint" in lance_options else ""
    ):
        config["s3.path-style-access"] = "false" if virtual.lower() == "true" else "true"
        config["s3.force-virtual-addressing"] = "true" if virtual.lower() == "true" else "false"
    return config


def _azure_config(account: str, lance_options: Mapping[str, str]) -> dict[str, str]:
    """Return Iceberg's properties for an Azure account: its SAS token, by account and by host, and its endpoint."""
    config: dict[str, str] = {}
    endpoint = urlsplit(lance_options.get("azure_storage_endpoint", ""))
    host = f"{account}.{AZURE_HOST}"
    if endpoint.hostname:
        # `account.blob.core…` is a cloud's host; any other is an emulator's or a proxy's, with the account as path.
        suffix = endpoint.netloc.removeprefix(account)
        is_cloud = suffix.startswith(".blob.")
        blob, dfs = (suffix, suffix.replace(".blob.", ".dfs.", 1)) if is_cloud else (endpoint.netloc,) * 2
        host = f"{account}{dfs}" if is_cloud else host
        config |= {
            AZURE_BLOB_AUTHORITY: blob,
            "adls.dfs-storage-authority": dfs,
            AZURE_BLOB_SCHEME: endpoint.scheme,
            "adls.dfs-storage-scheme": endpoint.scheme,
        }
        if not is_cloud:
            config[f"adls.connection-string.{host}"] = endpoint.geturl()
    if token := lance_options.get("azure_storage_sas_token"):
        # pyiceberg's, which hands it to Arrow; that appends it to a URL. The others do without a question mark.
        config[SAS_TOKEN] = f"?{token.removeprefix('?')}"
        for name in (account, host):
            config[f"{SAS_TOKEN}.{name}"] = token
            if EXPIRES in lance_options:
                config[f"{SAS_EXPIRES}.{name}"] = lance_options[EXPIRES]
    return config


def azure_account(options: Mapping[str, str], location: str) -> tuple[str, str]:
    """Return an Azure account's name and the host of its files; both are empty if neither argument names it.

    Args:
        options: storage options under their canonical names.
        location: below `abfss://container@account.dfs.core.windows.net`, which names the account, or `az://container`.
    """
    if host := urlsplit(location).netloc.partition("@")[2]:
        return host.partition(".")[0], host
    name = options.get("azure_storage_account_name", "")
    return name, f"{name}.{AZURE_HOST}" if name else ""


def _spellings(key: str) -> tuple[str, ...]:
    """Return all names of an option in lower case, the canonical one first."""
    return next((names for names in SPELLINGS if key.lower() in names), (key.lower(),))


def expires_soon(options: Mapping[str, str], within_ms: int = SOON_MS) -> bool:
    """Return whether the credentials among these storage options expire within a minute, or within another time."""
    at = options.get(EXPIRES, "")
    return at.isdecimal() and int(at) < time.time() * 1000 + within_ms


def is_read_only(options: Mapping[str, str]) -> bool:
    """Return whether the catalog said that the credentials among these storage options can only read."""
    return options.get(ACCESS) == READ
