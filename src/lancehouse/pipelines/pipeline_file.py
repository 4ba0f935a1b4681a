"""Read the file of a pipeline, and substitute its variables."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lance_namespace.errors import InvalidInputError

from lancehouse.documents import DocumentError, Loc, Problems, read_yaml, substitute
from lancehouse.suggestions import suggest

VARIABLES = "variables"
HERE = "here"
"""Name of the variable that is the folder of the file."""

ENVIRONMENT = "env."
"""Prefix of variables that come from the environment."""
_NAME = re.compile(r"(env\.)?([A-Za-z_]\w*)(?::-(.*))?", re.DOTALL)


class PipelineError(DocumentError):
    """A pipeline cannot run as it is written. Nothing was done."""


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
    document = read_yaml(path, display_name, "name, source and sink", PipelineError)
    problems = Problems(display_name, document.lines, PipelineError)
    values = dict(document.values)
    variables = _resolve_variables(problems, values.pop(VARIABLES, None), path, overrides)
    return PipelineDocument(problems, _fill_variables(problems, values, (), variables), variables)


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
    return substitute(value, lambda reference, at: _look_up(problems, reference, at, variables), loc)


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
