"""The settings of `lancehouse serve`: name, parser, default and help of each.

Only quick imports here: the options are also read to print help and for shell completion.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from ipaddress import ip_network
from pathlib import Path
from typing import Any

UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
UNITS_S = {"d": 86400, "h": 3600, "m": 60}
LEVELS = ("debug", "info", "warning", "error")


def _parse_text(value: str) -> str:
    if not value.strip():
        raise ValueError("must not be empty")
    return value


def _number_parser(minimum: int, maximum: int) -> Callable[[str], int]:
    def parse(value: str) -> int:
        if not re.fullmatch(r"[0-9]{1,12}", value) or not minimum <= int(value) <= maximum:
            raise ValueError(f"must be a whole number from {minimum} to {maximum}")
        return int(value)

    return parse


def _parse_seconds(value: str) -> float:
    if not re.fullmatch(r"[0-9]{1,9}(\.[0-9]+)?", value) or float(value) == 0:
        raise ValueError("must be a number of seconds greater than 0")
    return float(value)


def _parse_size(value: str) -> int:
    match = re.fullmatch(r"([0-9]{1,15}) ?([KMGT]?)(i?B)?", value, re.IGNORECASE)
    if not match or int(match[1]) == 0:
        raise ValueError("must be a number of bytes such as 16777216, 16MiB or 10GiB")
    return int(match[1]) * UNITS[match[2].upper()]


def _format_size(size: int) -> str:
    unit = max((unit for unit in UNITS if size % UNITS[unit] == 0), key=UNITS.__getitem__)
    return f"{size // UNITS[unit]}{unit}iB" if unit else str(size)


def _parse_file(value: str) -> str:
    if not Path(value).is_file():
        raise ValueError(f"names no file: {value}")
    return value


def _parse_flag(value: str) -> bool:
    if value.lower() not in ("true", "false", "1", "0", "yes", "no"):
        raise ValueError("must be true or false")
    return value.lower() in ("true", "1", "yes")


def _parse_level(value: str) -> str:
    if value.lower() not in LEVELS:
        raise ValueError(f"must be one of {', '.join(LEVELS)}")
    return value.lower()


def _parse_host(value: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9_.:%-]+", value):
        raise ValueError("must be a host name or an IP address")
    return value


def _parse_hosts(value: str) -> tuple[str, ...]:
    names = tuple(name.strip() for name in value.split(","))
    if not all(re.fullmatch(r"[A-Za-z0-9_.-]+(:[0-9]{1,5})?", name) for name in names):
        raise ValueError("must be names, each with or without a port, separated by commas: lake.example.com,lake:8181")
    return names


def parse_retention(value: str) -> int:
    """Return a time such as `7d`, `12h` or `30m` in seconds; 0 is none."""
    match = re.fullmatch(r"([0-9]{1,6})([dhm])|0", value)
    if not match:
        raise ValueError("must be a time such as 7d, 12h or 30m, or 0")
    return int(match[1]) * UNITS_S[match[2]] if match[1] else 0


def _parse_networks(value: str) -> tuple[str, ...]:
    try:
        return tuple(str(ip_network(part.strip(), strict=False)) for part in value.split(","))
    except ValueError:
        raise ValueError("must be addresses or networks, separated by commas: 10.0.0.7,10.1.0.0/16") from None


def _parse_functions(value: str) -> tuple[str, ...]:
    names = tuple(name.strip() for name in value.split(","))
    if not all(re.fullmatch(r"[A-Za-z_][\w.]*(:[A-Za-z_]\w*)?", name) for name in names):
        raise ValueError("must be names such as my_module or my_module:function, separated by commas")
    return names


def _parse_sources(value: str) -> tuple[str, ...]:
    patterns = tuple(pattern.strip() for pattern in value.split(","))
    if not all(patterns):
        raise ValueError("must be tables such as main.ml.docs or main.ml.*, separated by commas")
    return patterns


@dataclass(frozen=True, slots=True)
class ServerLimits:
    """Limits of one worker. Names that end with `_s` are seconds."""

    body: int = 16 * 2**20
    """Largest body of a request in bytes, decompressed."""
    body_memory: int = 128 * 2**20
    """Bytes that the bodies of all requests may hold together; beyond it, requests get 503."""
    read_s: float = 60.0
    """For a request's body to arrive."""
    write_s: float = 60.0
    """For a client to read the next part of a response."""
    head_s: float = 20.0
    """For a request's head to arrive."""
    handle_s: float = 60.0
    plan_s: float = 600.0
    rows_s: float = 3600.0
    """For rows to be written, or the first of them to be read."""
    idle_s: float = 75.0
    """For a connection without requests."""
    stop_s: float = 30.0
    """For requests in progress to finish when the server stops."""
    requests: int = 1000
    """Requests in progress; beyond it, requests get 503."""
    streams: int = 200
    """Streamed responses in progress."""
    connections: int = 4000
    threads: int = 32
    scan_threads: int = 8
    row_threads: int = 16
    upload_threads: int = 64
    """Many, because most of them wait for the client to send."""


@dataclass(frozen=True, slots=True)
class ServerSetting:
    """One setting: its name, parser, default and help."""

    name: str
    parse: Callable[[str], Any]
    default: Any
    help: str
    limit: str | None = None
    """The field of `ServerLimits` that it sets."""
    changeable: bool = False
    """Whether a running server takes a new value when it gets SIGHUP."""

    @property
    def option(self) -> str:
        """Name of the command-line option."""
        return "--" + self.name.replace("_", "-")

    @property
    def variable(self) -> str:
        """Name of the environment variable."""
        return "LANCEHOUSE_" + self.name.upper()

    @property
    def is_flag(self) -> bool:
        """Whether it is a boolean."""
        return self.parse is _parse_flag

    @property
    def default_text(self) -> str:
        """The default as users write it; empty where there is none."""
        if self.default is None or self.default is False:
            return ""
        if self.parse is _parse_size:
            return _format_size(self.default)
        return f"{self.default:g}" if self.parse is _parse_seconds else str(self.default)


