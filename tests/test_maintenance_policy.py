from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from lance_namespace.errors import InvalidInputError

from lancehouse.maintenance_policy import (
    DEFAULT,
    SETTINGS,
    MaintenancePolicy,
    check_keys,
    check_properties,
    explain_policy,
    resolve_policy,
)


def test_settings_and_fields_agree() -> None:
    assert [setting.field for setting in SETTINGS] == list(MaintenancePolicy.__slots__)


def test_the_nearest_value_counts() -> None:
    levels = [
        ("warehouse main", {"maintenance.enabled": "true", "maintenance.compact.min-fragments": "4"}),
        ("namespace a", {"maintenance.compact.min-fragments": "5", "maintenance.cleanup.older-than": "2w"}),
        ("table a.t", {"maintenance.enabled": "false", "owner": "me"}),
    ]
    values = {value.key: (value.value, value.source) for value in explain_policy(levels)}
    assert values["maintenance.enabled"] == ("false", "table a.t")
    assert values["maintenance.compact.min-fragments"] == ("5", "namespace a")
    assert values["maintenance.cleanup.older-than"] == ("2w", "namespace a")
    assert values["maintenance.index"] == ("true", DEFAULT)
    policy = resolve_policy(properties for _, properties in levels)
    assert not policy.enabled
    assert (policy.compact_min_fragments, policy.cleanup_older_than) == (5, timedelta(weeks=2))
    assert not resolve_policy([]).enabled


def test_a_wrong_value_of_a_catalog_does_not_count() -> None:
    policy = resolve_policy([{"maintenance.enabled": "true"}, {"maintenance.enabled": "sure"}])
    assert policy.enabled


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("enabled", "yes", "must be true or false"),
        ("window", "1-5", "must be times such as 01:00-05:00"),
        ("window", "25:00-26:00", "must be times"),
        ("window", "01:00-05:00 Mars/Olympus", "names no time zone: Mars/Olympus"),
        ("window", "01:00-05:00 ../../etc/passwd", "names no time zone"),
        ("cleanup.older-than", "7", "must be a duration such as"),
        ("cleanup.older-than", "9999999w", "must be a duration such as"),
        ("orphans.older-than", "59m", "must be 1h or more"),
        ("cleanup.every", "0s", "must be 1m or more"),
        ("cleanup.older-than", "0s", "must be 1m or more: who is reading or writing"),
        ("compact.min-fragments", "1", "must be a whole number from 2 to"),
        ("compact.deleted-percent", "0", "must be a whole number from 1 to 100"),
        ("index.unindexed-rows", "-1", "must be a whole number from 1"),
        ("compact.min-fragment", "2", r"did you mean maintenance.compact.min-fragments\?"),
        ("nonsense", "2", "there is no property"),
    ],
)
def test_wrong_values_are_refused(key: str, value: str, words: str) -> None:
    with pytest.raises(InvalidInputError, match=words):
        check_properties({"other": "x", f"maintenance.{key}": value})


def test_keys_to_remove_are_checked() -> None:
    check_keys(["maintenance.window"])
    with pytest.raises(InvalidInputError, match=r"did you mean maintenance\.window"):
        check_keys(["maintenance.windows"])


@pytest.mark.parametrize(
    ("window", "now", "opens"),
    [
        ("", "12:00", "12:00"),
        ("01:00-05:00", "00:59", "01:00"),
        ("01:00-05:00", "01:00", "01:00"),
        ("01:00-05:00", "05:00", "+01:00"),
        ("22:00-02:00", "23:30", "23:30"),
        ("22:00-02:00", "01:30", "01:30"),
        ("22:00-02:00", "02:00", "22:00"),
        ("01:00-02:00,12:00-13:00", "03:00", "12:00"),
        ("12:00-13:00 Asia/Tokyo", "02:00", "03:00"),
    ],
)
def test_windows(window: str, now: str, opens: str) -> None:
    day = datetime(2026, 11, 18, tzinfo=UTC)

    def at(text: str) -> datetime:
        hour, minute = map(int, text.lstrip("+").split(":"))
        return day + timedelta(days=text.startswith("+"), hours=hour, minutes=minute)

    policy = resolve_policy([{"maintenance.window": window}])
    assert policy.window.next_open(at(now)) == at(opens)
