"""A Spark on this machine that keeps its chatter to itself."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext, redirect_stderr
from tempfile import TemporaryFile
from typing import IO, TextIO

from lance_namespace.errors import InvalidInputError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from lancehouse.spark.java import JavaNotFoundError
from lancehouse.spark.session import local

STDERR = 2
LINES = 3
"""Of what Java says when it does not start."""


@contextmanager
def quiet(
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
            with nullcontext() if shows_log else _into(log, terminal):
                spark = local(cores, options)
        except JavaNotFoundError as error:
            raise InvalidInputError(str(error)) from error
        except PySparkException as error:
            raise InvalidInputError(f"Spark does not start: {_last_words(log) or error}") from error
        try:
            yield spark
        finally:
            if before is None:
                spark.stop()


@contextmanager
def _into(log: IO[bytes], terminal: TextIO) -> Iterator[None]:
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


def _last_words(log: IO[bytes]) -> str:
    log.seek(0)
    lines = log.read().decode(errors="replace").strip().splitlines()
    return "; ".join(line.strip(" .") for line in lines[-LINES:])
