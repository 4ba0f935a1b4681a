"""Broken files: each error has its line, and says what to do."""

from __future__ import annotations

from pathlib import Path

import pytest
from lance_namespace.errors import InvalidInputError

from lancehouse.pipelines import Pipeline, PipelineError, load

GOOD = """\
name: docs
variables: {date: "2026-11-15", parts: 16}
catalog: {impl: dir, properties: {root: "${here}/tables", token: 007}}
run: docs-${date}
source:
  files: data/*.parquet
steps:
  - where: lang = 'en'
sink: {table: docs}
indices:
  - {column: vector, kind: IVF_PQ, num_partitions: "${parts}", metric: cosine}
expect: {rows: {min: 1}, unique: [id, [a, b]], not_null: id}
"""
FILES, WHERE, SINK = "files: data/*.parquet", "where: lang = 'en'", "{table: docs}"


def write_spec(folder: Path, text: str) -> str:
    (folder / "pipeline.yml").write_text(text)
    return str(folder / "pipeline.yml")


def load_spec(folder: Path, text: str = GOOD, **variables: str) -> Pipeline:
    return load(write_spec(folder, text), variables)


def complaints(folder: Path, text: str) -> list[str]:
    with pytest.raises(PipelineError) as caught:
        load_spec(folder, text)
    prefix = f"{folder}/pipeline.yml:"
    assert all(line.startswith(prefix) for line in str(caught.value).splitlines())
    return [line.removeprefix(prefix) for line in str(caught.value).splitlines()]


def test_a_good_one_says_what_it_says(tmp_path: Path) -> None:
    shape = load_spec(tmp_path).shape
    assert shape.run == "docs-2026-11-15"
    assert shape.catalog.properties == {"root": f"{tmp_path}/tables", "token": "007"}
    assert shape.source.files == ("data/*.parquet",)
    assert shape.indices[0].params == {"num_partitions": 16, "metric": "cosine"}
    assert shape.expect.unique == (("id",), ("a", "b"))
    assert shape.expect.not_null == ("id",)
    assert shape.sink.mode == "append"
    assert shape.compact is None


def test_variables_come_from_the_command_then_the_file_and_from_the_environment_by_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WHO", "me")
    monkeypatch.delenv("NOBODY", raising=False)
    text = GOOD.replace("docs-${date}", "'${date} ${env.WHO} ${env.NOBODY:-else} $${kept}'")
    assert load_spec(tmp_path, text, date="today").shape.run == "today me else ${kept}"
    with pytest.raises(InvalidInputError, match=r"--set dat: .* has no such variable; did you mean date\?"):
        load_spec(tmp_path, dat="today")


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("name: docs\n", "", "1: the pipeline needs name"),
        ("sink: {table: docs}", "sink: {tabel: docs}", "9: there is no key tabel here; did you mean table?"),
        ("expect:", "expects:", "12: there is no key expects here; did you mean expect?"),
        ("files:", "fiels:", "6: there is no key fiels here; did you mean files?"),
        (FILES, "files: [a]\n  table: b", "5: source needs one of files, iceberg, table, and has files and table"),
        (FILES, "files: [a]\n  tag: b", "5: source tag goes with table only"),
        (FILES, "table: t\n  tag: b\n  version: 1", "5: source needs version or tag, not both"),
        (FILES, "files: a\n  format: xml", "7: format must be parquet, csv, json, arrow or images, not 'xml'"),
        (WHERE, "{}", "8: this step needs one of where, arrow, embed, sql, python, and has none of them"),
        (
            WHERE,
            "{sql: a, python: 'b:c'}",
            "8: this step needs one of where, arrow, embed, sql, python, and has sql and python",
        ),
        (WHERE, "arrow: steps.py", "8: arrow must name a function as module:function"),
        (WHERE, "embed: {function: 'a:b', into: v}", "8: embed needs from"),
        (WHERE, "select: [id]", "8: select must be keys and values, not a list"),
        (WHERE, "select: {}", "8: select must not be empty"),
        (WHERE, "where: {a: b}", "8: where must be text, not keys and values"),
        (SINK, "{table: a..b}", "9: table must be levels joined by dots, one with a dot in `backquotes`"),
        (SINK, "{table: d, mode: upsert}", "9: mode must be create, append, overwrite or merge, not 'upsert'"),
        (SINK, "{table: d, mode: merge}", "9: sink needs on, the columns that are the key, with mode merge"),
        (SINK, "{table: d, on: id}", "9: sink on goes with mode merge only"),
        (SINK, "{table: d, schema_mode: merge}", "9: schema_mode must be fixed or evolve, not 'merge'"),
        (
            SINK,
            "{table: d, mode: create, schema_mode: evolve}",
            "9: sink schema_mode goes with mode append or merge only",
        ),
        (SINK, "{table: d, vector_columns: {v: big}}", "9: v must be a whole number, not 'big'"),
        (SINK, "{table: d, vector_columns: {v: 0}}", "9: v must be 1 or more, not 0"),
        ("rows: {min: 1}", "rows: {min: some}", "12: min must be a whole number, not 'some'"),
        ("rows: {min: 1}", "rows: {min: 5, max: 4}", "12: rows has a max that is less than its min"),
        ("rows: {min: 1}", "on_failure: cry", "12: on_failure must be keep or restore, not 'cry'"),
        ("run: docs-${date}", "compact: maybe", "4: compact must be true, false or options of a compaction"),
        ("run: docs-${date}", "publish: {tag: a b/../c}", "4: tag must be letters, digits, '.', '-' and '_'"),
        ("run: docs-${date}", "publish: {tag: v1.lock}", "4: tag must be letters, digits, '.', '-' and '_'"),
        ("run: docs-${date}", "publish: nightly", "4: publish must be keys and values, not 'nightly'"),
        ("run: docs-${date}", "run: [a]", "4: run must be text, not a list"),
        ("${date}", "${dat}", "4: there is no variable dat; did you mean date?"),
        ("${date}", "${NOT_SET_HERE}", "4: there is no variable NOT_SET_HERE; expected one of here, date, parts"),
        ("${date}", "${HOME}", "4: there is no variable HOME; that of the environment is ${env.HOME}"),
        ("${date}", "${env.NOT_SET_HERE}", "4: the environment has no NOT_SET_HERE, of which ${env.NOT_SET_HERE} is"),
        ("${date}", "${a b}", "4: ${a b} names no variable: write ${name}, ${env.NAME}, or $${ for ${ itself"),
        ('date: "2026-11-15"', "date: ", "2: the variable date has no value: give --set date=…"),
        ('date: "2026-11-15"', "date: [1]", "2: the variable date is no text"),
        ("{impl: dir, ", "{", "3: catalog needs impl"),
        ("run: docs-${date}", "name: again", "4: the key 'name' occurs twice"),
        (
            "run: docs-${date}",
            "run: !!python/name:os.system x",
            "4: this tag is not supported; put the value in quotes",
        ),
    ],
)
def test_what_is_wrong_is_said_with_its_line(tmp_path: Path, old: str, new: str, says: str) -> None:
    assert old in GOOD
    assert complaints(tmp_path, GOOD.replace(old, new, 1)) == [says]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("a: [1\nb: 2", "2: this is not valid YAML: while parsing a flow sequence, expected ',' or ']', but got ':'"),
        ("a: {b: ${c}}", '1: this is not valid YAML: put values with ${…} in quotes inside {…} and […]: "${name}"'),
        (
            "name: x\nsource: [a\n",
            "2: this is not valid YAML: while parsing a flow sequence, expected ',' or ']', but got '<stream end>'",
        ),
        ('name: "abc', "1: this is not valid YAML: while scanning a quoted scalar, found unexpected end of stream"),
        ("- a", "1: the file must have keys and values, such as name, source and sink"),
        ("", "1: the pipeline needs name"),
        ("name: &a [*a]", "1: this contains itself"),
    ],
)
def test_what_is_no_pipeline_at_all(tmp_path: Path, text: str, says: str) -> None:
    assert complaints(tmp_path, text)[0] == says


