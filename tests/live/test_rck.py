"""Iceberg's own compatibility kit on our server, with scan planning on."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.servers.lancehouse import start_lancehouse
from tests.servers.rck import BASE_LOCATION, NEWEST, OLDEST, run_rck

DOTS = {"rck.supports-names-with-dot": "true"}
"""What a server may leave out, and ours does not."""
NOT_REPORTED = {"Catalog.testCatalogWithCustomMetricsReporter"}
"""It counts reports of scans, and Iceberg's own client makes none of a scan that the server plans."""


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("version", "at_least"), [(NEWEST, 146), pytest.param(OLDEST, 135, marks=pytest.mark.soak)], ids=str
)
def test_kit(tmp_path: Path, version: str, at_least: int) -> None:
    with start_lancehouse(tmp_path, roots=[BASE_LOCATION]) as server:
        results = run_rck(server.iceberg, server.warehouse, version, properties=DOTS)
    print(results)
    assert results.failed.keys() <= NOT_REPORTED
    assert len(results.passed) >= at_least
