"""Rows of every format, as they were written."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, date, datetime, time
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from lance_namespace.errors import (
    InvalidInputError,
    LanceNamespaceError,
    TableColumnNotFoundError,
    TableSchemaValidationError,
)

from lancehouse.jobs.sources import formats
from lancehouse.jobs.sources.ingest_source import open_source
from lancehouse.jobs.sources.text import BLOCK_BYTES
from tests.jobs.sources.reading import read, rows

NESTED = pa.table(
    {
        "id": pa.array([1, None, 3], pa.int32()),
        "text": pa.array(["a", "", None]),
        "when": pa.array([datetime(2024, 2, 29, 12, tzinfo=UTC), None, None], pa.timestamp("us", "UTC")),
        "price": pa.array([Decimal("1.50"), None, Decimal("-2.25")], pa.decimal128(10, 2)),
        "list": pa.array([[1, None], [], None], pa.list_(pa.int64())),
        "struct": pa.array([{"x": 1.5, "y": ["b"]}, None, {"x": None, "y": None}]),
        "map": pa.array([[("k", 1)], [], None], pa.map_(pa.string(), pa.int32())),
        "vector": pa.array([[1, 2], None, [3, 4]], pa.list_(pa.float32(), 2)),
        "word": pa.array(["x", "y", "x"]).dictionary_encode(),
        "a.b": pa.array([b"\x00", None, b""]),
        "nothing": pa.nulls(3),
    }
)


def write_parquet(table: pa.Table, path: Path) -> None:
    pq.write_table(table, path)


def write_file(table: pa.Table, path: Path) -> None:
    with pa.ipc.new_file(str(path), table.schema) as writer:
        writer.write_table(table)


def write_stream(table: pa.Table, path: Path) -> None:
    with pa.ipc.new_stream(str(path), table.schema) as writer:
        writer.write_table(table)


def write_lines(table: pa.Table, path: Path) -> None:
    lines = "".join(json.dumps(row) + "\n" for row in table.to_pylist())
    with pa.output_stream(path, compression="detect") as stream:
        stream.write(lines.encode())


COLUMNAR: dict[str, Callable[[pa.Table, Path], None]] = {
    "a.parquet": write_parquet,
    "a.pq": write_parquet,
    "a.arrow": write_file,
    "a.ipc": write_stream,
    "a.feather": write_file,
}


@pytest.mark.parametrize("name", ["a.parquet", "a.arrow", "a.csv", "a.jsonl"])
def test_folders_tell_columns_whatever_the_format(tmp_path: Path, name: str) -> None:
    for subject in ("one", "two"):
        folder = tmp_path / f"subject={subject}"
        folder.mkdir()
        if name == "a.csv":
            (folder / name).write_text("id\n1\n")
        else:
            {**COLUMNAR, "a.jsonl": write_lines}[name](pa.table({"id": [1]}), folder / name)
    assert rows(tmp_path) == [{"id": 1, "subject": "one"}, {"id": 1, "subject": "two"}]


@pytest.mark.parametrize("name", COLUMNAR)
def test_columnar_formats_keep_everything(tmp_path: Path, name: str) -> None:
    COLUMNAR[name](NESTED.replace_schema_metadata({"pandas": "{}"}), tmp_path / name)
    source = open_source(tmp_path / name)
    assert source.schema.equals(NESTED.schema, check_metadata=True)
    assert read(source).equals(NESTED)


@pytest.mark.parametrize("name", [*COLUMNAR, "a.csv", "a.json"])
def test_columns_are_chosen_and_ordered(tmp_path: Path, name: str) -> None:
    table = pa.table({"a": [1, 2], "b": ["x", "y"], "c": [1.5, 2.5]})
    write = {**COLUMNAR, "a.csv": write_csv, "a.json": write_lines}[name]
    write(table, tmp_path / name)
    source = open_source(tmp_path / name, columns=["c", "a"])
    assert source.schema.names == ["c", "a"]
    assert read(source).equals(table.select(["c", "a"]))
    with pytest.raises(TableColumnNotFoundError, match=rf"{name} has no column z, A; it has a, b, c"):
        open_source(tmp_path / name, columns=["a", "z", "A"])
    for none in ([], ["a", "a"]):
        with pytest.raises(InvalidInputError, match="columns must name at least one column, and each once"):
            open_source(tmp_path / name, columns=none)


def write_csv(table: pa.Table, path: Path) -> None:
    lines = [",".join(table.column_names), *(",".join(map(str, row.values())) for row in table.to_pylist())]
    path.write_text("".join(f"{line}\n" for line in lines))


@pytest.mark.parametrize("name", [*COLUMNAR, "a.csv"])
def test_a_table_without_rows(tmp_path: Path, name: str) -> None:
    table = pa.table({"a": pa.array([], pa.string())})
    {**COLUMNAR, "a.csv": write_csv}[name](table, tmp_path / name)
    source = open_source(tmp_path / name)
    assert read(source).equals(table)
    assert len(source.units) == 1


@pytest.mark.parametrize("name", [*COLUMNAR, "a.csv", "a.json"])
def test_a_schema_of_the_table(tmp_path: Path, name: str) -> None:
    """Columns that the file has not are null, those that the table has not are left out by who asks."""
    write = {**COLUMNAR, "a.csv": write_csv, "a.json": write_lines}[name]
    write(pa.table({"a": [1, 2], "b": ["x", "y"]}), tmp_path / name)
    wanted = pa.schema([("z", pa.list_(pa.string())), ("a", pa.decimal128(21, 2))])
    expected = [{"z": None, "a": Decimal(1)}, {"z": None, "a": Decimal(2)}]
    assert read(open_source(tmp_path / name), wanted).to_pylist() == expected
    only_new = pa.schema([("z", pa.string())])
    assert read(open_source(tmp_path / name), only_new).to_pylist() == [{"z": None}] * 2
    required = pa.schema([pa.field("z", pa.string(), nullable=False)])
    with pytest.raises(TableSchemaValidationError, match=rf"{name}: column z has nulls, which it must not"):
        read(open_source(tmp_path / name), required)


@pytest.mark.parametrize("name", [*COLUMNAR, "a.csv", "a.json"])
def test_a_schema_that_does_not_fit(tmp_path: Path, name: str) -> None:
    write = {**COLUMNAR, "a.csv": write_csv, "a.json": write_lines}[name]
    write(pa.table({"a": ["1", "x"]}), tmp_path / name)
    with pytest.raises(LanceNamespaceError, match=rf"{tmp_path}/{name}"):
        read(open_source(tmp_path / name), pa.schema([("a", pa.int64())]))


# Parquet


def test_parquet_in_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Row groups are fetched in windows, and come in batches of a few rows; nothing is lost between them."""
    table = pa.table({"a": range(10_000), "b": [str(number) * 10 for number in range(10_000)]})
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=700)
    monkeypatch.setattr(formats, "WINDOW_BYTES", 60_000)
    monkeypatch.setattr(formats, "BATCH_BYTES", 10_000)
    source = open_source(tmp_path / "a.parquet")
    (unit,) = source.units
    assert unit.bytes == pytest.approx((tmp_path / "a.parquet").stat().st_size, rel=0.01)
    batches = list(unit.batches(source.schema))
    assert max(batch.num_rows for batch in batches) < 400
    assert pa.Table.from_batches(batches).equals(table)


