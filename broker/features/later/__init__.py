"""Messages for later: stored at once, delivered at their time."""
