"""Tables that somebody writes to while they are looked at."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Sequence
from contextlib import nullcontext
from datetime import timedelta
from pathlib import Path
from typing import Any

import lance
import pytest

from lancehouse.admin import table_checks
from lancehouse.admin.checked_catalog import Shell
from lancehouse.admin.table_checks import (
    FindingKind,
    TableChecker,
    find_expired_credentials,
    format_column_difference,
    time_left,
)
from lancehouse.clients.inspection import InspectedTable, Inspector
from lancehouse.credentials import EXPIRES
from lancehouse.lake.dataset_files import StagedManifest, list_staged_manifests
from tests.cli.commands import TWO_ROWS


class Asked:
    """A catalog that nobody asks anything."""

    namespace: Any = None
    target: Any = None
    shell = Shell()

    def format_id(self, id: Sequence[str]) -> str:
        return ".".join(id)

    def translate_errors(self, id: Sequence[str], operation: str = "") -> Any:
        return nullcontext()

    def __getattr__(self, name: str) -> Any:
        raise AssertionError(name)


class Looks(Inspector):
    """Sees one thing after the other; the last one again and again."""

    def __init__(self, *seen: InspectedTable) -> None:
        self._all = list(seen)

    def inspect_table(self, id: Sequence[str], *, all_snapshots: bool = False) -> InspectedTable:
        return self._all.pop(0) if len(self._all) > 1 else self._all[0]

    def expected_columns(self, table: Any) -> dict[str, str]:
        with table.dataset() as dataset:
            return dict.fromkeys(dataset.schema.names, "any")


def ward(*seen: InspectedTable) -> TableChecker:
    return TableChecker(Asked(), Looks(*seen), ("db", "docs"), timedelta(days=7))


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A table of two versions."""
    for mode in ("create", "append"):
        lance.write_dataset(TWO_ROWS, str(tmp_path / "docs"), mode=mode)
    return tmp_path / "docs"


def managed_table(place: Path, version: int, **more: Any) -> InspectedTable:
    return InspectedTable(str(place), {}, is_managed=True, versions={None: version}, **more)


def kinds(ward: TableChecker) -> list[FindingKind]:
    return [each.kind for each in ward.examine()[1]]


def test_a_commit_between_two_looks_is_no_finding(place: Path) -> None:
    assert kinds(ward(managed_table(place, 1), managed_table(place, 2))) == []
    assert kinds(ward(managed_table(place, 1))) == [FindingKind.VERSIONS]
    assert kinds(ward(managed_table(place, 3))) == [FindingKind.VERSIONS]


def test_a_schema_that_changes_between_two_looks_is_no_finding(place: Path) -> None:
    old, new = (
        InspectedTable(str(place), {}, columns={"id": "any"}),
        InspectedTable(str(place), {}, columns={"id": "any", "text": "any"}),
    )
    assert kinds(ward(old, new)) == []
    assert kinds(ward(old)) == [FindingKind.STALE_SCHEMA]


def leave_manifest(place: Path, name: str) -> str:
    """A manifest in staging, for a long time."""
    file = place / "_versions" / f"{2**64 - 1 - 3:020}.manifest-{name}"
    file.write_bytes(b"staged")
    long_ago = time.time() - 30 * 86400
    os.utime(file, (long_ago, long_ago))
    return f"_versions/{file.name}"


def test_young_manifests_are_listed_again_once(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("one", "two", "three"):
        os.utime(place / leave_manifest(place, name))
    listings: list[object] = []

    def list_manifests(*arguments: Any) -> list[StagedManifest]:
        listings.append(arguments)
        return list_staged_manifests(*arguments)

    monkeypatch.setattr(table_checks, "list_staged_manifests", list_manifests)
    _, [finding] = ward(managed_table(place, 2)).examine()
    assert finding.what.startswith("3 manifests in staging")
    assert len(listings) == 2


@pytest.mark.parametrize(
    ("expires_ms", "words"),
    [
        ("0", ["the credentials for its storage ended"]),
        (str(2**63 - 1), []),
        ("9" * 40, []),
        ("", []),
        ("never", []),
    ],
)
def test_credentials_may_end_at_no_date(place: Path, expires_ms: str, words: list[str]) -> None:
    findings = find_expired_credentials(ward(managed_table(place, 2)), {EXPIRES: expires_ms})
    assert [finding.what[: len("the credentials for its storage ended")] for finding in findings] == words


@pytest.mark.parametrize("at_s", [1e30, math.inf, math.nan, 1e12])
def test_a_time_that_is_no_date_is_not_soon(at_s: float) -> None:
    assert time_left(at_s) is None


def test_how_long_it_is_until_a_time() -> None:
    assert time_left(-1e30) == pytest.approx(timedelta(seconds=-time.time()), abs=timedelta(minutes=1))
    assert time_left(time.time() + 60) == pytest.approx(timedelta(seconds=60), abs=timedelta(seconds=30))


def test_what_the_catalog_accepted_meanwhile_stays(place: Path) -> None:
    file, other = leave_manifest(place, "accepted"), leave_manifest(place, "left")
    before = managed_table(place, 2)
    after = managed_table(place, 2, accepted_manifests={file: "_versions/3.manifest"})
    _, [found] = ward(before, before, after).examine()
    assert found.kind is FindingKind.STAGED
    assert found.what.startswith("2 manifests left in staging for more than 7d")
    assert found.fix is not None
    found.fix()
    assert (place / file).exists()
    assert not (place / other).exists()


@pytest.mark.parametrize(
    ("said", "real", "words"),
    [
        ({"a": "x"}, {"a": "x", "b": "y"}, "it lacks b"),
        ({"a": "x", "b": "y"}, {"a": "x"}, "it has in excess b"),
        ({"a": "x"}, {"a": "y"}, "other types a"),
        ({"a": "x", "b": "y"}, {"b": "y", "a": "x"}, "another order of columns"),
        ({}, dict.fromkeys("abcdefg", ""), "it lacks a, b, c, d, e …"),
    ],
)
def test_how_columns_differ(said: dict[str, str], real: dict[str, str], words: str) -> None:
    assert format_column_difference(said, real) == words
