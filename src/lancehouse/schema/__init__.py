"""Schemas of other systems to Arrow and back: one module for each system, both directions in it."""
