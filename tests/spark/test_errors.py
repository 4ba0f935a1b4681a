from __future__ import annotations

import importlib
import re
import signal
import threading
from collections.abc import Iterable
from typing import Any

import pytest
from lance_namespace import errors
from lance_namespace.errors import LanceNamespaceError

from lancehouse.clients.http import UnreachableError
from lancehouse.errors import CommitStateUnknownError
from lancehouse.spark.engine import collect_results, translate_task_errors
from tests.waiting import wait_until


@pytest.mark.parametrize(
    "raised",
    [
        errors.InvalidInputError("table t: 'é' is none; do that"),
        errors.TableNotFoundError("table t"),
        CommitStateUnknownError("nobody knows"),
        UnreachableError("no connection to 127.0.0.1:9"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_a_lance_error_of_a_task(spark: Any, raised: LanceNamespaceError) -> None:
    def work(_: int) -> Iterable[str]:
        try:
            raise KeyError("what it came of")
        except KeyError as error:
            raise raised from error

    with pytest.raises(type(raised), match=f"^{re.escape(str(raised))}$"), translate_task_errors():
        collect_results(spark, [0], work)


def test_another_error_of_a_task(spark: Any) -> None:
    def work(_: int) -> Iterable[str]:
        raise ValueError("too much")

    with pytest.raises(errors.InternalError, match=r"^Spark could not do it: .*too much$"), translate_task_errors():
        collect_results(spark, [0], work)


def test_values_that_sql_cannot_take(spark: Any) -> None:
    with pytest.raises(errors.InvalidInputError, match="Division by zero"), translate_task_errors():
        spark.sql("SELECT 1 / (id - id) FROM range(2)").collect()


def test_a_module_that_executors_do_not_have(spark: Any, tmp_path: Any, monkeypatch: Any) -> None:
    """A function of a user's module is sent by its name alone."""
    (tmp_path / "only_here.py").write_text("def work(piece):\n    return ['done']\n")
    monkeypatch.syspath_prepend(tmp_path)
    work = importlib.import_module("only_here").work
    said = r"no module only_here, .*spark.addArtifacts\('only_here.py', pyfile=True\), .*--py-files"
    with pytest.raises(errors.InvalidInputError, match=said), translate_task_errors():
        collect_results(spark, [0], work)
    spark.addArtifacts(str(tmp_path / "only_here.py"), pyfile=True)  # as it says
    with translate_task_errors():
        assert collect_results(spark, [0], work) == ["done"]


def test_an_interrupt_that_spark_turns_into_an_error(spark: Any) -> None:
    """PySpark's handler cancels the job, whose error then takes the place of the interrupt."""
    main = threading.get_ident()

    def interrupt() -> None:
        wait_until(spark.sparkContext.statusTracker().getActiveJobsIds)
        signal.pthread_kill(main, signal.SIGINT)

    interrupter = threading.Thread(target=interrupt)
    interrupter.start()
    with pytest.raises(KeyboardInterrupt), translate_task_errors():
        spark.sql("SELECT max(id * 7 % 13) FROM range(1000000000000)").toArrow()
    interrupter.join()
