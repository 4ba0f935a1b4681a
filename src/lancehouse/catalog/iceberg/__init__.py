"""Metadata of Iceberg tables and views as JSON: parse, validate and update them, without a database."""
