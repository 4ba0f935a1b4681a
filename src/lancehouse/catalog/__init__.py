"""The server's catalog service: namespaces, tables, views, commits and scans, independent of HTTP."""
