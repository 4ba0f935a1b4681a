"""The room `lake`."""
