"""Start a local Spark session without its log output, for the command line."""

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
"""Number of lines of Java's output that an error message quotes."""


@contextmanager
def quiet_session(
    cores: int | None = None, options: Mapping[str, str] | None = None, *, shows_log: bool = False
) -> Iterator[SparkSession]:
    """Return the active session, or a new one as `local` makes it, which is stopped at the end.

    What Java and Spark's workers write to stderr is discarded, as long as they live.

    Args:
        cores: number of cores to use, all by default.
        options: settings of Spark.
        shows_log: let the output go to the terminal.

    Raises:
        InvalidInputError: there is no suitable Java, or Spark does not start; the message says why.
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
    """Delay Ctrl-C until the block has ended; the list that it yields shows whether one came.

    If PySpark is interrupted while Java starts, it removes the folder in which Java is to report its port. Java then
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
        if signal.getsignal(signal.SIGINT) is hold:  # else Spark is up, and has installed its own handler
            signal.signal(signal.SIGINT, before)


@contextmanager
def _redirect_to(log: IO[bytes], terminal: TextIO) -> Iterator[None]:
    """Redirect the stderr of processes that are started inside to a file; that of this process stays on the terminal.

    Args:
        log: the file.
        terminal: a duplicate of the current stderr.
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
