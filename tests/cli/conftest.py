from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.places import Place, opened


@pytest.fixture(params=["dir", "served"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    """A catalog of Lance's own, and ours, each with a namespace."""
    return opened(request.param, request, tmp_path)