def test_parquet_that_others_wrote(tmp_path: Path) -> None:
    """Field ids and Spark's timestamps mean nothing to Lance."""
    child = pa.field("x", pa.int64(), nullable=False, metadata={"PARQUET:field_id": "2"})
    fields: list[pa.Field[Any]] = [
        pa.field("s", pa.struct([child]), metadata={"PARQUET:field_id": "1", "doc": "kept"}),
        pa.field("t", pa.timestamp("ns"), nullable=False),
    ]
    columns: list[Any] = [pa.array([{"x": 1}], fields[0].type), pa.array([0], pa.timestamp("ns"))]
    table = pa.Table.from_arrays(columns, schema=pa.schema(fields))
    pq.write_table(table, tmp_path / "a.parquet", use_deprecated_int96_timestamps=True, store_schema=False)
    source = open_source(tmp_path)
    assert source.schema.field("s").metadata is None
    assert b"PARQUET" not in source.schema.to_string().encode()
    assert not source.schema.field("t").nullable
    assert not source.schema.field("s").type.field("x").nullable
    assert read(source).to_pylist() == table.to_pylist()


def test_a_torn_parquet_file(tmp_path: Path) -> None:
    """The footer is whole, a page is not."""
    pq.write_table(pa.table({"a": [str(number) for number in range(1000)]}), tmp_path / "a.parquet")
    content = bytearray((tmp_path / "a.parquet").read_bytes())
    content[4:2000] = b"\xff" * 1996
    (tmp_path / "a.parquet").write_bytes(content)
    source = open_source(tmp_path)
    with pytest.raises(InvalidInputError, match=f"{tmp_path}/a.parquet cannot be read"):
        read(source)


