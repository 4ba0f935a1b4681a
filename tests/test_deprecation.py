"""Names that moved still work, and say where they are now."""

from __future__ import annotations

from importlib import import_module

import pytest

import lancehouse.conformance.results
import lancehouse.conformance.target
from lancehouse import pipelines
from lancehouse.deprecation import forward_names


@pytest.mark.parametrize(
    ("module", "name", "now"),
    [
        ("lancehouse.spark.pipelines", "load", pipelines.load),
        ("lancehouse.spark.pipelines", "Pipeline", pipelines.Pipeline),
        ("lancehouse.spark.pipelines", "PipelineError", pipelines.PipelineError),
        ("lancehouse.spark.pipelines", "Problem", pipelines.Problem),
        ("lancehouse.spark.pipelines", "Line", pipelines.PlanLine),
        ("lancehouse.spark.pipelines", "Plan", pipelines.PipelinePlan),
        ("lancehouse.spark.pipelines", "Report", pipelines.RunReport),
        ("lancehouse.spark.pipelines", "Step", pipelines.RunStep),
        ("lancehouse.conformance.target", "Target", lancehouse.conformance.target.ConformanceTarget),
        ("lancehouse.conformance.results", "Report", lancehouse.conformance.results.ConformanceReport),
    ],
)
def test_an_old_name_works_and_warns(module: str, name: str, now: object) -> None:
    with pytest.warns(DeprecationWarning, match=rf"{module}\.{name} is now lancehouse\.\S+; the old name goes in 0\.3"):
        assert getattr(import_module(module), name) is now


def test_a_name_that_never_was() -> None:
    with pytest.raises(AttributeError, match="module 'm' has no attribute 'x'"):
        forward_names("m", {})("x")
