"""Index files: messages by key and time."""
