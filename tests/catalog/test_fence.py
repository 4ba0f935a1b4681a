"""The fence: what a database makes of the epoch file in its warehouse, also when processes die between two writes."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from threading import Event

import pytest
from lance_namespace.errors import InvalidInputError, InvalidTableStateError, ServiceUnavailableError

from lancehouse.catalog import fence
from lancehouse.catalog.bootstrap import open_database, record_warehouses
from lancehouse.catalog.fence import MOST_TOKENS, EpochFile, Fence, find_conflict, read_epoch_file
from lancehouse.catalog.location_access import check_location, default_location
from lancehouse.catalog.warehouse_files import WarehouseFiles
from lancehouse.catalog.warehouses import Warehouse
from lancehouse.store import audit, fences
from lancehouse.store.model import AuditRow, FenceRow
from tests.servers.postgres import new_database
from tests.waiting import wait_until

OURS, OTHER = "a" * 32, "b" * 32
ROW = FenceRow(1, OURS, 3, ("11", "22"), 40, "open", "", 1, "", 0)
CHANGE = AuditRow(1, "ada", "", "", "", "namespace.create", "main", ("db",), "", None, None)
FILE = EpochFile(OURS, 3, "22", 40, 1_700_000_000_000, "host:1")


@pytest.mark.parametrize(
    ("row", "found", "words"),
    [
        (replace(ROW, tokens=()), None, None),  # a new warehouse, or an older lancehouse
        (ROW, None, None),  # somebody deleted it
        (replace(ROW, state="fenced", reason="so"), None, "so"),
        (ROW, FILE, None),
        (ROW, replace(FILE, token="11"), None),  # died before the file was written, or wrote late
        (ROW, replace(FILE, token="33"), "a server works on another copy"),
        (ROW, replace(FILE, token="33", position=60), "ends with change 50, and change 60 was seen at 2023-11-14"),
        (
            replace(ROW, position=60),
            replace(FILE, token="33", position=60),
            "a server works on",
        ),  # the audit was pruned
        (replace(ROW, position=59), replace(FILE, token="33", position=60), "ends with change 59, and change 60"),
        (replace(ROW, state="fenced", reason="so"), FILE, None),  # the right backup was restored
        (ROW, replace(FILE, epoch=4), "another copy of this database adopted it"),
        (ROW, replace(FILE, epoch=4, token="33"), "another copy of this database adopted it"),
        (ROW, replace(FILE, epoch=2, token="33"), None),  # of before the adoption by this database
        (ROW, replace(FILE, catalog=OTHER), "another catalog's server"),
        (replace(ROW, tokens=()), replace(FILE, catalog=OTHER, epoch=1), "another catalog's server"),
        (ROW, "it is no JSON object", "not one that a Lancehouse server wrote: it is no JSON object"),
    ],
)
def test_what_a_file_means(row: FenceRow, found: EpochFile | str | None, words: str | None) -> None:
    conflict = find_conflict(row, found, 50)
    assert (conflict is None) == (words is None)
    assert words is None or words in str(conflict)


FIELDS = json.loads(FILE.to_json()) | {"token": "0" * 16}


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xff\xfe",
        b"[]",
        b"[" * 4000,
        b"null",
        json.dumps({**FIELDS, "epoch": -1}).encode(),
        json.dumps({**FIELDS, "epoch": True}).encode(),
        json.dumps({**FIELDS, "epoch": 10**30}).encode(),
        json.dumps({**FIELDS, "written_ms": 1 << 60}).encode(),
        json.dumps({**FIELDS, "writer": "<b>\n"}).encode(),
        json.dumps({**FIELDS, "writer": "x" * 101}).encode(),
        json.dumps({**FIELDS, "token": None}).encode(),
        json.dumps({"about": "nothing"}).encode(),
    ],
)
def test_a_foreign_file_is_no_file_of_ours(data: bytes) -> None:
    with pytest.raises(InvalidInputError):
        EpochFile.parse(data)


def test_a_file_comes_back_as_it_was() -> None:
    file = replace(FILE, token="0" * 16)
    assert EpochFile.parse(file.to_json()) == file
    assert find_conflict(ROW, replace(file, written_ms=(1 << 47) - 1), 0)  # the latest time can be shown


@pytest.fixture
def warehouse(tmp_path: Path) -> Warehouse:
    return Warehouse(0, "main", str(tmp_path / "warehouse"))


class Copy:
    """A database with a server on it, which renews when it is told."""

    def __init__(self, file: Path, warehouse: Warehouse) -> None:
        self.file = file
        self.database = open_database(f"sqlite:///{file}")
        (self.warehouse,) = record_warehouses(self.database, [warehouse], warehouse)
        self.fence = self.new_server()

    def new_server(self) -> Fence:
        return Fence(self.database, [self.warehouse], 3600.0)

    @property
    def is_open(self) -> bool:
        return self.fence.refusal(self.warehouse) is None

    def row(self) -> FenceRow:
        row = self.database.read(lambda tx: fences.find_fence(tx, self.warehouse.id))
        assert row is not None
        return row


@pytest.fixture
def make_copy(tmp_path: Path, warehouse: Warehouse) -> Iterator[Callable[..., Copy]]:
    copies: list[Copy] = []

    def make(name: str, of: Copy | None = None) -> Copy:
        if of is not None:
            of.database.close()
            shutil.copy(of.file, tmp_path / name)
            of.database = open_database(f"sqlite:///{of.file}")
            of.fence = of.new_server()
        copies.append(Copy(tmp_path / name, warehouse))
        return copies[-1]

    yield make
    for copy in copies:
        copy.database.close()


def look(copy: Copy, *, is_first: bool = False) -> bool:
    copy.fence.look(is_first=is_first)
    return copy.is_open


MakeCopy = Callable[..., Copy]


def test_a_pruned_audit_is_no_older_database(make_copy: MakeCopy) -> None:
    first = make_copy("first.db")
    first.database.write(lambda tx: audit.insert_change(tx, CHANGE))
    assert look(first, is_first=True)
    first.fence._end()
    second = make_copy("second.db", first)
    assert look(first, is_first=True)
    second.database.write(lambda tx: audit.delete_changes(tx, 1 << 60))
    assert not look(second, is_first=True)
    assert "database is older" not in str(second.fence.refusal(second.warehouse))


@pytest.mark.parametrize("winner", [0, 1])
def test_of_two_copies_the_second_to_look_is_fenced(make_copy: MakeCopy, winner: int) -> None:
    first = make_copy("first.db")
    assert look(first, is_first=True)
    first.fence._end()
    copies = first, make_copy("second.db", first)
    assert look(copies[winner], is_first=True)
    assert not look(copies[1 - winner], is_first=True)
    assert look(copies[winner])
    with pytest.raises(InvalidTableStateError, match=r"takes no changes: a server works on another copy.*db adopt"):
        copies[1 - winner].fence.require_open(copies[1 - winner].warehouse)
    # Another process on the same database learns it from there.
    other = copies[1 - winner].new_server()
    other.refresh()
    assert other.refusal(copies[1 - winner].warehouse)


def test_both_copies_write_at_the_same_moment(make_copy: MakeCopy, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a conditional write: the last one stays, and the other finds that at its next renewal."""
    first = make_copy("first.db")
    look(first, is_first=True)
    first.fence._end()
    second = make_copy("second.db", first)
    write = Fence._write

    def write_second_in_between(fence: Fence, *arguments: object) -> None:
        monkeypatch.setattr(Fence, "_write", write)
        assert look(second, is_first=True)
        write(fence, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(Fence, "_write", write_second_in_between)
    assert look(first, is_first=True)
    assert look(first)
    assert not look(second)


@pytest.mark.parametrize("dies_after_file", [False, True])
@pytest.mark.parametrize("is_late", [False, True])
def test_a_server_that_dies_while_it_renews(
    make_copy: MakeCopy, monkeypatch: pytest.MonkeyPatch, dies_after_file: bool, is_late: bool
) -> None:
    """At each point the next server finds a token that the database knows; also if the write comes late."""
    copy = make_copy("catalog.db")
    assert look(copy, is_first=True)
    write, late = Fence._write, []

    def die(fence: Fence, *arguments: object) -> None:
        late.append(lambda: write(fence, *arguments))  # type: ignore[arg-type]
        if dies_after_file:
            write(fence, *arguments)  # type: ignore[arg-type]
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(Fence, "_write", die)
        copy.fence._look_at(copy.warehouse, copy.row())
    copy.fence = copy.new_server()
    assert look(copy, is_first=True)
    copy.database.write(lambda tx: fences.put_fence(tx, replace(copy.row(), leased_until_ms=0)))
    assert look(copy)  # which takes the lease over, and writes
    if is_late:
        late[0]()
    assert look(copy)
    assert copy.row().state == "open"


def test_one_server_of_a_database_renews(make_copy: MakeCopy) -> None:
    copy = make_copy("catalog.db")
    assert look(copy, is_first=True)
    before = copy.row()
    other = copy.new_server()
    other.look(is_first=True)
    other.look()
    assert copy.row() == before
    assert look(copy)
    assert copy.row().tokens != before.tokens
    copy.fence._end()
    other.look()
    assert copy.row().holder not in ("", before.holder)


def test_adoption_raises_the_epoch(make_copy: MakeCopy) -> None:
    first = make_copy("first.db")
    look(first, is_first=True)
    first.fence._end()
    second = make_copy("second.db", first)
    assert look(first, is_first=True)
    assert not look(second, is_first=True)
    second.fence.begin_adoption(second.warehouse)
    assert not look(second)  # until it is finished, also by a new server
    second.fence.finish_adoption(second.warehouse)
    assert look(second, is_first=True)
    assert second.row().epoch == first.row().epoch + 1
    assert not look(first)
    assert "adopted" in str(first.fence.refusal(first.warehouse))
    # A write of the first one that comes late is written over.
    first.fence._write(first.warehouse, replace(first.row(), tokens=("f" * 16,)))
    assert look(second)
    assert not look(first)


def epoch_file(warehouse: Warehouse) -> Path:
    return Path(warehouse.location, ".lancehouse", "epoch.json")


@pytest.mark.parametrize("data", [b"garbage", b"x" * 10_000_000])
def test_a_file_that_is_not_ours(make_copy: MakeCopy, warehouse: Warehouse, data: bytes) -> None:
    copy = make_copy("catalog.db")
    assert look(copy, is_first=True)
    epoch_file(warehouse).write_bytes(data)
    assert not look(copy)
    epoch_file(warehouse).unlink()
    assert not look(copy)
    copy.fence.begin_adoption(copy.warehouse)
    copy.fence.finish_adoption(copy.warehouse)
    assert look(copy)


def test_a_link_on_the_way_says_nothing_of_others(make_copy: MakeCopy, warehouse: Warehouse, tmp_path: Path) -> None:
    copy = make_copy("catalog.db")
    (tmp_path / "elsewhere").mkdir()
    Path(warehouse.location).mkdir(exist_ok=True)
    epoch_file(warehouse).parent.symlink_to(tmp_path / "elsewhere")
    assert look(copy, is_first=True)
    assert "link" in str(copy.fence.gap(copy.warehouse))


def test_a_store_that_does_not_answer_leaves_no_other_unguarded(
    tmp_path: Path, warehouse: Warehouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    database = open_database(f"sqlite:///{tmp_path / 'catalog.db'}")
    slow = Warehouse(0, "slow", str(tmp_path / "slow"))
    both = record_warehouses(database, [slow, warehouse], slow)
    read, answers = WarehouseFiles.read, Event()

    def wait_if_slow(files: WarehouseFiles, path: str, most: int | None = None) -> bytes:
        if "/slow/" in path:
            answers.wait()
        return read(files, path, most)

    monkeypatch.setattr(WarehouseFiles, "read", wait_if_slow)
    monkeypatch.setattr(fence, "LOOK_S", 0.5)
    for _ in range(2):  # the look that waits is not begun again
        Fence(database, both, 3600.0).look(is_first=True)
    assert epoch_file(warehouse).exists()
    assert not epoch_file(slow).exists()
    answers.set()
    wait_until(epoch_file(slow).exists)
    database.close()


def test_a_look_that_is_late_opens_nothing(make_copy: MakeCopy) -> None:
    """The file was read before another copy wrote it, and the row is decided after somebody else found that."""
    copy = make_copy("catalog.db")
    assert look(copy, is_first=True)
    before, found = copy.row(), read_epoch_file(copy.warehouse)
    copy.database.write(lambda tx: fences.put_fence(tx, replace(copy.row(), state="fenced", reason="so")))
    row = copy.database.read(lambda tx: copy.new_server()._decide(tx, copy.row(), found, "33", was_fenced=False))
    assert row.state == "fenced"
    assert before.state == "open"


def test_a_lease_of_before_the_clock_was_set_back(make_copy: MakeCopy) -> None:
    copy = make_copy("catalog.db")
    assert look(copy, is_first=True)
    late = replace(copy.row(), leased_until_ms=copy.row().leased_until_ms + 86_400_000)
    copy.database.write(lambda tx: fences.put_fence(tx, late))
    other = copy.new_server()
    other.look()
    assert copy.row().holder not in ("", late.holder)


def test_a_folder_in_its_place(make_copy: MakeCopy, warehouse: Warehouse) -> None:
    copy = make_copy("catalog.db")
    epoch_file(warehouse).mkdir(parents=True)
    assert not look(copy, is_first=True)


def test_a_new_database_on_the_warehouse_of_another(make_copy: MakeCopy) -> None:
    first, second = make_copy("first.db"), make_copy("second.db")
    assert look(first, is_first=True)
    assert not look(second, is_first=True)
    assert "another catalog" in str(second.fence.refusal(second.warehouse))
    assert look(first)


@pytest.mark.parametrize("operation", ["read", "write"])
def test_a_store_that_is_down_or_read_only(
    make_copy: MakeCopy, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, operation: str
) -> None:
    """Changes go on, and nobody has forgotten what was known before when the store is back."""
    copy = make_copy("catalog.db")
    assert look(copy, is_first=True)

    def fail(*_: object) -> None:
        raise ServiceUnavailableError("it is read-only")

    with monkeypatch.context() as patch:
        patch.setattr(WarehouseFiles, operation, fail)
        for _ in range(MOST_TOKENS + 2):
            assert look(copy)
        assert "it is read-only" in str(copy.fence.gap(copy.warehouse))
    assert sum("nobody would notice" in record.message for record in caplog.records) == 1
    assert look(copy)
    assert copy.fence.gap(copy.warehouse) is None


def test_what_was_fenced_stays_so_while_the_store_is_down(make_copy: MakeCopy, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = make_copy("first.db"), make_copy("second.db")
    assert look(first, is_first=True)
    assert not look(second, is_first=True)

    def fail(*_: object) -> None:
        raise ServiceUnavailableError("it is down")

    monkeypatch.setattr(WarehouseFiles, "read", fail)
    assert not look(second)


def test_no_table_may_lie_where_the_file_does(tmp_path: Path) -> None:
    warehouse = Warehouse(1, "main", str(tmp_path), cache=str(tmp_path / "cache"))
    with pytest.raises(InvalidInputError, match="files of its own"):
        check_location(warehouse, f"{tmp_path}/.lancehouse/t")
    assert "/.lancehouse" not in default_location(warehouse, [".lancehouse"], "epoch.json")


def test_on_postgres(warehouse: Warehouse, postgres: str) -> None:
    database = open_database(new_database(postgres))
    try:
        (served,) = record_warehouses(database, [warehouse], warehouse)
        fence = Fence(database, [served])
        fence.start()
        fence.close()
        row = database.read(lambda tx: fences.find_fence(tx, served.id))
        assert row is not None
        assert (row.state, row.holder, len(row.tokens)) == ("open", "", 2)
        epoch_file(warehouse).write_bytes(b"{}")
        again = Fence(database, [served])
        again.look(is_first=True)
        assert again.refusal(served)
    finally:
        database.close()
