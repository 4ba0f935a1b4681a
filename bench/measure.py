"""Two clients side by side: the same work in turns, with wall-clock time and CPU time of each, and HTTP requests."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from statistics import median

FEWEST_ROUNDS = 3
PATIENCE_S = 15.0
"""After so long a case ends with the fewest rounds."""

Job = Callable[[], Collection[str]]
"""One piece of timed work; it returns the names that it was told, if it lists."""
Steps = Callable[[], Sequence[Job]]
"""Makes ready what is not timed, and gives the jobs of one round."""


@dataclass(frozen=True, slots=True)
class JobRun:
    """One job, once."""

    wall_s: float
    cpu_s: float
    names: Collection[str] = ()


@dataclass(slots=True)
class ClientRuns:
    """One client's runs of a job and the requests of one of them; `error` is why there are none."""

    runs: list[JobRun] = field(default_factory=list)
    requests: int = 0
    error: str = ""

    @property
    def wall_s(self) -> float:
        """The median."""
        return median(run.wall_s for run in self.runs)

    @property
    def cpu_s(self) -> float:
        """The median of the CPU time of the client's process."""
        return median(run.cpu_s for run in self.runs)


def side_by_side(
    ours: Steps, peer: Steps, rounds: int, failure: type[Exception]
) -> list[tuple[ClientRuns, ClientRuns]]:
    """Rounds in which both clients do their jobs, the one that begins changing; a pair for each job.

    A peer that fails with `failure` has no figures for any job; what we raise ends the benchmark.
    """
    pairs: list[tuple[ClientRuns, ClientRuns]] = []
    started = time.monotonic()
    for number in range(rounds):
        turns = [(0, ours), (1, peer)]
        for who, steps in turns if number % 2 == 0 else reversed(turns):
            jobs = steps()
            pairs = pairs or [(ClientRuns(), ClientRuns()) for _ in jobs]
            for pair, job in zip(pairs, jobs, strict=True):
                side = pair[who]
                try:
                    side.runs.append(_time_job(job))
                except failure as error:
                    if who == 0:
                        raise
                    side.error = str(error)
        if number + 1 >= FEWEST_ROUNDS and time.monotonic() - started > PATIENCE_S:
            break
    return pairs


def count_requests(steps: Steps, requests: Callable[[], int], failure: type[Exception]) -> list[int]:
    """The HTTP requests of each job in a round that is not timed; those of a job that fails with `failure` too."""
    numbers = []
    for job in steps():
        before = requests()
        with suppress(failure):
            job()
        numbers.append(requests() - before)
    return numbers


def _time_job(job: Job) -> JobRun:
    cpu, wall = time.process_time(), time.perf_counter()
    names = job()
    return JobRun(time.perf_counter() - wall, time.process_time() - cpu, names)
