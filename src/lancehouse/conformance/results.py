"""What the suite found out, as data."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any


class CheckOutcome(StrEnum):
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
class CheckResult:
    """What became of one check."""

    area: str
    check: str
    """Its name, `area.what` or `area.what[case]`."""
    sentence: str
    outcome: CheckOutcome
    seen: str
    seconds: float


@dataclass
class ConformanceReport:
    """What became of all of them."""

    impl: str
    parent: tuple[str, ...]
    results: list[CheckResult] = field(default_factory=list)
    trouble: list[str] = field(default_factory=list)
    """Why the suite itself could not run to its end."""
    interrupted: bool = False

    @property
    def ok(self) -> bool:
        """Whether all ran, and nothing failed that was not known to."""
        return bool(self.results) and not (self.trouble or self.interrupted or self.with_outcome(CheckOutcome.FAILS))

    def with_outcome(self, outcome: CheckOutcome) -> list[CheckResult]:
        """The checks with this outcome."""
        return [result for result in self.results if result.outcome is outcome]

    def count_by_outcome(self) -> dict[str, int]:
        """How many checks have which outcome."""
        count = Counter(result.outcome for result in self.results)
        return {outcome.value: count[outcome] for outcome in CheckOutcome}

    def to_rows(self) -> list[dict[str, Any]]:
        """The results as plain data."""
        return [{**asdict(result), "outcome": result.outcome.value} for result in self.results]
