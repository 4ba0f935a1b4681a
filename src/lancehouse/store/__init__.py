"""What the catalog remembers: the only user of SQL."""
