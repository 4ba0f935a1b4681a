"""One suite of checks for any implementation of `lance_namespace.LanceNamespace`, on a live server.

`lancehouse conformance --impl …` runs it and prints a table; as a pytest plug-in it is
`pytest -p lancehouse.conformance.plugin --pyargs lancehouse.conformance.checks --namespace-impl …`.
"""
