"""Pipelines in YAML, from a source through steps to a Lance table; see docs/pipelines.md."""

from lancehouse.documents import Problem
from lancehouse.pipelines.pipeline import Pipeline, load
from lancehouse.pipelines.pipeline_file import PipelineError
from lancehouse.pipelines.plan_lines import PlanLine
from lancehouse.pipelines.planner import PipelinePlan
from lancehouse.pipelines.run_report import RunReport, RunStep

__all__ = ["Pipeline", "PipelineError", "PipelinePlan", "PlanLine", "Problem", "RunReport", "RunStep", "load"]
