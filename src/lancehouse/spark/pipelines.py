"""The old place of `lancehouse.pipelines`; it goes in 0.3."""

from lancehouse.deprecation import forward_names

__getattr__ = forward_names(
    __name__,
    {
        "Line": "lancehouse.pipelines.PlanLine",
        "Pipeline": "lancehouse.pipelines.Pipeline",
        "PipelineError": "lancehouse.pipelines.PipelineError",
        "Plan": "lancehouse.pipelines.PipelinePlan",
        "Problem": "lancehouse.pipelines.Problem",
        "Report": "lancehouse.pipelines.RunReport",
        "Step": "lancehouse.pipelines.RunStep",
        "load": "lancehouse.pipelines.load",
    },
)
