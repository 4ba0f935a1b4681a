"""The application on a real socket, in this process."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import uvicorn

from lancehouse.catalog import bootstrap
from lancehouse.catalog.catalog import Catalog
from lancehouse.catalog.principals import Principals
from lancehouse.catalog.warehouses import Warehouse
from lancehouse.server.api import principals as principals_api
from lancehouse.server.http.application import App
from lancehouse.server.http.auth import Authenticator
from lancehouse.server.http.health import Check
from lancehouse.server.http.observability import Log
from lancehouse.server.http.protocol import StartupApp, create_protocol
from lancehouse.server.http.routes import Route
from lancehouse.server.run import Server, listen
from lancehouse.server.setting_table import ServerLimits
from lancehouse.server.settings import ServerSettings

START_TIMEOUT_S = 30


@dataclass(frozen=True)
class ServerAnswer:
    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def error(self) -> tuple[int, str]:
        """Status and type, once the envelope is found to be whole."""
        error = self.json["error"]
        assert set(error) == {"message", "type", "code"}
        assert error["code"] == self.status
        assert "Traceback" not in error["message"]
        return self.status, error["type"]

    @property
    def message(self) -> str:
        return str(self.json["error"]["message"])


@dataclass
class ServerClient:
    """One connection at a time, to a server that may be awkward."""

    port: int
    headers: dict[str, str] = field(default_factory=dict)
    log: Path | None = None

    def send(
        self,
        method: str,
        path: str,
        body: Any = None,
        headers: Mapping[str, str] | None = None,
        raw: bytes | None = None,
    ) -> ServerAnswer:
        connection = HTTPConnection("127.0.0.1", self.port, timeout=60)
        data = raw if raw is not None else None if body is None else json.dumps(body).encode()
        try:
            kind = {} if data is None else {"content-type": "application/json"}
            connection.request(method, path, data, {**kind, **self.headers, **(headers or {})})
            reply = connection.getresponse()
            return ServerAnswer(reply.status, {k.lower(): v for k, v in reply.getheaders()}, reply.read())
        finally:
            connection.close()

    def iceberg(
        self, method: str, path: str, body: Any = None, headers: Mapping[str, str] | None = None
    ) -> ServerAnswer:
        return self.send(method, f"/iceberg/v1/{path}", body, headers)

    def lines(self) -> list[dict[str, Any]]:
        assert self.log is not None
        return [json.loads(line) for line in self.log.read_text().splitlines()]


@contextmanager
def serving(
    folder: Path,
    *,
    limits: ServerLimits | None = None,
    more: Sequence[Route] = (),
    auth: bool = False,
    names: Sequence[str] = ("main", "other"),
    level: str = "info",
    checks: Sequence[Check] = (),
) -> Iterator[ServerClient]:
    """A server on SQLite, with a warehouse for each name."""
    limits = limits or ServerLimits()
    database = bootstrap.open_database(f"sqlite:///{folder / 'catalog.db'}")
    wanted = [Warehouse(0, name, str(folder / "warehouses" / name)) for name in names]
    catalog = Catalog(database, bootstrap.record_warehouses(database, wanted, wanted[0]))
    file = folder / "log"
    descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    log = Log(level, descriptor)
    known = Principals(database, names)
    authenticator, routes = Authenticator(known, required=auth), [*more, *principals_api.routes(known)]
    app = App(catalog, authenticator, limits=limits, log=log, extra_routes=routes, extra_checks=checks)
    listener = listen(ServerSettings(port=0))
    port = listener.getsockname()[1]
    ready = threading.Event()
    door = StartupApp(lambda: app, lambda: None)
    config = uvicorn.Config(
        door, http=create_protocol(limits, door.answer_inline), ws="none", loop="uvloop", lifespan="on", log_config=None
    )
    server = Server(config, ready.set)
    thread = threading.Thread(target=server.run, args=([listener],), daemon=True)
    thread.start()
    try:
        assert ready.wait(START_TIMEOUT_S)
        yield ServerClient(port, log=file)
    finally:
        server.stop()
        thread.join(START_TIMEOUT_S)
        log.close()
        os.close(descriptor)
    assert not thread.is_alive()
