"""Sources of an ingest (data files, images, Iceberg tables), read with Arrow in units; nothing here needs Spark."""
