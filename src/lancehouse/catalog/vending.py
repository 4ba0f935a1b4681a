"""Storage settings and vended credentials for clients: static keys, or AWS STS sessions for one table."""

from __future__ import annotations

import json
import logging
import re
import time
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any
from urllib.parse import urlsplit

from lance_namespace.errors import InvalidInputError, ServiceUnavailableError

from lancehouse.caches import BoundedCache, SingleFlight
from lancehouse.catalog import location_access
from lancehouse.catalog.warehouses import Warehouse
from lancehouse.credentials import EXPIRES, PROOFS, SECRETS, canonical_options, to_iceberg_config
from lancehouse.locations import key as location_key
from lancehouse.store.model import Json, Kind

DURATION_S = 3600
"""Lifetime of STS credentials in seconds: the longest that AWS allows if the role is assumed by another role."""
EARLY_S = 300
"""Seconds before their expiry from which credentials are no longer handed out."""
REFUSED_S = 2
"""Seconds for which a failure is cached."""
HELD = 10_000
"""Most credentials in the cache."""
POLICY_BYTES = 2048
"""Longest session policy that STS accepts."""
STS_ENDPOINT = "aws_endpoint_url_sts"
"""Storage option with the endpoint of STS."""
READS = ("s3:GetObject",)
"""Actions of S3 that readers may perform on objects."""
WRITES = ("s3:PutObject", "s3:DeleteObject", "s3:AbortMultipartUpload", "s3:ListMultipartUploadParts")
"""Actions of S3 that writers may perform besides."""

Access = tuple[dict[str, str], list[Json]]
"""`config` and `storage-credentials` of LoadTable's response."""


def check_warehouse(warehouse: Warehouse) -> None:
    """Refuse a warehouse whose credentials could never be vended; called at the server's start.

    Raises:
        InvalidInputError: the message says what is missing.
    """
    _check_static_read(warehouse)
    if warehouse.vend == "none":
        return
    options = canonical_options(warehouse.storage)
    if warehouse.vend == "static" and not (options.keys() & SECRETS) and not _is_local(warehouse.location):
        raise InvalidInputError(f"warehouse {warehouse.name}: to vend static credentials, put them in its options")
    if warehouse.vend == "sts":
        if not warehouse.location.startswith("s3://"):
            raise InvalidInputError(f"warehouse {warehouse.name}: STS is for s3://, not for {warehouse.location}")
        if not re.fullmatch(r"arn:[^:]+:iam:[^:]*:[^:]*:role/.+", warehouse.role_arn or ""):
            raise InvalidInputError(f"warehouse {warehouse.name}: STS needs the role to assume, arn:aws:iam::…:role/…")
        _import_botocore()


def _check_static_read(warehouse: Warehouse) -> None:
    """Refuse credentials for readers that would never be used, or that are the warehouse's own."""
    if not warehouse.static_read:
        return
    subject = f"warehouse {warehouse.name}: static_read"
    if warehouse.vend != "static":
        raise InvalidInputError(f"{subject} is for vend: static, not for vend: {warehouse.vend}")
    own, readers = canonical_options(warehouse.storage), canonical_options(warehouse.static_read)
    if others := sorted(readers.keys() - SECRETS):
        raise InvalidInputError(f"{subject} holds credentials only; {', '.join(others)} belongs in storage")
    if any(own.get(key) == value for key, value in readers.items() if key in PROOFS):
        raise InvalidInputError(f"{subject} has the warehouse's own key: give one that can only read")


def client_settings(warehouse: Warehouse) -> dict[str, str]:
    """Return the settings that are not secret: region, endpoint, and how buckets are addressed."""
    if _is_local(warehouse.location):
        return {}
    return to_iceberg_config(
        {key: value for key, value in canonical_options(warehouse.storage).items() if key not in SECRETS}
    )


