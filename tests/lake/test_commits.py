from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from shutil import rmtree
from typing import Any
from unittest.mock import patch

import lance
import pyarrow as pa
import pytest
from lance_namespace.errors import (
    ConcurrentModificationError,
    InternalError,
    InvalidInputError,
    PermissionDeniedError,
    ServiceUnavailableError,
)

from lancehouse.lake import commits
from lancehouse.lake.commits import (
    RUN,
    CreateConflictError,
    FileLayout,
    NewFragment,
    create_with_rows,
    discard_fragments,
    find_lost_fragments,
    find_version_of_run,
    locate_table,
    parse_new_fragments,
    write_uncommitted,
)
from lancehouse.lake.dataset import TableRef
from lancehouse.lake.manifests import read_transaction_uuid
from tests.schema.storable import STORABLE, label


def rows(*ids: int) -> pa.Table:
    return pa.table({"id": pa.array(ids, pa.int64())})


@pytest.fixture
def table(tmp_path: Path) -> TableRef:
    lance.write_dataset(rows(1, 2), tmp_path / "t")
    return TableRef(str(tmp_path / "t"))


def write_fragments(table: TableRef, data: pa.Table, mode: str = "append", **layout: Any) -> list[NewFragment]:
    return write_uncommitted(table, locate_table(table), data.to_reader(), mode=mode, layout=FileLayout(**layout))


def ids(table: TableRef) -> list[int]:
    return sorted(table.open().to_table().column("id").to_pylist())


def files(table: TableRef) -> set[str]:
    return {path.name for path in Path(table.location or "", "data").rglob("*") if path.is_file()}


def test_pieces_become_rows_with_the_commit(table: TableRef) -> None:
    pieces = [*write_fragments(table, rows(3, 4, 5), max_rows_per_file=2), *write_fragments(table, rows(6))]
    assert ids(table) == [1, 2]
    assert [each.physical_rows for each in parse_new_fragments(pieces)] == [2, 1, 1]
    assert commits.append(table, locate_table(table), pieces, 1) == 2
    assert ids(table) == [1, 2, 3, 4, 5, 6]


def test_an_append_lands_over_whatever_came_meanwhile(table: TableRef) -> None:
    pieces = write_fragments(table, rows(3))
    lance.write_dataset(rows(4), table.location, mode="append")
    table.open().delete("id = 1")
    assert commits.append(table, locate_table(table), pieces, 1) == 4
    assert ids(table) == [2, 3, 4]


def test_overwriting_replaces_rows_and_columns(table: TableRef) -> None:
    new = pa.table({"name": ["a"]})
    assert commits.overwrite(table, locate_table(table), new.schema, write_fragments(table, new, "overwrite"), 1) == 2
    assert table.open().to_table() == new


def test_overwriting_never_swallows_an_append(table: TableRef) -> None:
    pieces = write_fragments(table, rows(9), "overwrite")
    lance.write_dataset(rows(3), table.location, mode="append")
    with pytest.raises(ConcurrentModificationError, match="since version 1"):
        commits.overwrite(table, locate_table(table), rows().schema, pieces, 1)
    assert ids(table) == [1, 2, 3]


def test_of_two_creators_one_is_told(tmp_path: Path) -> None:
    table = TableRef(str(tmp_path / "new"))
    first, second = write_fragments(table, rows(1), "overwrite"), write_fragments(table, rows(2), "create")
    assert commits.create(table, locate_table(table), rows().schema, first) == 1
    with pytest.raises(CreateConflictError):
        commits.create(table, locate_table(table), rows().schema, second)
    assert ids(table) == [1]


def test_who_creates_too_late_leaves_no_files(table: TableRef) -> None:
    before = files(table)
    with pytest.raises(CreateConflictError):
        create_with_rows(table, locate_table(table), rows(3))
    assert files(table) == before


