"""Address of a Lance dataset (`TableRef`), and which version is meant (`VersionSelector`): open and describe it."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, date, datetime, time, timedelta
from http import HTTPStatus
from pathlib import Path
from tempfile import TemporaryDirectory
from time import sleep
from typing import Any, Protocol, Self, overload, runtime_checkable
from urllib.error import HTTPError
from urllib.parse import parse_qsl, quote, unquote
from urllib.request import Request, urlopen
from zlib import crc32

import lance
import pyarrow as pa
from lance.file import LanceFileSession
from lance_namespace import LanceNamespace
from lance_namespace.errors import (
    InvalidInputError,
    LanceNamespaceError,
    TableNotFoundError,
    TableSchemaValidationError,
    TableVersionNotFoundError,
)
from lance_namespace_urllib3_client.models.json_arrow_schema import JsonArrowSchema
from lance_namespace_urllib3_client.models.table_basic_stats import TableBasicStats

from lancehouse import tracing
from lancehouse.credentials import azure_account, canonical_options
from lancehouse.errors import CommitStateUnknownError
from lancehouse.lake.confinement import Confinement, require_inside, require_no_links
from lancehouse.lake.errors import translate_errors
from lancehouse.locations import local_folder, parse
from lancehouse.schema.jsonarrow import to_jsonarrow

MAIN = "main"
"""Name of the main branch, which has no name in Lance's paths."""

StorageOptions = Mapping[str, str]

_MANIFEST = re.compile(r"(\d+)\.manifest")
LAST_VERSION = 2**64 - 1
"""Names of the newer scheme (V2) count down from here, so that the latest version is listed first."""
LARGEST_VERSION = 2**63 - 1
"""Largest number by which Lance can be asked for a version."""
OFFSET_BITS = 32
OFFSET = 2**OFFSET_BITS - 1
"""A row's address is its fragment's id, and in the lower bits, which this selects, its position there."""
BRANCH_BITS = 31
VERSION_BITS = 32
_BRANCH = re.compile(r"[\w.-]+(/[\w.-]+)*")
_BLOB_HEADERS = {"x-ms-version": "2021-12-02"}
_DELETE_ATTEMPTS = 4
_DELETE_TIMEOUT_S = 30
_TAGS = "_refs/tags"
"""Folder of the tags below a table's location."""
_ENCODED_TWICE = re.compile(r"Not found: .*/_refs/tags/\S*%25")
"""Error of pylance for a tag whose name is not ASCII."""
LANCE_COLUMNS = frozenset(
    {"_rowid", "_rowaddr", "_rowoffset", "_row_created_at_version", "_row_last_updated_at_version"}
)
"""Columns that Lance has of each row. It cannot read a table in which another column has such a name."""
_EPOCH, _MILLISECOND = datetime(1970, 1, 1, tzinfo=UTC), timedelta(milliseconds=1)
_PARENTHESES = re.compile(r"""[()]|'[^']*'?|"[^"]*"?|`[^`]*`?|--[^\n]*|/\*.*?(?:\*/|\Z)""", re.DOTALL)
"""Parentheses in SQL, and what may contain some that do not count: texts, quoted names and comments."""
_UNKNOWN = re.compile(r"Commit result for version (\d+) is unknown")


