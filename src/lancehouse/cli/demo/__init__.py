"""What `lancehouse demo` tells, from an empty catalog to two writers that race."""
