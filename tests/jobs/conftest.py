"""The engines of `tests/spark/conftest.py`, for tests of jobs."""

from tests.spark.conftest import engine, pytest_configure, spark  # noqa: F401
