"""Computed columns and views of a pipeline: defined once, filled on each run, and only what is new."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import lance
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from lance_namespace.errors import InvalidInputError

from lancehouse.pipelines import PipelineError, RunReport, RunStep
from lancehouse.pipelines.runner import BEFORE, DONE, FAILED, IDLE
from tests.pipelines.conftest import PipelineFolder

FEATURES = """
import os

import lancehouse
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

import helpers

WORDS = pa.list_(pa.struct([("position", pa.int64()), ("word", pa.string())]))
BROKEN = "@broken@"


@lancehouse.column(version="1", inputs=["text"], returns=pa.list_(pa.float32(), 2))
class Embed:
    def __init__(self):
        self.scale = helpers.SCALE

    def __call__(self, text):
        if os.path.exists(BROKEN) and "xxx" in text.to_pylist():
            raise ValueError("no xxx")
        return np.array([[len(each), self.scale] for each in text.to_pylist()], np.float32).reshape(-1, 2)


@lancehouse.column(version="1", inputs=["embedding"], returns=pa.float32())
def norm(vectors):
    return [None if each is None else each[0] for each in vectors.to_pylist()]


@lancehouse.column(version="1", inputs=["text"], returns=WORDS)
def words(texts):
    return [[{"position": n, "word": each} for n, each in enumerate(text)] for text in texts.to_pylist()]


@lancehouse.column(version="1", inputs=["word"], returns=pa.string())
def loud(words):
    return pc.utf8_upper(words)


@lancehouse.column(version="1", inputs=["text"])
def untyped(text):
    return text


def plain(text):
    return text
