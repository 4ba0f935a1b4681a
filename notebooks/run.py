"""The notebooks, executed. `python -m notebooks.run` (`make notebooks`) stores in each file what its cells show."""

from __future__ import annotations

import os
from pathlib import Path
from tempfile import TemporaryDirectory

import nbformat
from nbclient import NotebookClient
from nbformat import NotebookNode
from traitlets.config import Config

from tests.servers.jars import LIGHT

FILES = sorted(Path(__file__).parent.glob("*.ipynb"))
CELL_S = 120
"""How long a cell may take."""
END_S = 10
"""How long a notebook may take to end; it waits for half of that if there is a Java to end with it."""


def execute(file: Path, folder: Path) -> NotebookNode:
    """A notebook with what its cells show now; in a process of its own, which has a folder to itself.

    What libraries say on stderr is left out: it names places of this machine.

    Raises:
        CellExecutionError: a cell failed; says which, and why.
    """
    notebook = read(file)
    place = {"metadata": {"path": str(folder)}}
    patience = Config({"KernelManager": {"shutdown_wait_time": END_S}})
    client = NotebookClient(
        notebook, timeout=CELL_S, kernel_name="python3", record_timing=False, resources=place, config=patience
    )
    own = {"TMPDIR": str(folder), "IPYTHONDIR": str(folder / "ipython"), "SPARK_SUBMIT_OPTS": " ".join(LIGHT)}
    client.execute(env={**os.environ, **own})
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.outputs = [output for output in cell.outputs if output.get("name") != "stderr"]
    notebook.metadata = {  # no version of anything: a newer Python alone changes no file
        "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
        "language_info": {"name": "python"},
    }
    return notebook


def read(file: Path) -> NotebookNode:
    """A notebook as it is stored."""
    return nbformat.read(file, as_version=4)


def main() -> None:
    """Execute them all; a file changes only if all of its cells passed."""
    for file in FILES:
        with TemporaryDirectory(prefix="lancehouse-notebook-") as folder:
            nbformat.write(execute(file, Path(folder)), file)
        print(file.name)


if __name__ == "__main__":
    main()
