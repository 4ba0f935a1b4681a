"""Jobs on one table: plan, run the pieces on an `Engine` (threads of this process, or Spark's tasks), commit once.

```python
from lancehouse.connection import Connection
from lancehouse.jobs import LocalEngine, TableJobs

jobs = TableJobs(Connection("iceberg", {"endpoint": "http://127.0.0.1:8181/iceberg"}), LocalEngine(threads=2))
jobs.compact("main.db.docs")
```
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lancehouse.jobs.engine import Engine, JobCancelledError, LocalEngine, TaskProgress
    from lancehouse.jobs.table_jobs import TableJobs

__all__ = ["Engine", "JobCancelledError", "LocalEngine", "TableJobs", "TaskProgress"]


def __getattr__(name: str) -> Any:
    """Import Lance only when it is first needed."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    home = "table_jobs" if name == "TableJobs" else "engine"
    return getattr(importlib.import_module(f"lancehouse.jobs.{home}"), name)
