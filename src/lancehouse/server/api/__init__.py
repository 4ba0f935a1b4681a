"""The two APIs of the server: Iceberg REST and Lance REST Namespace."""
