"""What the examples share: they print a line for each step, with a progress bar, and stop what they started."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from lance_namespace import CreateNamespaceRequest, connect
from rich.console import Console, RenderableType
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn

from lancehouse.spark import LanceCatalog
from lancehouse.spark.engine import watch_tasks
from lancehouse.spark.session import quiet_session
from tests.servers.lancehouse import start_lancehouse

CORES = 2


class Story:
    """The output of an example on the terminal, and the server and Spark that it starts."""

    def __init__(self, title: str, folder: Path, stack: ExitStack) -> None:
        self.folder = folder
        """Folder for files, which is removed at the end."""
        self._console = Console(highlight=False)
        self._stack = stack
        self._catalog: LanceCatalog | None = None
        self._steps = 0
        self._console.print(f"[bold]{title}[/]")

    @property
    def is_seen(self) -> bool:
        """Whether the output goes to a terminal."""
        return self._console.is_terminal

    def catalog(self, namespace: str) -> LanceCatalog:
        """Start a catalog server and Spark, and create a namespace in the warehouse `main`."""
        with self.step("Start a catalog server (lancehouse serve) and Spark"):
            server = self._stack.enter_context(start_lancehouse(self.folder / "server"))
            properties = {"endpoint": server.iceberg}
            connect("iceberg", properties).create_namespace(CreateNamespaceRequest(id=["main", namespace]))
            spark = self._stack.enter_context(quiet_session(CORES))
            self._catalog = LanceCatalog(spark, "iceberg", properties)
        self.say(f"the catalog is at {server.iceberg}")
        return self._catalog

    @contextmanager
    def step(self, title: str) -> Iterator[None]:
        """Print the title of a step, and show its progress."""
        self._steps += 1
        self._console.print(f"\n[bold cyan]{self._steps}[/] [bold]{title}[/]")
        columns = (SpinnerColumn(), BarColumn(30), MofNCompleteColumn())
        hidden = not self.is_seen
        with (
            Progress(*columns, console=self._console, transient=True, disable=hidden, redirect_stderr=False) as bar,
            ExitStack() as at,
        ):
            task = bar.add_task("", total=None)
            if self._catalog is not None and self.is_seen:
                show_progress = lambda now: bar.update(task, completed=now.done, total=now.total)  # noqa: E731
                at.enter_context(watch_tasks(self._catalog.spark, show_progress))
            yield

    def say(self, words: str) -> None:
        """Print the result of a step."""
        self._console.print(f"  {words}")

    def show(self, what: RenderableType) -> None:
        """Print a table."""
        self._console.print(what)


@contextmanager
def telling(title: str) -> Iterator[Story]:
    """Run an example in the block; at the end, stop and remove everything that it started."""
    with tempfile.TemporaryDirectory(prefix="lancehouse-example-") as folder, ExitStack() as stack:
        story = Story(title, Path(folder), stack)
        yield story
    story.show("\nThe server and Spark are stopped, and the folder is gone. Next: docs/spark.md")