def _limit(name: str, parse: Callable[[str], Any], limit: str, help: str) -> ServerSetting:
    """Return the setting of a field of `ServerLimits`."""
    return ServerSetting(name, parse, getattr(ServerLimits(), limit), help, limit)


SERVER_SETTINGS: tuple[ServerSetting, ...] = (
    ServerSetting("host", _parse_host, "127.0.0.1", "address to listen on"),
    ServerSetting("port", _number_parser(0, 65535), 8181, "port to listen on; 0 selects a free one"),
    ServerSetting(
        "db", _parse_text, None, "database: sqlite:///FILE or postgresql://…; by default catalog.db in the data folder"
    ),
    ServerSetting("workers", _number_parser(1, 256), 1, "number of worker processes"),
    ServerSetting(
        "max_memory",
        _parse_size,
        None,
        "memory of a worker above which it is restarted; default: no limit",
        changeable=True,
    ),
    ServerSetting("auth", _parse_flag, False, "require authentication even while no principal exists"),
    ServerSetting("insecure", _parse_flag, False, "allow other machines to connect without authentication"),
    ServerSetting(
        "allowed_hosts",
        _parse_hosts,
        None,
        "host names of the server besides its addresses, separated by commas",
        changeable=True,
    ),
    ServerSetting(
        "trusted_proxies",
        _parse_networks,
        None,
        "addresses or networks of proxies whose X-Forwarded-For is trusted, separated by commas",
        changeable=True,
    ),
    ServerSetting(
        "tls_cert", _parse_file, None, "PEM file with the server's certificate; enables HTTPS", changeable=True
    ),
    ServerSetting("tls_key", _parse_file, None, "PEM file with the key of the certificate", changeable=True),
    ServerSetting(
        "issuer", _parse_text, None, "URL of an outside issuer whose tokens are accepted; more can be set in the file"
    ),
    ServerSetting("issuer_audience", _parse_text, None, "audience that its tokens must have"),
    ServerSetting("log_level", _parse_level, "info", f"log level: {', '.join(LEVELS)}", changeable=True),
    ServerSetting(
        "scan_cache_bytes",
        _parse_size,
        10 * 2**30,
        "maximum size of the Parquet copies kept for scans, per warehouse",
        changeable=True,
    ),
    ServerSetting(
        "storage_refresh",
        _parse_seconds,
        60.0,
        "seconds between checks of tables in object stores for tags, branches and clean-ups made outside the catalog",
        changeable=True,
    ),
    ServerSetting(
        "fence_interval",
        _parse_seconds,
        30.0,
        "seconds between checks whether another server works on a copy of the database",
    ),
    ServerSetting(
        "maintenance_threads",
        _number_parser(0, 256),
        0,
        "threads that maintain tables by policy, in a separate process; 0: this server maintains no tables",
    ),
    ServerSetting(
        "maintenance_jobs", _number_parser(1, 10_000), 8, "tables that all workers together maintain at the same time"
    ),
    ServerSetting(
        "maintenance_poll",
        _parse_seconds,
        3600.0,
        "seconds between checks of tables whose commits the catalog does not see",
    ),
    ServerSetting(
        "maintenance_functions",
        _parse_functions,
        None,
        "functions and modules that maintenance may import for columns and views, separated by commas; default: none",
    ),
    ServerSetting(
        "maintenance_sources",
        _parse_sources,
        None,
        "tables that maintenance may read to refresh views, such as main.ml.*, separated by commas; default: none",
    ),
    ServerSetting(
        "retention",
        parse_retention,
        None,
        "how long a dropped table can be restored, unless its warehouse sets it: 7d (default), 12h, 30m, or 0",
    ),
    _limit("max_body", _parse_size, "body", "maximum size of a request"),
    _limit("max_body_memory", _parse_size, "body_memory", "memory of a worker for requests that are being received"),
    _limit("max_requests", _number_parser(1, 10**6), "requests", "concurrent requests per worker"),
    _limit("max_streams", _number_parser(1, 10**6), "streams", "concurrent responses with many rows per worker"),
    _limit("max_connections", _number_parser(1, 10**6), "connections", "open connections per worker"),
    _limit("threads", _number_parser(1, 1000), "threads", "threads of a worker"),
    _limit("scan_threads", _number_parser(1, 1000), "scan_threads", "threads of a worker that plan scans"),
    _limit("row_threads", _number_parser(1, 1000), "row_threads", "threads of a worker that read and write rows"),
    _limit("upload_threads", _number_parser(1, 1000), "upload_threads", "threads of a worker that receive rows"),
    _limit("read_timeout", _parse_seconds, "read_s", "seconds to receive a request"),
    _limit("write_timeout", _parse_seconds, "write_s", "seconds for a client to read the next part of a response"),
    _limit("request_timeout", _parse_seconds, "handle_s", "seconds to handle a request"),
    _limit("plan_timeout", _parse_seconds, "plan_s", "seconds to plan a scan"),
    _limit("rows_timeout", _parse_seconds, "rows_s", "seconds to write rows, or to return the first rows"),
    _limit("idle_timeout", _parse_seconds, "idle_s", "seconds after which an idle connection is closed"),
    _limit("stop_timeout", _parse_seconds, "stop_s", "seconds for requests to finish when the server stops"),
)
