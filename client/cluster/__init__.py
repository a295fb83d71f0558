"""Where topics and masters are, and when a call is tried again."""
