"""Credentials that a catalog vends, in the names that Lance's object stores know."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

from lancehouse.wire.iceberg import StorageCredential
from lancehouse.wire.unity import TemporaryCredentials

EXPIRES = "expires_at_millis"

NAMES: Mapping[str, str] = MappingProxyType(
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
        "adls.auth.shared-key.account.name": "azure_storage_account_name",
        "adls.auth.shared-key.account.key": "azure_storage_account_key",
    }
)
"""Iceberg's names for storage access, and Lance's."""

SPELLINGS: tuple[frozenset[str], ...] = (
    frozenset({"aws_access_key_id", "access_key_id"}),
    frozenset({"aws_secret_access_key", "secret_access_key"}),
    frozenset({"aws_session_token", "aws_token", "session_token", "token"}),
    frozenset({"aws_region", "region"}),
    frozenset({"aws_endpoint", "aws_endpoint_url", "endpoint", "endpoint_url"}),
    frozenset({"aws_virtual_hosted_style_request", "virtual_hosted_style_request"}),
    frozenset({"azure_storage_account_name", "account_name"}),
    frozenset({"azure_storage_account_key", "azure_storage_access_key", "account_key", "access_key"}),
    frozenset({"azure_storage_sas_token", "azure_storage_sas_key", "sas_token", "sas_key"}),
)
"""Options that Lance's object stores know by several names, in any case."""

SAS_TOKEN = "adls.sas-token."  # noqa: S105
SAS_EXPIRES = "adls.sas-token-expires-at-ms."


def layered(*layers: Mapping[str, str]) -> dict[str, str]:
    """Options in layers, the strongest last: it wins over the others whatever they call the same thing."""
    if sum(map(bool, layers)) < 2:
        return {key: value for layer in layers for key, value in layer.items()}
    options: dict[str, str] = {}
    for layer in layers:
        names = {spelling for key in layer for spelling in _spellings(key)}
        options = {key: value for key, value in options.items() if key.lower() not in names} | dict(layer)
    return options


def from_iceberg(
    location: str, config: Mapping[str, str] | None, vended: Sequence[StorageCredential] | None
) -> dict[str, str]:
    """Storage options: a table's `config` and, over it, the credential with the longest prefix of `location`."""
    options = _translated(config or {})
    fitting = [credential for credential in vended or () if location.startswith(credential.prefix)]
    if fitting:
        options |= _translated(max(fitting, key=lambda credential: len(credential.prefix)).config)
    return options


def from_unity(vended: TemporaryCredentials) -> dict[str, str]:
    """Storage options out of Unity's temporary credentials."""
    options: dict[str, str] = {}
    if aws := vended.aws_temp_credentials:
        options |= {
            "aws_access_key_id": aws.access_key_id,
            "aws_secret_access_key": aws.secret_access_key,
            "aws_session_token": aws.session_token,
        }
    if azure := vended.azure_user_delegation_sas:
        options["azure_storage_sas_token"] = azure.sas_token
    if gcp := vended.gcp_oauth_token:
        options["google_storage_token"] = gcp.oauth_token
    if options and vended.expiration_time is not None:
        options[EXPIRES] = str(vended.expiration_time)
    return options


def _spellings(key: str) -> frozenset[str]:
    return next((names for names in SPELLINGS if key.lower() in names), frozenset({key.lower()}))


def _translated(config: Mapping[str, str]) -> dict[str, str]:
    options = {NAMES[key]: value for key, value in config.items() if key in NAMES}
    for key, value in config.items():
        if key.startswith(SAS_TOKEN):
            options["azure_storage_account_name"] = key.removeprefix(SAS_TOKEN).partition(".")[0]
            options["azure_storage_sas_token"] = value
        elif key.startswith(SAS_EXPIRES):
            options[EXPIRES] = value
    if config.get("s3.path-style-access", "").lower() == "true":
        options["aws_virtual_hosted_style_request"] = "false"
    if options.get("aws_endpoint", "").startswith("http://"):
        options["allow_http"] = "true"
    return options
