"""`lancehouse demo`: a guided tour on a temporary server and local Spark."""
