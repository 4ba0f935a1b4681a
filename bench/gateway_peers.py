"""What the gateway is measured beside, each in a process of its own that ends with its standard input.

`python -m bench.gateway_peers adapter ROOT`: pylance's own REST adapter on the `dir` namespace in a folder.
`python -m bench.gateway_peers wire FOLDER`: a server that knows nothing of Lance. It takes in what it is sent and
forgets it, and answers queries and descriptions with the files of these names in that folder: what HTTP alone costs,
with the server that the gateway runs on.

Both print their address.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable, MutableMapping
from pathlib import Path
from typing import Any

PIECE = 256 * 1024

Message = MutableMapping[str, Any]


def adapter(root: str) -> None:
    """Until the input ends."""
    from lance.namespace import RestAdapter

    with RestAdapter("dir", {"root": root}, host="127.0.0.1", port=0) as running:
        print(f"http://127.0.0.1:{running.port}", flush=True)
        sys.stdin.read()


def wire(folder: str) -> None:
    """Until the input ends."""
    import uvicorn

    answers = {file.name: file.read_bytes() for file in Path(folder).iterdir()}

    async def app(
        scope: Message, receive: Callable[[], Awaitable[Message]], send: Callable[[Message], Awaitable[None]]
    ) -> None:
        while (await receive()).get("more_body"):
            pass
        operation = scope["path"].rpartition("/")[2]
        data = answers.get(operation, b"{}")
        kind = b"application/vnd.apache.arrow.file" if operation == "query" else b"application/json"
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", kind)]})
        for start in range(PIECE, len(data), PIECE):
            await send({"type": "http.response.body", "body": data[start - PIECE : start], "more_body": True})
        await send({"type": "http.response.body", "body": data[(len(data) - 1) // PIECE * PIECE :]})

    async def run() -> None:
        config = uvicorn.Config(app, port=0, loop="uvloop", http="httptools", lifespan="off", log_level="error")
        server = uvicorn.Server(config)
        serving = asyncio.create_task(server.serve())
        while not server.started:
            await asyncio.sleep(0.01)
        host, port = server.servers[0].sockets[0].getsockname()[:2]
        print(f"http://{host}:{port}", flush=True)
        await asyncio.to_thread(sys.stdin.read)
        server.should_exit = True
        await serving

    import uvloop

    uvloop.run(run())


if __name__ == "__main__":
    {"adapter": adapter, "wire": wire}[sys.argv[1]](sys.argv[2])