def vend_access(
    warehouse: Warehouse, location: str, *, write: bool, kind: Kind = "lance", uuid: str | None = None
) -> Access:
    """Return access to a table's files and, for a Lance table, read access to its Parquet copies for scans.

    Static credentials are those of `storage` for writers, and those of `static_read`, if any, for readers. The
    credentials are in `config` too: pyiceberg looks there for tables without a metadata file, and takes one set for all
    files of a table. One set is therefore valid for both locations.

    Args:
        warehouse: the warehouse of the table.
        location: the table's location.
        write: whether the caller may do more than read.
        kind: the kind of the table, which decides how its location is parsed.
        uuid: the UUID of a Lance table whose copies may be read, or None.

    Raises:
        ServiceUnavailableError: STS cannot be reached, or refuses.
    """
    config = client_settings(warehouse)
    if warehouse.vend == "none" or _is_local(warehouse.location):
        return config, []
    copies = f"{location_access.cache_location(warehouse).rstrip('/')}/{uuid}" if uuid else None
    options = canonical_options(warehouse.storage)
    if warehouse.vend == "static" and not write:
        # The warehouse's own keys can write, and to every table: readers get other keys, or none.
        options = {key: value for key, value in options.items() if key not in SECRETS} | canonical_options(
            warehouse.static_read
        )
    if warehouse.vend == "sts":
        readable = location_key(copies, "iceberg") if copies else None
        options |= _SESSIONS.get(
            _StsRequest.for_warehouse(warehouse, location_key(location, kind), readable, write=write)
        )
    secrets = {key: value for key, value in to_iceberg_config(options).items() if key not in config}
    if not secrets:
        return config, []
    full_config = config | secrets
    return full_config, [{"prefix": prefix, "config": full_config} for prefix in (location, copies) if prefix]


@dataclass(frozen=True, slots=True)
class _StsRequest:
    """The parameters of an AssumeRole call; equal requests share their credentials."""

    role: str
    policy: str
    region: str
    endpoint: str | None
    access_key: str | None
    secret_key: str | None = field(repr=False)
    token: str | None = field(repr=False)

    @classmethod
    def for_warehouse(cls, warehouse: Warehouse, table: str, copies: str | None, *, write: bool) -> _StsRequest:
        options = canonical_options(warehouse.storage)
        role = warehouse.role_arn or ""
        return cls(
            role,
            session_policy(role.split(":")[1] if role.startswith("arn:") else "aws", table, copies, write=write),
            options.get("aws_region", "us-east-1"),
            options.get(STS_ENDPOINT) or _sts_endpoint(options.get("aws_endpoint")),
            options.get("aws_access_key_id"),
            options.get("aws_secret_access_key"),
            options.get("aws_session_token"),
        )


class _CredentialCache:
    """Credentials by request, until shortly before they expire. Safe to use from several threads.

    Threads that need the same credentials share one call. A failure is cached for a moment too, so that those who wait
    do not each run into it one after the other.
    """

    def __init__(self) -> None:
        self._answers: BoundedCache[_StsRequest, tuple[float, dict[str, str] | ServiceUnavailableError]] = BoundedCache(
            HELD
        )
        self._flight: SingleFlight[dict[str, str] | ServiceUnavailableError] = SingleFlight()

    def get(self, request: _StsRequest) -> dict[str, str]:
        # The cache is read again inside the flight: another one may have ended since it was read first.
        credentials = self._find_cached(request) or self._flight.run(
            request, lambda: self._find_cached(request) or self._request_and_cache(request)
        )
        if isinstance(credentials, ServiceUnavailableError):
            raise credentials
        return credentials

    def _find_cached(self, request: _StsRequest) -> dict[str, str] | ServiceUnavailableError | None:
        expires_at, credentials = self._answers.get(request) or (0.0, None)
        return credentials if time.time() < expires_at else None

    def _request_and_cache(self, request: _StsRequest) -> dict[str, str] | ServiceUnavailableError:
        answer: dict[str, str] | ServiceUnavailableError
        try:
            answer = _assume_role(request)
            expires_at = int(answer[EXPIRES]) / 1000 - EARLY_S
        except ServiceUnavailableError as refusal:
            answer, expires_at = refusal, time.time() + REFUSED_S
        self._answers.put(request, (expires_at, answer))
        return answer


_SESSIONS = _CredentialCache()


