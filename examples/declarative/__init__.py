"""Lance tables in Spark's declarative pipelines."""
