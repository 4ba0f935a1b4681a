from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.commands import ConfiguredCatalog, open_configured


@pytest.fixture(params=["dir", "served"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> ConfiguredCatalog:
    """A catalog of Lance's own, and ours, each with a namespace."""
    return open_configured(request.param, request, tmp_path)
