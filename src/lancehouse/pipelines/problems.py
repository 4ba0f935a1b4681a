"""What is wrong with a pipeline, each with its line."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from lance_namespace.errors import InvalidInputError, LanceNamespaceError

Loc = tuple[Any, ...]
"""Where something is in a file: the keys and the places in lists that lead to it."""


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is wrong."""

    file: str
    line: int
    text: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.text}"


class PipelineError(InvalidInputError):
    """A pipeline cannot run as it is written. Nothing was done.

    Args:
        problems: all that is known to be wrong with it.
    """

    def __init__(self, problems: Sequence[Problem]) -> None:
        self.problems = tuple(sorted(problems, key=lambda each: each.line))
        super().__init__("\n".join(map(str, self.problems)))


@dataclass(frozen=True, slots=True)
class Problems:
    """Collects what is wrong with a file."""

    file: str
    lines: Mapping[Loc, int]
    problems: list[Problem] = field(default_factory=list)

    def add(self, text: str, *loc: Any) -> None:
        """Note what is wrong with what the file says somewhere; if it says nothing there, the line is that above."""
        while loc and loc not in self.lines:
            loc = loc[:-1]
        self.problems.append(Problem(self.file, self.lines.get(loc, 1), text))

    @contextmanager
    def collect(self, *loc: Any) -> Iterator[None]:
        """Note what is raised inside."""
        try:
            yield
        except PipelineError as error:
            self.problems.extend(error.problems)
        except LanceNamespaceError as error:
            self.add(str(error), *loc)

    def raise_if_any(self) -> None:
        """Go no further if anything is wrong.

        Raises:
            PipelineError: it is.
        """
        if self.problems:
            raise PipelineError(self.problems)
