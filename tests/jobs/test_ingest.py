from __future__ import annotations

import os
from pathlib import Path
from shutil import rmtree
from typing import Any
from unittest.mock import patch

import lance
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from lance_namespace.errors import (
    InvalidInputError,
    LanceNamespaceError,
    ServiceUnavailableError,
    TableAlreadyExistsError,
    TableSchemaValidationError,
)

from lancehouse.connection import Connection
from lancehouse.jobs import Engine, TableJobs, ingest
from lancehouse.jobs.sources import ingest_source
from lancehouse.lake import commits
from lancehouse.lake.job_records import JobProgress


@pytest.fixture
def catalog(engine: Engine, tmp_path: Path) -> TableJobs:
    return TableJobs(Connection("dir", {"root": str(tmp_path / "tables")}), engine)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Four files, each a unit of its own."""
    monkeypatch.setattr(ingest_source, "LEAST_BYTES", 64)
    made = tmp_path / "files"
    made.mkdir()
    for number in range(4):
        ids = pa.array(range(number * 100, number * 100 + 100), pa.int64())
        pq.write_table(pa.table({"id": ids, "price": ids.cast(pa.decimal128(21, 2))}), made / f"{number}.parquet")
    (made / "_SUCCESS").touch()
    return made


def ids(tmp_path: Path, name: str = "t") -> list[Any]:
    return sorted(lance.dataset(tmp_path / "tables" / f"{name}.lance").to_table()["id"].to_pylist())


def left_over(tmp_path: Path) -> list[Path]:
    return list((tmp_path / "tables").rglob("_lancehouse/**/*.json"))


def test_a_folder_becomes_a_table(catalog: TableJobs, folder: Path, tmp_path: Path) -> None:
    assert catalog.ingest(folder, "t") == 1
    assert ids(tmp_path) == list(range(400))
    assert catalog.ingest(folder / "0.parquet", "t", columns=["id"]) == 2
    assert len(ids(tmp_path)) == 500
    assert catalog.ingest([folder / "1.parquet", folder / "2.parquet"], "t", mode="overwrite") == 3
    assert ids(tmp_path) == list(range(100, 300))
    assert left_over(tmp_path) == []


def test_the_same_files_are_added_again_if_that_is_wanted(catalog: TableJobs, folder: Path, tmp_path: Path) -> None:
    file = folder / "0.parquet"
    catalog.ingest(file, "t", run="monday")
    catalog.ingest(file, "t", run="monday")
    assert len(ids(tmp_path)) == 100
    catalog.ingest(file, "t")
    assert len(ids(tmp_path)) == 200


def test_after_a_failure_it_goes_on_where_it_was(catalog: TableJobs, folder: Path, tmp_path: Path) -> None:
    """The broken file is mended meanwhile; what was written of the others is not written again."""
    good = (folder / "3.parquet").read_bytes()
    (folder / "3.parquet").write_bytes(good[:4] + bytes(36) + good[40:])
    with pytest.raises(LanceNamespaceError, match=r"3\.parquet"):
        catalog.ingest(folder, "t")
    data = tmp_path / "tables" / "t.lance" / "data"
    noted = len(left_over(tmp_path)) - 1
    done = {path.name: path.stat().st_mtime_ns for path in data.iterdir()}
    (folder / "3.parquet").write_bytes(good)
    catalog.ingest(folder, "t")
    assert ids(tmp_path) == list(range(400))
    now = {path.name: path.stat().st_mtime_ns for path in data.iterdir()}
    assert len(done.items() & now.items()) >= noted > 0
    assert left_over(tmp_path) == []


def test_who_died_after_the_commit_adds_nothing_twice(catalog: TableJobs, folder: Path, tmp_path: Path) -> None:
    catalog.ingest(folder / "0.parquet", "t")

    def dies(_: JobProgress, last: str) -> None:
        raise KeyboardInterrupt

    with patch.object(JobProgress, "clear", dies), pytest.raises(KeyboardInterrupt):
        catalog.ingest(folder / "1.parquet", "t")
    assert catalog.ingest(folder / "1.parquet", "t") == 2
    assert ids(tmp_path) == list(range(200))
    assert left_over(tmp_path) == []


def test_who_died_after_the_commit_and_has_other_files_now(catalog: TableJobs, folder: Path, tmp_path: Path) -> None:
    def dies(_: JobProgress, last: str) -> None:
        raise KeyboardInterrupt

    with patch.object(JobProgress, "clear", dies), pytest.raises(KeyboardInterrupt):
        catalog.ingest(folder, "t")
    (folder / "3.parquet").unlink()
    assert catalog.ingest(folder, "t") == 2
    assert ids(tmp_path) == sorted([*range(400), *range(300)])


@pytest.mark.parametrize("removed", range(5))
def test_who_died_while_removing_records_adds_nothing_twice(
    catalog: TableJobs, folder: Path, tmp_path: Path, removed: int
) -> None:
    unlink, left = Path.unlink, iter(range(removed))

    def die(path: Path, *, missing_ok: bool = False) -> None:
        if "_lancehouse" in path.parts and path.suffix == ".json" and next(left, None) is None:
            raise KeyboardInterrupt
        unlink(path, missing_ok=missing_ok)

    with patch.object(Path, "unlink", die), pytest.raises(KeyboardInterrupt):
        catalog.ingest(folder, "t")
    assert catalog.ingest(folder, "t") == 1
    assert ids(tmp_path) == list(range(400))
    assert left_over(tmp_path) == []


def test_records_that_cannot_be_removed(catalog: TableJobs, folder: Path, tmp_path: Path) -> None:
    """Its version is made, but who calls again must not be told that there is nothing to load."""
    with (
        patch.object(JobProgress, "clear", side_effect=ServiceUnavailableError("no answer")),
        pytest.raises(ServiceUnavailableError, match=r"version 1 is made, but .* run it again.*: no answer"),
    ):
        catalog.ingest(folder, "t")
    assert [catalog.ingest(folder, "t") for _ in range(2)] == [1, 2]
    assert len(ids(tmp_path)) == 800


def test_what_cannot_be_recorded_is_removed(folder: Path, tmp_path: Path) -> None:
    """Nobody else would know of it."""
    catalog = TableJobs(Connection("dir", {"root": str(tmp_path / "tables")}))
    record = JobProgress.record

    def fail(self: JobProgress, key: str, value: Any) -> None:
        if key != commits.RUN:
            raise ServiceUnavailableError("no answer")
        record(self, key, value)

    with patch.object(JobProgress, "record", fail), pytest.raises(ServiceUnavailableError, match="no answer"):
        catalog.ingest(folder, "t")
    assert list((tmp_path / "tables").rglob("*.lance/data/*")) == []


def test_a_commit_that_is_refused_leaves_nothing(catalog: TableJobs, folder: Path, tmp_path: Path) -> None:
    catalog.ingest(folder / "0.parquet", "t")
    place = tmp_path / "tables" / "t.lance"
    put = JobProgress.record

    def and_then_somebody_appends(self: JobProgress, key: str, value: Any) -> None:
        put(self, key, value)
        if key == commits.RUN:
            lance.write_dataset(lance.dataset(place).to_table(limit=1), place, mode="append")

    before = set((place / "data").iterdir())
    with patch.object(JobProgress, "record", and_then_somebody_appends), pytest.raises(LanceNamespaceError) as refused:
        catalog.ingest(folder / "1.parquet", "t", mode="overwrite")
    assert refused.value.code.value == 14
    assert len(set((place / "data").iterdir()) - before) == 1
    assert len(ids(tmp_path)) == 101


@pytest.mark.parametrize(
    ("ask", "error", "says"),
    [
        (lambda it, at: it.ingest(at, "t", mode="upsert"), InvalidInputError, "upsert"),
        (lambda it, at: it.ingest(at / "nope.parquet", "t"), LanceNamespaceError, "nope"),
        (lambda it, at: it.ingest(at, "t", columns=["nope"]), LanceNamespaceError, "nope"),
        (lambda it, at: it.ingest(at, "there", mode="create"), TableAlreadyExistsError, "exists"),
        (lambda it, at: it.ingest(at, "there"), TableSchemaValidationError, "has no column price"),
    ],
)
def test_what_is_wrong_is_said_at_once(
    catalog: TableJobs, folder: Path, tmp_path: Path, ask: Any, error: type[Exception], says: str
) -> None:
    lance.write_dataset(pa.table({"id": [1]}), tmp_path / "tables" / "there.lance")
    with pytest.raises(error, match=says):
        ask(catalog, folder)
    assert not (tmp_path / "tables" / "t.lance").exists()


def interrupt_ingest(catalog: TableJobs, *arguments: Any, **options: Any) -> None:
    """An ingest that dies when all is written, before its commit."""
    with patch.object(commits, "commit", side_effect=KeyboardInterrupt), pytest.raises(KeyboardInterrupt):
        catalog.ingest(*arguments, **options)


def test_what_was_cleaned_away_meanwhile_is_written_again(catalog: TableJobs, folder: Path, tmp_path: Path) -> None:
    catalog.ingest(folder / "0.parquet", "t")
    interrupt_ingest(catalog, folder, "t")
    place = tmp_path / "tables" / "t.lance"
    for file in place.rglob("*.lance"):
        os.utime(file, (0, 0))
    catalog.cleanup("t")
    assert len(list((place / "data").iterdir())) == 1
    catalog.ingest(folder, "t")
    assert ids(tmp_path) == sorted([*range(100), *range(400)])


def test_what_is_cleaned_away_before_the_commit_is_not_committed(
    catalog: TableJobs, folder: Path, tmp_path: Path
) -> None:
    catalog.ingest(folder / "0.parquet", "t")
    interrupt_ingest(catalog, folder / "1.parquet", "t")
    place = tmp_path / "tables" / "t.lance"
    written = ingest.write_units

    def and_then_cleaned(*arguments: Any) -> Any:
        done = written(*arguments)
        for file in (place / "data").iterdir():
            if file.name not in {each.path for each in lance.dataset(place).get_fragments()[0].data_files()}:
                file.unlink()
        return done

    with (
        patch.object(ingest, "write_units", and_then_cleaned),
        pytest.raises(LanceNamespaceError, match="run it again") as refused,
    ):
        catalog.ingest(folder / "1.parquet", "t")
    assert refused.value.code.value == 14
    catalog.ingest(folder / "1.parquet", "t")
    assert ids(tmp_path) == list(range(200))


@pytest.mark.parametrize("mode", ["create", "overwrite"])
def test_of_two_at_once_the_second_harms_nobody(catalog: TableJobs, folder: Path, tmp_path: Path, mode: str) -> None:
    """The second finds what the first has noted, and is refused; what it took over is the first one's by then."""
    if mode == "overwrite":
        catalog.ingest(folder / "0.parquet", "t")
    commit, others = commits.commit, [1]

    def second_comes_first(*arguments: Any, **options: Any) -> int:
        if others:
            others.pop()
            catalog.ingest(folder, "t", mode=mode)
        return commit(*arguments, **options)

    with patch.object(commits, "commit", second_comes_first), pytest.raises(LanceNamespaceError):
        catalog.ingest(folder, "t", mode=mode)
    assert ids(tmp_path) == list(range(400))
    assert left_over(tmp_path) == []


