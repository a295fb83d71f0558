"""Message trace: what producers and consumers tell of each message, into a topic of its own."""
