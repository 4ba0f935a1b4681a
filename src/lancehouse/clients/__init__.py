"""The three plug-ins of `lance_namespace`: Iceberg REST, Polaris, Unity Catalog."""
