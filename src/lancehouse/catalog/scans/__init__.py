"""Scan planning on the server, for Lance tables and Iceberg tables."""
