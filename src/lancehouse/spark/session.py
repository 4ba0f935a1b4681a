"""Start a local Spark session, with its log or quietly, and check that a session can be used."""

from __future__ import annotations

import logging
import os
import re
import shutil
import signal
import sys
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext, redirect_stderr
from tempfile import TemporaryFile
from types import FrameType
from typing import IO, Any, TextIO

import pyarrow as pa
from lance_namespace.errors import InvalidInputError
from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]
from pyspark import __version__ as version
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from lancehouse.schema.spark_rows import to_spark_rows
from lancehouse.secrets import HIDDEN
from lancehouse.spark.java import JavaNotFoundError, find_java

DRIVER_BYTES = "LANCEHOUSE_DRIVER_BYTES"
"""Environment variable with the number of bytes that a question may read to be answered by the driver itself."""
CONNECT = "sc://"
"""Scheme of the URL of a Spark Connect server."""
OLDEST = (4, 2)
"""The oldest version of Spark that is supported."""


def local(cores: int | None = None, options: Mapping[str, str] | None = None) -> SparkSession:
    """Return the active session, or start a new one on this machine.

    Args:
        cores: number of cores to use, all by default.
        options: settings of Spark.
    """
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ["JAVA_HOME"] = str(find_java())
    builder = SparkSession.builder.master(f"local[{cores or '*'}]").appName("lancehouse")
    defaults = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.sql.execution.arrow.pyspark.enabled": "true",
    }
    for key, value in {**defaults, **(options or {})}.items():
        builder = builder.config(key, value)
    with warnings.catch_warnings():
        # Lance warns of every fork, and PySpark forks a process to start the JVM.
        warnings.filterwarnings("ignore", "lance is not fork-safe")
        return builder.getOrCreate()


def start_session(master: str, name: str, options: Mapping[str, str] | None = None) -> SparkSession:
    """Return the active session, or start one on a cluster.

    Args:
        master: where Spark runs: `spark://…`, `yarn`, `local[4]`, or a Spark Connect server, `sc://HOST:PORT`.
        name: name of the application.
        options: settings of Spark.

    Raises:
        InvalidInputError: Spark does not start; the message says why, without the parameters of a Connect URL.
    """
    builder = SparkSession.builder.appName(name).config(map=dict(options or {}))
    try:
        if master.startswith(CONNECT):  # Java and the workers are the server's
            return builder.remote(master).getOrCreate()
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        if "JAVA_HOME" not in os.environ and shutil.which("java") is None:
            os.environ["JAVA_HOME"] = str(find_java())
        return builder.master(master).getOrCreate()
    except JavaNotFoundError as error:
        raise InvalidInputError(str(error)) from error
    except (PySparkException, ValueError) as error:
        if master.startswith(CONNECT):
            raise _connect_error(master, error) from None
        raise InvalidInputError(f"Spark does not start on {master}: {str(error).splitlines()[0]}") from error
    except Py4JJavaError as error:
        raise InvalidInputError(f"Spark does not start on {master}: {error.java_exception.getMessage()}") from error


def _connect_error(url: str, error: Exception) -> InvalidInputError:
    """Return the error for a Spark Connect URL that cannot be used, without its parameters, which may hold a token.

    Spark's own message may repeat a parameter: it refuses a token that ends with `=`, as Base64 does.
    """
    place, *parameters = url.split(";")
    reason = str(error).strip() or type(error).__name__
    for parameter in sorted(filter(None, parameters), key=len, reverse=True):
        reason = reason.replace(parameter, HIDDEN)
    return InvalidInputError(f"{place.rstrip('/')} cannot be used: {reason}")


def check_session(spark: SparkSession) -> None:
    """Check that a session is one, and that its Spark is new enough.

    Raises:
        InvalidInputError: it is not.
    """
    spark_version = getattr(spark, "version", None)
    numbers = re.match(r"(\d+)\.(\d+)", str(spark_version))
    if numbers is None:
        raise InvalidInputError(f"a SparkSession is needed, not {type(spark).__name__}")
    if (int(numbers[1]), int(numbers[2])) < OLDEST:
        oldest = ".".join(map(str, OLDEST))
        raise InvalidInputError(
            f"Spark {spark_version} is too old: {oldest} or newer is needed (PySpark here is {version})"
        )


def is_set(spark: SparkSession, name: str) -> bool:
    """Return whether a setting of Spark SQL, such as `caseSensitive`, is true; Spark takes `TRUE` for it too."""
    # Without a default of our own, which would come before that of Spark: `ansi.enabled` is true unless it is set.
    return str(spark.conf.get(f"spark.sql.{name}")).lower() == "true"


def name_normalizer(spark: SparkSession) -> Callable[[str], str]:
    """Return a function that brings names into the form in which Spark compares them.

    The setting is read once: each read is a call of the JVM, or a request to a Connect server.
    """
    return str if is_set(spark, "caseSensitive") else str.lower


def default_driver_bytes() -> int:
    """Return how many bytes a question may read to be answered by the driver itself.

    Raises:
        InvalidInputError: the environment variable is no number.
    """
    text = os.environ.get(DRIVER_BYTES, str(64 << 20))
    if not text.isdecimal():
        raise InvalidInputError(f"{DRIVER_BYTES} must be a number of bytes, not {text!r}")
    return int(text)


def to_local_frame(spark: SparkSession, rows: pa.Table) -> DataFrame:
    """Return a DataFrame of rows that are in the memory of this process, in their order."""
    converter = to_spark_rows(rows.schema)
    batches = rows.combine_chunks().to_batches()
    if not batches:  # Spark cannot convert columns without any chunk
        batches = [pa.RecordBatch.from_arrays([pa.nulls(0, field.type) for field in rows.schema], schema=rows.schema)]
    table = pa.Table.from_batches(map(converter.convert_batch, batches), converter.schema)
    return spark.createDataFrame(table, to_struct(converter.struct))


def to_struct(json: Mapping[str, Any]) -> StructType:
    """Convert the JSON of a Spark schema to a StructType."""
    return StructType.fromJson(dict(json))


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
    if not shows_log:
        logging.getLogger("SQLQueryContextLogger").disabled = True  # it prints stack traces of errors that are raised
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
def remote_session(url: str) -> Iterator[SparkSession]:
    """Connect to a Spark Connect server; the session is closed at the end.

    Args:
        url: `sc://HOST:PORT`, with parameters as Spark documents them.

    Raises:
        InvalidInputError: the server cannot be reached. The message has no parameters, which may hold a token.
    """
    try:
        spark = SparkSession.builder.remote(url).create()
        check_session(spark)
    except (PySparkException, ValueError) as error:
        raise _connect_error(url, error) from None
    except InvalidInputError:
        spark.stop()
        raise
    try:
        yield spark
    finally:
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
