"""The catalog's database, SQLite or Postgres; the only package that uses SQL."""
