"""Load generators: processes that send or receive, and what they counted."""
