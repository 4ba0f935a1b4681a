"""Streaming of response bodies that are produced while they are sent."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from typing import TYPE_CHECKING

from lance_namespace.errors import ServiceUnavailableError

from lancehouse.server.http.errors import FORESEEN
from lancehouse.server.http.limits import ServerLimits
from lancehouse.server.http.pools import PoolKey, Pools

if TYPE_CHECKING:
    from starlette.types import Receive, Send

logger = logging.getLogger(__name__)

PIECE = 256 * 1024
"""Bytes passed to the connection at once; they stay in memory while a client reads slowly."""


class ResponseStreamer:
    """Sends bodies in parts, each of which a thread produces."""

    def __init__(self, pools: Pools, limits: ServerLimits) -> None:
        """Limit how many responses stream at once, and how long a client may stall."""
        self._pools = pools
        self._write_s = limits.write_s
        self._max_streams = limits.streams
        self._active = 0

    @property
    def is_full(self) -> bool:
        """Whether no further response may stream: each holds a few megabytes for as long as its client reads."""
        return self._active >= self._max_streams

    def busy_error(self) -> ServiceUnavailableError:
        """Build the error for a client that must wait because too many responses are streaming."""
        return ServiceUnavailableError(f"the server sends {self._max_streams} answers of many rows already; try again")

    async def discard(self, parts: Iterator[bytes], pool_key: PoolKey) -> None:
        """Close a body that is not sent, or not sent further."""
        await asyncio.wrap_future(self._pools.submit(pool_key, _close_parts, parts))

    async def send(
        self, parts: Iterator[bytes], pool_key: PoolKey, receive: Receive, send: Send, request_id: str
    ) -> tuple[str, str] | None:
        """Send all parts but not the end of the response.

        If it is incomplete, return type and text of the reason, else None.

        Args:
            parts: of the body; they are closed at the end.
            pool_key: the thread pool that produces them.
            receive: ASGI's, which reports that the client closed the connection.
            send: ASGI's.
            request_id: the request's id, for the log.
        """
        disconnected = asyncio.get_running_loop().create_task(_wait_for_disconnect(receive))
        self._active += 1
        try:
            while not disconnected.done():
                part = await asyncio.wrap_future(self._pools.submit(pool_key, next, parts, None))
                if part is None:
                    return None
                await self._send_part(part, send)
        except TimeoutError:
            return "ClientTooSlow", f"the client took nothing for {self._write_s:g} s"
        except FORESEEN as error:
            logger.error("request %s broke off: %s", request_id, error)
            return type(error).__name__, str(error)
        finally:
            self._active -= 1
            disconnected.cancel()
            await self.discard(parts, pool_key)
        return "ClientClosedRequest", "the client hung up"

    async def _send_part(self, part: bytes, send: Send) -> None:
        for start in range(0, len(part), PIECE):
            async with asyncio.timeout(self._write_s):
                await send({"type": "http.response.body", "body": part[start : start + PIECE], "more_body": True})


async def _wait_for_disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def _close_parts(parts: Iterator[bytes]) -> None:
    """Close the iterator of a body, whether all of it was sent or not."""
    close = getattr(parts, "close", None)
    if close is not None:
        close()
