"""Memory of the server process: malloc settings, trimming of freed heaps, and libraries that are not imported."""

from __future__ import annotations

import ctypes
import importlib
import os
import sys
from collections.abc import Iterable
from pathlib import Path

from lancehouse import CATALOGS

OURS = frozenset({*CATALOGS, "dir", "rest"})
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD, M_ARENA_MAX = -1, -3, -8
"""Option numbers of glibc's `mallopt`, from malloc.h."""
KEPT = 4 << 20
"""Free bytes at the end of a heap that are kept for the next rows: memory returned to the kernel is zeroed on reuse."""
GROWN = 8 << 20
"""Growth in bytes since the last trim that makes another one worthwhile."""
PAGE = os.sysconf("SC_PAGE_SIZE")
LARGE = 2 << 20
"""Blocks of this many bytes or more are allocated outside of heaps, and returned as soon as they are freed."""


def share_heaps() -> None:
    """Limit glibc to two heaps for all threads and for Arrow. To be called before Arrow is imported.

    By default most threads get one of their own, which never shrinks, and Arrow's allocator keeps 5 to 10 MB besides.
    """
    os.environ.setdefault("ARROW_DEFAULT_MEMORY_POOL", "system")
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


def import_lance(implementations: Iterable[str]) -> None:
    """Import Lance and Arrow without pandas, which takes half a second and 40 MB and is not used by the server.

    If a backend is foreign code, which may use it, nothing is imported here.
    """
    if not all(
        implementation in OURS or implementation.startswith("lancehouse.") for implementation in implementations
    ):
        return
    # None in `sys.modules` would stop Python's imports only: those of Cython would get the None.
    blocker = _PandasBlocker()
    sys.meta_path.insert(0, blocker)
    try:
        importlib.import_module("lance")
        importlib.import_module("pyarrow").array([0])  # looks for pandas the first time, and never again
    finally:
        sys.meta_path.remove(blocker)


class _PandasBlocker:
    """Import hook by which pandas seems not to be installed."""

    def find_spec(self, name: str, *_: object) -> None:
        if name == "pandas":
            raise ModuleNotFoundError("the server does not use pandas", name=name)
