"""Long-running jobs on one table, split into plan, execute and commit, so that any engine can run the tasks."""
