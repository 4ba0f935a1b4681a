"""Work on one table in pieces: plan, run each piece, commit. What runs the pieces is no matter of theirs."""
