"""The catalog over HTTP: Iceberg REST."""
