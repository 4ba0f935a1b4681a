"""YAML files with line numbers: reading, `${…}` references, and errors of the form `FILE:LINE: what is wrong`.

`yaml` is imported only where a file is read: most commands read none.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lance_namespace.errors import InvalidInputError, LanceNamespaceError

from lancehouse.suggestions import suggest

if TYPE_CHECKING:
    import yaml

MAX_VALUES = 100_000
"""Most values in one file; only aliases that repeat each other reach it."""

Loc = tuple[Any, ...]
"""Location in a file: the keys and list indices that lead to a value."""

_REFERENCE = re.compile(r"\$(\$\{)|\$\{\s*([^}]*?)\s*\}")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_UNQUOTED_REFERENCE = re.compile(r"[{\[,:]\s*\$\{")
_TAG = "tag:yaml.org,2002:"
_KEY_TAGS = {f"{_TAG}{kind}" for kind in ("str", "int", "float", "bool", "timestamp")}
_SCALAR_TAGS = {*_KEY_TAGS, f"{_TAG}null"}


class ScalarText(str):
    """A scalar as it is written, numbers too, so that `007` stays unchanged where text is expected."""

    __slots__ = ("is_quoted",)
    is_quoted: bool

    @classmethod
    def from_scalar(cls, text: str, *, is_quoted: bool) -> ScalarText:
        scalar = cls(text)
        scalar.is_quoted = is_quoted
        return scalar


@dataclass(frozen=True, slots=True)
class Problem:
    """One problem, with its file and line."""

    file: str
    line: int
    text: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.text}"


class DocumentError(InvalidInputError):
    """A file does not have the expected content. The message shows no values, which may be secret.

    Args:
        problems: all problems that were found.
    """

    def __init__(self, problems: Sequence[Problem]) -> None:
        self.problems = tuple(sorted(problems, key=lambda problem: problem.line))
        super().__init__("\n".join(map(str, self.problems)))


@dataclass(frozen=True, slots=True)
class Problems:
    """Collects the problems of a file."""

    file: str
    lines: Mapping[Loc, int]
    error_class: type[DocumentError] = DocumentError
    problems: list[Problem] = field(default_factory=list)

    def add(self, text: str, *loc: Any) -> None:
        """Add a problem at a location. If the file has nothing there, the line is that of the enclosing key."""
        self.problems.append(Problem(self.file, find_line(self.lines, loc), text))

    @contextmanager
    def collect(self, *loc: Any) -> Iterator[None]:
        """Add the Lance error that is raised inside the block as a problem, and suppress it."""
        try:
            yield
        except DocumentError as error:
            self.problems.extend(error.problems)
        except LanceNamespaceError as error:
            self.add(str(error), *loc)

    def raise_if_any(self) -> None:
        """Raise the problems that were collected.

        Raises:
            DocumentError: there are some.
        """
        if self.problems:
            raise self.error_class(self.problems)


@dataclass(frozen=True, slots=True)
class Document:
    """The content of a YAML file: nested dicts and lists of `ScalarText` and None, and the line of each value."""

    file: str = ""
    """Name of the file in errors; empty if there is no file."""
    values: dict[str, Any] = field(default_factory=dict, repr=False)
    lines: Mapping[Loc, int] = field(default_factory=dict, repr=False)

    def error(self, text: str, *loc: Any) -> InvalidInputError:
        """Return an error about the value at a location."""
        if not self.file:
            return InvalidInputError(text)
        return DocumentError([Problem(self.file, find_line(self.lines, loc), text)])

    def key_error(self, text: str, *loc: Any) -> InvalidInputError:
        """Return an error whose text begins with the key at a location."""
        return self.error(f"key '{format_loc(loc)}' {text}", *loc)

    def check_keys(self, mapping: Mapping[str, Any], allowed: Iterable[str], *loc: Any) -> None:
        """Check that the mapping at a location has no other keys than these.

        Raises:
            InvalidInputError: it has another key.
        """
        names = list(allowed)
        for key in mapping:
            if key not in names:
                raise self.error(f"unknown key '{format_loc((*loc, key))}'; {suggest(key, names)}", *loc, key)


def find_line(lines: Mapping[Loc, int], loc: Loc) -> int:
    """Return the line of a location, or of the nearest enclosing key that has one."""
    while loc and loc not in lines:
        loc = loc[:-1]
    return lines.get(loc, 1)


def format_loc(loc: Loc) -> str:
    """Format a location as users write it: `warehouses.w.roots[0]`."""
    return "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in loc).removeprefix(".")


def read_yaml(path: Path, name: str, keys: str, error_class: type[DocumentError] = DocumentError) -> Document:
    """Read a YAML file that has keys and values. Duplicate keys are refused.

    Args:
        path: path of the file.
        name: name of the file in errors.
        keys: keys that the file may have, for the error about one that has none.
        error_class: class of the error to raise.

    Raises:
        DocumentError: the content is not YAML of this form; the message shows no values.
        InvalidInputError: the file cannot be read.
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        raise InvalidInputError(f"{name} cannot be read: {error.strerror}") from None
    lines: dict[Loc, int] = {(): 1}
    problems = Problems(name, lines, error_class)
    try:
        root = _compose(data, problems)
        values = _NodeReader(problems, lines).read_value(root, (), ()) if root is not None else {}
    except RecursionError:
        problems.add("this is nested too deeply")
        values = {}
    problems.raise_if_any()
    if not isinstance(values, dict):
        problems.add(f"the file must have keys and values, such as {keys}")
        problems.raise_if_any()
    return Document(name, values, lines)


