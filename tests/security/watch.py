"""Watch a server while it is attacked: it must stay up, stay small, and go on answering."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from pathlib import Path
from time import sleep
from urllib.parse import urlsplit

from tests.live.gateways import ask, until
from tests.servers.lancehouse import Served

MOST_MB = 600
"""What all processes of the server may hold together, at any moment of an attack."""
SOON_S = 0.1
"""Within which /health/live answers, on a machine that is otherwise idle (`--soak`)."""
EVENTUALLY_S = 30
"""Within which it answers on a busy machine: a server that hangs does not."""
EVERY_S = 0.02
PAUSE_S = 0.05
"""What keeps a process that only sleeps from running for longer is a pause of the machine: others share its cores."""
PAGE_MB = os.sysconf("SC_PAGE_SIZE") / 2**20


PROBE = """
import json, sys, threading, time
from http.client import HTTPConnection, HTTPException

address, (patience, every_s, pause_s) = sys.argv[1], map(float, sys.argv[2:])
over = threading.Event()

def wait():
    sys.stdin.read()
    over.set()

def notice_pauses():
    last = time.monotonic()
    while True:
        time.sleep(0.004)
        now = time.monotonic()
        if now - last > pause_s:
            pauses.append((last, now))
        last = now

def wait_without_pauses(began, ended):
    paused = sum(max(0, min(ended, end) - max(began, begin)) for begin, end in pauses)
    return ended - began - paused

pauses = []
threading.Thread(target=wait, daemon=True).start()
threading.Thread(target=notice_pauses, daemon=True).start()
waits, failures = [], []
is_ready = False
while not over.is_set() or not (waits or failures):
    began = time.monotonic()
    connection = HTTPConnection(address, timeout=patience)
    try:
        connection.request("GET", "/health/live")
        status = connection.getresponse().status
    except (OSError, HTTPException) as error:
        failures.append(f"/health/live: {error!r}")
    else:
        waits.append((began, time.monotonic()))
        if status != 200:
            failures.append(f"/health/live answered {status}")
    finally:
        connection.close()
    if not is_ready:
        is_ready, waits = True, []
        print("ready", flush=True)
    time.sleep(every_s)
print(json.dumps([[wait_without_pauses(*each) for each in waits], failures]))
"""
"""Asks /health/live again and again, until its input ends.

Pauses of the whole machine, which a thread that only sleeps notices too, are not the server's, and are left out.
"""


@dataclass(slots=True)
class Watch:
    """What was seen of a server."""

    server: Served
    started: frozenset[int] = frozenset()
    most_mb: float = MOST_MB
    peak_mb: float = 0
    waits_s: list[float] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)


@contextmanager
def attack_server(server: Served, *, soak: bool = False, most_mb: float = MOST_MB) -> Iterator[Watch]:
    """Attack a server in the block; fail unless it withstands.

    Its processes must live on and hold less than `most_mb` together at every moment; `/health/live` must answer all the
    time, in the soak run within 100 ms.
    """
    # A server accepts connections while it still loads its libraries; that is not what an attack does to it.
    until(lambda: ask(server, "GET", "/health/ready").status == 200, "the server is ready")
    watch = Watch(server, frozenset(_processes(server)), most_mb)
    over = threading.Event()
    measuring = threading.Thread(target=_measure, args=(watch, over))
    # In a process of its own: threads of the attacker would make it wait for themselves.
    command = [sys.executable, "-c", PROBE, urlsplit(server.uri).netloc, *map(str, (EVENTUALLY_S, EVERY_S, PAUSE_S))]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as probe:
        assert probe.stdout is not None
        probe.stdout.readline()
        measuring.start()
        try:
            with _elsewhere() if soak else nullcontext():
                yield watch
        finally:
            over.set()
            measuring.join()
            told, _ = probe.communicate()
            watch.waits_s, watch.failures = json.loads(told)
    assert watch.started <= set(_processes(server)), "a process of the server died"
    assert not watch.failures, watch.failures[:3]
    assert watch.waits_s, "/health/live was never asked"
    assert watch.peak_mb < most_mb, f"the server held {watch.peak_mb:.0f} MB"
    limit_s = SOON_S if soak else EVENTUALLY_S
    assert max(watch.waits_s) < limit_s, f"/health/live took {max(watch.waits_s):.2f} s"


@contextmanager
def _elsewhere() -> Iterator[None]:
    """Leave the processor to the server: a real attacker is on another machine, and takes none of it."""
    before = os.getpriority(os.PRIO_PROCESS, 0)
    os.setpriority(os.PRIO_PROCESS, 0, 19)  # of this thread, and of those that it starts
    try:
        yield
    finally:
        with suppress(PermissionError):
            os.setpriority(os.PRIO_PROCESS, 0, before)


def _measure(watch: Watch, over: threading.Event) -> None:
    while not over.is_set():
        processes = _processes(watch.server)
        # Pages that several processes share are counted once only where it matters: that stops the server for a while.
        held = sum(map(_resident_mb, processes))
        if held > watch.most_mb:
            held = sum(map(_proportional_mb, processes))
        watch.peak_mb = max(watch.peak_mb, held)
        sleep(EVERY_S)


def _processes(server: Served) -> list[int]:
    """The server and all that it started; the shell that holds them is not one of them."""
    found, waiting = [], [server.pid]
    while waiting:
        pid = waiting.pop()
        found.append(pid)
        with suppress(OSError):
            for task in Path(f"/proc/{pid}/task").iterdir():
                waiting += map(int, (task / "children").read_text().split())
    return [pid for pid in found if Path(f"/proc/{pid}").exists()]


def _resident_mb(pid: int) -> float:
    """What a process holds; a page that several share counts for each of them."""
    with suppress(OSError, IndexError):
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * PAGE_MB
    return 0.0


def _proportional_mb(pid: int) -> float:
    """What a process holds; a page that several share counts in parts."""
    with suppress(OSError, IndexError):
        return int(Path(f"/proc/{pid}/smaps_rollup").read_text().partition("\nPss:")[2].split()[0]) / 1024
    return 0.0