def test_the_same_run_twice_at_once(catalog: TableJobs, folder: Path, tmp_path: Path) -> None:
    catalog.ingest(folder / "0.parquet", "t")
    commit, others = commits.commit, [1]

    def other_is_faster(*arguments: Any, **options: Any) -> int:
        if others:
            others.pop()
            assert catalog.ingest(folder / "1.parquet", "t", run="monday") == 2
        return commit(*arguments, **options)

    with patch.object(commits, "commit", other_is_faster):
        assert catalog.ingest(folder / "1.parquet", "t", run="monday") == 2
    assert ids(tmp_path) == list(range(200))
    assert len(list((tmp_path / "tables" / "t.lance" / "data").iterdir())) == 2


def test_a_column_that_was_dropped_and_added_again(catalog: TableJobs, folder: Path, tmp_path: Path) -> None:
    """It is another one, also if it is called the same."""
    catalog.ingest(folder / "0.parquet", "t")
    interrupt_ingest(catalog, folder / "1.parquet", "t")
    dataset = lance.dataset(tmp_path / "tables" / "t.lance")
    dataset.drop_columns(["price"])
    dataset.add_columns(pa.schema([("price", pa.decimal128(21, 2))]))
    catalog.ingest(folder / "1.parquet", "t")
    assert dataset.checkout_version(dataset.latest_version).count_rows("price is not null") == 100


