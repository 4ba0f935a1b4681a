"""Parsing of large JSON and SQL that callers send, without holding up the other threads.

A parser in C holds the interpreter until it has parsed all of a text, and a garbage collection until it has looked at
everything that was parsed. A server answers nobody else meanwhile.
"""

from __future__ import annotations

import gc
import json
import math
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from json.decoder import JSONArray, JSONObject, scanstring  # type: ignore[attr-defined]
from json.scanner import py_make_scanner  # type: ignore[attr-defined]
from typing import Any

import orjson

FEW = 50_000
"""Objects, lists and items that are parsed at once, which takes some 20 ms."""
STEP = 2**16
"""Bytes that are counted before another thread may run."""
INT64 = range(-(2**63), 2**64)
"""Integers that stay integers; orjson makes floats of all others."""

_lock = threading.Lock()


@contextmanager
def parse_alone() -> Iterator[None]:
    """Run a block that parses a large text: one at a time, and without garbage collections.

    They would be in vain, since all of it is in use, and take some 0.3 s for a filter of 20,000 terms.
    """
    with _lock:
        was_enabled = gc.isenabled()
        gc.disable()
        try:
            yield
        finally:
            if was_enabled:
                gc.enable()


def count_json(body: bytes) -> tuple[int, int]:
    """Return how many objects and lists, and how many items, a JSON text has at most."""
    containers = items = 0
    for start in range(0, len(body), STEP):
        step = body[start : start + STEP]
        containers += sum(map(step.count, (b"[", b"{", b":")))
        items += step.count(b",")
    return containers, items


def parse_json(body: bytes) -> Any:
    """Parse JSON. One of many values is parsed in small steps, so that other threads can run in between.

    Raises:
        ValueError: it is not JSON.
    """
    if len(body) <= FEW or sum(count_json(body)) <= FEW:
        return orjson.loads(body)
    try:
        with parse_alone():
            return _SteppingDecoder().decode(body.decode())
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


class _SteppingDecoder(json.JSONDecoder):
    """Python's own decoder without its parts in C, which takes and refuses what orjson does."""

    def __init__(self) -> None:
        super().__init__(
            parse_constant=_refuse_constant,
            parse_int=_parse_int,
            parse_float=_parse_float,
            object_pairs_hook=_build_object,
        )
        self.parse_object = JSONObject
        self.parse_array = JSONArray
        self.parse_string = _parse_string
        self.scan_once = py_make_scanner(self)


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not a value of JSON")


def _parse_int(digits: str) -> int | float:
    value = int(digits) if len(digits) <= 20 else None
    return value if value is not None and value in INT64 else _parse_float(digits)


def _parse_float(digits: str) -> float:
    value = float(digits)
    if math.isinf(value):
        raise ValueError("a number is too large")
    return value


def _parse_string(text: str, start: int, strict: bool = True) -> tuple[str, int]:
    value, end = scanstring(text, start, strict)
    return _check_surrogates(value), end


def _build_object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    return {_check_surrogates(key): value for key, value in pairs}


def _check_surrogates(text: str) -> str:
    try:
        if not text.isascii():
            text.encode()
    except UnicodeEncodeError:
        raise ValueError("a text has half of a surrogate pair") from None
    return text
