"""Catalogs looked after: checked against storage, compared, copied."""
