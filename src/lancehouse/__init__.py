"""Lance tables in Iceberg REST, Polaris and Unity catalogs."""
