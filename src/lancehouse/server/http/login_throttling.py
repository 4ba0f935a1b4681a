"""Throttling of logins: delays after wrong secrets, and a limit on logins that wait.

Failures are counted by client id and peer address together. By client id alone, anybody could lock a principal out by
guessing; by address alone, one misconfigured program would lock out all others behind the same proxy.
"""

from __future__ import annotations

import threading
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from ipaddress import IPv6Address, ip_address

from lance_namespace.errors import ServiceUnavailableError, ThrottlingError

from lancehouse.catalog.hashes import digest

FREE = 5
"""Wrong secrets in a row without a delay: people mistype, and programs start with an old secret."""
FIRST_S = 1.0
LONGEST_S = 60.0
"""The delay after a failure starts at `FIRST_S` and doubles with each further one, up to this many seconds."""
FORGOTTEN_S = 900.0
"""Seconds after the last failure when failures no longer count."""
COUNTED = 10_000
"""Pairs of client id and address that are tracked at most.

Evicting one takes that many wrong secrets, which takes longer than its delay.
"""

WAITING = 256
"""Logins that wait for a thread at once. More could take up all requests that a worker handles at once."""
WAITING_OF_A_PEER = 128


class SlowDownError(ThrottlingError):
    """Too many wrong secrets were sent; the next attempt is accepted after `retry_after_s` seconds."""

    def __init__(self, wait_s: float) -> None:
        self.retry_after_s = max(1, -int(-wait_s // 1))
        super().__init__(f"too many wrong secrets for this client id from your address; wait {self.retry_after_s} s")


@dataclass(slots=True)
class _Failures:
    count: int
    last_at: float

    @property
    def pause_s(self) -> float:
        over = self.count - FREE
        return min(FIRST_S * 2.0 ** min(over, 32), LONGEST_S) if over >= 0 else 0.0


class LoginAttempts:
    """Counts wrong secrets, in the memory of this process only. Thread-safe."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._failures: OrderedDict[str, _Failures] = OrderedDict()
        self._lock = threading.Lock()

    def check(self, client_id: str, peer: str) -> None:
        """Refuse an attempt before its delay is over.

        Raises:
            SlowDownError: it says how long to wait.
        """
        with self._lock:
            failures = self._failures.get(_attempt_key(client_id, peer))
            wait_s = 0.0 if failures is None else failures.last_at + failures.pause_s - self._clock()
        if wait_s > 0:
            raise SlowDownError(wait_s)

    def count_failure(self, client_id: str, peer: str) -> None:
        """Record a wrong secret."""
        key, now = _attempt_key(client_id, peer), self._clock()
        with self._lock:
            before = self._failures.pop(key, None)
            count = before.count if before and now - before.last_at < FORGOTTEN_S else 0
            self._failures[key] = _Failures(count + 1, now)
            while len(self._failures) > COUNTED:
                self._failures.popitem(last=False)

    def reset(self, client_id: str, peer: str) -> None:
        """Forget the failures after the right secret came."""
        with self._lock:
            self._failures.pop(_attempt_key(client_id, peer), None)


class LoginQueue:
    """Limits how many logins wait for a thread, in total and from one peer. For the event loop's thread only."""

    def __init__(self) -> None:
        self._peers: Counter[str] = Counter()

    @contextmanager
    def enter(self, peer: str) -> Iterator[None]:
        """Count a login as waiting while the context is open.

        Raises:
            ServiceUnavailableError: too many are waiting already.
        """
        key = peer_network(peer)
        if self._peers.total() >= WAITING or self._peers[key] >= WAITING_OF_A_PEER:
            raise ServiceUnavailableError("too many clients ask for tokens at once; try again")
        self._peers[key] += 1
        try:
            yield
        finally:
            self._peers[key] -= 1
            if not self._peers[key]:
                del self._peers[key]


def peer_network(peer: str) -> str:
    """Return the address that attempts are counted by.

    Of IPv6 these are the first 64 bits, as a single host may use all addresses of the rest.
    """
    try:
        address = ip_address(peer.partition("%")[0])
    except ValueError:
        return peer
    if isinstance(address, IPv6Address):
        return str(address.ipv4_mapped or address.exploded[:19])
    return str(address)


def _attempt_key(client_id: str, peer: str) -> str:
    """Return a key of constant length, however long the client id is."""
    return digest(f"{peer_network(peer)} {client_id}")
