"""Connections that receive bodies take turns, and new connections go first."""

from __future__ import annotations

import asyncio
from functools import partial

from lancehouse.server.http import protocol
from lancehouse.server.http.protocol import READS_PER_TURN, BodyReads


async def tick() -> None:
    """Let the event loop turn once."""
    await asyncio.sleep(0)


def test_a_few_read_at_once_and_all_in_order() -> None:
    async def run() -> list[list[int]]:
        reads, seen, turns = BodyReads(), list[int](), list[list[int]]()
        for number in range(2 * READS_PER_TURN + 1):
            reads.request(partial(seen.append, number))
        for _ in range(3):
            turns.append(list(seen))
            await tick()
        return turns

    assert asyncio.run(run()) == [list(range(count * READS_PER_TURN)) for count in (1, 2)] + [
        list(range(2 * READS_PER_TURN + 1))
    ]


def test_a_new_connection_goes_first() -> None:
    async def run() -> tuple[list[int], list[int]]:
        reads, seen = BodyReads(), list[int]()
        reads.request(partial(seen.append, 0))
        await tick()  # the time of the last turn is known now
        reads.give_way()
        reads.request(partial(seen.append, 1))
        await tick()
        before = list(seen)
        await tick()
        return before, seen

    assert asyncio.run(run()) == ([0], [0, 1])


def test_bodies_do_not_wait_for_ever() -> None:
    async def run() -> bool:
        reads, seen = BodyReads(), list[int]()
        reads.request(partial(seen.append, 0))
        loop = asyncio.get_running_loop()
        deadline = loop.time() + 60
        reads.give_way()
        reads.request(partial(seen.append, 1))
        while seen != [0, 1] and loop.time() < deadline:
            reads.give_way()
            await asyncio.sleep(protocol.LONGEST_WAIT_S / 10)
        return seen == [0, 1]

    assert asyncio.run(run())
