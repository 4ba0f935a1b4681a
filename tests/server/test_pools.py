from __future__ import annotations

import itertools
import threading

import pytest
from lance_namespace.errors import ServiceUnavailableError

from lancehouse.server.http.pools import PoolKey, Pools
from lancehouse.server.setting_table import ServerLimits
from tests.waiting import PATIENCE_S


def test_who_waits_in_one_place_keeps_nobody_waiting_in_another() -> None:
    pools = Pools(ServerLimits(threads=2, scan_threads=1, row_threads=1, upload_threads=1))
    go = threading.Event()
    places = [PoolKey("requests"), PoolKey("scans"), PoolKey("rows"), PoolKey("uploads"), PoolKey("requests", "far")]
    stuck = [pools.submit(place, go.wait) for place in places for _ in range(4)]
    for other in (PoolKey("requests", "near"), PoolKey("rows", "far"), PoolKey("uploads", "far")):
        assert pools.submit(other, lambda: 7).result(PATIENCE_S) == 7
    assert not any(each.done() for each in stuck)
    go.set()
    assert all(each.result(PATIENCE_S) for each in stuck)
    pools.close()


def test_how_long_work_may_take() -> None:
    pools = Pools(ServerLimits(handle_s=1, plan_s=2, rows_s=3))
    assert [pools.limit_s(PoolKey(kind)) for kind in ("requests", "scans", "rows", "uploads")] == [1, 2, 3, 3]


def test_threads_are_started_before_they_are_needed() -> None:
    """Starting one blocks until it runs, and the event loop must not wait for that."""
    pools = Pools(ServerLimits(threads=3, scan_threads=1, row_threads=2, upload_threads=4))
    pools.start()
    before = threading.active_count()
    ready = threading.Barrier(4 + 1)
    for _ in range(4):
        pools.submit(PoolKey("uploads"), ready.wait)
    ready.wait(PATIENCE_S)
    assert threading.active_count() == before
    pools.close()


def test_a_machine_that_does_not_allow_so_many_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is said, and the threads that were started end."""
    start, started = threading.Thread.start, itertools.count()
    pools = Pools(ServerLimits(threads=3, scan_threads=1, row_threads=2, upload_threads=4))

    def start_some(thread: threading.Thread) -> None:
        if next(started) >= 8:
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", start_some)
    with pytest.raises(ServiceUnavailableError, match="cannot start 4 threads for uploads: can't start new thread"):
        pools.start()
    for pool in pools._pools.values():
        pool.shutdown(wait=True, cancel_futures=True)
