"""Wait for what another process or thread does."""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic, sleep

PATIENCE_S = 120.0
"""Long enough for a machine that is busy with other work: whoever waits so long waits in vain."""


def wait_until(condition: Callable[[], object]) -> None:
    """Return once a condition is true; fail if that takes too long."""
    deadline = monotonic() + PATIENCE_S
    while not condition():
        assert monotonic() < deadline, "waited in vain"
        sleep(0.02)
