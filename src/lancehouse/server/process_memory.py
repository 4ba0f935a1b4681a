"""What the server does not hold in memory: libraries that others load for it and it never uses, and freed heaps."""

from __future__ import annotations

import ctypes
import gc
import importlib
import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

CLIENT = "lance_namespace_urllib3_client"
"""The models of the protocol; with them comes a client of it, which checks its arguments with 500 compiled schemas."""
UNUSED = frozenset({"pandas"})
"""Libraries that pyarrow and lance load if they are installed."""
OURS = frozenset({"iceberg", "polaris", "unity", "lakekeeper", "dir", "rest"})
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD, M_ARENA_MAX = -1, -3, -8
"""Of glibc's malloc.h."""
KEPT = 16 << 20
"""Bytes at the end of a heap that stay for the next rows: what the system takes back, it hands out as zeros."""
GROWN = 16 << 20
"""Bytes that are worth to look for some that can be given back."""
PAGE = os.sysconf("SC_PAGE_SIZE")
LARGE = 4 << 20
"""Blocks that are no part of a heap, and go back as soon as they are freed."""


def share_heaps() -> None:
    """Let all threads share two heaps: glibc would give most of them one of their own, which never shrinks."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        for option, value in ((M_ARENA_MAX, 2), (M_TRIM_THRESHOLD, KEPT), (M_MMAP_THRESHOLD, LARGE)):
            mallopt(option, value)


class HeapTrimmer:
    """What was freed between things that are still used stays with the process until it is asked to give it back."""

    def __init__(self) -> None:
        self._trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
        self._resident_after_trim = 0
        self._is_trimmed = False

    def trim(self, *, is_idle: bool) -> None:
        """Give it back, if there may be much of it: while things are done now and then, and once when all are."""
        growth = resident_bytes() - self._resident_after_trim
        if self._trim is not None and (growth > GROWN or (is_idle and not self._is_trimmed)):
            self._trim(0)
            self._resident_after_trim = resident_bytes()
        self._is_trimmed = is_idle


def resident_bytes(pid: int | None = None) -> int:
    """Bytes of a process in memory, by default of this one; 0 where nobody says, or it has ended."""
    try:
        return int(Path(f"/proc/{pid or 'self'}/statm").read_text().split()[1]) * PAGE
    except (OSError, IndexError):
        return 0


def unload_rest_client() -> None:
    """Drop the client that came with the protocol's models; who asks for a class of it gets it loaded again."""
    package = importlib.import_module(CLIENT)
    api_module = f"{CLIENT}.api"
    modules_by_name = {
        name: kind.__module__ for name, kind in vars(package).items() if _is_defined_in(kind, api_module)
    }
    for name in modules_by_name:
        delattr(package, name)
    for name in [each for each in sys.modules if each == api_module or each.startswith(f"{api_module}.")]:
        del sys.modules[name]
    vars(package).pop("api", None)

    def load(name: str) -> Any:
        if name in modules_by_name:
            return getattr(importlib.import_module(modules_by_name[name]), name)
        raise AttributeError(f"module {CLIENT!r} has no attribute {name!r}")

    vars(package)["__getattr__"] = load
    gc.collect()


def _is_defined_in(kind: Any, module: str) -> bool:
    return isinstance(kind, type) and kind.__module__.startswith(f"{module}.")


@contextmanager
def without_unused_libraries(implementations: Iterable[str]) -> Iterator[None]:
    """Load what is loaded inside without `UNUSED`, unless a backend is somebody else's code, which may use it."""
    if not all(each in OURS or each.startswith("lancehouse.") for each in implementations):
        yield
        return
    finder = _UnusedLibraryFinder()
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)


class _UnusedLibraryFinder:
    """Finds none of them."""

    def find_spec(self, name: str, *_: object) -> None:
        if name in UNUSED and name not in sys.modules:
            raise ModuleNotFoundError(f"{name} is not used by the server", name=name)
