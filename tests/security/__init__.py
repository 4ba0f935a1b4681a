"""Attacks: what a hostile caller, writer or page may try, and what the server must not do."""
