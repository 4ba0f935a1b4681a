"""The checks, one file per area; the docstring of each is the sentence that its user reads."""

AREAS = (
    "connection",
    "namespaces",
    "tables",
    "modes",
    "lists",
    "names",
    "properties",
    "entries",
    "details",
    "data",
    "rows",
    "indices",
    "versions",
    "columns",
    "cleanup",
)
"""In the order in which they run; `cleanup` looks at what the others left."""