def test_only_the_columns_that_are_asked_for(catalog: TableJobs, folder: Path, tmp_path: Path) -> None:
    catalog.ingest(folder / "0.parquet", "t")
    interrupt_ingest(catalog, folder / "1.parquet", "t")
    catalog.ingest(folder / "1.parquet", "t", columns=["id"])
    assert ids(tmp_path) == list(range(200))
    assert lance.dataset(tmp_path / "tables" / "t.lance").count_rows("price is not null") == 100


def test_another_run_with_the_same_files_is_another_run(catalog: TableJobs, folder: Path, tmp_path: Path) -> None:
    """Also after one that died between its commit and its end."""
    file = folder / "0.parquet"
    with patch.object(JobProgress, "clear", side_effect=KeyboardInterrupt), pytest.raises(KeyboardInterrupt):
        catalog.ingest(file, "t", run="monday")
    assert catalog.ingest(file, "t", run="tuesday") == 2
    assert len(ids(tmp_path)) == 200


def test_a_table_that_was_made_anew_meanwhile(catalog: TableJobs, folder: Path, tmp_path: Path) -> None:
    catalog.ingest(folder / "0.parquet", "t")
    place, written = tmp_path / "tables" / "t.lance", ingest.write_units

    def and_then_made_anew(*arguments: Any) -> Any:
        done = written(*arguments)
        rows = lance.dataset(place).to_table(limit=5)
        rmtree(place)
        lance.write_dataset(rows, place)
        return done

    with (
        patch.object(ingest, "write_units", and_then_made_anew),
        pytest.raises(LanceNamespaceError, match="made anew") as refused,
    ):
        catalog.ingest(folder / "1.parquet", "t")
    assert refused.value.code.value == 14
    assert ids(tmp_path) == list(range(5))


