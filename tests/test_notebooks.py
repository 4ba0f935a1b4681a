"""The notebooks run whole, show what they have stored, and leave nothing behind."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from time import monotonic, sleep
from typing import Any

import nbformat
import pytest
from nbclient.exceptions import CellExecutionError
from nbformat import NotebookNode

from notebooks.run import FILES, execute, read

ROOT = Path(__file__).parent.parent
PATIENCE_S = 30
NAMES = ["columns", "quickstart", "search", "spark"]
MACHINE = re.compile(r"/tmp\b|/work\b|/home/|/root\b|/Users/|/private/|site-packages|(127\.0\.0\.1|localhost):\d")
"""What only one machine, or one run, could say."""


def cells(notebook: NotebookNode) -> list[NotebookNode]:
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def cell_outputs(notebook: NotebookNode) -> list[Any]:
    """Of each cell, what it prints and what it gives."""
    return [
        [output.get("text") or output.get("data", {}).get("text/plain") for output in cell.outputs]
        for cell in cells(notebook)
    ]


def remaining_processes(folder: Path) -> list[str]:
    """Processes that have a folder in their command line, and do not end by themselves: a Java takes a moment."""
    deadline = monotonic() + PATIENCE_S
    while found := [line for line in list_processes() if str(folder) in line]:
        if monotonic() > deadline:
            break
        sleep(0.2)
    return found


def list_processes() -> list[str]:
    done = subprocess.run(["ps", "-A", "-ww", "-o", "pid=,args="], capture_output=True, text=True, check=True)
    return done.stdout.splitlines()


def test_all_are_here() -> None:
    assert [file.stem for file in FILES] == NAMES


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_it_runs(file: Path, tmp_path: Path) -> None:
    found = execute(file, tmp_path)
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith("lancehouse")] == []
    assert remaining_processes(tmp_path) == []
    assert cell_outputs(found) == cell_outputs(read(file)), "`make notebooks` stores what the cells show now"


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_what_is_stored(file: Path) -> None:
    notebook = read(file)
    nbformat.validate(notebook)
    assert [cell.execution_count for cell in cells(notebook)] == list(range(1, len(cells(notebook)) + 1))
    assert sum(bool(cell.outputs) for cell in cells(notebook)) >= 10
    kinds = {output.output_type for cell in cells(notebook) for output in cell.outputs}
    assert kinds <= {"stream", "execute_result", "display_data"}
    assert [found[0] for found in MACHINE.finditer(file.read_text())] == []
    assert notebook.cells[0].source.startswith("# ")
    assert max(len(cell.source.splitlines()) for cell in cells(notebook)) <= 32


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_links_lead_somewhere(file: Path) -> None:
    text = "\n".join(cell.source for cell in read(file).cells if cell.cell_type == "markdown")
    targets = re.findall(r"\]\(([^)#]+)\)", text)
    assert targets
    assert [target for target in targets if not (file.parent / target).exists()] == []


def test_a_cell_that_fails_is_named_and_nothing_is_left(tmp_path: Path) -> None:
    """Halfway through, with a server that is up."""
    notebook = read(ROOT / "notebooks" / "quickstart.ipynb")
    start = next(number for number, cell in enumerate(notebook.cells) if "start_server(" in cell.source)
    notebook.cells[start + 1 :] = [nbformat.v4.new_code_cell("assert address\nraise KeyError('lost')")]
    file, folder = tmp_path / "broken.ipynb", tmp_path / "folder"
    folder.mkdir()
    nbformat.write(notebook, file)
    with pytest.raises(CellExecutionError, match=r"(?s)assert address.*KeyError.*lost"):
        execute(file, folder)
    assert [path.name for path in folder.iterdir() if path.name.startswith("lancehouse")] == []
    assert remaining_processes(folder) == []


@pytest.mark.parametrize("name", NAMES)
def test_they_are_in_the_docs(name: str) -> None:
    assert f"{name}.ipynb" in (ROOT / "docs" / "notebooks.md").read_text()
