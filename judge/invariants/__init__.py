"""Invariants that a whole history, or what is left of a drill, shows at once."""
