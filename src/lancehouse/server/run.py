"""Running one server process: checks before the start, listening socket, application, graceful shutdown."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import gc
import importlib
import logging
import os
import signal
import socket
import ssl
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from queue import SimpleQueue
from typing import TYPE_CHECKING
from uuid import uuid4

import uvicorn
from lance_namespace.errors import InternalError, InvalidInputError, LanceNamespaceError

from lancehouse import in_process
from lancehouse.catalog import bootstrap
from lancehouse.catalog.principals import Principals
from lancehouse.catalog.warehouses import Warehouse
from lancehouse.log_lines import LEVELS
from lancehouse.server import process_memory
from lancehouse.server.http.observability import Log, capture_stderr, install_logging
from lancehouse.server.http.origins import Origins
from lancehouse.server.settings import BackendSettings, ServerSettings, SettingChanges

if TYPE_CHECKING:
    from lancehouse.catalog.catalog import Catalog
    from lancehouse.gateway.backends import Backend
    from lancehouse.server.http.application import App, RequestAuthenticator
    from lancehouse.server.http.protocol import StartupApp

logger = logging.getLogger(__name__)

BACKLOG = 2048
SWITCH_S = 0.001
"""Seconds after which a thread lets others run; Python's default is 0.005."""
BEAT_S = 1.0
"""Seconds between two heartbeats of a worker."""
DRAIN_TICK_S = 0.1
WAREHOUSE_CLIENT = "lancehouse.clients.iceberg"
LINGER_S = 3.0
"""Seconds for a client to read the rest of a response and confirm the close when the server stops."""


def prepare(settings: ServerSettings, say: Callable[[str], None]) -> list[Warehouse]:
    """Check whether the server can run with these settings, and return the warehouses that it will serve.

    Args:
        settings: of the server.
        say: receives messages for whoever starts the server: what was created, and that authentication is off.

    Raises:
        LanceNamespaceError: it cannot run; the message says what to do.
    """
    tls_context(settings)
    database = bootstrap.open_database(settings.db, say)
    try:
        is_open = not (settings.auth or settings.issuers or Principals(database).has_any())
        if is_open:
            _check_exposure(settings)
        location = bootstrap.default_warehouse_location(database)
        default = replace(settings.default, location=location) if location else settings.default
        warehouses = bootstrap.record_warehouses(database, settings.warehouses, default, settings.roots, say)
        _check_backends(settings, warehouses)
    finally:
        database.close()
    if is_open:
        say("anybody may do everything: no principal exists")
    return warehouses


def _check_backends(settings: ServerSettings, warehouses: Sequence[Warehouse]) -> None:
    names = {warehouse.name for warehouse in warehouses}
    for backend in settings.backends:
        if backend.name in names:
            raise InvalidInputError(f"key 'backends.{backend.name}': there is a warehouse of that name; take another")


def _check_exposure(settings: ServerSettings) -> None:
    """Refuse to listen beyond loopback without authentication, unless the settings say `insecure`."""
    if settings.is_loopback or settings.insecure:
        return
    raise InvalidInputError(
        f"on {settings.host} other machines could change everything, because no authentication is required. "
        "Create a principal (lancehouse principal create NAME --role admin), or name an outside issuer (--issuer), "
        "or say --insecure if the network is yours alone"
    )


def tls_context(settings: ServerSettings) -> ssl.SSLContext | None:
    """Return the TLS context of the certificate, or None if none is configured.

    Raises:
        InvalidInputError: certificate and key do not match, or cannot be read.
    """
    if settings.tls_cert is None or settings.tls_key is None:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_cert_chain(settings.tls_cert, settings.tls_key, password="")
    except (ssl.SSLError, OSError) as error:
        why = getattr(error, "reason", None) or error.strerror or "not PEM"
        raise InvalidInputError(
            f"{settings.tls_cert} and {settings.tls_key} are no certificate with its key: {why}"
        ) from None
    return context


class ReplaceableTls:
    """TLS of a server, whose certificate can be replaced while it listens; open connections keep theirs."""

    def __init__(self, context: ssl.SSLContext) -> None:
        self.context = context
        """The context to listen with."""
        self._current = context
        context.sni_callback = self._choose

    def replace(self, context: ssl.SSLContext) -> None:
        """Use another certificate for new connections."""
        self._current = context

    def _choose(self, connection: ssl.SSLObject, _: str | None, __: ssl.SSLContext) -> None:
        # OpenSSL has not sent the certificate yet.
        connection.context = self._current


