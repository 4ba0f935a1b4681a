"""Functions of modules that executors do not have."""

from __future__ import annotations

import pickle
import subprocess
import sys
from pathlib import Path

import pytest
from lance_namespace.errors import InvalidInputError

from lancehouse.pipelines.named_functions import get_function

MAIN = """
from . import near

LOADED = []


def f():
    import far

    LOADED.append(1)
    return near.N + far.N, len(LOADED)
"""


def write(folder: Path, **modules: str) -> None:
    for name, text in modules.items():
        file = folder.joinpath(*name.split("__")).with_suffix(".py")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)


def test_a_process_that_does_not_have_the_module_loads_it_once_with_what_it_imports(tmp_path: Path) -> None:
    write(
        tmp_path / "here",
        pkg_one__main=MAIN,
        pkg_one__near="N = 1",
        far="N = 2",
        other="raise ZeroDivisionError",
    )
    function = get_function("pkg_one.main:f", tmp_path / "here")
    assert {each.name for each in function.sources} == {"pkg_one", "pkg_one.main", "pkg_one.near", "far"}
    (tmp_path / "pickled").write_bytes(pickle.dumps(function))
    code = (
        "import pickle, sys; data = open(sys.argv[1], 'rb').read();"
        "print(pickle.loads(data)()); print(pickle.loads(data)())"
    )
    for path in (tmp_path / "here").rglob("*.py"):
        path.unlink()
    said = subprocess.run([sys.executable, "-c", code, str(tmp_path / "pickled")], capture_output=True, text=True)
    assert said.stdout.splitlines() == ["(3, 1)", "(3, 2)"], said.stderr


def test_modules_of_one_name_in_two_folders_are_two(tmp_path: Path) -> None:
    write(tmp_path / "a", own_steps="import own_helper\ndef f(): return own_helper.N", own_helper="N = 'a'")
    write(tmp_path / "b", own_steps="import own_helper\ndef f(): return own_helper.N", own_helper="N = 'b'")
    first, second = get_function("own_steps:f", tmp_path / "a"), get_function("own_steps:f", tmp_path / "b")
    assert (first(), second(), first()) == ("a", "b", "a")
    assert first.digest != second.digest
    write(tmp_path / "a", own_helper="N = 'c'")
    assert get_function("own_steps:f", tmp_path / "a")() == "c"


def test_what_is_installed_is_found_too(tmp_path: Path) -> None:
    function = get_function("os.path:basename", tmp_path)
    assert function.sources == ()
    assert function("a/b") == "b"


def test_a_module_that_is_called_like_one_that_is_there(tmp_path: Path) -> None:
    write(tmp_path, textwrap="def f(): return 1")
    import textwrap  # noqa: F401

    with pytest.raises(InvalidInputError, match=r"there is another module textwrap, of .*; rename that of "):
        get_function("textwrap:f", tmp_path)


def test_what_a_function_depends_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not its own module alone: one that it imports, in the folder or elsewhere, makes other results too."""
    elsewhere = tmp_path / "elsewhere"
    write(elsewhere, far_off_a="N = 1", far_off_b="import far_off_c\ndef f(): return far_off_c.N", far_off_c="N = 1")
    monkeypatch.syspath_prepend(elsewhere)
    write(tmp_path / "here", own_steps_a="import far_off_a\ndef f(): return far_off_a.N")
    for name, changed in (("own_steps_a:f", "far_off_a"), ("far_off_b:f", "far_off_c")):
        before = get_function(name, tmp_path / "here")
        assert get_function(name, tmp_path / "here").code == before.code
        write(elsewhere, **{changed: "N = 22"})
        assert get_function(name, tmp_path / "here").code != before.code
