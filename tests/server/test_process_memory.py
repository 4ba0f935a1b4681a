from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.live.gateways import ask, until
from tests.servers.lancehouse import start_lancehouse

SYSTEM_POOL = """
from lancehouse.server import process_memory, run
process_memory.share_heaps()
import pyarrow
print(pyarrow.default_memory_pool().backend_name)
"""
WITHOUT_PANDAS = """
import sys
from lancehouse.server import process_memory
process_memory.import_lance({implementations!r})
import lance, pyarrow
pyarrow.array([1, 2])
print("pandas" in sys.modules)
import pandas
"""

WITHOUT_SQL = """
import sys
import lancehouse.server.http.application, lancehouse.server.console.routes, lancehouse.server.api.lance
from lance_namespace import CountTableRowsRequest
from lancehouse.gateway.request_sql import rewrite_sql
rewrite_sql(CountTableRowsRequest(id=["t"]), None)
print("sqlglot" in sys.modules)
rewrite_sql(CountTableRowsRequest(id=["t"], predicate="a > 1"), None)
print("sqlglot" in sys.modules)
"""


def run(program: str) -> str:
    """In a process of its own: what is loaded stays."""
    return subprocess.run(
        [sys.executable, "-W", "error", "-c", program], check=True, capture_output=True, text=True
    ).stdout.strip()


@pytest.mark.parametrize(
    ("implementations", "is_loaded"),
    [([], False), (["iceberg", "dir", "lancehouse.UnityNamespace"], False), (["dir", "mine.Namespace"], True)],
)
def test_pandas_is_not_loaded_unless_somebody_elses_code_may_use_it(
    implementations: list[str], is_loaded: bool
) -> None:
    pytest.importorskip("pandas")
    assert run(WITHOUT_PANDAS.format(implementations=implementations)) == str(is_loaded)


@pytest.mark.parametrize("workers", [1, 2])
def test_a_server_has_not_loaded_pandas(tmp_path: Path, workers: int) -> None:
    """Where it is installed, as Spark's users have it."""
    pytest.importorskip("pandas")
    with start_lancehouse(tmp_path, workers=workers) as server:
        until(lambda: ask(server, "GET", "/health/ready").status == 200, "the server is ready")
        children = Path(f"/proc/{server.pid}/task/{server.pid}/children").read_text().split()
        assert len(children) == (0 if workers == 1 else workers)
        for pid in (server.pid, *children):
            libraries = Path(f"/proc/{pid}/maps").read_text()
            assert "pandas" not in libraries
            assert ("pyarrow" in libraries) is (workers == 1 or pid != server.pid)  # who supervises needs none of it


def test_the_parser_of_sql_is_loaded_with_the_first_sql() -> None:
    assert run(WITHOUT_SQL).split() == ["False", "True"]


def test_arrow_takes_memory_from_the_heaps_that_are_trimmed() -> None:
    assert run(SYSTEM_POOL) == "system"
