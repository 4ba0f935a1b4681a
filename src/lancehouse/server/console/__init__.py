"""The web console: its API, and the files of its page."""
