"""Lance datasets: the only package that imports `lance`."""
