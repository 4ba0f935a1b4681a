"""Fingerprints of functions, each taken in a process of its own, as after a restart."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from lancehouse.jobs import fingerprints
from lancehouse.jobs.fingerprints import Fingerprint, fingerprint_functions

MAIN = """
import json
from functools import lru_cache, partial
from lancehouse.jobs.fingerprints import fingerprint_functions
{code}
found = fingerprint_functions({{"column": function}})
print(json.dumps([found.digest, dict(found.parts), list(found.doubts)]))
"""

HELPERS = {
    "helper.py": "import deep\nfrom package import part\ndef score(x):\n    import lazy\n    return deep.FACTOR * x\n",
    "deep.py": "FACTOR = 1\n",
    "lazy.py": "late = 1\n",
    "named.py": "value = 1\n",
    "package/__init__.py": "",
    "package/part.py": "from . import sibling\n",
    "package/sibling.py": "value = 1\n",
    "other.py": "value = 1\n",
}


def take_fingerprint(folder: Path, code: str, **variables: str) -> tuple[str, dict[str, str], list[str]]:
    """The digest, parts and doubts of `function` as a script defines it."""
    (folder / "main.py").write_text(MAIN.format(code=code))
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), **variables}
    said = subprocess.run(
        [sys.executable, str(folder / "main.py")], capture_output=True, text=True, cwd=folder, env=environment
    )
    assert not said.returncode, said.stderr
    found: Any = json.loads(said.stdout)
    return tuple(found)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, text in HELPERS.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


BY_NAME = "from helper import score as function"
IN_SCRIPT = "import helper\ndef function(batch):\n    return helper.score(batch)"
IN_BODY = "def function(batch):\n    from helper import score\n    return score(batch)"
DYNAMIC = "import dynamic\nfunction = dynamic.score"


@pytest.mark.parametrize(
    ("code", "changed"),
    [
        (BY_NAME, "helper.py"),
        (BY_NAME, "lazy.py"),
        (BY_NAME, "package/sibling.py"),
        (IN_SCRIPT, "deep.py"),
        (IN_BODY, "package/part.py"),
    ],
)
def test_a_module_that_is_imported_changes(folder: Path, code: str, changed: str) -> None:
    before, parts, doubts = take_fingerprint(folder, code)
    (folder / "other.py").write_text("value = 2\n")  # nobody imports it
    assert doubts == []
    assert take_fingerprint(folder, code)[0] == before
    (folder / changed).write_text(f"{HELPERS[changed]}# changed\n")
    after, now, _ = take_fingerprint(folder, code)
    assert after != before
    name = changed.removesuffix(".py").replace("/", ".")
    assert [each for each in parts if parts[each] != now[each]] == [f"module {name}"]
    assert f"changed since: module {name}" == Fingerprint(now).explain_difference(parts)


EDITED = """from helper import score as function
from importlib import reload
from pathlib import Path
import deep
fingerprint_functions({"column": function})
Path("deep.py").write_text("FACTOR = 2")
reload(deep)"""


def test_a_module_that_is_edited_after_it_was_used(folder: Path) -> None:
    """Workers may have imported it before, so nobody knows which of the two they use."""
    digest, _, doubts = take_fingerprint(folder, EDITED)
    assert ["the module deep was edited in this session" in doubt for doubt in doubts] == [True]
    assert take_fingerprint(folder, BY_NAME)[0] != digest  # a new session has the new source alone


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("def help(): return {}\ndef function(batch): return help()", ("1", "2")),
        ("numbers = {}\ndef function(batch): return numbers", ("[1]", "[2]")),
        ("class A:\n    def help(self): return {}\nclass B(A):\n    def go(self): pass\nfunction = B().go", ("1", "2")),
        ("class F:\n    def __init__(self, n): self.n = n\n    def __call__(self): pass\nfunction = F({})", ("1", "2")),
        ("class F:\n    def go(self, b): return {}\nfunction = F().go", ("1", "2")),
        ("@lru_cache\ndef help(): return {}\ndef function(batch): return help()", ("1", "2")),
        ("def help(x): return {}\nfunction = partial(help, x=1)", ("1", "2")),
        ("words = {}\ndef function(batch): return words", ("{'one', 'two', 'three'}", "{'one', 'two', 'four'}")),
        ("def function(batch): return function(batch) if batch else {}", ("1", "2")),
        ("from collections import Counter\ndef function(b, c=Counter({})): return c", ("'aab'", "'abb'")),
        ("def made(a, b):\n    return lambda batch: (a, b)\nfunction = made({})", ("None, 1", "1, None")),
        ("even = lambda n: n == 0 or odd(n)\nodd = lambda n: n != {} and even(n)\nfunction = even", ("0", "1")),
    ],
    ids=["helper", "global", "base", "state", "method", "cached", "partial", "set", "itself", "default", "cell", "two"],
)  # fmt: skip
def test_what_a_script_defines(folder: Path, one: str, other: tuple[str, str]) -> None:
    """What the function reaches counts, and lines that it does not reach do not."""
    first, again, changed = (
        take_fingerprint(folder, one.replace("{}", other[0])),
        take_fingerprint(folder, f"unused = 1\n{one.replace('{}', other[0])}"),
        take_fingerprint(folder, one.replace("{}", other[1])),
    )
    assert first[2] == again[2] == changed[2] == []
    assert first[0] == again[0] != changed[0]


@pytest.mark.parametrize(
    ("code", "says"),
    [
        ("from threading import Lock\nlock = Lock()\ndef function(batch): return lock", "cannot pickle '_thread.lock'"),
        ("import binary\nfunction = binary.score", "the module secret has no source that can be read"),
        ("import dynamic\nfunction = dynamic.score", "dynamic imports modules whose names it computes"),
        ("import renamed\nfunction = renamed.score", "renamed imports modules whose names it computes"),
        ("def function(batch): return __import__(batch)", "function imports modules whose names it computes"),
        (
            "from importlib import import_module as load\ndef function(batch): return load(batch)",
            "function imports modules whose names it computes",
        ),
    ],
    ids=["lock", "no source", "computed import", "renamed", "computed import in a script", "renamed in a script"],
)
def test_what_cannot_be_compared_equals_nothing(folder: Path, code: str, says: str) -> None:
    (folder / "binary.py").write_text("import secret\ndef score(x): return x\n")
    (folder / "secret.py").write_text("value = 1\n")
    (folder / "dynamic.py").write_text("from importlib import import_module\ndef score(x): return import_module(x)\n")
    (folder / "renamed.py").write_text("from importlib import import_module as load\ndef score(x): return load(x)\n")
    compiled = "import py_compile; py_compile.compile('secret.py', 'secret.pyc')"
    subprocess.run([sys.executable, "-c", compiled], cwd=folder, check=True)
    (folder / "secret.py").unlink()
    first, _, doubts = take_fingerprint(folder, code)
    assert says in doubts[0]
    assert take_fingerprint(folder, code)[0] != first


def test_a_module_named_in_a_dynamic_import(folder: Path) -> None:
    text = "from importlib import import_module\ndef score(x): return import_module('named')\n"
    (folder / "dynamic.py").write_text(text)
    before, _, doubts = take_fingerprint(folder, DYNAMIC)
    (folder / "named.py").write_text("value = 2\n")
    assert doubts == []
    assert take_fingerprint(folder, DYNAMIC)[0] != before


@pytest.mark.parametrize(
    "code", ["def function(b): return [open(n) for n in ('weights.bin', 'x')]", "import reads\nfunction = reads.score"]
)
def test_a_file_that_the_code_names(folder: Path, code: str) -> None:
    (folder / "reads.py").write_text("def score(b): return open('weights.bin')")
    (folder / "weights.bin").write_bytes(b"12")
    before = take_fingerprint(folder, code)[0]
    assert take_fingerprint(folder, code)[0] == before
    (folder / "weights.bin").write_bytes(b"123")
    assert take_fingerprint(folder, code)[0] != before


def test_an_environment_variable_that_the_code_names(folder: Path) -> None:
    code = "import os\nKEY = 'SCALE'\ndef function(b): return os.environ[KEY]"
    before, parts, _ = take_fingerprint(folder, code, SCALE="one", ELSE="1")
    assert take_fingerprint(folder, code, SCALE="one", ELSE="2")[0] == before
    after, now, _ = take_fingerprint(folder, code, SCALE="two")
    assert after != before
    assert "environment variable SCALE" in parts
    assert Fingerprint(parts).record["environment variable SCALE"] == ""
    assert Fingerprint(now).explain_difference(Fingerprint(parts).record) == "changed since: environment variable SCALE"


def test_packages_count_by_their_versions() -> None:
    parts = fingerprint_functions({"column": json.dumps}).parts
    assert parts["package pyarrow"]
    assert not any(name.startswith("module ") for name in parts)


FEATURES = '''
"""A module of the user's own."""
import math
from dataclasses import dataclass
from functools import lru_cache
from helping import scale

