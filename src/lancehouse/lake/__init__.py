"""Open, scan, write, commit and describe Lance datasets with pylance, independent of any catalog."""