@dataclass(frozen=True, slots=True)
class TableRef:
    """Address of a Lance dataset, by location or by name in a namespace; it can be sent to other processes.

    A table that is opened by name has its credentials renewed, and its commits go through the namespace if that manages
    its versions.
    """

    location: str | None = None
    storage_options: StorageOptions = field(default_factory=dict, repr=False, hash=False)
    namespace: LanceNamespace | None = field(default=None, repr=False, hash=False)
    id: tuple[str, ...] = ()
    version: int | None = None
    branch: str | None = None
    tag: str | None = None
    confinement: Confinement | None = field(default=None, repr=False, hash=False, compare=False)
    """What may be opened for the table; None for whatever it refers to. `in_namespace` takes it from the namespace."""

    def __post_init__(self) -> None:
        if (self.location is None) == (self.namespace is None or not self.id):
            raise InvalidInputError("a table is addressed by its location, or by a namespace and its id there")
        if self.tag is not None and (self.version is not None or self.branch is not None):
            raise InvalidInputError("a tag names a version of a branch: it goes with neither version nor branch")
        if self.branch is not None:
            require_branch_name(self.branch)

    @classmethod
    def in_namespace(
        cls,
        namespace: LanceNamespace,
        id: Sequence[str] | None,
        *,
        version: int | None = None,
        branch: str | None = None,
        tag: str | None = None,
    ) -> Self:
        """Return the address of a table that a request names.

        Raises:
            InvalidInputError: the request has no id, or a tag together with a version or a branch.
        """
        if not id:
            raise InvalidInputError("the request names no table: its id is missing")
        confinement = getattr(namespace, "confinement", None)
        return cls(None, {}, namespace, tuple(id), version, branch, tag, confinement)

    @tracing.trace_calls("store open")
    def open(self) -> lance.LanceDataset:
        """Open the dataset, at its latest version or at the version, branch or tag of this address.

        Raises:
            TableNotFoundError: there is no such table, or it is only declared.
            TableVersionNotFoundError, TableBranchNotFoundError, TableTagNotFoundError: the table has no such version,
                branch or tag.
            PermissionDeniedError: it refers to files at locations that must not be opened.
        """
        address: dict[str, Any] = (
            {"uri": self.location}
            if self.location is not None
            else {"namespace_client": self.namespace, "table_id": list(self.id)}
        )
        # Links are checked before Lance reads anything, because it follows them. Base paths can be checked only once
        # the manifest is read, hence `require_inside` below.
        if self.confinement is not None and self.location is not None:
            require_no_links(self.location, reads_rows=self.confinement.reads_rows)
        with translate_errors(self, self.storage_options):
            if self.branch in (None, MAIN):
                version = self.version if self.tag is None else self.tag
                dataset = lance.dataset(**address, version=version, storage_options=self._lance_options())
                location = dataset.uri
            else:
                main = lance.dataset(**address, storage_options=self._lance_options())
                location, dataset = main.uri, main.checkout_version((self.branch, None))
                if self.version is not None:
                    dataset = dataset.checkout_version((self.branch, self.version))
            if self.confinement is not None:
                require_inside(dataset, location, self.confinement)
            return dataset

    def find(self) -> lance.LanceDataset | None:
        """Open the dataset as `open` does; return None if the table does not exist or has no version yet."""
        try:
            return self.open()
        except TableNotFoundError:
            return None

    def exists(self) -> bool:
        """Return whether the table exists and has at least one version."""
        return self.find() is not None

    @contextmanager
    def dataset(self) -> Iterator[lance.LanceDataset]:
        """Open the dataset for calls of pylance, whose exceptions are translated to Lance errors."""
        dataset = self.open()
        # A table that is named by its catalog has none here: the dataset has got them from the namespace.
        options = self.storage_options or (lambda: dataset.initial_storage_options)
        with translate_refusals(self.namespace, self.id), translate_errors(self, options):
            yield dataset

    def _lance_options(self) -> dict[str, str] | None:
        return dict(self.storage_options) or None

    def __str__(self) -> str:
        at = (("version", self.version), ("branch", self.branch), ("tag", self.tag))
        address = self.location if self.location is not None else f"table {'.'.join(self.id)}"
        return address + "".join(f" {name} {value}" for name, value in at if value is not None)


@dataclass(frozen=True, slots=True)
class VersionSelector:
    """Selects a version of a table: by number, by tag or by time; the latest if none is given."""

    version: int | None = None
    tag: str | None = None
    as_of: datetime | date | str | None = None
    """A time, or ISO 8601 text; compared in milliseconds. Without a zone, it is in the local one.

    A version counts from the very millisecond in which it was committed.
    """

    def __post_init__(self) -> None:
        if sum(choice is not None for choice in (self.version, self.tag, self.as_of)) > 1:
            raise InvalidInputError("a table is read at a version, at a tag or as of a time: give one of them")
        if self.version is not None and (not isinstance(self.version, int) or not 0 <= self.version <= LARGEST_VERSION):
            raise InvalidInputError(f"a version is a number, not {self.version!r}")
        if self.tag is not None and not isinstance(self.tag, str):
            raise InvalidInputError(f"tag must be the name of a tag, not {self.tag!r}")
        if self.as_of is not None:
            _parse_time(self.as_of)

    def open(self, table: TableRef) -> tuple[TableRef, lance.LanceDataset]:
        """Open the selected version; return its address and the dataset.

        Raises:
            TableVersionNotFoundError, TableTagNotFoundError: there is no such version or tag.
        """
        if self.tag is not None:
            with replace(table, tag=self.tag).dataset() as dataset:
                tagged = read_tags(dataset)[self.tag]
                return replace(table, version=tagged["version"], branch=tagged.get("branch")), dataset
        if self.as_of is None:
            try:
                dataset = replace(table, version=self.version).open()
            except TableVersionNotFoundError:
                latest = table.open().version
                hint = "; older ones were cleaned up" if 0 < (self.version or 0) < latest else ""
                raise TableVersionNotFoundError(
                    f"{table} has no version {self.version}; the latest is {latest}{hint}"
                ) from None
            return replace(table, version=dataset.version), dataset
        as_of = _parse_time(self.as_of)
        with table.dataset() as dataset:
            before = [
                version["version"]
                for version in dataset.versions()
                if to_millis(version["timestamp"]) <= to_millis(as_of)
            ]
        if not before:
            raise TableVersionNotFoundError(f"{table} had no version yet at {as_of.isoformat()}")
        ref = replace(table, version=max(before))
        return ref, ref.open()


