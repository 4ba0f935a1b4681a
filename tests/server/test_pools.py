from __future__ import annotations

import threading

from lancehouse.server.limits import Limits
from lancehouse.server.pools import Place, Pools


def test_who_waits_in_one_place_keeps_nobody_waiting_in_another() -> None:
    pools = Pools(Limits(threads=2, scan_threads=1, row_threads=1, upload_threads=1))
    go = threading.Event()
    places = [Place("requests"), Place("scans"), Place("rows"), Place("uploads"), Place("requests", "far")]
    stuck = [pools.submit(place, go.wait) for place in places for _ in range(4)]
    for other in (Place("requests", "near"), Place("rows", "far"), Place("uploads", "far")):
        assert pools.submit(other, lambda: 7).result(10) == 7
    assert not any(each.done() for each in stuck)
    go.set()
    assert all(each.result(10) for each in stuck)
    pools.close()


def test_how_long_work_may_take() -> None:
    pools = Pools(Limits(handle_s=1, plan_s=2, rows_s=3))
    assert [pools.limit_s(Place(kind)) for kind in ("requests", "scans", "rows", "uploads")] == [1, 2, 3, 3]