def _compose(data: bytes, problems: Problems) -> yaml.Node | None:
    """Return the root of a YAML file, or add a problem."""
    import yaml

    def add(line: int, reason: str) -> None:
        problems.problems.append(Problem(problems.file, line, f"this is not valid YAML: {reason}"))

    try:
        text = data.decode()
        root: yaml.Node | None = yaml.compose(text, Loader=yaml.SafeLoader)
        return root
    except UnicodeDecodeError as error:
        add(data.count(b"\n", 0, error.start) + 1, "the file is not UTF-8")
    except yaml.reader.ReaderError as error:
        add(text.count("\n", 0, error.position) + 1, error.reason)
    except yaml.MarkedYAMLError as error:
        mark, source_lines = error.problem_mark or error.context_mark, text.splitlines() or [""]
        line = min(mark.line if mark else 0, len(source_lines) - 1)  # unclosed parts are reported after the last line
        reason = ", ".join(filter(None, (error.context, error.problem)))
        # YAML quotes names, and one may be a secret that begins with * or !.
        reason = re.sub(r"\b(alias|anchor|tag|handle) ['\"].*", r"\1", reason)
        if _UNQUOTED_REFERENCE.search(source_lines[line]):
            reason = 'put values with ${…} in quotes inside {…} and […]: "${name}"'
        add(line + 1, reason)
    return None


