"""Lance tables in the catalog you already run: Iceberg REST, Apache Polaris, Unity Catalog.

Importing this package registers `iceberg`, `polaris` and `unity` with `lance_namespace.connect`. Another package may
register the same names; the class paths `lancehouse.IcebergNamespace`, `lancehouse.PolarisNamespace` and
`lancehouse.UnityNamespace` always mean these.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from lance_namespace import register_namespace_impl

if TYPE_CHECKING:
    from lancehouse.clients.iceberg import IcebergNamespace
    from lancehouse.clients.polaris import PolarisNamespace
    from lancehouse.clients.transactions import transaction
    from lancehouse.clients.unity import UnityNamespace
    from lancehouse.errors import CommitStateUnknownError

__all__ = ["CommitStateUnknownError", "IcebergNamespace", "PolarisNamespace", "UnityNamespace", "transaction"]

_HOMES = {
    "CommitStateUnknownError": "lancehouse.errors",
    "IcebergNamespace": "lancehouse.clients.iceberg",
    "PolarisNamespace": "lancehouse.clients.polaris",
    "UnityNamespace": "lancehouse.clients.unity",
    "transaction": "lancehouse.clients.transactions",
}

register_namespace_impl("iceberg", "lancehouse.IcebergNamespace")
register_namespace_impl("polaris", "lancehouse.PolarisNamespace")
register_namespace_impl("unity", "lancehouse.UnityNamespace")


def __getattr__(name: str) -> Any:
    """Load a class when it is first asked for: importing the package, to register or for its errors, stays cheap."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)