def session_policy(partition: str, table: str, copies: str | None, *, write: bool) -> str:
    """Return the session policy: access to one table's files, and read access to its copies.

    `table` and `copies` are keys as `locations.key` returns them.

    Raises:
        InvalidInputError: the locations are too long for a policy.
    """
    allowed = {table: READS + WRITES if write else READS} | ({copies: READS} if copies else {})
    arn = f"arn:{partition}:s3:::"
    statements: list[Json] = [
        {
            "Effect": "Allow",
            "Action": list(actions),
            "Resource": f"{arn}{_escape_wildcards(place.removeprefix('s3://'))}*",
        }
        for place, actions in allowed.items()
    ]
    for place in allowed:
        bucket, _, path = place.removeprefix("s3://").rstrip("/").partition("/")
        below = {"StringLike": {"s3:prefix": [_escape_wildcards(path), f"{_escape_wildcards(path)}/*"]}}
        statements.append(
            {"Effect": "Allow", "Action": ["s3:ListBucket"], "Resource": f"{arn}{bucket}", "Condition": below}
        )
    text = json.dumps({"Version": "2012-10-17", "Statement": statements}, separators=(",", ":"), ensure_ascii=False)
    if len(text) > POLICY_BYTES:
        raise InvalidInputError(f"location {table} is too long for credentials that are good for it alone")
    return text


def _escape_wildcards(path: str) -> str:
    """Escape `*`, `?` and `$`, which have a meaning in a policy."""
    return re.sub(r"[*?$]", lambda match: f"${{{match[0]}}}", path)


def _assume_role(request: _StsRequest) -> dict[str, str]:
    """Call AssumeRole, and return the credentials under Lance's names."""
    failures = _import_botocore()[1]
    try:
        client = _sts_client(request.region, request.endpoint, request.access_key, request.secret_key, request.token)
        answer = client.assume_role(
            RoleArn=request.role, RoleSessionName="lancehouse", Policy=request.policy, DurationSeconds=DURATION_S
        )
    except failures as error:
        code = getattr(error, "response", {}).get("Error", {}).get("Code") or type(error).__name__
        raise ServiceUnavailableError(
            f"no credentials to the storage: AWS STS does not give the role {request.role} ({code})"
        ) from None
    credentials = answer["Credentials"]
    return {
        "aws_access_key_id": credentials["AccessKeyId"],
        "aws_secret_access_key": credentials["SecretAccessKey"],
        "aws_session_token": credentials["SessionToken"],
        EXPIRES: str(int(credentials["Expiration"].timestamp() * 1000)),
    }


@lru_cache(maxsize=16)
def _sts_client(
    region: str, endpoint: str | None, access_key: str | None, secret_key: str | None, token: str | None
) -> Any:
    """Return a client of STS, cached because it is slow to create; it may be used by all threads."""
    return _import_botocore()[0]().create_client(
        "sts",
        region_name=region,
        endpoint_url=endpoint,
        aws_access_key_id=access_key,
        aws_secret_access_key=secret_key,
        aws_session_token=token,
        config=_import_botocore()[2](connect_timeout=5, read_timeout=10, retries={"total_max_attempts": 2}),
    )


def _import_botocore() -> tuple[Any, tuple[type[Exception], ...], Any]:
    """Return botocore's session class, the errors that its calls raise, and its configuration class."""
    try:
        from botocore.config import Config
        from botocore.exceptions import BotoCoreError, ClientError
        from botocore.session import Session
    except ImportError as error:
        raise InvalidInputError("credentials of AWS STS need botocore: pip install 'lancehouse[aws]'") from error
    logging.getLogger("botocore").setLevel(logging.INFO)  # at debug level it logs the credentials that it is given
    return Session, (BotoCoreError, ClientError), Config


def _sts_endpoint(endpoint: str | None) -> str | None:
    """Return the endpoint of STS: that of S3 if it is not Amazon's, else None for Amazon's default."""
    host = urlsplit(endpoint or "").hostname or ""
    return None if not host or re.search(r"\.amazonaws\.com(\.cn)?$", host) else endpoint


def _is_local(location: str) -> bool:
    return location.startswith(("/", "file:"))
