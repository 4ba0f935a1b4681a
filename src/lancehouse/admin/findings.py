"""What may be wrong with a catalog, and what to do about it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum


class Severity(StrEnum):
    """How bad something is."""

    ERROR = "error"
    """Data cannot be read, or may get lost."""
    WARNING = "warning"
    """Something is out of order, and nothing is lost by it yet."""
    NOTE = "note"
    """Good to know."""


class FindingKind(StrEnum):
    """What is wrong."""

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
    """One thing that is wrong."""

    kind: FindingKind
    severity: Severity
    about: str
    """The table as it is typed, or a place; empty for the catalog."""
    what: str
    command: str = ""
    """What to type next."""
    fix: Callable[[], None] | None = field(default=None, repr=False, compare=False)
    """Does what is safe."""
    is_fixed: bool = False
    failure: str = ""
    """Why it could not be mended."""

    @property
    def needs_action(self) -> bool:
        """Whether somebody has to do something."""
        return self.severity is not Severity.NOTE and not self.is_fixed

    def as_fixed(self) -> Finding:
        """The same, mended."""
        return replace(self, is_fixed=True, failure="")

    def as_failed(self, why: str) -> Finding:
        """The same, not to be mended."""
        return replace(self, failure=why)


@dataclass(frozen=True, slots=True)
class DoctorReport:
    """What a look at a catalog found."""

    tables: int
    findings: Sequence[Finding]

    @property
    def needs_action(self) -> bool:
        """Whether anything does."""
        return any(each.needs_action for each in self.findings)

    @property
    def fixable(self) -> list[Finding]:
        """What can be mended."""
        return [each for each in self.findings if each.fix is not None and not each.is_fixed]


ORDER = list(Severity)


def sort_findings(findings: Sequence[Finding]) -> list[Finding]:
    """The worst first; then by table."""
    return sorted(findings, key=lambda each: (ORDER.index(each.severity), each.about, each.kind, each.what))
