"""Managed tables in a real S3: many writers, and a store that stops, dies, is slow or fails now and then."""

from __future__ import annotations

import re
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from uuid import uuid4

import lance
import pytest

from bench.store import join_background
from lancehouse import IcebergNamespace
from tests.live.object_store import House, Store, make_rows
from tests.servers.versitygw import find_program

pytestmark = [
    pytest.mark.engines,
    pytest.mark.skipif(find_program() is None, reason="versitygw was not built, which takes Go"),
    pytest.mark.timeout(300),
]

WRITERS, APPENDS = 6, 8
ROWS = make_rows(0, 10)


class Writer:
    """Appends as somebody does who has patience, and looks before repeating what may have been done."""

    def __init__(self, house: House, table: list[str]) -> None:
        namespace = house.connect()
        assert isinstance(namespace, IcebergNamespace)
        self._house, self._namespace, self._table = house, namespace, table
        self.done: list[str] = []
        """Marks of the appends that were made, by all that the writer knows."""
        self.failures = 0

    def append(self, times: int) -> None:
        """So often, and as often again as it fails."""
        while len(self.done) < times:
            mark = uuid4().hex
            if self._try_append(mark):
                self.done.append(mark)
                continue
            self.failures += 1
            assert self.failures < 100

    def _try_append(self, mark: str) -> bool:
        """Whether it was made, as docs/commits.md says how to find out."""
        since = self._namespace.commit_mark()
        where = {"namespace_client": self._namespace, "table_id": self._table}
        try:
            lance.write_dataset(ROWS, **where, mode="append", transaction_properties={"mark": mark})
        except OSError as error:
            unknown = re.search(r"Commit result for version (\d+) is unknown", str(error))
        else:
            return True
        # The catalog is in order: whatever the store does, it is known what became of a commit.
        assert unknown is None or self._namespace.commit_refusal(self._table, int(unknown[1]), since) is not None
        return False


def write(house: House, table: list[str], writers: int, appends: int) -> list[Writer]:
    """Append with so many writers at once."""
    everybody = [Writer(house, table) for _ in range(writers)]
    with ThreadPoolExecutor(writers) as pool:
        list(pool.map(lambda writer: writer.append(appends), everybody))
    return everybody


def check(house: House, table: list[str], writers: Sequence[Writer]) -> None:
    """Nothing is lost, nothing is there twice, and what failed was not made."""
    dataset = house.open(table)
    appends = [mark for writer in writers for mark in writer.done]
    assert dataset.count_rows() == 10 * (len(appends) + 1)
    assert dataset.version == len(appends) + 1
    made = [dataset.read_transaction(version).transaction_properties for version in range(2, dataset.version + 1)]
    assert sorted(properties["mark"] for properties in made) == sorted(appends)
    join_background()
    by_path = lance.dataset(dataset.uri, storage_options=dict(house.bucket.options))
    assert by_path.version == dataset.version


@pytest.fixture
def table(house: House) -> list[str]:
    return house.table([ROWS])


def test_many_writers(house: House, table: list[str]) -> None:
    writers = write(house, table, WRITERS, APPENDS)
    assert [writer.failures for writer in writers] == [0] * WRITERS
    check(house, table, writers)


def test_a_store_that_fails_one_call_in_twenty(house: House, store: Store, table: list[str], soak: bool) -> None:
    with store.failing(20):
        writers = write(house, table, WRITERS, 100 if soak else 3)
    check(house, table, writers)


def test_a_store_that_stops_for_a_while(house: House, store: Store, table: list[str], soak: bool) -> None:
    with store.stopped(20 if soak else 4):
        writers = write(house, table, 2, 3)
    check(house, table, writers)


def test_a_slow_store(house: House, store: Store, table: list[str]) -> None:
    with store.slow(300):
        writers = write(house, table, 1, 2)
    assert writers[0].failures == 0
    check(house, table, writers)


def test_a_store_that_is_killed(house: House, store: Store, table: list[str]) -> None:
    """Whoever works when it dies hears of it; the table is as it was, and works on when the store is back."""
    store.kill()
    try:
        with pytest.raises(OSError, match=r"error sending request|S3"):
            lance.write_dataset(ROWS, namespace_client=house.connect(), table_id=table, mode="append")
    finally:
        store.restart()
    writers = write(house, table, 1, 2)
    assert writers[0].failures == 0
    check(house, table, writers)