def test_a_commit_whose_answer_is_lost_is_looked_up(table: TableRef) -> None:
    made = lance.LanceDataset.commit

    def commit_and_break(*args: Any, **options: Any) -> None:
        made(*args, **options)
        raise OSError("the connection broke")

    with patch.object(lance.LanceDataset, "commit", commit_and_break):
        assert commits.append(table, locate_table(table), write_fragments(table, rows(3)), 1) == 2
    assert ids(table) == [1, 2, 3]


def test_a_commit_that_failed_is_not_taken_for_another(table: TableRef) -> None:
    def other(*_: Any, **__: Any) -> None:
        lance.write_dataset(rows(7), table.location, mode="append")
        raise OSError("the connection broke")

    with patch.object(lance.LanceDataset, "commit", other), pytest.raises(InternalError):
        commits.append(table, locate_table(table), write_fragments(table, rows(3)), 1)


def test_a_commit_that_cannot_be_looked_up_is_not_taken_for_a_refusal(table: TableRef) -> None:
    """After a refusal, files are removed; who may not look knows nothing."""
    with (
        patch.object(lance.LanceDataset, "commit", side_effect=OSError("the connection broke")),
        patch.object(commits, "find_version", side_effect=PermissionDeniedError("the token has expired")),
        pytest.raises(InternalError, match="the connection broke"),
    ):
        commits.append(table, locate_table(table), write_fragments(table, rows(3)), 1)


def write_and_break(table: TableRef) -> None:
    """The rows break off after some files."""

    def breaking() -> Iterator[pa.RecordBatch]:
        for number in range(40):
            yield pa.record_batch({"id": pa.array(range(number * 1000, number * 1000 + 1000), pa.int64())})
        raise RuntimeError("the source broke")

    source = pa.RecordBatchReader.from_batches(rows().schema, breaking())
    with pytest.raises((InternalError, RuntimeError, OSError), match="the source broke"):
        write_uncommitted(table, locate_table(table), source, mode="append", layout=FileLayout(max_rows_per_file=2000))


def test_nothing_is_left_of_a_write_that_fails(table: TableRef) -> None:
    before = files(table)
    write_and_break(table)
    assert files(table) == before


def test_files_that_cannot_be_removed_do_not_hide_why(table: TableRef, caplog: pytest.LogCaptureFixture) -> None:
    with patch.object(commits, "discard_fragments", side_effect=ServiceUnavailableError("no answer")):
        write_and_break(table)
    assert "files may be left over, which remove_orphans removes: no answer" in caplog.text


def test_decimals_that_lie_between_the_marks(tmp_path: Path) -> None:
    """As they come from Spark; Rust panics on them."""
    numbers = pa.array([1, 2, 3], pa.decimal128(20, 2))
    values = numbers.buffers()[1]
    assert values is not None
    room = bytearray(values.size + 24)
    start = (8 - pa.py_buffer(room).address) % 16
    room[start : start + values.size] = values.to_pybytes()
    crooked = pa.Array.from_buffers(numbers.type, 3, [None, pa.py_buffer(room).slice(start)])
    assert pa.py_buffer(room).slice(start).address % 16 == 8
    nested = pa.ListArray.from_arrays(pa.array([0, 3], pa.int32()), crooked)
    batch = pa.record_batch({"l": nested})
    table = TableRef(str(tmp_path / "t"))
    pieces = write_uncommitted(
        table, locate_table(table), pa.RecordBatchReader.from_batches(batch.schema, [batch]), mode="overwrite"
    )
    commits.create(table, locate_table(table), batch.schema, pieces)
    assert table.open().to_table().column("l").to_pylist() == [numbers.to_pylist()]


def test_discarded_pieces_are_gone(table: TableRef) -> None:
    before = files(table)
    pieces = write_fragments(table, rows(3, 4, 5), max_rows_per_file=1)
    assert len(files(table)) == len(before) + 3
    discard_fragments(pieces, locate_table(table))
    assert files(table) == before


def test_a_run_is_known_again(table: TableRef) -> None:
    assert find_version_of_run(table, "monday") is None
    commits.append(table, locate_table(table), write_fragments(table, rows(3)), 1, {RUN: "monday"})
    lance.write_dataset(rows(4), table.location, mode="append")
    assert find_version_of_run(table, "monday") == 2
    assert find_version_of_run(table, "tuesday") is None
    assert find_version_of_run(TableRef(f"{table.location}-not"), "monday") is None


