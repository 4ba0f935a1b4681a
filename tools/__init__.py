"""Programs that keep the project in order."""
