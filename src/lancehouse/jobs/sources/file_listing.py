"""List the files of a source, by path, folder or glob, on this machine or in an object store; explain read errors."""

from __future__ import annotations

import os
import pathlib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from fnmatch import fnmatchcase
from functools import lru_cache
from typing import Any
from urllib.parse import unquote, urlsplit

import pyarrow as pa
from lance_namespace.errors import (
    InvalidInputError,
    LanceNamespaceError,
    PermissionDeniedError,
    ServiceUnavailableError,
    ThrottlingError,
    UnauthenticatedError,
)
from pyarrow import fs
from pyarrow.fs import FileInfo, FileSelector, FileSystem, FileType, LocalFileSystem

from lancehouse.credentials import EXPIRES, canonical_options
from lancehouse.schema.walk import require_columns
from lancehouse.secrets import redact

_BY_TEXT: tuple[tuple[re.Pattern[str], type[LanceNamespaceError]], ...] = tuple(
    (re.compile(pattern, re.IGNORECASE), kind)
    for pattern, kind in (
        (r"INVALID_ACCESS_KEY_ID|SIGNATURE_DOES_NOT_MATCH|EXPIRED_?TOKEN|UNRECOGNIZED_CLIENT", UnauthenticatedError),
        (r"HTTP status 401|InvalidAccessKeyId|SignatureDoesNotMatch|AuthenticationFailed", UnauthenticatedError),
        (r"ACCESS_DENIED|HTTP status 403|Permission denied|AuthorizationFailure", PermissionDeniedError),
        (r"SLOW_DOWN|THROTTL|HTTP status 429", ThrottlingError),
        (r"NETWORK_CONNECTION|SERVICE_UNAVAILABLE|INTERNAL_FAILURE|curlCode", ServiceUnavailableError),
        (r"timed out|timeout|HTTP status 50\d", ServiceUnavailableError),
    )
)
"""The first pattern that is found in an error's text decides; if none is, the file itself is taken to be invalid."""


@contextmanager
def translate_read_errors(name: str, options: Mapping[str, str]) -> Iterator[None]:
    """Turn what pyarrow raises inside into a Lance error that names the file.

    Args:
        name: the file's address, as the user knows it.
        options: storage options, whose secrets are removed from the message in case the store echoes them.
    """
    try:
        yield
    except FileNotFoundError as error:
        raise InvalidInputError(f"there is no file at {name}") from error
    except UnicodeDecodeError as error:
        raise InvalidInputError(wrong_encoding_message(name, error.encoding)) from error
    except (pa.ArrowException, OSError, UnicodeError) as error:
        if isinstance(error, MemoryError):
            raise
        text = str(error)
        message = redact(text, options)
        kind = next((kind for pattern, kind in _BY_TEXT if pattern.search(text)), InvalidInputError)
        # The cause is printed with its own, unredacted text, so it is only attached where there is nothing to hide.
        raise kind(f"{name} cannot be read: {message}") from (error if message == text else None)


def wrong_encoding_message(name: str, encoding: str) -> str:
    """Return the error message for a file that is not in an encoding."""
    return f"{name} is not in the encoding {encoding}: name its own, such as options={{'encoding': 'latin-1'}}"


def check_columns(wanted: list[str], available: list[str], about: str) -> None:
    """Check that each requested column exists, and is requested once.

    Raises:
        TableColumnNotFoundError: a column does not exist; the message lists those that do.
        InvalidInputError: no column is requested, or one twice.
    """
    require_columns(about, wanted, available)
    if not wanted or len(set(wanted)) < len(wanted):
        raise InvalidInputError(f"columns must name at least one column, and each once, not {wanted!r}")


_ADDRESS = re.compile(r"([a-zA-Z][a-zA-Z0-9+.-]*)://(.*)", re.DOTALL)
REQUEST_TIMEOUT_S = 30
"""Seconds that a store may take to answer."""
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
            if value := next((os.environ[variable] for variable in variables if os.environ.get(variable)), None):
                options.setdefault(name, value)
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
        return Store(), str(pathlib.Path(unquote(urlsplit(text.replace("?", "%3F").replace("#", "%23")).path)))
    match = _ADDRESS.fullmatch(text)
    if match is None:
        return Store(), str(pathlib.Path(text).absolute())
    scheme, path = match[1].lower(), match[2].strip("/")
    if scheme not in _SCHEMES or not path:
        schemes = ", ".join(f"{name}://" for name in _SCHEMES)
        raise InvalidInputError(
            f"{text!r} is no place that can be read: give a path, file:// or {schemes} and a bucket"
        )
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
        # Arrow gives up after 3 seconds without a byte, Lance after 30.
        "request_timeout": REQUEST_TIMEOUT_S,
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


SourcePath = str | os.PathLike[str]

_GLOB = re.compile(r"[*?\[]")
_PARTITION = re.compile(r"([^=]+)=(.*)", re.DOTALL)
_NULL = "__HIVE_DEFAULT_PARTITION__"
"""Hive's name for null in the name of a partition folder."""


