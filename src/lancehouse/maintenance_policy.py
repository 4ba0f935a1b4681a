"""Maintenance policies: the properties `maintenance.*`, their defaults, and which of several values counts.

A value is that of the table, else of the nearest namespace above it that has one, else of the warehouse in the
server's file, else the default. `lance_namespace` is imported only to raise an error: that import is slow.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, time, timedelta
from typing import Any, NoReturn
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

PREFIX = "maintenance."
DEFAULT = "default"
"""Source of a value that is not set anywhere."""
OPERATIONS = ("fill", "refresh", "compact", "index", "cleanup", "orphans")
"""What can be done to a table, in the order in which it is done: what makes rows or versions goes first."""
FUNCTIONS = ("fill", "refresh")
"""Those that run functions of users."""

LEAST_VERSION_AGE = timedelta(minutes=1)
"""Younger versions are never removed, even if a policy says so."""

_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 604800}
_DURATION = re.compile(r"([0-9]{1,9})([smhdw])", re.ASCII)
_SPAN = re.compile(r"([01][0-9]|2[0-3]):([0-5][0-9])-([01][0-9]|2[0-3]):([0-5][0-9])", re.ASCII)


@dataclass(frozen=True, slots=True)
class Windows:
    """Times of the day at which maintenance may begin; always, if there are none."""

    spans: tuple[tuple[time, time], ...] = ()
    zone: str = "UTC"

    def next_open(self, now: datetime) -> datetime:
        """Return `now` if a window is open, else the time at which the next one opens."""
        if not self.spans:
            return now
        local = now.astimezone(ZoneInfo(self.zone))
        starts = []
        for start, end in self.spans:
            # A window that passes midnight began yesterday, or begins today.
            for day in (-1, 0, 1):
                opens = datetime.combine(local.date() + timedelta(days=day), start, local.tzinfo)
                closes = datetime.combine(opens.date() + timedelta(days=end <= start), end, local.tzinfo)
                if opens <= local < closes:
                    return now
                starts += [opens] if opens > local else []
        return min(starts).astimezone(UTC)


def _parse_flag(text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise ValueError("must be true or false")
    return text.lower() == "true"


def _number_parser(least: int, most: int) -> Callable[[str], int]:
    def parse(text: str) -> int:
        if not re.fullmatch(r"[0-9]{1,12}", text, re.ASCII) or not least <= int(text) <= most:
            raise ValueError(f"must be a whole number from {least} to {most}")
        return int(text)

    return parse


def _parse_duration(text: str) -> timedelta:
    match = _DURATION.fullmatch(text)
    if match is None or int(match[1]) * _UNITS[match[2]] > 36500 * _UNITS["d"]:
        raise ValueError("must be a duration such as 90s, 30m, 12h, 7d or 2w")
    return timedelta(seconds=int(match[1]) * _UNITS[match[2]])


def _duration_parser(least: timedelta, refusal: str) -> Callable[[str], timedelta]:
    def parse(text: str) -> timedelta:
        if (duration := _parse_duration(text)) < least:
            raise ValueError(refusal)
        return duration

    return parse


_parse_interval = _duration_parser(timedelta(minutes=1), "must be 1m or more")
_parse_orphan_age = _duration_parser(
    timedelta(hours=1), "must be 1h or more: younger files may belong to a writer that is about to commit them"
)


def _parse_version_age(text: str) -> timedelta:
    if (age := _parse_duration(text)) < LEAST_VERSION_AGE:
        raise ValueError("must be 1m or more: who is reading or writing needs the version that they began with")
    return age


def _parse_windows(text: str) -> Windows:
    spans, _, zone = text.strip().partition(" ")
    if not spans:
        return Windows()
    matches = [_SPAN.fullmatch(span) for span in spans.split(",")]
    if not all(matches):
        raise ValueError("must be times such as 01:00-05:00, or 01:00-05:00,12:00-13:00 Europe/Berlin")
    try:
        ZoneInfo(zone or "UTC")
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise ValueError(f"names no time zone: {zone[:60]}") from None
    times = [(time(int(m[1]), int(m[2])), time(int(m[3]), int(m[4]))) for m in matches if m]
    return Windows(tuple(times), zone or "UTC")


@dataclass(frozen=True, slots=True)
class PolicySetting:
    """One property: its parser, default as text, and help."""

    name: str
    parse: Callable[[str], Any]
    default: str
    help: str

    @property
    def key(self) -> str:
        """The property's key."""
        return PREFIX + self.name

    @property
    def field(self) -> str:
        """The field of `MaintenancePolicy`."""
        return self.name.replace(".", "_").replace("-", "_")


