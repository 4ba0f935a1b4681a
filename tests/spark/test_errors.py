from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

import pytest
from lance_namespace import errors
from lance_namespace.errors import LanceNamespaceError

from lancehouse.clients.transport import UnreachableError
from lancehouse.errors import CommitStateUnknownError
from lancehouse.spark.errors import translated
from lancehouse.spark.tasks import results


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

    with pytest.raises(type(raised), match=f"^{re.escape(str(raised))}$"), translated():
        results(spark, [0], work)


def test_another_error_of_a_task(spark: Any) -> None:
    def work(_: int) -> Iterable[str]:
        raise ValueError("too much")

    with pytest.raises(errors.InternalError, match=r"^Spark could not do it: .*too much$"), translated():
        results(spark, [0], work)