def test_all_that_is_wrong_is_said_at_once(tmp_path: Path) -> None:
    text = GOOD.replace("files:", "fiels:").replace(SINK, "{mode: all}").replace("${date}", "${dat}")
    found = complaints(tmp_path, text)
    assert [line.partition(":")[0] for line in found] == ["4", "6", "9", "9"]


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match=r"none\.yml cannot be read: No such file"):
        load(tmp_path / "none.yml")
    (tmp_path / "bytes.yml").write_bytes(b"name: \xff")
    with pytest.raises(InvalidInputError, match=r"bytes.yml:1: this is not valid YAML: the file is not UTF-8"):
        load(tmp_path / "bytes.yml")


def test_secrets_are_not_shown(tmp_path: Path) -> None:
    assert "007" not in repr(load_spec(tmp_path))


def test_a_catalog_by_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from lancehouse.pipelines.planner import Origin

    file = tmp_path / "catalogs.yaml"
    file.write_text(f"catalogs:\n  prod: {{impl: dir, parent: db, root: {tmp_path}, token: hush-hush}}\n")
    monkeypatch.setenv("LANCEHOUSE_CONFIG", str(file))
    text = "name: p\ncatalog: prod\nsource: {table: docs}\nsink: {table: copy}\n"
    (tmp_path / "p.yml").write_text(text)
    pipeline = load(tmp_path / "p.yml")
    assert pipeline.shape.catalog.connection().properties["root"] == str(tmp_path)
    assert "hush-hush" not in repr(pipeline.shape)
    address = Origin.from_spec(pipeline.shape, tmp_path).address
    assert address is not None
    assert address.id == ("db", "docs")


@pytest.mark.parametrize(
    ("catalog", "says"),
    [
        ("prd", "2: there is no catalog 'prd'; did you mean prod?"),
        ("[a]", "2: catalog must be keys and values, not a list"),
        ('""', "2: catalog needs impl"),
        ("", "2: catalog must be keys and values, not nothing"),
    ],
)
def test_a_catalog_that_has_no_such_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, catalog: str, says: str
) -> None:
    file = tmp_path / "catalogs.yaml"
    file.write_text(f"catalogs:\n  prod: {{impl: dir, root: {tmp_path}}}\n")
    monkeypatch.setenv("LANCEHOUSE_CONFIG", str(file))
    (tmp_path / "p.yml").write_text(f"name: p\ncatalog: {catalog}\nsource: {{table: docs}}\nsink: {{table: copy}}\n")
    with pytest.raises(PipelineError) as caught:
        load(tmp_path / "p.yml").plan(lambda: pytest.fail("no Spark is needed to see it"))
    assert says in [f"{each.line}: {each.text}" for each in caught.value.problems]