def _parse_time(value: Any) -> datetime:
    """Parse a time.

    Raises:
        InvalidInputError: it is not a time.
    """
    try:
        match value:
            case str():
                return datetime.fromisoformat(value.strip()).astimezone()
            case datetime():
                return value.astimezone()
            case date():
                return datetime.combine(value, time()).astimezone()
    except (ValueError, OverflowError):  # a time at either end of the calendar cannot be converted to another zone
        pass
    raise InvalidInputError(
        f"as_of must be a time, as a datetime or as text such as '2026-01-31T12:00:00+00:00', not {value!r}"
    )


@runtime_checkable
class RefusalReporter(Protocol):
    """A namespace that remembers why it refused a commit."""

    def commit_mark(self) -> int:
        """Return a new tick, later than all commits so far."""

    def commit_refusal(self, id: Sequence[str], version: int, since: int = 0) -> LanceNamespaceError | None:
        """Return why a version was refused after the tick `since`; None if it may have been accepted."""


@contextmanager
def translate_refusals(namespace: LanceNamespace | None, id: Sequence[str]) -> Iterator[None]:
    """Replace pylance's error of an unknown commit result by the reason why the namespace refused the commit.

    pylance reports every refusal, even a missing permission, as an unknown result. If the namespace knows of no
    refusal, the error stays.
    """
    since = namespace.commit_mark() if isinstance(namespace, RefusalReporter) else 0
    try:
        yield
    except CommitStateUnknownError as error:
        version = _UNKNOWN.search(str(error))
        if version is None or not isinstance(namespace, RefusalReporter):
            raise
        refused = namespace.commit_refusal(id, int(version[1]), since)
        if refused is None:
            raise
        raise refused from error


@dataclass(frozen=True, slots=True)
class TableDetails:
    """What describing a table in detail adds to its catalog entry."""

    version: int
    schema: JsonArrowSchema
    stats: TableBasicStats
    metadata: dict[str, str]


def read_details(table: TableRef) -> TableDetails:
    """Open a table and describe it. `metadata` is the summary of its manifest: rows, files and bytes.

    Raises:
        TableNotFoundError: there is no such table, or it is only declared.
        TableSchemaValidationError: a column has a type that the interface cannot express.
    """
    with table.dataset() as dataset:
        schema, latest, stats = dataset.schema, dataset.get_version(), dataset.stats.dataset_stats()
    return TableDetails(
        version=latest["version"],
        schema=to_jsonarrow(schema),
        stats=TableBasicStats(num_deleted_rows=stats["num_deleted_rows"], num_fragments=stats["num_fragments"]),
        metadata=latest["metadata"],
    )


def exists(location: str, storage_options: StorageOptions | None = None) -> bool:
    """Return whether there is a Lance dataset with at least one version at a location.

    False means that the location could be read and holds none. Missing permission, an unknown bucket or a store that
    does not respond raise.
    """
    return TableRef(location, storage_options or {}).exists()


def require_storable_names(names: Iterable[str]) -> None:
    """Refuse names of columns with which a table could not be written, or not be read any more.

    Raises:
        TableSchemaValidationError: a name is empty, or has a dot or a backquote.
        InvalidInputError: it has a null character, or is that of a column of Lance's own.
    """
    for place, name in enumerate(names, 1):
        if not name:
            raise TableSchemaValidationError(
                f"column {place} has no name (as pandas writes its index, unless told not to)"
            )
        if "." in name or "`" in name:
            raise TableSchemaValidationError(
                f"Lance takes no column with a dot or a backquote in its name, such as {name}"
            )
        if "\0" in name:
            raise InvalidInputError(f"the name of a column has no null character, got {name!r}")
        if name in LANCE_COLUMNS:
            raise InvalidInputError(f"{name} is a column that Lance has of each row: give the column another name")


