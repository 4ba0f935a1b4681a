"""The command-line interface `lancehouse`."""
