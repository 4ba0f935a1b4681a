"""What can be known before anything is done is said before, with its line."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lancehouse.pipelines import PipelineError
from tests.pipelines.conftest import PipelineFolder

HEAD = """\
name: p
catalog: {impl: dir, properties: {root: "${here}/tables"}}
source: {files: data}
"""
"""Three lines; what is wrong is after them."""

SINK = "sink: {table: t}\n"


def complaints(place: PipelineFolder, text: str, start: Callable[[], Any]) -> list[str]:
    from lancehouse.pipelines import load

    before = place.files()
    file = place.folder / "pipeline.yml"
    file.write_text(text)
    with pytest.raises(PipelineError) as caught:
        load(file).plan(start)
    assert place.files() == before
    return [f"{each.line}: {each.text}".replace(str(place.folder), "HERE") for each in caught.value.problems]


ODD = """
class Odd(Exception):
    pass


def f(batch):
    raise Odd("no")


def leave(batch):
    raise SystemExit(3)
"""


@pytest.mark.parametrize(
    ("steps", "says"),
    [
        ("- arrow: nope:f", "5: there is no module nope for nope:f: it is neither installed nor in HERE"),
        (
            "- arrow: steps:nope",
            "5: steps has no nope; it has broken, embed, longer, model, nothing, numbered, together",
        ),
        ("- arrow: steps:CALLS", "5: steps:CALLS is no function, but list"),
        ("- arrow: bad:f", "5: bad cannot be imported: ZeroDivisionError: division by zero"),
        ("- arrow: worse:f", "5: HERE/worse.py:1: '(' was never closed"),
        ("- arrow: odd:f", "5: odd:f failed: Odd: no (it is asked for its columns with a batch without rows)"),
        (
            "- arrow: odd:leave",
            "5: odd:leave failed: SystemExit: 3 (it is asked for its columns with a batch without rows)",
        ),
        ("- arrow: leaving:f", "5: leaving cannot be imported: SystemExit: 3"),
        (
            "- arrow: steps:broken",
            "5: steps:broken failed: ZeroDivisionError: no (it is asked for its columns with a batch without rows)",
        ),
        (
            "- arrow: steps:nothing",
            "5: steps:nothing gave NoneType, not a RecordBatch (it is asked for its columns with a batch without rows)",
        ),
        (
            "- embed:\n    function: steps:embed\n    from: txt\n    into: v",
            "5: there is no column txt; there are id, text, lang",
        ),
        ("- select: {id: id}\n  where: nope > 1", "6: 'nope > 1': there is no column nope; there are id, text, lang"),
        ("- select: {id: idd}", "5: 'idd': there is no column idd; there are id, text, lang"),
        ("- select: {id: sum(id)}", "5: 'sum(id)' looks at other rows: use a step sql for that"),
        (
            "- select: {id: row_number() over ()}",
            "5: 'row_number() over ()' looks at other rows: use a step sql for that",
        ),
        ("- select: {id: id +}", "5: 'id +': Expected: an expression, found: EOF"),
        ("- where: id + 1", "5: 'id + 1' is no condition, but int64"),
    ],
)
def test_steps(place: PipelineFolder, no_spark: Callable[[], Any], steps: str, says: str) -> None:
    (place.folder / "bad.py").write_text("1 / 0")
    (place.folder / "worse.py").write_text("print(")
    (place.folder / "leaving.py").write_text("raise SystemExit(3)")
    (place.folder / "odd.py").write_text(ODD)
    text = f"{HEAD}steps:\n  {steps.replace(chr(10), chr(10) + '  ')}\n{SINK}"
    assert complaints(place, text, no_spark) == [says]


@pytest.mark.parametrize(
    ("rest", "says"),
    [
        (
            "sink: {table: there, mode: create}",
            "4: table there exists, and mode create is for one that does not; choose another mode, or drop it first",
        ),
        ("sink: {table: there}", "4: table there has no column text, lang; it has id, n: leave it out in a step"),
        ("sink: {table: t, vector_columns: {v: 2}}", "4: vector column v: there is no v among id, text, lang"),
        (
            "sink: {table: t, vector_columns: {text: 2}}",
            "4: vector column text: text is no array of numbers, but string",
        ),
        (
            SINK + "indices:\n  - {column: id, kind: BTREE}\n  - {column: idd, kind: BTREE}",
            "7: table t has no column idd",
        ),
        (SINK + "indices: [{column: id, kind: TREE}]", "5: there is no kind of index 'TREE'; did you mean RTREE?"),
        (
            SINK + "indices: [{column: id, kind: BTREE, size: 2}]",
            "5: an index BTREE has no parameter size; it has zone_size",
        ),
        (
            SINK + "indices: [{column: id, kind: IVF_PQ}]",
            "5: table t: column id is int64; an index IVF_PQ is of fixed-size lists of numbers",
        ),
        (
            SINK + "indices: [{column: id, kind: BTREE}, {column: id, kind: BITMAP}]",
            "5: two indices are called id_idx; give one another name",
        ),
        (SINK + "expect:\n  not_null: [id, idd]", "6: table t has no column idd; it has id, text, lang"),
        (SINK + "expect:\n  unique:\n    - id\n    - [id, idd]", "8: table t has no column idd; it has id, text, lang"),
        (SINK + "expect: {where: ['idd > 1']}", "5: table t: Invalid user input: Schema error: No field named idd."),
        (SINK + "compact: {target_rows: 1}", "5: compaction has no option target_rows; it has "),
        (
            SINK + "compact: {num_threads: lots}",
            "5: num_threads of a compaction, 'lots': Input should be a valid integer",
        ),
        (
            SINK + "compact: {compaction_mode: fast}",
            "5: compaction_mode of a compaction, 'fast': Input should be 'reenc",
        ),
        ("sink: {table: t, data_storage_version: '9.9'}", "4: data_storage_version '9.9' is none that Lance can write"),
    ],
)
def test_the_table(place: PipelineFolder, no_spark: Callable[[], Any], rest: str, says: str) -> None:
    place.write({"id": [1], "n": [2]}, "there")
    [found] = complaints(place, f"{HEAD}{rest}\n", no_spark)
    assert found.startswith(says)


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("{files: data}", "{files: nope/*.csv}", "3: there is no file at HERE/nope/*.csv"),
        ("{files: data}", "{files: data, columns: [idd]}", "3: the source at HERE/data/0.parquet has no column idd"),
        ("{files: data}", "{table: nope}", "3: "),
        (
            "{files: data}",
            "{table: there, filter: idd > 1}",
            "3: table there version 1: Invalid user input: Schema error: No field",
        ),
        ("{files: data}", "{table: there, tag: nope}", "3: table there tag nope: "),
        ("impl: dir", "impl: nowhere", "2: cannot connect to 'nowhere'"),
        ('{impl: dir, properties: {root: "${here}/tables"}}', "{impl: iceberg, properties: {uri: x}}", "2: "),
        (
            '{impl: dir, properties: {root: "${here}/tables"}}',
            "{impl: iceberg, properties: {endpoint: 'http://127.0.0.1:9', max_retries: 0}}",
            "4: ",
        ),
    ],
)
def test_the_source_and_the_catalog(
    place: PipelineFolder, no_spark: Callable[[], Any], old: str, new: str, says: str
) -> None:
    place.write({"id": [1], "n": [2]}, "there")
    [found] = complaints(place, (HEAD + SINK).replace(old, new), no_spark)
    assert found.startswith(says)


def test_an_index_that_is_another_one(place: PipelineFolder, no_spark: Callable[[], Any]) -> None:
    place.write({"id": [1], "text": ["a"], "lang": ["b"]})
    place.table().create_scalar_index("text", "BTREE", name="id_idx")
    text = f"{HEAD}{SINK}indices: [{{column: id, kind: BTREE}}]\n"
    assert complaints(place, text, no_spark) == [
        "5: table t has an index id_idx, BTree of text; give this one another name"
    ]


def test_problems_that_have_nothing_to_do_with_each_other_are_said_at_once(
    place: PipelineFolder, no_spark: Callable[[], Any]
) -> None:
    text = HEAD.replace("files: data", "files: nope") + "steps:\n  - arrow: nope:f\n" + SINK + "compact: {x: 1}\n"
    assert [each.partition(":")[0] for each in complaints(place, text, no_spark)] == ["3", "5", "7"]


def test_what_only_spark_knows(spark: Any, place: PipelineFolder) -> None:
    place.write({"id": pa.array([1]), "text": ["a"], "lang": ["b"], "more": [1]})
    for step, sink, says in (
        (
            "sql: SELECT idd FROM input",
            SINK,
            "5: A column, variable, or function parameter with name `idd` cannot be resolved",
        ),
        ("sql: SELEC id FROM input", SINK, "5: a step sql is a query, such as SELECT … FROM input"),
        ("sql: DROP TABLE t", SINK, "5: a step sql is a query, such as SELECT … FROM input"),
        ("sql: SELECT id FROM input WHERE", SINK, "5: the query cannot be parsed: "),
        ("sql: SELECT * FROM input JOIN tt USING (id)", SINK, "5: there is no table tt, and Spark has no view or "),
        ("sql: SELECT * FROM input VERSION AS OF 1", SINK, "5: input has no versions"),
        ("python: steps:nothing", SINK, "5: steps:nothing gave NoneType, not a DataFrame"),
        ("sql: SELECT id AS text FROM input", SINK, "6: the rows do not fit the table: column text is bigint"),
        ("where: id > 1", "sink: {table: t, mode: merge, on: idd}\n", "6: table t has no column idd"),
        ("where: id > 1", "sink: {table: t, mode: merge, on: id, latest_by: at}\n", "6: the rows have no column at"),
        (
            "where: id > 1",
            "sink: {table: t, mode: merge, on: id}\n",
            "6: the rows have no column more, which table t has",
        ),
    ):
        found = complaints(place, f"{HEAD}steps:\n  - {step}\n{sink}", lambda: spark)
        assert found[0].startswith(says)


def test_files_of_a_source_may_have_any_place(place: PipelineFolder, no_spark: Callable[[], Any]) -> None:
    elsewhere = place.folder / "else"
    elsewhere.mkdir()
    pq.write_table(pa.table({"n": [1]}), elsewhere / "a.parquet")
    plan = place.pipeline(source={"files": str(elsewhere)}).plan(no_spark)
    assert plan.lines[0].columns == "n int64"
