"""The conformance suite for any implementation of `lance_namespace.LanceNamespace`, run on a live server.

`lancehouse conformance --impl …` runs it and prints a table; as a pytest plug-in it is
`pytest -p lancehouse.conformance.plugin --pyargs lancehouse.conformance.checks --namespace-impl …`.
"""