"""


def write_features(place: PipelineFolder) -> str:
    """The module; by environment variables, it would not learn of the folder in a Spark that runs already."""
    return FEATURES.replace("@broken@", str(place.folder / "broken"))


@pytest.fixture
def here(place: PipelineFolder) -> PipelineFolder:
    """A folder with functions of columns; `Embed` fails for some rows while the file `broken` exists."""
    (place.folder / "features.py").write_text(write_features(place))
    return place


COLUMNS = {"norm": "features:norm", "embedding": "features:Embed", "letters": "length(text)"}
VIEW = {
    "name": "letters",
    "function": "features:words",
    "columns": ["id"],
    "where": "id > 0",
    "computed": {"loud": "features:loud", "twice": {"sql": "concat(loud, loud)"}},
    "indices": [{"column": "word", "kind": "BTREE"}],
}
MORE = {"id": [100], "text": ["xxxxx"], "lang": ["en"]}


def steps(report: RunReport) -> dict[str, RunStep]:
    return {step.step: step for step in report.steps}


def add_file(here: PipelineFolder) -> None:
    for file in (here.folder / "data").iterdir():
        file.unlink()
    pq.write_table(pa.table(MORE), here.folder / "data" / "more.parquet")


@pytest.mark.parametrize("engine", ["local", "spark"])
def test_what_is_new_is_filled_on_each_run(here: PipelineFolder, engine: str, request: pytest.FixtureRequest) -> None:
    spark = request.getfixturevalue("spark") if engine == "spark" else None
    parts = {"columns": COLUMNS, "views": [VIEW], "expect": {"not_null": ["embedding", "norm"], "unique": ["id"]}}
    indices = [{"column": "norm", "kind": "BTREE"}]
    report = here.pipeline(**parts, indices=indices, publish={"tag": "good"}).run(spark)
    assert report.has_passed
    assert [step.step for step in report.steps] == [
        *("write", "column embedding", "column letters", "column norm", "index norm_idx", "expect"),
        *("view letters", "column letters.loud", "column letters.twice", "index letters.word_idx", "publish"),
    ]
    done = steps(report)
    assert {name: done[name].rows for name in done if "column" in name} == {
        **dict.fromkeys(["column embedding", "column letters", "column norm"], 20),
        **dict.fromkeys(["column letters.loud", "column letters.twice"], 30),
    }
    assert (done["column norm"].failed, done["view letters"].rows, done["view letters"].deleted) == (0, 30, 0)
    row = here.rows()[3]
    assert (row["embedding"], row["norm"], row["letters"]) == ([3.0, 2.0], 3.0, 3)
    assert {row["twice"] for row in here.rows("letters")} == {"XX"}

    add_file(here)
    done = steps(here.pipeline(**parts, indices=indices, publish={"tag": "good"}).run(spark))
    assert [done[f"column {name}"].rows for name in ("embedding", "letters", "norm", "letters.twice")] == [1, 1, 1, 5]
    assert done["view letters"].rows == 5
    assert here.rows()[-1]["embedding"] == [5.0, 2.0]
    assert here.table(version="good").count_rows("norm IS NOT NULL") == 21


def test_the_plan_tells_what_will_be_filled(here: PipelineFolder, no_spark: Callable[[], Any]) -> None:
    pipeline = here.pipeline(columns=COLUMNS, views=[VIEW], run="one")
    before = here.files()
    lines = [line.does for line in pipeline.plan(no_spark).lines if line.step in ("column", "view", "index")]
    assert lines == [
        "embedding = features:Embed(text) of version 1: all rows",
        "letters = length(text): all rows",
        "norm = features:norm(embedding) of version 1: all rows",
        "letters from t by features:words of version 1: create it",
        "letters.loud = features:loud(word) of version 1: all rows",
        "letters.twice = concat(loud, loud): all rows",
        "BTREE of letters.word, called word_idx",
    ]
    assert here.files() == before
    pipeline.run()
    here.table().update({"text": "'changed'"}, where="id < 2")
    lines = [line.does for line in pipeline.plan(no_spark).lines if line.step in ("column", "view")]
    assert lines[0] == "embedding = features:Embed(text) of version 1: 2 rows, and those that are new"
    assert lines[3] == "letters from t by features:words of version 1: rows of what is new, changed or deleted"


def test_a_fill_that_failed_goes_on_with_the_same_run(here: PipelineFolder) -> None:
    (here.folder / "broken").touch()
    parts = {
        "columns": {"embedding": {"function": "features:Embed", "batch_rows": 1, "checkpoint_rows": 1}},
        "run": "r",
    }
    with pytest.raises(InvalidInputError, match="Embed failed for row id 3: ValueError: no xxx"):
        here.pipeline(**parts).run()
    (here.folder / "broken").unlink()
    done = steps(here.pipeline(**parts).run())
    assert (done["write"].state, done["column embedding"].state) == (BEFORE, DONE)
    assert len(here.rows()) == 20
    assert here.table().count_rows("embedding IS NULL") == 0
    assert steps(here.pipeline(**parts).run())["column embedding"].state == IDLE


def test_rows_that_fail_are_counted(here: PipelineFolder) -> None:
    (here.folder / "broken").touch()
    column = {"function": "features:Embed", "on_error": None, "retries": 1, "backoff_s": 0, "retry_on": "ValueError"}
    report = here.pipeline(columns={"embedding": column}).run()
    step = steps(report)["column embedding"]
    assert (step.state, step.rows, step.failed) == (DONE, 15, 5)
    assert step.says == "failed for 5 rows: lancehouse table errors tells them"
    assert report.to_json()["steps"][1]["failed"] == 5


@pytest.mark.parametrize("mode", ["overwrite", "merge"])
def test_other_ways_into_the_table(here: PipelineFolder, spark: Any, mode: str) -> None:
    sink = {"table": "t", "mode": mode, **({"on": "id"} if mode == "merge" else {})}
    for _ in range(2):
        done = steps(here.pipeline(sink=sink, columns=COLUMNS, views=[VIEW]).run(spark))
        assert done["column embedding"].rows == 20
        assert [row["norm"] for row in here.rows()[:3]] == [0.0, 1.0, 2.0]
        assert here.table("letters").count_rows() == 30


def test_another_version_of_a_function_fills_all_again(here: PipelineFolder) -> None:
    here.pipeline(columns=COLUMNS).run()
    changed = write_features(here).replace('version="1", inputs=["embedding"]', 'version="2", inputs=["embedding"]')
    (here.folder / "features.py").write_text(changed.replace("else each[0]", "else -each[0]"))
    add_file(here)
    done = steps(here.pipeline(columns={"norm": "features:norm"}).run())
    assert done["column norm"].rows == 21
    (here.folder / "features.py").write_text(changed.replace("else each[0]", "else -2 * each[0]"))
    with pytest.raises(PipelineError, match="the code of features:norm has changed since column norm was defined"):
        here.pipeline(columns={"norm": "features:norm"}).run()
    here.pipeline(columns={"norm": {"function": "features:norm", "allow_changed": True}}).run()


@pytest.mark.parametrize("other", ["", "changed", "renamed"])
def test_what_does_not_pass_is_restored_and_no_view_shows_it(here: PipelineFolder, other: str) -> None:
    here.pipeline(columns=COLUMNS, views=[VIEW]).run()
    if other == "renamed":  # its companion keeps its name, so that the new column of that name gets another one
        here.table().alter_columns({"path": "norm", "name": "former"})
    before = here.table().version
    add_file(here)
    changed = write_features(here).replace('version="1"', 'version="2"')
    if other == "changed":  # somebody changes another column meanwhile
        changed = changed.replace("def norm(vectors):", OTHER)
    (here.folder / "features.py").write_text(changed)
    expect = {"rows": {"max": 20}, "on_failure": "restore"}
    report = here.pipeline(columns=COLUMNS, views=[VIEW], expect=expect).run()
    done = steps(report)
    assert report.failures == ["there are 21 rows, more than 20"]
    assert "view letters" not in done
    lost = "others have changed the table since: their changes would be lost"
    assert done["restore"].says == (lost if other == "changed" else f"version {before} is back")
    assert here.table().count_rows() == (21 if other == "changed" else 20)


OTHER = """def norm(vectors):
    import lance

    table = lance.dataset(os.path.dirname(BROKEN) + "/tables/t.lance")
    if not table.count_rows("lang = 'xx'"):
        table.update({"lang": "'xx'"}, where="id = 1")
