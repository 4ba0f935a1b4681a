"""The ASGI application during startup: connections are accepted at once, and requests wait until it has loaded."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from lancehouse.server.http.application import App
    from lancehouse.server.http.asgi import Receive, Scope, Send
    from lancehouse.server.http.responses import Response

logger = logging.getLogger(__name__)


class StartupApp:
    """An ASGI application that loads the real one in a thread, and passes requests on to it."""

    def __init__(self, create_app: Callable[[], App], on_failure: Callable[[], None]) -> None:
        """Store `create_app`, which takes seconds; if it fails, `on_failure` is called to end the server."""
        self._create_app = create_app
        self._on_failure = on_failure
        self._app: App | None = None
        self._app_future: asyncio.Future[App] | None = None

    @property
    def is_loading(self) -> bool:
        """Whether the application is still loading."""
        return self._app_future is not None and not self._app_future.done()

    def answer_inline(self, method: str, raw_path: bytes, raw_query: bytes, headers: dict[str, str]) -> Response | None:
        """Answer a read at once, if the application has loaded and can; else None."""
        return None if self._app is None else self._app.answer_inline(method, raw_path, raw_query, headers)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, after waiting for the application."""
        if scope["type"] == "lifespan":
            await self._lifespan(receive, send)
            return
        app = self._app
        if app is None:
            assert self._app_future is not None
            # Shielded, because a request that is cancelled must not cancel the loading for all others.
            app = self._app = await asyncio.shield(self._app_future)
        await app(scope, receive, send)

    async def _lifespan(self, receive: Receive, send: Send) -> None:
        await receive()
        executor = ThreadPoolExecutor(1, "loading")
        self._app_future = asyncio.get_running_loop().run_in_executor(executor, self._create_app)
        self._app_future.add_done_callback(self._install_app)
        executor.shutdown(wait=False)
        await send({"type": "lifespan.startup.complete"})
        with contextlib.suppress(asyncio.CancelledError):  # a forced stop cancels instead of sending a message
            await receive()
        if self._app is not None:
            self._app.close()
        await send({"type": "lifespan.shutdown.complete"})

    def _install_app(self, future: asyncio.Future[App]) -> None:
        if future.cancelled():
            return
        if (error := future.exception()) is not None:
            logger.error("loading failed", exc_info=error)
            self._on_failure()
            return
        self._app = future.result()
        self._app.start()
