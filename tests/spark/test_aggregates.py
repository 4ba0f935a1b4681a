"""What `aggregate` finds out is what Spark would, of all rows at once: however they lie in fragments and tasks."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any, cast

import lance
import numpy as np
import pyarrow as pa
import pytest
from lance_namespace.errors import InvalidInputError

from lancehouse.lake import scans
from lancehouse.spark import LanceCatalog, aggregates
from lancehouse.spark.aggregates import parse_aggregation
from lancehouse.spark.engine import translate_task_errors

NAN = math.nan
NINES = 10**38 - 1
PRICE = Decimal("12345678901234567890.12")


@pytest.fixture
def catalog(spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> LanceCatalog:
    """Few rows go to several tasks, though the driver could answer."""
    monkeypatch.setattr(scans, "MIN_TASK_ROWS", 1)
    catalog = LanceCatalog(spark, "dir", {"root": str(tmp_path)})
    catalog.driver_bytes = 0
    return catalog


def decimals(*values: int | str | None) -> list[Decimal | None]:
    return [None if value is None else Decimal(value) for value in values]


def write(folder: Path, columns: Mapping[str, pa.Array[Any]], rows_per_file: int = 1000) -> None:
    """A table `t` with these columns, and g, which is the same everywhere."""
    rows = pa.table({**columns, "g": pa.array(["x"] * len(next(iter(columns.values()))))})
    lance.write_dataset(rows, folder / "t.lance", max_rows_per_file=rows_per_file)


@pytest.fixture(params=[1, 1000], ids=["several tasks", "one task"])
def rows_per_file(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    if request.param > 1:
        monkeypatch.setattr(scans, "MIN_TASK_ROWS", 1 << 16)
    return int(request.param)


@pytest.fixture(params=["all", "groups"])
def group_by(request: pytest.FixtureRequest) -> list[str]:
    return ["g"] if request.param == "groups" else []


SUMS: dict[str, tuple[Any, list[Any], Any, str]] = {
    "cancelled": (pa.int64(), [2**62, 2**62, -(2**62), None], 2**62, "bigint"),
    "least": (pa.int64(), [-(2**62), -(2**62), None, 0], -(2**63), "bigint"),
    "short": (pa.int32(), [2**31 - 1] * 4, 4 * (2**31 - 1), "bigint"),
    "unsigned": (pa.uint64(), [2**63] * 4, 2**65, "decimal(30,0)"),
    "byte": (pa.uint8(), [255] * 4, 1020, "decimal(30,0)"),
    "bool": (pa.bool_(), [True, False, True, None], 2, "decimal(30,0)"),
    "nines": (pa.decimal128(38, 0), decimals(NINES, -NINES, 7, None), 7, "decimal(38,0)"),
    "price": (pa.decimal128(12, 2), decimals("1.25", "2.50", 0, 0), Decimal("3.75"), "decimal(38,2)"),
    "wide": (pa.decimal256(30, 2), [PRICE] * 4, 4 * PRICE, "decimal(38,2)"),
    "wider": (pa.decimal256(50, 0), decimals(9, 10, 10**37, None), 10**37 + 19, "decimal(38,0)"),
    "widest": (pa.decimal256(76, 0), decimals(10**60, -(10**60), 5, 0), 5, "decimal(38,0)"),
}
"""By column: its type, its values, their sum, and the sum's type."""


def test_sums_and_means_are_exact(
    catalog: LanceCatalog, tmp_path: Path, rows_per_file: int, group_by: list[str]
) -> None:
    write(tmp_path, {name: pa.array(values, dtype) for name, (dtype, values, _, _) in SUMS.items()}, rows_per_file)
    found = catalog.aggregate("t", group_by, sum=list(SUMS), mean=list(SUMS))
    [row] = found.collect()
    for name, (_, values, total, kind) in SUMS.items():
        assert row[f"{name}_sum"] == total, name
        assert math.isclose(row[f"{name}_mean"], float(total) / sum(value is not None for value in values)), name
        assert found.schema[f"{name}_sum"].dataType.simpleString() == kind, name


