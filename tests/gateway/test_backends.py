from __future__ import annotations

import pytest
from lance_namespace.errors import InvalidInputError

from lancehouse.gateway.backends import Backend


def test_who_describes_tables_knows_no_secret_of_the_storage() -> None:
    properties = {"endpoint": "http://127.0.0.1:1", "storage.aws_secret_access_key": "s3cr3t"}
    backend = Backend("b", "lancehouse.IcebergNamespace", properties)
    pair = backend.connect()
    assert pair.inner is not pair.outer
    assert "s3cr3t" not in repr(backend)
    assert backend.connect() is pair


def test_a_backend_that_cannot_be_connected_to_says_why() -> None:
    with pytest.raises(InvalidInputError, match=r"cannot connect to 'lancehouse.IcebergNamespace': .*endpoint"):
        Backend("b", "lancehouse.IcebergNamespace", {}).connect()
