"""Scans that the server plans, of Lance tables and of Iceberg tables."""
