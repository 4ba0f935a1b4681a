"""Credentials that last an hour and open one table: sessions of AWS STS, SAS tokens of Azure, downscoped Google tokens.

Each kind is a frozen dataclass that holds all that decides about the credentials, so that equal ones can be shared, and
whose `fetch` gets them. They are returned under Lance's names, with the time of their expiry.
"""

from __future__ import annotations

import json
import logging
import re
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import lru_cache, partial
from pathlib import Path
from threading import Lock
from typing import Any, Protocol
from urllib.parse import urlsplit

from lance_namespace.errors import InvalidInputError, ServiceUnavailableError

from lancehouse.credentials import AZURE_HOST, EXPIRES, azure_account, canonical_options
from lancehouse.locations import parse
from lancehouse.store.model import Json, Kind

DURATION_S = 3600
"""Lifetime of credentials in seconds: the longest that AWS allows if the role is assumed by another role."""
CONNECT_TIMEOUT_S = 5
READ_TIMEOUT_S = 10


class CredentialRequest(Protocol):
    """A description of credentials, by which they are cached."""

    def __hash__(self) -> int: ...

    def fetch(self) -> dict[str, str]:
        """Get new credentials, as storage options.

        Raises:
            ServiceUnavailableError: the cloud cannot be reached, or refuses.
        """


def _expires(at: datetime | float) -> dict[str, str]:
    return {EXPIRES: str(int((at.timestamp() if isinstance(at, datetime) else at) * 1000))}


# --- Amazon ---

POLICY_BYTES = 2048
"""Longest session policy that STS accepts."""
AWS_STS_ENDPOINT = "aws_endpoint_url_sts"
"""Storage option with the endpoint of AWS STS."""
READS = ("s3:GetObject",)
"""Actions of S3 that readers may perform on objects."""
WRITES = ("s3:PutObject", "s3:DeleteObject", "s3:AbortMultipartUpload", "s3:ListMultipartUploadParts")
"""Actions of S3 that writers may perform besides."""


@dataclass(frozen=True, slots=True)
class StsSession:
    """A session of a role, with a policy for one table."""

    role: str
    policy: str
    region: str
    endpoint: str | None
    access_key: str | None
    secret_key: str | None = field(repr=False)
    token: str | None = field(repr=False)

    @classmethod
    def for_table(
        cls, role: str, storage: Mapping[str, str], table: str, copies: str | None, *, write: bool
    ) -> StsSession:
        """Return the session for a table and its copies, given as keys (`locations.key`)."""
        options = canonical_options(storage)
        return cls(
            role,
            session_policy(role.split(":")[1] if role.startswith("arn:") else "aws", table, copies, write=write),
            options.get("aws_region", "us-east-1"),
            options.get(AWS_STS_ENDPOINT) or sts_endpoint(options.get("aws_endpoint")),
            options.get("aws_access_key_id"),
            options.get("aws_secret_access_key"),
            options.get("aws_session_token"),
        )

    def fetch(self) -> dict[str, str]:
        """Call AssumeRole."""
        failures = import_botocore()[1]
        try:
            client = _sts_client(self.region, self.endpoint, self.access_key, self.secret_key, self.token)
            answer = client.assume_role(
                RoleArn=self.role, RoleSessionName="lancehouse", Policy=self.policy, DurationSeconds=DURATION_S
            )
        except failures as error:
            code = getattr(error, "response", {}).get("Error", {}).get("Code") or type(error).__name__
            raise ServiceUnavailableError(
                f"no credentials to the storage: AWS STS does not give the role {self.role} ({code})"
            ) from None
        credentials = answer["Credentials"]
        return {
            "aws_access_key_id": credentials["AccessKeyId"],
            "aws_secret_access_key": credentials["SecretAccessKey"],
            "aws_session_token": credentials["SessionToken"],
            **_expires(credentials["Expiration"]),
        }


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


