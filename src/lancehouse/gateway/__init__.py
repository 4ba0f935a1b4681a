"""The Lance REST Namespace protocol over any namespace: which calls there are, and what becomes of each."""
