"""Each source, each step, each way into a table; the same run again; runs that die."""

from __future__ import annotations

from typing import Any

import lance
import pyarrow as pa
import pytest
from pyiceberg.catalog import load_catalog

from lancehouse.identifiers import format_levels
from lancehouse.jobs.address import PinnedVersion
from lancehouse.jobs.engine import TaskProgress
from lancehouse.lake.scans import Scan
from lancehouse.pipelines import PipelineError, RunReport
from lancehouse.pipelines.runner import BEFORE, DONE, FAILED, SKIPPED
from lancehouse.spark import LanceCatalog, queries
from lancehouse.spark.table_reader import read_version
from tests.clients.managed import managed_by_lancehouse
from tests.pipelines.conftest import PipelineFolder
from tests.servers.lancehouse import Served

ALL = list(range(20))


def ids(place: PipelineFolder, name: str = "t", **at: Any) -> list[int]:
    return [row["id"] for row in place.rows(name, **at)]


def states(report: RunReport) -> dict[str, str]:
    return {step.step: step.state for step in report.steps}


def iceberg(place: PipelineFolder) -> dict[str, Any]:
    properties = {"type": "sql", "uri": f"sqlite:///{place.folder}/c.db", "warehouse": f"file://{place.folder}/wh"}
    catalog = load_catalog("cat", **properties)
    catalog.create_namespace("db")
    rows = pa.table({"id": pa.array(ALL), "text": ["x"] * 20})
    catalog.create_table("db.t", rows.schema).append(rows)
    return {"iceberg": "cat.db.t", "properties": properties}


def lance_table(place: PipelineFolder) -> dict[str, Any]:
    place.write({"id": pa.array(range(30)), "text": ["x"] * 30, "more": [1] * 30}, "raw", max_rows_per_file=10)
    place.table("raw").tags.create("here", 1)
    place.table("raw").delete("true")
    return {"table": "raw", "tag": "here", "filter": "id < 20", "columns": ["id", "text"]}


def files(_: PipelineFolder) -> dict[str, Any]:
    return {"files": ["data/0.parquet", "data/1.parquet"], "format": "parquet", "columns": ["id", "text"]}


@pytest.mark.parametrize("source", [files, iceberg, lance_table])
@pytest.mark.parametrize("step", [{"where": "id >= 0"}, {"sql": "SELECT * FROM input WHERE id >= 0"}])
def test_each_source_by_arrow_and_by_spark(spark: Any, place: PipelineFolder, source: Any, step: Any) -> None:
    report = place.pipeline(source=source(place), steps=[step]).run(spark)
    assert ids(place) == ALL
    assert place.table().schema.names == ["id", "text"]
    assert (report.rows_in, report.rows_out, report.rows) == (20, 20, 20)
    assert (report.version_before, report.version_after) == (None, 1)
    assert report.steps[0].where == ("Spark" if "sql" in step else "Arrow")