@pytest.mark.parametrize("field", STORABLE, ids=label)
def test_every_type_becomes_a_table(tmp_path: Path, field: pa.Field[Any]) -> None:
    schema = pa.schema([field])
    made = TableRef(str(tmp_path / "pieces"))
    pieces = write_uncommitted(
        made, locate_table(made), pa.RecordBatchReader.from_batches(schema, []), mode="overwrite"
    )
    commits.create(made, locate_table(made), schema, pieces)
    plain = lance.write_dataset(pa.RecordBatchReader.from_batches(schema, []), tmp_path / "plain")
    assert made.open().schema == plain.schema
    assert [each.id() for each in made.open().lance_schema.fields()] == [
        each.id() for each in plain.lance_schema.fields()
    ]


def test_an_older_version_is_put_back_unless_that_would_undo_what_others_did(table: TableRef) -> None:
    made = commits.append(table, locate_table(table), write_fragments(table, rows(3)), 1)
    assert not commits.is_reverted(table, made)
    with pytest.raises(ConcurrentModificationError, match="since version 1"):
        commits.restore(table, locate_table(table), 1, base=1)
    assert ids(table) == [1, 2, 3]
    assert commits.restore(table, locate_table(table), 1, base=made) == 3
    assert ids(table) == [1, 2]
    assert commits.is_reverted(table, made)
    assert not commits.is_reverted(table, 1)


def test_what_comes_in_the_middle_of_putting_a_version_back_is_there_again(table: TableRef) -> None:
    made = commits.append(table, locate_table(table), write_fragments(table, rows(3)), 1)
    commit, late = commits.commit, [rows(4)]

    def overtaken(*arguments: Any, **options: Any) -> int:
        if late:
            lance.write_dataset(late.pop(), table.location, mode="append")
        return commit(*arguments, **options)

    with (
        patch.object(commits, "commit", overtaken),
        pytest.raises(ConcurrentModificationError, match="since version 2"),
    ):
        commits.restore(table, locate_table(table), 1, base=made)
    assert ids(table) == [1, 2, 3, 4]


def test_indices_and_compactions_change_no_rows(table: TableRef) -> None:
    made = commits.append(table, locate_table(table), write_fragments(table, rows(3)), 1)
    assert commits.find_latest_if_only_maintenance(table, made) == 2
    table.open().create_scalar_index("id", "BTREE")
    table.open().optimize.compact_files()
    assert commits.find_latest_if_only_maintenance(table, made) == table.open().version == 5
    table.open().delete("id = 3")
    assert commits.find_latest_if_only_maintenance(table, made) is None


def test_how_many_rows_a_version_has_written(table: TableRef) -> None:
    commits.append(table, locate_table(table), write_fragments(table, rows(3, 4, 5)), 1)
    table.open().merge_insert("id").when_matched_update_all().when_not_matched_insert_all().execute(rows(5, 6))
    table.open().delete("id = 3")
    assert [commits.count_rows_added(table, version) for version in (1, 2, 3, 4)] == [2, 3, 2, None]


def test_a_run_that_is_done_twice_at_once_is_done_once(table: TableRef) -> None:
    monday, same, other = (write_fragments(table, rows(number)) for number in (3, 4, 5))
    assert commits.append(table, locate_table(table), other, 1, {RUN: "other"}) == 2
    assert commits.append(table, locate_table(table), monday, 1, {RUN: "monday"}) == 3
    with pytest.raises(commits.RunAlreadyCommittedError, match="has just made version 3") as refused:
        commits.append(table, locate_table(table), same, 1, {RUN: "monday"})
    assert (refused.value.version, commits.is_refusal(refused.value)) == (3, True)
    assert ids(table) == [1, 2, 3, 5]


