"""Convert schemas and values between Arrow and Iceberg, Unity Catalog, Spark and Lance's JSON."""
