"""Implementations of the `lance_namespace` interface for Iceberg REST, Apache Polaris, Unity Catalog and Lakekeeper."""
