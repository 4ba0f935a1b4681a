"""Results of the conformance suite: outcome of each check, and the report."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any

from lancehouse.deprecation import forward_names


class CheckOutcome(StrEnum):
    """Outcome of a check."""

    HOLDS = "holds"
    FAILS = "fails"
    KNOWN = "known"
    """It fails, and is listed as known to fail."""
    UNSUPPORTED = "unsupported"
    """The implementation reports the operation as unsupported."""
    SKIPPED = "not checked"
    """It does not apply here; `seen` says why."""


@dataclass(frozen=True)
class CheckResult:
    """Result of one check."""

    area: str
    check: str
    """Its name, `area.what` or `area.what[case]`."""
    sentence: str
    outcome: CheckOutcome
    seen: str
    seconds: float


@dataclass
class ConformanceReport:
    """Results of a run."""

    impl: str
    parent: tuple[str, ...]
    results: list[CheckResult] = field(default_factory=list)
    trouble: list[str] = field(default_factory=list)
    """Why the suite itself could not run to its end."""
    interrupted: bool = False

    @property
    def ok(self) -> bool:
        """Whether the run is complete and no check failed, except those known to fail."""
        return bool(self.results) and not (self.trouble or self.interrupted or self.with_outcome(CheckOutcome.FAILS))

    def with_outcome(self, outcome: CheckOutcome) -> list[CheckResult]:
        """Return the checks with this outcome."""
        return [result for result in self.results if result.outcome is outcome]

    def count_by_outcome(self) -> dict[str, int]:
        """Return the number of checks by outcome."""
        count = Counter(result.outcome for result in self.results)
        return {outcome.value: count[outcome] for outcome in CheckOutcome}

    def to_rows(self) -> list[dict[str, Any]]:
        """Return the results as JSON."""
        return [{**asdict(result), "outcome": result.outcome.value} for result in self.results]


__getattr__ = forward_names(__name__, {"Report": f"{__name__}.ConformanceReport"})
