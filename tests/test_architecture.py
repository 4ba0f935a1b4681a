"""docs/architecture.md says what is so: its map, its glossary, and the places that it sends a newcomer to."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from importlib import import_module

import pytest

from tools import module_map
from tools.module_map import PAGE, ROOT, SOURCE

TEXT = PAGE.read_text()


def test_the_map_has_every_module() -> None:
    mapped = TEXT.split(module_map.BEGIN)[1].split(module_map.END)[0].strip()
    assert mapped == module_map.write_map().strip(), "run `make map`"


def test_no_public_class_has_the_name_of_another() -> None:
    homes = defaultdict(list)
    for file in SOURCE.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                homes[node.name].append(file.relative_to(SOURCE).as_posix())
    assert {name: files for name, files in homes.items() if len(files) > 1} == {}


GLOSSARY = re.findall(r"`(lancehouse(?:\.\w+)+)\.([A-Z]\w+)`", TEXT)


@pytest.mark.parametrize(("module", "name"), GLOSSARY, ids=lambda part: part)
def test_a_class_of_the_glossary_is_at_its_home(module: str, name: str) -> None:
    assert getattr(import_module(module), name).__module__ == module


def test_the_glossary_is_there() -> None:
    assert len(GLOSSARY) >= 20


def test_files_that_are_named_exist() -> None:
    section = TEXT.split("## Where to change what")[1].split("## Glossary")[0]
    named = re.findall(r"`([\w/]+(?:\.py|\.md|/))`", section)
    assert len(named) > 10
    missing = [name for name in named if not any((base / name).exists() for base in (SOURCE, ROOT, SOURCE.parent))]
    assert missing == []
