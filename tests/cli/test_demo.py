from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from urllib.error import URLError
from urllib.request import ProxyHandler, build_opener

import pyarrow as pa
import pytest
from click.testing import CliRunner
from lance_namespace.errors import InternalError

from lancehouse.cli.demo import command, sample_data
from lancehouse.cli.demo.command import DemoOutput
from lancehouse.cli.main import CliContext, main
from tests.servers.lancehouse import PROGRAM

open_ = build_opener(ProxyHandler({})).open


def test_the_whole_of_it(tmp_path: Path) -> None:
    """It ends by itself where there is no terminal, and leaves nothing running or lying around."""
    here, scratch = tmp_path / "here", tmp_path / "scratch"
    here.mkdir()
    scratch.mkdir()
    done = subprocess.run(
        [PROGRAM, "demo"],
        cwd=here,
        env={
            **os.environ,
            "TMPDIR": str(scratch),
            "COLUMNS": "80",
            "LANCEHOUSE_AUTH": "true",
            "http_proxy": "http://[::]:9",
        },
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, ""), done.stdout
    said = " ".join(done.stdout.split())
    assert "1,000 documents with 128-dimensional vectors are in main.library.documents" in said
    assert re.search(r"0\.\d\d search what to do when a vector index is broken", said)
    assert "gives 400 rows: 200 of garden, 200 of kitchen" in said
    assert re.search(r"Topic Documents Distance ─+ search \d+ 0\.\d+ \w+ \d+ \d\.\d+ ", said)
    assert "FROM vector_search('documents', :question, k => 200) GROUP BY topic" in said
    assert "Of the topic archive, version 2 has 0, version 3 has 3." in said
    assert re.search(r"(Ann|Ben) committed. (Ann|Ben) had to retry: error 14, table main.library.documents", said)
    assert "Version 3 had 1,001 rows; after the second try version 5 has 1,003." in said
    assert len(re.findall(r"^  lancehouse (?:serve|namespace create|ingest|sql)\b.*$", done.stdout, re.M)) == 4
    assert list(here.iterdir()) == []
    assert [path.name for path in scratch.iterdir() if path.name.startswith("lancehouse")] == []
    (console,) = re.findall(r"The console was at (\S+);", done.stdout)
    with pytest.raises(URLError):
        open_(console)


def test_it_says_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "find_spec", lambda name: None if name in ("pyspark", "uvicorn") else name)
    done = CliRunner().invoke(main, ["demo"])
    assert done.exit_code == 1
    assert done.stderr.startswith("Error: the demo needs uvicorn, pyspark: pip install 'lancehouse[server,spark]'\n")


def test_a_folder_that_is_there_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    kept = tmp_path / "lancehouse-demo"
    kept.mkdir()
    (kept / "mine").write_text("")
    done = CliRunner().invoke(main, ["demo", "--keep"])
    assert done.exit_code == 1
    assert "lancehouse-demo cannot be made: File exists; remove it, or go elsewhere" in done.stderr
    assert [path.name for path in kept.iterdir()] == ["mine"]


@pytest.mark.parametrize("keep", [False, True])
def test_what_is_kept(keep: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with command._folder(keep) as folder:
        assert folder.is_dir()
    assert folder.exists() is keep
    assert not keep or folder == tmp_path / "lancehouse-demo"


class Typed:
    """Somebody at a terminal who presses Enter, or Ctrl-C."""

    def __init__(self, key: str) -> None:
        self.key = key
        self.is_asked = False

    def isatty(self) -> bool:
        return True

    def readline(self) -> str:
        self.is_asked = True
        if self.key == "ctrl-c":
            raise KeyboardInterrupt
        return ""


@pytest.mark.parametrize("key", ["enter", "ctrl-c"])
@pytest.mark.parametrize("is_seen", [False, True])
def test_the_console_stays_up_on_a_terminal(
    key: str, is_seen: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    typed = Typed(key)
    monkeypatch.setattr(sys, "stdin", typed)
    monkeypatch.setattr(DemoOutput, "is_seen", is_seen)
    command._show_next_steps(DemoOutput(CliContext()), "http://127.0.0.1:1", Path("/kept"))
    said = capsys.readouterr().out
    assert typed.is_asked is is_seen
    assert ("until you press Enter: http://127.0.0.1:1" in said) is is_seen
    assert "lancehouse serve --db sqlite:////kept/catalog.db" in said


def test_the_next_commands_are_there() -> None:
    for line in command._next_commands(None):
        words = line.split()[1:]
        done = CliRunner().invoke(main, [*words[: 2 if words[0] == "namespace" else 1], "--help"])
        assert done.exit_code == 0, done.output
        for option in (word for word in words if word.startswith("--")):
            assert option in done.output


def test_programs_are_told_nothing_before_the_end(capsys: pytest.CaptureFixture[str]) -> None:
    story = DemoOutput(CliContext(kind="json"))
    story.title("title")
    with story.step("step"):
        story.say("words")
    story.show((), [{"a": 1}], "table")
    story.line("line")
    assert capsys.readouterr().out == ""


def test_the_server_is_gone_afterwards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LANCEHOUSE_AUTH", "true")  # of somebody's own server
    with command.start_server(tmp_path) as address:
        uri = address()
        assert open_(f"{uri}/health/ready").status == 200
        assert open_(f"{uri}/iceberg/v1/config").status == 200
    with pytest.raises(URLError):
        open_(uri)


def test_the_server_does_not_outlive_the_demo(tmp_path: Path) -> None:
    code = (
        "import os, sys; from pathlib import Path; from lancehouse.cli.demo import command\n"
        "with command.start_server(Path(sys.argv[1])) as address: print(address(), flush=True); os._exit(1)"
    )
    done = subprocess.run([sys.executable, "-c", code, tmp_path], capture_output=True, text=True, check=False)
    for _ in range(200):
        try:
            open_(done.stdout.strip(), timeout=1).close()
        except OSError:
            return
    pytest.fail("it still answers")


def test_a_server_that_does_not_start(tmp_path: Path) -> None:
    (tmp_path / "catalog.db").mkdir()
    with (
        pytest.raises(InternalError, match=r"the catalog server did not start: .*catalog.db"),
        command.start_server(tmp_path) as address,
    ):
        address()


def test_similar_texts_are_near() -> None:
    bread, loaf, index = sample_data.embed(pa.array(["baking bread", "bread, baked", "a vector index"]))
    assert bread @ loaf > bread @ index
    assert sample_data.embed(pa.array([], pa.string())).shape == (0, sample_data.DIMENSION)
    assert sample_data.rows([1], "a", [""])["embedding"].to_pylist() == [[0.0] * sample_data.DIMENSION]
