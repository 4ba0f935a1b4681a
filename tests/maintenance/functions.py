"""A function that a table names."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

import lancehouse


@lancehouse.column(version="1", inputs=["id"], returns=pa.int64())
def double(ids: Any) -> Any:
    return pc.multiply(ids, 2)
