from __future__ import annotations

import pickle
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import lance
import pytest
from lance_namespace.errors import InvalidInputError, PermissionDeniedError

from lancehouse.lake.job_records import FOLDER, JobProgress
from tests.lake.folder import rows
from tests.lake.store import BUCKET, FakeStore

ODD = {"s3://b/a b#%2F.parquet 1 2 0-3": {"rows": 3}, "ü🙂\n": None, "": [1, "two", {"x": 1.5}]}
"""Keys and values of all kinds."""


@dataclass(frozen=True)
class RecordStore:
    """Where records lie, and how their bytes are reached."""

    location: str
    read: Callable[[], dict[str, bytes]]
    write: Callable[[str, bytes], object]
    options: dict[str, str] = field(default_factory=dict)

    def progress(self, job: str = "job-1") -> JobProgress:
        return JobProgress(self.location, self.options, job)


@pytest.fixture(params=["path", "file", "s3"])
def place(request: pytest.FixtureRequest, tmp_path: Path, store: FakeStore) -> RecordStore:
    if request.param == "s3":
        prefix = "tables/t 1/"

        def objects() -> dict[str, bytes]:
            return {key.removeprefix(prefix): body for key, body in store.objects.items()}

        return RecordStore(
            f"s3://{BUCKET}/{prefix}",
            objects,
            lambda name, data: store.objects.__setitem__(prefix + name, data),
            store.options,
        )
    folder = tmp_path / "t 1 %20"
    folder.mkdir()

    def files() -> dict[str, bytes]:
        return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}

    location = str(folder) if request.param == "path" else folder.as_uri()
    return RecordStore(location, files, lambda name, data: (folder / name).write_bytes(data))


def test_a_job_goes_on(place: RecordStore) -> None:
    progress = place.progress()
    assert progress.read_records() == {}
    for key, value in ODD.items():
        pickle.loads(pickle.dumps(progress)).record(key, value)
    progress.record("", "again")
    assert place.progress().read_records() == {**ODD, "": "again"}
    assert all(name.startswith(f"{FOLDER}/jobs/job-1/") and name.endswith(".json") for name in place.read())
    assert len(place.read()) == len(ODD)


def test_jobs_do_not_meet(place: RecordStore) -> None:
    place.progress("job-1").record("a", 1)
    place.progress("job-10").record("b", 2)
    place.progress("job-1").clear()
    assert (place.progress("job-1").read_records(), place.progress("job-10").read_records()) == ({}, {"b": 2})
    place.progress("job-10").clear()
    place.progress("job-10").clear()
    assert place.read() == {}


def test_nothing_of_ours_is_left_behind(tmp_path: Path) -> None:
    progress = JobProgress(str(tmp_path / "t"), {}, "job")
    progress.record("a", 1)
    progress.clear()
    assert list((tmp_path / "t").iterdir()) == []


@pytest.mark.parametrize("torn", [b"", b"{", b'{"key": "a"}', b'{"key": "b", "value": 1}', b"[]", b"\xff"])
def test_a_torn_record_is_absent(place: RecordStore, torn: bytes) -> None:
    progress = place.progress()
    progress.record("a", 1)
    (name,) = place.read()
    place.write(name, torn)
    progress.record("c", 3)
    assert progress.read_records() == {"c": 3}
    progress.record("a", 1)
    assert progress.read_records() == {"a": 1, "c": 3}


def test_a_record_is_replaced_in_one_step(tmp_path: Path) -> None:
    """Who reads the old one reads all of it."""
    progress = JobProgress(str(tmp_path), {}, "job")
    progress.record("a", "old")
    (file,) = tmp_path.rglob("*.json")
    with file.open() as old:
        progress.record("a", "new")
        assert '"old"' in old.read()
    assert progress.read_records() == {"a": "new"}
    assert list(tmp_path.rglob("*.part")) == []


def test_what_is_no_record_is_absent(place: RecordStore) -> None:
    place.progress().record("a", 1)
    place.write(f"{FOLDER}/jobs/job-1/.0123.part", b'{"key": "b", "value": 1}')
    assert place.progress().read_records() == {"a": 1}
    place.progress().clear()
    assert place.progress().read_records() == {}


def test_many_tasks_at_once(place: RecordStore) -> None:
    """Several of them do the same, as speculative ones do."""
    progress = place.progress()
    with ThreadPoolExecutor(8) as tasks:
        list(tasks.map(lambda number: progress.record(f"unit {number % 20}", number % 20), range(80)))
    assert progress.read_records() == {f"unit {number}": number for number in range(20)}
    assert len(place.read()) == 20


@pytest.mark.parametrize("job", ["", ".", "..", "a/b", "a b", "ü", "x" * 300, "a%2Fb"])
def test_names_that_are_no_jobs(job: str) -> None:
    with pytest.raises(InvalidInputError, match="no name of a job"):
        JobProgress("/nowhere", {}, job)


def test_a_value_that_json_cannot_hold(place: RecordStore) -> None:
    values: list[Any] = [object(), float("nan"), b"x"]
    for value in values:
        with pytest.raises((TypeError, ValueError)):
            place.progress().record("a", value)
    assert place.read() == {}


def test_a_store_that_refuses(store: FakeStore) -> None:
    progress = JobProgress(f"s3://{BUCKET}/t", store.options, "job")
    progress.record("a", 1)
    store.refusal = (403, "AccessDenied")
    for call in (progress.read_records, progress.clear, lambda: progress.record("b", 1)):
        with pytest.raises(PermissionDeniedError) as caught:
            call()
        assert "verysecretvalue" not in str(caught.value)
    assert "verysecretvalue" not in repr(progress)
    store.refusal = None
    assert progress.read_records() == {"a": 1}


def test_lance_does_not_see_the_records(place: RecordStore) -> None:
    """Before the table exists, beside it, and when it is cleaned up."""
    progress = place.progress()
    progress.record("a", 1)
    dataset = lance.write_dataset(rows(10), place.location, storage_options=place.options or None)
    lance.write_dataset(rows(10), dataset, mode="overwrite")
    progress.record("b", 2)
    dataset = lance.dataset(place.location, storage_options=place.options or None)
    stats = dataset.cleanup_old_versions(timedelta(0), delete_unverified=True)
    assert stats.old_versions == 1
    assert progress.read_records() == {"a": 1, "b": 2}
    again = lance.dataset(place.location, storage_options=place.options or None)
    assert (again.count_rows(), again.version, [v["version"] for v in again.versions()]) == (10, 2, [2])


def test_records_that_go_while_they_are_listed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The job ends just after somebody has seen that its folder is there."""
    monkeypatch.setattr(Path, "is_dir", lambda _: True)
    progress = JobProgress(str(tmp_path), {}, "first")
    assert (progress.read_records(), progress.list_other_jobs("")) == ({}, [])
    progress.clear()


def test_a_job_that_begins_while_another_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The folder of all jobs goes with the last one, just when the next has made it."""
    gone: list[Path] = []
    make = Path.mkdir

    def made_and_gone(self: Path, *args: Any, **options: Any) -> None:
        make(self, *args, **options)
        if self.name == "second" and not gone:
            gone.append(self)
            self.rmdir()

    monkeypatch.setattr(Path, "mkdir", made_and_gone)
    progress = JobProgress(str(tmp_path), {}, "second")
    progress.record("a", 1)
    assert (progress.read_records(), len(gone)) == ({"a": 1}, 1)