def test_a_run_that_is_done_twice_at_the_very_same_time(table: TableRef) -> None:
    """The second has looked before the first was there: it takes its rows out again."""
    monday, same, other = (write_fragments(table, rows(number)) for number in (3, 4, 5))
    commit, late = commits.commit, [monday]

    def overtaken(*arguments: Any, **options: Any) -> int:
        if late:
            commits.append(table, locate_table(table), late.pop(), 1, {RUN: "monday"})
            commits.append(table, locate_table(table), other, 1)
        return commit(*arguments, **options)

    with patch.object(commits, "commit", overtaken):
        assert commits.append(table, locate_table(table), same, 1, {RUN: "monday"}) == 2
    assert ids(table) == [1, 2, 3, 5]
    assert sorted(table.open().checkout_version(4).to_table()["id"].to_pylist()) == [1, 2, 3, 4, 5]


def test_many_runs_append_at_once(table: TableRef) -> None:
    def add(number: int) -> None:
        mine = TableRef(table.location)
        with suppress(commits.RunAlreadyCommittedError):
            commits.append(
                mine, locate_table(mine), write_fragments(mine, rows(number // 2)), 1, {RUN: str(number // 2)}
            )

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(add, range(200, 224)))
    assert ids(table) == [1, 2, *range(100, 112)]


def test_what_was_undone_and_put_back_is_there(table: TableRef) -> None:
    made = commits.append(table, locate_table(table), write_fragments(table, rows(3)), 1)
    for version, undone in ((1, True), (made, False), (1, True), (4, False)):
        dataset = table.open()
        commits.restore(table, locate_table(table), version, dataset.version)
        assert commits.is_reverted(table, made) is undone
        assert (3 in ids(table)) is not undone


def test_a_table_that_was_made_anew_is_another_one(table: TableRef) -> None:
    known = read_transaction_uuid(table.open())
    lance.write_dataset(rows(3), table.location, mode="append")
    commits.require_same_table(table, 1, known)
    table.open().cleanup_old_versions(timedelta(0))
    commits.require_same_table(table, 1, known)
    rmtree(str(table.location))
    lance.write_dataset(rows(1, 2), table.location)
    with pytest.raises(ConcurrentModificationError, match="made anew"):
        commits.require_same_table(table, 1, known)


def test_of_two_creators_the_second_appends_if_it_may(tmp_path: Path) -> None:
    table = TableRef(str(tmp_path / "new"))
    first, second = write_fragments(table, rows(1), "overwrite"), write_fragments(table, rows(2), "overwrite")
    assert commits.create_or_append(table, locate_table(table), rows().schema, first) == 1
    assert commits.create_or_append(table, locate_table(table), rows().schema, second) == 2
    assert ids(table) == [1, 2]
    commits.append(table, locate_table(table), write_fragments(table, rows(3)), 2, {RUN: "monday"})
    with pytest.raises(commits.RunAlreadyCommittedError):
        commits.create_or_append(table, locate_table(table), rows().schema, second, {RUN: "monday"})
    table.open().delete("id = 3")
    other = pa.table({"id": ["x"]})
    with pytest.raises(CreateConflictError):
        commits.create_or_append(table, locate_table(table), other.schema, write_fragments(table, other, "overwrite"))
    assert ids(table) == [1, 2]


def test_pieces_whose_files_are_gone(table: TableRef) -> None:
    kept, gone = write_fragments(table, rows(3)), write_fragments(table, rows(4))
    [each] = parse_new_fragments(gone)
    Path(table.location or "", "data", each.files[0].path).unlink()
    assert find_lost_fragments([*kept, *gone], locate_table(table)) == set(gone)
    assert find_lost_fragments([], locate_table(table)) == set()


@pytest.mark.parametrize(
    "layout",
    [{"max_rows_per_file": 0}, {"max_bytes_per_file": -1}, {"max_rows_per_file": "9"}, {"data_storage_version": "9.9"}],
)
def test_a_layout_that_cannot_be(layout: dict[str, Any]) -> None:
    with pytest.raises(InvalidInputError, match=next(iter(layout))):
        FileLayout(**layout)
