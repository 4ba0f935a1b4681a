"""Metadata of Iceberg tables and views: what requests make of them, without a database."""