def empty_dataset(schema: pa.Schema, data_storage_version: str | None = None) -> lance.LanceDataset:
    """Create a dataset in memory with these columns and no rows, to find out what Lance makes of them.

    Raises:
        LanceNamespaceError: Lance cannot store such columns.
    """
    require_storable_names(schema.names)
    with translate_errors("a table"):
        dataset = lance.write_dataset(schema.empty_table(), "memory://", data_storage_version=data_storage_version)
    try:
        _ = dataset.schema
    except pa.ArrowInvalid as error:  # Arrow takes types of any depth from Python, but not back from Lance
        raise TableSchemaValidationError(f"a column is nested more than 60 levels deep: {error}") from error
    return dataset


@overload
def enclose_sql(sql: str) -> str: ...
@overload
def enclose_sql(sql: str | None) -> str | None: ...
def enclose_sql(sql: str | None) -> str | None:
    """Put a condition or an expression that a user wrote in parentheses; None stays None.

    Lance parses it as the end of a SELECT and ignores clauses that follow: without parentheses, a delete of the rows
    with `id > 0 LIMIT 1` deletes all of them. The last one is on a line of its own, as the text may end in a comment.

    Raises:
        InvalidInputError: it closes a parenthesis that it does not open, which would be ours.
    """
    if sql is None:
        return None
    depth = 0
    for match in _PARENTHESES.finditer(sql):
        depth += {"(": 1, ")": -1}.get(match[0], 0)
        if depth < 0:
            raise InvalidInputError(f"{sql} closes a parenthesis that it does not open, at character {match.end()}")
    return f"({sql}\n)"


def require_branch_name(name: str) -> None:
    """Refuse a string that is not a valid name of a branch: it becomes a folder, so it might lead out of the table.

    Raises:
        InvalidInputError: Lance allows no branch of that name.
    """
    if not _BRANCH.fullmatch(name) or ".." in name or "." in name.split("/"):
        raise InvalidInputError(f"{name!r} is no name of a branch: letters, digits and . - _, parted by /")


def require_below(location: str, file: str) -> None:
    """Refuse a file name that leads out of a location, or is empty.

    Raises:
        InvalidInputError: it does.
    """
    if not {"", ".", ".."}.isdisjoint(file.split("/")):
        raise InvalidInputError(f"{file!r} is no file below {location}")


def open_files(location: str, options: StorageOptions | None) -> LanceFileSession:
    """Open the files below a location."""
    return LanceFileSession(location, storage_options=dict(options or {}) or None)


def read_tags(dataset: lance.LanceDataset) -> Mapping[str, Any]:
    """Return what `dataset.tags.list()` should: pylance 14 creates tags with any letters, but cannot list them.

    While it lists, it encodes the name of a file a second time: `ä` is not found, and the other tags are not returned.
    """
    try:
        tags: Mapping[str, Any] = dataset.tags.list()
    except (OSError, ValueError) as error:
        if not _ENCODED_TWICE.search(str(error)):
            raise
        return _read_tag_files(open_files(dataset.uri, dataset.initial_storage_options))
    return tags


def _read_tag_files(files: LanceFileSession) -> Mapping[str, Any]:
    tags: dict[str, Any] = {}
    for path in files.list_with_delimiter(_TAGS).objects:
        name = unquote(path.rpartition("/")[2]).removesuffix(".json")
        with TemporaryDirectory() as folder:
            files.download_file(f"{_TAGS}/{name}.json", f"{folder}/tag.json")
            tag = json.loads(Path(folder, "tag.json").read_bytes())
        tags[name] = {"branch": tag.get("branch"), "version": tag["version"], "manifest_size": tag.get("manifestSize")}
    return tags


def delete_file(location: str, options: dict[str, str], file: str) -> None:
    """Delete a file below a location. A file that does not exist is no error, because object stores do not report it.

    Raises:
        InvalidInputError: the name leads out of the location.
    """
    require_below(location, file)
    if folder := local_folder(location):
        (folder / file).unlink(missing_ok=True)
    elif token := _folder_token(options):
        _delete_blob(location, options, file, token)
    else:
        # `LanceFileSession.delete_file` would encode a name such as `a%2Fb.json` once more; the session's URI is not.
        open_files(f"{location.rstrip('/')}/{quote(file)}", options).delete_file("")


