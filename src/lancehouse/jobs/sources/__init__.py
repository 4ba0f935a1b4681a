"""Sources of an ingest (data files, images, Iceberg tables), read with Arrow; nothing here needs Spark."""

from lancehouse.jobs.sources.open_source import open_source
from lancehouse.jobs.sources.units import IngestSource, Unit

__all__ = ["IngestSource", "Unit", "open_source"]
