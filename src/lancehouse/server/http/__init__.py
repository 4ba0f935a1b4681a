"""The HTTP layer of the server: connections, request bodies, authentication, routing, responses and metrics."""
