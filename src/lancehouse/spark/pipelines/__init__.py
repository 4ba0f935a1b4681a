"""Pipelines in YAML: a source, steps, and a Lance table; see docs/pipelines.md."""

from lancehouse.spark.pipelines.lines import Line
from lancehouse.spark.pipelines.pipeline import Pipeline, load
from lancehouse.spark.pipelines.planning import Plan
from lancehouse.spark.pipelines.problems import PipelineError, Problem
from lancehouse.spark.pipelines.reports import Report, Step

__all__ = ["Line", "Pipeline", "PipelineError", "Plan", "Problem", "Report", "Step", "load"]
