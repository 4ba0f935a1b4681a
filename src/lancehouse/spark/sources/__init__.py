"""What an ingest reads: files, images and Iceberg tables, in Arrow alone; nothing here needs Spark."""

from lancehouse.spark.sources.opening import open_source
from lancehouse.spark.sources.units import IngestSource, Unit

__all__ = ["IngestSource", "Unit", "open_source"]
