"""A restricted query equals the same query over a table that holds only the visible rows, masked."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any
from uuid import uuid4

import lance
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from lance_namespace import CountTableRowsRequest, QueryTableRequest
from lance_namespace.errors import LanceNamespaceError, PermissionDeniedError

from lancehouse.gateway.restricted import describe_sql, parse_restriction
from lancehouse.lake.dataset import TableRef
from lancehouse.lake.errors import translate_errors
from lancehouse.lake.parquet_export import VersionExporter
from lancehouse.lake.query_operations import create_scanner
from lancehouse.lake.restricted_rows import VisiblePart, mask_values
from lancehouse.row_policy import RowPolicy

KEY = b"k" * 32
NAMES = ("a", "b", "s", "t", "d")
COLUMNS: list[tuple[str, pa.DataType]] = [
    ("a", pa.int64()),
    ("b", pa.float32()),
    ("s", pa.string()),
    ("t", pa.large_string()),
    ("d", pa.dictionary(pa.int8(), pa.string())),
    ("v", pa.list_(pa.float32(), 2)),
]
SCHEMA = pa.schema(COLUMNS)
PLAIN = pa.schema([pa.field("d", pa.string()) if each.name == "d" else each for each in SCHEMA])

numbers = st.none() | st.integers(-2, 3)
texts = st.none() | st.sampled_from(["", "x", "y", "7", "x y"])
rows = st.lists(
    st.tuples(numbers, numbers, texts, texts, texts, st.lists(st.floats(-2, 2, width=32), min_size=2, max_size=2)),
    max_size=12,
)
masks = st.dictionaries(
    st.sampled_from(("a", "s", "t", "d", "v")), st.sampled_from(["null", "hash", "text:x", "text:"]), max_size=3
).map(
    lambda chosen: {
        key: "null" if key == "v" or (key == "a" and "text" in mask) else mask for key, mask in chosen.items()
    }
)
ATOMS = (
    *("a = 1", "a > 0", "a IS NULL", "a IN (0, 2)", "b < 1.5", "b BETWEEN 0 AND 2", "s = 'x'", "s != 'x'", "s > 'w'"),
    *("t IS NOT NULL", "t = ''", "d = 'y'", "d IN ('x', '7')", "NOT (s = 'y')", "s LIKE 'x%'", "length(s) = 1"),
    *("upper(t) = 'X'", "a + 1 > b", "10 / a > 2", "cast(s AS int) = 7", "coalesce(a, 1) = 1", "s = t", "d = s"),
    *("s || t = 'xy'", "length(d) > 0", "cast(d AS int) = 7", "array_length(v) = 2"),
)
atoms = st.sampled_from(ATOMS)
conditions = st.recursive(
    atoms,
    lambda inner: st.tuples(inner, st.sampled_from([" AND ", " OR "]), inner).map(lambda p: f"({p[0]}{p[1]}{p[2]})"),
    max_leaves=4,
)
wheres = st.none() | st.sampled_from(
    ["a = 1", "a > 0", "s = 'x'", "s IS NOT NULL AND b >= 0", "d = 'x'", "a IS NULL OR t = 'y'", "length(s) = 1"]
)
projections = (
    st.none()
    | st.lists(st.sampled_from(NAMES), min_size=1, max_size=3, unique=True).map(lambda names: {"column_names": names})
    | st.dictionaries(
        st.sampled_from(["a", "s", "z"]),
        st.sampled_from(["a", "a + 1", "s", "s || t", "upper(d)", "1 / a", "t"]),
        min_size=1,
    ).map(lambda values: {"column_aliases": values})
)


def run(work: Any) -> Any:
    """What comes out, or that it is an error."""
    try:
        return work()
    except PermissionDeniedError:
        return "refused"
    except LanceNamespaceError:
        return "error"


def check_query(
    folder: Path,
    values: Any,
    where: str | None,
    masked: Any,
    condition: str | None,
    columns: Any = None,
    k: int = 0,
    offset: int = 0,
    near: bool | None = None,
) -> None:
    """Compare a restricted query and count with those over the visible rows, masked."""
    table = pa.table(
        [
            pa.array(column, field.type)
            for column, field in zip(zip(*values, strict=True) if values else [[]] * len(SCHEMA), SCHEMA, strict=True)
        ],
        schema=SCHEMA,
    )
    dataset = lance.write_dataset(table, folder / uuid4().hex, max_rows_per_file=5)
    restriction = parse_restriction(where, masked)
    policy = RowPolicy(None, frozenset(), {}) if restriction is None else RowPolicy.combine([restriction])
    seen = dataset.to_table(filter=where).cast(PLAIN)
    physical = pa.table(
        [
            mask_values(seen[name].combine_chunks(), masked[name], KEY) if name in masked else seen[name]
            for name in seen.column_names
        ],
        schema=PLAIN,
    )
    reference = lance.write_dataset(physical, f"memory://{uuid4().hex}")
    search = (
        {"vector": {"single_vector": [0.5, 0.5]}, "vector_column": "v", "prefilter": near, "k": k + 1}
        if near is not None
        else {"vector": {}, "k": k}
    )
    request = QueryTableRequest.model_validate({**search, "offset": offset, "filter": condition, "columns": columns})
    aliases = (columns or {}).get("column_aliases") or {}

    def expected() -> Any:
        with translate_errors("reference"):
            return create_scanner(reference, request).to_table().to_pylist()

    def actual() -> Any:
        opened = VisiblePart("t", policy, KEY).open(TableRef(dataset.uri))
        return (
            pa.ipc.open_file(b"".join(opened.query(request, describe_sql(condition, aliases)))).read_all().to_pylist()
        )

    wanted, found = run(expected), run(actual)
    if near is not None and isinstance(wanted, list) and isinstance(found, list):
        # Rows of the same distance come in any order, so at the end any of them.
        wanted, found = ([row["_distance"] for row in each] for each in (wanted, found))
    assert found == wanted
    if near is None:
        counted = run(
            lambda: (
                VisiblePart("t", policy, KEY)
                .open(TableRef(dataset.uri))
                .count(CountTableRowsRequest(predicate=condition), describe_sql(condition, {}))
            )
        )

        def expected_count() -> Any:
            with translate_errors("reference"):
                return reference.count_rows(condition)

        assert counted == run(expected_count)


@settings(max_examples=80, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    rows,
    wheres,
    masks,
    st.none() | conditions,
    projections,
    st.integers(0, 3),
    st.integers(0, 2),
    st.sampled_from([None, True, False]),
)
def test_it_equals_a_query_over_the_visible_rows(
    tmp_path: Path,
    values: Any,
    where: str | None,
    masked: Any,
    condition: str | None,
    columns: Any,
    k: int,
    offset: int,
    near: bool | None,
) -> None:
    check_query(tmp_path, values, where, masked, condition, columns, k, offset, near)


@pytest.mark.parametrize("mask", ["null", "hash", "text:x"])
@pytest.mark.parametrize("column", ["a", "s", "t", "d"])
def test_a_condition_on_a_masked_column_sees_the_mask(tmp_path: Path, column: str, mask: str) -> None:
    if column == "a" and mask.startswith("text"):
        mask = "null"
    kept = [(1, 1, "x", "", "x", [0, 0]), (2, 0, "y", "x", "y", [0, 1]), (None, 2, None, "7", "7", [1, 0])]
    for condition in (atom for atom in ATOMS if column in re.findall(r"\b[a-z]\b", atom)):
        check_query(tmp_path, kept, "b >= 0", {column: mask}, condition)


def test_hashes_are_keyed_and_stable() -> None:
    values = pa.array(["x", None, "y", "x"])
    first, none, other, again = mask_values(values, "hash", KEY).to_pylist()
    assert first == again != other
    assert none is None
    assert mask_values(values, "hash", b"l" * 32)[0].as_py() != first
    large = mask_values(values.cast(pa.large_string()), "hash", KEY)
    assert large[0].as_py() == first
    number = mask_values(pa.array([1, -1, 2**63 - 1], pa.int64()), "hash", KEY).to_pylist()
    assert len(set(number)) == 3
    assert min(number) >= 0


@pytest.mark.parametrize("mask", ["hash", "text:x"])
def test_a_mask_that_does_not_fit_closes_the_table(tmp_path: Path, mask: str) -> None:
    dataset = lance.write_dataset(pa.table({"a": pa.array([1.5])}), tmp_path / "t")
    part = VisiblePart("t", RowPolicy(None, frozenset(), {"a": mask}), KEY)
    with pytest.raises(PermissionDeniedError, match="column a has the type double"):
        part.open(TableRef(dataset.uri))


def test_an_error_of_the_row_filter_shows_no_value(tmp_path: Path) -> None:
    dataset = lance.write_dataset(pa.table({"s": ["hidden value"]}), tmp_path / "t")
    policy = RowPolicy("cast(s AS int) = 1", frozenset({"s"}), {})
    opened = VisiblePart("t", policy, KEY).open(TableRef(dataset.uri))
    with pytest.raises(PermissionDeniedError, match="cannot be evaluated") as caught:
        opened.count(CountTableRowsRequest(), describe_sql(None, {}))
    assert "hidden value" not in str(caught.value)
    assert caught.value.__cause__ is None


@pytest.mark.parametrize(
    ("grants", "where", "masks"),
    [
        ([("a = 1", {})], "(a = 1)", {}),
        ([("a = 1", {}), ("a = 2", {"s": "hash"})], "(a = 1) OR (a = 2)", {"s": "hash"}),
        ([("a = 1", {}), (None, {"s": "hash"})], None, {"s": "hash"}),
        ([("a = 1", {"s": "hash"}), ("a = 2", {"s": "text:x"})], "(a = 1) OR (a = 2)", {"s": "null"}),
    ],
)
def test_several_grants(grants: Any, where: str | None, masks: Any) -> None:
    policy = RowPolicy.combine(parse_restriction(*each) for each in grants)  # type: ignore[misc]
    assert (policy.where, dict(policy.masks)) == (where, masks)
    assert policy.digest(KEY) == RowPolicy.combine(parse_restriction(*each) for each in reversed(grants)).digest(KEY)  # type: ignore[misc]
    assert policy.digest(KEY) != policy.digest(b"l" * 32)


def test_estimates_tell_nothing_of_hidden_rows_and_masked_values(tmp_path: Path) -> None:
    """How copies are cut into files follows from the estimated size of rows."""
    estimates = []
    for length in (1, 5_000):
        values = pa.table(
            {
                "a": pa.array([1, 2, 1, 2], pa.int64()),
                "s": ["seen", "h" * length, "seen", "h" * length],
                "m": ["m" * length] * 4,
            }
        )
        dataset = lance.write_dataset(values, tmp_path / str(length))
        part = VisiblePart("t", RowPolicy("a = 1", frozenset({"a"}), {"m": "text:*"}), KEY)
        version = VersionExporter.open(TableRef(dataset.uri), part=part)
        (fragment,) = version.fragments
        estimates.append((fragment.bytes, fragment.rows, version.row_bytes(fragment, list(version.columns))))
    assert estimates[0] == estimates[1]
    assert 8 < estimates[0][2] < 100
