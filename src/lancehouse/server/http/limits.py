"""Limits of one worker on sizes, times, concurrent requests and threads."""

from __future__ import annotations

from dataclasses import dataclass


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
