"""The command `lancehouse`."""
