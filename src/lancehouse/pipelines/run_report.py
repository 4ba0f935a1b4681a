"""The report of a pipeline run: its steps, rows, versions and failures."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

DONE, BEFORE, IDLE, FAILED, SKIPPED = "done", "done before", "nothing to do", "failed", "skipped"
UNFINISHED = "not finished"
"""States of a step or of a run."""


@dataclass(slots=True)
class RunStep:
    """One step of a run."""

    step: str
    where: str
    """Where it ran: Arrow, Spark, or the driver."""
    state: str = DONE
    version: int | None = None
    """Version of the table after the step."""
    rows: int | None = None
    seconds: float = 0.0
    says: str = ""


@dataclass(slots=True)
class RunReport:
    """What a run has done so far."""

    pipeline: str
    run: str
    table: str
    state: str = UNFINISHED
    rows_in: int | None = None
    """Number of rows read from the source; None if it is not known."""
    rows_out: int | None = None
    """Number of rows written to the table."""
    rows: int | None = None
    """Number of rows in the table after the run."""
    version_before: int | None = None
    version_after: int | None = None
    tag: str | None = None
    seconds: float = 0.0
    steps: list[RunStep] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    """Expectations that are not met, a sentence each."""
    error: str | None = None

    @property
    def has_passed(self) -> bool:
        """Whether the run succeeded."""
        return self.state in (DONE, BEFORE)

    @property
    def has_changed(self) -> bool:
        """Whether the run did anything besides checks."""
        return any(step.state == DONE and step.step != "expect" for step in self.steps)

    def fail(self, error: BaseException) -> None:
        """Record the error that ended the run."""
        self.state = FAILED
        self.error = "interrupted" if isinstance(error, KeyboardInterrupt) else str(error) or type(error).__name__

    def to_json(self) -> dict[str, Any]:
        """Return the report as a dict for JSON."""
        return asdict(self)
