from __future__ import annotations

import gc
from collections.abc import Iterator
from concurrent.futures import Future

import pytest
from lance_namespace.errors import ServiceUnavailableError

from lancehouse.server.http.bodies import MemoryBudget
from lancehouse.server.http.errors import PayloadTooLargeError
from lancehouse.server.http.responses import Response


def test_requests_share_it() -> None:
    budget = MemoryBudget(100)
    with budget.reserve() as first, budget.reserve() as second:
        first.grow(60)
        second.grow(40)
        with pytest.raises(ServiceUnavailableError, match="try again"):
            second.grow(1)
        with pytest.raises(PayloadTooLargeError, match="more than 100 bytes"):
            second.grow(61)
        first.shrink(10)
        second.grow(10)
        assert budget.used == 100
    assert budget.used == 0


def test_who_can_do_without_leaves_half_to_others() -> None:
    budget = MemoryBudget(100)
    with budget.reserve() as memory:
        assert memory.try_grow(50)
        assert not memory.try_grow(1)
        memory.grow(50)


def test_a_request_that_is_over_holds_nothing_more() -> None:
    budget = MemoryBudget(100)
    with budget.reserve() as memory:
        memory.grow(10)
    assert not memory.try_grow(1)
    with pytest.raises(ServiceUnavailableError):
        memory.grow(1)
    memory.shrink(10)
    assert budget.used == 0


@pytest.mark.parametrize("ending", ["answered", "failed", "cancelled"])
def test_work_that_goes_on_keeps_its_memory(ending: str) -> None:
    budget, work = MemoryBudget(100), Future[Response]()
    with budget.reserve() as memory:
        memory.grow(10)
        memory.release_after(work)
    assert budget.used == 10
    if ending == "answered":
        work.set_result(Response(200))
    elif ending == "failed":
        work.set_exception(ValueError())
    else:
        work.cancel()
    assert budget.used == 0


def test_an_answer_of_many_rows_keeps_it_until_they_are_sent() -> None:
    def rows() -> Iterator[bytes]:
        yield b"row"

    budget, work = MemoryBudget(100), Future[Response]()
    with budget.reserve() as memory:
        memory.grow(10)
        memory.release_after(work)
    response = Response(200, parts=rows())
    work.set_result(response)
    assert budget.used == 10
    del response, work
    gc.collect()
    assert budget.used == 0
