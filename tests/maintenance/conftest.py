"""Versions may be removed as soon as they are old, so that no test waits for a minute."""

from __future__ import annotations

from datetime import timedelta

import pytest

from lancehouse import maintenance_policy


@pytest.fixture(autouse=True)
def no_least_age(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(maintenance_policy, "LEAST_VERSION_AGE", timedelta(0))