TOO_LARGE: dict[str, tuple[Any, list[Any], str]] = {
    "large": (pa.int64(), [2**62] * 3, "bigint"),
    "small": (pa.int64(), [-(2**62)] * 3, "bigint"),
    "nines": (pa.decimal128(38, 0), decimals(NINES) * 3, "decimal(38,0)"),
    "wide": (pa.decimal256(40, 2), decimals(10**37, None, None), "decimal(38,2)"),
    "widest": (pa.decimal256(76, 0), decimals(10**76 - 1) * 3, "decimal(38,0)"),
}
"""By column: its type, its values, and the type that their sum does not fit."""


def test_sums_that_do_not_fit(catalog: LanceCatalog, tmp_path: Path, rows_per_file: int, group_by: list[str]) -> None:
    write(tmp_path, {name: pa.array(values, dtype) for name, (dtype, values, _) in TOO_LARGE.items()}, rows_per_file)
    for name, (_, _, kind) in TOO_LARGE.items():
        says = f"^the sum of column {name} does not fit {re.escape(kind)}$"
        with pytest.raises(InvalidInputError, match=says), translate_task_errors():
            catalog.aggregate("t", group_by, sum=name).collect()
    [row] = catalog.aggregate("t", group_by, mean=["large", "small"]).collect()
    assert (row.large_mean, row.small_mean) == (2.0**62, -(2.0**62))


def test_a_sum_that_does_not_fit_without_ansi(spark: Any, tmp_path: Path) -> None:
    lax = spark.newSession()
    lax.conf.set("spark.sql.ansi.enabled", "false")
    write(tmp_path, {"a": pa.array(decimals(NINES) * 2, pa.decimal128(38, 0))})
    with pytest.raises(InvalidInputError, match="does not fit"), translate_task_errors():
        LanceCatalog(lax, "dir", {"root": str(tmp_path)}).aggregate("t", sum="a").collect()


def join_halves(row: Mapping[str, Any]) -> int:
    """A sum of its halves, as tasks hand it on."""
    return int((row["sum of a"] << 32) + row["low half of a"])


