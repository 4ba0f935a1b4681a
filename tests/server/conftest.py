"""One server for the tests that need no other."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count

import pytest

from tests.server.serving import ServerClient, serving

_numbers = count(1)


@pytest.fixture(scope="session")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerClient]:
    """A server with two warehouses; it is shared, so take names that no other test takes."""
    with serving(tmp_path_factory.mktemp("server")) as client:
        yield client


@pytest.fixture
def namespace(client: ServerClient) -> str:
    """A namespace of the test's own."""
    name = f"n{next(_numbers)}"
    assert client.iceberg("POST", "main/namespaces", {"namespace": [name]}).status == 200
    return name
