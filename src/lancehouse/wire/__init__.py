"""Pydantic models of the JSON that catalogs' REST APIs exchange, without logic."""