@lru_cache(maxsize=16)
def _sts_client(
    region: str, endpoint: str | None, access_key: str | None, secret_key: str | None, token: str | None
) -> Any:
    """Return a client of STS, cached because it is slow to create; it may be used by all threads."""
    session, _, config = import_botocore()
    return session().create_client(
        "sts",
        region_name=region,
        endpoint_url=endpoint,
        aws_access_key_id=access_key,
        aws_secret_access_key=secret_key,
        aws_session_token=token,
        config=config(
            connect_timeout=CONNECT_TIMEOUT_S, read_timeout=READ_TIMEOUT_S, retries={"total_max_attempts": 2}
        ),
    )


def import_botocore() -> tuple[Any, tuple[type[Exception], ...], Any]:
    """Return botocore's session class, the errors that its calls raise, and its configuration class.

    Raises:
        InvalidInputError: it is not installed.
    """
    try:
        from botocore.config import Config
        from botocore.exceptions import BotoCoreError, ClientError
        from botocore.session import Session
    except ImportError as error:
        raise InvalidInputError("credentials of AWS STS need botocore: pip install 'lancehouse[aws]'") from error
    logging.getLogger("botocore").setLevel(logging.INFO)  # at debug level it logs the credentials that it is given
    return Session, (BotoCoreError, ClientError), Config


def sts_endpoint(endpoint: str | None) -> str | None:
    """Return the endpoint of STS: that of S3 if it is not Amazon's, else None for Amazon's default."""
    host = urlsplit(endpoint or "").hostname or ""
    return None if not host or re.search(r"\.amazonaws\.com(\.cn)?$", host) else endpoint


# --- Microsoft ---

SAS_READS = "rl"
"""Permissions of readers: read and list."""
SAS_WRITES = "racwdl"
"""Permissions of writers: also add, create, write and delete; not those to move, and to change owners and ACLs."""
DELEGATION_KEY_S = 6 * 3600
"""Lifetime of the keys that sign SAS tokens, where the server has no account key; Azure allows a week."""
CLOCK_SKEW_S = 900


@dataclass(frozen=True, slots=True)
class AzureAccount:
    """A storage account, and how the server proves to it who it is."""

    name: str
    endpoint: str
    key: str | None = field(repr=False)
    """The account key. Without one, a principal of Entra ID signs: the one below, or the machine's own."""
    tenant_id: str | None
    client_id: str | None
    client_secret: str | None = field(repr=False)
    authority: str | None

    @classmethod
    def from_storage(cls, storage: Mapping[str, str], location: str) -> AzureAccount:
        """Return the account of a location.

        Raises:
            InvalidInputError: neither the location nor the storage options name the account.
        """
        options = canonical_options(storage)
        name, host = azure_account(options, location)
        if not name:
            raise InvalidInputError(
                f"{location}: which account? Write abfss://container@account.{AZURE_HOST}/, "
                "or give the option azure_storage_account_name"
            )
        return cls(
            name,
            options.get("azure_storage_endpoint", f"https://{host.replace('.dfs.', '.blob.', 1)}").rstrip("/"),
            options.get("azure_storage_account_key"),
            options.get("azure_storage_tenant_id"),
            options.get("azure_storage_client_id"),
            options.get("azure_storage_client_secret"),
            options.get("azure_storage_authority_host"),
        )

    def has_folders(self) -> bool | None:
        """Return whether the account has a hierarchical namespace; None if it does not tell."""
        failures = import_azure()[1]
        try:
            with self.connect() as client:
                is_hierarchical = client.get_account_information().get("is_hns_enabled")
        except failures:  # it takes a permission that vending does not need
            return None
        return None if is_hierarchical is None else bool(is_hierarchical)

    @contextmanager
    def connect(self) -> Iterator[Any]:
        """Return a client of the account's blobs, for the block."""
        blob, _, identity = import_azure()
        options = {"connection_timeout": CONNECT_TIMEOUT_S, "read_timeout": READ_TIMEOUT_S, "retry_total": 1}
        with ExitStack() as stack:
            credential: Any = self.key
            if credential is None and self.client_secret:
                authority = {"authority": self.authority, "disable_instance_discovery": True} if self.authority else {}
                credential = stack.enter_context(
                    identity.ClientSecretCredential(self.tenant_id, self.client_id, self.client_secret, **authority)
                )
            elif credential is None:
                own = {"managed_identity_client_id": self.client_id} if self.client_id else {}
                credential = stack.enter_context(identity.DefaultAzureCredential(**own))
            yield stack.enter_context(blob.BlobServiceClient(self.endpoint, credential, **options))


