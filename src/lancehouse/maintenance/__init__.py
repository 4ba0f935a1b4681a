"""Maintenance of tables by policy: find what is due, lease it, and do it with the jobs that users can start too."""
