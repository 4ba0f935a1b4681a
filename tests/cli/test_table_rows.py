from __future__ import annotations

import base64
from datetime import datetime
from decimal import Decimal
from pathlib import Path

import lance
import pyarrow as pa
import pytest
from lance import blob_field

from tests.cli.commands import ROWS, ConfiguredCatalog, error_text, lines, open_configured

PNG = b"\x89PNG\r\n\x1a\n" + bytes(2000)


def test_count(place: ConfiguredCatalog) -> None:
    table = place.write()
    place.write(mode="append")
    assert place.run_json("table", "count", table) == {"table": table, "version": 2, "rows": 8}
    assert place.run_json("table", "count", table, "--version", "1", "--where", "id > 1")["rows"] == 2
    assert "no column nothing" in error_text(place.run("table", "count", table, "--where", "nothing > 1"))


def test_preview(place: ConfiguredCatalog) -> None:
    table = place.write()
    assert lines(place.run("table", "preview", table)) == [
        "id  text       vector",
        "─" * 34,
        " 0  one        [0.0, 0.0, 1.0, …4]",
        " 1  two words  [1.0, 0.0, 1.0, …4]",
        " 2  three      [2.0, 0.0, 1.0, …4]",
        " 3  null       [3.0, 0.0, 1.0, …4]",
        f"{table}, version 1: 4 rows",
    ]
    found = place.run_json(
        "table", "preview", table, "-n", "1", "--where", "id > 0", "--column", "vector", "--column", "id"
    )
    assert found == {"table": table, "version": 1, "count": 1, "rows": [{"vector": [1.0, 0.0, 1.0, 2.0], "id": 1}]}
    words = error_text(place.run("table", "preview", table, "--column", "txt"))
    assert "has no column txt; did you mean text?" in words


