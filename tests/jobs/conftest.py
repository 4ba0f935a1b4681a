"""Tables that need maintenance, and the engines and stores of other packages' tests."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.clients.managed import managed_by_lancehouse
from tests.jobs.maintenance import Worn, worn_in, worn_path
from tests.lake.conftest import store  # noqa: F401
from tests.spark.conftest import engine, pytest_configure, spark  # noqa: F401


@pytest.fixture
def fragments() -> tuple[int, int]:
    """How many fragments a table has, and how many rows are in each."""
    return 6, 10


@pytest.fixture(params=["path", "catalog"])
def worn_table(request: pytest.FixtureRequest, tmp_path: Path, fragments: tuple[int, int]) -> Worn:
    """A table of many small fragments, each written by a version of its own."""
    if request.param == "path":
        return worn_path(tmp_path / "t", *fragments)
    return worn_in(managed_by_lancehouse(request.getfixturevalue("lancehouse_server")), *fragments)


@pytest.fixture
def plain(tmp_path: Path, fragments: tuple[int, int]) -> Worn:
    """The same, without a catalog."""
    return worn_path(tmp_path / "t", *fragments)
