"""What the Python workers of a Spark executor share, without Spark: each call here stands for a worker of its own."""

from __future__ import annotations

import json
import os
import stat
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from lance_namespace import (
    DescribeTableRequest,
    DescribeTableResponse,
    DescribeTableVersionRequest,
    DescribeTableVersionResponse,
    TableVersion,
)
from lance_namespace.errors import ServiceUnavailableError

from lancehouse.connection import Connection
from lancehouse.jobs import address
from lancehouse.jobs.address import SharedNamespace, TableAddress, share_answer
from lancehouse.lake.operations import TableOperations

SECRET = "verysecretvalue"


@pytest.fixture
def executor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of an executor's block manager."""
    folder = tmp_path / f"blockmgr-{uuid4()}"
    folder.mkdir()
    monkeypatch.setenv("SPARK_LOCAL_DIRS", f"{folder},{tmp_path}/other")
    return folder


class Asked:
    """Answers, and counts how often it is asked."""

    def __init__(self, lives_s: float | None = None) -> None:
        self.times, self._lives_s = 0, lives_s

    def __call__(self) -> dict[str, Any]:
        self.times += 1
        expiry = {} if self._lives_s is None else {"expires_at_millis": str(int((time.time() + self._lives_s) * 1000))}
        return {"location": "s3://b/t", "storage_options": {"aws_secret_access_key": SECRET, **expiry}}


def test_many_workers_ask_once(executor: Path) -> None:
    ask = Asked(3600)

    def slowly() -> dict[str, Any]:
        time.sleep(0.2)
        return ask()

    with ThreadPoolExecutor(8) as workers:
        answers = list(workers.map(lambda _: share_answer(["catalog", "t"], "job", slowly), range(8)))
    assert ask.times == 1
    assert all(answer == answers[0] for answer in answers)


def test_only_the_user_of_the_executor_can_read_it(executor: Path) -> None:
    share_answer(["catalog", SECRET], "job", Asked())
    [folder] = executor.iterdir()
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    files = list(folder.iterdir())
    assert any(SECRET in file.read_text() for file in files)
    assert {stat.S_IMODE(file.stat().st_mode) for file in files} == {0o600}
    assert not any(SECRET in file.name for file in files)


@pytest.mark.parametrize(
    ("lives_s", "key", "job", "times"),
    [
        (3600, "t", "job", 1),
        (None, "t", "job", 1),
        (59, "t", "job", 2),
        (3600, "t", "another job", 2),
        (3600, "another table or principal", "job", 2),
    ],
)
def test_what_is_asked_again(executor: Path, lives_s: float | None, key: str, job: str, times: int) -> None:
    ask = Asked(lives_s)
    share_answer(["t"], "job", ask)
    share_answer([key], job, ask)
    assert ask.times == times


def test_keys_without_an_expiry_may_be_replaced(executor: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ask = Asked()
    share_answer(["t"], "job", ask)
    monkeypatch.setattr(address, "LONGEST_S", 0)
    share_answer(["t"], "job", ask)
    assert ask.times == 2


def _share_with_others(folder: Path) -> None:
    (folder / "lancehouse").mkdir()
    (folder / "lancehouse").chmod(0o755)


def _link_elsewhere(folder: Path) -> None:
    (folder.parent / "elsewhere").mkdir(mode=0o700)
    (folder / "lancehouse").symlink_to(folder.parent / "elsewhere")


def _remove(folder: Path) -> None:
    folder.rmdir()


@pytest.mark.parametrize("spoil", [_share_with_others, _link_elsewhere, _remove])
def test_no_secret_is_written_where_others_could_read_it(executor: Path, spoil: Callable[[Path], None]) -> None:
    spoil(executor)
    ask = Asked()
    assert [share_answer(["t"], "job", ask) for _ in range(2)][1]["location"] == "s3://b/t"
    assert ask.times == 2
    assert not [file for file in executor.parent.rglob("*") if file.is_file()]


@pytest.mark.parametrize("value", [None, "", "{}/scratch", "{}/blockmgr-x"])
def test_elsewhere_than_in_an_executor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, value: str | None) -> None:
    """An administrator may set Spark's variable to a folder that all applications share."""
    if value is None:
        monkeypatch.delenv("SPARK_LOCAL_DIRS", raising=False)
    else:
        monkeypatch.setenv("SPARK_LOCAL_DIRS", value.format(tmp_path))
    ask = Asked()
    share_answer(["t"], "job", ask)
    share_answer(["t"], "job", ask)
    assert ask.times == 2
    assert list(tmp_path.iterdir()) == []


def test_a_failure_is_not_shared(executor: Path) -> None:
    def fail() -> dict[str, Any]:
        raise ServiceUnavailableError("the catalog is down")

    with pytest.raises(ServiceUnavailableError):
        share_answer(["t"], "job", fail)
    ask = Asked()
    share_answer(["t"], "job", ask)
    assert ask.times == 1


def test_a_file_that_is_broken_is_written_again(executor: Path) -> None:
    ask = Asked()
    share_answer(["t"], "job", ask)
    [file] = [file for file in (executor / "lancehouse").iterdir() if not file.suffix]
    file.write_text(json.dumps({"job": "job"})[:-1])
    share_answer(["t"], "job", ask)
    share_answer(["t"], "job", ask)
    assert ask.times == 2


class Catalog(TableOperations):
    """A client that counts what it is asked."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def namespace_id(self) -> str:
        return "catalog"

    def describe_table(self, request: DescribeTableRequest) -> DescribeTableResponse:
        self.asked.append("table")
        return DescribeTableResponse(
            location="s3://b/t", storage_options={"aws_session_token": SECRET}, managed_versioning=True
        )

    def describe_table_version(self, request: DescribeTableVersionRequest) -> DescribeTableVersionResponse:
        number = request["version"] if isinstance(request, dict) else request.version
        self.asked.append(f"version {number}")
        version = TableVersion(version=number or 7, manifest_path="b/t/_versions/7.manifest", manifest_size=9)
        return DescribeTableVersionResponse(version=version)


class LanceRequest(dict[str, Any]):
    """A request as pylance sends it: its fields are no attributes."""


def test_descriptions_are_shared(executor: Path) -> None:
    catalog = Catalog()
    for _ in range(2):
        worker: Any = SharedNamespace(catalog, ["catalog"], "job")
        described = worker.describe_table(DescribeTableRequest(id=["db", "t"]))
        assert (described.location, described.managed_versioning) == ("s3://b/t", True)
        assert described.storage_options == {"aws_session_token": SECRET}
        for number in (7, None):
            found = worker.describe_table_version(DescribeTableVersionRequest(id=["db", "t"], version=number))
            assert (found.version.version, found.version.manifest_size) == (7, 9)
        assert worker.describe_table_version(LanceRequest(id=["db", "t"], version=8))["version"]["version"] == 8
        assert worker.namespace_id() == "catalog"
    assert catalog.asked == ["table", "version 7", "version None", "version 8", "version None"]


def test_only_tasks_of_a_job_share(executor: Path) -> None:
    address = TableAddress.parse(Connection("iceberg", {"endpoint": "http://127.0.0.1:1"}), "main.db.t")
    assert not isinstance(address.to_ref().namespace, SharedNamespace)
    assert isinstance(address.to_ref("job").namespace, SharedNamespace)
    os.environ.pop("SPARK_LOCAL_DIRS")
    assert not isinstance(address.to_ref("job").namespace, SharedNamespace)
