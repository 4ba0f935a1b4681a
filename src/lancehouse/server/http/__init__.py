"""HTTP: connections, bodies, who calls, routes, answers. Nothing of tables."""
