"""Features: each folder is one, and nothing else knows it."""
