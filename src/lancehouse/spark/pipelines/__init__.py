"""Pipelines in YAML: a source, steps, and a Lance table; see docs/pipelines.md."""

from lancehouse.spark.pipelines.lines import PlanLine
from lancehouse.spark.pipelines.pipeline import Pipeline, load
from lancehouse.spark.pipelines.planning import PipelinePlan
from lancehouse.spark.pipelines.problems import PipelineError, Problem
from lancehouse.spark.pipelines.reports import RunReport, RunStep

__all__ = ["Pipeline", "PipelineError", "PipelinePlan", "PlanLine", "Problem", "RunReport", "RunStep", "load"]
