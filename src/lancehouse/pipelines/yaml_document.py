"""Read a YAML file with the line numbers of its values, and substitute its variables."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from lance_namespace.errors import InvalidInputError

from lancehouse.pipelines.problems import Loc, PipelineError, Problem, Problems
from lancehouse.suggestions import suggest

VARIABLES = "variables"
HERE = "here"
"""Name of the variable that is the folder of the file."""

ENVIRONMENT = "env."
"""Prefix of variables that come from the environment."""
_REFERENCE = re.compile(r"\$(\$\{)|\$\{\s*([^}]*?)\s*\}")
_BARE = re.compile(r"[{\[,:]\s*\$\{")
_NAME = re.compile(r"(env\.)?([A-Za-z_]\w*)(?::-(.*))?", re.DOTALL)
_RESOLVER: Any = yaml.SafeLoader("")
_NULL = "tag:yaml.org,2002:null"


class ScalarText(str):
    """A scalar as it is written, numbers too, so that `007` stays unchanged where text is expected."""

    __slots__ = ("is_quoted",)
    is_quoted: bool

    @classmethod
    def from_scalar(cls, written: str, *, is_quoted: bool) -> ScalarText:
        scalar = cls(written)
        scalar.is_quoted = is_quoted
        return scalar


@dataclass(frozen=True, slots=True)
class PipelineDocument:
    """The values of a file after substitution, and the problems found so far."""

    problems: Problems
    values: dict[str, Any]
    variables: Mapping[str, str] = field(default_factory=dict)


def read_document(path: Path, display_name: str, overrides: Mapping[str, str]) -> PipelineDocument:
    """Read a file and substitute its variables.

    Args:
        path: path of the file.
        display_name: name of the file in errors.
        overrides: variables that override those of the file.

    Raises:
        PipelineError: the file is not valid YAML, or uses undefined variables.
        InvalidInputError: the file cannot be read.
    """
    try:
        text = path.read_text(encoding="utf-8")
        root = yaml.compose(text, Loader=yaml.SafeLoader)
    except OSError as error:
        raise InvalidInputError(f"{display_name} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise InvalidInputError(f"{display_name} is no YAML: it is not UTF-8") from None
    except yaml.MarkedYAMLError as error:
        mark, source_lines = error.problem_mark or error.context_mark, text.splitlines() or [""]
        line = min(mark.line if mark else 0, len(source_lines) - 1)  # unclosed parts are reported after the last line
        reason = ", ".join(filter(None, (error.context, error.problem)))
        if _BARE.search(source_lines[line]):
            reason = 'inside {…} and […], what holds ${…} stands in quotes: "${name}"'
        raise PipelineError([Problem(display_name, line + 1, f"this is no YAML: {reason}")]) from None
    except yaml.reader.ReaderError as error:
        raise PipelineError([Problem(display_name, 1, f"this is no YAML: {error.reason}")]) from None
    problems = Problems(display_name, lines := {(): 1})
    if not isinstance(root, yaml.MappingNode):
        raise PipelineError([Problem(display_name, 1, "a pipeline has keys and values: source, steps, sink, …")])
    values = _NodeReader(problems, lines).value(root, (), ())
    variables = _resolve_variables(problems, values.pop(VARIABLES, None), path, overrides)
    filled = {key: _fill_variables(problems, value, (key,), variables) for key, value in values.items()}
    return PipelineDocument(problems, filled, variables)


@dataclass(frozen=True, slots=True)
class _NodeReader:
    """Converts YAML nodes to values, and records their lines."""

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
        if node.tag not in _SCALAR_TAGS:
            self.problems.add(f"{node.tag} is no kind of value here", *loc)
        return ScalarText.from_scalar(node.value, is_quoted=getattr(node, "style", None) is not None)

    def _item(self, node: yaml.Node, loc: Loc, above: tuple[yaml.Node, ...]) -> Any:
        self.lines[loc] = node.start_mark.line + 1
        return self.value(node, loc, above)

    def _entries(self, node: yaml.MappingNode, loc: Loc, above: tuple[yaml.Node, ...]) -> Iterator[tuple[str, Any]]:
        keys: set[str] = set()
        for key, child in node.value:
            line = key.start_mark.line + 1
            if not isinstance(key, yaml.ScalarNode) or key.value == "<<":
                self.problems.problems.append(Problem(self.problems.file, line, "a key is a word"))
                continue
            if key.value in keys:
                self.problems.problems.append(Problem(self.problems.file, line, f"{key.value} is there twice"))
            keys.add(key.value)
            self.lines[(*loc, key.value)] = line
            yield key.value, self.value(child, (*loc, key.value), above)


_SCALAR_TAGS = {f"tag:yaml.org,2002:{kind}" for kind in ("str", "int", "float", "bool", "timestamp", "null")}


def _resolve_variables(problems: Problems, declared: Any, path: Path, overrides: Mapping[str, str]) -> dict[str, str]:
    variables = {HERE: str(path.absolute().parent)}
    if declared is not None and not isinstance(declared, dict):
        problems.add("variables are names and values", VARIABLES)
        return variables
    values: dict[str, Any] = declared or {}
    for name in overrides:
        if name not in values:
            raise InvalidInputError(
                f"--set {name}: {problems.file} has no such variable; {suggest(name, list(values))}"
            )
    for name, value in values.items():
        if not re.fullmatch(r"[A-Za-z_]\w*", name) or name in (HERE, ENVIRONMENT[:-1]):
            problems.add(f"{name!r} can be no variable: it has letters, digits and _", VARIABLES, name)
        elif name in overrides:
            variables[name] = overrides[name]
        elif isinstance(value, str):
            variables[name] = str(_fill_variables(problems, value, (VARIABLES, name), variables))
        elif value is None:
            problems.add(f"the variable {name} has no value: give --set {name}=…", VARIABLES, name)
            variables[name] = ""
        else:
            problems.add(f"the variable {name} is no text", VARIABLES, name)
            variables[name] = ""
    return variables


def _fill_variables(problems: Problems, value: Any, loc: Loc, variables: Mapping[str, str]) -> Any:
    if isinstance(value, dict):
        return {key: _fill_variables(problems, each, (*loc, key), variables) for key, each in value.items()}
    if isinstance(value, list):
        return [_fill_variables(problems, each, (*loc, place), variables) for place, each in enumerate(value)]
    if not isinstance(value, ScalarText):
        return value

    def fill(found: re.Match[str]) -> str:
        if found[1]:
            return found[1]
        return _look_up(problems, found[2], loc, variables)

    is_one = _REFERENCE.fullmatch(value) is not None  # quoted only because YAML requires it in {…} and […]
    return ScalarText.from_scalar(_REFERENCE.sub(fill, value), is_quoted=value.is_quoted and not is_one)


def _look_up(problems: Problems, reference: str, loc: Loc, variables: Mapping[str, str]) -> str:
    parts = _NAME.fullmatch(reference)
    if parts is None:
        problems.add(
            f"${{{reference}}} names no variable: write ${{name}}, ${{env.NAME}}, or $${{ for ${{ itself", *loc
        )
        return ""
    is_environment, name, otherwise = bool(parts[1]), parts[2], parts[3]
    values = os.environ if is_environment else variables
    if name in values:
        return values[name]
    if otherwise is not None:
        return otherwise
    if is_environment:
        problems.add(f"the environment has no {name}, of which ${{{reference}}} is", *loc)
    elif name in os.environ:
        problems.add(f"there is no variable {name}; that of the environment is ${{env.{name}}}", *loc)
    else:
        problems.add(f"there is no variable {name}; {suggest(name, list(variables))}", *loc)
    return ""


def to_plain(value: Any) -> Any:
    """Convert scalars to the types that YAML gives them: numbers, booleans or text; quoted ones stay text."""
    if isinstance(value, dict):
        return {key: to_plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [to_plain(each) for each in value]
    if not isinstance(value, ScalarText) or value.is_quoted:
        return str(value) if isinstance(value, str) else value
    tag: str = _RESOLVER.resolve(yaml.ScalarNode, value, (True, False))
    return yaml.safe_load(value) if tag.rpartition(":")[2] in ("int", "float", "bool") else str(value)
