"""Bodies that are sent while they are made, for as long as somebody takes them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from typing import TYPE_CHECKING

from lancehouse.server.errors import FORESEEN
from lancehouse.server.pools import Place, Pools

if TYPE_CHECKING:
    from starlette.types import Receive, Send

logger = logging.getLogger(__name__)

PIECE = 256 * 1024
"""Bytes that are handed over at once, and wait for a client that reads slowly."""


class Streaming:
    """Sends bodies in parts, each made by a thread."""

    def __init__(self, pools: Pools, write_s: float) -> None:
        """Give clients so long to take more."""
        self._pools = pools
        self._write_s = write_s

    async def send(
        self, parts: Iterator[bytes], place: Place, receive: Receive, send: Send, about: str
    ) -> tuple[str, str] | None:
        """Send all but the end; type and text of the reason why it is not whole, if it is not.

        Args:
            parts: of the body.
            place: where they are made.
            receive: to hear that the client hung up.
            send: of ASGI.
            about: the request, for the log.
        """
        gone = asyncio.get_running_loop().create_task(_hung_up(receive))
        try:
            while not gone.done():
                part = await asyncio.wrap_future(self._pools.submit(place, next, parts, None))
                if part is None:
                    return None
                await self._send(part, send)
        except TimeoutError:
            return "ClientTooSlow", f"the client took nothing for {self._write_s:g} s"
        except FORESEEN as error:
            logger.error("request %s broke off: %s", about, error)
            return type(error).__name__, str(error)
        finally:
            gone.cancel()
            await asyncio.wrap_future(self._pools.submit(place, _end, parts))
        return "ClientClosedRequest", "the client hung up"

    async def _send(self, part: bytes, send: Send) -> None:
        for start in range(0, len(part), PIECE):
            async with asyncio.timeout(self._write_s):
                await send({"type": "http.response.body", "body": part[start : start + PIECE], "more_body": True})


async def _hung_up(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def _end(parts: Iterator[bytes]) -> None:
    """Let go of what a body is made of, whether all of it was sent or not."""
    close = getattr(parts, "close", None)
    if close is not None:
        close()
