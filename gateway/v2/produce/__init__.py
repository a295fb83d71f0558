"""What producers ask."""
