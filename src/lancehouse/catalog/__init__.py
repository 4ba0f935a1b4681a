"""What the server does, without HTTP."""
