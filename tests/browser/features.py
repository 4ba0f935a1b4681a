"""Functions of computed columns and views that the console shows."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

import lancehouse

WORDS = pa.list_(pa.struct([("place", pa.int64()), ("word", pa.string())]))


@lancehouse.column(version="3", inputs=["text"], returns=pa.int64())
def length(texts: Any) -> Any:
    """Fail for rows that have no text."""
    if None in (values := texts.to_pylist()):
        raise ValueError("there is no text <img src=x onerror=alert(1)>")
    return [len(text) for text in values]


@lancehouse.column(version="1", inputs=["text"], returns=WORDS)
def words(texts: Any) -> Any:
    """Return a row for each word; fail for rows that have no text."""
    if None in (values := texts.to_pylist()):
        raise ValueError("there are no words <img src=x onerror=alert(1)>")
    return [[{"place": place, "word": word} for place, word in enumerate(text.split())] for text in values]