def test_sums_of_many_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Some chunks need a wider type, and all of them together do."""
    monkeypatch.setattr(aggregates, "CHUNK", 2)
    values = [1, 2, 2**63 - 1, 2**63 - 1, 3, 4, 2**62, 0, 2**62, 0]
    rows = pa.table({"a": pa.array(values, pa.int64()), "g": pa.array([0, 1] * 5, pa.int8())})
    batches = rows.to_batches(max_chunksize=2)
    [whole] = parse_aggregation((), {"sum": "a"}, None).compute(rows.schema, batches).to_pylist()
    assert join_halves(whole) == sum(values)
    groups = parse_aggregation("g", {"sum": "a"}, None).compute(rows.schema, batches).to_pylist()
    assert {each["g"]: join_halves(each) for each in groups} == {0: sum(values[::2]), 1: sum(values[1::2])}


ENDS: dict[str, tuple[Any, list[Any], Any, Any]] = {
    "longer": (pa.decimal256(50, 0), decimals(9, None, 10), "9", "10"),
    "negative": (pa.decimal256(50, 2), decimals("-9.00", "-10.25", "0.50"), "-10.25", "0.50"),
    "fine": (pa.decimal256(76, 60), decimals(f"{0:.59f}1", 0, f"{-3:.60f}"), f"{-3:.60f}", f"{0:.59f}1"),
    "large": (pa.decimal256(60, 0), decimals(10**59, None, -(10**59)), str(-(10**59)), str(10**59)),
    "short": (pa.decimal256(30, 2), decimals("9.00", "10.00", None), Decimal(9), Decimal(10)),
    "none": (pa.decimal256(50, 0), decimals(None, None, None), None, None),
}
"""By column: its type, its values, the least and the greatest, as `read` gives them."""


def test_the_least_and_the_greatest_decimal(
    catalog: LanceCatalog, tmp_path: Path, rows_per_file: int, group_by: list[str]
) -> None:
    write(tmp_path, {name: pa.array(values, dtype) for name, (dtype, values, _, _) in ENDS.items()}, rows_per_file)
    found, rows = catalog.aggregate("t", group_by, min=list(ENDS), max=list(ENDS)), catalog.read("t")
    [row] = found.collect()
    given = rows.collect()
    for name, (_, _, least, greatest) in ENDS.items():
        assert (row[f"{name}_min"], row[f"{name}_max"]) == (least, greatest), name
        assert found.schema[f"{name}_min"].dataType == rows.schema[name].dataType
        assert {least, greatest} <= {each[name] for each in given}


FLOATS: list[list[float | None]] = [
    [1.0, NAN, -2.0, -1.5],
    [NAN, -math.inf, math.inf, -3.0],
    [-NAN, -1.0, NAN, -2.0],
    [NAN, None, NAN, NAN],
    [1.0, None, -2.0, 1.5],
    [None, None, None, None],
]


def test_nan_is_the_greatest(catalog: LanceCatalog, tmp_path: Path, rows_per_file: int, group_by: list[str]) -> None:
    columns = {}
    for number, values in enumerate(FLOATS):
        mask = np.array([value is None for value in values])
        for dtype in ("f2", "f4", "f8"):
            plain = np.array([value or 0.0 for value in values], dtype)
            columns[f"{dtype}_{number}"] = pa.array(plain, mask=mask)
    write(tmp_path, columns, rows_per_file)
    [found] = catalog.aggregate("t", group_by, min=list(columns), max=list(columns)).collect()
    wanted = [f"{function}({name}) AS {name}_{function}" for function in ("min", "max") for name in columns]
    [row] = catalog.read("t").selectExpr(*wanted).collect()
    assert {name: str(found[name]) for name in row.asDict()} == {name: str(row[name]) for name in row.asDict()}
    assert (found.f4_0_min, str(found.f4_0_max), str(found.f2_3_min), found.f8_4_max) == (-2.0, "nan", "nan", 1.5)


def test_nan_in_some_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    """And in some of the chunks that a task puts together."""
    monkeypatch.setattr(aggregates, "CHUNK", 2)
    floats = pa.array([1.0, NAN, 2.0, 3.0, -4.0, NAN, NAN, 5.0], pa.float32())
    rows = pa.table({"a": floats, "g": pa.array([0, 1, 0, 1, 2, 3, 2, 3], pa.int8())})
    found = parse_aggregation("g", {"min": "a", "max": "a"}, None).compute(
        rows.schema, rows.to_batches(max_chunksize=2)
    )
    assert found.schema.field("max of a").type == pa.float32()
    greatest = dict(zip(found["g"].to_pylist(), map(str, found["max of a"].to_pylist()), strict=True))
    least = dict(zip(found["g"].to_pylist(), map(str, found["min of a"].to_pylist()), strict=True))
    assert greatest == {0: "2.0", 1: "nan", 2: "nan", 3: "nan"}
    assert least == {0: "1.0", 1: "3.0", 2: "-4.0", 3: "5.0"}


def test_no_rows(catalog: LanceCatalog, tmp_path: Path) -> None:
    write(tmp_path, {"a": pa.array(decimals(1), pa.decimal256(50, 2))})
    measures: dict[str, Any] = dict.fromkeys(("sum", "mean", "min", "max", "count"), "a")
    [row] = catalog.aggregate("t", filter="g = 'y'", **measures).collect()
    assert tuple(row) == (None, None, None, None, 0)
    assert catalog.aggregate("t", "g", filter="g = 'y'", **measures).collect() == []


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        ({"group_by": ["g", "a", "g"]}, "group_by names g more than once"),
        (
            {"sum": "a"},
            "column a has 60 digits after the point, and Spark's decimals no more than 38, so it has no sum",
        ),
        ({"mean": "a"}, "so it has no mean"),
    ],
)
def test_what_is_wrong_is_said_at_once(catalog: LanceCatalog, tmp_path: Path, asked: Any, says: str) -> None:
    write(tmp_path, {"a": pa.array(decimals(1), pa.decimal256(76, 60))})
    with pytest.raises(InvalidInputError, match=says):
        catalog.aggregate("t", **asked)


class LocalFrames:
    """Takes what would go to Spark, whose types PySpark itself checks in the tests that start it."""

    version = "4.3.0"

    def createDataFrame(self, rows: pa.Table, struct: Any) -> Any:  # noqa: N802 - PySpark's name
        self.types = {field.name: field.dataType.simpleString() for field in struct.fields}
        return rows

    def __getattr__(self, name: str) -> Any:
        raise AssertionError(f"a small question asks Spark for {name}")


@pytest.fixture
def no_jobs(tmp_path: Path) -> LanceCatalog:
    session: Any = LocalFrames()
    return LanceCatalog(session, "dir", {"root": str(tmp_path)})


@pytest.mark.parametrize("group_by", [[], ["g"]])
def test_small_aggregates_without_spark(no_jobs: LanceCatalog, tmp_path: Path, group_by: list[str]) -> None:
    """The same sums, means and types as from tasks."""
    write(tmp_path, {name: pa.array(values, dtype) for name, (dtype, values, _, _) in SUMS.items()}, 1)
    found: Any = no_jobs.aggregate("t", group_by, sum=list(SUMS), mean=list(SUMS), count=["*", "bool"])
    types: dict[str, str] = cast("Any", no_jobs.spark).types
    [row] = found.to_pylist()
    for name, (_, values, total, kind) in SUMS.items():
        assert row[f"{name}_sum"] == total, name
        assert math.isclose(row[f"{name}_mean"], float(total) / sum(value is not None for value in values)), name
        assert (types[f"{name}_sum"], types[f"{name}_mean"]) == (kind, "double"), name
    assert (row["count"], row["bool_count"], types["count"]) == (4, 3, "bigint")


@pytest.mark.parametrize("group_by", [[], ["g"]])
def test_small_sums_that_do_not_fit(no_jobs: LanceCatalog, tmp_path: Path, group_by: list[str]) -> None:
    write(tmp_path, {name: pa.array(values, dtype) for name, (dtype, values, _) in TOO_LARGE.items()}, 1)
    for name, (_, _, kind) in TOO_LARGE.items():
        with pytest.raises(InvalidInputError, match=f"the sum of column {name} does not fit {re.escape(kind)}"):
            no_jobs.aggregate("t", group_by, sum=name)
    found: Any = no_jobs.aggregate("t", group_by, mean=["large", "small"])
    [row] = found.to_pylist()
    assert (row["large_mean"], row["small_mean"]) == (2.0**62, -(2.0**62))


def test_small_questions_about_no_rows(no_jobs: LanceCatalog, tmp_path: Path) -> None:
    write(tmp_path, {"a": pa.array([1, 2])})
    measures: dict[str, Any] = {"sum": "a", "min": "a", "max": "a", "mean": "a", "count": ["a", "*"]}
    none: Any = no_jobs.aggregate("t", filter="g = 'y'", **measures)
    assert none.to_pylist() == [{"a_sum": None, "a_min": None, "a_max": None, "a_mean": None, "a_count": 0, "count": 0}]
    groups: Any = no_jobs.aggregate("t", "g", filter="g = 'y'", **measures)
    assert groups.to_pylist() == []
    names: Any = no_jobs.aggregate("t", "g")
    assert names.to_pylist() == [{"g": "x"}]
    assert (no_jobs.count("t", "a > 1"), no_jobs.count("t")) == (1, 2)


@pytest.mark.parametrize("index", [False, True])
def test_a_small_search_without_spark(no_jobs: LanceCatalog, tmp_path: Path, index: bool) -> None:
    numbers = pa.array(np.arange(600, dtype="f4"))
    write(tmp_path, {"a": pa.array(range(300)), "v": pa.FixedSizeListArray.from_arrays(numbers, 2)}, 100)
    if index:
        lance.dataset(tmp_path / "t.lance").create_index("v", "IVF_FLAT", num_partitions=1)
    found: Any = no_jobs.search("t", [8.0, 9.0], k=3, columns=["a"], filter="a <> 5")
    assert found.to_pylist() == [
        {"a": 4, "_distance": 0.0},
        {"a": 3, "_distance": 8.0},
        {"a": 2, "_distance": 32.0},
    ]
    no_jobs.driver_bytes = 0
    with pytest.raises(AssertionError, match="asks Spark for"):
        no_jobs.search("t", [8.0, 9.0], k=3)


def test_what_is_not_small_goes_to_spark(no_jobs: LanceCatalog, tmp_path: Path) -> None:
    write(tmp_path, {"a": pa.array(range(100)), "f": pa.array([0.0, -0.0] * 50), "text": pa.array(["x" * 100] * 100)})
    no_jobs.driver_bytes = 800
    no_jobs.aggregate("t", sum="a")
    for asked in ({"max": "text"}, {"sum": ["a", "f"]}, {"sum": "a", "filter": "text <> 'y'"}):
        with pytest.raises(AssertionError, match="asks Spark for"):
            no_jobs.aggregate("t", **asked)
    with pytest.raises(AssertionError, match="asks Spark for"):
        no_jobs.count("t", "text <> 'y'")
    no_jobs.driver_bytes = 1 << 20
    no_jobs.aggregate("t", "g", max="text")
    with pytest.raises(AssertionError, match="asks Spark for"):
        no_jobs.aggregate("t", "f", count="*")  # to Arrow, 0.0 and -0.0 are two groups


def test_rows_that_are_larger_than_their_files_go_to_spark(no_jobs: LanceCatalog, tmp_path: Path) -> None:
    texts = pa.array(["x" * 5000] * 2000)
    write(tmp_path, {"text": texts}, 2000)
    size = sum(path.stat().st_size for path in (tmp_path / "t.lance").rglob("*.lance"))
    no_jobs.driver_bytes = 2 << 20
    assert size < no_jobs.driver_bytes < texts.nbytes
    with pytest.raises(AssertionError, match="asks Spark for"):
        no_jobs.aggregate("t", max="text")


def test_a_search_that_finds_much_goes_to_spark(no_jobs: LanceCatalog, tmp_path: Path) -> None:
    texts = pa.array([np.random.default_rng(number).bytes(50).hex() for number in range(2000)])
    vectors = pa.FixedSizeListArray.from_arrays(pa.array(np.arange(4000, dtype="f4")), 2)
    write(tmp_path, {"text": texts, "v": vectors}, 2000)
    no_jobs.driver_bytes = 40_000
    no_jobs.search("t", [1.0, 1.0], k=1000, columns=["v"])
    with pytest.raises(AssertionError, match="asks Spark for"):
        no_jobs.search("t", [1.0, 1.0], k=1000)


def test_a_setting_that_is_no_number(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LANCEHOUSE_DRIVER_BYTES", "many")
    with pytest.raises(InvalidInputError, match="LANCEHOUSE_DRIVER_BYTES must be a number of bytes, not 'many'"):
        LanceCatalog(cast("Any", LocalFrames()), "dir", {"root": str(tmp_path)})


def test_both_ways_answer_the_same(catalog: LanceCatalog, tmp_path: Path) -> None:
    """By tasks and by the driver: types of columns, values, NaN, nulls."""
    columns: dict[str, Any] = {
        "i": pa.array([1, None, 3, 4], pa.int32()),
        "u": pa.array([1, 2, None, 4], pa.uint16()),
        "f": pa.array([1.5, NAN, None, -0.5], pa.float32()),
        "d": pa.array([datetime(2026, 1, day, tzinfo=UTC) for day in (1, 2, 3, 4)], pa.timestamp("us", "UTC")),
        "s": pa.array(["b", None, "a", "c"]),
        "p": pa.array(decimals(1, 2, None, 4), pa.decimal256(50, 0)),
        "k": pa.array(["x", "y", "x", None]).dictionary_encode(),
    }
    write(tmp_path, columns, 1)
    for keys in ([], ["k"], ["k", "g"]):
        asked: dict[str, Any] = {"min": list("iufdsp"), "max": list("iufdsp"), "sum": list("iuf"), "mean": list("iuf")}
        by_tasks = catalog.aggregate("t", keys, **asked, count=["*", "s"])
        catalog.driver_bytes = 1 << 20
        by_driver = catalog.aggregate("t", keys, **asked, count=["*", "s"])
        catalog.driver_bytes = 0
        simple = [frame.schema.simpleString() for frame in (by_tasks, by_driver)]
        assert simple[0] == simple[1]
        rows = [sorted(map(repr, frame.collect())) for frame in (by_tasks, by_driver)]
        assert rows[0] == rows[1]