def test_a_file_that_is_gone(tmp_path: Path) -> None:
    pq.write_table(pa.table({"a": [1]}), tmp_path / "a.parquet")
    source = open_source(tmp_path)
    (tmp_path / "a.parquet").unlink()
    with pytest.raises(InvalidInputError, match=f"there is no file at {tmp_path}/a.parquet"):
        read(source)


# CSV


def test_csv_types(tmp_path: Path) -> None:
    lines = [
        "n,x,s,d,t,z,b,e",
        "1,1.5,a,2024-02-29,2024-02-29 12:00:00,2024-02-29T12:00:00Z,true,",
        ',,"",,,,,',
        '2,NaN,"two\nlines",2024-03-01,2024-03-01 00:00:00,2024-03-01T00:00:00Z,false,',
        ",,NA,,,,,",
    ]
    (tmp_path / "a.csv").write_text("\n".join(lines))
    source = open_source(tmp_path)
    types: list[Any] = [pa.int64(), pa.float64(), pa.string(), pa.date32()]
    types += [pa.timestamp("us"), pa.timestamp("us", "UTC"), pa.bool_(), pa.string()]
    assert source.schema == pa.schema(list(zip("nxsdtzbe", types, strict=True)))
    first, *others = read(source).to_pylist()
    noon = datetime(2024, 2, 29, 12)
    assert list(first.values()) == [1, 1.5, "a", date(2024, 2, 29), noon, noon.replace(tzinfo=UTC), True, None]
    assert others[0] == {**dict.fromkeys(first), "s": ""}
    assert [row["s"] for row in others] == ["", "two\nlines", "NA"]


