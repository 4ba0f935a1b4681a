"""What the pages on care say is so."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import lance
import pytest

from lancehouse.admin.copy import Action
from lancehouse.admin.table_checks import FindingKind
from tests.cli.commands import TWO_ROWS, open_small, run

DOCS = Path(__file__).parent.parent.parent / "docs"


def commands(page: str) -> list[list[str]]:
    """What is in the first block of commands."""
    block = re.search(r"```bash\n(.*?)```", (DOCS / page).read_text(), re.S)
    assert block
    return [shlex.split(line, comments=True)[1:] for line in block[1].splitlines()]


def test_every_finding_is_on_the_page() -> None:
    rows = re.findall(r"^\| `([\w-]+)` \|", (DOCS / "doctor.md").read_text(), re.M)
    assert set(rows) == set(FindingKind)


def test_every_action_is_on_the_page() -> None:
    page = (DOCS / "copy.md").read_text()
    planned = {Action.PRESENT, Action.SKIP, Action.CONFLICT, Action.FAILS}
    assert {each for each in planned if f"`{each}`" not in page} == set()


def test_the_commands_of_the_doctor(request: pytest.FixtureRequest, tmp_path: Path) -> None:
    home = open_small("unity", request, tmp_path)
    home.write()
    said = json.loads(home.file.read_text())["catalogs"]["unity"]
    home.file.write_text(json.dumps({"catalogs": {"prod": said}}))
    assert len(commands("doctor.md")) == 4
    for words in commands("doctor.md"):
        typed = [re.sub(r"^db\b", home.ns, word) for word in words]
        done = run(*typed, LANCEHOUSE_CONFIG=str(home.file))
        assert (done.exit_code, done.stdout) == (0, "1 table: all is well\n"), done.output


def test_the_output_of_the_doctor(request: pytest.FixtureRequest, tmp_path: Path) -> None:
    home = open_small("served", request, tmp_path)
    home.declare(managed_by="impl")
    home.write(mode="append")
    lance.write_dataset(TWO_ROWS, str(home.folder("docs")), mode="append")
    home.write("b")
    home.write("c")
    said = json.loads(home.file.read_text())["catalogs"]["served"]
    home.file.write_text(json.dumps({"catalogs": {"prod": said}}))
    done = run("--catalog", "prod", "doctor", "--namespace", home.ns, LANCEHOUSE_CONFIG=str(home.file))
    shown = re.search(r"```text\n(.*?)```", (DOCS / "doctor.md").read_text(), re.S)
    assert shown
    assert re.sub(r"[\s─]+", " ", done.stdout.replace(home.ns, "db")) == re.sub(r"[\s─]+", " ", shown[1])


def test_the_commands_of_copy(request: pytest.FixtureRequest, tmp_path: Path) -> None:
    here, there = open_small("served", request, tmp_path), open_small("unity", request, tmp_path)
    here.write()
    said = json.loads(here.file.read_text())["catalogs"]
    said["served"]["parent"] = "main"
    here.file.write_text(json.dumps({"catalogs": {"prod": said["served"], "lab": said["unity"]}}))
    first, entries, data, compared = commands("copy.md")
    env = {"LANCEHOUSE_CONFIG": str(here.file)}
    typed = [[re.sub(r"^db\b", here.ns, word) for word in words] for words in (entries, data)]
    planned = run(*first, "--namespace", here.ns, **env)
    assert planned.stdout.splitlines()[-1] == "prod to lab (nothing was done): 1 register"
    assert run(*typed[1], "--dry-run", **env).stdout.splitlines()[-1] == "prod to lab (nothing was done): 1 copy"
    assert run(*typed[0], **env).stdout.splitlines()[-1] == "prod to lab: 1 done"
    same = run(*compared, "--namespace", here.ns, **env)
    assert (same.exit_code, same.stdout) == (0, "1 table the same, 0 different, 0 only in prod, 0 only in lab\n")
    assert there.root.parent == tmp_path