"""


def test_views_of_views_and_of_other_tables(here: PipelineFolder) -> None:
    here.write({"id": pa.array(range(3)), "text": ["a", "b", "c"]}, "old", enable_stable_row_ids=True)
    views = [
        {"name": "few", "source": "letters", "columns": {"id": "id", "shout": "concat(loud, '!')"}, "where": "id = 3"},
        VIEW,
        {"name": "copy", "source": "old", "columns": "id"},
    ]
    done = steps(here.pipeline(views=views).run())
    assert [name for name in done if name.startswith("view")] == ["view letters", "view copy", "view few"]
    assert [row["shout"] for row in here.rows("few")] == ["X!"] * 3
    assert here.table("copy").count_rows() == 3


HEAD = """\
name: p
catalog: {impl: dir, properties: {root: "${here}/tables"}}
source: {files: data}
sink: {table: t}
"""


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("columns:\n  v: features:nope", "6: features has no nope; it has Embed, loud, norm, plain, untyped, words"),
        ("columns:\n  v: features:plain", "6: 'plain' is no function with a version: mark it with"),
        ("columns:\n  v: features:untyped", "6: features:untyped does not say the type of what it computes"),
        (
            "columns:\n  v: length(txt)",
            "6: table t: Invalid user input: Error parsing function",
        ),
        ("columns:\n  text: length(text)", "6: the rows have a column text, which is computed: leave it out"),
        ("columns:\n  norm: features:norm", "6: table t has no column embedding; it has id, text, lang"),
        ("columns:\n  a: b + 1\n  b: a + 1", "a and b are computed from each other"),
        ("columns:\n  v: {sql: id, on_eror: skip}", "6: there is no key on_eror here; did you mean on_error?"),
        ("columns:\n  sql: {sql: id, batch_row: 3}", "6: there is no key batch_row here; did you mean batch_rows?"),
        ("columns:\n  v: {sql: id, on_error: stop}", "6: on_error must be fail, null or skip, not 'stop'"),
        ("columns:\n  v: {sql: id,\n    timeout_s: 0}", "7: timeout_s must be more than 0, not 0"),
        ("columns:\n  v: {sql: id, retries: -1}", "6: retries must be 0 or more, not -1"),
        ("columns:\n  v: {sql: id, function: 'a:b'}", "6: v needs one of function, sql, and has function and sql"),
        ("columns:\n  v: {sql: id, where: nope = 1}", "6: "),
        ("views:\n  - columns: id", "6: this view needs name"),
        ("views:\n  - {name: w, columns: idd}", "6: "),
        ("views:\n  - {name: w, function: 'features:loud'}", "6: table t has no column word"),
        ("views:\n  - {name: w, function: 'features:Embed'}", "6: features:Embed must return a list for each row"),
        ("views:\n  - {name: w, source: nope, columns: id}", "6: "),
        ("views:\n  - {name: w, source: plain, columns: id}", "6: table plain has no stable row ids"),
        ("views:\n  - {name: plain, columns: id}", "6: table plain: there is a table that is no view; drop it first"),
        ("views:\n  - {name: t, columns: id}", "5: each view, and the table of the sink, needs a name of its own"),
        ("views:\n  - {name: w, source: w, columns: id}", "6: a view cannot be made of itself"),
        ("views:\n  - name: w\n    columns: id\n    computed:\n      v: length(text)", "9: "),
        ("views:\n  - name: w\n    columns: id\n    indices: [{column: x, kind: BTREE}]", "8: "),
        ("views:\n  - {name: w, columns: id, sorce: t}", "6: there is no key sorce here; did you mean source?"),
        ("indices:\n  - {column: v, kind: BTREE}\ncolumns: {w: length(text)}", "6: "),
    ],
)
def test_what_is_wrong_is_told_with_its_line(
    here: PipelineFolder, no_spark: Callable[[], Any], text: str, says: str
) -> None:
    from lancehouse.pipelines import load

    here.write({"id": pa.array([1])}, "plain", enable_stable_row_ids=False)
    before = here.files()
    file = here.folder / "pipeline.yml"
    file.write_text(HEAD + text)
    with pytest.raises(PipelineError) as caught:
        load(file).plan(no_spark)
    found = [f"{each.line}: {each.text}" for each in caught.value.problems]
    assert any(says in each for each in found), found
    assert here.files() == before


def test_without_spark_only_steps_in_arrow(here: PipelineFolder) -> None:
    with pytest.raises(InvalidInputError, match="steps in SQL or Python, and a merge, need Spark"):
        here.pipeline(steps=[{"sql": "SELECT * FROM input"}]).run()
    report = here.pipeline(expect={"unique": ["lang"]}).run()
    assert report.state == FAILED
    assert report.failures == ["20 rows are not alone with their lang, which should be unique"]
    assert lance.dataset(here.folder / "tables" / "t.lance").count_rows() == 20
