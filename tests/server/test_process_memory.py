from __future__ import annotations

import subprocess
import sys

import pytest

FORGET = """
import sys
import lance_namespace
from lancehouse.server import process_memory as memory
memory.share_heaps()
memory.unload_rest_client()
assert not [name for name in sys.modules if name.startswith("lance_namespace_urllib3_client.api.")]
from lance_namespace import DescribeTableRequest, connect
assert DescribeTableRequest.from_dict({"id": ["t"]}).id == ["t"]
import lance_namespace_urllib3_client as client
assert client.TableApi.__name__ == "TableApi"
from lance_namespace_urllib3_client import NamespaceApi
try:
    client.Nothing
except AttributeError as error:
    assert "Nothing" in str(error)
"""
LEAN = """
import sys
from lancehouse.server import process_memory as memory
with memory.without_unused_libraries({implementations!r}):
    import lance
print("pandas" in sys.modules)
import pandas
"""


def run(program: str) -> str:
    """In a process of its own: what is loaded stays."""
    return subprocess.run(
        [sys.executable, "-W", "error", "-c", program], check=True, capture_output=True, text=True
    ).stdout.strip()


def test_a_client_that_nobody_uses_is_dropped_and_comes_back_when_asked_for() -> None:
    run(FORGET)


@pytest.mark.parametrize(
    ("implementations", "is_loaded"),
    [([], False), (["iceberg", "dir", "lancehouse.UnityNamespace"], False), (["dir", "mine.Namespace"], True)],
)
def test_pandas_is_not_loaded_unless_somebody_elses_code_may_use_it(
    implementations: list[str], is_loaded: bool
) -> None:
    pytest.importorskip("pandas")
    assert run(LEAN.format(implementations=implementations)) == str(is_loaded)
