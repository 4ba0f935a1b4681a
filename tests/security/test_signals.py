"""Stops and hangs: what was begun is finished, the rest holds nobody up, and a worker that hangs is replaced."""

from __future__ import annotations

import os
import signal
import socket
import ssl
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest
import trustme

from lancehouse.server.workers import LONGEST_TICK_S, SILENT_S, SilenceTracker
from tests.cli.test_serve import Running, have_ended, serve
from tests.waiting import wait_until

BODY = b'{"namespace": ["n"]}'
HEAD = f"POST /iceberg/v1/main/namespaces HTTP/1.1\r\nhost: localhost\r\ncontent-length: {len(BODY)}\r\n\r\n".encode()
NEVER_S = "3000"
"""A server that waited for the end of this time would fail the test."""
ENDS_S = 90
BEFORE_TLS_GIVES_UP_S = 28
"""A client that does not answer a close is waited for 30 s by the TLS layer itself, one in the handshake 60 s."""


@pytest.fixture
def tls(tmp_path: Path) -> tuple[ssl.SSLContext, tuple[str, ...]]:
    """How clients trust a server, and the options that make it speak TLS."""
    authority = trustme.CA()
    certificate = authority.issue_cert("127.0.0.1")
    certificate.cert_chain_pems[0].write_to_path(tmp_path / "cert.pem")
    certificate.private_key_pem.write_to_path(tmp_path / "key.pem")
    context = ssl.create_default_context()
    authority.configure_trust(context)
    return context, ("--tls-cert", str(tmp_path / "cert.pem"), "--tls-key", str(tmp_path / "key.pem"))


@pytest.fixture
def connections() -> Iterator[ExitStack]:
    """Closes connections after the test."""
    with ExitStack() as stack:
        yield stack


def connect(running: Running) -> socket.socket:
    return socket.create_connection(("127.0.0.1", running.client.port), timeout=ENDS_S)


def shake_hands(context: ssl.SSLContext, connection: socket.socket) -> ssl.SSLSocket:
    return context.wrap_socket(connection, server_hostname="127.0.0.1")


@pytest.mark.parametrize("count", ["1", "2"])
def test_handshakes_do_not_hold_up_a_stop(
    tmp_path: Path, tls: tuple[ssl.SSLContext, tuple[str, ...]], connections: ExitStack, count: str
) -> None:
    context, options = tls
    with serve(tmp_path, *options, "--workers", count, "--stop-timeout", NEVER_S) as running:
        for _ in range(10):  # they never say anything
            connections.enter_context(connect(running))
        for _ in range(4):  # they never ask for anything, nor answer when the server closes
            connections.enter_context(shake_hands(context, connect(running)))
        late = [connections.enter_context(connect(running)) for _ in range(10)]
        live = connections.enter_context(shake_hands(context, connect(running)))
        live.sendall(HEAD + BODY[:5])
        time.sleep(0.5)
        running.process.terminate()
        time.sleep(0.5)
        for connection in late:
            with suppress(OSError):  # it is closed at once, or soon
                connections.enter_context(shake_hands(context, connection))
        live.sendall(BODY[5:])
        assert live.recv(1000).startswith(b"HTTP/1.1 200 ")
        assert running.process.wait(BEFORE_TLS_GIVES_UP_S) == 0
    assert "cut" not in running.log.read_text()


def test_a_request_that_does_not_finish_in_time_is_cut(tmp_path: Path, connections: ExitStack) -> None:
    with serve(tmp_path, "--stop-timeout", "1") as running:
        connections.enter_context(connect(running)).sendall(HEAD + BODY[:5])
        time.sleep(0.5)
        running.process.terminate()
        assert running.process.wait(ENDS_S) == 0
    assert "1 requests did not finish in time" in running.log.read_text()


def test_what_counts_as_silence() -> None:
    silence = SilenceTracker()
    for _ in range(int(SILENT_S / 0.5)):
        assert silence.record_round([1, 2], {1}, 0.5) == []
    assert silence.record_round([1, 2], {1}, 0.5) == [2]
    assert silence.record_round([1, 2], {1, 2}, 0.5) == []
    # The parent itself was stopped for an hour, or the machine slept.
    assert silence.record_round([1, 2], set(), 3600) == []
    assert silence.record_round([3], set(), 0.1) == []
    for _ in range(int(SILENT_S / LONGEST_TICK_S)):
        hanging = silence.record_round([3], set(), 3600)
    assert hanging == [3]


@pytest.fixture
def impatient(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The server takes a worker to hang after 4 seconds instead of 20."""
    program = tmp_path / "lancehouse"
    lines = (
        f"#!{sys.executable}",
        "from lancehouse.cli.main import main",
        "from lancehouse.server import workers",
        "workers.SILENT_S = 4.0",
        "main()",
    )
    program.write_text("\n".join(lines))
    program.chmod(0o700)
    monkeypatch.setattr("tests.cli.test_serve.PROGRAM", program)


def replace_a_worker_that_hangs(folder: Path) -> None:
    with serve(folder, "--workers", "2") as running:
        hangs = running.workers()[0]
        os.kill(hangs, signal.SIGSTOP)
        wait_until(lambda: have_ended([hangs]))
        wait_until(lambda: len(running.workers()) == 2)
        for _ in range(20):
            assert running.client.iceberg("GET", "config").status == 200
    assert f"worker {hangs} did not respond" in running.log.read_text()


@pytest.mark.usefixtures("impatient")
def test_a_worker_that_hangs_is_replaced(tmp_path: Path) -> None:
    replace_a_worker_that_hangs(tmp_path)


@pytest.mark.soak
def test_a_worker_that_hangs_is_replaced_in_the_time_that_users_have(tmp_path: Path) -> None:
    replace_a_worker_that_hangs(tmp_path)


@pytest.mark.usefixtures("impatient")
def test_a_worker_that_finishes_its_last_request_is_not_taken_to_hang(tmp_path: Path, connections: ExitStack) -> None:
    with serve(tmp_path, "--workers", "2", "--stop-timeout", NEVER_S) as running:
        live = connections.enter_context(connect(running))
        live.sendall(HEAD + BODY[:5])
        time.sleep(0.5)
        for worker in running.workers():
            os.kill(worker, signal.SIGTERM)
        time.sleep(8)
        live.sendall(BODY[5:])
        assert live.recv(1000).startswith(b"HTTP/1.1 200 ")
    assert "did not respond" not in running.log.read_text()
