from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from lance_namespace.errors import InvalidInputError

from lancehouse import documents
from lancehouse.documents import Document, DocumentError, read_yaml, substitute_variables, to_plain


def read(tmp_path: Path, text: str) -> Document:
    (tmp_path / "f.yaml").write_text(text)
    return read_yaml(tmp_path / "f.yaml", "f.yaml", "a and b")


def refusal(tmp_path: Path, text: str) -> str:
    with pytest.raises(DocumentError) as raised:
        read(tmp_path, text)
    return str(raised.value)


def test_scalars_stay_as_they_are_written(tmp_path: Path) -> None:
    values = read(tmp_path, 'a: 007\nb: yes\nc: "yes"\nd: 2026-13-01\ne:\n1: [x, 2.50]\n').values
    assert values == {"a": "007", "b": "yes", "c": "yes", "d": "2026-13-01", "e": None, "1": ["x", "2.50"]}
    assert to_plain(values) == {"a": 7, "b": True, "c": "yes", "d": "2026-13-01", "e": None, "1": ["x", 2.5]}


def test_lines(tmp_path: Path) -> None:
    document = read(tmp_path, "a:\n  b:\n  - x\n  - y: 1\n")
    assert document.lines == {
        (): 1,
        ("a",): 1,
        ("a", "b"): 2,
        ("a", "b", 0): 3,
        ("a", "b", 1): 4,
        ("a", "b", 1, "y"): 4,
    }
    assert str(document.key_error("is wrong", "a", "b", 1, "z")) == "f.yaml:4: key 'a.b[1].z' is wrong"
    assert str(document.error("is wrong")) == "f.yaml:1: is wrong"
    assert str(Document().key_error("is wrong", "a", "b")) == "key 'a.b' is wrong"


def test_aliases_and_merged_keys(tmp_path: Path) -> None:
    text = "base: &base\n  x: 1\n  y: 2\nother: &other {y: 3, z: 4}\nown:\n  y: 5\n  <<: [*base, *other]\nsame: *base\n"
    document = read(tmp_path, text)
    assert document.values["own"] == {"x": "1", "y": "5", "z": "4"}
    assert document.values["same"] == {"x": "1", "y": "2"}
    assert document.lines["own", "y"] == 6


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a: 1\nb: 2\na: 3\n", "f.yaml:3: the key 'a' occurs twice"),
        ("a:\n  b: 1\n  b: 1\n", "f.yaml:3: the key 'a.b' occurs twice"),
        ("a: 1\na: 2\nb: !x 1", "f.yaml:2: the key 'a' occurs twice\nf.yaml:3: this tag is not supported"),
        ("{a: 1, [b]: 2}", "f.yaml:1: a key must be text"),
        ("a: &a {b: [*a]}", "f.yaml:1: this contains itself"),
        ("- a", "f.yaml:1: the file must have keys and values, such as a and b"),
        ("a: *s3cr3t", "f.yaml:1: this is not valid YAML: found undefined alias"),
        ("a: 1\nb: \x07", "f.yaml:2: this is not valid YAML: special characters are not allowed"),
        ("a: {b: ${c}}", "f.yaml:1: this is not valid YAML: put values with ${…} in quotes"),
        ("[" * 3000, "f.yaml:1: this is nested too deeply"),
    ],
)
def test_what_is_refused(tmp_path: Path, text: str, words: str) -> None:
    message = refusal(tmp_path, text)
    assert message.startswith(words)
    assert "s3cr3t" not in message


def test_aliases_that_repeat_each_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(documents, "MAX_VALUES", 1000)
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 9)]
    assert "more than 1000 values" in refusal(tmp_path, "\n".join(lines))


def test_a_file_without_content(tmp_path: Path) -> None:
    assert read(tmp_path, "# nothing\n").values == {}


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match=r"^f.yaml cannot be read: No such file"):
        read_yaml(tmp_path / "f.yaml", "f.yaml", "a and b")
    (tmp_path / "f.yaml").write_bytes(b"a: 1\nb: \xff")
    with pytest.raises(DocumentError, match=r"^f.yaml:2: this is not valid YAML: the file is not UTF-8$"):
        read_yaml(tmp_path / "f.yaml", "f.yaml", "a and b")


def test_unknown_keys(tmp_path: Path) -> None:
    document = read(tmp_path, "a:\n  prot: 1\n")
    document.check_keys(document.values, ["a", "b"])
    with pytest.raises(DocumentError, match=r"^f.yaml:2: unknown key 'a.prot'; did you mean port\?$"):
        document.check_keys(document.values["a"], ["host", "port"], "a")


def test_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str, loc: Any) -> Exception:
        return LookupError(f"{loc} {name}")

    monkeypatch.setenv("WHO", "ada")
    value = {"a": ["${WHO}!", "$${WHO}", "${ WHO }", "${no name}", 1, None]}
    assert substitute_variables(value, missing) == {"a": ["ada!", "${WHO}", "ada", "${no name}", 1, None]}
    with pytest.raises(LookupError, match=r"\('a', 0\) NOT_SET_HERE"):
        substitute_variables({"a": ["${NOT_SET_HERE}"]}, missing)


def test_no_other_module_reads_yaml() -> None:
    source = Path(documents.__file__).parent
    assert [file.name for file in source.rglob("*.py") if "import yaml" in file.read_text()] == ["documents.py"]
