"""The command `lancehouse demo`: starts the server and Spark, runs the steps, and cleans up."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from lancehouse.cli.demo.narration import DemoOutput
    from lancehouse.cli.main import CliContext

CORES = 2
NEEDED = ("alembic", "orjson", "pyiceberg", "sqlalchemy", "uvicorn", "datafusion", "pyspark")
KEPT = "lancehouse-demo"
"""Name of the folder with the data, if it is kept."""


@click.command()
@click.option("--keep", is_flag=True, help=f"Keep the data, in a new folder {KEPT} here.")
@click.pass_obj
def demo(app: CliContext, keep: bool) -> None:
    """Show a catalog, a pipeline and a table in a few steps.

    Starts a catalog server and Spark on this machine, writes documents with embeddings into a Lance table, and reads
    them with lance, pyiceberg and Spark SQL. On a terminal the console stays up until Enter. All of it is stopped and
    removed at the end.
    """
    from lance_namespace.errors import InvalidInputError

    if missing := [name for name in NEEDED if find_spec(name) is None]:
        raise InvalidInputError(f"the demo needs {', '.join(missing)}: pip install 'lancehouse[server,spark]'")
    os.environ.setdefault("LANCE_LOG", "error")  # before pylance is imported, which logs warnings on stderr
    _bypass_proxy()
    from lancehouse.cli.demo.narration import DemoOutput

    story = DemoOutput(app)
    with _folder(keep) as folder:
        _run_demo(app, story, folder, keep=keep)
    if not story.is_read:
        app.output.record("", story.facts)


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
    from lancehouse.cli.demo import server, steps
    from lancehouse.spark.session import quiet_session

    story.title("Lancehouse: Lance tables in the catalog you already run.")
    with server.start_server(folder) as address:
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
