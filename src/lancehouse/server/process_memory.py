"""Memory of the server process: malloc settings, trimming of freed heaps, and unloading of unused libraries."""

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
"""Package with the protocol's models. It also loads a REST client, whose 500 compiled pydantic schemas take memory."""
UNUSED = frozenset({"pandas"})
"""Libraries that pyarrow and lance import if they are installed, and that the server does not use."""
OURS = frozenset({"iceberg", "polaris", "unity", "lakekeeper", "dir", "rest"})
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD, M_ARENA_MAX = -1, -3, -8
"""Option numbers of glibc's `mallopt`, from malloc.h."""
KEPT = 16 << 20
"""Free bytes at the end of a heap that are kept for the next rows: memory returned to the kernel is zeroed on reuse."""
GROWN = 16 << 20
"""Growth in bytes since the last trim that makes another one worthwhile."""
PAGE = os.sysconf("SC_PAGE_SIZE")
LARGE = 4 << 20
"""Blocks of this many bytes or more are allocated outside of heaps, and returned as soon as they are freed."""


def share_heaps() -> None:
    """Limit glibc to two heaps for all threads; by default most threads get one of their own, which never shrinks."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        for option, value in ((M_ARENA_MAX, 2), (M_TRIM_THRESHOLD, KEPT), (M_MMAP_THRESHOLD, LARGE)):
            mallopt(option, value)


class HeapTrimmer:
    """Returns freed memory between used blocks to the operating system, which malloc does only on request."""

    def __init__(self) -> None:
        self._trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
        self._resident_after_trim = 0
        self._is_trimmed = False

    def trim(self, *, is_idle: bool) -> None:
        """Trim the heaps if memory has grown much since the last time, and once when the server becomes idle."""
        growth = resident_bytes() - self._resident_after_trim
        if self._trim is not None and (growth > GROWN or (is_idle and not self._is_trimmed)):
            self._trim(0)
            self._resident_after_trim = resident_bytes()
        self._is_trimmed = is_idle


def resident_bytes(pid: int | None = None) -> int:
    """Return the resident memory of a process (default: this one) in bytes.

    0 if it is unknown or the process has ended.
    """
    try:
        return int(Path(f"/proc/{pid or 'self'}/statm").read_text().split()[1]) * PAGE
    except (OSError, IndexError):
        return 0


def unload_rest_client() -> None:
    """Unload the REST client that comes with the protocol's models.

    Its classes are imported again when they are accessed.
    """
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
    """Block imports of `UNUSED` inside the context, unless a backend is foreign code, which may need them."""
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
    """Import hook that raises ModuleNotFoundError for the libraries in `UNUSED`."""

    def find_spec(self, name: str, *_: object) -> None:
        if name in UNUSED and name not in sys.modules:
            raise ModuleNotFoundError(f"{name} is not used by the server", name=name)
