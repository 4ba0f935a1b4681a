"""Pydantic models of the JSON of Iceberg REST, for clients and for the server, without logic."""
