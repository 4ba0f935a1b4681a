"""Convert credentials that a catalog vends into storage options of Lance's object stores."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from lancehouse.credentials import EXPIRES, from_iceberg_config
from lancehouse.wire.iceberg import StorageCredential
from lancehouse.wire.unity import TemporaryCredentials


def from_iceberg(
    location: str, config: Mapping[str, str] | None, vended: Sequence[StorageCredential] | None
) -> dict[str, str]:
    """Return a table's `config` as storage options, overridden by the credential with the longest matching prefix."""
    options = from_iceberg_config(config or {})
    fitting = [credential for credential in vended or () if location.startswith(credential.prefix)]
    if fitting:
        options |= from_iceberg_config(max(fitting, key=lambda credential: len(credential.prefix)).config)
    return options


def from_unity(vended: TemporaryCredentials) -> dict[str, str]:
    """Return Unity's temporary credentials as storage options."""
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