@dataclass(frozen=True, slots=True)
class SasToken:
    """A shared access signature for a folder, or for a whole container."""

    account: AzureAccount
    container: str
    folder: str | None
    """Path of the folder without a slash at its ends, or None for the whole container."""
    write: bool

    @classmethod
    def for_location(cls, account: AzureAccount, location: str, kind: Kind, scope: str, *, write: bool) -> SasToken:
        """Return the token for a location.

        Raises:
            InvalidInputError: the location is a container, not a folder in one.
        """
        parsed = parse(location, kind)
        container = parsed.store.partition("://")[2].partition("@")[0]
        if scope == "container":
            return cls(account, container, None, write)
        if not parsed.segments:
            raise InvalidInputError(f"{location} is a whole container: no SAS token can be scoped to it")
        return cls(account, container, "/".join(parsed.segments), write)

    def fetch(self) -> dict[str, str]:
        """Sign a token, with the account's key or a key of Entra ID."""
        from azure.storage import filedatalake

        now = datetime.now(UTC).replace(microsecond=0)
        expiry = now + timedelta(seconds=DURATION_S)
        permissions = SAS_WRITES if self.write else SAS_READS
        arguments = {
            "credential": self.account.key or _delegation_keys(self.account).get(expiry),
            "permission": permissions,
            "expiry": expiry,
            "protocol": "https" if self.account.endpoint.startswith("https:") else "https,http",
        }
        place = (self.account.name, self.container)
        # A folder's token holds the number of its segments, and Azure compares as many: `a` does not open `ab`.
        token: str = (
            filedatalake.generate_file_system_sas(*place, **arguments)
            if self.folder is None
            else filedatalake.generate_directory_sas(*place, self.folder, **arguments)
        )
        return {
            "azure_storage_account_name": self.account.name,
            "azure_storage_sas_token": token,
            **_expires(expiry),
        }


class _DelegationKeys:
    """The key of one account with which tokens are signed, renewed when it would expire before a token."""

    def __init__(self, account: AzureAccount) -> None:
        self._account = account
        self._lock = Lock()
        self._key: Any = None
        self._expiry = datetime.min.replace(tzinfo=UTC)

    def get(self, until: datetime) -> Any:
        """Return a key that is valid until then.

        Raises:
            ServiceUnavailableError: Azure does not give one.
        """
        with self._lock:
            if self._expiry < until:
                self._key, self._expiry = self._request()
            return self._key

    def _request(self) -> tuple[Any, datetime]:
        failures = import_azure()[1]
        now = datetime.now(UTC).replace(microsecond=0)
        expiry = now + timedelta(seconds=DELEGATION_KEY_S)
        try:
            with self._account.connect() as client:
                # A start in the past: Azure's clock may be behind ours.
                key = client.get_user_delegation_key(now - timedelta(seconds=CLOCK_SKEW_S), expiry)
        except failures as error:
            code = getattr(error, "error_code", None) or getattr(error, "status_code", None) or type(error).__name__
            raise ServiceUnavailableError(
                "no credentials to the storage: Azure gives no user delegation key "
                f"for the account {self._account.name} ({code})"
            ) from None
        return key, expiry


_delegation_keys = lru_cache(maxsize=64)(_DelegationKeys)


def import_azure() -> tuple[Any, tuple[type[Exception], ...], Any]:
    """Return Azure's modules for blobs and for identities, and in between the errors that their calls raise.

    Raises:
        InvalidInputError: they are not installed.
    """
    try:
        from azure import identity
        from azure.core.exceptions import AzureError
        from azure.storage import blob, filedatalake  # noqa: F401 - the latter signs
    except ImportError as error:
        raise InvalidInputError("SAS tokens of Azure need its libraries: pip install 'lancehouse[azure]'") from error
    return blob, (AzureError, ValueError), identity


# --- Google ---