SETTINGS = (
    PolicySetting("enabled", _parse_flag, "false", "whether tables are maintained"),
    PolicySetting("window", _parse_windows, "", "when jobs may begin: 01:00-05:00, in UTC or in a zone named after it"),
    PolicySetting("settle", _parse_duration, "1m", "how long no row must have changed before fragments are rewritten"),
    PolicySetting("compact", _parse_flag, "true", "merge small fragments and drop deleted rows"),
    PolicySetting(
        "compact.min-fragments", _number_parser(2, 10**6), "8", "number of small fragments from which they are merged"
    ),
    PolicySetting("compact.target-rows", _number_parser(1, 10**9), "1048576", "rows that a fragment should have"),
    PolicySetting(
        "compact.deleted-percent",
        _number_parser(1, 100),
        "10",
        "percentage of deleted rows from which a fragment is rewritten",
    ),
    PolicySetting("index", _parse_flag, "true", "add new rows to indices"),
    PolicySetting(
        "index.unindexed-rows",
        _number_parser(1, 10**12 - 1),
        "10000",
        "number of rows missing from an index from which they are added",
    ),
    PolicySetting("cleanup", _parse_flag, "true", "remove old versions; tagged ones stay"),
    PolicySetting("cleanup.older-than", _parse_version_age, "7d", "age from which a version is removed"),
    PolicySetting(
        "cleanup.keep-versions", _number_parser(1, 10**6), "1", "number of newest versions that are kept at any age"
    ),
    PolicySetting(
        "cleanup.max-versions",
        _number_parser(0, 10**9),
        "0",
        "number of versions beyond which younger ones are removed too; 0: no limit",
    ),
    PolicySetting("cleanup.every", _parse_interval, "1d", "time between two clean-ups"),
    PolicySetting("orphans", _parse_flag, "true", "remove files that no version references"),
    PolicySetting("orphans.older-than", _parse_orphan_age, "7d", "age from which such a file is removed"),
    PolicySetting("orphans.every", _parse_interval, "7d", "time between two searches for such files"),
    PolicySetting("fill", _parse_flag, "false", "fill computed columns, by functions that the server allows"),
    PolicySetting("refresh", _parse_flag, "false", "refresh materialized views, by functions that the server allows"),
    PolicySetting("refresh.every", _parse_interval, "1h", "time between two checks of the source of a view"),
)
_DEFAULTS: Mapping[str, Any] = {setting.field: setting.parse(setting.default) for setting in SETTINGS}
_BY_KEY: Mapping[str, PolicySetting] = {setting.key: setting for setting in SETTINGS}


@dataclass(frozen=True, slots=True)
class MaintenancePolicy:
    """The values that count for one table; see `SETTINGS`."""

    enabled: bool
    window: Windows
    settle: timedelta
    compact: bool
    compact_min_fragments: int
    compact_target_rows: int
    compact_deleted_percent: int
    index: bool
    index_unindexed_rows: int
    cleanup: bool
    cleanup_older_than: timedelta
    cleanup_keep_versions: int
    cleanup_max_versions: int
    cleanup_every: timedelta
    orphans: bool
    orphans_older_than: timedelta
    orphans_every: timedelta
    fill: bool
    refresh: bool
    refresh_every: timedelta


@dataclass(frozen=True, slots=True)
class PolicyValue:
    """A value that counts, and where it comes from."""

    key: str
    value: str
    source: str
    help: str


Level = tuple[str, Mapping[str, str]]
"""Where properties come from, such as `namespace a.b`, and the properties."""


def check_properties(properties: Mapping[str, str]) -> None:
    """Refuse a property `maintenance.*` that is unknown or has a wrong value; others are not looked at.

    Raises:
        InvalidInputError: the message names the property and says what it may be.
    """
    for key, value in properties.items():
        if key.startswith(PREFIX):
            _parse(key, value)


def check_keys(keys: Iterable[str]) -> None:
    """Refuse keys that are no maintenance properties.

    Raises:
        InvalidInputError: one is not; the message has the nearest name.
    """
    for key in keys:
        if key not in _BY_KEY:
            _refuse_key(key)


def policy_properties(properties: Mapping[str, str] | None) -> dict[str, str]:
    """Return those properties that are about maintenance."""
    return {key: value for key, value in (properties or {}).items() if key.startswith(PREFIX)}


def explain_policy(levels: Sequence[Level]) -> list[PolicyValue]:
    """Return all values that count, with their source; `levels` go from the warehouse to the table.

    Raises:
        InvalidInputError: a value is wrong; the message says where.
    """
    values = []
    for setting in SETTINGS:
        source, value = DEFAULT, setting.default
        for where, properties in levels:
            if setting.key in properties:
                source, value = where, properties[setting.key]
        _parse(setting.key, value, source)
        values.append(PolicyValue(setting.key, value, source, setting.help))
    return values


def resolve_policy(levels: Iterable[Mapping[str, str]]) -> MaintenancePolicy:
    """Return the policy of a table; `levels` go from the warehouse to the table.

    A wrong value, which a catalog that does not check may hold, counts as if it were not there.
    """
    fields: dict[str, Any] = dict(_DEFAULTS)
    for properties in levels:
        for key in properties.keys() & _BY_KEY.keys():
            setting = _BY_KEY[key]
            try:
                fields[setting.field] = setting.parse(str(properties[key]).strip())
            except ValueError:
                continue
    return MaintenancePolicy(**fields)


def _parse(key: str, value: str, source: str = "") -> Any:
    setting = _BY_KEY.get(key)
    if setting is None:
        _refuse_key(key)
    try:
        return setting.parse(str(value).strip())
    except ValueError as error:
        from lance_namespace.errors import InvalidInputError

        where = f" of {source}" if source not in ("", DEFAULT) else ""
        raise InvalidInputError(f"{key}{where} {error}, got {str(value)[:60]!r}") from None


def _refuse_key(key: str) -> NoReturn:
    from lance_namespace.errors import InvalidInputError

    from lancehouse.suggestions import suggest

    hint = suggest(key, list(_BY_KEY), f"expected one of {', '.join(_BY_KEY)}")
    raise InvalidInputError(f"there is no property {key[:80]!r} of maintenance: {hint}")
