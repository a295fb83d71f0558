"""SQL92 conditions: a compiler and its machine."""
