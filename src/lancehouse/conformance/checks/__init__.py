"""The checks of the conformance suite, `check_AREA_NAME` each; users see their docstrings as results."""

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
"""Areas in the order in which they run; `cleanup` checks what the others left."""
