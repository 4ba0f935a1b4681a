from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from lance_namespace.errors import InvalidInputError

from lancehouse.pipelines.steps import _to_single_batch

ROWS = pa.table({"a": pa.chunked_array([[1], [2]], pa.int64())})


class LongTexts:
    """A table whose chunks Arrow does not combine, without its gigabytes."""

    def combine_chunks(self) -> LongTexts:
        return self

    def to_batches(self) -> list[pa.RecordBatch]:
        return ROWS.to_batches()


def test_a_table_becomes_one_batch_with_all_its_rows() -> None:
    assert _to_single_batch(ROWS, "f").to_pylist() == [{"a": 1}, {"a": 2}]
    assert _to_single_batch(ROWS.slice(0, 0), "f").num_rows == 0
    long_texts: Any = LongTexts()
    with pytest.raises(InvalidInputError, match=r"^f gave a table with more than 2 GiB of text"):
        _to_single_batch(long_texts, "f")