@pytest.mark.parametrize(("text", "says"), [(",y\n0,2\n", "column 1 has no name"), ("a.b,y\n0,2\n", r"a\.b")])
def test_names_that_lance_does_not_take(catalog: TableJobs, tmp_path: Path, text: str, says: str) -> None:
    (tmp_path / "x.csv").write_text(text)
    with pytest.raises(TableSchemaValidationError, match=says):
        catalog.ingest(tmp_path / "x.csv", "t")
    assert not (tmp_path / "tables" / "t.lance").exists()
    assert catalog.ingest(tmp_path / "x.csv", "t", columns=["y"]) == 1


def test_columns_that_could_not_be_read_again(catalog: TableJobs, tmp_path: Path) -> None:
    (tmp_path / "deep.json").write_text('{"a":' * 70 + "1" + "}" * 70)
    with pytest.raises(TableSchemaValidationError, match="nested"):
        catalog.ingest(tmp_path / "deep.json", "t")
    assert not (tmp_path / "tables" / "t.lance").exists()


def test_a_column_that_must_be_there(catalog: TableJobs, folder: Path, tmp_path: Path) -> None:
    fields: list[pa.Field[Any]] = [pa.field("id", pa.int64()), pa.field("kind", pa.string(), nullable=False)]
    schema = pa.schema(fields)
    lance.write_dataset(schema.empty_table(), tmp_path / "tables" / "t.lance")
    with pytest.raises(TableSchemaValidationError, match="kind must not be null"):
        catalog.ingest(folder / "0.parquet", "t", columns=["id"])


def test_options_make_another_ingest(catalog: TableJobs, tmp_path: Path, caplog: Any) -> None:
    """One that failed with other options has written other rows, though files and columns are the same."""
    text = tmp_path / "text"
    text.mkdir()
    (text / "0.csv").write_text("n,word\n1,NA\n2,x\n")
    with patch.object(commits, "create", side_effect=KeyboardInterrupt), pytest.raises(KeyboardInterrupt):
        catalog.ingest(text, "t")
    with caplog.at_level("WARNING"):
        catalog.ingest(text, "t", options={"null_values": "NA"})
    assert "the ingest starts over" in caplog.text
    table = lance.dataset(tmp_path / "tables" / "t.lance")
    assert table.count_rows("word = 'NA'") == 0
    assert table.count_rows("word IS NULL") == 1


def test_columns_of_files_may_be_null(catalog: TableJobs, tmp_path: Path) -> None:
    fields: list[Any] = [pa.field("id", pa.int64(), nullable=False)]
    pq.write_table(pa.table([pa.array([1])], schema=pa.schema(fields)), tmp_path / "a.parquet")
    catalog.ingest(tmp_path / "a.parquet", "t")
    catalog.ingest(tmp_path / "a.parquet", "strict", nullable=False)
    (tmp_path / "a.csv").write_text("id\n1\n")
    catalog.ingest(tmp_path / "a.csv", "told", options={"schema": "id bigint not null"})
    schemas = {name: lance.dataset(tmp_path / "tables" / f"{name}.lance").schema for name in ("t", "strict", "told")}
    assert {name: schema.field("id").nullable for name, schema in schemas.items()} == {
        "t": True,
        "strict": False,
        "told": False,
    }


def test_a_column_of_nothing_but_nulls(catalog: TableJobs, tmp_path: Path) -> None:
    pq.write_table(pa.table({"id": [1], "odd": pa.nulls(1)}), tmp_path / "a.parquet")
    with pytest.raises(TableSchemaValidationError, match=r"column odd has the type null, .*leave the column out"):
        catalog.ingest(tmp_path / "a.parquet", "t")
    catalog.ingest(tmp_path / "a.parquet", "t", columns="id")
    (tmp_path / "a.csv").write_text("id,odd\n1,\n")
    catalog.ingest(tmp_path / "a.csv", "text")  # as always: text, of which nobody knows more
    assert lance.dataset(tmp_path / "tables" / "text.lance").schema.field("odd").type == pa.string()
