from __future__ import annotations

import os
import signal
import traceback
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import pytest
from lance_namespace.errors import InvalidInputError
from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from lancehouse.pipelines.pipeline import open_session
from lancehouse.pipelines.spec import SparkPart
from lancehouse.spark import session as sessions
from lancehouse.spark.java import JavaNotFoundError


class Started:
    """Stands for a session; tells whether it was stopped."""

    is_stopped = False
    version = "4.2.0"

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


class Builder:
    """Stands for the builder of sessions; starting one fails, or gives one."""

    def __init__(self, outcome: object) -> None:
        self._outcome = outcome

    def __getattr__(self, name: str) -> Callable[..., Builder]:
        return lambda *_, **__: self

    def getOrCreate(self) -> object:  # noqa: N802 - Spark's name
        if isinstance(self._outcome, Exception):
            raise self._outcome
        return self._outcome

    create = getOrCreate


def start_with(monkeypatch: pytest.MonkeyPatch, outcome: object) -> None:
    monkeypatch.setattr(SparkSession, "builder", Builder(outcome))
    for name in ("JAVA_HOME", "PATH"):
        monkeypatch.setenv(name, "/nowhere")
    monkeypatch.delenv("JAVA_HOME")


def no_java() -> Path:
    raise JavaNotFoundError("no Java 17 or newer was found")


def test_a_cluster_without_java_here(monkeypatch: pytest.MonkeyPatch) -> None:
    start_with(monkeypatch, "a session")
    monkeypatch.setattr(sessions, "find_java", no_java)
    with pytest.raises(InvalidInputError, match="no Java 17"):
        sessions.start_session("spark://host:7077", "name")
    assert sessions.start_session("sc://host", "name") == "a session"


def test_why_spark_does_not_start(monkeypatch: pytest.MonkeyPatch) -> None:
    start_with(monkeypatch, java_error("Could not parse Master URL: 'odd'"))
    monkeypatch.setattr(sessions, "find_java", lambda: Path("/java"))
    with pytest.raises(InvalidInputError, match=r"^Spark does not start on odd: Could not parse Master URL: 'odd'$"):
        sessions.start_session("odd", "name")
    start_with(monkeypatch, PySparkException("refused\nat x"))
    with pytest.raises(InvalidInputError, match=r"^Spark does not start on yarn: refused$"):
        sessions.start_session("yarn", "name")


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("sc://host/;token=s3cr3t==", r"^sc://host cannot be used: .* Parameter '\*\*\*' should be"),
        ("sc://host/;s3cr3t", r"^sc://host cannot be used: .* Parameter '\*\*\*' should be"),
        ("sc://host:x/;token=s3cr3t", "^sc://host:x cannot be used: Port could not be cast"),
    ],
)
def test_a_connect_url_that_is_wrong(url: str, message: str) -> None:
    with pytest.raises(InvalidInputError, match=message) as started:
        sessions.start_session(url, "name")
    with pytest.raises(InvalidInputError, match=message) as opened, sessions.remote_session(url):
        pass
    for raised in (started, opened):
        assert "s3cr3t" not in "".join(traceback.format_exception(raised.value))


def java_error(message: str) -> Py4JJavaError:
    error = Py4JJavaError.__new__(Py4JJavaError)
    error.java_exception = SimpleNamespace(getMessage=lambda: message)
    return error


def test_an_old_connect_server_is_left_again(monkeypatch: pytest.MonkeyPatch) -> None:
    session = Started()
    session.version = "3.5.0"
    start_with(monkeypatch, session)
    with pytest.raises(InvalidInputError, match="too old"), sessions.remote_session("sc://host"):
        pass
    assert session.is_stopped


def test_a_session_that_was_there_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    session = Started()
    start_with(monkeypatch, session)
    for active, is_stopped in ((session, False), (None, True)):
        monkeypatch.setattr(SparkSession, "getActiveSession", lambda active=active: active)
        with open_session(SparkPart(master="sc://host")) as opened:
            assert opened is session
        assert session.is_stopped is is_stopped


def test_other_threads_start_it_too(start_session: Callable[[Callable[[], object]], Started]) -> None:
    session = start_session(lambda: None)

    def work() -> None:
        with sessions.quiet_session():
            pass

    with ThreadPoolExecutor(1) as pool:
        pool.submit(work).result()
    assert session.is_stopped
