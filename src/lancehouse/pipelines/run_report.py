"""What a run has done."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

DONE, BEFORE, IDLE, FAILED, SKIPPED = "done", "done before", "nothing to do", "failed", "skipped"
UNFINISHED = "not finished"
"""What became of a step, or of a run."""


@dataclass(slots=True)
class RunStep:
    """One step of a run."""

    step: str
    where: str
    """Arrow, Spark, or the driver."""
    state: str = DONE
    version: int | None = None
    """Of the table, after it."""
    rows: int | None = None
    seconds: float = 0.0
    says: str = ""


@dataclass(slots=True)
class RunReport:
    """A run, as far as it went."""

    pipeline: str
    run: str
    table: str
    state: str = UNFINISHED
    rows_in: int | None = None
    """Read from the source; None where nothing tells."""
    rows_out: int | None = None
    """Written to the table."""
    rows: int | None = None
    """In the table, after it."""
    version_before: int | None = None
    version_after: int | None = None
    tag: str | None = None
    seconds: float = 0.0
    steps: list[RunStep] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    """Expectations that do not hold, a sentence each."""
    error: str | None = None

    @property
    def has_passed(self) -> bool:
        """Whether all went well."""
        return self.state in (DONE, BEFORE)

    @property
    def has_changed(self) -> bool:
        """Whether it did anything that others see."""
        return any(step.state == DONE and step.step != "expect" for step in self.steps)

    def fail(self, error: BaseException) -> None:
        """Say what ended it."""
        self.state = FAILED
        self.error = "interrupted" if isinstance(error, KeyboardInterrupt) else str(error) or type(error).__name__

    def to_json(self) -> dict[str, Any]:
        """All of it, for programs."""
        return asdict(self)