LIMIT = 3

@lru_cache
def load(name: str) -> str:
    """Load something."""
    return f"{name!r:>{LIMIT}}" "and" f" more {name=}" f"{'a' + 'b'}"

def make(factor: int):
    @dataclass(frozen=True)
    class Model:
        size: int = 4

        def __call__(self, values: list[int]) -> list[int]:
            try:
                assert factor, "none"
                return [scale(each, *[]) * factor for each in values if each not in {1, 2, 3}]
            except (ValueError, TypeError) as error:
                raise RuntimeError(load("x")) from error

    def compute(values, *, power=2.5, **more):
        match values:
            case [first, *rest] if first:
                return {**more, "first": first ** power, "rest": [math.sqrt(each) for each in rest]}
        return (lambda every: every and None)(values)

    return Model, compute

Model, compute = make(7)
'''
HELPING = "def scale(value, by=1_000):\n    while value:\n        value -= by\n    else:\n        return not value\n"
DIGESTS = """
import importlib.util, json, sys
sys.path.insert(0, sys.argv[2])
spec = importlib.util.spec_from_file_location("fingerprints", sys.argv[1])
fingerprints = sys.modules["fingerprints"] = importlib.util.module_from_spec(spec)
spec.loader.exec_module(fingerprints)
import features
print(json.dumps([fingerprints.digest_code(each) for each in (features.load, features.Model, features.compute)]))
"""


def digest_features(folder: Path, python: str, features: str, helping: str = HELPING) -> list[str]:
    """Digest functions of a module by some Python: that of `lancehouse` needs nothing but the standard library."""
    folder.mkdir(exist_ok=True)
    (folder / "features.py").write_text(features)
    (folder / "helping.py").write_text(helping)
    command = [python, "-B", "-c", DIGESTS, str(fingerprints.__file__), str(folder)]
    digests: list[str] = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    return digests


def find_other_pythons() -> list[str]:
    """Other versions of Python on this machine, on the path or of pyenv."""
    found = {}
    versions = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"), "versions")
    for name in [f"python3.{minor}" for minor in range(11, 16) if minor != sys.version_info.minor]:
        for python in (*map(str, versions.glob(f"*/bin/{name}")), shutil.which(name)):
            if python and not subprocess.run([python, "-c", ""], capture_output=True, check=False).returncode:
                found[name] = python
    return list(found.values())


def test_other_versions_of_python_give_the_same_digest(tmp_path: Path) -> None:
    if not (others := find_other_pythons()):
        pytest.skip("there is no other version of Python on this machine")
    ours = digest_features(tmp_path / "ours", sys.executable, FEATURES)
    for python in others:
        assert digest_features(tmp_path / "other", python, FEATURES) == ours, python


@pytest.mark.parametrize(
    ("old", "new", "is_same"),
    [
        ("LIMIT = 3", "LIMIT   =   3  # at most", True),
        ('"""Load something."""', '"""Load something else."""', True),
        ("    return f", "\n    return (f", True),
        ("LIMIT = 3", "LIMIT = 4", False),
        ("2.5", "2.0", False),
        ('"and"', '"or"', False),
        ("make(7)", "make(8)", False),
        ("in {1, 2, 3}", "in {1, 2}", False),
        ("by=1_000", "by=1_001", False),
        ("by=1_000", "by=1000", True),
        ("every and None", "every or None", False),
    ],
)
def test_digests_see_code_and_not_its_layout(tmp_path: Path, old: str, new: str, is_same: bool) -> None:
    features = FEATURES.replace("{'a' + 'b'}\"", "{'a' + 'b'}\")") if new.endswith("(f") else FEATURES
    changed, helping = features.replace(old, new), HELPING.replace(old, new)
    assert (changed, helping) != (FEATURES, HELPING)
    before = digest_features(tmp_path / "one", sys.executable, FEATURES)
    after = digest_features(tmp_path / "two", sys.executable, changed, helping)
    assert (before == after) == is_same


def test_what_is_typed_into_a_shell_is_told_apart_by_its_bytecode() -> None:
    names: dict[str, Any] = {"__name__": "__main__"}
    for body in ("x + 1", "x + 2", "x + 1"):
        exec(f"def f{len(names)}(x):\n    return {body}\nf{len(names)}.__qualname__ = 'f'", names)
    functions = [value for name, value in names.items() if name.startswith("f")]
    one, other, same = map(fingerprints.digest_code, functions)
    assert one == same
    assert one != other


def test_a_text_that_is_too_long_for_a_name(tmp_path: Path) -> None:
    """A name of a file has at most 255 characters, a path more."""
    code = f"def function(batch):\n    return {'SELECT a.b ' * 40!r}"
    assert take_fingerprint(tmp_path, code)[0]
