"""A YAML file as values whose lines are known, with its variables filled in."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from lance_namespace.errors import InvalidInputError

from lancehouse.spark.pipelines.problems import Loc, PipelineError, Problem, Problems
from lancehouse.spark.suggestions import meant

VARIABLES = "variables"
HERE = "here"
"""The variable that is the folder of the file."""

ENVIRONMENT = "env."
_REFERENCE = re.compile(r"\$(\$\{)|\$\{\s*([^}]*?)\s*\}")
_BARE = re.compile(r"[{\[,:]\s*\$\{")
_NAME = re.compile(r"(env\.)?([A-Za-z_]\w*)(?::-(.*))?", re.DOTALL)
_RESOLVER: Any = yaml.SafeLoader("")
_NULL = "tag:yaml.org,2002:null"


class Text(str):
    """A scalar as it is written: a number too, so that `007` stays what it is where text is wanted."""

    __slots__ = ("is_quoted",)
    is_quoted: bool

    @classmethod
    def of(cls, written: str, *, is_quoted: bool) -> Text:
        made = cls(written)
        made.is_quoted = is_quoted
        return made


@dataclass(frozen=True, slots=True)
class Document:
    """What a file says."""

    problems: Problems
    values: dict[str, Any]
    variables: Mapping[str, str] = field(default_factory=dict)


def read(path: Path, shown: str, given: Mapping[str, str]) -> Document:
    """Read a file and fill in its variables.

    Args:
        path: of the file.
        shown: how it is called in errors.
        given: variables that win over those of the file.

    Raises:
        PipelineError: it is no YAML, or has variables that nothing is known of.
        InvalidInputError: it cannot be read at all.
    """
    try:
        text = path.read_text(encoding="utf-8")
        root = yaml.compose(text, Loader=yaml.SafeLoader)
    except OSError as error:
        raise InvalidInputError(f"{shown} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise InvalidInputError(f"{shown} is no YAML: it is not UTF-8") from None
    except yaml.MarkedYAMLError as error:
        mark, there = error.problem_mark or error.context_mark, text.splitlines() or [""]
        line = min(mark.line if mark else 0, len(there) - 1)  # what never ends is found out after the last line
        said = ", ".join(filter(None, (error.context, error.problem)))
        if _BARE.search(there[line]):
            said = 'inside {…} and […], what holds ${…} stands in quotes: "${name}"'
        raise PipelineError([Problem(shown, line + 1, f"this is no YAML: {said}")]) from None
    except yaml.reader.ReaderError as error:
        raise PipelineError([Problem(shown, 1, f"this is no YAML: {error.reason}")]) from None
    problems = Problems(shown, lines := {(): 1})
    if not isinstance(root, yaml.MappingNode):
        raise PipelineError([Problem(shown, 1, "a pipeline has keys and values: source, steps, sink, …")])
    values = _Reading(problems, lines).value(root, (), ())
    variables = _variables(problems, values.pop(VARIABLES, None), path, given)
    filled = {key: _filled(problems, value, (key,), variables) for key, value in values.items()}
    return Document(problems, filled, variables)


@dataclass(frozen=True, slots=True)
class _Reading:
    """Turns nodes into values, and remembers their lines."""

    problems: Problems
    lines: dict[Loc, int]

    def value(self, node: yaml.Node, loc: Loc, above: tuple[yaml.Node, ...]) -> Any:
        if node in above:
            self.problems.add("this contains itself", *loc)
            return None
        above = (*above, node)
        if isinstance(node, yaml.MappingNode):
            return dict(self._entries(node, loc, above))
        if isinstance(node, yaml.SequenceNode):
            return [self._item(child, (*loc, place), above) for place, child in enumerate(node.value)]
        if node.tag == _NULL:
            return None
        if node.tag not in _KNOWN:
            self.problems.add(f"{node.tag} is no kind of value here", *loc)
        return Text.of(node.value, is_quoted=getattr(node, "style", None) is not None)

    def _item(self, node: yaml.Node, loc: Loc, above: tuple[yaml.Node, ...]) -> Any:
        self.lines[loc] = node.start_mark.line + 1
        return self.value(node, loc, above)

    def _entries(self, node: yaml.MappingNode, loc: Loc, above: tuple[yaml.Node, ...]) -> Iterator[tuple[str, Any]]:
        seen: set[str] = set()
        for key, child in node.value:
            line = key.start_mark.line + 1
            if not isinstance(key, yaml.ScalarNode) or key.value == "<<":
                self.problems.found.append(Problem(self.problems.file, line, "a key is a word"))
                continue
            if key.value in seen:
                self.problems.found.append(Problem(self.problems.file, line, f"{key.value} is there twice"))
            seen.add(key.value)
            self.lines[(*loc, key.value)] = line
            yield key.value, self.value(child, (*loc, key.value), above)


_KNOWN = {f"tag:yaml.org,2002:{kind}" for kind in ("str", "int", "float", "bool", "timestamp", "null")}


def _variables(problems: Problems, said: Any, path: Path, given: Mapping[str, str]) -> dict[str, str]:
    found = {HERE: str(path.absolute().parent)}
    if said is not None and not isinstance(said, dict):
        problems.add("variables are names and values", VARIABLES)
        return found
    known: dict[str, Any] = said or {}
    for name in given:
        if name not in known:
            raise InvalidInputError(f"--set {name}: {problems.file} has no such variable; {meant(name, list(known))}")
    for name, value in known.items():
        if not re.fullmatch(r"[A-Za-z_]\w*", name) or name in (HERE, ENVIRONMENT[:-1]):
            problems.add(f"{name!r} can be no variable: it has letters, digits and _", VARIABLES, name)
        elif name in given:
            found[name] = given[name]
        elif isinstance(value, str):
            found[name] = str(_filled(problems, value, (VARIABLES, name), found))
        elif value is None:
            problems.add(f"the variable {name} has no value: give --set {name}=…", VARIABLES, name)
            found[name] = ""
        else:
            problems.add(f"the variable {name} is no text", VARIABLES, name)
            found[name] = ""
    return found


def _filled(problems: Problems, value: Any, loc: Loc, variables: Mapping[str, str]) -> Any:
    if isinstance(value, dict):
        return {key: _filled(problems, each, (*loc, key), variables) for key, each in value.items()}
    if isinstance(value, list):
        return [_filled(problems, each, (*loc, place), variables) for place, each in enumerate(value)]
    if not isinstance(value, Text):
        return value

    def fill(found: re.Match[str]) -> str:
        if found[1]:
            return found[1]
        return _looked_up(problems, found[2], loc, variables)

    is_one = _REFERENCE.fullmatch(value) is not None  # in {…} and […] YAML wants it in quotes, whatever it is
    return Text.of(_REFERENCE.sub(fill, value), is_quoted=value.is_quoted and not is_one)


def _looked_up(problems: Problems, reference: str, loc: Loc, variables: Mapping[str, str]) -> str:
    parts = _NAME.fullmatch(reference)
    if parts is None:
        problems.add(
            f"${{{reference}}} names no variable: write ${{name}}, ${{env.NAME}}, or $${{ for ${{ itself", *loc
        )
        return ""
    is_environment, name, otherwise = bool(parts[1]), parts[2], parts[3]
    known = os.environ if is_environment else variables
    if name in known:
        return known[name]
    if otherwise is not None:
        return otherwise
    if is_environment:
        problems.add(f"the environment has no {name}, of which ${{{reference}}} is", *loc)
    elif name in os.environ:
        problems.add(f"there is no variable {name}; that of the environment is ${{env.{name}}}", *loc)
    else:
        problems.add(f"there is no variable {name}; {meant(name, list(variables))}", *loc)
    return ""


def plain(value: Any) -> Any:
    """A value as YAML has it: numbers as numbers, `true` as true."""
    if isinstance(value, dict):
        return {key: plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [plain(each) for each in value]
    if not isinstance(value, Text) or value.is_quoted:
        return str(value) if isinstance(value, str) else value
    tag: str = _RESOLVER.resolve(yaml.ScalarNode, value, (True, False))
    return yaml.safe_load(value) if tag.rpartition(":")[2] in ("int", "float", "bool") else str(value)
