from __future__ import annotations

import os
import signal
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
from pyspark.sql import SparkSession

from lancehouse.spark import session as sessions


class Started:
    """Stands for a session; tells whether it was stopped."""

    is_stopped = False

    def stop(self) -> None:
        self.is_stopped = True


@pytest.fixture
def start_session(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[], object]], Started]:
    """Has `quiet` start nothing, and do something meanwhile."""

    def start(meanwhile: Callable[[], object]) -> Started:
        session = Started()

        def local(*_: object) -> Started:
            meanwhile()
            return session

        monkeypatch.setattr(sessions, "local", local)
        monkeypatch.setattr(SparkSession, "getActiveSession", lambda: None)
        return session

    return start


def test_an_interrupt_waits_until_spark_has_started(start_session: Callable[[Callable[[], object]], Started]) -> None:
    before = signal.getsignal(signal.SIGINT)
    reached: list[str] = []

    def meanwhile() -> None:
        os.kill(os.getpid(), signal.SIGINT)
        reached.append("Java is up")

    session = start_session(meanwhile)
    with pytest.raises(KeyboardInterrupt), sessions.quiet_session():
        reached.append("work")
    assert reached == ["Java is up"]
    assert session.is_stopped
    assert signal.getsignal(signal.SIGINT) is before


def test_what_spark_does_about_interrupts_stays(start_session: Callable[[Callable[[], object]], Started]) -> None:
    before = signal.getsignal(signal.SIGINT)
    start_session(lambda: signal.signal(signal.SIGINT, signal.SIG_IGN))
    try:
        with sessions.quiet_session():
            assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)


def test_other_threads_start_it_too(start_session: Callable[[Callable[[], object]], Started]) -> None:
    session = start_session(lambda: None)

    def work() -> None:
        with sessions.quiet_session():
            pass

    with ThreadPoolExecutor(1) as pool:
        pool.submit(work).result()
    assert session.is_stopped
