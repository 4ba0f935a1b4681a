"""The command `lancehouse demo`: starts a server and Spark, runs the steps, shows what they say, and cleans up."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from time import monotonic, sleep
from typing import TYPE_CHECKING, Any

import click

from lancehouse.cli.lazy_commands import KINDS

if TYPE_CHECKING:
    from lancehouse.cli.main import CliContext
    from lancehouse.cli.output import OutputColumn, ProgressDisplay, Row

CORES = 2
NEEDED = ("alembic", "orjson", "pyiceberg", "sqlalchemy", "uvicorn", "datafusion", "pyspark")
KEPT = "lancehouse-demo"
"""Name of the folder with the data, if it is kept."""
INDENT = 2
START_S, STOP_S = 60.0, 20.0
LOOK_S = 0.05
ERROR = "Error: "
OURS = "LANCEHOUSE_"
"""Prefix of environment variables for the user's own server, which the demo's server must not see."""

SERVE = """
import os
from lancehouse.server.run import die_with
die_with(lambda: os.read(0, 1))
from lancehouse.cli.main import main
main()
"""
"""Program of the child process; it ends when the other end of its standard input is closed."""


@click.command()
@click.option("--keep", is_flag=True, help=f"Keep the data, in a new folder {KEPT} here.")
@click.pass_obj
def demo(app: CliContext, keep: bool) -> None:
    """Show a catalog, a pipeline and a table in a few steps.

    Starts a catalog server and Spark on this machine, writes documents with embeddings into a Lance table, and reads
    them with lance, pyiceberg and Spark SQL. On a terminal, the console stays open until you press
    Enter. Then everything is stopped and removed.
    """
    from lance_namespace.errors import InvalidInputError

    if missing := [name for name in NEEDED if find_spec(name) is None]:
        raise InvalidInputError(f"the demo needs {', '.join(missing)}: pip install 'lancehouse[server,spark]'")
    os.environ.setdefault("LANCE_LOG", "error")  # before pylance is imported, which logs warnings on stderr
    _bypass_proxy()
    story = DemoOutput(app)
    with _folder(keep) as folder:
        _run_demo(app, story, folder, keep=keep)
    if not story.is_read:
        app.output.record(story.facts)


def _bypass_proxy() -> None:
    """Exclude the demo's own server from the proxy that the environment may set."""
    for name in ("no_proxy", "NO_PROXY"):
        os.environ[name] = ",".join(filter(None, (os.environ.get(name), "127.0.0.1")))


@contextmanager
def _folder(keep: bool) -> Iterator[Path]:
    if not keep:
        with TemporaryDirectory(prefix="lancehouse-demo-") as folder:
            yield Path(folder)
        return
    from lance_namespace.errors import InvalidInputError

    kept = Path(KEPT).absolute()
    try:
        kept.mkdir()
    except OSError as error:
        raise InvalidInputError(f"{kept} cannot be made: {error.strerror}; remove it, or go elsewhere") from None
    yield kept


def _run_demo(app: CliContext, story: DemoOutput, folder: Path, *, keep: bool) -> None:
    from lancehouse.cli.demo import steps
    from lancehouse.spark.session import quiet_session

    story.title("Lancehouse: Lance tables in the catalog you already run.")
    with start_server(folder) as address:
        with ExitStack() as stack:
            with story.step("Start a catalog server (lancehouse serve) and Spark") as progress:
                progress.say("starting Spark")
                options = {"spark.sql.warehouse.dir": str(folder / "spark")}
                spark = stack.enter_context(quiet_session(CORES, options, shows_log=app.debug))
                uri = address()
            story.facts["console"] = uri
            story.say(f"An Iceberg REST catalog is at {uri}/iceberg, on SQLite.")
            steps.run_all(steps.DemoEnvironment(story, f"{uri}/iceberg", folder, spark))
        _show_next_steps(story, uri, folder if keep else None)


def _show_next_steps(story: DemoOutput, uri: str, kept: Path | None) -> None:
    is_interactive = story.is_seen and sys.stdin.isatty()
    story.line()
    story.title("Next")
    for command in _next_commands(kept):
        story.line(f"  {command}")
    story.line()
    if not is_interactive:
        story.line(f"The console was at {uri}; on a terminal it stays up until Enter.")
        return
    story.line(f"The same in a browser, until you press Enter: {uri}")
    _wait_for_enter()


