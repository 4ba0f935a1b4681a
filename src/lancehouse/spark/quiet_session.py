"""A Spark on this machine that keeps its chatter to itself."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext, redirect_stderr
from tempfile import TemporaryFile
from types import FrameType
from typing import IO, TextIO

from lance_namespace.errors import InvalidInputError
from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from lancehouse.spark.java import JavaNotFoundError
from lancehouse.spark.session import local

STDERR = 2
LINES = 3
"""Of what Java says when it does not start."""


@contextmanager
def quiet_session(
    cores: int | None = None, options: Mapping[str, str] | None = None, *, shows_log: bool = False
) -> Iterator[SparkSession]:
    """The session that is active, else a new one as `local` makes it, which is stopped at the end.

    What Java and Spark's workers say on stderr goes nowhere, as long as they live.

    Args:
        cores: how many to use, by default all.
        options: settings of Spark.
        shows_log: whether it goes to the terminal after all.

    Raises:
        InvalidInputError: there is no Java for it, or it does not start; says why.
    """
    before = SparkSession.getActiveSession()
    with TemporaryFile() as log, os.fdopen(os.dup(STDERR), "w", buffering=1) as terminal:
        try:
            with _defer_interrupts() as interrupts, nullcontext() if shows_log else _redirect_to(log, terminal):
                spark = local(cores, options)
        except JavaNotFoundError as error:
            raise InvalidInputError(str(error)) from error
        except PySparkException as error:
            raise InvalidInputError(f"Spark does not start: {_read_last_lines(log) or error}") from error
        except Py4JJavaError as error:
            raise InvalidInputError(f"Spark does not start: {error.java_exception.getMessage()}") from error
        try:
            if interrupts:
                raise KeyboardInterrupt
            yield spark
        finally:
            if before is None:
                spark.stop()


@contextmanager
def _defer_interrupts() -> Iterator[list[int]]:
    """Have Ctrl-C wait until the block has ended; the block's list tells whether it came.

    PySpark, interrupted while Java starts, takes away the folder in which Java wants to say where it listens. Java then
    neither works nor ends.
    """
    signals: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield signals
        return

    def hold(number: int, _frame: FrameType | None) -> None:
        signals.append(number)

    before = signal.signal(signal.SIGINT, hold)
    try:
        yield signals
    finally:
        if signal.getsignal(signal.SIGINT) is hold:  # else Spark is up, and has a way of its own
            signal.signal(signal.SIGINT, before)


@contextmanager
def _redirect_to(log: IO[bytes], terminal: TextIO) -> Iterator[None]:
    """Have processes that are started inside write to a file what they would write to stderr; this one goes on there.

    Args:
        log: the file.
        terminal: another way to stderr as it is.
    """
    sys.stderr.flush()
    os.dup2(log.fileno(), STDERR)
    try:
        with redirect_stderr(terminal) if sys.stderr is sys.__stderr__ else nullcontext():
            yield
    finally:
        os.dup2(terminal.fileno(), STDERR)


def _read_last_lines(log: IO[bytes]) -> str:
    log.seek(0)
    lines = log.read().decode(errors="replace").strip().splitlines()
    return "; ".join(line.strip(" .") for line in lines[-LINES:])
