"""Iceberg's own compatibility kit on our server, which plans the scans."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.servers.rck import NEWEST, OLDEST, run_on_ours


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("version", "at_least"), [(NEWEST, 147), pytest.param(OLDEST, 135, marks=pytest.mark.soak)], ids=str
)
def test_kit(tmp_path: Path, version: str, at_least: int) -> None:
    results = run_on_ours(tmp_path, version)
    print(results)
    assert not results.failed
    assert len(results.passed) >= at_least
