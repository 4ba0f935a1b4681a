"""The REST client that comes with the protocol's models is imported when somebody accesses it."""

from __future__ import annotations

import subprocess
import sys

import pytest

WITHOUT_CLIENT = """
import sys
import lancehouse
from lance_namespace import DescribeTableRequest, connect
assert not [name for name in sys.modules if name.startswith("lance_namespace_urllib3_client.api.")]
assert DescribeTableRequest.from_dict({"id": ["t"]}).id == ["t"]
import lance_namespace_urllib3_client as client
assert {"TableApi", "DescribeTableRequest", "api"} <= set(dir(client))
assert "lance_namespace_urllib3_client.api" not in sys.modules
assert client.TableApi.__name__ == "TableApi"
assert client.api.TableApi is client.TableApi
from lance_namespace_urllib3_client import NamespaceApi
from lance_namespace_urllib3_client.api import TagApi
try:
    client.Nothing
except AttributeError as error:
    assert "Nothing" in str(error)
from lancehouse.protocol_models import import_models
import_models()
assert client.DataApi.__name__ == "DataApi"
from lance_namespace_urllib3_client import *
assert MetadataApi.__name__ == "MetadataApi"
"""
TOO_LATE = """
import lance_namespace_urllib3_client as client
import lancehouse
import lance_namespace
assert client.TableApi.__name__ == "TableApi"
"""


@pytest.mark.parametrize("program", [WITHOUT_CLIENT, TOO_LATE])
def test_the_rest_client_is_imported_when_it_is_accessed(program: str) -> None:
    subprocess.run([sys.executable, "-W", "error", "-c", program], check=True)
