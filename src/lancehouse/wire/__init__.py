"""Models of foreign JSON, without logic."""
