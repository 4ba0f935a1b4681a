"""Notebooks for newcomers, and what executes them."""
