from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest
from lance_namespace.errors import TableIndexNotFoundError

from lancehouse.lake.commits import find_latest_if_only_maintenance
from lancehouse.lake.dataset import TableRef
from lancehouse.lake.recall_notes import (
    MOST_BYTES,
    MOST_NOTES,
    MOST_POINTS,
    PREFIX,
    RecallNote,
    RecallPoint,
    digest_index,
    find_note,
    keep_note,
)
from lancehouse.lake.version_records import read_versions

POINT = {"nprobes": 5, "refine_factor": 20, "recall": 0.5, "median_ms": 1.5, "p95_ms": 2.0}
NOTE = {"version": 3, "measured_ms": 1_700_000_000_000, "k": 10, "queries": 100, "index": "0" * 32, "points": [POINT]}


@pytest.fixture
def table(tmp_path: Path) -> TableRef:
    dataset = lance.write_dataset(pa.table({"a": range(10), "b": range(10)}), tmp_path / "t")
    for column in ("a", "b"):
        dataset.create_scalar_index(column, "BTREE")
    return TableRef(str(tmp_path / "t"))


def parse(**changes: Any) -> RecallNote | None:
    return RecallNote.parse(json.dumps({**NOTE, **changes}))


def test_a_note_is_what_was_written() -> None:
    assert parse() == RecallNote(**{**NOTE, "points": (RecallPoint(**POINT),)})  # type: ignore[arg-type]
    assert RecallNote.parse(None) is None
    many = parse(points=[POINT | {"nprobes": 2**31 - 1, "recall": 1 / 3, "p95_ms": 1e9 / 3}] * MOST_POINTS)
    assert many is not None
    assert RecallNote.parse(many.model_dump_json()) == many, "the longest that is written can be read"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "null",
        "[" * MOST_BYTES,
        '{"a":' * (MOST_BYTES // 5),
        json.dumps({**NOTE, "more": "x" * MOST_BYTES}),
        json.dumps({**NOTE, "points": []}),
        json.dumps({**NOTE, "points": [POINT] * (MOST_POINTS + 1)}),
        *(
            json.dumps({**NOTE, "points": [{**POINT, **change}]})
            for change in (
                {"recall": 1.1},
                {"recall": -0.1},
                {"recall": float("nan")},
                {"median_ms": float("inf")},
                {"p95_ms": 1e10},
                {"nprobes": 0},
                {"nprobes": 1e300},
                {"nprobes": True},
                {"refine_factor": "<img src=x onerror=alert(1)>"},
            )
        ),
        *(
            json.dumps({**NOTE, **change})
            for change in (
                {"version": -1},
                {"version": "3"},
                {"measured_ms": 2**53},
                {"k": "<b>"},
                {"queries": 10**400},
                {"index": "0" * 32 + "\n"},
                {"index": None},
                {"points": {"0": POINT}},
            )
        ),
    ],
)
def test_what_is_no_note_counts_as_absent(text: str) -> None:
    assert RecallNote.parse(text) is None


def test_a_note_stays_with_its_index_and_changes_no_rows(table: TableRef) -> None:
    note = parse()
    assert note is not None
    before = table.open().version
    assert keep_note(table, "a_idx", note) == before + 1
    assert find_latest_if_only_maintenance(table, before) == before + 1
    dataset = table.open()
    assert [find_note(dataset, name) for name in ("a_idx", "b_idx")] == [note, None]
    [record] = read_versions(table, [dataset.version])
    assert (record.message, record.rows) == ("Keep the measured recall of an index", 10)
    lance.write_dataset(dataset.to_table(), dataset.uri, mode="append")
    table.open().optimize.compact_files()
    assert find_note(table.open(), "a_idx") == note
    with table.dataset() as changed:
        changed.update_config({"other": "x"})
    assert find_latest_if_only_maintenance(table, before) is None


def test_notes_are_few(table: TableRef) -> None:
    """Those of indices that are gone are removed with the next."""
    note = parse()
    assert note is not None
    keep_note(table, "a_idx", note)
    with table.dataset() as dataset:
        dataset.update_config({f"{PREFIX}gone{number}": "x" for number in range(MOST_NOTES)} | {"other": "x"})
    keep_note(table, "b_idx", note)
    assert sorted(table.open().config()) == [f"{PREFIX}a_idx", f"{PREFIX}b_idx", "other"]
    with pytest.raises(TableIndexNotFoundError, match="no index c_idx any more"):
        keep_note(table, "c_idx", note)


def test_an_index_that_is_built_anew_is_another(table: TableRef) -> None:
    first, _ = sorted(table.open().describe_indices(), key=lambda index: index.name)
    table.open().create_scalar_index("a", "BTREE", replace=True)
    again, _ = sorted(table.open().describe_indices(), key=lambda index: index.name)
    assert digest_index(first) == digest_index(first) != digest_index(again)