def listen(settings: ServerSettings) -> socket.socket:
    """Return a bound, listening socket.

    Raises:
        InvalidInputError: the address is not available here, or its port is in use.
    """
    try:
        addresses = socket.getaddrinfo(settings.host, settings.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except socket.gaierror:
        raise InvalidInputError(f"--host {settings.host} is no address") from None
    family, kind, proto, _, address = min(addresses, key=lambda info: info[0] != socket.AF_INET)  # IPv4 if it has both
    listener = socket.socket(family, kind, proto)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        host_port = f"{settings.host}:{settings.port}"
        if error.errno == errno.EADDRINUSE:
            raise InvalidInputError(f"{host_port} is in use; stop what listens there, or take another --port") from None
        raise InvalidInputError(f"{host_port} cannot be listened on: {error.strerror}") from None
    return listener


def ready_line(settings: ServerSettings, listener: socket.socket, warehouses: list[Warehouse]) -> str:
    """Return the line that is printed when connections are accepted."""
    host = f"[{settings.host}]" if ":" in settings.host else settings.host
    url = f"{'https' if settings.tls_cert else 'http'}://{host}:{listener.getsockname()[1]}"
    locations = " ".join(f"{warehouse.name}={warehouse.location}" for warehouse in warehouses)
    return f"ready  iceberg {url}/iceberg  lance {url}/lance/NAME  warehouses {locations}"


def _load_app(settings: ServerSettings, warehouses: list[Warehouse], log: Log) -> App:
    process_memory.import_lance(backend.impl for backend in settings.backends)
    app = create_app(settings, warehouses, log)
    # The first request to a warehouse through the gateway would import it, and hold up all others meanwhile.
    importlib.import_module(WAREHOUSE_CLIENT)
    # A garbage collection stops all threads. What is loaded by now stays, so that none need look at it again.
    gc.collect()
    gc.freeze()
    return app


def open_catalog(settings: ServerSettings, warehouses: Sequence[Warehouse]) -> Catalog:
    """Open the database, and the catalog on it."""
    from lancehouse.catalog.catalog import Catalog

    return Catalog(
        bootstrap.open_database(settings.db),
        warehouses,
        scan_cache_bytes=settings.scan_cache_bytes,
        storage_refresh_s=settings.storage_refresh,
        backend_policies={backend.name: backend.maintenance for backend in settings.backends},
        fence_interval_s=settings.fence_interval,
    )


def create_app(settings: ServerSettings, warehouses: list[Warehouse], log: Log) -> App:
    """Create the application, with its own database connections."""
    from lancehouse.catalog.webhooks import WebhookSender
    from lancehouse.server.api import lance, maintenance
    from lancehouse.server.api import principals as principals_api
    from lancehouse.server.console import routes
    from lancehouse.server.http.application import App
    from lancehouse.server.http.auth import Authenticator, IssuerSettings
    from lancehouse.server.http.health import OTHERS_S, Check

    catalog = open_catalog(settings, warehouses)
    database = catalog.database
    catalog.fence.start()
    issuers = [IssuerSettings(**issuer) for issuer in settings.issuers]
    # Without authentication the server may listen on loopback only, unless --insecure allows more.
    configured = [*(warehouse.name for warehouse in warehouses), *(backend.name for backend in settings.backends)]
    principals = Principals(database, configured)
    authenticator = Authenticator(
        principals, issuers, required=settings.auth or (not settings.is_loopback and not settings.insecure)
    )
    name = uuid4().hex
    backends = create_backends(settings, catalog, authenticator, f"{in_process.SCHEME}://{name}/iceberg")
    extra_routes = [
        *lance.routes(backends),
        *maintenance.routes(backends),
        *routes.routes(backends),
        *principals_api.routes(principals),
    ]
    origins = Origins(settings.allowed_hosts, settings.host, settings.trusted_proxies)
    checks = [Check("backend", backend.name, backends[backend.name].ping, OTHERS_S) for backend in settings.backends]
    app = App(
        catalog,
        authenticator,
        limits=settings.limits,
        log=log,
        extra_routes=extra_routes,
        origins=origins,
        extra_checks=checks,
        background=[WebhookSender(database, settings.webhooks).run] if settings.webhooks else [],
    )
    in_process.register_server(name, app.answer_in_process)
    return app


def create_backend(settings: BackendSettings) -> Backend:
    """Create a backend that is another catalog, which is asked in the server's name or in that of the caller."""
    from lancehouse.gateway.backends import Backend
    from lancehouse.server.http.auth import TokenExchange, forward_token

    properties = dict(settings.properties)
    caller_token: Callable[[str | None], str] | None = None
    if settings.identity == "forward":
        caller_token = partial(forward_token, settings.name)
    elif settings.identity == "exchange":
        properties = {key.removeprefix(f"{settings.impl}."): value for key, value in properties.items()}
        caller_token = TokenExchange(settings.name, properties).exchange
        for name in ("credential", "oauth2_server_uri", "scope"):
            properties.pop(name, None)
    return Backend(settings.name, settings.impl, properties, settings.roots, caller_token=caller_token)


def create_backends(
    settings: ServerSettings, catalog: Catalog, authenticator: RequestAuthenticator, endpoint: str
) -> dict[str, Backend]:
    """Return the warehouses of a server, which answers at `endpoint` in this process, and its other backends."""
    other_backends = {backend.name: create_backend(backend) for backend in settings.backends}
    return _warehouse_backends(catalog, authenticator, endpoint) | other_backends


def _warehouse_backends(catalog: Catalog, authenticator: RequestAuthenticator, endpoint: str) -> dict[str, Backend]:
    """Return each warehouse as a backend of the gateway, which calls this server itself with the caller's token."""
    from lancehouse.catalog.location_access import ReadableLocations
    from lancehouse.gateway.backends import STORAGE, Backend

    def backend(warehouse: Warehouse) -> Backend:
        def confine(token: str | None) -> ReadableLocations:
            headers = {} if token is None else {"authorization": f"Bearer {token}"}
            return ReadableLocations(catalog.database, warehouse, token, lambda: authenticator.identify(headers))

        storage = {STORAGE + key: value for key, value in warehouse.storage.items()}
        properties = {"endpoint": endpoint, "vend_credentials": "false", **storage}
        above = (warehouse.name,)
        return Backend(warehouse.name, "lancehouse.IcebergNamespace", properties, id_prefix=above, confine=confine)

    return {warehouse.name: backend(warehouse) for warehouse in catalog.warehouses.values()}


class Server(uvicorn.Server):
    """A uvicorn server that reports when it is ready and shuts down gracefully on a signal, with exit code 0."""

    def __init__(
        self,
        config: uvicorn.Config,
        on_ready: Callable[[], None],
        send_heartbeat: Callable[[], None] | None = None,
        on_hangup: Callable[[], None] | None = None,
    ) -> None:
        """Create a server.

        A worker passes `send_heartbeat`; its parent then decides when to kill it. `on_hangup` is called on SIGHUP.
        """
        super().__init__(config)
        self._on_ready = on_ready
        self._send_heartbeat = send_heartbeat
        self._on_hangup = on_hangup

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start to accept connections."""
        await super().startup(sockets)
        self._on_ready()
        if self._send_heartbeat is not None:
            self._keep_sending_heartbeats(self._send_heartbeat)

    def _keep_sending_heartbeats(self, send_heartbeat: Callable[[], None]) -> None:
        """Send heartbeats until the process ends, also while the last requests finish."""
        send_heartbeat()
        asyncio.get_running_loop().call_later(BEAT_S, self._keep_sending_heartbeats, send_heartbeat)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Let requests in progress finish, and close all other connections.

        Uvicorn's own method closes only connections that exist at this moment. One whose TLS handshake ends later would
        be waited for as if it had a request, until the timeout is over and real requests are cut.
        """
        for server in self.servers:
            server.close()
        for listener in sockets or ():
            listener.close()
        try:
            async with asyncio.timeout(self.config.timeout_graceful_shutdown):
                await self._drain()
        except TimeoutError:
            logger.error(
                "%d requests did not finish in time: their connections are closed", len(self.server_state.tasks)
            )
            for task in list(self.server_state.tasks):
                task.cancel()
        if not self.force_exit:
            await self.lifespan.shutdown()

    async def _drain(self) -> None:
        state, closing_since = self.server_state, dict[object, float]()
        now = asyncio.get_running_loop().time
        while (state.connections or state.tasks) and not self.force_exit:
            for connection in list(state.connections):
                connection.shutdown()  # closes it now, or after the request in progress
                if connection.transport.is_closing() and now() - closing_since.setdefault(connection, now()) > LINGER_S:
                    connection.transport.abort()  # a TLS client that does not confirm the close
            await asyncio.sleep(DRAIN_TICK_S)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Shut down gracefully on the first signal, at once on the second.

        A worker may receive the same signal twice, from the process group and from its parent; that counts as one.
        """
        loop = asyncio.get_running_loop()
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                loop.add_signal_handler(number, self.stop)
            if self._on_hangup is not None:
                loop.add_signal_handler(signal.SIGHUP, self._on_hangup)
        yield

    def stop(self) -> None:
        """Finish the requests in progress and end; on a second call, end at once, unless this is a worker."""
        self.force_exit = self.should_exit and self._send_heartbeat is None
        self.should_exit = True


ReadSettings = Callable[[], ServerSettings]
"""Reads the settings once more; raises if they are faulty."""
Changes = SimpleQueue[ReadSettings]
"""Requests to change the settings of a running server."""


class RunningSettings:
    """The settings of a running server, some of which can be changed."""

    def __init__(self, settings: ServerSettings, log: Log, app: StartupApp, tls: ReplaceableTls | None) -> None:
        self._settings = settings
        self._log = log
        self._app = app
        self._tls = tls

    def follow(self, changes: Changes) -> None:
        """Make changes as they are requested, in a thread of its own."""

        def make_changes() -> None:
            while True:
                self.change(changes.get())

        threading.Thread(target=make_changes, name="settings", daemon=True).start()

    def change(self, read: ReadSettings) -> None:
        """Take the settings that can be changed, and read the certificate again; faulty ones change nothing."""
        change = find_changes(self._settings, read)
        if change is None:
            return
        changes, context = change
        new = changes.settings
        if self._tls is not None and context is not None:
            self._tls.replace(context)
        self._settings = new
        self._log.level = LEVELS[new.log_level]
        install_logging(self._log)
        logger.warning("%s", changes)
        origins = Origins(new.allowed_hosts, new.host, new.trusted_proxies)
        self._app.call_when_loaded(
            lambda app: app.change(
                origins, scan_cache_bytes=new.scan_cache_bytes, storage_refresh_s=new.storage_refresh
            )
        )


def find_changes(settings: ServerSettings, read: ReadSettings) -> tuple[SettingChanges, ssl.SSLContext | None] | None:
    """Return what to change, and the context of their certificate; None if the new ones are faulty."""
    try:
        changes = settings.take_changes(read())
        context = tls_context(changes.settings)
    except (LanceNamespaceError, OSError) as error:
        logger.error("the settings stay as they were: %s", error)
        return None
    return changes, context


def run(
    settings: ServerSettings,
    listener: socket.socket,
    warehouses: list[Warehouse],
    on_ready: Callable[[], None],
    send_heartbeat: Callable[[], None] | None = None,
    *,
    changes: Changes | None = None,
    read_again: ReadSettings | None = None,
) -> None:
    """Serve in this process until a signal comes.

    Args:
        settings: of the server.
        listener: the socket that it listens on.
        warehouses: those that it serves.
        on_ready: called when connections are accepted.
        send_heartbeat: called every second; a worker passes it.
        changes: what the parent of a worker has it change.
        read_again: reads the settings again when SIGHUP comes; not for a worker.
    """
    # Threads that parse SQL or JSON hold the interpreter for as long as this, each time the event loop needs it.
    sys.setswitchinterval(SWITCH_S)
    with capture_stderr() as stderr:
        log = Log(settings.log_level, stderr)
        install_logging(log)
        try:
            _serve(settings, listener, warehouses, log, on_ready, send_heartbeat, changes or SimpleQueue(), read_again)
        finally:
            log.close()


def _serve(
    settings: ServerSettings,
    listener: socket.socket,
    warehouses: list[Warehouse],
    log: Log,
    on_ready: Callable[[], None],
    send_heartbeat: Callable[[], None] | None,
    changes: Changes,
    read_again: ReadSettings | None,
) -> None:
    from lancehouse.server.http.protocol import StartupApp, create_protocol

    failed = threading.Event()

    def fail() -> None:
        failed.set()
        server.stop()

    startup_app = StartupApp(lambda: _load_app(settings, warehouses, log), fail)
    config = uvicorn.Config(
        startup_app,
        http=create_protocol(settings.limits, startup_app.answer_inline),
        ws="none",
        loop="uvloop",
        lifespan="on",
        access_log=False,
        log_config=None,
        server_header=False,
        # Logins are throttled by the address of the connection, which a header field must not change.
        proxy_headers=False,
        timeout_keep_alive=int(settings.limits.idle_s) or 1,
        timeout_graceful_shutdown=int(settings.limits.stop_s) or 1,
        backlog=BACKLOG,
    )
    config.load()
    context = tls_context(settings)
    tls = None if context is None else ReplaceableTls(context)
    config.ssl = context
    RunningSettings(settings, log, startup_app, tls).follow(changes)
    on_hangup = None if read_again is None else partial(changes.put, read_again)
    server = Server(config, on_ready, send_heartbeat, on_hangup)
    server.run([listener])
    if startup_app.is_loading:
        log.close()
        # A normal exit would wait for the loading thread to finish its imports; no request was handled yet.
        os._exit(0)
    if failed.is_set():
        raise InternalError("the server could not load its application; the log has the reason")


def die_with(wait_for_parent_end: Callable[[], None]) -> None:
    """End this process when `wait_for_parent_end` returns, which blocks until the parent is gone."""

    def wait() -> None:
        wait_for_parent_end()
        signal.raise_signal(signal.SIGTERM)

    threading.Thread(target=wait, name="parent", daemon=True).start()
