"""Lance tables in the catalog you already run: Iceberg REST, Apache Polaris, Unity Catalog, Lakekeeper.

Importing this package registers its `CATALOGS` with `lance_namespace.connect`. Another package may register the same
names; class paths such as `lancehouse.IcebergNamespace` always mean these.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType

    from lancehouse.clients.iceberg import IcebergNamespace
    from lancehouse.clients.lakekeeper import LakekeeperNamespace
    from lancehouse.clients.polaris import PolarisNamespace
    from lancehouse.clients.transactions import transaction
    from lancehouse.clients.unity import UnityNamespace
    from lancehouse.errors import CommitStateUnknownError
    from lancehouse.jobs.column_functions import column
    from lancehouse.lake.shortcuts import locate
    from lancehouse.lake.shortcuts import open_table as open  # noqa: A004
    from lancehouse.lake.shortcuts import write_table as write
    from lancehouse.named_catalogs import connect

__all__ = [
    "CommitStateUnknownError",
    "IcebergNamespace",
    "LakekeeperNamespace",
    "PolarisNamespace",
    "UnityNamespace",
    "column",
    "connect",
    "locate",
    "open",
    "transaction",
    "write",
]

CATALOGS = {
    "iceberg": "lancehouse.IcebergNamespace",
    "polaris": "lancehouse.PolarisNamespace",
    "unity": "lancehouse.UnityNamespace",
    "lakekeeper": "lancehouse.LakekeeperNamespace",
}
"""Catalogs by the names that `connect` takes, and the classes of their clients, in `clients/` under the same names."""

_HOMES = {
    **{path.removeprefix("lancehouse."): f"lancehouse.clients.{name}" for name, path in CATALOGS.items()},
    "CommitStateUnknownError": "lancehouse.errors",
    "column": "lancehouse.jobs.column_functions",
    "connect": "lancehouse.named_catalogs",
    "locate": "lancehouse.lake.shortcuts",
    "open": "lancehouse.lake.shortcuts",
    "transaction": "lancehouse.clients.transactions",
    "write": "lancehouse.lake.shortcuts",
}
_NAMES = {"open": "open_table", "write": "write_table"}
"""Names that differ in the modules, where they would hide built-in functions."""
_INTERFACE = "lance_namespace"


def __getattr__(name: str) -> Any:
    """Import a public class on first access, so that importing the package itself stays cheap."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), _NAMES.get(name, name))


def _register(interface: ModuleType) -> None:
    """Register the clients with `lance_namespace`."""
    for name, path in CATALOGS.items():
        interface.register_namespace_impl(name, path)


class _OnImport:
    """Import hook that registers the clients once `lance_namespace` is imported.

    Importing `lance_namespace` here would take longer than a command may take to print its help.
    """

    def find_spec(
        self, name: str, _path: Sequence[str] | None, _target: ModuleType | None = None, /
    ) -> ModuleSpec | None:
        """Leave finding the module to the other finders, and wrap its loader so that it registers the clients."""
        if name != _INTERFACE:
            return None
        # Otherwise the search below would come back to this finder.
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is None or spec.loader is None:
            return spec
        execute = spec.loader.exec_module

        def execute_and_register(module: ModuleType) -> None:
            importlib.import_module("lancehouse.protocol_models").import_models()
            execute(module)
            _register(module)

        spec.loader.exec_module = execute_and_register  # type: ignore[method-assign]
        return spec


if _INTERFACE in sys.modules:
    _register(importlib.import_module(_INTERFACE))  # waits if another thread is still importing it
else:
    sys.meta_path.insert(0, _OnImport())