GOOGLE_STS = "https://sts.googleapis.com/v1/token"
GOOGLE_STS_ENDPOINT = "google_sts_endpoint"
"""Storage option with the URL of Google's Security Token Service."""
GOOGLE_SCOPE = "https://www.googleapis.com/auth/cloud-platform"
GOOGLE_READER = "inRole:roles/storage.objectViewer"
GOOGLE_WRITER = "inRole:roles/storage.objectUser"
CONDITION_BYTES = 2048
"""Longest condition that Google accepts."""
GOOGLE_ACCOUNTS = ("google_service_account_key", "google_service_account", "google_application_credentials")
"""Options that name a Google account: its key as JSON, or the file that has it."""
FAR_FUTURE_S = 4e9
FRESH_S = DURATION_S / 2
"""Seconds that the server's own token must be valid for, since no token that is made from it lives longer."""


@dataclass(frozen=True, slots=True)
class DownscopedToken:
    """A token of the server's own Google account, restricted to the folder of one table."""

    boundary: str
    """The credential access boundary, as JSON."""
    endpoint: str
    source: tuple[tuple[str, str], ...] = field(repr=False)
    """The storage options that say what the server's own account is."""

    @classmethod
    def for_table(
        cls, storage: Mapping[str, str], table: tuple[str, Kind], copies: str | None, *, write: bool
    ) -> DownscopedToken:
        """Return the token for a location, as readers of its kind parse it, and for the copies of its rows."""
        options = canonical_options(storage)
        return cls(
            access_boundary(table, copies, write=write),
            options.get(GOOGLE_STS_ENDPOINT, GOOGLE_STS),
            _google_source(options),
        )

    def fetch(self) -> dict[str, str]:
        """Exchange the server's own token for a restricted one."""
        modules = import_google()
        try:
            own_token, own_expiry = _google_account(self.source).get(FRESH_S)
            answer = modules.sts.Client(self.endpoint).exchange_token(
                partial(modules.request(), timeout=READ_TIMEOUT_S),
                grant_type="urn:ietf:params:oauth:grant-type:token-exchange",
                subject_token=own_token,
                subject_token_type="urn:ietf:params:oauth:token-type:access_token",  # noqa: S106 - names a type
                requested_token_type="urn:ietf:params:oauth:token-type:access_token",  # noqa: S106
                additional_options=json.loads(self.boundary),
            )
            token = str(answer["access_token"])
        except (modules.error, KeyError, ValueError) as error:
            raise ServiceUnavailableError(
                f"no credentials to the storage: Google gives no token ({_reason(error)})"
            ) from None
        # Of a service account's token Google does not say how long it lives: as long as the one it was made from.
        lifetime = answer.get("expires_in")
        expiry = time.time() + int(lifetime) if lifetime else own_expiry
        return {"google_storage_token": token, **_expires(expiry)}


def access_boundary(table: tuple[str, Kind], copies: str | None, *, write: bool) -> str:
    """Return the credential access boundary: access to one table's files, and read access to its copies.

    Raises:
        InvalidInputError: a location is too long for a condition.
    """
    places: list[tuple[str, Kind, str]] = [(*table, GOOGLE_WRITER if write else GOOGLE_READER)]
    if copies:
        places.append((copies, "iceberg", GOOGLE_READER))
    rules = []
    for location, kind, role in places:
        parsed = parse(location, kind)
        bucket = parsed.store.removeprefix("gs://")
        folder = "".join(f"{segment}/" for segment in parsed.segments)  # with the slash, `a/` does not open `ab/`
        # JSON's strings are also strings of the language of conditions.
        objects = json.dumps(f"projects/_/buckets/{bucket}/objects/{folder}", ensure_ascii=False)
        prefix = json.dumps(folder, ensure_ascii=False)
        condition = (
            f"resource.name.startsWith({objects}) || "
            f'api.getAttribute("storage.googleapis.com/objectListPrefix", "").startsWith({prefix})'
        )
        if len(condition.encode()) > CONDITION_BYTES:
            raise InvalidInputError(f"location {location} is too long for credentials that are good for it alone")
        rules.append(
            {
                "availableResource": f"//storage.googleapis.com/projects/_/buckets/{bucket}",
                "availablePermissions": [role],
                "availabilityCondition": {"expression": condition},
            }
        )
    return json.dumps({"accessBoundary": {"accessBoundaryRules": rules}})


