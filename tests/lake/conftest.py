from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from lance_namespace import CreateTableRequest, LanceNamespace, connect

from tests.lake.folder import FolderNamespace, rows, stream
from tests.lake.store import FakeStore


@pytest.fixture
def ours(tmp_path: Path) -> FolderNamespace:
    return FolderNamespace(tmp_path)


@pytest.fixture(params=["ours", "dir"])
def namespace(request: pytest.FixtureRequest, tmp_path: Path) -> LanceNamespace:
    """Our operations, and pylance's own: what a test says of this holds for both."""
    return FolderNamespace(tmp_path) if request.param == "ours" else connect("dir", {"root": str(tmp_path)})


@pytest.fixture
def table(ours: FolderNamespace) -> list[str]:
    """The id of a table of ours with 300 rows."""
    ours.create_table(CreateTableRequest(id=["t"]), stream(rows()))
    return ["t"]


@pytest.fixture
def both(namespace: LanceNamespace) -> tuple[LanceNamespace, list[str]]:
    """A namespace, ours or pylance's own, and the id of a table there with 300 rows."""
    namespace.create_table(CreateTableRequest(id=["t"]), stream(rows()))
    return namespace, ["t"]


@pytest.fixture
def store() -> Iterator[FakeStore]:
    """An empty object store."""
    with FakeStore() as running:
        yield running