def test_lines_in_quotes_at_the_end_of_a_block(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lancehouse.jobs.sources.text.BLOCK_BYTES", 100)
    expected = [{"n": number, "s": "x\n" * number} for number in range(30)]
    lines = "".join(f'{row["n"]},"{row["s"]}"\n' for row in expected)
    (tmp_path / "a.csv").write_text(f"n,s\n{lines}")
    assert rows(tmp_path) == expected


def test_csv_as_the_table_has_it(tmp_path: Path) -> None:
    """Text is parsed as the types that are asked for, not as those that it looks like."""
    (tmp_path / "a.csv").write_text("zip,price,day,time,word\n00123,1.10,2024-01-01,12:30:00,x\n")
    types: list[Any] = [pa.string(), pa.decimal128(9, 3), pa.timestamp("ms"), pa.time64("us")]
    types += [pa.dictionary(pa.int32(), pa.string())]
    wanted = pa.schema(list(zip(["zip", "price", "day", "time", "word"], types, strict=True)))
    (row,) = read(open_source(tmp_path), wanted).to_pylist()
    assert tuple(row.values()) == ("00123", Decimal("1.10"), datetime(2024, 1, 1), time(12, 30), "x")


def test_tabs_and_marks(tmp_path: Path) -> None:
    (tmp_path / "a.tsv").write_bytes(b"\xef\xbb\xbfa\tb\r\n1,5\tx\r\n")
    assert rows(tmp_path) == [{"a": "1,5", "b": "x"}]


def test_a_header_that_says_a_name_twice(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("a,b,a\n1,2,3\n")
    with pytest.raises(TableSchemaValidationError, match=f"{tmp_path}/a.csv has more than one column a"):
        open_source(tmp_path)


# JSON


def test_json_types(tmp_path: Path) -> None:
    lines: list[dict[str, Any]] = [
        {
            "n": 1,
            "x": 1.5,
            "s": "2024-02-29",
            "t": "2024-02-29T12:00:00+02:00",
            "b": True,
            "l": [1, None],
            "o": {"x": 1, "y": {"z": []}},
            "e": None,
        },
        {"n": None, "x": 2, "s": "2024-03-01", "l": [], "o": {"y": None}},
        {"n": 3, "more": [{"k": "v"}]},
    ]
    (tmp_path / "a.json").write_text("\n\n".join(json.dumps(line) for line in lines))
    source = open_source(tmp_path)
    inner = pa.struct([("x", pa.int64()), ("y", pa.struct([("z", pa.list_(pa.string()))]))])
    assert {field.name: field.type for field in source.schema} == {
        "n": pa.int64(),
        "x": pa.float64(),
        "s": pa.string(),
        "t": pa.string(),
        "b": pa.bool_(),
        "e": pa.string(),
        "l": pa.list_(pa.int64()),
        "o": inner,
        "more": pa.list_(pa.struct([("k", pa.string())])),
    }
    assert read(source).to_pylist()[0] == {**lines[0], "more": None}
    assert [row["s"] for row in read(source).to_pylist()] == ["2024-02-29", "2024-03-01", None]


def test_json_as_the_table_has_it(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text(
        '{"v": [1, 2.5], "t": "2024-01-01T10:00Z", "d": "2024-01-01", "p": "1.50", "q": 1.5, "s": 7, "o": {"x": 1}}\n'
    )
    wanted = pa.schema(
        [
            *(("v", pa.list_(pa.float32(), 2)), ("t", pa.timestamp("us", "UTC")), ("d", pa.date32())),
            *(("p", pa.decimal128(9, 2)), ("q", pa.decimal128(9, 2)), ("s", pa.string())),
            *(("o", pa.struct([("x", pa.int8()), ("y", pa.date32())])), ("f", pa.float16())),
        ]
    )
    (row,) = read(open_source(tmp_path), wanted).to_pylist()
    assert tuple(row.values()) == (
        *([1, 2.5], datetime(2024, 1, 1, 10, tzinfo=UTC), date(2024, 1, 1), Decimal("1.50"), Decimal("1.50"), "7"),
        *({"x": 1, "y": None}, None),
    )


def test_json_that_changes_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the first block does not tell is an error, unless the table or the chosen columns tell it."""
    monkeypatch.setattr("lancehouse.jobs.sources.text.BLOCK_BYTES", 64)
    first = ['{"a": 1, "o": {"x": null}, "e": null, "t": "soon"}\n'] * 3
    file = tmp_path / "a.json"

    def outcome(line: str, **arguments: Any) -> Any:
        file.write_text("".join([*first, line]))
        return rows(file, **arguments)[-1]

    assert outcome('{"a": 2, "t": "2024-01-01"}')["t"] == "2024-01-01"
    for line, message in {
        '{"a": 1.5}': "does not fit the types of its first",
        '{"a": "x"}': "does not fit the types of its first",
        '{"new": 1}': "has a column new that was not seen",
        '{"o": {"y": 1}}': "column o does not fit .*it has y besides, which would be lost",
        '{"o": {"x": 1}}': "does not fit the types of its first",
    }.items():
        with pytest.raises(TableSchemaValidationError, match=f"{file}.*{message}"):
            outcome(line)
    assert outcome('{"a": 2, "new": 1, "o": {"y": 1}}', columns=["a"]) == {"a": 2}
    schema = pa.schema([("a", pa.float64()), ("e", pa.list_(pa.int8())), ("o", pa.struct([("x", pa.date32())]))])
    file.write_text("".join([*first, '{"a": 1.5, "e": [1], "o": {"x": "2024-01-01"}}']))
    last = read(open_source(file), schema).to_pylist()[-1]
    assert last == {"a": 1.5, "e": [1], "o": {"x": date(2024, 1, 1)}}


def test_lines_longer_than_a_block(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lancehouse.jobs.sources.text.BLOCK_BYTES", 16)
    lines = [{"a": "x" * length} for length in (0, 100, 1, 50, 7)]
    (tmp_path / "a.json").write_text("\n".join(map(json.dumps, lines)))
    assert rows(tmp_path) == lines
    monkeypatch.setattr("lancehouse.jobs.sources.text.LONGEST_LINE", 64)
    with pytest.raises(InvalidInputError, match=f"{tmp_path}/a.json has a line of more than"):
        rows(tmp_path)


def test_lines_longer_than_pyarrow_likes(tmp_path: Path) -> None:
    lines = [{"a": chr(0xE9) * length} for length in (3_000_000, 1, 5_000_000)]
    (tmp_path / "a.json").write_text("\n".join(json.dumps(line, ensure_ascii=False) for line in lines))
    assert rows(tmp_path) == lines


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({"a.csv": "x,y\n1,2\n", "b.csv": "x,y\n"}, [{"x": 1, "y": 2}]),
        ({"a.csv": "x,y\n,2\n", "b.csv": "x,y\n1.5,\n"}, [{"x": None, "y": 2}, {"x": 1.5, "y": None}]),
        ({"a.csv": 'x\n""\n', "b.csv": "x,y\n"}, [{"x": "", "y": None}]),
        (
            {"a.json": '{"x": null, "s": {"y": null}}', "b.json": '{"x": 1, "s": {"y": "z"}}'},
            [{"x": None, "s": {"y": None}}, {"x": 1, "s": {"y": "z"}}],
        ),
        ({"a.json": '{"x": null}'}, [{"x": None}]),
    ],
)
def test_files_that_tell_no_type(tmp_path: Path, files: dict[str, str], expected: list[Any]) -> None:
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    assert rows(tmp_path) == expected


# Text of every size


@pytest.mark.parametrize("ending", ["", ".gz", ".bz2", ".zst", ".lz4"])
@pytest.mark.parametrize("kind", ["csv", "json", "ndjson"])
def test_compressed_text(tmp_path: Path, kind: str, ending: str) -> None:
    file = tmp_path / f"a.{kind}{ending}"
    table = pa.table({"a": range(1000)})
    with pa.output_stream(file, compression="detect") as stream:
        text = "a\n" + "".join(f"{number}\n" for number in range(1000))
        lines = "".join(f'{{"a": {number}}}\n' for number in range(1000))
        stream.write((text if kind == "csv" else lines).encode())
    assert read(open_source(file)).equals(table)


@pytest.mark.parametrize("kind", ["csv", "json"])
def test_text_of_several_blocks(tmp_path: Path, kind: str) -> None:
    count = BLOCK_BYTES // 4
    first = "a\n" if kind == "csv" else ""
    line = "{}\n" if kind == "csv" else '{{"a": {}}}\n'
    (tmp_path / f"a.{kind}").write_text(first + "".join(line.format(number) for number in range(count)))
    source = open_source(tmp_path)
    batches = [batch for unit in source.units for batch in unit.batches(source.schema)]
    assert len(batches) > 1
    assert pa.Table.from_batches(batches)["a"].to_pylist() == list(range(count))


def test_csv_that_changes_later(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("a\n" + "1\n" * BLOCK_BYTES + "x\n")
    with pytest.raises(TableSchemaValidationError, match=f"{tmp_path}/a.csv does not fit the types of its first 4 MB"):
        read(open_source(tmp_path))
    text = pa.schema([("a", pa.string())])
    assert read(open_source(tmp_path), text)["a"][-1].as_py() == "x"


# Arrow


def test_arrow_files_are_cut_between_batches(tmp_path: Path) -> None:
    table = pa.table({"a": range(2_000_000)})
    with pa.ipc.new_file(str(tmp_path / "a.arrow"), table.schema) as writer:
        writer.write_table(table, max_chunksize=50_000)
    source = open_source(tmp_path, parallelism=4)
    assert len(source.units) == 4
    assert read(source).equals(table)


def test_old_feather(tmp_path: Path) -> None:
    (tmp_path / "a.feather").write_bytes(b"FEA1" + b"\0" * 100 + b"FEA1")
    with pytest.raises(InvalidInputError, match=f"{tmp_path}/a.feather cannot be read"):
        open_source(tmp_path)


# Options


@pytest.mark.parametrize(
    ("text", "options", "expected"),
    [
        ("id;name\n1;a\n", {"delimiter": ";"}, [{"id": 1, "name": "a"}]),
        ("id\tname\n1\ta,b\n", {"delimiter": "tab"}, [{"id": 1, "name": "a,b"}]),
        ("id,name\n1,'a,b'\n", {"quote": "'"}, [{"id": 1, "name": "a,b"}]),
        ('id,name\n1,"a\n', {"quote": "none"}, [{"id": 1, "name": '"a'}]),
        ("id,name\n1,a\\,b\n", {"escape": "\\"}, [{"id": 1, "name": "a,b"}]),
        ("1,a\n", {"header": False, "schema": "id int, name string"}, [{"id": 1, "name": "a"}]),
        ("made by x\n\nid\n1\n", {"skip_rows": "2"}, [{"id": 1}]),
        ("id,name\nNA,-\n,x\n", {"null_values": ["NA", "-"]}, [{"id": None, "name": None}, {"id": None, "name": "x"}]),
        ("zip,n\n00712,1\n", {"types": {"zip": "string"}}, [{"zip": "00712", "n": 1}]),
        ("zip,n\n00712,1\n", {"types": {"zip": pa.string()}}, [{"zip": "00712", "n": 1}]),
        ("n\n99999999999999999999\n", {"types": {"n": "decimal(38,0)"}}, [{"n": Decimal(99999999999999999999)}]),
        ("n\n99999999999999999999\n", {"types": {"n": "string"}}, [{"n": "99999999999999999999"}]),
        ("x\n1.5\n99999999999999999999\n", {}, [{"x": 1.5}, {"x": 1e20}]),
    ],
    ids=lambda value: None,
)  # fmt: skip
def test_options_of_csv(tmp_path: Path, text: str, options: dict[str, Any], expected: list[Any]) -> None:
    (tmp_path / "a.csv").write_text(text)
    source = open_source(tmp_path, options=options)
    source.require_types()
    assert read(source).to_pylist() == expected
    assert bool(source.key) == bool(options)


@pytest.mark.parametrize("encoding", ["latin-1", "utf-16", "cp1252"])
@pytest.mark.parametrize(("name", "text"), [("a.csv", "straße\nmüller\n"), ("a.json", '{"straße": "müller"}\n')])
def test_text_is_decoded_as_it_is_named(tmp_path: Path, encoding: str, name: str, text: str) -> None:
    (tmp_path / name).write_bytes(text.encode(encoding))
    assert rows(tmp_path, {"encoding": encoding}) == [{"straße": "müller"}]


@pytest.mark.parametrize(
    ("name", "text", "encoding"),
    [
        ("a.csv", "name\nmüller\n", None),
        ("a.csv", "straße\nx\n", None),
        ("a.csv", "name\nmüller\n", "ascii"),
        ("a.json", '{"name": "müller"}\n', None),
        ("a.json", '{"name": "müller"}\n', "ascii"),
    ],
)
def test_text_in_another_encoding(tmp_path: Path, name: str, text: str, encoding: str | None) -> None:
    """It is said by name, and never becomes a column of bytes."""
    (tmp_path / name).write_bytes(text.encode("latin-1"))
    options = {"encoding": encoding} if encoding else {}
    said = (
        rf"{name} is not in the encoding {encoding or 'utf-8'}: name its own, such as options=\{{'encoding': 'latin-1'"
    )
    with pytest.raises(InvalidInputError, match=said):
        open_source(tmp_path, options=options).require_types()


def test_text_in_another_encoding_further_down(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lancehouse.jobs.sources.text.BLOCK_BYTES", 100)
    (tmp_path / "a.csv").write_bytes(b"name\n" + b"x\n" * 200 + "müller\n".encode("latin-1"))
    source = open_source(tmp_path)
    source.require_types()
    with pytest.raises(InvalidInputError, match="is not in the encoding utf-8"):
        read(source)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.csv", "n\n1\n99999999999999999999\n"),
        ("a.csv", "n\n-9223372036854775809\n"),
        ("a.csv", f"n\n{'9' * 5000}\n"),
        ("a.json", f'{{"n": {"9" * 5000}}}\n'),
        ("a.json", '{"n": 1}\n{"n": 99999999999999999999}\n'),
        ("a.json", '{"n": {"x": [18446744073709551616]}}\n'),
        ("a.json", 'null\n{"n": 99999999999999999999}\n'),
    ],
)
def test_integers_beyond_64_bits(tmp_path: Path, name: str, text: str) -> None:
    """A double would round them; a type that somebody gives, or the table has, holds them."""
    (tmp_path / name).write_text(text)
    source = open_source(tmp_path)
    with pytest.raises(InvalidInputError, match=r"column n has integers of more than 64 bits.*'n': 'decimal\(38,0\)'"):
        source.require_types()
    if name == "a.csv" and len(text) < 40:
        wanted = pa.schema([("n", pa.decimal128(38, 0))])
        assert all(isinstance(row["n"], Decimal) for row in read(source, wanted).to_pylist())


def test_lines_of_json_that_are_null(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text(' null\n{"n": 1}\nnull\n')
    assert read(open_source(tmp_path)).to_pylist() == [{"n": None}, {"n": 1}, {"n": None}]


def test_types_of_json(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text('{"n": 99999999999999999999, "d": "2024-01-01"}\n')
    options = {"types": '{"n": "decimal(20,0)", "d": "date"}'}
    source = open_source(tmp_path, options=options)
    source.require_types()
    assert read(source).to_pylist() == [{"n": Decimal(99999999999999999999), "d": date(2024, 1, 1)}]


@pytest.mark.parametrize(
    ("name", "options", "says"),
    [
        ("a.csv", {"delimeter": ";"}, "csv has no option 'delimeter'; did you mean delimiter"),
        ("a.csv", {"sep": ";"}, "csv has no option 'sep'; expected one of delimiter, quote"),
        ("a.json", {"delimiter": ";"}, "json has no option 'delimiter'; expected one of encoding, types, schema"),
        ("a.parquet", {"types": {"id": "int"}}, "parquet has no option 'types'; the format has no options"),
        ("a.parquet", {"regoin": "x"}, "parquet has no option 'regoin'; did you mean region"),
        ("a.csv", {"delimiter": ";;"}, "the option delimiter must be one character, or 'tab', not ';;'"),
        ("a.csv", {"header": "perhaps"}, "the option header must be true or false, not 'perhaps'"),
        ("a.csv", {"header": "false"}, "files without a header need the option schema"),
        ("a.csv", {"encoding": "latin-99"}, "the option encoding must be the name of an encoding"),
        ("a.csv", {"encoding": "base64"}, "the option encoding must be the name of an encoding"),
        ("a.csv", {"types": {"id": "number"}}, "the option types: .*number"),
        ("a.csv", {"types": ["id"]}, "the option types must be names and types of columns"),
        ("a.csv", {"types": {"idd": "int"}}, "has a column 'idd', and .*a.csv has not; did you mean id?"),
        ("a.csv", {"schema": "other int"}, "has a column id that the option schema has not"),
        ("a.csv", {"schema": "id int", "types": {"id": "int"}}, "types and schema are not given together"),
        ("a.csv", {"skip_rows": -1}, "the option skip_rows must be a number of lines, not -1"),
        ("a.csv", {"skip_rows": 1.5}, "the option skip_rows must be a number of lines, not 1.5"),
        ("a.csv", {"encoding": "utf-16"}, "a.csv cannot be read: UTF-16 stream does not start with BOM"),
        ("a.json", {"encoding": "utf-16"}, "a.json cannot be read: UTF-16 stream does not start with BOM"),
        ("a.csv", {"null_values": 7}, "the option null_values must be a text, or a list of texts, not 7"),
    ],
)
def test_options_that_cannot_be(tmp_path: Path, name: str, options: dict[str, Any], says: str) -> None:
    {**COLUMNAR, "a.csv": write_csv, "a.json": write_lines}[name](pa.table({"id": [1]}), tmp_path / name)
    with pytest.raises((InvalidInputError, TableColumnNotFoundError), match=says):
        open_source(tmp_path, options=options)


@pytest.mark.parametrize("name", ["a.csv", "a.jsonl"])
def test_types_of_columns_that_folders_tell(tmp_path: Path, name: str) -> None:
    (tmp_path / "year=2024").mkdir()
    {"a.csv": write_csv, "a.jsonl": write_lines}[name](pa.table({"id": [1]}), tmp_path / "year=2024" / name)
    source = open_source(tmp_path, options={"types": {"year": "string"}})
    assert read(source).to_pylist() == [{"id": 1, "year": "2024"}]


def test_a_schema_keeps_its_nulls(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("a,id\n,1\n")
    source = open_source(tmp_path, options={"schema": "id bigint not null, a string, b date", "aws_region": "x"})
    fields: list[Any] = [pa.field("id", pa.int64(), nullable=False), ("a", pa.string()), ("b", pa.date32())]
    assert source.schema == pa.schema(fields)
    assert read(source).to_pylist() == [{"id": 1, "a": None, "b": None}]
