"""Functions that tables name."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

import lancehouse


@lancehouse.column(version="1", inputs=["id"], returns=pa.int64())
def double(ids: Any) -> Any:
    return pc.multiply(ids, 2)


@lancehouse.column(version="1", inputs=["id"], returns=pa.list_(pa.struct([("copy", pa.int64())])))
def copies(ids: Any) -> Any:
    """A row of the view for each of the table."""
    return [[{"copy": value}] for value in ids.to_pylist()]
