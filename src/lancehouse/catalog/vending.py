"""Storage settings and vended credentials for clients: static keys, or temporary credentials for one table."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping

from lance_namespace.errors import InvalidInputError, ServiceUnavailableError

from lancehouse.caches import BoundedCache, SingleFlight
from lancehouse.catalog import location_access, temporary_credentials
from lancehouse.catalog.temporary_credentials import (
    AzureAccount,
    CredentialRequest,
    DownscopedToken,
    SasToken,
    StsSession,
)
from lancehouse.catalog.warehouses import Warehouse
from lancehouse.credentials import EXPIRES, PROOFS, SECRETS, azure_account, canonical_options, to_iceberg_config
from lancehouse.locations import key as location_key
from lancehouse.store.model import Json, Kind

EARLY_S = 300
"""Seconds before their expiry from which credentials are no longer handed out."""
REFUSED_S = 2
"""Seconds for which a failure is cached."""
HELD = 10_000
"""Most credentials in the cache."""

Access = tuple[dict[str, str], list[Json]]
"""`config` and `storage-credentials` of LoadTable's response."""


def check_warehouse(warehouse: Warehouse) -> None:
    """Refuse a warehouse whose credentials could never be vended; called at the server's start.

    Raises:
        InvalidInputError: the message says what is missing.
    """
    _check_static_read(warehouse)
    if warehouse.sas_scope != "folder" and warehouse.vend != "sas":
        raise InvalidInputError(f"warehouse {warehouse.name}: sas_scope is for vend: sas, not for {warehouse.vend}")
    try:
        if warehouse.vend == "static":
            _check_static(warehouse)
        elif warehouse.vend == "sts":
            _check_sts(warehouse)
        elif warehouse.vend == "sas":
            _check_sas(warehouse)
    except InvalidInputError as error:
        raise InvalidInputError(f"warehouse {warehouse.name}: {error}") from error


def _check_static(warehouse: Warehouse) -> None:
    is_vended = to_iceberg_config(warehouse.storage).keys() - client_settings(warehouse).keys()
    if not is_vended and not _is_local(warehouse.location):
        raise InvalidInputError("to vend static credentials, put them in its options")


def _check_static_read(warehouse: Warehouse) -> None:
    """Refuse credentials for readers that would never be used, or that are the warehouse's own."""
    if not warehouse.static_read:
        return
    subject = f"warehouse {warehouse.name}: static_read"
    if warehouse.vend != "static":
        raise InvalidInputError(f"{subject} is for vend: static, not for vend: {warehouse.vend}")
    own, readers = canonical_options(warehouse.storage), canonical_options(warehouse.static_read)
    if other_keys := sorted(readers.keys() - SECRETS):
        raise InvalidInputError(f"{subject} holds credentials only; {', '.join(other_keys)} belongs in storage")
    if any(own.get(key) == value for key, value in readers.items() if key in PROOFS):
        raise InvalidInputError(f"{subject} has the warehouse's own key: give one that can only read")


def _check_sts(warehouse: Warehouse) -> None:
    if warehouse.location.startswith("gs://"):
        temporary_credentials.import_google()
        _check_one_cloud(warehouse, ("gs://",))
        return
    if not warehouse.location.startswith("s3://"):
        raise InvalidInputError(f"STS is for s3:// and gs://, not for {warehouse.location}; for Azure take vend: sas")
    _check_one_cloud(warehouse, ("s3://", "s3a://", "s3n://"))
    if not re.fullmatch(r"arn:[^:]+:iam:[^:]*:[^:]*:role/.+", warehouse.role_arn or ""):
        raise InvalidInputError("STS needs the role to assume, arn:aws:iam::…:role/…")
    temporary_credentials.import_botocore()


def _check_sas(warehouse: Warehouse) -> None:
    if not warehouse.location.startswith(("az://", "abfss://")):
        raise InvalidInputError(f"SAS tokens are for az:// and abfss://, not for {warehouse.location}")
    _check_one_cloud(warehouse, ("az://", "abfs://", "abfss://", "wasb://", "wasbs://"))
    temporary_credentials.import_azure()
    account = AzureAccount.from_storage(warehouse.storage, warehouse.location)
    for location in _all_locations(warehouse):
        if (other := AzureAccount.from_storage(warehouse.storage, location).name) != account.name:
            raise InvalidInputError(f"SAS tokens are for the account {account.name}, but {location} is in {other}")
    # A token for a folder is refused by an account without folders, so nothing is given away where it does not tell.
    if warehouse.sas_scope == "folder" and account.has_folders() is False:
        raise InvalidInputError(
            f"the account {account.name} has no hierarchical namespace, and without one no SAS token can be scoped to "
            "the folder of a table. Enable it, or set sas_scope: container: then whoever may read one table gets a "
            "token for all of the container"
        )


def _check_one_cloud(warehouse: Warehouse, schemes: tuple[str, ...]) -> None:
    for location in _all_locations(warehouse):
        if not location.startswith(schemes):
            raise InvalidInputError(f"vend: {warehouse.vend} is for {schemes[0]}, and cannot open {location}")


def _all_locations(warehouse: Warehouse) -> tuple[str, ...]:
    return (warehouse.location, *warehouse.roots, location_access.scan_cache_location(warehouse))


def can_scope(warehouse: Warehouse) -> bool:
    """Return whether credentials can be vended that open one folder of the warehouse, and nothing else."""
    return warehouse.vend == "sts" or (warehouse.vend == "sas" and warehouse.sas_scope == "folder")