def test_sql_names_tables_of_the_catalog(
    spark: Any, place: PipelineFolder, lancehouse_server: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are read with the columns and rows that the step needs; the name of the rows so far wins over a table's."""
    managed = managed_by_lancehouse(lancehouse_server)
    labels = LanceCatalog(spark, managed.impl, managed.properties)
    labels.use(managed.levels)
    labels.sql("CREATE TABLE labels (id BIGINT, label STRING, wide STRING)")
    labels.sql("INSERT INTO labels SELECT id, concat('l', id), 'w' FROM range(20)")
    labels.sql("CREATE TABLE input AS SELECT 1 AS other")
    scans: list[Scan] = []

    def read(spark: Any, pinned: PinnedVersion, scan: Scan) -> Any:
        scans.append(scan)
        return read_version(spark, pinned, scan)

    monkeypatch.setattr(queries, "read_version", read)
    monkeypatch.setattr(queries, "SMALL_BYTES", 0)
    name = format_levels((*managed.levels[1:], "labels"))
    steps = [
        {"sql": "SELECT id, 'x' AS x FROM Input WHERE input.id < 9"},
        {"sql": f"SELECT input.*, l.label FROM input JOIN {name} AS l USING (id) WHERE l.label <> 'l3' AND l.id > 1"},
        {"sql": "SELECT * FROM input WHERE id NOT IN (SELECT id FROM labels WHERE label = 'l8');"},
    ]
    pipeline = place.pipeline(
        catalog={"impl": managed.impl, "properties": managed.properties},
        sink={"table": format_levels((*managed.levels, "t"))},
        steps=steps,
    )
    pipeline.run(spark)
    assert sorted(tuple(row) for row in labels.sql("SELECT id, x, label FROM t").collect()) == [
        (number, "x", f"l{number}") for number in (2, 4, 5, 6, 7)
    ]
    assert [(scan.columns, scan.filter) for scan in scans[:2]] == [
        (("id", "label"), "(`label` <> 'l3' AND `id` > 1)"),
        (("id", "label"), "`label` = 'l8'"),
    ]


def test_steps_of_all_kinds_one_after_the_other(spark: Any, place: PipelineFolder) -> None:
    steps = [
        {"select": {"id": "id", "text": "text", "Lang": "upper(lang)"}, "where": "lang = 'en'"},
        {"arrow": "steps:longer"},
        {"embed": {"function": "steps:embed", "from": "text", "into": "vector"}},
        {"sql": "WITH a AS (SELECT *, '{x}' AS s FROM input) SELECT * FROM a -- all"},
        {"embed": {"function": "steps:together", "from": ["text", "id"], "into": "text"}},
        {"select": {"id": "id", "text": "text", "vector": "vector", "Lang": "Lang", "s": "s"}},
        {"python": "steps:numbered"},
    ]
    pipeline = place.pipeline(steps=steps)
    assert [line.where for line in pipeline.plan(spark).lines] == [
        *["Arrow"] * 4,
        "Spark",
        *["Arrow"] * 2,
        *["Spark"] * 2,
    ]
    pipeline.run(spark)
    assert place.table().schema.field("vector").type == pa.list_(pa.float32(), 2)
    assert place.rows()[3] == {
        "id": 6,
        "text": "xxxx-6",
        "vector": [4.0, 2.0],
        "Lang": "EN",
        "s": "{x}",
        "loud": "XXXX-6!",
    }


@pytest.mark.parametrize("steps", [[], [{"sql": "SELECT * FROM input"}]], ids=["arrow", "spark"])
def test_each_way_into_a_table(spark: Any, place: PipelineFolder, steps: Any) -> None:
    def run(mode: str, **sink: Any) -> None:
        place.pipeline(steps=steps, sink={"table": "t", "mode": mode, **sink}).run(spark)

    run("create")
    assert ids(place) == ALL
    run("append")
    assert ids(place) == sorted(ALL * 2)
    run("overwrite")
    assert ids(place) == ALL
    place.table().delete("id >= 10")
    run("merge", on="id")
    assert ids(place) == ALL
    run("merge", on=["id"], when_matched="delete", when_not_matched="ignore")
    assert ids(place) == []


def test_the_last_row_of_each_key_is_merged(spark: Any, place: PipelineFolder) -> None:
    steps = [{"sql": "SELECT id % 3 AS id, id AS at FROM input"}]
    sink = {"table": "t", "mode": "merge", "on": "id", "latest_by": "at"}
    for _ in ("created", "merged"):
        place.pipeline(steps=steps, sink=sink).run(spark)
        expected = {number % 3: number for number in ALL}
        assert {row["id"]: row["at"] for row in place.table().to_table().to_pylist()} == expected
        assert place.table().count_rows() == 3
    with pytest.raises(PipelineError, match="latest_by goes with mode merge only"):
        place.pipeline(steps=steps, sink={"table": "t", "latest_by": "at"})
    with pytest.raises(PipelineError, match="the rows have no column nope"):
        place.pipeline(steps=steps, sink={**sink, "latest_by": "nope"}).plan(spark)


@pytest.mark.parametrize("mode", ["append", "overwrite", "merge"])
def test_a_table_that_is_missing_is_made(spark: Any, place: PipelineFolder, mode: str) -> None:
    sink: dict[str, Any] = {"table": "t", "mode": mode, **({"on": "id"} if mode == "merge" else {})}
    place.pipeline(sink=sink, steps=[{"sql": "SELECT id, array(1.5F, 2F) AS v FROM input"}]).plan(spark)
    assert place.files() == {}
    sink["vector_columns"] = {"v": 2}
    place.pipeline(sink=sink, steps=[{"sql": "SELECT id, array(1.5F, 2F) AS v FROM input"}]).run(spark)
    assert place.table().schema.field("v").type == pa.list_(pa.float32(), 2)


WHOLE: dict[str, Any] = {
    "steps": [{"embed": {"function": "steps:embed", "from": "text", "into": "v"}}],
    "sink": {"table": "t", "max_rows_per_file": 5},
    "indices": [{"column": "id", "kind": "BTREE"}, {"column": "lang", "kind": "bitmap", "name": "by_lang"}],
    "compact": {"target_rows_per_fragment": 100},
    "expect": {"rows": 20, "not_null": ["id", "v"], "unique": ["id", ["lang", "id"]], "where": ["id >= 0"]},
    "publish": {"tag": "good"},
    "run": "monday",
}


@pytest.mark.parametrize("steps", [[], [{"sql": "SELECT * FROM input"}]], ids=["arrow", "spark"])
def test_whoever_dies_at_a_step_goes_on_from_there(spark: Any, place: PipelineFolder, steps: Any) -> None:
    """Each start gets one step further; in the end all is there once, and as if it had been done in one go."""
    pipeline = place.pipeline(**{**WHOLE, "steps": [*WHOLE["steps"], *steps]})
    names = ["write", "index id_idx", "index by_lang", "compact", "expect", "publish"]
    for last in names:

        def dies(step: str, _: TaskProgress | None, last: str = last) -> None:
            if step == last:
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            pipeline.run(spark, said=dies)
        assert place.table().tags.list() == {} if last != "write" else place.files() == {}
    report = pipeline.run(spark)
    assert states(report) == {
        **dict.fromkeys(names, BEFORE),
        "compact": "nothing to do",
        "expect": DONE,
        "publish": DONE,
    }
    assert ids(place) == ALL
    assert place.table().version == report.version_after == 5
    assert place.table().tags.list()["good"]["version"] == 5
    assert len(place.table().get_fragments()) == 1
    before = place.files()
    again = pipeline.run(spark)
    assert set(states(again).values()) == {BEFORE}
    assert again.state == BEFORE
    assert place.files() == before


def test_another_run_adds_its_rows_and_the_indices_take_them_in(spark: Any, place: PipelineFolder) -> None:
    parts = {**WHOLE, "expect": {"rows": {"min": 1}}}
    place.pipeline(**parts).run(spark)
    report = place.pipeline(**parts).run(spark, run="tuesday")
    assert ids(place) == sorted(ALL * 2)
    assert states(report)["index id_idx"] == DONE
    assert [index.num_rows_indexed for index in place.table().describe_indices()] == [40, 40]
    assert place.table().tags.list()["good"]["version"] == report.version_after
    before = place.files()
    assert place.pipeline(**parts).run(spark, run="monday").state == BEFORE
    assert place.files() == before


BAD = {
    "rows": {"max": 30},
    "not_null": ["text", "id"],
    "unique": ["id", "lang", ["id", "lang"]],
    "where": ["id < 15 -- early", "lang <> 'fr'"],
}


def test_expectations_that_do_not_hold_are_counted_and_the_tag_stays(spark: Any, place: PipelineFolder) -> None:
    place.write({"id": pa.array([*range(18), None]), "text": [None] * 3 + ["a"] * 16, "lang": ["fr"] * 19})
    place.table().tags.create("good", 1)
    report = place.pipeline(expect=BAD, publish={"tag": "good"}, indices=[{"column": "id", "kind": "BTREE"}]).run(spark)
    assert report.state == FAILED
    assert report.failures == [
        "there are 39 rows, more than 30",
        "3 rows are null in text",
        "1 row is null in id",
        "8 rows are against 'id < 15 -- early'",
        "19 rows are against \"lang <> 'fr'\"",
        "36 rows are not alone with their id, which should be unique",
        "39 rows are not alone with their lang, which should be unique",
    ]
    assert place.table().tags.list()["good"]["version"] == 1
    assert report.version_after == place.table().version == 3


def test_what_failed_is_put_back_and_the_run_may_come_again(spark: Any, place: PipelineFolder) -> None:
    place.write({"id": [99], "text": ["a"], "lang": ["en"]})
    expect = {"rows": {"max": 5}, "on_failure": "restore"}
    parts = {"run": "monday", "indices": WHOLE["indices"], "publish": {"tag": "good"}}
    report = place.pipeline(**parts, expect=expect).run(spark)
    assert report.failures == ["there are 21 rows, more than 5"]
    assert states(report)["restore"] == DONE
    assert ids(place) == [99]
    assert place.table().tags.list() == {}
    assert place.pipeline(**parts).run(spark).state == DONE
    assert ids(place) == [*ALL, 99]
    assert place.pipeline(**parts).run(spark).state == BEFORE


def test_nothing_of_others_is_put_back(spark: Any, place: PipelineFolder) -> None:
    place.write({"id": [99], "text": ["a"], "lang": ["en"]})

    def meanwhile(step: str, _: TaskProgress | None) -> None:
        if step == "restore":
            place.write({"id": [98], "text": ["a"], "lang": ["en"]}, mode="append")

    report = place.pipeline(expect={"rows": 1, "on_failure": "restore"}).run(spark, said=meanwhile)
    assert states(report)["restore"] == SKIPPED
    assert ids(place) == [*ALL, 98, 99]
    first = place.pipeline(sink={"table": "new"}, expect={"rows": 1, "on_failure": "restore"}).run(spark)
    assert first.steps[-1].says == "this run made the table: there is no version before it"
    assert ids(place, "new") == ALL
    merge = {"table": "new", "mode": "merge", "on": "id"}
    idle = place.pipeline(steps=[{"where": "id < 0"}], sink=merge, expect={"rows": 1, "on_failure": "restore"}).run(
        spark
    )
    assert (idle.rows_out, idle.steps[-1].says) == (0, "this run has changed nothing")
    assert ids(place, "new") == ALL


def test_blobs_are_binaries_to_steps_and_blobs_again(spark: Any, place: PipelineFolder) -> None:
    (place.folder / "pictures").mkdir()
    (place.folder / "pictures" / "a.png").write_bytes(b"\x89PNG\r\n\x1a\n" + bytes(9))
    (place.folder / "more.py").write_text(
        "import pyarrow.compute as pc\ndef size(image): return pc.binary_length(image)\n"
    )
    embed = {"embed": {"function": "more:size", "from": "image", "into": "size"}}
    source = {"files": "pictures", "format": "images"}
    for name, steps in (("a", [embed]), ("b", [embed, {"sql": "SELECT * FROM input"}])):
        place.pipeline(source=source, steps=steps, sink={"table": name}).run(spark)
        assert place.table(name).to_table(["size"]).to_pylist() == [{"size": 17}]
        assert place.table(name).take_blobs("image", [0])[0].readall()[1:4] == b"PNG"
    place.pipeline(source={"table": "a"}, steps=[embed], sink={"table": "c"}).run(spark)
    assert place.table("c").take_blobs("image", [0])[0].readall()[1:4] == b"PNG"
    source = {"table": "a", "blobs": "reference"}
    others: list[tuple[str, dict[str, str]]] = [
        ("d", {"where": "size = 17"}),
        ("e", {"sql": "SELECT *, image.size AS n FROM input"}),
    ]
    for name, step in others:
        place.pipeline(source=source, steps=[step], sink={"table": name}).run(spark)
        assert place.table(name).take_blobs("image", [0])[0].readall()[1:4] == b"PNG"
    assert place.table("e").to_table(["n"]).to_pylist() == [{"n": 17}]


def test_a_dry_run_writes_nothing(spark: Any, place: PipelineFolder) -> None:
    place.write({"id": [1]}, "other")
    before = place.files()
    plan = place.pipeline(**{**WHOLE, "steps": [*WHOLE["steps"], {"python": "steps:numbered"}]}).plan(spark)
    assert [line.step for line in plan.lines] == [
        *("source", "embed", "python", "sink"),
        *("index", "index", "compact", "expect", "publish"),
    ]
    assert plan.lines[2].columns == "id int64, text string, lang string, v float[2], loud string"
    assert plan.lines[3].does == "create t"
    assert place.files() == before


def test_a_table_whose_versions_our_server_manages(spark: Any, place: PipelineFolder, lancehouse_server: Any) -> None:
    from lance_namespace import CreateNamespaceRequest

    from lancehouse.connection import Connection
    from lancehouse.jobs.address import TableAddress

    properties = {"endpoint": lancehouse_server.iceberg, "managed_by": "impl"}
    catalog = Connection("iceberg", properties)
    levels = [lancehouse_server.warehouse, "pipelines"]
    catalog.connect().create_namespace(CreateNamespaceRequest(id=levels))
    parts = {**WHOLE, "catalog": {"impl": "iceberg", "properties": properties}}
    parts["sink"] = {"table": f"{lancehouse_server.warehouse}.pipelines.t", "max_rows_per_file": 5}
    report = place.pipeline(**parts).run(spark)
    assert (report.state, report.rows, report.version_after) == (DONE, 20, 5)
    table = TableAddress.parse(catalog, [*levels, "t"]).to_ref()
    assert table.open().tags.list()["good"]["version"] == 5
    failed = place.pipeline(**{**parts, "run": "tuesday", "expect": {"rows": 20, "on_failure": "restore"}}).run(spark)
    assert failed.steps[-1].says == "version 5 is back"
    assert table.open().count_rows() == 20
    assert place.pipeline(**parts).run(spark).state == BEFORE
    assert isinstance(table.open(), lance.LanceDataset)


def test_options_of_the_format(spark: Any, place: PipelineFolder) -> None:
    (place.folder / "odd.csv").write_bytes("zip;name;n\n00712;müller;-\n".encode("latin-1"))
    options = {
        "delimiter": ";",
        "encoding": "latin-1",
        "null_values": ["-", "NA"],
        "types": {"zip": "string", "n": "int"},
    }
    place.pipeline(source={"files": "odd.csv", "options": options}, steps=[]).run(spark)
    assert place.rows("t") == [{"zip": "00712", "name": "müller", "n": None}]
    assert place.table().schema.field("n").type == pa.int32()


def test_a_schema_without_a_header(spark: Any, place: PipelineFolder) -> None:
    (place.folder / "bare.csv").write_text("1,a\n")
    options = {"header": False, "schema": "id bigint, name string"}
    place.pipeline(source={"files": "bare.csv", "options": options}, steps=[]).run(spark)
    assert place.rows("t") == [{"id": 1, "name": "a"}]


@pytest.mark.parametrize(
    ("text", "options", "says"),
    [
        ("id\n1\n", {"delimeter": ";"}, "csv has no option 'delimeter'; did you mean delimiter?"),
        ("id\n99999999999999999999\n", {}, "column id has integers of more than 64 bits"),
    ],
)
def test_a_source_that_cannot_be_read(place: PipelineFolder, text: str, options: Any, says: str) -> None:
    (place.folder / "odd.csv").write_text(text)
    pipeline = place.pipeline(source={"files": "odd.csv", "options": options}, steps=[])
    with pytest.raises(PipelineError, match=says):
        pipeline.plan(lambda: None)


@pytest.mark.parametrize("step", [{"where": "id >= 0"}, {"sql": "SELECT * FROM input WHERE id >= 0"}])
def test_columns_evolve(spark: Any, place: PipelineFolder, step: Any) -> None:
    """By Arrow and by Spark: the file has a column besides, and wider numbers."""
    place.write({"id": pa.array([99], pa.int32()), "text": ["old"], "gone": ["g"]})
    sink = {"table": "t", "schema_mode": "evolve"}
    place.pipeline(steps=[step], sink=sink).run(spark)
    schema = place.table().schema
    assert (schema.names, schema.field("id").type) == (["id", "text", "gone", "lang"], pa.int64())
    assert place.rows()[-1] == {"id": 99, "text": "old", "gone": "g", "lang": None}
    assert (place.rows()[1]["lang"], place.rows()[1]["gone"], ids(place)) == ("de", None, [*ALL, 99])


def test_columns_evolve_by_a_merge(spark: Any, place: PipelineFolder) -> None:
    place.write({"id": pa.array([1, 99], pa.int32()), "text": ["old", "old"]})
    sink = {"table": "t", "mode": "merge", "on": ["id"], "schema_mode": "evolve"}
    place.pipeline(sink=sink, expect={"not_null": ["id"], "where": ["lang <> 'fr'"]}).run(spark)
    assert place.rows()[1] == {"id": 1, "text": "x", "lang": "de"}
    assert place.rows()[-1] == {"id": 99, "text": "old", "lang": None}
