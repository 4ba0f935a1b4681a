"""The watch itself: an attack that succeeds is noticed."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from time import sleep

import pytest

from tests.security import watch
from tests.security.watch import attack_server
from tests.servers.lancehouse import Served


def test_a_server_that_holds_out_is_left_alone(lancehouse_server: Served) -> None:
    with attack_server(lancehouse_server) as seen:
        sleep(0.2)
    assert seen.peak_mb > 10


def test_a_server_that_dies_is_noticed(serving: Callable[..., Served]) -> None:
    server = serving()
    with pytest.raises(AssertionError, match="died"), attack_server(server):
        os.kill(server.pid, signal.SIGKILL)
        sleep(0.3)


def test_a_server_that_grows_is_noticed(lancehouse_server: Served) -> None:
    with pytest.raises(AssertionError, match="held"), attack_server(lancehouse_server, most_mb=1):
        sleep(0.2)


def test_a_server_that_hangs_is_noticed(serving: Callable[..., Served], monkeypatch: pytest.MonkeyPatch) -> None:
    server = serving()
    monkeypatch.setattr(watch, "EVENTUALLY_S", 0.5)
    with pytest.raises(AssertionError), attack_server(server):
        os.kill(server.pid, signal.SIGSTOP)
        threading.Timer(1.5, os.kill, (server.pid, signal.SIGCONT)).start()
        sleep(2)


def test_a_server_that_answers_late_is_noticed(serving: Callable[..., Served]) -> None:
    """It is not taken for a pause of the machine, which nothing else runs through either."""
    server = serving()
    with pytest.raises(AssertionError, match="/health/live took"), attack_server(server, soak=True):
        os.kill(server.pid, signal.SIGSTOP)
        threading.Timer(0.4, os.kill, (server.pid, signal.SIGCONT)).start()
        sleep(0.8)
