"""Lines of logs as JSON: the fields of a record, with the table that the thread works on, one record a line.

No value can begin a line of its own: line breaks and control characters are escaped, those of Unicode too.
"""

from __future__ import annotations

import json
import logging
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from time import gmtime, strftime
from typing import Any

LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}
NAMES = {number: name for name, number in LEVELS.items()} | {logging.CRITICAL: "error"}

_context: ContextVar[Mapping[str, Any] | None] = ContextVar("log_context", default=None)


@contextmanager
def log_about(**fields: Any) -> Iterator[None]:
    """Add fields, such as `table`, to all records that this thread logs in the block."""
    token = _context.set({**(_context.get() or {}), **fields})
    try:
        yield
    finally:
        _context.reset(token)


def record_fields(record: logging.LogRecord) -> dict[str, Any]:
    """Return the fields of a record, besides its time and level."""
    fields = {"logger": record.name, "message": record.getMessage(), **(_context.get() or {})}
    if record.exc_info and record.exc_info[1]:
        fields["trace"] = "".join(traceback.format_exception(record.exc_info[1]))
    return fields


class JsonFormatter(logging.Formatter):
    """Formats records as JSON, for programs whose log is not the server's."""

    def format(self, record: logging.LogRecord) -> str:
        """Return one line."""
        seconds = strftime("%Y-%m-%dT%H:%M:%S", gmtime(record.created))
        head = {"time": f"{seconds}.{int(record.msecs):03d}Z", "level": NAMES.get(record.levelno, "info")}
        return json.dumps(head | record_fields(record), default=str)