@pytest.mark.parametrize(
    ("where", "said"),
    [
        (
            "idd > 1",
            "there is no column idd; did you mean id?\nHint: `lancehouse --catalog dir table schema TABLE` shows those",
        ),
        ("nothing > 1", "there is no column nothing; the table has id, text, vector, price\n"),
        ("id >", "the filter is no condition in SQL: Expected: an expression, found: EOF\n"),
        ("id > 0 LIMIT 1", "the filter is no condition in SQL: Expected: EOF, found: LIMIT\n"),
        ("id > 0)", "id > 0) closes a parenthesis that it does not open, at character 7\n"),
        ("id = 'x'", 'the value "x" does not fit a column of type Int64\n'),
        (
            "price < 0.07",
            "the value 0.07 does not fit a column of type Decimal128(15, 2): write decimal(15,2) '0.07'\n",
        ),
        ("id", "the filter id is no condition: it has to be true or false for each row\n"),
    ],
)
def test_a_wrong_filter(where: str, said: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    place = open_configured("dir", request, tmp_path)
    table = place.write(rows=ROWS.append_column("price", pa.array([Decimal("0.05")] * 4, pa.decimal128(15, 2))))
    for words in (["count"], ["preview"], ["search", "--vector", "1,2,3,4"]):
        told = error_text(place.run("table", *words, table, "--where", where))
        assert told.startswith(f"Error: {said.replace('TABLE', table)}")


def test_every_kind_of_value(request: pytest.FixtureRequest, tmp_path: Path) -> None:
    place = open_configured("dir", request, tmp_path)
    rows = pa.table(
        {
            "when": pa.array([1_700_000_000_123_456_789], pa.timestamp("ns")),
            "long": ["several\nlines " + "x" * 100],
            "png": [PNG],
            "nan": [float("nan")],
            "nested": [{"a": [1, 2, 3, 4, 5], "b": None}],
            "hidden": ["\x1b[31mred\x1b[0m [bold] :cat:"],
            "day": [datetime(2024, 2, 29)],
        }
    )
    table = place.write(rows=rows)
    shown = "\n".join(lines(place.run("table", "preview", table, COLUMNS="300")))
    for words in (
        "2023-11-14 22:13:20.123456789",
        "several lines xxxxxxxxxxxxxxxxxxxxxxxxx…",
        "<png, 2.0 kB>",
        "�[31mred�[0m [bold] :cat:",
        "2024-02-29",
    ):
        assert words in shown
    assert "\x1b" not in shown
    (row,) = place.run_json("table", "preview", table)["rows"]
    assert base64.b64decode(row["png"]) == PNG
    assert (row["nan"], row["nested"]) == (None, {"a": [1, 2, 3, 4, 5], "b": None})
    assert row["when"].startswith("2023-11-14 22:13:20.123456789")


def test_what_python_has_no_value_for_is_text(request: pytest.FixtureRequest, tmp_path: Path) -> None:
    place = open_configured("dir", request, tmp_path)
    rows = pa.table(
        {
            "far": pa.array([10**6, 0], pa.date32()),
            "late": pa.array([10**12, None], pa.timestamp("s")),
            "long": pa.array([2**62, 1], pa.duration("s")),
            "time": pa.array([1, None], pa.time64("ns")),
            "stamps": pa.array([[10**12], None], pa.list_(pa.timestamp("s"))),
        }
    )
    first, second = place.run_json("table", "preview", place.write(rows=rows))["rows"]
    assert first["time"] == "00:00:00.000000001"
    assert all(isinstance(value, str) and value for value in first.values()), first
    assert (second["late"], second["time"], second["stamps"]) == (None, None, None)
    assert second["far"] == "1970-01-01"


def test_an_error_of_reading_is_not_blamed_on_a_filter(request: pytest.FixtureRequest, tmp_path: Path) -> None:
    place = open_configured("dir", request, tmp_path)
    table = place.write()
    for file in place.root.rglob("*.lance"):
        if file.is_file():
            file.write_bytes(b"broken" * 1000)
    words = error_text(place.run("table", "preview", table))
    assert "filter" not in words


@pytest.mark.parametrize(
    "words", [["preview", "-n"], ["preview", "--version"], ["count", "--version"], ["history", "--limit"]]
)
def test_numbers_that_nobody_has(words: list[str], request: pytest.FixtureRequest, tmp_path: Path) -> None:
    place = open_configured("dir", request, tmp_path)
    table = place.write()
    said = error_text(place.run("table", words[0], table, words[1], "99999999999999999999"), 2)
    assert "is not in the range" in said


def test_blobs_are_not_read(request: pytest.FixtureRequest, tmp_path: Path) -> None:
    place = open_configured("dir", request, tmp_path)
    schema = pa.schema([pa.field("id", pa.int64()), blob_field("video")])
    rows = pa.table({"id": [1], "video": lance.blob_array([bytes(5000)])}, schema=schema)
    lance.write_dataset(
        rows,
        namespace_client=place.connect(),
        table_id=[*place.levels, "films"],
        data_storage_version="2.2",
    )
    table = f"{place.ns}.films"
    assert " 1  <blob, 5.0 kB>" in lines(place.run("table", "preview", table))
    assert place.run_json("table", "preview", table)["rows"] == [{"id": 1, "video": {"size": 5000}}]


def test_columns_that_do_not_fit(request: pytest.FixtureRequest, tmp_path: Path) -> None:
    place = open_configured("dir", request, tmp_path)
    columns = {f"column_{number}": ["x" * 30] for number in range(10)}
    table = place.write(rows=pa.table({"number": [2**53], **columns}))
    shown = lines(place.run("table", "preview", table))
    assert max(map(len, shown[:-1])) <= 80
    assert shown[0].split() == ["number", "column_0", "column_1"]
    assert shown[2].split() == [str(2**53), "x" * 19 + "…", "x" * 19 + "…"]
    assert shown[-1] == (
        "There is no room for column_2, column_3, column_4, column_5, column_6, column_7 and 2 more: "
        "--column NAME shows what you choose."
    )
    assert shown[-2].endswith(", version 1: 1 row")
    two = lines(place.run("table", "preview", table, "--column", "column_8", "--column", "column_9"))
    assert two[2].split() == ["x" * 30, "x" * 30]
    three = lines(place.run("table", "preview", table, *(f"--column=column_{number}" for number in range(3))))
    assert three[2].split() == ["x" * 19 + "…"] * 3
    wide = lines(place.run("table", "preview", table, COLUMNS="500"))
    assert wide[2].split() == [str(2**53), *["x" * 30] * 10]


def test_a_tag(place: ConfiguredCatalog) -> None:
    table = place.write()
    place.run("table", "tag", "create", table, "best")
    place.write(mode="append")
    assert place.run_json("table", "count", table, "--tag", "best")["rows"] == 4
    assert len(place.run_json("table", "preview", table, "--tag", "best")["rows"]) == 4
    words = error_text(place.run("table", "count", table, "--tag", "worst"))
    assert words.endswith(f"Hint: `{place.typed} table tag list {table}` shows those that there are\n")


def test_a_managed_table(request: pytest.FixtureRequest, tmp_path: Path) -> None:
    place = open_configured("served", request, tmp_path)
    table = place.write()
    assert place.run("table", "manage", table, "--by", "impl").exit_code == 0
    place.write(mode="append")
    assert place.run_json("table", "describe", table)["managed_by"] == "impl"
    assert [each["version"] for each in place.run_json("table", "history", table)["versions"]] == [2, 1]
    assert len(place.run_json("table", "preview", table)["rows"]) == 8


@pytest.mark.parametrize("catalog", ["unity", "polaris"])
def test_other_catalogs(catalog: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    place = open_configured(catalog, request, tmp_path)
    table = place.write()
    assert len(place.run_json("table", "preview", table)["rows"]) == ROWS.num_rows
    assert place.run_json("table", "list", place.ns)["tables"][0]["table"] == table
    assert place.run_json("table", "describe", table)["rows"] == 4
    assert place.run_json("table", "history", table)["versions"][0]["version"] == 1
    place.run("table", "tag", "create", table, "best")
    assert place.run_json("table", "tag", "list", table)["tags"][0]["tag"] == "best"
    assert place.run("table", "drop", table, "--yes").exit_code == 0
