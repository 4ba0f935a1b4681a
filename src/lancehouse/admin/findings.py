"""Findings of `Doctor`: kind, severity, suggested command and fix of each problem, and the report."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum


class Severity(StrEnum):
    """How serious a finding is."""

    ERROR = "error"
    """Data cannot be read, or may be lost."""
    WARNING = "warning"
    """Something is out of order, but no data is at risk yet."""
    NOTE = "note"
    """For information only."""


class FindingKind(StrEnum):
    """Kinds of problems."""

    NO_DATA = "no-data"
    NO_ENTRY = "no-entry"
    STALE_SCHEMA = "stale-schema"
    VERSIONS = "versions"
    UNFINISHED = "unfinished"
    STAGED = "staged"
    ORPHANS = "orphans"
    OVERLAP = "overlap"
    CLEAN_UP = "clean-up"
    CREDENTIALS = "credentials"
    FEATURES = "features"
    UNREADABLE = "unreadable"


@dataclass(frozen=True, slots=True)
class Finding:
    """One problem of a table or of the catalog."""

    kind: FindingKind
    severity: Severity
    about: str
    """The table as the user types it, or a location; empty for the catalog itself."""
    what: str
    command: str = ""
    """The command to type next; empty if there is none."""
    fix: Callable[[], None] | None = field(default=None, repr=False, compare=False)
    """Repairs the problem, where that is safe; else None."""
    is_fixed: bool = False
    failure: str = ""
    """Why the fix failed; empty if it did not."""

    @property
    def needs_action(self) -> bool:
        """Whether the user has to do something."""
        return self.severity is not Severity.NOTE and not self.is_fixed

    def as_fixed(self) -> Finding:
        """Return a copy that is marked as fixed."""
        return replace(self, is_fixed=True, failure="")

    def as_failed(self, why: str) -> Finding:
        """Return a copy whose fix failed."""
        return replace(self, failure=why)


@dataclass(frozen=True, slots=True)
class DoctorReport:
    """The result of a check."""

    tables: int
    findings: Sequence[Finding]

    @property
    def needs_action(self) -> bool:
        """Whether any finding needs action."""
        return any(each.needs_action for each in self.findings)

    @property
    def fixable(self) -> list[Finding]:
        """Findings that have a fix and are not fixed yet."""
        return [each for each in self.findings if each.fix is not None and not each.is_fixed]


ORDER = list(Severity)


def sort_findings(findings: Sequence[Finding]) -> list[Finding]:
    """Return findings by severity, the worst first, then by table."""
    return sorted(findings, key=lambda each: (ORDER.index(each.severity), each.about, each.kind, each.what))
