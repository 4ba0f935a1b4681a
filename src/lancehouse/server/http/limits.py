"""How much a server takes at once, and for how long."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ServerLimits:
    """Of one worker."""

    body: int = 16 * 2**20
    """Bytes of a request, unpacked."""
    body_memory: int = 128 * 2**20
    """Bytes of all requests together that are held at once; more are told to come back."""
    read_s: float = 60.0
    """For a request's body to come in."""
    write_s: float = 60.0
    """For a client to take more of an answer."""
    head_s: float = 20.0
    """For its head."""
    handle_s: float = 60.0
    plan_s: float = 600.0
    rows_s: float = 3600.0
    """For rows to be written, or the first of them to be found."""
    idle_s: float = 75.0
    """For a connection without requests."""
    stop_s: float = 30.0
    """For requests to finish when the server stops."""
    requests: int = 1000
    """At once; more are told to come back."""
    streams: int = 200
    """Answers of many rows that are on their way at once."""
    connections: int = 4000
    threads: int = 32
    scan_threads: int = 8
    row_threads: int = 16
    upload_threads: int = 64
    """Most of them wait for whoever sends."""