def own_google_token(storage: Mapping[str, str]) -> dict[str, str]:
    """Return the token of the account that storage options name, for libraries that take no account.

    The result is what is to be added to the options: nothing, if they name no account of Google.

    Raises:
        ServiceUnavailableError: Google gives none.
    """
    options = canonical_options(storage)
    if "google_storage_token" in options:
        return {} if EXPIRES in options else _expires(FAR_FUTURE_S)  # Arrow takes no token without its end
    if not options.keys() & set(GOOGLE_ACCOUNTS):
        return {}
    try:
        token, expiry = _google_account(_google_source(options)).get(FRESH_S / 6)
    except import_google().error as error:
        raise ServiceUnavailableError(f"no access to the storage: Google gives no token ({_reason(error)})") from None
    return {"google_storage_token": token, **_expires(expiry)}


def _google_source(options: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    names = ("google_storage_token", EXPIRES, *GOOGLE_ACCOUNTS)
    return tuple((name, options[name]) for name in names if name in options)


class _GoogleAccount:
    """The server's own account at Google: that of its storage options, else the machine's own."""

    def __init__(self, source: tuple[tuple[str, str], ...]) -> None:
        self._options = dict(source)
        self._lock = Lock()
        self._credentials: Any = None

    def get(self, seconds: float) -> tuple[str, float]:
        """Return a token and when it expires; a new one if it is valid for less than so many seconds.

        Raises:
            google.auth.exceptions.GoogleAuthError: there is no account, or Google refuses.
        """
        if token := self._options.get("google_storage_token"):
            # Of a token that somebody gave us we may not know the end: ask again soon.
            return token, int(self._options.get(EXPIRES, (time.time() + 2 * CLOCK_SKEW_S) * 1000)) / 1000
        with self._lock:
            if self._credentials is None:
                self._credentials = self._load()
            expiry = self._credentials.expiry
            if expiry is None or expiry.replace(tzinfo=UTC).timestamp() < time.time() + seconds:
                self._credentials.refresh(partial(import_google().request(), timeout=READ_TIMEOUT_S))
            return self._credentials.token, self._credentials.expiry.replace(tzinfo=UTC).timestamp()

    def _load(self) -> Any:
        modules = import_google()
        key = self._options.get("google_service_account_key")
        file = self._options.get("google_service_account") or self._options.get("google_application_credentials")
        if not key and not file:
            return modules.auth.default(scopes=[GOOGLE_SCOPE])[0]
        try:
            account = json.loads(key or Path(str(file)).read_text())
            load = modules.loaders[account["type"]]
            return load(account, scopes=[GOOGLE_SCOPE])
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise modules.auth.exceptions.MalformedError(type(error).__name__) from None


_google_account = lru_cache(maxsize=64)(_GoogleAccount)


def _reason(error: Exception) -> str:
    """Return a short reason that holds no secret: the text of an answer may repeat what was sent."""
    match = re.search(r"Error code (\w+)|['\"]error['\"]: ['\"](\w+)", str(error))
    return next((group for group in match.groups() if group), "") if match else type(error).__name__


@dataclass(frozen=True, slots=True)
class GoogleModules:
    """What we use of google-auth."""

    auth: Any
    sts: Any
    request: Any
    error: type[Exception]
    loaders: Mapping[str, Any]
    """What makes credentials of an account, by the type that its JSON names."""


def import_google() -> GoogleModules:
    """Return google-auth's modules.

    Raises:
        InvalidInputError: it is not installed.
    """
    try:
        import google.auth
        from google.auth import identity_pool
        from google.auth.exceptions import GoogleAuthError
        from google.auth.transport.requests import Request
        from google.oauth2 import credentials, service_account, sts
    except ImportError as error:
        raise InvalidInputError("tokens of Google need google-auth: pip install 'lancehouse[google]'") from error
    loaders = {
        "service_account": service_account.Credentials.from_service_account_info,
        "authorized_user": credentials.Credentials.from_authorized_user_info,
        "external_account": identity_pool.Credentials.from_info,
    }
    return GoogleModules(google.auth, sts, Request, GoogleAuthError, loaders)
