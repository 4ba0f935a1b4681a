"""The options of `format("lance")`: what they are called, and what they mean."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from difflib import get_close_matches
from enum import Enum
from types import MappingProxyType
from typing import Any

from lance_namespace.errors import InvalidInputError, UnsupportedOperationError

from lancehouse.lake.fragments import Layout
from lancehouse.lake.scans import Moment, Scan
from lancehouse.properties import STORAGE_PREFIX, storage_options
from lancehouse.spark.address import Address, Catalog
from lancehouse.spark.writing import Write

TASKS = 32
"""Into how many tasks a table is divided at most: a data source is not told how many run at once."""
PROPERTY_PREFIX = "property."
"""Of a property that has the name of an option."""
SECRET_PREFIX = "secret."  # noqa: S105
"""Of anything that Spark is not to show: by its own rules it shows no option with such a name."""
SPARKS_OWN = frozenset({"provider", "owner"})
"""What Spark adds to the options of a table of its own catalog, which is being created."""
NO_TABLE = (
    "Spark's CREATE TABLE … USING lance passes no options on to those who read and write the table, so it cannot be a "
    "Lance table; CREATE TEMPORARY VIEW … USING lance OPTIONS (…) works for queries and INSERT INTO, and "
    "LanceCatalog.create makes a table"
)
LIKE_OURS = 0.8
"""A property whose name is so much like that of an option is a slip of the pen."""

EARLIEST, LATEST = "earliest", "latest"


class Use(Enum):
    """What a table is wanted for."""

    READ = "spark.read"
    READ_STREAM = "readStream"
    WRITE = "df.write"
    WRITE_STREAM = "writeStream"


@dataclass(frozen=True, slots=True)
class Option:
    """What an option is for, and how its text is understood."""

    uses: frozenset[Use]
    parse: Callable[[str], Any] = str
    expected: str = ""


def _names(said: str) -> tuple[str, ...]:
    found = json.loads(said) if said.startswith("[") else [name.strip() for name in said.split(",")]
    if not all(isinstance(name, str) and name for name in found):
        raise ValueError
    return tuple(found)


def _texts(said: str) -> dict[str, str]:
    found: dict[str, Any] = json.loads(said)
    if not all(isinstance(value, str) for value in found.values()):
        raise ValueError
    return found


def _vectors(said: str) -> dict[str, int]:
    if said.startswith("{"):
        return {name: int(dimension) for name, dimension in json.loads(said).items()}
    pairs = (each.rpartition(":") for each in said.split(","))
    return {name.strip(): int(dimension) for name, _, dimension in pairs}


def _number(said: str, least: int = 1) -> int:
    if (number := int(said)) < least:
        raise ValueError
    return number


def _flag(said: str) -> bool:
    return {"true": True, "false": False}[said.lower()]


def _start(said: str) -> int | str:
    return said.lower() if said.lower() in (EARLIEST, LATEST) else _number(said)


_READ, _FOLLOW = frozenset({Use.READ}), frozenset({Use.READ_STREAM})
_WRITE, _SINK = frozenset({Use.WRITE}), frozenset({Use.WRITE_STREAM})
_READS, _WRITES = _READ | _FOLLOW, _WRITE | _SINK
_POSITIVE, _BOOLEAN = "a number above 0", "true or false"

OPTIONS: Mapping[str, Option] = MappingProxyType(
    {
        "path": Option(_READS | _WRITES),
        "impl": Option(_READS | _WRITES),
        "table": Option(_READS | _WRITES),
        "properties": Option(_READS | _WRITES, _texts, "a JSON object of texts"),
        "columns": Option(_READS, _names, "names with commas between them, or a JSON list of names"),
        "filter": Option(_READS),
        "withRowId": Option(_READS, _flag, _BOOLEAN),
        "tasks": Option(_READS, _number, _POSITIVE),
        "version": Option(_READ, _number, "the number of a version"),
        "tag": Option(_READ),
        "asOf": Option(_READ, datetime.fromisoformat, "a time such as 2026-01-31T12:00:00+00:00"),
        "limit": Option(_READ, lambda said: _number(said, 0), "a number of rows"),
        "startingVersion": Option(_FOLLOW, _start, "earliest, latest or the number of a version"),
        "maxVersionsPerTrigger": Option(_FOLLOW, _number, _POSITIVE),
        "maxRowsPerTrigger": Option(_FOLLOW, _number, _POSITIVE),
        "failOnDataLoss": Option(_FOLLOW, _flag, _BOOLEAN),
        "withVersion": Option(_FOLLOW, _flag, _BOOLEAN),
        "vectorColumns": Option(_WRITES, _vectors, "names and dimensions such as emb:128, or a JSON object of them"),
        "maxRowsPerFile": Option(_WRITES, _number, _POSITIVE),
        "maxBytesPerFile": Option(_WRITES, _number, _POSITIVE),
        "dataStorageVersion": Option(_WRITES),
        "run": Option(_WRITE),
        "queryId": Option(_SINK),
        "checkpointLocation": Option(_SINK),
    }
)
"""All there are. Whatever else is given is a property of the client, or `storage.<key>` beside a path."""

_OURS = {name.lower(): name for name in OPTIONS}


@dataclass(frozen=True, slots=True)
class Follow:
    """From where a stream reads a table, and how much at once."""

    start: int | str | None = None
    """A version, `earliest` or `latest`; None: first all that is there."""
    max_versions: int | None = None
    max_rows: int | None = None
    is_lossless: bool = True
    """Whether it stops at rows of which it cannot tell."""
    with_version: bool = False
    """Whether each row says which version added it."""


@dataclass(frozen=True, slots=True)
class Query:
    """How a streaming query is known: by its id, or by the place of its checkpoint."""

    id: str | None = None
    checkpoint: str | None = None


class Options:
    """The options that somebody gave. Upper and lower case are one: Spark does not keep them apart.

    Args:
        given: them.
        uses: what for. Nobody knows at first whether a table will be read at once or as a stream.

    Raises:
        InvalidInputError: an option that is none, or is for something else.
        UnsupportedOperationError: they are those of a table of Spark's own catalog.
    """

    def __init__(self, given: Mapping[str, str], *uses: Use) -> None:
        if {name.lower() for name in given} >= SPARKS_OWN:
            raise UnsupportedOperationError(NO_TABLE)
        self._given = {name.lower().removeprefix(SECRET_PREFIX): value for name, value in given.items()}
        self._rest = {name: value for name, value in self._given.items() if name not in _OURS}
        for name in self._given.keys() - self._rest.keys():
            if not OPTIONS[_OURS[name]].uses & set(uses):
                raise InvalidInputError(f"{_OURS[name]} is no option of {' or '.join(use.value for use in uses)}")
        for name in self._rest:
            if alike := get_close_matches(name, _OURS, 1, LIKE_OURS):
                meant = f"did you mean {_OURS[alike[0]]}? A property of that name is {PROPERTY_PREFIX}{name}"
                raise InvalidInputError(f"{name!r} is no option; {meant}")

    def address(self) -> Address:
        """Where the table is.

        Raises:
            InvalidInputError: that is not said, or said twice, or there is no such client.
        """
        path, impl, table = self._get("path"), self._get("impl"), self._get("table")
        if path and not impl and not table:
            return self._located(path)
        if path or not impl or not table:
            given = [name for name in ("path", "impl", "table") if self._get(name)]
            said = f"not by {' and '.join(given)}" if given else f"and none of them is given. {NO_TABLE}"
            raise InvalidInputError(f"a Lance table is named by the option path, or by impl and table; {said}")
        named = {name.removeprefix(PROPERTY_PREFIX): value for name, value in self._rest.items()}
        return Catalog.of(impl, {**named, **(self._get("properties") or {})}).table(table)

    def _located(self, path: str) -> Address:
        foreign = [name for name in self._rest if not name.startswith(STORAGE_PREFIX)]
        if self._get("properties") is not None:
            foreign.append("properties")
        if foreign:
            raise InvalidInputError(
                f"{foreign[0]!r} is no option beside a path; those of its store are {STORAGE_PREFIX}<key>"
            )
        return Address(path=path, storage_options=tuple(sorted(storage_options(self._rest).items())))

    def scan(self) -> Scan:
        """What to read."""
        return Scan(self._get("columns"), self._get("filter"), self._get("limit"), self._get("withRowId") or False)

    def moment(self) -> Moment:
        """Which version to read."""
        return Moment(self._get("version"), self._get("tag"), self._get("asOf"))

    def tasks(self) -> int:
        """How many tasks are to read, if there are rows enough for them."""
        return self._get("tasks") or TASKS

    def write(self) -> Write:
        """How to write."""
        layout = Layout(self._get("maxRowsPerFile"), self._get("maxBytesPerFile"), self._get("dataStorageVersion"))
        return Write(self._get("vectorColumns") or {}, layout, self._get("run"))

    def follow(self) -> Follow:
        """How a table is followed."""
        return Follow(
            self._get("startingVersion"),
            self._get("maxVersionsPerTrigger"),
            self._get("maxRowsPerTrigger"),
            self._get("failOnDataLoss") is not False,
            self._get("withVersion") is True,
        )

    def query(self) -> Query:
        """Whose batches are written."""
        return Query(self._get("queryId"), self._get("checkpointLocation"))

    def _get(self, name: str) -> Any:
        said = self._given.get(name.lower())
        if said is None:
            return None
        option = OPTIONS[name]
        try:
            return option.parse(said.strip())
        except (ValueError, TypeError, AttributeError, LookupError):
            shown = "" if name == "properties" else f", {said!r},"
            raise InvalidInputError(f"the option {name}{shown} is not what it has to be: {option.expected}") from None
