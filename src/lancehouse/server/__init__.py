"""The server: Iceberg REST, Lance REST Namespace and the console over HTTP."""
