"""Open pyarrow file systems (local, S3, GCS, Azure) with the storage options that Lance uses."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from lance_namespace.errors import InvalidInputError
from pyarrow import fs

from lancehouse.credentials import EXPIRES, canonical_options

_ADDRESS = re.compile(r"([a-zA-Z][a-zA-Z0-9+.-]*)://(.*)", re.DOTALL)
_SCHEMES: Mapping[str, str] = {"s3": "s3", "s3a": "s3", "gs": "gs", "az": "az", "abfs": "az", "abfss": "az"}
_ENVIRONMENT: Mapping[str, tuple[str, ...]] = {
    "aws_region": ("AWS_REGION", "AWS_DEFAULT_REGION"),
    "aws_endpoint": ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT"),
    "azure_storage_account_name": ("AZURE_STORAGE_ACCOUNT_NAME",),
    "azure_storage_account_key": ("AZURE_STORAGE_ACCOUNT_KEY",),
    "azure_storage_sas_token": ("AZURE_STORAGE_SAS_TOKEN", "AZURE_STORAGE_SAS_KEY"),
}
"""Options that the libraries below pyarrow do not read from the environment by themselves, with their variables."""


@dataclass(frozen=True, slots=True)
class Store:
    """The store that holds files, and how to reach it; can be sent to other processes, which connect by themselves."""

    scheme: str = ""
    """Scheme as the user wrote it; empty for the local disk."""
    bucket: str = ""
    account: str = ""
    """Azure account, where the address names it: the part between `@` and the first slash."""
    options: Mapping[str, str] = field(default_factory=dict, repr=False, hash=False)

    def file_system(self) -> fs.FileSystem:
        """Return the file system, cached for each process."""
        options = canonical_options(self.options)
        for name, variables in _ENVIRONMENT.items():
            if found := next((os.environ[variable] for variable in variables if os.environ.get(variable)), None):
                options.setdefault(name, found)
        return _connect(self.scheme.lower(), self.bucket, self.account, tuple(sorted(options.items())))

    def to_address(self, path: str) -> str:
        """Return a path of the file system as an address that the user would write."""
        if not self.scheme:
            return path
        bucket, slash, rest = path.partition("/")
        return f"{self.scheme}://{bucket}{f'@{self.account}' if self.account else ''}{slash}{rest}"


def locate(source: str | os.PathLike[str], options: Mapping[str, str]) -> tuple[Store, str]:
    """Return the store of an address and the path in it. Only `file://` addresses are percent-decoded.

    Raises:
        InvalidInputError: the scheme is unknown, or the address is empty.
    """
    text = os.fspath(source) if isinstance(source, str | os.PathLike) else ""
    if not text:
        raise InvalidInputError(f"a source is a file, a folder or a glob, not {source!r}")
    if text.startswith("file:/"):
        return Store(), str(Path(unquote(urlsplit(text.replace("?", "%3F").replace("#", "%23")).path)))
    match = _ADDRESS.fullmatch(text)
    if match is None:
        return Store(), str(Path(text).absolute())
    scheme, path = match[1].lower(), match[2].strip("/")
    if scheme not in _SCHEMES or not path:
        known = ", ".join(f"{name}://" for name in _SCHEMES)
        raise InvalidInputError(f"{text!r} is no place that can be read: give a path, file:// or {known} and a bucket")
    bucket, slash, rest = path.partition("/")
    container, _, account = bucket.partition("@")
    return Store(match[1], container, account, dict(options)), f"{container}{slash}{rest}"


@lru_cache(maxsize=32)
def _connect(scheme: str, bucket: str, account: str, options: tuple[tuple[str, str], ...]) -> fs.FileSystem:
    match _SCHEMES.get(scheme):
        case "s3":
            return _open_s3(dict(options), bucket)
        case "gs":
            return _open_gcs(dict(options))
        case "az":
            return _open_azure(dict(options), account)
    return fs.LocalFileSystem()


def _open_s3(options: Mapping[str, str], bucket: str) -> fs.FileSystem:
    scheme, _, host = options.get("aws_endpoint", "").rpartition("://")
    arguments: dict[str, Any] = {
        "access_key": options.get("aws_access_key_id"),
        "secret_key": options.get("aws_secret_access_key"),
        "session_token": options.get("aws_session_token"),
        "region": options.get("aws_region") or (None if host else _find_region(bucket)),
        "scheme": scheme or None,
        "endpoint_override": host.rstrip("/") or None,
        "anonymous": _is_on(options, "aws_skip_signature", "skip_signature"),
        "force_virtual_addressing": _is_on(options, "aws_virtual_hosted_style_request"),
    }
    return fs.S3FileSystem(**{key: value for key, value in arguments.items() if value})


def _find_region(bucket: str) -> str | None:
    """Return the AWS region of a bucket, or None. Lance looks it up in the same way when no region is configured."""
    with suppress(OSError):
        return fs.resolve_s3_region(bucket)
    return None


def _open_gcs(options: Mapping[str, str]) -> fs.FileSystem:
    if _is_on(options, "google_skip_signature", "skip_signature"):
        return fs.GcsFileSystem(anonymous=True)
    token = options.get("google_storage_token")
    if token is None:
        return fs.GcsFileSystem()
    until = options.get(EXPIRES, "")
    now = datetime.now(UTC)
    expires = datetime.fromtimestamp(int(until) / 1000, UTC) if until.isdecimal() else now + timedelta(hours=1)
    return fs.GcsFileSystem(access_token=token, credential_token_expiration=expires)


def _open_azure(options: Mapping[str, str], account: str) -> fs.FileSystem:
    name = account.partition(".")[0] or options.get("azure_storage_account_name")
    if not name:
        raise InvalidInputError(
            "an az:// address needs the name of the account: give the option azure_storage_account_name"
        )
    arguments: dict[str, Any] = {
        "account_key": options.get("azure_storage_account_key"),
        "sas_token": options.get("azure_storage_sas_token"),
        "client_id": options.get("azure_storage_client_id"),
        "client_secret": options.get("azure_storage_client_secret"),
        "tenant_id": options.get("azure_storage_tenant_id"),
    }
    file_system_class: Any = fs.AzureFileSystem
    file_system: fs.FileSystem = file_system_class(name, **{key: value for key, value in arguments.items() if value})
    return file_system


def _is_on(options: Mapping[str, str], *names: str) -> bool:
    return any(options.get(name, "").lower() in ("true", "1", "yes") for name in names)