def _next_commands(kept: Path | None) -> list[str]:
    """Return commands to try next: start a permanent server, ingest files into it, and ask for them."""
    program, at = _program(), "--property endpoint=http://127.0.0.1:8181/iceberg"
    served = f" --db sqlite:///{kept / 'catalog.db'}" if kept else ""
    return [
        f"{program} serve{served}",
        f"{program} namespace create main.db {at}",
        f"{program} ingest FILES --table main.db.NAME {at}",
        f'{program} sql "SELECT * FROM main.db.NAME" {at}',  # noqa: S608
    ]


def _program() -> str:
    """Return how the user calls this program from the current folder."""
    called = Path(sys.argv[0]).absolute()
    is_near = called.name == "lancehouse" and called.is_relative_to(Path.cwd())
    return str(called.relative_to(Path.cwd())) if is_near else "lancehouse"


def _wait_for_enter() -> None:
    """Wait for Enter, Ctrl-C, or the end of standard input."""
    try:
        sys.stdin.readline()
    except KeyboardInterrupt:
        click.echo()


class DemoOutput:
    """Prints the demo as text while it runs, or collects `facts` for JSON."""

    def __init__(self, app: CliContext) -> None:
        self.facts: dict[str, Any] = {}
        """Results of the steps, by name."""
        self.is_read = app.kind == KINDS[0]
        self._output = app.output
        from rich.console import Console

        self._console = Console(highlight=False, emoji=False, quiet=not self.is_read)
        self._steps = 0

    @property
    def is_seen(self) -> bool:
        """Whether the output is a terminal."""
        return self.is_read and self._console.is_terminal

    def title(self, words: str) -> None:
        """Print a line in bold."""
        self._console.print(words, style="bold", markup=False)

    @contextmanager
    def step(self, words: str) -> Iterator[ProgressDisplay]:
        """Print the heading of a step, and show its progress."""
        self._steps += 1
        self._console.print(f"\n[bold cyan]{self._steps}[/]", end=" ")
        self._console.print(words, style="bold", markup=False)
        with self._output.progress("working") as progress:
            yield progress

    def say(self, words: str) -> None:
        """Print a sentence about the result."""
        from rich.padding import Padding
        from rich.text import Text

        self._console.print(Padding(Text(words), (0, 0, 0, INDENT)))

    def show(self, columns: Sequence[OutputColumn], rows: Sequence[Row], words: str) -> None:
        """Print a result as a table."""
        if self.is_read:
            self._output.table(columns, rows, {}, words)

    def line(self, words: str = "") -> None:
        """Print a line for copying, without wrapping it."""
        self._console.print(words, markup=False, soft_wrap=True)


# The server: `lancehouse serve` in a child process that never outlives the demo


@contextmanager
def start_server(folder: Path) -> Iterator[Callable[[], str]]:
    """Start the server on a free local port, and stop it at the end of the context.

    The context yields a function that waits until the server is ready, and returns its address.

    Args:
        folder: for its database, warehouse and log.

    Raises:
        InternalError: it does not start; the message says why.
    """
    log = folder / "serve.log"
    database = f"sqlite:///{folder.absolute() / 'catalog.db'}"
    command = [sys.executable, "-c", SERVE, "serve", "--port", "0", "--log-level", "error", "--db", database]
    environment = {key: value for key, value in os.environ.items() if not key.startswith(OURS)}
    with log.open("wb") as output:
        process = subprocess.Popen(  # noqa: S603
            command,
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=subprocess.STDOUT,
            cwd=folder,
            env=environment,
            start_new_session=True,  # Ctrl-C must reach only the demo, which then stops the server
        )
    try:
        yield lambda: _wait_for_address(process, log)
    finally:
        _stop(process)


def _wait_for_address(process: subprocess.Popen[bytes], log: Path) -> str:
    deadline = monotonic() + START_S
    while process.poll() is None and monotonic() < deadline:
        if match := re.search(r"^ready .*?(https?://\S+)/iceberg", log.read_text(errors="replace"), re.MULTILINE):
            return match[1]
        sleep(LOOK_S)
    lines = log.read_text(errors="replace").strip().splitlines()
    why = next((line.removeprefix(ERROR) for line in lines if line.startswith(ERROR)), "".join(lines[-1:]))
    from lance_namespace.errors import InternalError

    raise InternalError(f"the catalog server did not start: {why or 'it says nothing'}")


def _stop(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.communicate(timeout=STOP_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