def _folder_token(options: Mapping[str, str]) -> str | None:
    """Return the SAS token among storage options, if it is for a folder."""
    token = canonical_options(options).get("azure_storage_sas_token", "").removeprefix("?")
    return token if dict(parse_qsl(token)).get("sr") == "d" else None


def _delete_blob(location: str, options: Mapping[str, str], file: str, token: str) -> None:
    """Delete a file in Azure by a request of its own.

    Lance deletes by a batch, even a single file, and a batch is a request to the container: a token for a folder is not
    good for that.
    """
    place = parse(location, "lance")
    container = place.store.partition("://")[2].partition("@")[0]
    name, host = azure_account(canonical_options(options), location)
    endpoint = canonical_options(options).get("azure_storage_endpoint", f"https://{host.replace('.dfs.', '.blob.', 1)}")
    path = quote("/".join([container, *place.segments, file]))
    request = Request(f"{endpoint.rstrip('/')}/{path}?{token}", method="DELETE", headers=_BLOB_HEADERS)  # noqa: S310
    for attempt in range(_DELETE_ATTEMPTS):
        try:
            with urlopen(request, timeout=_DELETE_TIMEOUT_S):  # noqa: S310 - an endpoint of Azure
                return
        except HTTPError as error:
            with error:
                status = error.code
            if status == HTTPStatus.NOT_FOUND:
                return
            reason = f"status code: {status}"
            is_final = status < HTTPStatus.INTERNAL_SERVER_ERROR and status != HTTPStatus.TOO_MANY_REQUESTS
        except OSError as error:
            reason, is_final = f"HTTP error: {type(error).__name__}", False
        if is_final or attempt == _DELETE_ATTEMPTS - 1:
            # Without the request's URL, which has the token.
            raise OSError(f"{location}/{file} of the account {name} cannot be deleted: {reason}") from None
        sleep(2**attempt / 4)


def manifest_folder(branch: str | None) -> str:
    """Return the folder of a branch's manifests below the table's location.

    Raises:
        InvalidInputError: it is not a valid name of a branch; it might lead out of the table.
    """
    if branch is None or branch == MAIN:
        return "_versions"
    require_branch_name(branch)
    return f"tree/{branch}/_versions"


def parse_version(manifest: str) -> int | None:
    """Return the version that a manifest's file name stands for; None if it is not the name of a manifest."""
    match = _MANIFEST.fullmatch(manifest)
    if match is None:
        return None
    digits = match[1]
    return LAST_VERSION - int(digits) if len(digits) == len(str(LAST_VERSION)) else int(digits)


def snapshot_id(branch: str | None, version: int) -> int:
    """Return the Iceberg snapshot id of a version: the version itself on the main branch.

    Branches number their versions independently, so elsewhere the upper half of the id is a checksum of the branch's
    name.
    """
    return version if branch in (None, MAIN) else _branch_number(str(branch)) << VERSION_BITS | version


def version_of_snapshot(branch: str | None, snapshot_id: int) -> int | None:
    """Return the version of a branch that a snapshot id stands for; None if it belongs to another branch."""
    number, version = divmod(snapshot_id, 1 << VERSION_BITS)
    expected = 0 if branch in (None, MAIN) else _branch_number(str(branch))
    return version if number == expected else None


def from_snapshot_id(snapshot_id: int, branches: Iterable[str]) -> tuple[str | None, int]:
    """Return the branch (None for the main one) and the version that a snapshot id stands for."""
    number, version = divmod(snapshot_id, 1 << VERSION_BITS)
    name = next((branch for branch in branches if number and _branch_number(branch) == number), None)
    return (None, snapshot_id) if name is None else (name, version)


def _branch_number(branch: str) -> int:
    """Return a 31-bit checksum of a branch's name, never 0: that is the main branch."""
    return crc32(branch.encode()) & (1 << BRANCH_BITS) - 1 or 1


def to_millis(moment: datetime) -> int:
    """Return a time in whole milliseconds since 1970, the unit of Iceberg and of Lance's interface.

    A time without a zone is in the local zone, as with Lance and Python.
    """
    # Integer arithmetic: with floats, a quarter of all times in 2038 and 2039 come out a millisecond early.
    return (moment.astimezone(UTC) - _EPOCH) // _MILLISECOND


def find_field_ids(dataset: lance.LanceDataset, columns: Collection[str]) -> set[int]:
    """Return the field ids of columns, and of what is in them."""
    fields = [field for field in dataset.lance_schema.fields() if field.name() in columns]
    numbers = set[int]()
    while fields:
        field = fields.pop()
        numbers.add(field.id())
        fields += field.children()
    return numbers
