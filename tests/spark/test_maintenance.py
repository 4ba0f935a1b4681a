"""Large tables are maintained on Spark."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from lancehouse.maintenance import process
from lancehouse.maintenance.worker import MaintenanceWorker, WorkerOptions
from lancehouse.server.settings import ServerSettings
from tests.maintenance.places import QUICK, open_place
from tests.servers.lancehouse import start_lancehouse


def test_a_large_table(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "LOCAL_BYTES", 1)
    monkeypatch.setattr("lancehouse.spark.session.start_session", lambda *_: spark)
    policy = {**QUICK, "maintenance.cleanup": "false"}
    with (
        start_lancehouse(tmp_path, warehouses={"main": tmp_path / "main"}) as served,
        open_place(tmp_path, policy=policy) as place,
    ):
        place.create("docs", commits=5)
        place.plan()
        chooser = process.spark_chooser("local[2]", served.iceberg, None, ServerSettings())
        MaintenanceWorker(place.maintenance, place.backends, WorkerOptions("one"), chooser).run_until_idle()
        assert place.runs() == [("docs", "compact", "done")]
        assert len(place.open("docs").get_fragments()) == 1
        commits = place.database.read(lambda tx: _read_committers(tx, place))
        assert commits == {"anonymous"}  # by its task's client, over HTTP


def _read_committers(tx: object, place: object) -> set[str]:
    from lancehouse.store import repository

    entry = place.table("docs").entry_id  # type: ignore[attr-defined]
    newest = repository.list_commits(tx, entry, 1)  # type: ignore[arg-type]
    return {commit.principal for commit in newest}
