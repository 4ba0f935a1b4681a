"""Problems in a pipeline file, each with its line, and the error that lists them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from lance_namespace.errors import InvalidInputError, LanceNamespaceError

Loc = tuple[Any, ...]
"""Location in a file: the keys and list indices that lead to a value."""


@dataclass(frozen=True, slots=True)
class Problem:
    """One problem, with its file and line."""

    file: str
    line: int
    text: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.text}"


class PipelineError(InvalidInputError):
    """A pipeline cannot run as it is written. Nothing was done.

    Args:
        problems: all problems that were found.
    """

    def __init__(self, problems: Sequence[Problem]) -> None:
        self.problems = tuple(sorted(problems, key=lambda each: each.line))
        super().__init__("\n".join(map(str, self.problems)))


@dataclass(frozen=True, slots=True)
class Problems:
    """Collects the problems of a file."""

    file: str
    lines: Mapping[Loc, int]
    problems: list[Problem] = field(default_factory=list)

    def add(self, text: str, *loc: Any) -> None:
        """Add a problem at a location. If the file has nothing there, the line is that of the enclosing key."""
        while loc and loc not in self.lines:
            loc = loc[:-1]
        self.problems.append(Problem(self.file, self.lines.get(loc, 1), text))

    @contextmanager
    def collect(self, *loc: Any) -> Iterator[None]:
        """Add the Lance error that is raised inside the block as a problem, and suppress it."""
        try:
            yield
        except PipelineError as error:
            self.problems.extend(error.problems)
        except LanceNamespaceError as error:
            self.add(str(error), *loc)

    def raise_if_any(self) -> None:
        """Raise the problems that were collected.

        Raises:
            PipelineError: there are some.
        """
        if self.problems:
            raise PipelineError(self.problems)