@dataclass(frozen=True, slots=True)
class _NodeReader:
    """Converts YAML nodes to values, and records their lines."""

    problems: Problems
    lines: dict[Loc, int]

    def read_value(self, node: Any, loc: Loc, above: tuple[Any, ...]) -> Any:
        if node in above:
            self.problems.add("this contains itself", *loc)
            return None
        if len(self.lines) > MAX_VALUES:
            self.problems.add(f"the file has more than {MAX_VALUES} values", *loc)
            self.problems.raise_if_any()
        above = (*above, node)
        if node.id == "mapping":
            return self._read_mapping(node, loc, above)
        if node.id == "sequence":
            return [self._read_item(child, (*loc, index), above) for index, child in enumerate(node.value)]
        if node.tag not in _SCALAR_TAGS:
            self.problems.add("this tag is not supported; put the value in quotes", *loc)
        if node.tag == f"{_TAG}null":
            return None
        return ScalarText.from_scalar(node.value, is_quoted=getattr(node, "style", None) is not None)

    def _read_item(self, node: Any, loc: Loc, above: tuple[Any, ...]) -> Any:
        self.lines[loc] = node.start_mark.line + 1
        return self.read_value(node, loc, above)

    def _read_mapping(self, node: Any, loc: Loc, above: tuple[Any, ...]) -> dict[str, Any]:
        inherited: dict[str, Any] = {}
        values: dict[str, Any] = {}
        # What `<<` inherits is read first, so that the lines of the mapping's own keys remain.
        for key, child in sorted(node.value, key=lambda pair: bool(pair[0].tag != f"{_TAG}merge")):
            line = key.start_mark.line + 1
            if key.tag == f"{_TAG}merge":
                for parent in child.value if child.id == "sequence" else [child]:
                    base = self.read_value(parent, loc, above)
                    inherited = {**base, **inherited} if isinstance(base, dict) else inherited
                continue
            if key.tag not in _KEY_TAGS:
                self._add_at(line, "a key must be text")
                continue
            if key.value in values:
                self._add_at(line, f"the key '{format_loc((*loc, key.value))}' occurs twice")
            self.lines[(*loc, key.value)] = line
            values[key.value] = self.read_value(child, (*loc, key.value), above)
        return {**inherited, **values}

    def _add_at(self, line: int, text: str) -> None:
        self.problems.problems.append(Problem(self.problems.file, line, text))


def substitute(value: Any, resolve: Callable[[str, Loc], str | None], loc: Loc = ()) -> Any:
    """Replace `${…}` in all texts of a value; `$${` stands for `${` itself.

    Args:
        value: a value of a document.
        resolve: takes what is between the braces, and the location of the text; returns None to keep it unchanged.
        loc: location of the value.
    """
    if isinstance(value, dict):
        return {key: substitute(child, resolve, (*loc, key)) for key, child in value.items()}
    if isinstance(value, list):
        return [substitute(child, resolve, (*loc, index)) for index, child in enumerate(value)]
    if not isinstance(value, str):
        return value

    def replace(match: re.Match[str]) -> str:
        if match[1]:
            return match[1]
        replacement = resolve(match[2], loc)
        return match[0] if replacement is None else replacement

    text = _REFERENCE.sub(replace, value)
    if not isinstance(value, ScalarText):
        return text
    is_one = _REFERENCE.fullmatch(value) is not None  # quoted only because YAML requires it in {…} and […]
    return ScalarText.from_scalar(text, is_quoted=value.is_quoted and not is_one)


def substitute_variables(value: Any, missing: Callable[[str, Loc], Exception]) -> Any:
    """Replace `${NAME}` in all texts of a value by the environment variable of that name.

    Args:
        value: a value of a document.
        missing: takes the name of a variable that is not set, and the location of the text; returns the error to raise.
    """

    def resolve(name: str, loc: Loc) -> str | None:
        if not _VARIABLE.fullmatch(name):
            return None
        if name not in os.environ:
            raise missing(name, loc)
        return os.environ[name]

    return substitute(value, resolve)


def to_plain(value: Any) -> Any:
    """Convert scalars to the types that YAML gives them: numbers, booleans or text; quoted ones stay text."""
    if isinstance(value, dict):
        return {key: to_plain(child) for key, child in value.items()}
    if isinstance(value, list | tuple):
        return [to_plain(child) for child in value]
    if not isinstance(value, ScalarText) or value.is_quoted:
        return str(value) if isinstance(value, str) else value
    import yaml

    resolver: Any = yaml.SafeLoader("")
    tag: str = resolver.resolve(yaml.ScalarNode, value, (True, False))
    return yaml.safe_load(value) if tag.removeprefix(_TAG) in ("int", "float", "bool") else str(value)
