"""Read, write and maintain Lance tables with PySpark."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lancehouse.jobs.column_functions import column
    from lancehouse.spark.catalog import LanceCatalog
    from lancehouse.spark.engine import SparkEngine
    from lancehouse.spark.session import local
    from lancehouse.spark.sql import sql_config

__all__ = ["LanceCatalog", "SparkEngine", "column", "local", "sql_config"]

_HOMES = {
    "LanceCatalog": "lancehouse.spark.catalog",
    "SparkEngine": "lancehouse.spark.engine",
    "column": "lancehouse.jobs.column_functions",
    "local": "lancehouse.spark.session",
    "sql_config": "lancehouse.spark.sql",
}


def __getattr__(name: str) -> Any:
    """Import PySpark only when it is first needed: `lancehouse.spark.java` works without it."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)


def load_ipython_extension(shell: Any) -> None:
    """Add the magic `%%lance` to a notebook: `%load_ext lancehouse.spark`."""
    importlib.import_module("lancehouse.spark.notebook_magic").register(shell)