def client_settings(warehouse: Warehouse) -> dict[str, str]:
    """Return the settings that are not secret: region, endpoint, account, and how buckets are addressed."""
    if _is_local(warehouse.location):
        return {}
    return to_iceberg_config(_public_options(warehouse))


def _public_options(warehouse: Warehouse) -> dict[str, str]:
    options = canonical_options(warehouse.storage)
    account, _ = azure_account(options, warehouse.location)
    if account:
        options["azure_storage_account_name"] = account
    return {key: value for key, value in options.items() if key not in SECRETS}


def vend_access(
    warehouse: Warehouse, location: str, *, write: bool, kind: Kind = "lance", uuid: str | None = None
) -> Access:
    """Return access to a table's files and, for a Lance table, read access to its Parquet copies for scans.

    Static credentials are those of `storage` for writers, and those of `static_read`, if any, for readers. Credentials
    are in `config` too: pyiceberg looks there for tables without a metadata file, and takes one set for all files of a
    table, as Iceberg's Java client does for Azure. One set is therefore valid for both locations if possible. A SAS
    token is not: then `config` has the one for the copies, because Iceberg's clients read nothing else of a Lance
    table, and Lance's clients find theirs by its prefix.

    Args:
        warehouse: the warehouse of the table.
        location: the table's location.
        write: whether the caller may do more than read.
        kind: the kind of the table, which decides how its location is parsed.
        uuid: the UUID of a Lance table whose copies may be read, or None.

    Raises:
        ServiceUnavailableError: the cloud that gives credentials cannot be reached, or refuses.
    """
    config = client_settings(warehouse)
    if warehouse.vend == "none" or _is_local(warehouse.location):
        return config, []
    copies = f"{location_access.scan_cache_location(warehouse)}/{uuid}" if uuid else None
    secrets = _secrets_by_location(warehouse, location, copies, kind, write=write)
    credentials: list[Json] = []
    for place, options in secrets.items():
        full = to_iceberg_config(_public_options(warehouse) | options)
        if full.keys() - config.keys():
            credentials.append({"prefix": place, "config": full})
    if not credentials:
        return config, []
    return dict(credentials[-1]["config"]), credentials


def _secrets_by_location(
    warehouse: Warehouse, location: str, copies: str | None, kind: Kind, *, write: bool
) -> Mapping[str, dict[str, str]]:
    """Return the credentials to a table and, last, to its copies."""
    if warehouse.vend == "sas":
        account = AzureAccount.from_storage(warehouse.storage, warehouse.location)
        scope = warehouse.sas_scope
        secrets = {location: _CREDENTIALS.get(SasToken.for_location(account, location, kind, scope, write=write))}
        if copies:
            secrets[copies] = _CREDENTIALS.get(SasToken.for_location(account, copies, "iceberg", scope, write=False))
        return secrets
    if warehouse.vend == "static":
        # The warehouse's own keys can write, and to every table: readers get other keys, or none.
        static = canonical_options(warehouse.storage if write else warehouse.static_read)
        shared = {key: value for key, value in static.items() if key in SECRETS}
    elif warehouse.location.startswith("gs://"):
        token = DownscopedToken.for_table(warehouse.storage, (location, kind), copies, write=write)
        shared = _CREDENTIALS.get(token)
    else:
        table_key, copies_key = location_key(location, kind), location_key(copies, "iceberg") if copies else None
        session = StsSession.for_table(warehouse.role_arn or "", warehouse.storage, table_key, copies_key, write=write)
        shared = _CREDENTIALS.get(session)
    return {location: shared, copies: shared} if copies else {location: shared}


class _CredentialCache:
    """Credentials by request, until shortly before they expire. Safe to use from several threads.

    Threads that need the same credentials share one call. A failure is cached for a moment too, so that those who wait
    do not each run into it one after the other.
    """

    def __init__(self) -> None:
        self._answers: BoundedCache[CredentialRequest, tuple[float, dict[str, str] | ServiceUnavailableError]] = (
            BoundedCache(HELD)
        )
        self._flight: SingleFlight[dict[str, str] | ServiceUnavailableError] = SingleFlight()

    def get(self, request: CredentialRequest) -> dict[str, str]:
        # The cache is read again inside the flight: another one may have ended since it was read first.
        credentials = self._find_cached(request) or self._flight.run(
            request, lambda: self._find_cached(request) or self._request_and_cache(request)
        )
        if isinstance(credentials, ServiceUnavailableError):
            raise credentials
        return credentials

    def _find_cached(self, request: CredentialRequest) -> dict[str, str] | ServiceUnavailableError | None:
        expires_at, credentials = self._answers.get(request) or (0.0, None)
        return credentials if time.time() < expires_at else None

    def _request_and_cache(self, request: CredentialRequest) -> dict[str, str] | ServiceUnavailableError:
        answer: dict[str, str] | ServiceUnavailableError
        try:
            answer = request.fetch()
            # A machine's own token at Google may be almost over: what is made from it is shared for a moment only.
            expires_at = max(int(answer[EXPIRES]) / 1000 - EARLY_S, time.time() + REFUSED_S)
        except ServiceUnavailableError as refusal:
            answer, expires_at = refusal, time.time() + REFUSED_S
        self._answers.put(request, (expires_at, answer))
        return answer


_CREDENTIALS = _CredentialCache()


def _is_local(location: str) -> bool:
    return location.startswith(("/", "file:"))
