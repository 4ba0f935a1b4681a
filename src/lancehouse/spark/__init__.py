"""Lance tables in PySpark."""
