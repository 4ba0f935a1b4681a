"""Where Spark looks for `format("lance")`: it imports every module whose name begins with `pyspark_`."""

from lancehouse.spark.data_source import LanceSource as DefaultSource

__all__ = ["DefaultSource"]
