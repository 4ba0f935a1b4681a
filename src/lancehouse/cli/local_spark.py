"""Options and the engine (threads, or a local Spark session) that commands with jobs share."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import wraps
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import click

from lancehouse.cli.options import Command, connect, format_id, parse_properties, requires_extra, with_target

if TYPE_CHECKING:
    from lance_namespace import LanceNamespace

    from lancehouse.cli.main import CliContext
    from lancehouse.cli.output import ProgressDisplay
    from lancehouse.connection import Connection
    from lancehouse.jobs import TableJobs

LOCAL, SPARK = "local", "spark"
AGE = re.compile(r"(\d+)([smhdw])")
UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days", "w": "weeks"}


@dataclass(frozen=True)
class JobWork:
    """A catalog, and the settings of the engine that works on it."""

    app: CliContext
    target: Connection
    engine: str | None
    """`LOCAL` or `SPARK`; None to choose by the size of the data."""
    cores: int | None

    def connect_client(self) -> LanceNamespace:
        """Return a client for checks before the work begins: Spark takes seconds to start."""
        return connect(self.target)

    def format_id(self, id: Sequence[str]) -> str:
        """Format an id as the user types it."""
        return format_id(self.target, id)

    @contextmanager
    def start_jobs(
        self, words: str, measure: Callable[[], int], functions: Sequence[str] | None = None
    ) -> Iterator[TableJobs]:
        """Start an engine, yield what runs jobs on it, and show progress until the context ends.

        Args:
            words: what is being done, for the progress display.
            measure: returns the size of the data in bytes; called if the user has not chosen an engine.
            functions: functions and modules that may be imported by the names that tables have; None for all.
        """
        with self.app.output.progress(words) as progress, self.start_jobs_with(progress, measure, functions) as catalog:
            yield catalog

    @contextmanager
    def start_jobs_with(
        self, progress: ProgressDisplay, measure: Callable[[], int], functions: Sequence[str] | None = None
    ) -> Iterator[TableJobs]:
        """Do as `start_jobs`, for a command that shows more of its progress itself."""
        from lancehouse.jobs import LocalEngine, TableJobs

        if not self._needs_spark(measure):
            yield TableJobs(self.target, LocalEngine(self.cores, progress_callback(progress)), functions=functions)
            return
        progress.say("starting Spark …")
        with session(self.app, self.cores) as spark:
            from lancehouse.spark import LanceCatalog
            from lancehouse.spark.engine import watch_tasks

            catalog = LanceCatalog(spark, self.target.impl, self.target.properties, functions=functions)
            progress.say("")
            with watch_tasks(spark, progress_callback(progress)):
                yield catalog

    def _needs_spark(self, measure: Callable[[], int]) -> bool:
        from lancehouse.jobs.engine import LOCAL_BYTES

        if self.engine is not None:
            return self.engine == SPARK
        return find_spec("pyspark") is not None and measure() > LOCAL_BYTES


def progress_callback(progress: ProgressDisplay) -> Callable[[Any], None] | None:
    """Return the callback that engines report progress to; None if progress is not displayed."""
    return (lambda now: progress.count(now.done, now.total)) if progress.is_seen else None


@contextmanager
def session(app: CliContext, cores: int | None) -> Iterator[Any]:
    """Start a local Spark session that logs to the terminal only with `--debug`.

    Raises:
        InvalidInputError: Spark is not installed, or does not start.
    """
    with requires_extra("spark"):
        from lancehouse.spark.session import quiet_session
    with quiet_session(cores, shows_log=app.debug) as spark:
        yield spark


with_cores = click.option("--cores", type=click.IntRange(1), metavar="N", help="Number of cores to use; default: all.")


def with_work(command: Command) -> Command:
    """Add the options that name a catalog and those of the engine to a command, which gets both as `work`."""

    @with_target
    @click.option(
        "--engine",
        type=click.Choice([LOCAL, SPARK]),
        help="Threads of this process, or Spark; default: local up to 10 GiB of data, or without PySpark.",
    )
    @with_cores
    @wraps(command)
    def wrapper(*arguments: Any, target: Connection, engine: str | None, cores: int | None, **options: Any) -> Any:
        app: CliContext = click.get_current_context().obj
        return command(*arguments, work=JobWork(app, target, engine, cores), **options)

    return wrapper


def parse_age(ctx: click.Context, param: click.Parameter, value: str) -> timedelta:
    """Parse an age such as `12h`, `14d` or `2w`."""
    match = AGE.fullmatch(value.strip())
    if match is None:
        raise click.BadParameter(f"{value!r} is no age: write 12h, 14d or 2w", ctx, param)
    try:
        duration = timedelta(**{UNITS[match[2]]: int(match[1])})
        datetime.now(UTC) - duration
        return duration
    except OverflowError:
        raise click.BadParameter(f"{value!r} is more than a calendar has", ctx, param) from None


def parse_values(ctx: click.Context, param: click.Parameter, texts: Sequence[str]) -> dict[str, Any]:
    """Parse KEY=VALUE options; values that are JSON become numbers, booleans and so on, all others stay text."""
    return {key: _parse_value(text) for key, text in parse_properties(ctx, param, texts).items()}


def _parse_value(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


def with_values(name: str, help: str) -> Callable[[Command], Command]:
    """Add a repeatable KEY=VALUE option to a command."""
    return click.option(name, "params", metavar="KEY=VALUE", multiple=True, callback=parse_values, help=help)
