"""The watch itself: an attack that succeeds is noticed."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from time import sleep

import pytest

from tests.security import watch
from tests.security.watch import attacked
from tests.servers.lancehouse import Served


def test_a_server_that_holds_out_is_left_alone(served: Served) -> None:
    with attacked(served) as seen:
        sleep(0.2)
    assert seen.peak_mb > 10


def test_a_server_that_dies_is_noticed(serving: Callable[..., Served]) -> None:
    server = serving()
    with pytest.raises(AssertionError, match="died"), attacked(server):
        os.kill(server.pid, signal.SIGKILL)
        sleep(0.3)


def test_a_server_that_grows_is_noticed(served: Served) -> None:
    with pytest.raises(AssertionError, match="held"), attacked(served, most_mb=1):
        sleep(0.2)


def test_a_server_that_hangs_is_noticed(serving: Callable[..., Served], monkeypatch: pytest.MonkeyPatch) -> None:
    server = serving()
    monkeypatch.setattr(watch, "EVENTUALLY_S", 0.5)
    with pytest.raises(AssertionError), attacked(server):
        os.kill(server.pid, signal.SIGSTOP)
        threading.Timer(1.5, os.kill, (server.pid, signal.SIGCONT)).start()
        sleep(2)
