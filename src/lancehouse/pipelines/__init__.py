"""Pipelines in YAML, from a source through steps to a Lance table; see docs/pipelines.md."""

from lancehouse.documents import Problem
from lancehouse.pipelines.pipeline import Pipeline, load
from lancehouse.pipelines.planner import PipelinePlan, PlanLine
from lancehouse.pipelines.runner import RunReport, RunStep
from lancehouse.pipelines.spec import PipelineError

__all__ = ["Pipeline", "PipelineError", "PipelinePlan", "PlanLine", "Problem", "RunReport", "RunStep", "load"]
