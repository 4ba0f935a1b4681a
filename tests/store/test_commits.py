from __future__ import annotations

import pytest

from lancehouse.store import repository
from lancehouse.store.model import SnapshotRow
from lancehouse.store.statements import Tx
from tests.store.rows import NOW, StoredNamespace


@pytest.mark.parametrize(
    ("after", "found"),
    [(None, [0, 1, 2, 40, 2**63 - 1]), (-1, [0, 1, 2, 40, 2**63 - 1]), (1, [2, 40, 2**63 - 1]), (40, [2**63 - 1])],
)
def test_snapshots_after_one(place: StoredNamespace, after: int | None, found: list[int]) -> None:
    entry, other = place.create("t"), place.create("other")
    rows = [
        SnapshotRow(number, None, number, NOW, f"lance:///{number}", {"operation": "append"})
        for number in (40, 2**63 - 1, 0, 2, 1)
    ]

    def work(tx: Tx) -> None:
        repository.insert_snapshots(tx, entry.id, rows)
        repository.insert_snapshots(tx, other.id, rows[:2])

    place.database.write(work)
    listed = place.database.read(lambda tx: repository.list_snapshots(tx, entry.id, after))
    assert [row.snapshot_id for row in listed] == found
    assert all(row in rows for row in listed)


def test_counting_snapshots(place: StoredNamespace) -> None:
    entry, other = place.create("t"), place.create("other")
    rows = [SnapshotRow(number, None, number, NOW, "m", {"operation": "append"}) for number in range(5)]

    def count() -> tuple[int, int]:
        return place.database.read(
            lambda tx: (repository.count_snapshots(tx, entry.id), repository.count_snapshots(tx, other.id))
        )

    assert count() == (0, 0)
    place.database.write(lambda tx: repository.insert_snapshots(tx, entry.id, rows))
    place.database.write(lambda tx: repository.insert_snapshots(tx, other.id, rows[:1]))
    assert count() == (5, 1)
    place.database.write(lambda tx: repository.delete_snapshots(tx, entry.id, [0, 3, 99]))
    assert count() == (3, 1)
