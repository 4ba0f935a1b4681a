"""Benchmarks. They take time and print figures; tests do neither."""
