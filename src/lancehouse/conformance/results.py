"""What the suite found out, as data."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any


class Outcome(StrEnum):
    """What became of a check."""

    HOLDS = "holds"
    FAILS = "fails"
    KNOWN = "known"
    """It fails, and was said to."""
    UNSUPPORTED = "unsupported"
    """The implementation says that it does not do this."""
    SKIPPED = "not checked"
    """It makes no sense here; `seen` says why."""


@dataclass(frozen=True)
class Result:
    """What became of one check."""

    area: str
    check: str
    """Its name, `area.what` or `area.what[case]`."""
    sentence: str
    outcome: Outcome
    seen: str
    seconds: float


@dataclass
class Report:
    """What became of all of them."""

    impl: str
    parent: tuple[str, ...]
    results: list[Result] = field(default_factory=list)
    trouble: list[str] = field(default_factory=list)
    """Why the suite itself could not run to its end."""
    interrupted: bool = False

    @property
    def ok(self) -> bool:
        """Whether all ran, and nothing failed that was not known to."""
        return bool(self.results) and not (self.trouble or self.interrupted or self.of(Outcome.FAILS))

    def of(self, outcome: Outcome) -> list[Result]:
        """The checks with this outcome."""
        return [result for result in self.results if result.outcome is outcome]

    def counts(self) -> dict[str, int]:
        """How many checks have which outcome."""
        count = Counter(result.outcome for result in self.results)
        return {outcome.value: count[outcome] for outcome in Outcome}

    def rows(self) -> list[dict[str, Any]]:
        """The results as plain data."""
        return [{**asdict(result), "outcome": result.outcome.value} for result in self.results]
