"""Options of the Spark data source `format("lance")`: names, parsing and validation."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import Enum
from types import MappingProxyType
from typing import Any

from lance_namespace.errors import InvalidInputError, UnsupportedOperationError

from lancehouse.connection import Connection
from lancehouse.jobs.address import TableAddress
from lancehouse.jobs.job import WriteOptions
from lancehouse.jobs.merge_keys import MergeRules
from lancehouse.lake.commits import FileLayout
from lancehouse.lake.dataset import VersionSelector
from lancehouse.lake.scans import BLOB_FORMS, Scan
from lancehouse.properties import STORAGE_PREFIX, storage_options
from lancehouse.suggestions import find_close

TASKS = 32
"""Default for the largest number of tasks that read a table; a data source cannot know how many run at once."""
PROPERTY_PREFIX = "property."
"""Prefix for a property of the client that has the name of an option."""
SECRET_PREFIX = "secret."  # noqa: S105
"""Prefix for anything that Spark must not show: by default it redacts options with such a name."""
SPARK_CATALOG_OPTIONS = frozenset({"provider", "owner"})
"""Options that Spark adds when a table of its own catalog is created."""
NO_TABLE = (
    "Spark's CREATE TABLE … USING lance passes no options on to those who read and write the table, so it cannot be a "
    "Lance table; CREATE TEMPORARY VIEW … USING lance OPTIONS (…) works for queries and INSERT INTO, and "
    "LanceCatalog.create makes a table"
)
MIN_SIMILARITY = 0.8
"""A property whose name is at least this similar to that of an option is refused as a typing error."""

MERGE = "merge"
EARLIEST, LATEST = "earliest", "latest"


class TableUse(Enum):
    """What a table is opened for."""

    READ = "spark.read"
    READ_STREAM = "readStream"
    WRITE = "df.write"
    WRITE_STREAM = "writeStream"


@dataclass(frozen=True, slots=True)
class SourceOption:
    """The uses that an option is allowed for, and how its text is parsed."""

    uses: frozenset[TableUse]
    parse: Callable[[str], Any] = str
    expected: str = ""


def _parse_names(text: str) -> tuple[str, ...]:
    names = json.loads(text) if text.startswith("[") else [name.strip() for name in text.split(",")]
    if not all(isinstance(name, str) and name for name in names):
        raise ValueError
    return tuple(names)


def _parse_texts(text: str) -> dict[str, str]:
    texts: dict[str, Any] = json.loads(text)
    if not all(isinstance(value, str) for value in texts.values()):
        raise ValueError
    return texts


def _parse_vectors(text: str) -> dict[str, int]:
    if text.startswith("{"):
        return {name: int(dimension) for name, dimension in json.loads(text).items()}
    pairs = (pair.rpartition(":") for pair in text.split(","))
    return {name.strip(): int(dimension) for name, _, dimension in pairs}


def _parse_number(text: str, least: int = 1) -> int:
    if (number := int(text)) < least:
        raise ValueError
    return number


def _parse_flag(text: str) -> bool:
    return {"true": True, "false": False}[text.lower()]


def _parse_mode(text: str) -> str:
    return {"append": "append", MERGE: MERGE}[text.lower()]


def _parse_blobs(text: str) -> str:
    return BLOB_FORMS[BLOB_FORMS.index(text.lower())]


def _parse_start(text: str) -> int | str:
    return text.lower() if text.lower() in (EARLIEST, LATEST) else _parse_number(text)


_READ, _FOLLOW = frozenset({TableUse.READ}), frozenset({TableUse.READ_STREAM})
_WRITE, _SINK = frozenset({TableUse.WRITE}), frozenset({TableUse.WRITE_STREAM})
_READS, _WRITES = _READ | _FOLLOW, _WRITE | _SINK
_POSITIVE, _BOOLEAN = "a number above 0", "true or false"
_NAMES = "names with commas between them, or a JSON list of names"

OPTIONS: Mapping[str, SourceOption] = MappingProxyType(
    {
        "path": SourceOption(_READS | _WRITES),
        "impl": SourceOption(_READS | _WRITES),
        "table": SourceOption(_READS | _WRITES),
        "properties": SourceOption(_READS | _WRITES, _parse_texts, "a JSON object of texts"),
        "columns": SourceOption(_READS, _parse_names, _NAMES),
        "filter": SourceOption(_READS),
        "withRowId": SourceOption(_READS, _parse_flag, _BOOLEAN),
        "blobs": SourceOption(_READS, _parse_blobs, " or ".join(BLOB_FORMS)),
        "tasks": SourceOption(_READS, _parse_number, _POSITIVE),
        "version": SourceOption(_READ, _parse_number, "the number of a version"),
        "tag": SourceOption(_READ),
        "asOf": SourceOption(_READ, datetime.fromisoformat, "a time such as 2026-01-31T12:00:00+00:00"),
        "limit": SourceOption(_READ, lambda text: _parse_number(text, 0), "a number of rows"),
        "startingVersion": SourceOption(_FOLLOW, _parse_start, "earliest, latest or the number of a version"),
        "maxVersionsPerTrigger": SourceOption(_FOLLOW, _parse_number, _POSITIVE),
        "maxRowsPerTrigger": SourceOption(_FOLLOW, _parse_number, _POSITIVE),
        "failOnDataLoss": SourceOption(_FOLLOW, _parse_flag, _BOOLEAN),
        "withVersion": SourceOption(_FOLLOW, _parse_flag, _BOOLEAN),
        "readChanges": SourceOption(_FOLLOW, _parse_flag, _BOOLEAN),
        "vectorColumns": SourceOption(
            _WRITES, _parse_vectors, "names and dimensions such as emb:128, or a JSON object of them"
        ),
        "maxRowsPerFile": SourceOption(_WRITES, _parse_number, _POSITIVE),
        "maxBytesPerFile": SourceOption(_WRITES, _parse_number, _POSITIVE),
        "dataStorageVersion": SourceOption(_WRITES),
        "mergeSchema": SourceOption(_WRITES, _parse_flag, _BOOLEAN),
        "run": SourceOption(_WRITE),
        "mode": SourceOption(_SINK, _parse_mode, "append or merge"),
        "on": SourceOption(_SINK, _parse_names, _NAMES),
        "latestBy": SourceOption(_SINK, _parse_names, _NAMES),
        "whenMatched": SourceOption(_SINK),
        "whenNotMatched": SourceOption(_SINK),
        "queryId": SourceOption(_SINK),
        "checkpointLocation": SourceOption(_SINK),
    }
)
"""All options. Any other name is a property of the client, or `storage.<key>` beside a path."""

_NAMES_BY_LOWERCASE = {name.lower(): name for name in OPTIONS}


@dataclass(frozen=True, slots=True)
class FollowOptions:
    """Where a stream starts to read a table, and how much a batch reads."""

    start: int | str | None = None
    """A version, `earliest` or `latest`; None reads all rows of the current version first."""
    max_versions: int | None = None
    max_rows: int | None = None
    is_lossless: bool = True
    """Whether the stream fails when rows were lost because versions were cleaned up (`failOnDataLoss`)."""
    with_version: bool = False
    """Whether each row has a column with the version that added it."""
    with_changes: bool = False
    """Whether deleted rows come too, and each row says what happened to it."""


@dataclass(frozen=True, slots=True)
class MergeOptions:
    """How a stream is merged into a table."""

    on: tuple[str, ...]
    rules: MergeRules
    latest_by: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class StreamQuery:
    """Identifies a streaming query, by its id or by the location of its checkpoint."""

    id: str | None = None
    checkpoint: str | None = None


class SourceOptions:
    """The options that the user gave. Names are case-insensitive, because Spark does not keep their case.

    Args:
        options: as the user gave them.
        uses: what the table is opened for. At first it is not known whether it will be read in a batch or as a stream.

    Raises:
        InvalidInputError: an option is unknown, or is for another use.
        UnsupportedOperationError: the options are those of a table of Spark's own catalog.
    """

    def __init__(self, options: Mapping[str, str], *uses: TableUse) -> None:
        if {name.lower() for name in options} >= SPARK_CATALOG_OPTIONS:
            raise UnsupportedOperationError(NO_TABLE)
        self._options = {name.lower().removeprefix(SECRET_PREFIX): value for name, value in options.items()}
        self._other_options = {name: value for name, value in self._options.items() if name not in _NAMES_BY_LOWERCASE}
        for name in self._options.keys() - self._other_options.keys():
            if not OPTIONS[_NAMES_BY_LOWERCASE[name]].uses & set(uses):
                raise InvalidInputError(
                    f"{_NAMES_BY_LOWERCASE[name]} is no option of {' or '.join(use.value for use in uses)}"
                )
        for name in self._other_options:
            if close := find_close(name, OPTIONS, MIN_SIMILARITY):
                hint = f"did you mean {close}? A property of that name is {PROPERTY_PREFIX}{name}"
                raise InvalidInputError(f"{name!r} is no option; {hint}")

    def address(self) -> TableAddress:
        """Return the address of the table.

        Raises:
            InvalidInputError: the table is not named, or named twice, or there is no such client.
        """
        path, impl, table = self._get("path"), self._get("impl"), self._get("table")
        if path and not impl and not table:
            return self._address_at(path)
        if path or not impl or not table:
            named_options = [name for name in ("path", "impl", "table") if self._get(name)]
            problem = (
                f"not by {' and '.join(named_options)}" if named_options else f"and none of them is given. {NO_TABLE}"
            )
            raise InvalidInputError(f"a Lance table is named by the option path, or by impl and table; {problem}")
        properties = {name.removeprefix(PROPERTY_PREFIX): value for name, value in self._other_options.items()}
        return TableAddress.parse(Connection(impl, {**properties, **(self._get("properties") or {})}), table)

    def _address_at(self, path: str) -> TableAddress:
        foreign = [name for name in self._other_options if not name.startswith(STORAGE_PREFIX)]
        if self._get("properties") is not None:
            foreign.append("properties")
        if foreign:
            raise InvalidInputError(
                f"{foreign[0]!r} is no option beside a path; those of its store are {STORAGE_PREFIX}<key>"
            )
        return TableAddress(path=path, storage_options=tuple(sorted(storage_options(self._other_options).items())))

    def scan(self) -> Scan:
        """Return what to read: columns, filter, limit."""
        return Scan(
            self._get("columns"),
            self._get("filter"),
            self._get("limit"),
            self._get("withRowId") or False,
            blobs=self._get("blobs") or "bytes",
        )

    def version_selector(self) -> VersionSelector:
        """Return which version to read."""
        return VersionSelector(self._get("version"), self._get("tag"), self._get("asOf"))

    def tasks(self) -> int:
        """Return the largest number of tasks that read."""
        return self._get("tasks") or TASKS

    def write_options(self) -> WriteOptions:
        """Return how to write."""
        layout = FileLayout(self._get("maxRowsPerFile"), self._get("maxBytesPerFile"), self._get("dataStorageVersion"))
        evolves = bool(self._get("mergeSchema"))
        return WriteOptions(self._get("vectorColumns") or {}, layout, self._get("run"), evolves=evolves)

    def follow_options(self) -> FollowOptions:
        """Return how a stream follows the table."""
        if self._get("withVersion") and self._get("readChanges"):
            raise InvalidInputError("readChanges has the version of each row as _commit_version: leave out withVersion")
        return FollowOptions(
            self._get("startingVersion"),
            self._get("maxVersionsPerTrigger"),
            self._get("maxRowsPerTrigger"),
            self._get("failOnDataLoss") is not False,
            self._get("withVersion") is True,
            self._get("readChanges") is True,
        )

    def merge_options(self) -> MergeOptions | None:
        """Return how a stream is merged; None if it is appended.

        Raises:
            InvalidInputError: the mode needs an option, or does not have it.
        """
        names = ("on", "latestBy", "whenMatched", "whenNotMatched")
        if self._get("mode") != MERGE:
            if merge_only := [name for name in names if self._get(name)]:
                raise InvalidInputError(f"{merge_only[0]} is an option of mode merge only")
            return None
        if not self._get("on"):
            raise InvalidInputError("mode merge needs the option on: the columns that are the key")
        rules = MergeRules(self._get("whenMatched") or "update", self._get("whenNotMatched") or "insert")
        return MergeOptions(self._get("on"), rules, self._get("latestBy") or ())

    def stream_query(self) -> StreamQuery:
        """Return which streaming query writes."""
        return StreamQuery(self._get("queryId"), self._get("checkpointLocation"))

    def _get(self, name: str) -> Any:
        text = self._options.get(name.lower())
        if text is None:
            return None
        option = OPTIONS[name]
        try:
            return option.parse(text.strip())
        except (ValueError, TypeError, AttributeError, LookupError):
            quoted = "" if name == "properties" else f", {text!r},"
            raise InvalidInputError(f"the option {name}{quoted} is not what it has to be: {option.expected}") from None
