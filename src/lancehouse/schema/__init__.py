"""Convert schemas and values between Arrow and Iceberg, Unity Catalog, Spark and the JSON of the Lance interface."""
