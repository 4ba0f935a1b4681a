"""The console: its questions, and its page."""
