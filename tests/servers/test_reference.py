"""The real server starts, stops with its block, and says why when it does not start."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.servers.reference import Backend, ReferenceServerError, start_reference
from tests.wire.facts import Talk

ROOT = Path(__file__).parent.parent.parent


@pytest.mark.parametrize("catalog", ["jdbc", "memory"])
def test_it_runs_as_long_as_its_block(tmp_path: Path, catalog: Backend) -> None:
    with start_reference(tmp_path / "a folder", catalog=catalog) as server:
        assert server.uri.startswith("http://127.0.0.1:")
        talk = Talk(server.uri)
        assert talk.send("POST", "/v1/namespaces", {"namespace": ["a"]})[0] == 200
        talk.close()
    with pytest.raises(ProcessLookupError):
        os.kill(server.pid, 0)


ORPHAN = """
import sys, time
from pathlib import Path
from tests.servers.reference import start_reference
with start_reference(Path(sys.argv[1]), catalog="memory") as server:
    print(server.pid, flush=True)
    time.sleep(600)
"""


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="looks into /proc")
def test_it_does_not_outlive_a_killed_test(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", ORPHAN, str(tmp_path)], stdout=subprocess.PIPE, cwd=ROOT) as parent:
        assert parent.stdout
        server = int(parent.stdout.readline())
        parent.kill()
    deadline = time.monotonic() + 20
    while alive(server) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not alive(server)


def alive(process: int) -> bool:
    """Is it there, and not merely waiting for someone to take note of its end?"""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_the_log_is_in_the_error(tmp_path: Path) -> None:
    with (
        pytest.raises(ReferenceServerError, match=r"no\.such\.Catalog"),
        start_reference(tmp_path, properties={"catalog-impl": "no.such.Catalog"}),
    ):
        pass


def test_the_shared_one(reference: str) -> None:
    talk = Talk(reference)
    status, text = talk.send("GET", "/v1/config")
    talk.close()
    assert (status, json.loads(text)["overrides"]) == (200, {"namespace-separator": "%2E"})