@dataclass(frozen=True, slots=True)
class SourceFile:
    """A file, with the size and time of change that it had when it was listed."""

    store: Store
    path: str
    size: int
    modified_ns: int
    partition: tuple[tuple[str, str | None], ...] = ()
    """Partition columns and values from the names of the folders above it, such as `year=2024`."""
    is_named: bool = False
    """Whether the user named the file, by its path or by a glob, rather than a folder that contains it."""

    @property
    def name(self) -> str:
        """The address of the file as the user writes it."""
        return self.store.to_address(self.path)

    @property
    def key(self) -> str:
        """The same as long as the file is unchanged."""
        return f"{self.name} {self.size} {self.modified_ns}"


def list_files(source: SourcePath | Iterable[SourcePath], options: Mapping[str, str]) -> list[SourceFile]:
    """Return the files of a source, sorted by address.

    A path that exists is taken literally, whatever characters it has.

    Raises:
        InvalidInputError: a path matches no file, or the list is empty.
    """
    places = [source] if isinstance(source, str | os.PathLike) or not isinstance(source, Iterable) else list(source)
    files: dict[str, SourceFile] = {}
    for place in places:
        store, path = locate(place, options)
        with translate_read_errors(store.to_address(path), options):
            matches = list(_list_matches(store, path))
        if not matches:
            raise InvalidInputError(f"there is no file at {store.to_address(path)}")
        for file in matches:
            files.setdefault(file.name, file)
    if not files:
        raise InvalidInputError("the source is an empty list: give a file, a folder or a glob")
    return sorted(files.values(), key=lambda file: file.name)


def _list_matches(store: Store, path: str) -> Iterator[SourceFile]:
    system = store.file_system()
    info = system.get_file_info(path)
    if info.type == FileType.File:
        yield _to_file(store, info, named=True)
    elif info.type == FileType.Directory:
        yield from _list_folder(store, system, path, root=path)
    elif (glob := _split_glob(system, path)) is not None:
        root, pattern = glob
        for match in _match_glob(system, root, pattern):
            if match.type == FileType.File:
                yield _to_file(store, match, root=root, named=True)
            else:
                yield from _list_folder(store, system, match.path, root=root)


def _split_glob(system: FileSystem, path: str) -> tuple[str, list[str]] | None:
    """Split a path into the literal folder at its start and the pattern below it; None if it has no pattern.

    A level such as `a[1]` is no pattern if there is a folder of that name.
    """
    segments = path.split("/")
    for place, segment in enumerate(segments):
        above = "/".join(segments[:place]) or "/"
        if _GLOB.search(segment) and system.get_file_info(f"{above}/{segment}").type != FileType.Directory:
            return above, segments[place:]
    return None


def _list_folder(store: Store, system: FileSystem, folder: str, *, root: str) -> Iterator[SourceFile]:
    for info in _walk(system, folder):
        if info.type == FileType.File and not any(map(_is_hidden, _relative_segments(info.path, folder))):
            yield _to_file(store, info, root=root)


def _walk(system: FileSystem, folder: str) -> Iterator[FileInfo]:
    # Arrow's own recursion is not used on a local disk, where links may form cycles.
    is_local = isinstance(system, LocalFileSystem)
    for info in system.get_file_info(FileSelector(folder, recursive=not is_local)):
        yield info
        if is_local and info.type == FileType.Directory and not _is_link_cycle(system, info.path):
            yield from _walk(system, info.path)


def _is_link_cycle(system: FileSystem, folder: str) -> bool:
    """Return whether a folder is a link to one that contains it, whose content has been listed before."""
    way = pathlib.Path(folder)
    return isinstance(system, LocalFileSystem) and way.resolve() in {above.resolve() for above in way.parents}


def _match_glob(system: FileSystem, folder: str, segments: Sequence[str]) -> Iterator[FileInfo]:
    """Yield what a pattern matches below a folder, level by level, so that only folders that can match are listed."""
    pattern, *rest = segments
    if pattern == "**":
        yield from _match_glob(system, folder, rest or ["*"])
    for info in system.get_file_info(FileSelector(folder, allow_not_found=True)):
        name = info.path.rstrip("/").rpartition("/")[2]
        is_folder = info.type == FileType.Directory
        if is_folder and _is_link_cycle(system, info.path):
            continue
        if pattern == "**":
            if is_folder and not _is_hidden(name):
                yield from _match_glob(system, info.path, segments)
        elif fnmatchcase(name, pattern) and (pattern[0] == name[0] or not _is_hidden(name)):
            if not rest:
                yield info
            elif is_folder:
                yield from _match_glob(system, info.path, rest)


def _to_file(store: Store, info: FileInfo, *, root: str | None = None, named: bool = False) -> SourceFile:
    folders = [] if root is None else _relative_segments(info.path, root)[:-1]
    matches = [match for folder in folders if (match := _PARTITION.fullmatch(folder))]
    partition = tuple((match[1], None if match[2] == _NULL else unquote(match[2])) for match in matches)
    return SourceFile(store, info.path, info.size or 0, info.mtime_ns or 0, partition, named)


def _relative_segments(path: str, folder: str) -> list[str]:
    return path.removeprefix(folder.rstrip("/")).strip("/").split("/")


def _is_hidden(name: str) -> bool:
    return name.startswith((".", "_"))
