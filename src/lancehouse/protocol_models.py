"""Import of the protocol's models without the REST client that comes with them.

The client takes a second to import, and 20 MB for its 500 compiled pydantic schemas, in every process: each command,
each worker of Spark, the server. None of ours uses it.
"""

from __future__ import annotations

import importlib
import importlib.util
import pkgutil
import sys
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

CLIENT = "lance_namespace_urllib3_client"
"""Package with the models and the client; `lance_namespace` imports the models from it."""


def import_models() -> None:
    """Import the models, unless they are imported already; the classes of the REST client follow on first access."""
    spec = importlib.util.find_spec(CLIENT)
    if CLIENT in sys.modules or spec is None or spec.origin is None:
        return
    folder = Path(spec.origin).with_name("api")
    names = [f"{CLIENT}.api", *(f"{CLIENT}.api.{module.name}" for module in pkgutil.iter_modules([str(folder)]))]
    sys.modules.update({name: _LeftOut(name) for name in names})
    try:
        package = vars(importlib.import_module(CLIENT))
    finally:
        for name in names:
            del sys.modules[name]
    homes = {name: value.module for name, value in package.items() if isinstance(value, _LeftOutName)}
    for name in homes:
        del package[name]

    def load(name: str) -> Any:
        if name in homes:
            return getattr(importlib.import_module(homes[name]), name)
        if name == "api":
            return importlib.import_module(f"{CLIENT}.api")
        raise AttributeError(f"module {CLIENT!r} has no attribute {name!r}")

    package["__getattr__"] = load
    package["__dir__"] = lambda: sorted({*package, *homes, "api"})
    package["__all__"] = sorted(name for name in {*package, *homes} if not name.startswith("_"))


@dataclass(frozen=True, slots=True)
class _LeftOutName:
    """Stands for a class of a module that is left out."""

    module: str


class _LeftOut(ModuleType):
    """Stands for a module while the package that imports it is loaded."""

    def __getattr__(self, name: str) -> _LeftOutName:
        if name.startswith("__"):
            raise AttributeError(name)
        return _LeftOutName(self.__name__)
