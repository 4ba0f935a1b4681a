"""Old names that still work for one release, and warn."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

REMOVED_IN = "0.3"


def forward_names(module: str, names: Mapping[str, str]) -> Callable[[str], Any]:
    """Make the `__getattr__` of a module some of whose names have moved.

    Args:
        module: the module that had them, `__name__`.
        names: each old name, and where it is now: `lancehouse.package.module.Name`.
    """

    def get_moved(name: str) -> Any:
        if name not in names:
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        home, _, new_name = names[name].rpartition(".")
        warnings.warn(
            f"{module}.{name} is now {names[name]}; the old name goes in {REMOVED_IN}", DeprecationWarning, stacklevel=2
        )
        return getattr(import_module(home), new_name)

    return get_moved
