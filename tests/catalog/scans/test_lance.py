from __future__ import annotations

import math
import struct
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyiceberg.catalog.rest.scan_planning import PlanTableScanRequest
from pyiceberg.expressions.visitors import bind
from pyiceberg.io.pyarrow import expression_to_pyarrow
from pyiceberg.schema import Schema

from lancehouse.catalog.scans.lance import FALSE, TRUE, to_lance_sql
from lancehouse.catalog.scans.scan_requests import parse_filter
from lancehouse.lake.dataset import TableRef
from lancehouse.lake.parquet_export import VersionExporter
from tests.lake.icebergs import scan

NEGATIVE_NAN = struct.unpack("<d", b"\x00\x00\x00\x00\x00\x00\xf8\xff")[0]
FLOATS = [None, 0.0, -0.0, math.nan, NEGATIVE_NAN, math.inf, -math.inf, 0.1, 5e-324, -1.5, 1e30]
INTEGERS = [None, 0, 1, -1, 127, -128, 5, 6, 7, 8, 9]
TEXTS = [None, "", "a", "A", "aé", "é", "it's", "a%", "a_", "\\\\", "🙂"]
COLUMNS: dict[str, Any] = {
    "i": pa.array(INTEGERS, pa.int8()),
    "l": pa.array(INTEGERS, pa.int64()),
    "u": pa.array([None if n is None else abs(n) for n in INTEGERS], pa.uint64()),
    "f": pa.array(FLOATS, pa.float32()),
    "d": pa.array(FLOATS, pa.float64()),
    "s": pa.array(TEXTS),
    "t": pa.array([None if n is None else n * 1000 - 1 for n in INTEGERS], pa.timestamp("ns")),
    "z": pa.array([None if n is None else n * 1000 for n in INTEGERS], pa.timestamp("ms", "Asia/Tokyo")),
    "c": pa.array(INTEGERS, pa.date32()),
    "b": pa.array([None if n is None else n > 0 for n in INTEGERS]),
}


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> tuple[VersionExporter, pa.Table]:
    """One row in each fragment, and all rows as pyiceberg sees them."""
    folder = tmp_path_factory.mktemp("conditions")
    rows = pa.table({"n": pa.array(range(len(INTEGERS))), **COLUMNS})
    version = VersionExporter.open(TableRef(lance.write_dataset(rows, folder / "t", max_rows_per_file=1).uri))
    paths: list[Path] = [folder / f"{fragment.id}.parquet" for fragment in version.fragments]
    for fragment, path in zip(version.fragments, paths, strict=True):
        with path.open("wb") as sink:
            version.write(fragment, set(version.columns), range(fragment.rows), sink)
    return version, scan(version.schema, [path.as_uri() for path in paths]).sort_by("n")


VALUES: dict[str, st.SearchStrategy[Any]] = {
    **dict.fromkeys(("i", "l", "u"), st.integers(-200, 200)),
    **dict.fromkeys(
        ("f", "d"),
        st.floats(allow_nan=False, allow_infinity=False)
        | st.sampled_from([v for v in FLOATS if v and math.isfinite(v)]),
    ),
    "s": st.sampled_from([text for text in TEXTS if text is not None]),
    **dict.fromkeys(("t", "z"), st.integers(-10, 10) | st.integers(-(2**60), 2**60)),
    "c": st.integers(-10, 10),
    "b": st.booleans(),
}
COMPARED = ["lt", "lt-eq", "gt", "gt-eq", "eq", "not-eq"]


@st.composite
def predicates(draw: st.DrawFn) -> dict[str, Any]:
    column = draw(st.sampled_from(sorted(VALUES)))
    operations = ["is-null", "not-null", "in", "not-in", *COMPARED]
    operations += ["is-nan", "not-nan"] if column in "fd" else []
    operations += ["starts-with", "not-starts-with"] if column == "s" else []
    if column == "b":
        operations = ["is-null", "not-null", "eq", "not-eq"]
    operation = draw(st.sampled_from(operations))
    json = {"type": operation, "term": column}
    if operation in ("in", "not-in"):
        return json | {"values": draw(st.lists(VALUES[column], max_size=3))}
    return json | ({"value": draw(VALUES[column])} if not operation.startswith(("is-", "not-n")) else {})


def expressions() -> st.SearchStrategy[Any]:
    def above(below: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
        joined = st.builds(
            lambda kind, left, right: {"type": kind, "left": left, "right": right},
            st.sampled_from(["and", "or"]),
            below,
            below,
        )
        return joined | st.builds(lambda child: {"type": "not", "child": child}, below)

    return st.recursive(predicates(), above, max_leaves=4)


@settings(deadline=None, max_examples=150, suppress_health_check=[HealthCheck.too_slow])
@given(json=expressions())
def test_no_row_is_left_out_that_a_reader_keeps(table: tuple[VersionExporter, pa.Table], json: Any) -> None:
    version, seen = table
    schema = Schema.model_validate(version.schema)
    wanted = to_lance_sql(
        parse_filter(json, schema, case_sensitive=True).superset, schema, version.columns, case_sensitive=True
    )
    expression = PlanTableScanRequest.model_validate({"filter": json}).filter
    assert expression is not None
    kept = seen.filter(expression_to_pyarrow(bind(schema, expression, True), schema))["n"].to_pylist()
    if wanted == FALSE:
        assert kept == []
    elif wanted != TRUE:
        held = {fragment.id for fragment in version.fragments if version.has_matching_row(fragment.id, wanted)}
        assert set(kept) <= held, wanted
